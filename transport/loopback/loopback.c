/*
 * Loopback transport: peers inside one process, with fault injection. It is also the example for implementers
 * of transports.
 *
 * One mutex for all fabrics (`world`) protects everything that two instances share: connections, the packet
 * queues between endpoints, the registered memories. This is slow and simple, as a test double should be.
 * Callbacks run outside the mutex: sl_tp_progress() first collects the packets that are due into the
 * instance's own event queue (owner thread only), then runs the events in it.
 *
 * A post appends a packet to the peer endpoint's inbox with a due time. The peer's progress executes it: a
 * put copies from the initiator's memory into the target's, then the operation is appended to the initiator's
 * ready list. A force close removes the endpoint from the world under the mutex, so no copy can follow: this
 * is the fence. Neither fairness nor speed is modelled.
 */
#include "transport/loopback/loopback.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "transport/loopback/loopback_impl.h"

/* ---- progress ---- */

static void run_message(lb_transport *tp, const lb_event *ev)
{
    if (ev->ep->closing)
        return;
    if (ev->id >= SL_TP_AM_IDS || !tp->handlers[ev->id]) {
        tp->stats.messages_refused++;
        return;
    }
    tp->stats.messages_received++;
    tp->stats.message_bytes_received += ev->bytes;
    tp->handlers[ev->id](tp->handler_args[ev->id], &ev->ep->base, ev->id,
                         ev->header_bytes ? ev->block + 1 : NULL, ev->header_bytes, lb_event_data(ev),
                         ev->bytes);
}

static void run_done(lb_transport *tp, sl_tp_op *op)
{
    sl_tp_done_fn *done = op->done;
    void *cookie = op->cookie;
    sl_status st = op->status;
    sl_tp_stats_done(&tp->stats, op);
    tp->stats.pending--;
    sl_tp_op_put(&tp->pool, op);
    if (done)
        done(cookie, st);
}

static void run_closed(lb_transport *tp, lb_ep *ep)
{
    const sl_tp_events *on = &tp->opts.events;
    if (on->closed)
        on->closed(on->arg, &ep->base);
    lb_lock();
    for (lb_ep **at = &tp->eps; *at; at = &(*at)->next)
        if (*at == ep) {
            *at = ep->next;
            break;
        }
    tp->stats.endpoints--;
    lb_unlock();
    free(ep);
}

static void run_event(lb_transport *tp, const lb_event *ev)
{
    const sl_tp_events *on = &tp->opts.events;
    lb_ep *ep = ev->ep;
    switch (ev->kind) {
    case EV_DONE:
        run_done(tp, ev->op);
        break;
    case EV_ACCEPTED:
        on->accepted(on->arg, &ep->base, ep->peer_address);
        break;
    case EV_CONNECTED:
        if (on->connected && !ep->closing)
            on->connected(on->arg, &ep->base, ev->status, ev->why ? ev->why : "");
        break;
    case EV_MESSAGE:
        run_message(tp, ev);
        break;
    case EV_FAILED:
        if (on->failed && !ep->closing)
            on->failed(on->arg, &ep->base, ev->status, ev->why);
        break;
    case EV_CLOSED:
        run_closed(tp, ep);
        break;
    }
}

static lb_event *take_events(lb_transport *tp)
{
    lb_event *list = tp->events;
    tp->events = NULL;
    tp->events_tail = &tp->events;
    return list;
}

static int lb_progress(sl_transport *base)
{
    lb_transport *tp = (lb_transport *)base;
    uint64_t deadline = 0, now = sl_now_ns(), count;
    int n = 0;
    SL_CHECK(pthread_equal(tp->owner, pthread_self()),
             "loopback: progress on a thread that is not the owner");
    lb_lock();
    if (tp->poked && read(tp->wake_fd, &count, sizeof count) < 0)
        SL_CHECK(errno == EAGAIN, "eventfd");
    tp->poked = false;
    if (!tp->dead) {
        n += lb_accept_hellos(tp);
        for (lb_ep *ep = tp->eps; ep; ep = ep->next)
            n += lb_deliver_due(ep, now, &deadline);
        n += lb_check_connects(tp, now, &deadline);
        n += lb_check_closes(tp);
    }
    lb_event *list = take_events(tp);
    if (!list)
        sl_tp_waker_arm(&tp->waker, deadline);
    bool dead = tp->dead;
    lb_unlock();
    while (list) {
        lb_event *ev = list;
        list = ev->next;
        if (!dead)
            run_event(tp, ev);
        free(ev->block);
        free(ev);
        n++;
    }
    return n;
}

static sl_status lb_arm(sl_transport *base)
{
    lb_transport *tp = (lb_transport *)base;
    lb_lock();
    bool busy = tp->poked || tp->events;
    lb_unlock();
    return busy ? SL_AGAIN : SL_OK;
}

static int lb_event_fd(const sl_transport *base)
{
    return ((const lb_transport *)base)->waker.epoll_fd;
}

/* ---- instance ---- */

static sl_status lb_create(const sl_tp_options *opts, sl_transport **out, sl_err *err)
{
    lb_transport *tp = calloc(1, sizeof *tp);
    if (!tp)
        return SL_ERR_NO_MEMORY;
    sl_status st = sl_tp_options_copy(&tp->opts, opts);
    if (st != SL_OK)
        goto free_tp;
    st = sl_tp_waker_init(&tp->waker, err);
    if (st != SL_OK)
        goto free_options;
    tp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tp->wake_fd < 0) {
        st = sl_fail(err, SL_ERR_IO, "eventfd: %s", strerror(errno));
        goto fini_waker;
    }
    st = sl_tp_waker_add(&tp->waker, tp->wake_fd, err);
    if (st != SL_OK)
        goto close_wake;
    tp->base.ops = &sl_transport_loopback;
    tp->owner = pthread_self();
    tp->events_tail = &tp->events;
    lb_lock();
    tp->next = lb_world.instances;
    lb_world.instances = tp;
    lb_unlock();
    *out = &tp->base;
    return SL_OK;
