/*
 * Loading: requests whose prefix continues in storage tiers (kvstore/cascade.h). Engine thread.
 *
 * RESERVE that would be granted now waits here while the tiers are asked and the pages are loaded; then it is handled again
 * from the beginning and finds them in the prefix tree. It has no ticket and no pages meanwhile, and the router sees
 * only that its answer comes later, and, when the load takes more than one chunk, LOADING: then the prefill worker begins to fetch
 * the pages that have arrived (lend.c). ABORT and the loss of its router end the wait. At most as many requests wait as there are
 * places for tickets that are free; the others are handled without them.
 *
 * The checksums that the cascade asks for are jobs of the checker, like those of tickets.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
    *(w->prev ? &w->prev->next : &d->pages.loads.list) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    d->pages.loads.n--;
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

static void on_begun(sl_cascade_waiter *wait, int32_t pages)
{
    const sl_loading *w = (const sl_loading *)wait;
    const sl_msg_reserve *r = &w->m->msg.reserve;
    int32_t most = ((int32_t)r->n_tokens - 1) / SL_PAGE_TOKENS;
    sl_msg m = {.type = SL_MSG_LOADING};
    m.loading = (sl_msg_loading){
        .rid = r->rid, .attempt = r->attempt, .pages = (uint32_t)(pages < most ? pages : most)};
    sl_worker_tell_router(w->d->worker, w->m->router, &m);
}

int32_t sl_loading_to_verify(const sl_loading *w, int32_t matched)
{
    bool fresh = w && w->wait.loaded < w->wait.loaded_end && matched <= w->wait.loaded_end;
    return fresh && w->wait.loaded < matched ? w->wait.loaded : matched;
}

static bool places_left(const sl_decode *d)
{
    return d->tickets.n + d->pages.loads.n < d->o.max_batch + d->o.max_waiting;
}

sl_tier_source sl_loading_source(uint32_t router, const sl_msg_source *s)
{
    sl_tier_source out = {
        .router = router, .worker = s->worker, .epoch = s->epoch, .pages = (int32_t)s->pages};
    memcpy(out.address, s->addr, sizeof out.address);
    return out;
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
    int32_t n = sl_runner_shared(d->o.role.runner, (int32_t)r->n_prompt, (int32_t)r->n_tokens);
    sl_prefetch *p = sl_prefetch_find(d, w->m->router, r->rid);
    bool late = p && !sl_prefetch_done(p);
    bool waits = !w->over && !(late && o->policy == SL_CFG_PREFETCH_BEST_EFFORT) &&
                 sl_loading_worth(d, (n - 1) / SL_PAGE_TOKENS -
                                         sl_store_match(d->role.store, r->seed, r->tokens, n)) &&
                 sl_cascade_wait(d->pages.cascade, r->seed, r->tokens, n, &w->wait);
    if (p) /* after the request has joined its load, which would end otherwise */
        sl_prefetch_finish(p, late ? SL_PREFETCH_LATE : SL_PREFETCH_IN_TIME);
    if (waits && !w->until_ns && o->policy == SL_CFG_PREFETCH_TIMEOUT)
        w->until_ns = sl_now_ns() + (o->base_ms + (uint64_t)o->ms_per_1024 * r->n_tokens / 1024) * 1000000;
    return waits;
}

bool sl_loading_wait(sl_decode *d, sl_wmsg *m, sl_loading *again)
{
    if (!d->pages.cascade || !places_left(d))
        return false;
    sl_loading *w = again ? again : calloc(1, sizeof *w);
    if (!w)
        return false;
    w->wait.ready = on_ready;
    w->wait.tenant = m->msg.reserve.tenant;
    w->wait.begun = on_begun;
    w->wait.source = sl_loading_source(m->router, &m->msg.reserve.source);
    w->d = d;
    w->m = m;
    if (!wait_for_pages(d, w)) {
        if (!again)
            free(w);
        return false;
    }
    w->prev = NULL;
    w->next = d->pages.loads.list;
    if (w->next)
        w->next->prev = w;
    d->pages.loads.list = w;
    d->pages.loads.n++;
    w->listed = true;
    return true;
}

static void drop(sl_loading *w)
{
    sl_cascade_leave(w->d->pages.cascade, &w->wait);
    unlist(w);
    sl_wmsg_free(w->m);
    free(w);
}

