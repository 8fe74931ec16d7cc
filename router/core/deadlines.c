/*
 * Requests that are late or stuck. Every state has a deadline: the request's own, and router.stage_timeout_ms without
 * progress of the worker that has to act. A deadline per phase belongs here.
 */
#include "router/core/core_impl.h"

enum {
    STAGE_HARD = 10
}; /* stage timeouts without own progress after which others' progress stops counting */

/* When the worker that has to act last got anywhere. */
static uint64_t last_progress(sl_router *r, const sl_request *q, uint64_t now)
{
    uint64_t at = q->stage_ns;
    const sl_member *w = NULL;
    if (q->state == SL_REQUEST_PREFILLING && q->writer != SL_WRITER_DONE)
        w = sl_member_find(r, q->prefill);
    else if (q->state == SL_REQUEST_PREFILLING || q->state == SL_REQUEST_DECODING)
        w = sl_member_find(r, q->decode);
    if (w && w->progress_ns > at && now - at < STAGE_HARD * (uint64_t)r->o.stage_timeout_ms * SL_MS)
        at = w->progress_ns;
    return at;
}

static void check(sl_router *r, sl_request *q, uint64_t now)
{
    if (now >= q->deadline_ns) {
        sl_request_fail(r, q, SL_ERR_DEADLINE, "the request's deadline passed");
        return;
    }
    uint64_t at = last_progress(r, q, now);
    if (now < at || now - at < r->o.stage_timeout_ms * SL_MS || q->held)
        return;
    if (q->state == SL_REQUEST_QUEUED) {
        if (!sl_members_count(r, SL_ROLE_PREFILL) || !sl_members_count(r, SL_ROLE_DECODE))
            sl_request_fail(r, q, SL_ERR_PEER, "no worker of one role for router.stage_timeout_ms");
    } else {
        sl_request_event ev = {.kind = SL_EVENT_STALLED, .now_ns = now};
        sl_request_apply(r, q, &ev);
    }
}

void sl_requests_tick(sl_router *r, uint64_t now)
{
    for (sl_group *g = r->requests.groups; g; g = g->next) {
        for (uint32_t i = 0; i < g->n_requests; i++) {
            if (!sl_request_over(g->requests[i]))
                check(r, g->requests[i], now);
        }
    }
}
