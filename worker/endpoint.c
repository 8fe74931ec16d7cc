/*
 * Endpoints of a worker. A message is encoded once and posted to the transport. While the transport has no room it
 * waits in the queue of its endpoint, and later messages wait after it, so that the order is kept. The id of the active
 * message is the type of the message. Buffers are freed when the transport has completed the send.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/worker_impl.h"

void sl_wmsg_free(sl_wmsg *m)
{
    if (!m)
        return;
    sl_msg_free(&m->msg);
    free(m);
}

static sl_wep *ep_new(sl_worker *w, sl_tp_ep *tp_ep, void *user)
{
    sl_wep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return NULL;
    *ep = (sl_wep){
        .w = w, .tp_ep = tp_ep, .user = user, .serial = ++w->next_serial, .next = w->eps, .pprev = &w->eps};
    if (ep->next)
        ep->next->pprev = &ep->next;
    w->eps = ep;
    if (tp_ep)
        tp_ep->user = ep;
    sl_gauge_add(w->g_peers, 1);
    return ep;
}

static void drop_queue(sl_wep *ep)
{
    while (ep->out_head) {
        sl_wout *o = ep->out_head;
        ep->out_head = o->next;
        free(o->data);
        free(o);
    }
    ep->out_tail = NULL;
}

static void ep_free(sl_wep *ep)
{
    *ep->pprev = ep->next;
    if (ep->next)
        ep->next->pprev = ep->pprev;
    drop_queue(ep);
    sl_gauge_add(ep->w->g_peers, -1);
    free(ep);
}

void sl_wep_free_all(sl_worker *w)
{
    while (w->eps)
        ep_free(w->eps);
    while (w->posted) {
        sl_wout *o = w->posted;
        w->posted = o->next;
        free(o->data);
        free(o);
    }
}

sl_wep *sl_wep_find(sl_worker *w, uint32_t serial)
{
    for (sl_wep *ep = w->eps; ep; ep = ep->next) {
        if (ep->serial == serial)
            return ep;
    }
    return NULL;
}

/* ---- sending ---- */

static void on_sent(void *cookie, sl_status st)
{
    (void)st;
    sl_wout *o = cookie;
    *o->pprev = o->next;
    if (o->next)
        o->next->pprev = o->pprev;
    free(o->data);
    free(o);
}

/* With SL_AGAIN the caller keeps o; with any other result o is consumed. */
static sl_status post(sl_wep *ep, sl_wout *o)
{
    sl_worker *w = ep->w;
    sl_wout *next = w->posted;
    o->w = w;
    sl_status st = sl_tp_send(ep->tp_ep, o->id, NULL, 0, o->data, o->bytes, on_sent, o);
    if (st == SL_AGAIN)
        return st;
    if (st < 0) {
        free(o->data);
        free(o);
        return st;
    }
    o->next = next;
    o->pprev = &w->posted;
    if (next)
        next->pprev = &o->next;
    w->posted = o;
    return st;
}

void sl_wep_send_bytes(sl_wep *ep, uint16_t id, uint8_t *data, size_t bytes)
{
    sl_wout *o = ep->closing || !ep->up ? NULL : calloc(1, sizeof *o);
    if (!o) {
        free(data);
        return;
    }
    o->id = id;
    o->data = data;
    o->bytes = bytes;
    if (!ep->out_head && post(ep, o) != SL_AGAIN)
        return;
    if (ep->out_tail)
        ep->out_tail->next = o;
    else
        ep->out_head = o;
    ep->out_tail = o;
}

void sl_wep_send(sl_wep *ep, const sl_msg *msg)
{
    sl_wr wr;
    sl_wr_init(&wr);
    sl_msg_encode(msg, &wr);
    if (wr.bad) {
        sl_wr_free(&wr);
        sl_log(SL_LOG_ERROR, ep->w->calls.comp, "send_failed", "type=%s reason=\"out of memory\"",
               sl_msg_type_name(msg->type));
        return;
    }
    sl_wep_send_bytes(ep, (uint16_t)msg->type, wr.data, wr.len);
}

bool sl_wep_flush_queues(sl_worker *w)
{
    bool posted = false;
    for (sl_wep *ep = w->eps; ep; ep = ep->next) {
        while (ep->out_head) {
            sl_wout *o = ep->out_head, *next = o->next;
            if (post(ep, o) == SL_AGAIN)
                break;
            posted = true;
            ep->out_head = next;
            if (!next)
                ep->out_tail = NULL;
        }
    }
    return posted;
}

/* ---- events ---- */

static void on_accepted(void *arg, sl_tp_ep *tp_ep, const char *address)
{
    sl_worker *w = arg;
    sl_wep *ep = ep_new(w, tp_ep, NULL);
    if (!ep) {
        sl_tp_close(tp_ep, SL_TP_CLOSE_FORCE);
        return;
    }
    ep->up = true;
    w->calls.ep_accepted(w->calls.arg, ep, address ? address : "");
}

