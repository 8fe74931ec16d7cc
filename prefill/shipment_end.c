/*
 * See shipment.h: the end of shipments, by COMMIT or early. Only over() enters the last state.
 *
 * If the endpoint is lost with puts that no flush covers, the router is not told that the shipment has drained: the
 * decode worker's side of the connection is the fence.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "prefill/prefill_impl.h"

static const uint64_t MS = 1000000;

/* ---- flush ---- */

static void on_flushed(void *cookie, sl_status st)
{
    sl_prefill_job *j = cookie;
    if (st == SL_OK) /* no put was posted after the flush */
        j->ship.unflushed = false;
    else
        sl_ship_fail(j->ship.owner, j, SL_ERR_PEER, true, "flush failed: %s", sl_status_name(st));
    sl_ship_completed(j, j->ship.peer);
}

sl_status sl_ship_post_flush(sl_prefill_job *j)
{
    SL_TRY(sl_tp_flush(sl_wep_tp(j->ship.peer->remote.ep), on_flushed, j));
    sl_ship_posted(j);
    return SL_OK;
}

/* ---- the end ---- */

static void over(sl_prefill *p, sl_prefill_job *j)
{
    SL_CHECK(!j->ship.in_flight, "%u operations are in flight in state %s", j->ship.in_flight,
             sl_ship_state_name(j->ship.state));
    j->ship.state = SHIP_OVER;
    sl_mailbox_post(p->role.inbox, &sl_job_mail_of(j, PM_END)->link);
    if (j->prefetch)
        return;
    sl_past_add(&p->past, j->router, j->rid, j->attempt);
}

/* ---- FLUSHING: everything is posted ---- */

static void send_commit(sl_prefill *p, sl_prefill_job *j)
{
    sl_msg m = {.type = SL_MSG_COMMIT};
    memset(&m.commit, 0, sizeof m.commit);
    m.commit.rid = j->rid;
    m.commit.attempt = j->attempt;
    m.commit.ticket = j->msg->ticket;
    m.commit.worker_id = j->ship.peer->remote.own_id;
    m.commit.n_tokens = (uint32_t)j->msg->n_tokens;
    m.commit.first_page = j->msg->matched_pages;
    m.commit.crc = j->ship.crc;
    m.commit.n_crc = ((size_t)j->at.written - j->msg->matched_pages) * (size_t)p->geo->n_layers;
    m.commit.first = j->result.first;
    m.commit.cached_tokens = j->result.cached_tokens;
    m.commit.hidden = (sl_blob){j->result.hidden.bytes, j->result.hidden.n};
    sl_wep_send(j->ship.peer->remote.ep, &m);
}

/* Before COMMIT, so that the router has them before it hears of the first token. */
static void send_scores(sl_prefill_job *j)
{
    sl_msg_token list[SL_SCORES_MESSAGE];
    for (size_t n, at = 1; (n = sl_scores_message(&j->scores, at, list)); at += n) {
        sl_msg m = {.type = SL_MSG_SCORES};
        m.tokens = (sl_msg_tokens){
            .rid = j->rid, .attempt = j->attempt, .first_index = (uint32_t)at, .tokens = list, .n_tokens = n};
        sl_wep_send(j->ship.peer->remote.ep, &m);
    }
}

static uint64_t overlap_us(const sl_shipment *s)
{
    return s->first_ns && s->first_ns < s->finish_ns ? (s->finish_ns - s->first_ns) / 1000 : 0;
}

static void send_prefilled(sl_prefill *p, sl_prefill_job *j, uint64_t exposed_ns)
{
    sl_msg m = {.type = SL_MSG_PREFILLED};
    m.prefilled = (sl_msg_prefilled){.rid = j->rid,
                                     .attempt = j->attempt,
                                     .cached_tokens = j->result.cached_tokens,
                                     .queue_us = j->result.queue_us,
                                     .compute_us = j->result.compute_us,
                                     .ship_us = exposed_ns / 1000,
                                     .bytes = j->ship.bytes,
                                     .overlap_us = overlap_us(&j->ship)};
    sl_worker_send_router(p->worker, j->router, &m);
}

