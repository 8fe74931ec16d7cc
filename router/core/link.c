/*
 * The transport inside the libuv loop. Before every poll it makes progress until no event is left, posts the messages
 * that the full transport had refused, and arms the transport. If arming reports that an event has arrived since, an
 * idle handle prevents the poll from sleeping. There is no busy loop.
 *
 * The id of an active message is the type of the message; its bytes repeat type and version. base/msg checks all bounds
 * when it decodes. Messages that cannot be decoded are counted, and the sender stays connected (a different version is
 * refused at HELLO).
 */
#include <stdlib.h>
#include <string.h>

#include "base/msg_batch.h"
#include "router/core/core_impl.h"

enum { PROGRESS_ROUNDS = 256 };

static void malformed(sl_router *r, const sl_member *w, const char *why)
{
    sl_counter_add(r->stats.workers.malformed, 1);
    sl_log(SL_LOG_WARN, "router", "malformed_message", "worker=%s peer=%s reason=\"%s\"", w->name, w->addr,
           why);
}

/* The member may be dead after each message. */
static void take(sl_router *r, const sl_tp_ep *ep, const void *data, size_t bytes)
{
    sl_member *w = ep->user;
    sl_msg m;
    sl_err err = {""};
    if (!w || w->state == SL_MEMBER_DEAD)
        return;
    if (sl_msg_decode(data, bytes, &m, &err)) {
        malformed(r, w, err.text);
        return;
    }
    r->link.tokens |= m.type == SL_MSG_TOKENS;
    sl_router_link_received(w, &m);
    sl_msg_free(&m);
}

static void take_batch(sl_router *r, const sl_tp_ep *ep, const void *data, size_t bytes, sl_stamp *stepped)
{
    sl_rd rd;
    sl_err err = {""};
    const uint8_t *msg;
    size_t n;
    sl_status st = sl_msg_batch_open(data, bytes, &rd, stepped, &err);
    while (!st && sl_msg_batch_next(&rd, &msg, &n))
        take(r, ep, msg, n);
    const sl_member *w = ep->user;
    if (w && w->state != SL_MEMBER_DEAD && (st || rd.bad))
        malformed(r, w, st ? err.text : "a batch of messages is cut off");
}

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                       const void *data, size_t bytes)
{
    (void)header;
    (void)header_bytes;
    sl_router *r = arg;
    sl_stamp stepped = {0};
    const uint64_t now = sl_now_ns();
    r->link.tokens = false;
    if (id != SL_MSG_BATCH)
        take(r, ep, data, bytes);
    else
        take_batch(r, ep, data, bytes, &stepped);
    if (r->link.tokens)
        sl_written_note(&r->link.written, &stepped, now);
}

void sl_router_link_received(sl_member *w, const sl_msg *m)
{
    w->last_seen_ns = sl_now_ns();
    sl_member_message(w, m);
    sl_effects_run(w->r); /* effects may borrow from the message */
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    sl_member_accept(arg, ep, peer);
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    sl_router *r = arg;
    sl_counter_add(r->stats.link.peer_failures, 1);
    if (ep->user)
        sl_member_lost(ep->user, st, why);
}

static void on_closed(void *arg, sl_tp_ep *ep)
{
    (void)arg;
    sl_member *w = ep->user;
    if (w) {
        w->ep = NULL;
        sl_member_free(w);
    }
}

static void on_sent(void *cookie, sl_status st)
{
    (void)st;
    sl_outmsg *o = cookie;
    *o->pprev = o->next;
    if (o->next)
        o->next->pprev = o->pprev;
    free(o->data);
    free(o);
}

/* Posts one message. With SL_AGAIN the caller keeps it; with any other result it is consumed. */
static sl_status post(sl_member *w, sl_outmsg *o)
{
    sl_status st = sl_tp_send(w->ep, o->id, NULL, 0, o->data, o->bytes, on_sent, o);
    if (st == SL_AGAIN)
        return st;
    w->r->link.posted = true;
    o->next = w->r->link.in_flight;
    o->pprev = &w->r->link.in_flight;
    if (o->next)
        o->next->pprev = &o->next;
    w->r->link.in_flight = o;
    if (st < 0)
        on_sent(o, st);
    return st;
}

