/*
 * Loading: requests whose prefix continues in storage tiers (kvstore/cascade.h). Engine thread.
 *
 * RESERVE that would be granted now waits here while the tiers are asked and the pages are loaded; then it is handled again
 * from the beginning and finds them in the prefix tree. It has no ticket and no pages meanwhile, and the router sees
 * only that its answer comes later. ABORT and the loss of its router end the wait. At most as many requests wait as there are
 * places for tickets that are free; the others are handled without them.
 *
 * The checksums that the cascade asks for are jobs of the checker, like those of tickets.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "decode/decode_impl.h"

struct sl_loading {
    sl_cascade_waiter wait; /* first member */
    struct sl_loading *next, *prev;
    sl_decode *d;
    sl_wmsg *m; /* RESERVE */
    uint64_t
        until_ns; /* then it continues with the pages that have arrived; 0: kvstore.prefetch sets no time */
    bool listed, over; /* over: that time has come */
};

static void unlist(sl_loading *w)
{
    sl_decode *d = w->d;
    *(w->prev ? &w->prev->next : &d->e.loading) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    d->e.n_loading--;
    w->listed = false;
}

static void on_ready(sl_cascade_waiter *wait)
{
    sl_loading *w = (sl_loading *)wait;
    sl_wmsg *m = w->m;
    unlist(w);
    sl_landing_resume(w->d, m, w);
    if (!w->listed)
        free(w);
}

static bool places_left(const sl_decode *d)
{
    return d->e.n_tickets + d->e.n_loading < d->o.max_batch + d->o.max_waiting;
}

bool sl_loading_worth(const sl_decode *d, int32_t pages)
{
    return pages > 0 && pages * SL_PAGE_TOKENS >= d->o.prefetch.min_tokens;
}

/* Joins or begins the load of a request, whose prefetch, if it was announced, ends here. */
static bool wait_for_pages(sl_decode *d, sl_loading *w)
{
    const sl_msg_reserve *r = &w->m->msg.reserve;
    const sl_prefetch_opts *o = &d->o.prefetch;
    int32_t n = (int32_t)r->n_tokens;
    sl_prefetch *p = sl_prefetch_find(d, w->m->router, r->rid);
    bool late = p && !sl_prefetch_done(p);
    bool waits = !w->over && !(late && o->policy == SL_CFG_PREFETCH_BEST_EFFORT) &&
                 sl_loading_worth(d, (n - 1) / SL_PAGE_TOKENS -
                                         sl_store_match(d->role.store, r->seed, r->tokens, n)) &&
                 sl_cascade_wait(d->e.cascade, r->seed, r->tokens, n, &w->wait);
    if (p) /* after the request has joined its load, which would end otherwise */
        sl_prefetch_finish(p, late ? SL_PREFETCH_LATE : SL_PREFETCH_IN_TIME);
    if (waits && !w->until_ns && o->policy == SL_CFG_PREFETCH_TIMEOUT)
        w->until_ns = sl_now_ns() + (o->base_ms + (uint64_t)o->ms_per_1024 * r->n_tokens / 1024) * 1000000;
    return waits;
}

bool sl_loading_wait(sl_decode *d, sl_wmsg *m, sl_loading *again)
{
    if (!d->e.cascade || !places_left(d))
        return false;
    sl_loading *w = again ? again : calloc(1, sizeof *w);
    if (!w)
        return false;
    w->wait.ready = on_ready;
    w->d = d;
    w->m = m;
    if (!wait_for_pages(d, w)) {
        if (!again)
            free(w);
        return false;
    }
    w->prev = NULL;
    w->next = d->e.loading;
    if (w->next)
        w->next->prev = w;
    d->e.loading = w;
    d->e.n_loading++;
    w->listed = true;
    return true;
}

static void drop(sl_loading *w)
{
    sl_cascade_leave(w->d->e.cascade, &w->wait);
    unlist(w);
    sl_wmsg_free(w->m);
    free(w);
}