sl_ship_turn sl_ship_finish(sl_prefill *p, sl_prefill_job *j)
{
    if (j->ship.in_flight || !j->ship.peer || j->ship.peer->remote.state != SL_REMOTE_UP)
        return SHIP_IDLE;
    SL_CHECK(!j->ship.unflushed, "puts without a flush");
    uint64_t exposed_ns = sl_now_ns() - j->ship.finish_ns;
    send_scores(j);
    send_commit(p, j);
    send_prefilled(p, j, exposed_ns);
    sl_counter_add(p->c.transfer_ok, 1);
    sl_counter_add(p->c.transfer_bytes, j->ship.bytes);
    sl_histogram_observe(p->c.exposed, (double)exposed_ns / 1e9);
    sl_log(SL_LOG_DEBUG, "prefill", "commit",
           "rid=%016" PRIx64 " attempt=%u tokens=%zu cached=%u bytes=%" PRIu64 " queue_us=%" PRIu64
           " compute_us=%" PRIu64 " exposed_us=%" PRIu64,
           j->rid, j->attempt, j->msg->n_tokens, j->result.cached_tokens, j->ship.bytes, j->result.queue_us,
           j->result.compute_us, exposed_ns / 1000);
    over(p, j);
    return SHIP_IDLE;
}

/* ---- DRAINING: it ends early ---- */

void sl_ship_begin_draining(sl_prefill *p, sl_prefill_job *j)
{
    j->ship.state = SHIP_DRAINING;
    sl_cursor_clear(&j->ship.cursor);
    j->ship.drain_deadline_ns = sl_now_ns() + p->o.drain_ms * MS;
    sl_mailbox_post(p->role.inbox, &sl_job_mail_of(j, PM_STOP)->link);
}

void sl_ship_tell_drained(sl_prefill *p, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_msg m = {.type = SL_MSG_DRAINED};
    m.id = (sl_msg_id){rid, attempt};
    sl_worker_send_router(p->worker, router, &m);
}

static void send_failed(sl_prefill *p, sl_prefill_job *j, bool unknown)
{
    const sl_ship_ending *e = &j->ship.ending;
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = j->rid;
    m.failed.attempt = j->attempt;
    m.failed.status = e->status;
    m.failed.retryable = e->retryable || unknown;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%s", e->reason);
    sl_worker_send_router(p->worker, j->router, &m);
}

/* Tells router and decode worker how a shipment ended of which nothing is in flight any more. */
static void report_end(sl_prefill *p, sl_prefill_job *j)
{
    bool aborted = j->ship.ending.cause == SHIP_ABORTED;
    bool unknown = !j->ship.peer && j->ship.unflushed; /* it is not known whether these puts have landed */
    if (j->ship.peer && j->ship.peer->remote.state == SL_REMOTE_UP) {
        sl_msg m = {.type = SL_MSG_DRAINED};
        m.id = (sl_msg_id){j->rid, j->attempt};
        sl_wep_send(j->ship.peer->remote.ep, &m);
    }
    sl_counter_add(aborted ? p->c.transfer_aborted : p->c.transfer_failed, 1);
    if (!aborted)
        send_failed(p, j, unknown);
    else if (!unknown)
        sl_ship_tell_drained(p, j->router, j->rid, j->attempt);
}

sl_ship_turn sl_ship_drain(sl_prefill *p, sl_prefill_job *j)
{
    const sl_decode_peer *d = j->ship.peer;
    if (j->ship.in_flight)
        return SHIP_IDLE;
    if (d && j->ship.unflushed) {
        if (d->remote.state == SL_REMOTE_CLOSING) /* the next event is that the connection is closed */
            return SHIP_IDLE;
        /* After an error the endpoint is breaking, and the callback for its failure follows. */
        sl_status st = sl_ship_post_flush(j);
        return st == SL_OK ? SHIP_POSTED : st == SL_AGAIN ? SHIP_BLOCKED : SHIP_IDLE;
    }
    if (j->prefetch)
        sl_ship_lease_drained(j);
    else
        report_end(p, j);
    over(p, j);
    return SHIP_IDLE;
}
