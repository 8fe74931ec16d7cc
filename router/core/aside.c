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
    *(decode ? &q->own_decode : &q->own_prefill) = w->id;
    q->own_since_ns = sl_now_ns();
    q->own_pages = decode ? available(w) : q->own_pages;
    sl_counter_add(decode && !q->alone ? r->stats.set_aside_pages : r->stats.set_aside_alone, 1);
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
    if (prefill_only && q->own_prefill == q->own_decode)
        return; /* one worker of role both, which still decodes */
    release(r, q, &q->own_prefill);
    if (!prefill_only)
        release(r, q, &q->own_decode);
}

void sl_aside_refused(sl_router *r, sl_request *q, sl_member *d)
{
    if (!q->refused_at)
        q->refused_at = r->queue.picks + 1;
    if (r->queue.picks + 1 - q->refused_at >= PASSED_MAX && !d->set_aside && !q->own_decode)
        set_aside(r, q, d, "it was refused pages, and others passed it");
}

/* Of the members of a role that serve q and are not set aside, the one with the fewest requests; NULL: none. */
static sl_member *least_placed(sl_router *r, const sl_request *q, uint8_t role)
{
    sl_member *best = NULL;
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->role == role && !w->set_aside && sl_member_serves(r, w, q) &&
            (!best || w->placed < best->placed))
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
    if ((q->own_decode && !serves(r, q->own_decode, q)) || (q->own_prefill && !serves(r, q->own_prefill, q)))
        sl_aside_release(r, q, false);
    if (!q->alone || (q->own_decode && q->own_prefill))
        return;
    sl_aside_release(r, q, false);
    sl_member *p = least_placed(r, q, SL_ROLE_PREFILL), *d = least_placed(r, q, SL_ROLE_DECODE);
    sl_member *both = p && d ? NULL : least_placed(r, q, SL_ROLE_BOTH);
    if (both) {
        set_aside(r, q, both, "workers died with it, it runs alone");
        q->own_prefill = both->id;
    } else if (p && d) {
        set_aside(r, q, p, "workers died with it, it runs alone");
        set_aside(r, q, d, "workers died with it, it runs alone");
    }
}

void sl_aside_tick(sl_router *r, sl_request *q, uint64_t now)
{
    const sl_member *d = sl_member_find(r, q->own_decode);
    if (!d)
        return;
    if (available(d) > q->own_pages) {
        q->own_pages = available(d);
        q->own_since_ns = now;
    }
    bool waits = q->state == SL_REQUEST_QUEUED || (q->state == SL_REQUEST_RESERVING && !q->alone);
    if (!waits || now < q->own_since_ns || now - q->own_since_ns < r->o.stage_timeout_ms * SL_MS)
        return;
    sl_log(SL_LOG_WARN, "router", "worker_released",
           "rid=%016lx worker=%s available_pages=%u reason=\"no %s for router.stage_timeout_ms\"", q->rid,
           d->name, available(d), q->alone ? "request ended there" : "pages came back");
    if (!q->alone) {
        q->avoid_decode = d->id;
        q->refused_at = 0;
    }
    sl_aside_release(r, q, false);
}
