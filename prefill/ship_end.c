/*
 * How shipments end, on the transport thread.
 *
 * One way out: settle(). OPEN and committed -> OVER; DRAINING and nothing outstanding -> OVER. `dirty` says
 * that puts were posted that no flush has covered, so "drained" is never claimed early; when the endpoint is
 * lost instead (closed by force), nothing is claimed towards the decode worker: its own side of the
 * connection is its fence.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "prefill/prefill_impl.h"

static const uint64_t MS = 1000000;

static void tell_router_id(sl_prefill *p, sl_msg_type type, uint64_t rid, uint32_t attempt)
{
    sl_msg m = {.type = type};
    m.id = (sl_msg_id){rid, attempt};
    sl_worker_send_router(p->worker, &m);
}

static void start_draining(sl_prefill *p, sl_pjob *j)
{
    j->t.state = SHIP_DRAINING;
    j->t.q_len = 0;
    j->t.it_active = j->t.it_device = false;
    j->t.held.bytes = 0;
    j->t.drain_deadline_ns = sl_now_ns() + p->o.drain_ms * MS;
    sl_ship_tell_engine(p, &j->m_stop);
    sl_ship_settle(p, j);
}

void sl_ship_fail(sl_prefill *p, sl_pjob *j, sl_status st, bool retryable, const char *fmt, ...)
{
    if (sl_ship_ending(j))
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(j->t.reason, sizeof j->t.reason, fmt, ap);
    va_end(ap);
    j->t.status = st;
    j->t.retryable = retryable;
    sl_log(SL_LOG_WARN, "prefill", "request_failed",
           "rid=%016" PRIx64 " attempt=%u status=%s retryable=%d reason=\"%s\"", j->rid, j->attempt,
           sl_status_name(st), retryable, j->t.reason);
    start_draining(p, j);
}

void sl_ship_abort(sl_prefill *p, uint64_t rid, uint32_t attempt)
{
    sl_pjob *j = sl_ship_find(p, rid, attempt);
    if (!j || j->t.state == SHIP_OVER) { /* nothing of it is left: it is drained */
        tell_router_id(p, SL_MSG_DRAINED, rid, attempt);
        return;
    }
    j->t.aborted = true;
    sl_log(SL_LOG_INFO, "prefill", "request_aborted", "rid=%016" PRIx64 " attempt=%u", rid, attempt);
    if (j->t.state != SHIP_DRAINING)
        start_draining(p, j);
}

static void over(sl_prefill *p, sl_pjob *j)
{
    j->t.state = SHIP_OVER;
    p->past[p->next_past].rid = j->rid;
    p->past[p->next_past].attempt = j->attempt;
    p->next_past = (p->next_past + 1) % PAST_JOBS;
    sl_ship_tell_engine(p, &j->m_end);
}

/* An ending that was not a COMMIT; nothing of ours is outstanding any more. */
static void report_end(sl_prefill *p, sl_pjob *j)
{
    /* its endpoint was closed by force with puts that no flush covered: what they did is not known here */
    bool unknown = !j->t.peer && j->t.dirty;
    if (j->t.peer && j->t.peer->up) {
        sl_msg m = {.type = SL_MSG_DRAINED};
        m.id = (sl_msg_id){j->rid, j->attempt};
        sl_wep_send(j->t.peer->ep, &m);
    }
    sl_counter_add(j->t.aborted ? p->c.transfer_aborted : p->c.transfer_failed, 1);
    if (j->t.aborted) {
        if (!unknown)
            tell_router_id(p, SL_MSG_DRAINED, j->rid, j->attempt);
        return;
    }
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = j->rid;
    m.failed.attempt = j->attempt;
    m.failed.status = j->t.status;
    m.failed.retryable = j->t.retryable || unknown;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%s", j->t.reason);
    sl_worker_send_router(p->worker, &m);
}

