/*
 * Damaged pages: pages of the store whose bytes differ from those that were sealed (kvstore/seal.h). Engine thread; the
 * pages are read by the checker thread.
 *
 * They are found on three occasions:
 *
 *   reused    RESERVE has matched pages of the prefix tree. They are verified while the rest of the prompt is computed
 *             and shipped; the ticket does not leave CHECKING before the answer
 *   lent      another decode worker has read pages of the prefix tree that arrived damaged, and says so (lend.c); they are
 *             verified here, and count as `reused`
 *   running   the patrol verifies the full pages of running requests, one request after the other, at a bounded number
 *             of bytes per second: a process that can write into the arena can also damage pages that are in use
 *   verify      an administrator has all pages verified (audit.c)
 *
 * A damaged page leaves the prefix tree together with every page that continues it. Every request that holds it ends
 * here: one without a token yet fails and is tried again; one that has produced tokens is retracted, and the router
 * places it again with these tokens. The patrol does not prevent that a request produces tokens from damaged rows; it
 * limits for how long.
 */
#include <inttypes.h>
#include <string.h>

#include "decode/decode_impl.h"

static const uint64_t MS = 1000000;
enum {
    PAGE = SL_PAGE_TOKENS,
    PATROL_MS = 20,
    PATROL_BYTES = 5 << 20, /* in one turn: 250 MiB per second, 2 to 3 % of what one core can read */
    FOUND_REUSED = 0,       /* tags of jobs */
    FOUND_RUNNING = 1
};

static int32_t index_of(const sl_lease *l, int32_t page)
{
    const int32_t *pages = sl_lease_pages(l);
    for (int32_t i = 0; i < sl_lease_n_pages(l); i++) {
        if (pages[i] == page)
            return i;
    }
    return -1;
}

/* Ends t, which holds the damaged page. t may have been freed afterwards. */
static void give_way(sl_decode *d, sl_ticket *t)
{
    switch (t->state) {
    case TICKET_LANDING:
    case TICKET_PROMPT:
    case TICKET_CHECKING:
        sl_ticket_failed(d, t, SL_ERR_CORRUPT, true, "pages of its prefix were damaged in the store");
        break;
    case TICKET_WAITING:
    case TICKET_RUNNING:
        sl_batch_retract(d, t, "damaged");
        break;
    default: /* it has ended */
        break;
    }
}

/* lease: one that holds it and belongs to no request, or NULL. */
static void drop_page(sl_decode *d, int32_t page, sl_lease *lease)
{
    int32_t dropped = lease ? sl_lease_drop(lease, index_of(lease, page)) : 0;
    for (sl_ticket *t = d->tickets.list, *next; t; t = next) {
        next = t->next;
        int32_t i = index_of(t->lease, page);
        if (i < 0)
            continue;
        dropped += sl_lease_drop(t->lease, i);
        give_way(d, t);
    }
    sl_log(SL_LOG_WARN, "decode", "page_damaged", "page=%d dropped=%d", page, dropped);
}

bool sl_damage_verify(sl_decode *d, sl_ticket *t, int32_t first, int32_t n, bool running)
{
    sl_check *k = sl_check_new(SL_CHECK_VERIFY, sl_lease_pages(t->lease) + first, n, t);
    if (!k)
        return false;
    k->tag = running ? FOUND_RUNNING : FOUND_REUSED;
    k->sampled = d->role.checker.verify == SL_CFG_VERIFY_SAMPLED;
    t->checks++;
    sl_checker_post(&d->role.checker, k);
    return true;
}

static bool verified(sl_decode *d, const sl_check *k, bool running, sl_lease *lent)
{
    if (!k->n_damaged)
        return true;
    d->pages.damage.found += (uint64_t)k->n_damaged;
    sl_counter_add(running ? d->role.metrics.damaged_running : d->role.metrics.damaged_reused,
                   (uint64_t)k->n_damaged);
    for (int32_t i = 0; i < k->n_damaged; i++)
        drop_page(d, k->damaged[i], lent);
    return false;
}

bool sl_damage_verified(sl_decode *d, const sl_check *k)
{
    bool running = k->tag == FOUND_RUNNING;
    if (running)
        d->pages.damage.patrolling = false;
    return verified(d, k, running, NULL);
}

void sl_damage_verified_lent(sl_decode *d, const sl_check *k, sl_lease *lease)
{
    verified(d, k, false, lease);
}

void sl_damage_found(sl_decode *d, int32_t page, sl_key seed, sl_key key)
{
    sl_lease *l = NULL;
    int32_t first;
    d->pages.damage.found++;
    bool in_tree = sl_store_lease_keys(d->role.store, seed, &key, 1, &first, &l) == SL_OK;
    drop_page(d, page, in_tree && sl_lease_pages(l)[first] == page ? l : NULL);
    sl_lease_release(l, true);
}

/* The running request that has not been verified for the longest time. */
static sl_ticket *next_to_patrol(const sl_decode *d)
{
    sl_ticket *best = NULL;
    for (sl_ticket *t = d->tickets.list; t; t = t->next) {
        if (t->state == TICKET_RUNNING && t->sealed && (!best || t->patrol_ns < best->patrol_ns))
            best = t;
    }
    return best;
}

uint64_t sl_damage_patrol(sl_decode *d, uint64_t now)
{
    if (!sl_checker_seals(&d->role.checker) || !d->tickets.n_running)
        return UINT64_MAX;
    if (d->pages.damage.patrolling || now < d->pages.damage.patrol_ns)
        return d->pages.damage.patrolling ? UINT64_MAX : d->pages.damage.patrol_ns;
    sl_ticket *t = next_to_patrol(d);
    d->pages.damage.patrol_ns = now + PATROL_MS * MS;
    if (!t)
        return d->pages.damage.patrol_ns;
    int64_t most = PATROL_BYTES / d->geo->page_bytes;
    if (t->patrol_at >= t->sealed)
        t->patrol_at = 0;
    int32_t n = t->sealed - t->patrol_at;
    n = n > most ? (int32_t)(most > 0 ? most : 1) : n;
    t->patrol_ns = now;
    d->pages.damage.patrolling = sl_damage_verify(d, t, t->patrol_at, n, true);
    t->patrol_at += n;
    return d->pages.damage.patrol_ns;
}

bool sl_damage_seal(sl_decode *d, sl_ticket *t, int32_t page)
{
    if (!sl_checker_seals(&d->role.checker))
        return true;
    sl_check *k = sl_check_new(SL_CHECK_SEAL, sl_lease_pages(t->lease) + page, 1, t);
    if (!k)
        return false;
    t->checks++;
    t->sealed = page + 1;
    sl_checker_post(&d->role.checker, k);
    return true;
}
