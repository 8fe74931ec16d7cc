/*
 * The links to the routers. Each has one connection at a time and one epoch per session, and is independent of the
 * others: when a router is lost, stops or refuses this worker, only its own session ends.
 *
 *   IDLE -> CONNECTING -> HELLO -> UP -> CLOSING -> IDLE (after a pause) …
 *
 * Silence is measured from the last message of any kind. The worker sends PING at every heartbeat, and the router
 * answers as long as its loop runs. When the router's process ends, the kernel of its host closes the connection, and
 * the worker is told at once. So silence on an open connection means that the host is lost, that the network is
 * interrupted, or that the router's loop is busy. Because the last of these is harmless, a worker waits ROUTER_PATIENCE
 * times dead_after_ms before it gives up a silent router. Time in which the worker's own loop did not run (a debugger,
 * a suspended machine) does not count as silence of the router.
 *
 * This thread continues when the engine's thread hangs. LOAD contains the time since the engine's loop began its last
 * iteration. The router ends the session when this time is too long (core/members.c), and the link then waits for the
 * engine before it connects again.
 *
 * A refusal that may be retried (another process holds the name) is retried for the time that the router needs to
 * notice the loss of the former process of this name; after this time the refusal is final. The worker ends when the
 * refusals of all its routers are final. Until then a refused link is tried again after the longest pause, because its
 * router may be replaced by one with another configuration.
 */
#include <string.h>

#include "worker/worker_impl.h"

static const uint64_t MS = 1000000;
enum {
    MAX_PAUSE_FACTOR = 16,
    HELLO_ANSWER_MS = 10000,
    ROUTER_PATIENCE = 5, /* times dead_after_ms: silence of a router whose connection is open */
    NAME_PATIENCE = 3,   /* times dead_after_ms: retries while another process holds the name */
};

void sl_worker_links_init(sl_worker *w)
{
    w->n_links = w->o.n_routers;
    for (int i = 0; i < w->n_links; i++) {
        sl_wlink *l = &w->links[i];
        *l = (sl_wlink){.w = w,
                        .state = LINK_IDLE,
                        .epoch = sl_random_u64(),
                        .pause_ms = w->o.reconnect_ms,
                        .heartbeat_ms = w->o.heartbeat_ms,
                        .dead_after_ms = w->o.dead_after_ms};
        strncpy(l->address, w->o.routers[i], sizeof l->address - 1);
    }
}

sl_wlink *sl_worker_link_of(const sl_wep *ep)
{
    sl_worker *w = ep->w;
    for (int i = 0; i < w->n_links; i++) {
        if (w->links[i].ep == ep)
            return &w->links[i];
    }
    return NULL;
}

static uint32_t longest_pause(const sl_wlink *l)
{
    return l->w->o.reconnect_ms * MAX_PAUSE_FACTOR;
}

static void go_idle(sl_wlink *l)
{
    l->ep = NULL;
    l->state = LINK_IDLE;
    l->worker_id = 0;
    l->next_try_ns = sl_now_ns() + l->pause_ms * MS;
    if (l->pause_ms < longest_pause(l))
        l->pause_ms *= 2;
}

/* True if a thread has made no turn for so long that the router would end a session with this worker. */
static bool thread_hangs(const sl_wlink *l)
{
    const sl_worker *w = l->w;
    sl_msg_load load;
    memset(&load, 0, sizeof load);
    w->calls.load(w->calls.arg, &load);
    return sl_msg_load_hangs(&load, l->dead_after_ms) != NULL;
}

static void connect_now(sl_wlink *l)
{
    sl_worker *w = l->w;
    sl_err err = {0};
    l->state = LINK_CONNECTING;
    sl_status st = sl_worker_connect(w, l->address, NULL, &l->ep, &err);
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, w->calls.comp, "router_unreachable", "router=%s reason=\"%s\"", l->address,
               err.text);
        go_idle(l);
    }
}

void sl_worker_link_connected(sl_wlink *l, sl_status st, const char *why)
{
    sl_worker *w = l->w;
    if (l->state != LINK_CONNECTING)
        return;
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, w->calls.comp, "router_unreachable", "router=%s status=%s reason=\"%s\"",
               l->address, sl_status_name(st), why);
        l->state = LINK_CLOSING;
        sl_wep_close(l->ep, SL_TP_CLOSE_FORCE);
        return;
    }
    l->state = LINK_HELLO;
    l->last_heard_ns = sl_now_ns();
    sl_msg m = {.type = SL_MSG_HELLO};
    m.hello = w->hello;
    m.hello.epoch = l->epoch;
    memcpy(m.hello.listen, w->address, sizeof m.hello.listen);
    sl_wep_send(l->ep, &m);
}