bool sl_loading_abort(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_prefetch *p = sl_prefetch_find(d, router, rid);
    if (p)
        sl_prefetch_finish(p, SL_PREFETCH_CANCELLED);
    for (sl_loading *w = d->pages.loads.list; w; w = w->next) {
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
    for (sl_loading *w = d->pages.loads.list, *next; w; w = next) {
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
        sl_cascade_sums(d->pages.cascade, k->owner, k->n_crc ? k->crc : NULL);
    else
        sl_cascade_checked(d->pages.cascade, k->owner, k->damaged, k->n_damaged);
    sl_check_free(k);
}

/* ---- pages of other workers ---- */

/* While the decode worker is destroyed its transport thread has ended already: nothing carries a mail, and the tier frees what
 * it has posted. */
static void post(sl_decode *d, sl_wmail *m, int kind)
{
    m->kind = kind;
    if (d->worker)
        sl_worker_post(d->worker, m);
}

static void ask(void *ctx, sl_pull *p)
{
    post(ctx, &p->mail, DM_PULL_ASK);
}

static void get(void *ctx, sl_pull_get *g)
{
    post(ctx, &g->mail, DM_PULL_GET);
}

static void cancel(void *ctx, uint64_t id)
{
    const sl_decode *d = ctx;
    sl_pull_cancel *m = d->worker ? calloc(1, sizeof *m) : NULL;
    SL_CHECK(m || !d->worker, "out of memory");
    if (!m)
        return;
    m->id = id;
    post(ctx, &m->mail, DM_PULL_CANCEL);
}

static void end(void *ctx, const sl_pull *p)
{
    const sl_decode *d = ctx;
    sl_msg m = {.type = SL_MSG_LEASE_END};
    m.lease_end.lease = p->id;
    if (d->worker)
        sl_worker_tell_peer(d->worker, p->ep_serial, &m);
}

static void damaged(void *ctx, const sl_pull *p, int32_t first, int32_t count)
{
    const sl_decode *d = ctx;
    sl_msg m = {.type = SL_MSG_LEASE_DAMAGED};
    m.lease_damaged =
        (sl_msg_lease_damaged){.lease = p->id, .first = (uint32_t)first, .count = (uint32_t)count};
    if (d->worker)
        sl_worker_tell_peer(d->worker, p->ep_serial, &m);
}

static double prefill_rate(void *ctx)
{
    const sl_decode *d = ctx;
    return sl_pull_rate_get(&d->pages.pull.prefill_rate, sl_now_ns());
}

/* Adds the tier "workers" to those of the options: after the disk, whose use costs no other worker anything, and before
 * shared stores. */
static sl_status add_workers(sl_decode *d, sl_err *err)
{
    int at = 0, n = d->o.n_tiers;
    sl_pull_env env = {.ctx = d,
                       .arena = d->o.role.arena,
                       .page_bytes = (size_t)d->geo->page_bytes,
                       .label_bytes = sl_cascade_label_bytes(d->geo),
                       .lease_ms = 2 * d->o.pull_timeout_ms,
                       .min_pages = 1,
                       .ask = ask,
                       .get = get,
                       .cancel = cancel,
                       .end = end,
                       .damaged = damaged,
                       .prefill_rate = prefill_rate};
    SL_CHECK(n < SL_CASCADE_TIERS, "%d tiers", n);
    SL_TRY(sl_pull_open(&env, &d->pages.pull.tier, err));
    while (at < n && d->o.tiers[at].tier->ops->persistent)
        at++;
    memmove(&d->o.tiers[at + 1], &d->o.tiers[at], (size_t)(n - at) * sizeof d->o.tiers[0]);
    d->o.tiers[at] = (sl_cascade_tier){
        .tier = d->pages.pull.tier, .policy = SL_CASCADE_READ_ONLY, .load_timeout_ms = d->o.pull_timeout_ms};
    d->o.n_tiers++;
    return SL_OK;
}

/* ---- the cascade's life ---- */

/* Of a load. 0: the default. */
static int32_t chunk_pages(const sl_decode *d)
{
    uint64_t pages = d->o.load_chunk_bytes / (uint64_t)d->geo->page_bytes, most = 1 << 10;
    if (!d->o.load_chunk_bytes)
        return 0;
    return (int32_t)(pages < 1 ? 1 : pages > most ? most : pages);
}

sl_status sl_loading_open(sl_decode *d, sl_err *err)
{
    sl_cascade_opts o = {.store = d->role.store,
                         .arena = d->o.role.arena,
                         .calls = {.ctx = d,
                                   .read_sums = read_sums,
                                   .check_sums = check_sums,
                                   .stored = sl_holdings_stored,
                                   .gone = sl_holdings_gone,
                                   .held = sl_publish_held},
                         .chunk_pages = chunk_pages(d)};
    if (d->o.pull)
        SL_TRY(add_workers(d, err));
    int n = d->o.n_tiers;
    d->o.n_tiers = 0;
    if (n && sl_cascade_create(&o, d->o.tiers, n, &d->pages.cascade) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return SL_OK;
}

void sl_loading_close(sl_decode *d)
{
    sl_prefetch_cancel(d, NULL);
    while (d->pages.loads.list)
        drop(d->pages.loads.list);
    sl_audit_stop(d);
    sl_cascade_destroy(d->pages.cascade);
    sl_audit_free(d);
    d->pages.cascade = NULL;
    d->pages.pull.tier = NULL;
}

/* Requests whose time has come continue with the pages that have arrived. Returns when the next one's has. */
static uint64_t end_waits(sl_decode *d, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_loading *w = d->pages.loads.list; w;) {
        if (w->until_ns && now >= w->until_ns) {
            w->over = true;
            sl_cascade_leave(d->pages.cascade, &w->wait);
            on_ready(&w->wait);
            w = d->pages.loads.list; /* what it did may have changed the list */
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
    if (!d->pages.cascade)
        return UINT64_MAX;
    if (d->role.draining) {
        sl_prefetch_cancel(d, NULL);
        sl_cascade_finish(d->pages.cascade);
    }
    uint64_t due = sl_cascade_tick(d->pages.cascade, now), waits = end_waits(d, now),
             old = sl_prefetch_tick(d, now);
    due = waits < due ? waits : due;
    due = old < due ? old : due;
    return sl_holdings_tick(d) ? now : due;
}

bool sl_loading_idle(const sl_decode *d)
{
    return !d->pages.cascade || (!d->pages.loads.list && sl_cascade_idle(d->pages.cascade));
}
