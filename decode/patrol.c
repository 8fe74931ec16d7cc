/*
 * Damaged pages of requests: pages of the store whose bytes differ from those that were sealed (kvstore/seal.h). Engine
 * thread; the pages are read by the checker thread.
 *
 * They are found on three occasions:
 *
 *   reused    RESERVE has matched pages of the prefix tree. They are verified while the rest of the prompt is computed
 *             and shipped; the ticket does not leave CHECKING before the answer
 *   lent      another decode worker has read pages of the prefix tree that arrived damaged, and says so (pages/lend.c); they are
 *             verified here, and count as `reused`
 *   running   the patrol verifies the full pages of running requests, one request after the other, at a bounded number
 *             of bytes per second: a process that can write into the arena can also damage pages that are in use
 *   verify      an administrator has all pages verified (pages/audit.c)
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

void sl_patrol_damaged(sl_decode *d, int32_t page, int32_t dropped)
{
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

bool sl_patrol_verify(sl_decode *d, sl_ticket *t, int32_t first, int32_t n, bool running)
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

bool sl_patrol_verified(sl_decode *d, const sl_check *k)
{
    bool running = k->tag == FOUND_RUNNING;
    if (running)
        d->tickets.patrol.running = false;
    sl_counter_add(running ? d->role.metrics.damaged_running : d->role.metrics.damaged_reused,
                   (uint64_t)k->n_damaged);
    *(running ? &d->tickets.patrol.found : &d->tickets.patrol.reused) += (uint64_t)k->n_damaged;
    for (int32_t i = 0; i < k->n_damaged; i++)
        sl_patrol_damaged(d, k->damaged[i], 0);
    return !k->n_damaged;
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

uint64_t sl_patrol_tick(sl_decode *d, uint64_t now)
{
    if (!sl_checker_seals(&d->role.checker) || !d->tickets.n_running)
        return UINT64_MAX;
    if (d->tickets.patrol.running || now < d->tickets.patrol.due_ns)
        return d->tickets.patrol.running ? UINT64_MAX : d->tickets.patrol.due_ns;
    sl_ticket *t = next_to_patrol(d);
    d->tickets.patrol.due_ns = now + PATROL_MS * MS;
    if (!t)
        return d->tickets.patrol.due_ns;
    int64_t most = PATROL_BYTES / d->geo->page_bytes;
    if (t->patrol_at >= t->sealed)
        t->patrol_at = 0;
    int32_t n = t->sealed - t->patrol_at;
    n = n > most ? (int32_t)(most > 0 ? most : 1) : n;
    t->patrol_ns = now;
    d->tickets.patrol.running = sl_patrol_verify(d, t, t->patrol_at, n, true);
    t->patrol_at += n;
    return d->tickets.patrol.due_ns;
}

bool sl_patrol_seal(sl_decode *d, sl_ticket *t, int32_t page)
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