/* Ends the session, and tells the role once if a session existed. */
static void end_session_by(sl_wlink *l, sl_status st, const char *why, sl_tp_close_mode how)
{
    sl_worker *w = l->w;
    bool was_up = l->state == LINK_UP;
    if (was_up && !l->dismissed)
        atomic_fetch_sub(&w->needed, 1);
    if (l->state == LINK_CLOSING || l->state == LINK_IDLE)
        return;
    l->state = LINK_CLOSING;
    l->worker_id = 0;
    l->epoch = sl_random_u64();
    sl_log(SL_LOG_WARN, w->calls.comp, "router_lost", "router=%s status=%s reason=\"%s\"", l->address,
           sl_status_name(st), why);
    if (was_up)
        w->calls.router_down(w->calls.arg, l->ep->serial, st, why);
    sl_wep_close(l->ep, how);
}

static void end_session(sl_wlink *l, sl_status st, const char *why)
{
    end_session_by(l, st, why, SL_TP_CLOSE_FORCE);
}

void sl_worker_link_failed(sl_wlink *l, sl_status st, const char *why)
{
    end_session(l, st, why);
}

void sl_worker_link_closed(sl_wlink *l)
{
    go_idle(l);
}

static void send_load(sl_wlink *l)
{
    sl_worker *w = l->w;
    sl_msg m = {.type = SL_MSG_LOAD};
    memset(&m.load, 0, sizeof m.load);
    w->calls.load(w->calls.arg, &m.load);
    m.load.group_broken = w->held;
    l->told = m.load;
    l->told_ns = sl_now_ns();
    sl_wep_send(l->ep, &m);
}

/* True if the load has changed so much that the router would place requests differently. */
static bool changed_much(const sl_msg_load *a, const sl_msg_load *b)
{
    uint32_t pa = a->free_pages + a->cached_pages, pb = b->free_pages + b->cached_pages;
    return a->running != b->running || a->waiting != b->waiting || a->draining != b->draining ||
           (pa > pb ? pa - pb : pb - pa) > a->total_pages / 16;
}

static void send_load_if_changed(sl_wlink *l, uint64_t now)
{
    sl_worker *w = l->w;
    sl_msg_load load;
    memset(&load, 0, sizeof load);
    if (now - l->told_ns < l->heartbeat_ms * MS / 8)
        return;
    w->calls.load(w->calls.arg, &load);
    if (changed_much(&load, &l->told))
        send_load(l);
}

static void on_welcome(sl_wlink *l, const sl_msg_welcome *m)
{
    sl_worker *w = l->w;
    if (l->state != LINK_HELLO || !m->worker_id)
        return;
    l->state = LINK_UP;
    l->dismissed = false;
    atomic_fetch_add(&w->needed, 1);
    l->refused_ns = 0;
    l->worker_id = m->worker_id;
    l->welcomed_once = true;
    l->gave_up = false;
    l->pause_ms = w->o.reconnect_ms;
    if (m->heartbeat_ms)
        l->heartbeat_ms = m->heartbeat_ms;
    if (m->dead_after_ms)
        l->dead_after_ms = m->dead_after_ms;
    l->next_beat_ns = sl_now_ns();
    sl_log(SL_LOG_INFO, w->calls.comp, "router_joined", "router=%s worker_id=%u heartbeat_ms=%u epoch=%016lx",
           l->address, l->worker_id, l->heartbeat_ms, l->epoch);
    w->calls.router_up(w->calls.arg, l->ep->serial, m);
    send_load(l);
}

static bool every_router_refused(const sl_worker *w)
{
    for (int i = 0; i < w->n_links; i++) {
        if (!w->links[i].gave_up)
            return false;
    }
    return true;
}

static void on_refuse(sl_wlink *l, const sl_msg_refuse *m)
{
    sl_worker *w = l->w;
    sl_log(SL_LOG_ERROR, w->calls.comp, "refused_by_router", "router=%s status=%s reason=\"%s\"", l->address,
           sl_status_name((sl_status)m->status), m->reason);
    uint64_t now = sl_now_ns();
    if (m->retry && !l->refused_ns)
        l->refused_ns = now;
    bool again = m->retry ? now - l->refused_ns < NAME_PATIENCE * l->dead_after_ms * MS : l->welcomed_once;
    l->gave_up = !again;
    l->pause_ms = again ? w->o.reconnect_ms : longest_pause(l);
    if (!w->ended && every_router_refused(w)) {
        w->ended = true;
        w->calls.fatal(w->calls.arg, SL_ERR_REFUSED, m->reason);
    }
    end_session(l, SL_ERR_REFUSED, m->reason);
}

static void on_leave(sl_wlink *l)
{
    if (l->state == LINK_UP && !l->dismissed)
        atomic_fetch_sub(&l->w->needed, 1);
    l->dismissed |= l->state == LINK_UP;
}

bool sl_worker_needed(const sl_worker *w)
{
    return atomic_load(&w->needed) > 0;
}

