/*
 * The router link: one connection at a time, one epoch per session.
 *
 *   IDLE -> CONNECTING -> HELLO -> UP -> CLOSING -> IDLE (after a pause) …
 *
 * Silence is measured from the last message of any kind. The worker sends PING at every heartbeat and a living router
 * answers. When a router's process ends, its kernel closes the connection, and the worker knows at once. So silence on a
 * connection that stands means a lost host, a cut network, or a router whose loop is busy; because the last of these is
 * harmless, a worker waits ROUTER_PATIENCE times dead_after_ms before it gives up a silent router. When the worker's own
 * loop was held up (a debugger, a suspended machine), that time does not count as silence of the router.
 *
 * This thread lives on when the engine's thread hangs. LOAD tells how long ago the engine made its last turn, the router
 * ends the session when that is too long (core/members.c), and the link then waits for the engine before it connects
 * again.
 *
 * A refusal that may be retried (another process holds the name) is retried for as long as the router needs to notice
 * the loss of a former process of this name, and is final after that.
 */
#include <string.h>

#include "worker/worker_impl.h"

static const uint64_t MS = 1000000;
enum {
    MAX_PAUSE_FACTOR = 16,
    HELLO_ANSWER_MS = 10000,
    ROUTER_PATIENCE = 5, /* times dead_after_ms: silence of a router whose connection stands */
    NAME_PATIENCE = 3,   /* times dead_after_ms: retries while another process holds the name */
};

void sl_worker_link_init(sl_worker *w)
{
    w->link = (sl_wlink){.state = LINK_IDLE,
                         .epoch = sl_random_u64(),
                         .pause_ms = w->o.reconnect_ms,
                         .heartbeat_ms = w->o.heartbeat_ms,
                         .dead_after_ms = w->o.dead_after_ms};
}

static void go_idle(sl_worker *w)
{
    sl_wlink *l = &w->link;
    l->ep = NULL;
    l->state = LINK_IDLE;
    l->worker_id = 0;
    l->next_try_ns = sl_now_ns() + l->pause_ms * MS;
    if (l->pause_ms < w->o.reconnect_ms * MAX_PAUSE_FACTOR)
        l->pause_ms *= 2;
}

/* Whether the router would end a session with this worker because of its engine. */
static bool engine_hangs(const sl_worker *w)
{
    sl_msg_load load;
    memset(&load, 0, sizeof load);
    w->calls.load(w->calls.arg, &load);
    return load.engine_age_ms > (uint64_t)SL_ENGINE_PATIENCE * w->link.dead_after_ms;
}

static void connect_now(sl_worker *w)
{
    sl_wlink *l = &w->link;
    sl_err err = {0};
    l->state = LINK_CONNECTING;
    sl_status st = sl_worker_connect(w, w->router_address, NULL, &l->ep, &err);
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, w->calls.comp, "router_unreachable", "router=%s reason=\"%s\"", w->router_address,
               err.text);
        go_idle(w);
    }
}

void sl_worker_link_connected(sl_worker *w, sl_status st, const char *why)
{
    sl_wlink *l = &w->link;
    if (l->state != LINK_CONNECTING)
        return;
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, w->calls.comp, "router_unreachable", "router=%s status=%s reason=\"%s\"",
               w->router_address, sl_status_name(st), why);
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

/* Ends the session; the role is told, once, if there was one. */
static void end_session(sl_worker *w, sl_status st, const char *why)
{
    sl_wlink *l = &w->link;
    bool was_up = l->state == LINK_UP;
    if (l->state == LINK_CLOSING || l->state == LINK_IDLE)
        return;
    l->state = LINK_CLOSING;
    l->worker_id = 0;
    l->epoch = sl_random_u64();
    sl_log(SL_LOG_WARN, w->calls.comp, "router_lost", "router=%s status=%s reason=\"%s\"", w->router_address,
           sl_status_name(st), why);
    sl_wep_close(l->ep, SL_TP_CLOSE_FORCE);
    if (was_up)
        w->calls.router_down(w->calls.arg, st, why);
}

void sl_worker_link_failed(sl_worker *w, sl_status st, const char *why)
{
    end_session(w, st, why);
}

void sl_worker_link_closed(sl_worker *w)
{
    go_idle(w);
}

static void send_load(sl_worker *w)
{
    sl_msg m = {.type = SL_MSG_LOAD};
    memset(&m.load, 0, sizeof m.load);
    w->calls.load(w->calls.arg, &m.load);
    w->link.told = m.load;
    w->link.told_ns = sl_now_ns();
    sl_wep_send(w->link.ep, &m);
}

/* Whether the router would place requests differently if it knew. */
static bool changed_much(const sl_msg_load *a, const sl_msg_load *b)
{
    uint32_t pa = a->free_pages + a->cached_pages, pb = b->free_pages + b->cached_pages;
    return a->running != b->running || a->waiting != b->waiting || a->draining != b->draining ||
           (pa > pb ? pa - pb : pb - pa) > a->total_pages / 16;
}

