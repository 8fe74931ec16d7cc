/* Loopback, connecting and closing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/loopback/loopback_impl.h"

/* ---- connecting ---- */

lb_ep *lb_ep_new(lb_transport *tp)
{
    lb_ep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return NULL;
    ep->base.tp = &tp->base;
    ep->inbox_tail = &ep->inbox;
    sl_tp_op_queue_init(&ep->pending);
    ep->faults = tp->default_faults;
    ep->next = tp->eps;
    tp->eps = ep;
    tp->stats.endpoints++;
    return ep;
}

void lb_refuse(lb_ep *ep, sl_status st, const char *why)
{
    lb_event *ev = lb_push_event(lb_of(ep), EV_CONNECTED, ep);
    ev->status = st;
    ev->why = why;
    ep->state = EP_FAILED;
    ep->connect_deadline_ns = 0;
    lb_poke(lb_of(ep));
}

int lb_accept_hellos(lb_transport *tp)
{
    int n = 0;
    while (tp->hellos) {
        lb_hello *h = tp->hellos;
        lb_ep *from = h->from;
        tp->hellos = h->next;
        free(h);
        n++;
        if (tp->refuse > 0 || !tp->opts.events.accepted) {
            tp->refuse -= tp->refuse > 0 && tp->refuse != UINT32_MAX;
            tp->stats.refused_connects++;
            lb_refuse(from, SL_ERR_REFUSED, "refused by the peer");
            continue;
        }
        lb_ep *ep = lb_must(lb_ep_new(tp));
        ep->state = from->state = EP_OPEN;
        ep->peer = from;
        from->peer = ep;
        from->connect_deadline_ns = 0;
        snprintf(ep->peer_address, sizeof ep->peer_address, "%s:0", lb_of(from)->opts.fabric);
        lb_push_event(tp, EV_ACCEPTED, ep);
        lb_push_event(lb_of(from), EV_CONNECTED, from)->status = SL_OK;
        lb_poke(lb_of(from));
    }
    return n;
}

/* Removes a hello that has not been answered. */
void lb_withdraw_hello(lb_ep *ep)
{
    for (lb_transport *tp = lb_world.instances; tp; tp = tp->next)
        for (lb_hello **at = &tp->hellos; *at; at = &(*at)->next)
            if ((*at)->from == ep) {
                lb_hello *h = *at;
                *at = h->next;
                free(h);
                return;
            }
}

int lb_check_connects(lb_transport *tp, uint64_t now, uint64_t *deadline)
{
    int n = 0;
    for (lb_ep *ep = tp->eps; ep; ep = ep->next) {
        if (ep->state != EP_CONNECTING || !ep->connect_deadline_ns)
            continue;
        if (ep->connect_deadline_ns > now) {
            lb_earliest(deadline, ep->connect_deadline_ns);
            continue;
        }
        lb_withdraw_hello(ep);
        lb_refuse(ep, SL_ERR_TIMEOUT, "no answer in time");
        n++;
    }
    return n;
}

static lb_transport *find_listener(const char *fabric, uint16_t port)
{
    for (lb_transport *tp = lb_world.instances; tp; tp = tp->next)
        if (!tp->dead && tp->port == port && strcmp(tp->opts.fabric, fabric) == 0)
            return tp;
    return NULL;
}

sl_status lb_listen(sl_transport *base, const char *host, uint16_t port, char *address, size_t cap,
                    sl_err *err)
{
    lb_transport *tp = (lb_transport *)base;
    (void)host;
    if (tp->port)
        return sl_fail(err, SL_ERR_INVALID, "loopback: already listening on port %u", tp->port);
    lb_lock();
    while (!port || (find_listener(tp->opts.fabric, port) && port == lb_world.next_port))
        port = ++lb_world.next_port;
    if (find_listener(tp->opts.fabric, port)) {
        lb_unlock();
        return sl_fail(err, SL_ERR_IO, "loopback: port %u of fabric %s is in use", port, tp->opts.fabric);
    }
    tp->port = port;
    lb_unlock();
    snprintf(address, cap, "%s:%u", tp->opts.fabric, port);
    return SL_OK;
}

sl_status lb_connect(sl_transport *base, const char *address, sl_tp_ep **out, sl_err *err)
{
    lb_transport *tp = (lb_transport *)base;
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    sl_status st = sl_tp_address_parse(address, host, sizeof host, &port, err);
    if (st != SL_OK)
        return st;
    lb_hello *h = calloc(1, sizeof *h);
    if (!h)
        return SL_ERR_NO_MEMORY;
    lb_lock();
    lb_ep *ep = lb_ep_new(tp);
    if (!ep) {
        lb_unlock();
        free(h);
        return SL_ERR_NO_MEMORY;
    }
    ep->state = EP_CONNECTING;
    ep->connect_deadline_ns = sl_now_ns() + (uint64_t)tp->opts.connect_timeout_ms * 1000000u;
    snprintf(ep->peer_address, sizeof ep->peer_address, "%s", address);
    lb_transport *to = find_listener(host, port);
    if (to) {
        lb_hello **at = &to->hellos;
        while (*at)
            at = &(*at)->next;
        h->from = ep;
        *at = h;
        lb_poke(to);
    } else {
        free(h);
        lb_refuse(ep, SL_ERR_REFUSED, "no instance listens there");
    }
    lb_poke(tp); /* the deadline counts from now */
    lb_unlock();
    *out = &ep->base;
    return SL_OK;
}

/* ---- closing ---- */

/* Mutex held. Removes ep from the world; afterwards nothing accesses memory through it. */
static void finish_close(lb_ep *ep)
{
    lb_ep *peer = ep->peer;
    lb_withdraw_hello(ep);
    lb_cut(ep);
    lb_drop_packets(&ep->late);
    lb_complete_all(ep, SL_ERR_CANCELLED);
    if (peer)
        lb_break(peer, "closed by the peer");
    ep->close_wanted = false;
    lb_push_event(lb_of(ep), EV_CLOSED, ep);
    lb_poke(lb_of(ep));
}

void lb_close(sl_tp_ep *base, sl_tp_close_mode mode)
{
    lb_ep *ep = (lb_ep *)base;
    lb_lock();
    bool was_closing = ep->closing;
    bool can_flush = ep->state == EP_OPEN;
    ep->state = EP_CLOSING;
    ep->closing = true;
    if (was_closing && !(ep->close_wanted && mode == SL_TP_CLOSE_FORCE)) {
        lb_unlock();
        return;
    }
    ep->close_wanted = true;
    if (mode == SL_TP_CLOSE_FORCE || !can_flush)
        finish_close(ep);
    else
        lb_poke(lb_of(ep));
    lb_unlock();
}

/* A flush close ends when nothing is pending, or when the peer has gone. */
int lb_check_closes(lb_transport *tp)
{
    int n = 0;
    for (lb_ep *ep = tp->eps; ep; ep = ep->next)
        if (ep->close_wanted && (!ep->pending.head || !ep->peer)) {
            finish_close(ep);
            n++;
        }
    return n;
}
