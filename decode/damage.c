/*
 * Damaged pages: pages of the store whose bytes are no longer those that were sealed (kvstore/seal.h). Engine thread;
 * the pages are read by the checker thread.
 *
 * Two occasions find them:
 *
 *   reused    RESERVE has matched pages of the prefix tree. They are verified while the rest of the prompt is computed
 *             and shipped; the ticket does not leave CHECKING before the answer
 *   running   the patrol verifies full pages of running requests, in turn, at a bounded number of bytes per second:
 *             whoever may write into the arena can also write into pages of requests that run
 *
 * A page that differs leaves the prefix tree with everything that continues it. Every request that holds it gives way:
 * before its first token it fails and is tried again, later it is retracted and starts again with the tokens that it has
 * produced. The patrol bounds for how long a request can produce tokens from damaged rows, it does not prevent it.
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

static int32_t index_of(const sl_ticket *t, int32_t page)
{
    const int32_t *pages = sl_lease_pages(t->lease);
    for (int32_t i = 0; i < sl_lease_n_pages(t->lease); i++) {
        if (pages[i] == page)
            return i;
    }
    return -1;
}

/* t holds the damaged page; t may be gone afterwards. */
static void give_way(sl_decode *d, sl_ticket *t)
{
    switch (t->state) {
    case TICKET_LANDING:
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

static void drop_page(sl_decode *d, int32_t page)
{
    int32_t dropped = 0;
    for (sl_ticket *t = d->e.tickets, *next; t; t = next) {
        next = t->next;
        int32_t i = index_of(t, page);
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

/* Whether all pages are right; if not, the requests that hold them have given way, perhaps the owner among them. */
bool sl_damage_verified(sl_decode *d, const sl_check *k)
{
    bool running = k->tag == FOUND_RUNNING;
    if (running)
        d->e.patrolling = false;
    if (!k->n_damaged)
        return true;
    d->e.count.damaged += (uint64_t)k->n_damaged;
    sl_counter_add(running ? d->role.metrics.damaged_running : d->role.metrics.damaged_reused,
                   (uint64_t)k->n_damaged);
    for (int32_t i = 0; i < k->n_damaged; i++)
        drop_page(d, k->damaged[i]);
    return false;
}

/* The running request whose last turn is longest ago. */
static sl_ticket *next_to_patrol(const sl_decode *d)
{
    sl_ticket *best = NULL;
    for (sl_ticket *t = d->e.tickets; t; t = t->next) {
        if (t->state == TICKET_RUNNING && t->sealed && (!best || t->patrol_ns < best->patrol_ns))
            best = t;
    }
    return best;
}

uint64_t sl_damage_patrol(sl_decode *d, uint64_t now)
{
    if (!sl_checker_seals(&d->role.checker) || !d->e.n_running)
        return UINT64_MAX;
    if (d->e.patrolling || now < d->e.patrol_ns)
        return d->e.patrolling ? UINT64_MAX : d->e.patrol_ns;
    sl_ticket *t = next_to_patrol(d);
    d->e.patrol_ns = now + PATROL_MS * MS;
    if (!t)
        return d->e.patrol_ns;
    int64_t most = PATROL_BYTES / d->geo->page_bytes;
    if (t->patrol_at >= t->sealed)
        t->patrol_at = 0;
    int32_t n = t->sealed - t->patrol_at;
    n = n > most ? (int32_t)(most > 0 ? most : 1) : n;
    t->patrol_ns = now;
    d->e.patrolling = sl_damage_verify(d, t, t->patrol_at, n, true);
    t->patrol_at += n;
    return d->e.patrol_ns;
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