void sl_router_link_send(sl_member *w, const sl_msg *m)
{
    if (!w->ep || w->state == SL_MEMBER_DEAD)
        return;
    sl_wr wr;
    sl_wr_init(&wr);
    sl_msg_encode(m, &wr);
    sl_outmsg *o = wr.bad ? NULL : calloc(1, sizeof *o);
    if (!o) {
        sl_wr_free(&wr);
        sl_log(SL_LOG_ERROR, "router", "send_failed", "worker=%s type=%s reason=\"out of memory\"", w->name,
               sl_msg_type_name(m->type));
        return;
    }
    o->id = (uint16_t)m->type;
    o->data = wr.data;
    o->bytes = wr.len;
    if (!w->out_head && post(w, o) != SL_AGAIN)
        return;
    if (w->out_tail)
        w->out_tail->next = o;
    else
        w->out_head = o;
    w->out_tail = o;
}

static bool flush_waiting(sl_router *r)
{
    bool posted = false;
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        while (w->out_head && w->ep) {
            sl_outmsg *o = w->out_head, *next = o->next;
            if (post(w, o) == SL_AGAIN)
                break;
            posted = true;
            w->out_head = next;
            if (!next)
                w->out_tail = NULL;
        }
    }
    return posted;
}

static void on_idle(uv_idle_t *h)
{
    (void)h;
}

void sl_router_link_flush(sl_router *r)
{
    for (int i = 0; i < PROGRESS_ROUNDS; i++) {
        while (sl_tp_progress(r->link.tp) > 0 && ++i < PROGRESS_ROUNDS)
            ;
        if (flush_waiting(r))
            continue;
        if (sl_tp_arm(r->link.tp) == SL_OK) {
            uv_idle_stop(&r->link.idle);
            return;
        }
    }
    /* more events wait: serve the other handles of the loop, but do not sleep */
    sl_router_link_stay_awake(r);
}

void sl_router_link_stay_awake(sl_router *r)
{
    uv_idle_start(&r->link.idle, on_idle);
}

static sl_status listen_for_workers(sl_router *r, sl_err *err)
{
    for (uint16_t id = 0; id < SL_TP_AM_IDS; id++)
        SL_TRY(sl_tp_handle(r->link.tp, id, on_message, r));
    return sl_tp_listen(r->link.tp, r->o.link.host, (uint16_t)r->o.link.port, r->link.address,
                        sizeof r->link.address, err);
}

sl_status sl_router_link_open(sl_router *r, sl_err *err)
{
    sl_tp_options o = sl_tp_options_default();
    sl_written_open(&r->link.written, r->stats.m);
    o.events.arg = r;
    o.events.accepted = on_accepted;
    o.events.failed = on_failed;
    o.events.closed = on_closed;
    o.tls = r->o.link.tls && *r->o.link.tls ? r->o.link.tls : NULL;
    o.fabric = r->o.link.fabric;
    o.secret = r->o.link.secret;
    o.encrypt = r->o.link.encrypt;
    sl_status st = sl_transport_create(r->o.link.transport, &o, &r->link.tp, err);
    if (st)
        return sl_fail_in(err, st, "transport %s", r->o.link.transport);
    st = listen_for_workers(r, err);
    if (st) {
        sl_tp_destroy(r->link.tp);
        r->link.tp = NULL;
        return sl_fail_in(err, st, "cluster.router_port: listening for workers on %s:%d", r->o.link.host,
                          r->o.link.port);
    }
    return SL_OK;
}

void sl_router_link_close(sl_router *r)
{
    if (!r->link.tp)
        return;
    for (sl_member *w = r->cluster.members; w; w = w->next)
        w->ep = NULL;
    sl_tp_destroy(r->link.tp);
    r->link.tp = NULL;
    while (r->link.in_flight)
        on_sent(r->link.in_flight, SL_ERR_CANCELLED);
}
