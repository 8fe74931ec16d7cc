/* See workers.h. */
#include "decode/pages/workers.h"

#include <stdlib.h>
#include <string.h>

/* After the transport thread has ended nothing carries a mail, and the tier frees what it has posted. */
static void post(const sl_workers *w, sl_wmail *m, int kind)
{
    m->kind = kind;
    if (w->e->worker)
        sl_worker_post(w->e->worker, m);
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
    const sl_workers *w = ctx;
    sl_pull_cancel *m = w->e->worker ? calloc(1, sizeof *m) : NULL;
    SL_CHECK(m || !w->e->worker, "out of memory");
    if (!m)
        return;
    m->id = id;
    post(ctx, &m->mail, DM_PULL_CANCEL);
}

static void end(void *ctx, const sl_pull *p)
{
    const sl_workers *w = ctx;
    sl_msg m = {.type = SL_MSG_LEASE_END};
    m.lease_end.lease = p->id;
    if (w->e->worker)
        sl_worker_tell_peer(w->e->worker, p->ep_serial, &m);
}

static void damaged(void *ctx, const sl_pull *p, int32_t first, int32_t count)
{
    const sl_workers *w = ctx;
    sl_msg m = {.type = SL_MSG_LEASE_DAMAGED};
    m.lease_damaged =
        (sl_msg_lease_damaged){.lease = p->id, .first = (uint32_t)first, .count = (uint32_t)count};
    if (w->e->worker)
        sl_worker_tell_peer(w->e->worker, p->ep_serial, &m);
}

static double prefill_rate(void *ctx)
{
    const sl_workers *w = ctx;
    return sl_pull_rate_get(&w->prefill_rate, sl_now_ns());
}

sl_status sl_workers_open(sl_workers *w, const sl_pages_env *e, sl_pages_opts *o, sl_err *err)
{
    int at = 0, n = o->n_tiers;
    sl_pull_env env = {.ctx = w,
                       .arena = e->arena,
                       .page_bytes = (size_t)e->geo->page_bytes,
                       .label_bytes = sl_cascade_label_bytes(e->geo),
                       .lease_ms = 2 * o->pull_timeout_ms,
                       .min_pages = 1,
                       .ask = ask,
                       .get = get,
                       .cancel = cancel,
                       .end = end,
                       .damaged = damaged,
                       .prefill_rate = prefill_rate};
    SL_CHECK(n < SL_CASCADE_TIERS, "%d tiers", n);
    w->e = e;
    SL_TRY(sl_pull_open(&env, &w->tier, err));
    while (at < n && o->tiers[at].tier->ops->persistent)
        at++;
    memmove(&o->tiers[at + 1], &o->tiers[at], (size_t)(n - at) * sizeof o->tiers[0]);
    o->tiers[at] = (sl_cascade_tier){
        .tier = w->tier, .policy = SL_CASCADE_READ_ONLY, .load_timeout_ms = o->pull_timeout_ms};
    o->n_tiers++;
    return SL_OK;
}

void sl_workers_prompt_took(sl_workers *w, int64_t tokens, uint64_t ns)
{
    if (tokens >= SL_PAGE_TOKENS && ns)
        sl_pull_rate_add(&w->prefill_rate, (double)tokens * 1e9 / (double)ns, sl_now_ns());
}
