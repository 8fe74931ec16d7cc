/*
 * Loopback, the wire: events of an instance, packets between endpoints and their delivery. Mutex held
 * throughout.
 */
#include <errno.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/loopback/loopback_impl.h"

struct lb_world lb_world = {.mutex = PTHREAD_MUTEX_INITIALIZER, .next_id = 1, .next_port = 1};

void lb_lock(void)
{
    pthread_mutex_lock(&lb_world.mutex);
}

void lb_unlock(void)
{
    pthread_mutex_unlock(&lb_world.mutex);
}

lb_transport *lb_of(const lb_ep *ep)
{
    return (lb_transport *)ep->base.tp;
}

void *lb_must(void *p)
{
    SL_CHECK(p != NULL, "loopback: out of memory");
    return p;
}

/* ---- events of one instance (mutex held, or owner before running) ---- */

lb_event *lb_push_event(lb_transport *tp, lb_event_kind kind, lb_ep *ep)
{
    lb_event *ev = lb_must(calloc(1, sizeof *ev));
    ev->kind = kind;
    ev->ep = ep;
    *tp->events_tail = ev;
    tp->events_tail = &ev->next;
    return ev;
}

void lb_poke(lb_transport *tp)
{
    uint64_t one = 1;
    tp->poked = true;
    if (write(tp->wake_fd, &one, sizeof one) != sizeof one)
        SL_CHECK(errno == EAGAIN, "eventfd");
}

void lb_complete(lb_ep *ep, sl_tp_op *op, sl_status st)
{
    sl_tp_op **at = &ep->pending.head;
    while (*at && *at != op)
        at = &(*at)->next;
    SL_CHECK(*at == op, "an operation completed twice");
    if (!(*at = op->next))
        ep->pending.tail = at;
    op->status = st;
    lb_push_event(lb_of(ep), EV_DONE, ep)->op = op;
    lb_poke(lb_of(ep));
}

void lb_complete_all(lb_ep *ep, sl_status st)
{
    while (ep->pending.head)
        lb_complete(ep, ep->pending.head, st);
}

/* ---- packets ---- */

void lb_packet_free(lb_packet *p)
{
    free(p->header);
    free(p->copy);
    free(p);
}

void lb_drop_packets(lb_packet **list)
{
    while (*list) {
        lb_packet *p = *list;
        *list = p->next;
        lb_packet_free(p);
    }
}

/* Ends the connection between ep and its peer: nothing more is delivered to either, except late puts. */
void lb_cut(lb_ep *ep)
{
    lb_ep *peer = ep->peer;
    lb_drop_packets(&ep->inbox);
    ep->inbox_tail = &ep->inbox;
    ep->peer = NULL;
    if (!peer)
        return;
    lb_drop_packets(&peer->inbox);
    peer->inbox_tail = &peer->inbox;
    peer->peer = NULL;
}

/* Tells the owner that the connection broke (not that it was closed). */
void lb_break(lb_ep *ep, const char *why)
{
    if (ep->state == EP_FAILED || ep->state == EP_CLOSING) {
        lb_complete_all(ep, ep->state == EP_CLOSING ? SL_ERR_CANCELLED : SL_ERR_PEER);
        return;
    }
    bool connecting = ep->state == EP_CONNECTING;
    ep->state = EP_FAILED;
    lb_complete_all(ep, SL_ERR_PEER);
    lb_event *ev = lb_push_event(lb_of(ep), connecting ? EV_CONNECTED : EV_FAILED, ep);
    ev->status = SL_ERR_PEER;
    ev->why = why;
    lb_of(ep)->stats.failed_endpoints++;
    lb_poke(lb_of(ep));
}

void lb_break_pair(lb_ep *ep, const char *why)
{
    lb_ep *peer = ep->peer;
    lb_cut(ep);
    lb_break(ep, why);
    if (peer)
        lb_break(peer, why);
}

/* ---- delivery: runs in the receiver's progress, mutex held ---- */

static lb_mem *find_mem(lb_transport *tp, uint64_t id)
{
    for (lb_mem *m = tp->mems; m; m = m->next)
        if (m->id == id)
            return m;
    return NULL;
}

/* The target's memory for a put or a get; NULL when the key does not allow it (revoked, range, access). */
static uint8_t *target(lb_transport *tp, const lb_packet *p, unsigned need)
{
    lb_mem *m = find_mem(tp, p->mem_id);
    uint64_t base = m ? (uint64_t)(uintptr_t)m->base.base : 0;
    if (!m || !(m->access & need) || !sl_tp_in_range(p->remote, p->bytes, base, m->base.bytes))
        return NULL;
    return (uint8_t *)(uintptr_t)p->remote;
}