static void send_load_if_changed(sl_worker *w, uint64_t now)
{
    sl_msg_load load;
    memset(&load, 0, sizeof load);
    if (now - w->link.told_ns < w->link.heartbeat_ms * MS / 8)
        return;
    w->calls.load(w->calls.arg, &load);
    if (changed_much(&load, &w->link.told))
        send_load(w);
}

static void on_welcome(sl_worker *w, const sl_msg_welcome *m)
{
    sl_wlink *l = &w->link;
    if (l->state != LINK_HELLO || !m->worker_id)
        return;
    l->state = LINK_UP;
    l->refused_ns = 0;
    l->worker_id = m->worker_id;
    l->welcomed_once = true;
    l->pause_ms = w->o.reconnect_ms;
    if (m->heartbeat_ms)
        l->heartbeat_ms = m->heartbeat_ms;
    if (m->dead_after_ms)
        l->dead_after_ms = m->dead_after_ms;
    l->next_beat_ns = sl_now_ns();
    sl_log(SL_LOG_INFO, w->calls.comp, "router_joined", "router=%s worker_id=%u heartbeat_ms=%u epoch=%016lx",
           w->router_address, l->worker_id, l->heartbeat_ms, l->epoch);
    w->calls.router_up(w->calls.arg, m);
    send_load(w);
}

static void on_refuse(sl_worker *w, const sl_msg_refuse *m)
{
    sl_wlink *l = &w->link;
    sl_log(SL_LOG_ERROR, w->calls.comp, "refused_by_router", "router=%s status=%s reason=\"%s\"",
           w->router_address, sl_status_name((sl_status)m->status), m->reason);
    uint64_t now = sl_now_ns();
    if (m->retry && !l->refused_ns)
        l->refused_ns = now;
    bool again = m->retry ? now - l->refused_ns < NAME_PATIENCE * l->dead_after_ms * MS : l->welcomed_once;
    if (again)
        l->pause_ms = w->o.reconnect_ms;
    if (!again && !l->gave_up) {
        l->gave_up = true;
        w->calls.fatal(w->calls.arg, SL_ERR_REFUSED, m->reason);
    }
    end_session(w, SL_ERR_REFUSED, m->reason);
}

void sl_worker_link_msg(sl_worker *w, sl_wmsg *m)
{
    sl_wlink *l = &w->link;
    l->last_heard_ns = sl_now_ns();
    switch (m->msg.type) {
    case SL_MSG_WELCOME:
        on_welcome(w, &m->msg.welcome);
        break;
    case SL_MSG_REFUSE:
        on_refuse(w, &m->msg.refuse);
        break;
    case SL_MSG_PING:
        m->msg.type = SL_MSG_PONG;
        sl_wep_send(l->ep, &m->msg);
        break;
    case SL_MSG_PONG:
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

uint64_t sl_worker_link_tick(sl_worker *w, uint64_t now)
{
    sl_wlink *l = &w->link;
    uint64_t late = now - w->last_loop_ns;
    switch (l->state) {
    case LINK_IDLE:
        if (l->gave_up)
            return UINT64_MAX;
        if (now < l->next_try_ns)
            return l->next_try_ns;
        if (engine_hangs(w)) {
            l->next_try_ns = now + w->o.reconnect_ms * MS;
            return l->next_try_ns;
        }
        connect_now(w);
        return l->state == LINK_IDLE ? l->next_try_ns : UINT64_MAX;
    case LINK_HELLO:
        if (now - l->last_heard_ns > HELLO_ANSWER_MS * MS)
            end_session(w, SL_ERR_TIMEOUT, "no answer to HELLO");
        return l->last_heard_ns + (HELLO_ANSWER_MS + 1) * MS;
    case LINK_UP:
        if (late > 4 * l->heartbeat_ms * MS) /* the loop sleeps at most until the next heartbeat */
            l->last_heard_ns += late;
        if (now > l->last_heard_ns && now - l->last_heard_ns > ROUTER_PATIENCE * l->dead_after_ms * MS) {
            end_session(w, SL_ERR_TIMEOUT, "silent");
            return UINT64_MAX;
        }
        if (now >= l->next_beat_ns) {
            sl_msg ping = {.type = SL_MSG_PING};
            ping.ping.stamp = now;
            send_load(w);
            sl_wep_send(l->ep, &ping);
            l->next_beat_ns = now + l->heartbeat_ms * MS;
        } else {
            send_load_if_changed(w, now);
        }
        return l->next_beat_ns;
    case LINK_CONNECTING:
    case LINK_CLOSING:
        return UINT64_MAX; /* a transport event follows */
    }
    return UINT64_MAX;
}

uint64_t sl_worker_epoch(const sl_worker *w)
{
    return w->link.epoch;
}

uint32_t sl_worker_id(const sl_worker *w)
{
    return w->link.worker_id;
}

bool sl_worker_router_up(const sl_worker *w)
{
    return w->link.state == LINK_UP;
}

void sl_worker_send_router(sl_worker *w, const sl_msg *msg)
{
    if (w->link.state == LINK_UP)
        sl_wep_send(w->link.ep, msg);
}
