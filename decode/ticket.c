/*
 * Tickets: how they end (failure, ABORT, deadline, loss of the router), their quarantine, and the dispatch of messages
 * to them. landing.c has how they begin, tickets.h describes the state machine. Engine thread.
 *
 * A ticket in quarantine is freed by whichever comes first: DRAINED, its COMMIT (the writer flushes before it sends
 * COMMIT), or the fence of its writer. When the router has ended an attempt because the writer failed (ABORT with
 * SL_ERR_PEER), the DRAINED that it relays is its own assumption and not the word of the writer. That DRAINED does not
 * count while the writer has a connection here; the connection is closed instead.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"

static const uint64_t MS = 1000000;
enum { PAGE = SL_PAGE_TOKENS, PEER_GRACE_MS = 100 /* a DRAINED in flight may still arrive */ };

sl_ticket *sl_ticket_find(const sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt)
{
    for (sl_ticket *t = d->tickets.list; t; t = t->next) {
        if (t->router == router && t->rid == rid && t->attempt == attempt)
            return t;
    }
    return NULL;
}

static void tell_drained(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_msg m = {.type = SL_MSG_DRAINED};
    m.id = (sl_msg_id){rid, attempt};
    sl_worker_tell_router(d->worker, router, &m);
}

void sl_ticket_stale(sl_decode *d, const char *what, uint64_t rid, uint32_t attempt)
{
    d->tickets.count.stale++;
    sl_counter_add(d->report.m.stale, 1);
    sl_log(SL_LOG_DEBUG, "decode", "message_dropped", "type=%s rid=%016" PRIx64 " attempt=%u", what, rid,
           attempt);
}

void sl_ticket_tell_failed(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt, sl_status st,
                           bool retryable, const char *why)
{
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = rid;
    m.failed.attempt = attempt;
    m.failed.status = st;
    m.failed.retryable = retryable;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%.399s", why);
    sl_worker_tell_router(d->worker, router, &m);
    sl_log(st == SL_ERR_EXHAUSTED ? SL_LOG_DEBUG : SL_LOG_WARN, "decode", "request_failed",
           "rid=%016" PRIx64 " attempt=%u status=%s retryable=%d reason=\"%s\"", rid, attempt,
           sl_status_name(st), retryable, m.failed.reason);
}

/* ---- the end ---- */

static void close_sequence(sl_decode *d, sl_ticket *t)
{
    if (t->seq)
        d->o.role.runner->close(d->o.role.runner->impl, t->seq);
    t->seq = NULL;
    t->resident = false;
}

/* The only function that frees a ticket: no other thread uses it or its pages any more. */
static void ticket_free(sl_decode *d, sl_ticket *t)
{
    SL_CHECK(!t->checks, "ticket %" PRIu64 " is being checked", t->number);
    close_sequence(d, t);
    sl_lease_release(t->lease, true);
    *(t->prev ? &t->prev->next : &d->tickets.list) = t->next;
    *(t->next ? &t->next->prev : &d->tickets.tail) = t->prev;
    d->tickets.n--;
    sl_sampling_free(&t->sampling);
    sl_wmsg_free(t->m);
    free(t->tokens);
    free(t);
}

void sl_ticket_let_go(sl_decode *d, sl_ticket *t)
{
    if (t->state == TICKET_RUNNING)
        d->tickets.n_running--;
    close_sequence(d, t);
    t->state = TICKET_ENDING;
    if (!t->checks)
        ticket_free(d, t);
}

static void quarantine(const sl_decode *d, sl_ticket *t, sl_status why)
{
    uint64_t wait = why == SL_ERR_PEER ? PEER_GRACE_MS : d->o.quarantine_ms;
    t->state = TICKET_QUARANTINE;
    t->abort_status = why;
    t->fence_ns = sl_now_ns() + wait * MS;
    sl_log(SL_LOG_INFO, "decode", "quarantine", "rid=%016" PRIx64 " attempt=%u pages=%d writer=%u why=%s",
           t->rid, t->attempt, sl_lease_n_pages(t->lease), t->writer, sl_status_name(why));
}