void sl_worker_link_msg(sl_wlink *l, sl_wmsg *m)
{
    sl_worker *w = l->w;
    l->last_heard_ns = sl_now_ns();
    switch (m->msg.type) {
    case SL_MSG_WELCOME:
        on_welcome(l, &m->msg.welcome);
        break;
    case SL_MSG_REFUSE:
        on_refuse(l, &m->msg.refuse);
        break;
    case SL_MSG_PING:
        m->msg.type = SL_MSG_PONG;
        sl_wep_send(l->ep, &m->msg);
        break;
    case SL_MSG_PONG:
        break;
    case SL_MSG_LEAVE:
        on_leave(l);
        break;
    default:
        if (l->state == LINK_UP) {
            w->calls.router_msg(w->calls.arg, m);
            return;
        }
        sl_counter_add(w->c_unknown, 1);
        break;
    }
    sl_wmsg_free(m);
}

static uint64_t tick(sl_wlink *l, uint64_t now)
{
    sl_worker *w = l->w;
    uint64_t late = now - w->last_loop_ns;
    switch (l->state) {
    case LINK_IDLE:
        if (w->ended || w->held)
            return UINT64_MAX;
        if (now < l->next_try_ns)
            return l->next_try_ns;
        if (thread_hangs(l)) {
            l->next_try_ns = now + w->o.reconnect_ms * MS;
            return l->next_try_ns;
        }
        connect_now(l);
        return l->state == LINK_IDLE ? l->next_try_ns : UINT64_MAX;
    case LINK_HELLO:
        if (now - l->last_heard_ns > HELLO_ANSWER_MS * MS)
            end_session(l, SL_ERR_TIMEOUT, "no answer to HELLO");
        return l->last_heard_ns + (HELLO_ANSWER_MS + 1) * MS;
    case LINK_UP:
        if (late > 4 * l->heartbeat_ms * MS) /* the loop sleeps at most until the next heartbeat */
            l->last_heard_ns += late;
        if (now > l->last_heard_ns && now - l->last_heard_ns > ROUTER_PATIENCE * l->dead_after_ms * MS) {
            end_session(l, SL_ERR_TIMEOUT, "silent");
            return UINT64_MAX;
        }
        if (now >= l->next_beat_ns) {
            sl_msg ping = {.type = SL_MSG_PING};
            ping.ping.stamp = now;
            send_load(l);
            sl_wep_send(l->ep, &ping);
            l->next_beat_ns = now + l->heartbeat_ms * MS;
        } else {
            send_load_if_changed(l, now);
        }
        return l->next_beat_ns;
    case LINK_CONNECTING:
    case LINK_CLOSING:
        return UINT64_MAX; /* a transport event follows */
    }
    return UINT64_MAX;
}

void sl_worker_links_hold(sl_worker *w, bool on)
{
    w->held = on;
    for (int i = 0; i < w->n_links; i++) {
        sl_wlink *l = &w->links[i];
        if (on && l->state == LINK_UP)
            send_load(l); /* says why: no request of this worker has caused the end */
        if (on)
            end_session_by(l, SL_ERR_CANCELLED, "the group of this worker is broken",
                           l->state == LINK_UP ? SL_TP_CLOSE_FLUSH : SL_TP_CLOSE_FORCE);
        l->pause_ms = w->o.reconnect_ms;
        l->next_try_ns = sl_now_ns();
    }
}

uint64_t sl_worker_links_tick(sl_worker *w, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (int i = 0; i < w->n_links; i++) {
        uint64_t at = tick(&w->links[i], now);
        due = at < due ? at : due;
    }
    return due;
}

/* ---- sessions ---- */

static const sl_wlink *find_session(const sl_worker *w, uint32_t router)
{
    for (int i = 0; i < w->n_links; i++) {
        const sl_wlink *l = &w->links[i];
        if (l->state == LINK_UP && l->ep->serial == router)
            return l;
    }
    return NULL;
}

uint64_t sl_worker_epoch(const sl_worker *w, uint32_t router)
{
    const sl_wlink *l = find_session(w, router);
    return l ? l->epoch : 0;
}

uint32_t sl_worker_id(const sl_worker *w, uint32_t router)
{
    const sl_wlink *l = find_session(w, router);
    return l ? l->worker_id : 0;
}

uint32_t sl_worker_session(const sl_worker *w, uint64_t epoch)
{
    for (int i = 0; i < w->n_links; i++) {
        const sl_wlink *l = &w->links[i];
        if (l->state == LINK_UP && l->epoch == epoch)
            return l->ep->serial;
    }
    return 0;
}

void sl_worker_send_router(sl_worker *w, uint32_t router, const sl_msg *msg)
{
    const sl_wlink *l = find_session(w, router);
    if (l)
        sl_wep_send(l->ep, msg);
}