static void on_connected(void *arg, sl_tp_ep *tp_ep, sl_status st, const char *why)
{
    sl_worker *w = arg;
    sl_wep *ep = tp_ep->user;
    if (!ep)
        return;
    ep->up = st == SL_OK;
    sl_wlink *link = sl_worker_link_of(ep);
    if (link)
        sl_worker_link_connected(link, st, why ? why : "");
    else
        w->calls.ep_connected(w->calls.arg, ep, st, why ? why : "");
}

static void on_failed(void *arg, sl_tp_ep *tp_ep, sl_status st, const char *why)
{
    sl_worker *w = arg;
    sl_wep *ep = tp_ep->user;
    if (!ep)
        return;
    ep->up = false;
    drop_queue(ep);
    sl_counter_add(w->c_failed, 1);
    sl_wlink *link = sl_worker_link_of(ep);
    if (link)
        sl_worker_link_failed(link, st, why ? why : "");
    else
        w->calls.ep_failed(w->calls.arg, ep, st, why ? why : "");
}

static void on_closed(void *arg, sl_tp_ep *tp_ep)
{
    sl_worker *w = arg;
    sl_wep *ep = tp_ep->user;
    if (!ep)
        return;
    tp_ep->user = NULL;
    sl_wlink *link = sl_worker_link_of(ep);
    if (link)
        sl_worker_link_closed(link);
    else
        w->calls.ep_closed(w->calls.arg, ep);
    ep_free(ep);
}

static void on_message(void *arg, sl_tp_ep *tp_ep, uint16_t id, const void *header, size_t header_bytes,
                       const void *data, size_t bytes)
{
    (void)id;
    (void)header;
    (void)header_bytes;
    sl_worker *w = arg;
    sl_wep *ep = tp_ep->user;
    if (!ep || ep->closing)
        return;
    sl_wmsg *m = malloc(sizeof *m + bytes);
    if (!m) {
        sl_log(SL_LOG_ERROR, w->calls.comp, "message_lost", "reason=\"out of memory\"");
        return;
    }
    memset(m, 0, sizeof *m);
    if (bytes)
        memcpy(m->bytes, data, bytes);
    sl_err err = {0};
    sl_wlink *link = sl_worker_link_of(ep);
    if (sl_msg_decode(m->bytes, bytes, &m->msg, &err) != SL_OK) {
        sl_counter_add(w->c_malformed, 1);
        sl_log(SL_LOG_WARN, w->calls.comp, "malformed_message", "from=%s reason=\"%s\"",
               link ? "router" : "peer", err.text);
        free(m);
        return;
    }
    m->ep_serial = ep->serial;
    if (link) {
        m->router = ep->serial;
        sl_worker_link_msg(link, m);
        return;
    }
    w->calls.ep_msg(w->calls.arg, ep, m);
}

void sl_wep_events(sl_worker *w, sl_tp_events *out)
{
    *out = (sl_tp_events){.arg = w, .connected = on_connected, .failed = on_failed, .closed = on_closed};
    if (w->o.listens)
        out->accepted = on_accepted;
}

sl_status sl_wep_handlers(sl_worker *w)
{
    for (uint16_t id = 0; id < SL_TP_AM_IDS; id++)
        SL_TRY(sl_tp_handle(w->tp, id, on_message, w));
    return SL_OK;
}

sl_status sl_worker_connect(sl_worker *w, const char *address, void *user, sl_wep **out, sl_err *err)
{
    sl_wep *ep = ep_new(w, NULL, user);
    if (!ep)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_tp_connect(w->tp, address, &ep->tp_ep, err);
    if (st != SL_OK) {
        ep_free(ep);
        return st;
    }
    ep->tp_ep->user = ep;
    *out = ep;
    return SL_OK;
}

void sl_wep_close(sl_wep *ep, sl_tp_close_mode mode)
{
    bool force = mode == SL_TP_CLOSE_FORCE;
    if (ep->closing && (ep->closing_by_force || !force))
        return;
    ep->closing = true;
    ep->closing_by_force = force;
    if (force)
        drop_queue(ep);
    else
        sl_wep_flush_queues(ep->w);
    sl_tp_close(ep->tp_ep, mode);
}

bool sl_wep_closing(const sl_wep *ep)
{
    return ep->closing;
}

void sl_wep_set_user(sl_wep *ep, void *user)
{
    ep->user = user;
}

void *sl_wep_user(const sl_wep *ep)
{
    return ep->user;
}

uint32_t sl_wep_serial(const sl_wep *ep)
{
    return ep->serial;
}

sl_tp_ep *sl_wep_tp(sl_wep *ep)
{
    return ep->tp_ep;
}