void sl_ticket_end(sl_decode *d, sl_ticket *t, sl_status why)
{
    if (t->state == TICKET_LANDING && !t->drained)
        quarantine(d, t, why);
    else if (t->state != TICKET_QUARANTINE && t->state != TICKET_ENDING)
        sl_ticket_let_go(d, t);
}

void sl_tickets_free_all(sl_decode *d)
{
    while (d->tickets.list)
        ticket_free(d, d->tickets.list);
}

void sl_ticket_failed(sl_decode *d, sl_ticket *t, sl_status st, bool retryable, const char *fmt, ...)
{
    char why[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    sl_ticket_tell_failed(d, t->router, t->rid, t->attempt, st, retryable, why);
    sl_ticket_end(d, t, st);
}

/* ---- ABORT, DRAINED, fences ---- */

static void on_abort(sl_decode *d, uint32_t router, const sl_msg_abort *a)
{
    sl_ticket *t = sl_ticket_find(d, router, a->rid, a->attempt);
    if (!t) {
        sl_landing_abort(d, router, a->rid, a->attempt);
        tell_drained(d, router, a->rid, a->attempt);
        return;
    }
    if (t->state == TICKET_ENDING)
        return;
    sl_counter_add(d->report.m.t_aborted, 1);
    sl_log(SL_LOG_DEBUG, "decode", "request_aborted", "rid=%016" PRIx64 " attempt=%u why=%s", t->rid,
           t->attempt, sl_status_name((sl_status)a->status));
    if (t->state == TICKET_QUARANTINE) {
        uint64_t soon = sl_now_ns() + PEER_GRACE_MS * MS;
        if (a->status == SL_ERR_PEER && t->fence_ns > soon)
            t->fence_ns = soon;
        t->abort_status = (sl_status)a->status;
        return;
    }
    bool open = t->state == TICKET_LANDING && !t->drained;
    sl_ticket_end(d, t, (sl_status)a->status);
    if (!open)
        tell_drained(d, router, a->rid, a->attempt);
}

static sl_writer writer_of(const sl_ticket *t)
{
    return (sl_writer){t->router, t->writer};
}

static bool is_connected(const sl_decode *d, sl_writer writer)
{
    for (uint32_t i = 0; i < d->tickets.n_connected; i++) {
        if (sl_writer_eq(d->tickets.connected[i], writer))
            return true;
    }
    return d->tickets.n_connected == MAX_WRITERS; /* the list is full, so this writer may be missing in it */
}

static void end_quarantine(sl_decode *d, sl_ticket *t)
{
    sl_log(SL_LOG_DEBUG, "decode", "drained", "rid=%016" PRIx64 " attempt=%u", t->rid, t->attempt);
    tell_drained(d, t->router, t->rid, t->attempt);
    sl_ticket_let_go(d, t);
}

static void on_drained(sl_decode *d, const sl_wmsg *m)
{
    const sl_msg_id *id = &m->msg.id;
    bool direct = m->worker_id != 0;
    sl_ticket *t = sl_ticket_find(d, m->router, id->rid, id->attempt);
    if (!t || t->state == TICKET_ENDING || (direct && t->writer != m->worker_id)) {
        sl_ticket_stale(d, "drained", id->rid, id->attempt);
        return;
    }
    if (t->state == TICKET_LANDING) {
        t->drained = direct; /* matters when ABORT or the deadline ends the ticket */
        return;
    }
    if (t->state != TICKET_QUARANTINE)
        return;
    if (!direct && t->abort_status == SL_ERR_PEER && is_connected(d, writer_of(t)))
        return; /* an assumption of the router, see above; the fence is due within PEER_GRACE_MS */
    end_quarantine(d, t);
}

void sl_tickets_connected(sl_decode *d, sl_writer writer)
{
    if (!is_connected(d, writer) && d->tickets.n_connected < MAX_WRITERS)
        d->tickets.connected[d->tickets.n_connected++] = writer;
}

void sl_tickets_fenced(sl_decode *d, sl_writer writer)
{
    d->tickets.count.fences++;
    for (uint32_t i = 0; i < d->tickets.n_connected; i++) {
        if (sl_writer_eq(d->tickets.connected[i], writer))
            d->tickets.connected[i--] = d->tickets.connected[--d->tickets.n_connected];
    }
    for (sl_ticket *t = d->tickets.list, *next; t; t = next) {
        next = t->next;
        if (sl_writer_eq(writer_of(t), writer) && t->state == TICKET_QUARANTINE)
            end_quarantine(d, t);
    }
}

void sl_tickets_msg(sl_decode *d, sl_wmsg *m)
{
    if (sl_pages_msg(d->pages, m))
        return;
    switch (m->msg.type) {
    case SL_MSG_RESERVE:
        sl_landing_reserve(d, m);
        return;
    case SL_MSG_COMMIT:
        sl_landing_commit(d, m);
        return;
    case SL_MSG_PAGES_ASK:
        sl_landing_pages_ask(d, m);
        return;
    case SL_MSG_ABORT:
        on_abort(d, m->router, &m->msg.abort);
        break;
    case SL_MSG_DRAINED:
        on_drained(d, m);
        break;
    default:
        sl_ticket_stale(d, sl_msg_type_name(m->msg.type), 0, 0);
        break;
    }
    sl_wmsg_free(m);
}

void sl_tickets_router_up(sl_decode *d, uint32_t router)
{
    SL_CHECK(d->tickets.n_routers < SL_WORKER_ROUTERS_MAX, "%d sessions", d->tickets.n_routers);
    d->tickets.routers[d->tickets.n_routers++] = (sl_decode_router){.session = router};
}

void sl_tickets_router_down(sl_decode *d, uint32_t router)
{
    uint64_t now = sl_now_ns();
    for (int i = 0; i < d->tickets.n_routers; i++) {
        if (d->tickets.routers[i].session == router)
            d->tickets.routers[i--] = d->tickets.routers[--d->tickets.n_routers];
    }
    sl_landing_router_down(d, &router);
    for (sl_ticket *t = d->tickets.list, *next; t; t = next) {
        next = t->next;
        if (t->router == router)
            sl_ticket_end(d, t, SL_ERR_PEER);
    }
    /* The next tick fences their writers; the transport thread is already closing the connections. */
    for (sl_ticket *t = d->tickets.list; t; t = t->next) {
        if (t->router == router)
            t->fence_ns = now;
    }
}

static void fence(sl_decode *d, sl_ticket *t)
{
    sl_fence *f = calloc(1, sizeof *f);
    if (!f)
        return; /* the next tick tries again */
    f->mail.kind = DM_FENCE;
    f->writer = writer_of(t);
    t->fence_ns = sl_now_ns() + d->o.quarantine_ms * MS;
    sl_worker_post(d->worker, &f->mail);
}

uint64_t sl_tickets_tick(sl_decode *d, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_ticket *t = d->tickets.list, *next; t; t = next) {
        next = t->next;
        if (t->state == TICKET_LANDING && now >= t->deadline_ns) {
            sl_counter_add(d->report.m.t_expired, 1);
            sl_ticket_failed(d, t, SL_ERR_DEADLINE, true, "no COMMIT before the deadline");
            continue;
        }
        if (t->state == TICKET_QUARANTINE && now >= t->fence_ns)
            fence(d, t);
        uint64_t at = t->state == TICKET_LANDING      ? t->deadline_ns
                      : t->state == TICKET_QUARANTINE ? t->fence_ns
                                                      : UINT64_MAX;
        due = at < due ? at : due;
    }
    return due;
}