static void keep_late(lb_ep *ep, const lb_packet *p)
{
    lb_packet *late = lb_must(calloc(1, sizeof *late));
    late->kind = SL_TP_OP_PUT;
    late->copy = lb_must(malloc(p->bytes));
    memcpy(late->copy, p->out, p->bytes);
    late->bytes = p->bytes;
    late->remote = p->remote;
    late->mem_id = p->mem_id;
    late->due_ns = sl_now_ns() + p->late_ns;
    late->next = ep->late;
    ep->late = late;
}

static void write_astray(lb_ep *ep, const lb_packet *p)
{
    const lb_mem *m = find_mem(lb_of(ep), p->mem_id);
    uint64_t base = (uint64_t)(uintptr_t)m->base.base, at = (p->remote - base + p->stray) % m->base.bytes;
    if (at + p->bytes <= m->base.bytes)
        memcpy((uint8_t *)m->base.base + at, p->out, p->bytes);
}

static sl_status deliver_put(lb_ep *ep, const lb_packet *p)
{
    uint8_t *to = target(lb_of(ep), p, SL_TP_REMOTE_WRITE);
    if (!to || p->fail)
        return SL_ERR_IO;
    if (p->late)
        keep_late(ep, p);
    if (p->stray)
        write_astray(ep, p);
    if (p->lose)
        return SL_OK;
    memcpy(to, p->out, p->bytes);
    if (p->damage)
        to[p->bytes / 2] ^= 0x10;
    return SL_OK;
}

static sl_status deliver_get(lb_ep *ep, const lb_packet *p)
{
    const uint8_t *from = target(lb_of(ep), p, SL_TP_REMOTE_READ);
    if (!from || p->fail)
        return SL_ERR_IO;
    memcpy(p->in, from, p->bytes);
    if (p->damage)
        ((uint8_t *)p->in)[p->bytes / 2] ^= 1;
    return SL_OK;
}

static void deliver_message_once(lb_ep *ep, const lb_packet *p)
{
    lb_event *ev = lb_push_event(lb_of(ep), EV_MESSAGE, ep);
    size_t pad = p->header_bytes & 1; /* puts the payload at an odd address */
    ev->id = p->id;
    ev->header_bytes = p->header_bytes;
    ev->bytes = p->bytes;
    ev->block = lb_must(malloc(p->header_bytes + p->bytes + 3));
    uint8_t *data = ev->block + 1 + p->header_bytes + pad;
    if (p->header_bytes)
        memcpy(ev->block + 1, p->header, p->header_bytes);
    if (p->bytes)
        memcpy(data, p->out, p->bytes);
    if (p->damage && p->bytes)
        data[p->bytes / 2] ^= 0x10;
    else if (p->damage && p->header_bytes)
        ev->block[1 + p->header_bytes / 2] ^= 0x10;
}

const uint8_t *lb_event_data(const lb_event *ev)
{
    return ev->bytes ? ev->block + 1 + ev->header_bytes + (ev->header_bytes & 1) : NULL;
}

static sl_status deliver_message(lb_ep *ep, const lb_packet *p)
{
    if (!p->lose)
        deliver_message_once(ep, p);
    if (p->duplicate)
        deliver_message_once(ep, p);
    return SL_OK;
}

static void deliver(lb_ep *ep, lb_packet *p)
{
    lb_ep *from = ep->peer;
    sl_status st = SL_OK;
    switch (p->kind) {
    case SL_TP_OP_PUT:
        st = deliver_put(ep, p);
        break;
    case SL_TP_OP_GET:
        st = deliver_get(ep, p);
        break;
    case SL_TP_OP_SEND:
        st = deliver_message(ep, p);
        break;
    case SL_TP_OP_FLUSH:
    case SL_TP_OP_CONTROL:
        break;
    }
    if (p->op && !p->no_completion)
        lb_complete(from, p->op, st);
    lb_packet_free(p);
}

/* Earliest future due time among *deadline and t. */
void lb_earliest(uint64_t *deadline, uint64_t t)
{
    if (t && (!*deadline || t < *deadline))
        *deadline = t;
}

/* Delivers the packets that are due to ep; returns their number. */
int lb_deliver_due(lb_ep *ep, uint64_t now, uint64_t *deadline)
{
    int n = 0;
    for (lb_packet **at = &ep->late; *at;) {
        lb_packet *p = *at;
        if (p->due_ns > now) {
            lb_earliest(deadline, p->due_ns);
            at = &p->next;
            continue;
        }
        uint8_t *to = target(lb_of(ep), p, SL_TP_REMOTE_WRITE);
        if (to)
            memcpy(to, p->copy, p->bytes);
        *at = p->next;
        lb_packet_free(p);
        n++;
    }
    while (ep->inbox && ep->peer && !ep->peer->faults.stall) {
        lb_packet *p = ep->inbox;
        if (p->due_ns > now) {
            lb_earliest(deadline, p->due_ns);
            break;
        }
        if (!(ep->inbox = p->next))
            ep->inbox_tail = &ep->inbox;
        deliver(ep, p);
        n++;
    }
    return n;
}
