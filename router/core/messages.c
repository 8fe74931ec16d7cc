/*
 * Turns the workers' messages about requests into events. A message becomes an event only if request, attempt and
 * sender match and the request's state has an entry for it; otherwise it is dropped and counted.
 */
#include "router/core/core_impl.h"

static void identify(const sl_msg *m, uint64_t *rid, uint32_t *attempt)
{
    switch (m->type) {
    case SL_MSG_RESERVED:
        *rid = m->reserved.rid, *attempt = m->reserved.attempt;
        break;
    case SL_MSG_PREFILLED:
        *rid = m->prefilled.rid, *attempt = m->prefilled.attempt;
        break;
    case SL_MSG_FAILED:
        *rid = m->failed.rid, *attempt = m->failed.attempt;
        break;
    case SL_MSG_TOKENS:
    case SL_MSG_SCORES:
        *rid = m->tokens.rid, *attempt = m->tokens.attempt;
        break;
    case SL_MSG_DONE:
        *rid = m->done.rid, *attempt = m->done.attempt;
        break;
    case SL_MSG_RETRACTED:
        *rid = m->retracted.rid, *attempt = m->retracted.attempt;
        break;
    default:
        *rid = m->id.rid, *attempt = m->id.attempt;
        break;
    }
}

/* The event for FAILED. A decode worker without room for the pages has not failed. */
static void failed_event(const sl_request *q, const sl_msg_failed *m, bool by_decode, sl_request_event *ev)
{
    bool no_room =
        m->status == SL_ERR_EXHAUSTED && m->retryable && by_decode && q->state == SL_REQUEST_RESERVING;
    ev->kind = no_room ? SL_EVENT_NO_ROOM : SL_EVENT_FAILED;
    ev->failed.by_decode = by_decode;
    ev->failed.retryable = m->retryable;
    ev->failed.status = (sl_status)m->status;
    ev->failed.reason = m->reason;
}

/* The event that a message of w causes for q; false if w may not send this message now. */
static bool to_event(const sl_request *q, const sl_member *w, const sl_msg *m, sl_request_event *ev)
{
    bool decode = w->id == q->attempt.decode;
    bool writer = w->id == q->attempt.prefill && q->attempt.writer == SL_WRITER_ACTIVE;
    switch (m->type) {
    case SL_MSG_RESERVED:
        ev->kind = SL_EVENT_RESERVED;
        ev->reserved = &m->reserved;
        return decode;
    case SL_MSG_PREFILLED:
        ev->kind = SL_EVENT_PREFILLED;
        ev->prefilled = &m->prefilled;
        return writer;
    case SL_MSG_FAILED:
        failed_event(q, &m->failed, decode, ev);
        return decode || writer;
    case SL_MSG_SCORES:
        ev->kind = SL_EVENT_SCORES;
        ev->tokens = &m->tokens;
        return decode;
    case SL_MSG_TOKENS:
        ev->kind = SL_EVENT_TOKENS;
        ev->tokens = &m->tokens;
        return decode;
    case SL_MSG_DONE:
        ev->kind = SL_EVENT_DONE;
        ev->done = &m->done;
        return decode;
    case SL_MSG_RETRACTED:
        ev->kind = SL_EVENT_RETRACTED;
        ev->retracted = &m->retracted;
        return decode;
    default:
        return false;
    }
}

void sl_request_message(sl_member *w, const sl_msg *m)
{
    sl_router *r = w->r;
    uint64_t rid;
    uint32_t attempt;
    identify(m, &rid, &attempt);
    /* A prefill worker that had already finished when ABORT arrived answers with one of these. */
    if (m->type == SL_MSG_DRAINED || m->type == SL_MSG_PREFILLED || m->type == SL_MSG_FAILED)
        sl_undrained_relay(w, rid, attempt);
    if (m->type == SL_MSG_DRAINED)
        return;
    sl_request *q = sl_request_find(r, rid);
    sl_request_event ev = {.now_ns = sl_now_ns()};
    if (q && q->attempt.n == attempt && to_event(q, w, m, &ev) && sl_request_apply(r, q, &ev)) {
        w->failures += m->type == SL_MSG_FAILED;
        return;
    }
    sl_counter_add(r->stats.workers.stale, 1);
    sl_log(SL_LOG_DEBUG, "router", "message_dropped", "type=%s rid=%016lx attempt=%u worker=%s",
           sl_msg_type_name(m->type), rid, attempt, w->name);
}
