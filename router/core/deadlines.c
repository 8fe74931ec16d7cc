/*
 * Requests that are late or stuck. Every state has two deadlines: that of the request, and router.stage_timeout_ms
 * without progress of the worker that must act next. A deadline for each phase belongs here.
 */
#include "router/core/core_impl.h"

enum {
    STAGE_HARD = 10
}; /* stage timeouts without own progress after which others' progress stops counting */

/* When the worker that must act next last made progress. */
static uint64_t last_progress(sl_router *r, const sl_request *q, uint64_t now)
{
    uint64_t at = q->times.stage_ns;
    const sl_member *w = NULL;
    if (q->state == SL_REQUEST_PREFILLING && q->attempt.writer != SL_WRITER_DONE)
        w = sl_member_find(r, q->attempt.prefill);
    else if (q->state == SL_REQUEST_PREFILLING || q->state == SL_REQUEST_DECODING)
        w = sl_member_find(r, q->attempt.decode);
    if (w && w->progress_ns > at && now - at < STAGE_HARD * (uint64_t)r->o.request.stage_timeout_ms * SL_MS)
        at = w->progress_ns;
    return at;
}

/* A request may wait long for its turn; only the time without any worker of a role counts here. A router that drains
 * gets no new workers. */
static void check_queued(sl_router *r, sl_request *q, uint64_t now)
{
    for (int i = 0; i < 2; i++) {
        uint64_t since = r->cluster.absent_ns[i];
        if (!since)
            continue;
        if (r->life.draining) {
            sl_request_fail(r, q, SL_ERR_PEER, "the server is shutting down and its workers have left");
            return;
        }
        uint64_t from = since > q->times.stage_ns ? since : q->times.stage_ns;
        if (now > from && now - from >= r->o.request.stage_timeout_ms * SL_MS && !q->held) {
            sl_request_fail(r, q, SL_ERR_PEER, "no worker of one role for router.stage_timeout_ms");
            return;
        }
    }
}

static void check(sl_router *r, sl_request *q, uint64_t now)
{
    if (now >= q->times.deadline_ns) {
        sl_request_fail(r, q, SL_ERR_DEADLINE, "the request's deadline passed");
        return;
    }
    sl_aside_tick(r, q, now);
    if (q->state == SL_REQUEST_QUEUED) {
        check_queued(r, q, now);
        return;
    }
    uint64_t at = last_progress(r, q, now);
    if (now < at || now - at < r->o.request.stage_timeout_ms * SL_MS)
        return;
    sl_request_event ev = {.kind = SL_EVENT_STALLED, .now_ns = now};
    sl_request_apply(r, q, &ev);
}

/* Since when each role has no worker that serves. */
static void watch_roles(sl_router *r, uint64_t now)
{
    static const sl_role roles[] = {SL_ROLE_PREFILL, SL_ROLE_DECODE};
    for (size_t i = 0; i < SL_COUNT(roles); i++) {
        uint64_t *since = &r->cluster.absent_ns[i];
        if (sl_members_serve(r, roles[i]))
            *since = 0;
        else if (!*since)
            *since = now;
    }
}

void sl_requests_tick(sl_router *r, uint64_t now)
{
    watch_roles(r, now);
    for (sl_group *g = r->requests.groups; g; g = g->next) {
        for (uint32_t i = 0; i < g->n_requests; i++) {
            if (!sl_request_over(g->requests[i]))
                check(r, g->requests[i], now);
        }
    }
}
