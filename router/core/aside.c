/*
 * Workers that are set aside for one request: no other is placed there until it has its pages.
 *
 * For pages: a request that was refused pages, and that PASSED_MAX placements have passed since its first refusal, gets
 * the decode worker that refuses it. The requests that run there end and give their pages back. The worker is released
 * when router.stage_timeout_ms has passed and no pages came back: they may be lost, the other requests need the worker,
 * and another worker may have the room. A refusal is no sign of life; only LOAD with more available pages than ever
 * since then is. The request avoids the worker afterwards, if there is another.
 *
 * For suspects (request.h): a prefill and a decode worker, on which the request is placed when nothing else is there.
 * When others do not end there for router.stage_timeout_ms, the choice is made again, and falls on the emptiest.
 */
#include "router/core/core_impl.h"

enum { PASSED_MAX = 16 };

static uint32_t available(const sl_member *w)
{
    return w->load.free_pages + w->load.cached_pages;
}

static void set_aside(sl_router *r, sl_request *q, sl_member *w, const char *why)
{
    bool decode = sl_role_does(w->role, SL_ROLE_DECODE);
    w->set_aside = q->rid;
    *(decode ? &q->aside.decode : &q->aside.prefill) = w->id;
    q->aside.since_ns = sl_now_ns();
    q->aside.pages = decode ? available(w) : q->aside.pages;
    sl_counter_add(decode && !q->deaths.alone ? r->stats.placement.set_aside_pages
                                              : r->stats.placement.set_aside_alone,
                   1);
    sl_log(SL_LOG_INFO, "router", "worker_set_aside", "rid=%016lx worker=%s tokens=%zu reason=\"%s\"", q->rid,
           w->name, q->n_tokens, why);
}

static void release(sl_router *r, sl_request *q, uint32_t *own)
{
    sl_member *w = sl_member_find(r, *own);
    *own = 0;
    if (!w || w->set_aside != q->rid)
        return;
    w->set_aside = 0;
    r->queue.dirty = true;
}

void sl_aside_release(sl_router *r, sl_request *q, bool prefill_only)
{
    if (prefill_only && q->aside.prefill == q->aside.decode)
        return; /* one worker of role both, which still decodes */
    release(r, q, &q->aside.prefill);
    if (!prefill_only)
        release(r, q, &q->aside.decode);
}

void sl_aside_refused(sl_router *r, sl_request *q, sl_member *d)
{
    if (!q->aside.refused_at)
        q->aside.refused_at = r->queue.picks + 1;
    if (r->queue.picks + 1 - q->aside.refused_at >= PASSED_MAX && !d->set_aside && !q->aside.decode)
        set_aside(r, q, d, "it was refused pages, and others passed it");
}

/* Of the members of a role that serve q and are not set aside, the one with the fewest requests; NULL: none. */
static sl_member *least_placed(sl_router *r, const sl_request *q, uint8_t role)
{
    sl_member *best = NULL;
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->role == role && !w->set_aside && sl_member_serves(r, w, q) &&
            (!best || w->account.requests < best->account.requests))
            best = w;
    }
    return best;
}

static bool serves(sl_router *r, uint32_t id, const sl_request *q)
{
    const sl_member *w = sl_member_find(r, id);
    return w && sl_member_serves(r, w, q);
}

void sl_aside_update(sl_router *r, sl_request *q)
{
    if ((q->aside.decode && !serves(r, q->aside.decode, q)) ||
        (q->aside.prefill && !serves(r, q->aside.prefill, q)))
        sl_aside_release(r, q, false);
    if (!q->deaths.alone || (q->aside.decode && q->aside.prefill))
        return;
    sl_aside_release(r, q, false);
    sl_member *p = least_placed(r, q, SL_ROLE_PREFILL), *d = least_placed(r, q, SL_ROLE_DECODE);
    sl_member *both = p && d ? NULL : least_placed(r, q, SL_ROLE_BOTH);
    if (both) {
        set_aside(r, q, both, "workers died with it, it runs alone");
        q->aside.prefill = both->id;
    } else if (p && d) {
        set_aside(r, q, p, "workers died with it, it runs alone");
        set_aside(r, q, d, "workers died with it, it runs alone");
    }
}

void sl_aside_tick(sl_router *r, sl_request *q, uint64_t now)
{
    const sl_member *d = sl_member_find(r, q->aside.decode);
    if (!d)
        return;
    if (available(d) > q->aside.pages) {
        q->aside.pages = available(d);
        q->aside.since_ns = now;
    }
    bool waits = q->state == SL_REQUEST_QUEUED || (q->state == SL_REQUEST_RESERVING && !q->deaths.alone);
    if (!waits || now < q->aside.since_ns || now - q->aside.since_ns < r->o.request.stage_timeout_ms * SL_MS)
        return;
    sl_log(SL_LOG_WARN, "router", "worker_released",
           "rid=%016lx worker=%s available_pages=%u reason=\"no %s for router.stage_timeout_ms\"", q->rid,
           d->name, available(d), q->deaths.alone ? "request ended there" : "pages came back");
    if (!q->deaths.alone) {
        q->avoid_decode = d->id;
        q->aside.refused_at = 0;
    }
    sl_aside_release(r, q, false);
}