bool sl_loading_abort(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_prefetch *p = sl_prefetch_find(d, router, rid);
    if (p)
        sl_prefetch_finish(p, SL_PREFETCH_CANCELLED);
    for (sl_loading *w = d->e.loading; w; w = w->next) {
        const sl_msg_reserve *r = &w->m->msg.reserve;
        if (w->m->router == router && r->rid == rid && r->attempt == attempt) {
            drop(w);
            return true;
        }
    }
    return false;
}

void sl_loading_router_down(sl_decode *d, uint32_t router)
{
    sl_prefetch_cancel(d, &router);
    for (sl_loading *w = d->e.loading, *next; w; w = next) {
        next = w->next;
        if (w->m->router == router)
            drop(w);
    }
}

/* ---- the checker ---- */

static bool read_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n)
{
    sl_decode *d = ctx;
    sl_check *k = sl_check_new(SL_CHECK_READ, pages, n, job);
    if (!k)
        return false;
    k->tag = CHECK_CASCADE;
    sl_checker_post(&d->role.checker, k);
    return true;
}

static bool check_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    sl_decode *d = ctx;
    sl_check *k = sl_check_new(SL_CHECK_KEEP, pages, n, job);
    if (!k)
        return false;
    k->tag = CHECK_CASCADE;
    k->expect = crc;
    k->compare = true;
    sl_checker_post(&d->role.checker, k);
    return true;
}

void sl_loading_checked(sl_decode *d, sl_check *k)
{
    if (k->what == SL_CHECK_READ)
        sl_cascade_sums(d->e.cascade, k->owner, k->n_crc ? k->crc : NULL);
    else
        sl_cascade_checked(d->e.cascade, k->owner, k->bad == 0);
    sl_check_free(k);
}

/* ---- the cascade's life ---- */

sl_status sl_loading_open(sl_decode *d, sl_err *err)
{
    sl_cascade_opts o = {.store = d->role.store,
                         .arena = d->o.role.arena,
                         .calls = {.ctx = d,
                                   .read_sums = read_sums,
                                   .check_sums = check_sums,
                                   .stored = sl_holdings_stored,
                                   .gone = sl_holdings_gone}};
    int n = d->o.n_tiers;
    d->o.n_tiers = 0;
    if (n && sl_cascade_create(&o, d->o.tiers, n, &d->e.cascade) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return SL_OK;
}

void sl_loading_close(sl_decode *d)
{
    sl_prefetch_cancel(d, NULL);
    while (d->e.loading)
        drop(d->e.loading);
    sl_cascade_destroy(d->e.cascade);
    d->e.cascade = NULL;
}

/* Requests whose time has come continue with the pages that have arrived. Returns when the next one's has. */
static uint64_t end_waits(sl_decode *d, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_loading *w = d->e.loading; w;) {
        if (w->until_ns && now >= w->until_ns) {
            w->over = true;
            sl_cascade_leave(d->e.cascade, &w->wait);
            on_ready(&w->wait);
            w = d->e.loading; /* what it did may have changed the list */
            due = UINT64_MAX;
            continue;
        }
        due = w->until_ns && w->until_ns < due ? w->until_ns : due;
        w = w->next;
    }
    return due;
}

uint64_t sl_loading_tick(sl_decode *d, uint64_t now)
{
    if (!d->e.cascade)
        return UINT64_MAX;
    if (d->role.draining) {
        sl_prefetch_cancel(d, NULL);
        sl_cascade_finish(d->e.cascade);
    }
    uint64_t due = sl_cascade_tick(d->e.cascade, now), waits = end_waits(d, now),
             old = sl_prefetch_tick(d, now);
    due = waits < due ? waits : due;
    due = old < due ? old : due;
    return sl_holdings_tick(d) ? now : due;
}

bool sl_loading_idle(const sl_decode *d)
{
    return !d->e.cascade || (!d->e.loading && sl_cascade_idle(d->e.cascade));
}