close_wake:
    close(tp->wake_fd);
fini_waker:
    sl_tp_waker_fini(&tp->waker);
free_options:
    sl_tp_options_free(&tp->opts);
free_tp:
    free(tp);
    return st;
}

/* Mutex held. Breaks every connection and refuses waiting ones, as the end of a process would. */
static void leave_world(lb_transport *tp)
{
    tp->dead = true;
    for (lb_ep *ep = tp->eps; ep; ep = ep->next) {
        lb_ep *peer = ep->peer;
        lb_withdraw_hello(ep);
        lb_cut(ep);
        lb_drop_packets(&ep->late);
        ep->state = EP_FAILED;
        if (peer)
            lb_break(peer, "the peer died");
    }
    while (tp->hellos) {
        lb_hello *h = tp->hellos;
        tp->hellos = h->next;
        lb_refuse(h->from, SL_ERR_PEER, "the peer died");
        free(h);
    }
}

static void lb_destroy(sl_transport *base)
{
    lb_transport *tp = (lb_transport *)base;
    lb_lock();
    leave_world(tp);
    for (lb_transport **at = &lb_world.instances; *at; at = &(*at)->next)
        if (*at == tp) {
            *at = tp->next;
            break;
        }
    lb_unlock();
    for (lb_event *ev = take_events(tp), *next; ev; ev = next) {
        next = ev->next;
        free(ev->block);
        free(ev);
    }
    while (tp->rkeys)
        lb_rkey_release(&tp->rkeys->base);
    while (tp->eps) {
        lb_ep *ep = tp->eps;
        tp->eps = ep->next;
        free(ep);
    }
    while (tp->mems) {
        lb_mem *m = tp->mems;
        tp->mems = m->next;
        free(m);
    }
    sl_tp_op_pool_free(&tp->pool);
    close(tp->wake_fd);
    sl_tp_waker_fini(&tp->waker);
    sl_tp_options_free(&tp->opts);
    free(tp);
}

static void lb_stats(const sl_transport *base, sl_tp_stats *out)
{
    lb_lock();
    *out = ((const lb_transport *)base)->stats;
    lb_unlock();
}

static void lb_query(const sl_transport *base, sl_tp_info *out)
{
    const lb_transport *tp = (const lb_transport *)base;
    *out = (sl_tp_info){.name = "loopback",
                        .devices = "memory",
                        .transports = "memcpy",
                        .version = "1",
                        .device_memory = true};
    if (tp->port)
        snprintf(out->address, sizeof out->address, "%.100s:%u", tp->opts.fabric, tp->port);
}

static void lb_ep_query(const sl_tp_ep *base, char *text, size_t cap)
{
    snprintf(text, cap, "peer=%s tls=memcpy", ((const lb_ep *)base)->peer_address);
}

void sl_loopback_set_faults(sl_tp_ep *base, const sl_loopback_faults *faults)
{
    lb_ep *ep = (lb_ep *)base;
    SL_CHECK(base->tp->ops == &sl_transport_loopback, "not a loopback endpoint");
    lb_lock();
    ep->faults = faults ? *faults : (sl_loopback_faults){0};
    ep->n_put = ep->n_msg = ep->n_op = ep->n_post = 0;
    if (ep->peer)
        lb_poke(lb_of(ep->peer));
    lb_unlock();
}

void sl_loopback_set_default_faults(sl_transport *base, const sl_loopback_faults *faults)
{
    SL_CHECK(base->ops == &sl_transport_loopback, "not a loopback transport");
    lb_lock();
    ((lb_transport *)base)->default_faults = faults ? *faults : (sl_loopback_faults){0};
    lb_unlock();
}

void sl_loopback_refuse(sl_transport *base, uint32_t n)
{
    SL_CHECK(base->ops == &sl_transport_loopback, "not a loopback transport");
    lb_lock();
    ((lb_transport *)base)->refuse = n;
    lb_unlock();
}

void sl_loopback_kill(sl_transport *base)
{
    SL_CHECK(base->ops == &sl_transport_loopback, "not a loopback transport");
    lb_lock();
    leave_world((lb_transport *)base);
    lb_poke((lb_transport *)base);
    lb_unlock();
}

const sl_transport_ops sl_transport_loopback = {
    .name = "loopback",
    .description = "peers inside one process, with fault injection",
    .caps = {.device_memory = true, .close_fences = true, .fault_injection = true},
    .create = lb_create,
    .destroy = lb_destroy,
    .progress = lb_progress,
    .arm = lb_arm,
    .event_fd = lb_event_fd,
    .listen = lb_listen,
    .connect = lb_connect,
    .close = lb_close,
    .handle = lb_handle,
    .mem_register = lb_mem_register,
    .mem_deregister = lb_mem_deregister,
    .rkey_pack = lb_rkey_pack,
    .rkey_unpack = lb_rkey_unpack,
    .rkey_release = lb_rkey_release,
    .put = lb_put,
    .get = lb_get,
    .flush = lb_flush,
    .send = lb_send,
    .stats = lb_stats,
    .query = lb_query,
    .ep_query = lb_ep_query,
};