static void commit(sl_prefill *p, sl_pjob *j)
{
    uint64_t now = sl_now_ns();
    sl_msg m = {.type = SL_MSG_COMMIT};
    memset(&m.commit, 0, sizeof m.commit);
    m.commit.rid = j->rid;
    m.commit.attempt = j->attempt;
    m.commit.ticket = j->msg->ticket;
    m.commit.worker_id = sl_worker_id(p->worker);
    m.commit.n_tokens = (uint32_t)j->msg->n_tokens;
    m.commit.first_page = j->msg->matched_pages;
    m.commit.crc = j->t.crc;
    m.commit.n_crc = (j->msg->n_pages - j->msg->matched_pages) * (size_t)p->geo->n_layers;
    m.commit.first = j->first;
    m.commit.cached_tokens = j->cached_tokens;
    sl_wep_send(j->t.peer->ep, &m);

    sl_msg r = {.type = SL_MSG_PREFILLED};
    r.prefilled = (sl_msg_prefilled){.rid = j->rid,
                                     .attempt = j->attempt,
                                     .cached_tokens = j->cached_tokens,
                                     .queue_us = j->queue_us,
                                     .compute_us = j->compute_us,
                                     .ship_us = (now - j->t.finish_ns) / 1000,
                                     .bytes = j->t.bytes};
    sl_worker_send_router(p->worker, &r);
    sl_counter_add(p->c.transfer_ok, 1);
    sl_counter_add(p->c.transfer_bytes, j->t.bytes);
    sl_histogram_observe(p->c.exposed, (double)(now - j->t.finish_ns) / 1e9);
    sl_log(SL_LOG_INFO, "prefill", "commit",
           "rid=%016" PRIx64 " attempt=%u tokens=%zu cached=%u bytes=%" PRIu64 " queue_us=%" PRIu64
           " compute_us=%" PRIu64 " exposed_us=%" PRIu64,
           j->rid, j->attempt, j->msg->n_tokens, j->cached_tokens, j->t.bytes, j->queue_us, j->compute_us,
           r.prefilled.ship_us);
    over(p, j);
}

void sl_ship_completed(sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    j->t.in_flight--;
    if (d) {
        d->in_flight--;
        d->progress_ns = sl_now_ns();
    }
}

static void on_flushed(void *cookie, sl_status st)
{
    sl_pjob *j = cookie;
    sl_prefill *p = j->t.owner;
    sl_ship_completed(j);
    j->t.flush_posted = false;
    if (st == SL_OK) {
        j->t.flush_done = true;
        j->t.dirty = false;
    } else if (!sl_ship_ending(j)) {
        sl_ship_fail(p, j, SL_ERR_PEER, true, "flush failed: %s", sl_status_name(st));
        return;
    }
    sl_ship_settle(p, j);
}

/* SL_AGAIN leaves it for the next pump. */
static void post_flush(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    sl_status st = sl_tp_flush(sl_wep_tp(d->ep), on_flushed, j);
    if (st == SL_AGAIN)
        return;
    if (st != SL_OK) { /* the endpoint is breaking; its `failed` follows */
        if (!sl_ship_ending(j))
            sl_ship_fail(p, j, SL_ERR_PEER, true, "cannot flush: %s", sl_status_name(st));
        return;
    }
    if (!d->in_flight)
        d->progress_ns = sl_now_ns();
    d->in_flight++;
    j->t.in_flight++;
    j->t.flush_posted = true;
}

static bool queue_empty(const sl_pjob *j)
{
    return !j->t.it_active && !j->t.q_len;
}

static void ask_about_pulled(sl_pjob *j)
{
    sl_msg m = {.type = SL_MSG_PAGES_ASK};
    m.pages_ask = (sl_msg_pages_ask){.rid = j->rid,
                                     .attempt = j->attempt,
                                     .ticket = j->msg->ticket,
                                     .first = (uint32_t)j->own_matched,
                                     .count = (uint32_t)(j->pull_end - j->own_matched)};
    j->t.asked = true;
    sl_wep_send(j->t.peer->ep, &m);
}

static void settle_draining(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    if (j->t.in_flight)
        return;
    if (d && j->t.dirty) {
        if (!d->closing) /* else until it is closed */
            post_flush(p, j);
        return;
    }
    report_end(p, j);
    over(p, j);
}

void sl_ship_settle(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    bool usable = d && d->up && !d->closing;
    if (j->t.state == SHIP_DRAINING) {
        settle_draining(p, j);
    } else if (j->t.state == SHIP_PULLING) {
        if (usable && queue_empty(j) && !j->t.in_flight && !j->t.asked)
            ask_about_pulled(j);
    } else if (j->t.state == SHIP_OPEN && j->t.finishing && usable && queue_empty(j)) {
        if (!j->t.dirty)
            j->t.flush_done = true; /* nothing that a flush would wait for */
        if (!j->t.flush_done && !j->t.flush_posted)
            post_flush(p, j);
        if (j->t.state == SHIP_OPEN && j->t.flush_done && !j->t.in_flight)
            commit(p, j);
    }
}
