/*
 * The half of a group that runs on the thread of the links: who is there, who differs, who is lost. Rank 0 listens and
 * has a link to every other rank, over which it also passes on what one rank tells all others. Who may join is decided in
 * group_door.c.
 *
 *   rank        connects, JOIN ───▶ rank 0: compares     ───▶ REFUSE, or WELCOME when all ranks have joined
 *   each rank   READY ───▶ rank 0: when all are ready, its engine thread founds a forming; INVITE ───▶ each rank
 *   BROKEN, RING: from any rank to rank 0, and from there to the others
 *
 * A link is lost when its connection fails, or when the other side has been silent for dead_after_ms although this
 * thread ran. Then the forming is broken. A rank that lost rank 0 connects again until it succeeds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/arena.h"
#include "worker/group_impl.h"

/* When what is due on the thread of the links. */
struct sl_wgroup_clock {
    bool self_ready;       /* rank 0 */
    uint64_t last_forming; /* the newest number; of rank 0, which gives them, it begins anywhere */
    uint64_t next_try_ns, next_beat_ns, last_tick_ns;
    uint64_t form_ns;    /* rank 0: not before this */
    uint64_t refused_ns; /* when rank 0 has refused this one first; 0: not */
};

static const uint64_t MS = 1000000;
enum { TAKEN_PATIENCE = 3 }; /* times dead_after_ms: how long a rank whose number is taken tries again */

/* ---- what the engine thread learns ---- */

static void refused(sl_wgroup *g, sl_status st, const char *why)
{
    pthread_mutex_lock(&g->lock);
    if (g->refused == SL_OK) {
        g->refused = st;
        snprintf(g->refusal, sizeof g->refusal, "%.390s", why);
        sl_wgroup_wake(g);
    }
    pthread_mutex_unlock(&g->lock);
}

/* `forming` has ended; 0: whichever there is. */
static void broke(sl_wgroup *g, uint64_t forming, const char *why)
{
    pthread_mutex_lock(&g->lock);
    if (g->forming && !g->broken && (!forming || forming == g->forming)) {
        g->broken = true;
        snprintf(g->why, sizeof g->why, "%.250s", why);
        if (g->comm)
            sl_comm_abort(g->comm);
        sl_wgroup_wake(g);
    }
    pthread_mutex_unlock(&g->lock);
}

static void rung(sl_wgroup *g, const sl_msg_group *m)
{
    pthread_mutex_lock(&g->lock);
    if (m->forming == g->forming && m->step > g->ring) {
        g->ring = m->step;
        sl_wgroup_wake(g);
    }
    pthread_mutex_unlock(&g->lock);
}

void sl_wgroup_met(sl_wgroup *g, sl_key whole)
{
    pthread_mutex_lock(&g->lock);
    g->checkpoint = whole;
    g->met = true;
    sl_wgroup_wake(g);
    pthread_mutex_unlock(&g->lock);
}

void sl_wgroup_send(sl_wep *ep, const sl_msg_group *news)
{
    sl_msg m = {.type = SL_MSG_GROUP};
    m.group = *news;
    if (ep)
        sl_wep_send(ep, &m);
}

/* ---- rank 0 ---- */

/* To all other ranks except `except`. */
static void tell_all(sl_wgroup *g, const sl_msg_group *news, int32_t except)
{
    for (int32_t r = 1; r < g->o.ranks; r++) {
        if (r != except && g->peers[r].joined)
            sl_wgroup_send(g->peers[r].ep, news);
    }
}

/* When every rank is ready, the engine thread founds a forming. */
static void form_if_ready(sl_wgroup *g, uint64_t now)
{
    bool all = g->clock->self_ready && sl_wgroup_all_joined(g) && now >= g->clock->form_ns;
    for (int32_t r = 1; r < g->o.ranks; r++)
        all = all && g->peers[r].ready;
    if (!all)
        return;
    bool across = false;
    g->clock->self_ready = false;
    for (int32_t r = 1; r < g->o.ranks; r++) {
        g->peers[r].ready = false;
        across = across || g->peers[r].place != g->join.place;
    }
    pthread_mutex_lock(&g->lock);
    g->across = across;
    g->forming = ++g->clock->last_forming;
    g->found_due = true;
    g->ring = 0;
    sl_wgroup_wake(g);
    pthread_mutex_unlock(&g->lock);
}

/* ---- all ranks ---- */

static int32_t rank_of(const sl_wgroup *g, const sl_wgroup_peer *p)
{
    return (int32_t)(p - g->peers);
}

/* The link to this rank has ended. */
static void lost(sl_wgroup *g, sl_wgroup_peer *p, const char *why)
{
    char text[256];
    int32_t rank = rank_of(g, p);
    bool was_joined = p->joined;
    sl_wep *ep = p->ep;
    snprintf(text, sizeof text, "rank %d was lost: %.200s", rank, why);
    p->ep = NULL;
    p->joined = p->ready = false;
    if (ep) {
        sl_wep_set_user(ep, NULL);
        sl_wep_close(ep, SL_TP_CLOSE_FORCE);
    }
    g->clock->next_try_ns = sl_now_ns() + g->o.link.reconnect_ms * MS;
    if (!was_joined)
        return;
    sl_log(SL_LOG_WARN, "group", "rank_lost", "rank=%d reason=\"%s\"", rank, why);
    if (g->o.rank == 0) {
        sl_msg_group news = {.news = SL_GROUP_BROKEN, .forming = g->clock->last_forming};
        memcpy(news.reason, text, sizeof news.reason);
        tell_all(g, &news, rank);
        sl_wgroup_list_missing(g);
    }
    broke(g, 0, text);
}

static void on_broken(sl_wgroup *g, const sl_msg_group *m, int32_t from)
{
    if (!m->forming)
        return;
    if (g->o.rank == 0) {
        if (m->forming != g->clock->last_forming)
            return;
        tell_all(g, m, from);
        g->clock->form_ns = sl_now_ns() + g->o.link.heartbeat_ms * MS;
    }
    broke(g, m->forming, m->reason);
}

static void on_invite(sl_wgroup *g, const sl_msg_group *m)
{
    if (m->invite.len != SL_COMM_INVITE_BYTES || !m->forming)
        return;
    pthread_mutex_lock(&g->lock);
    if (g->comm) { /* of a former one, of which this rank has not heard that it ended */
        g->broken = true;
        sl_comm_abort(g->comm);
    }
    memcpy(g->invite.bytes, m->invite.data, SL_COMM_INVITE_BYTES);
    g->forming = m->forming;
    g->ring = 0;
    g->invited = true;
    sl_wgroup_wake(g);
    pthread_mutex_unlock(&g->lock);
}

/* A new rank 0 may have a checkpoint in which this rank's own tensors are the same, and others are not. */
static bool same_checkpoint(sl_wgroup *g, sl_key whole)
{
    char why[200];
    pthread_mutex_lock(&g->lock);
    sl_key had = g->checkpoint;
    bool same = !g->met || sl_key_eq(had, whole);
    pthread_mutex_unlock(&g->lock);
    snprintf(why, sizeof why,
             "rank 0 is a new process with another checkpoint: its fingerprint is %016" PRIx64 "%016" PRIx64
             ", the group has loaded %016" PRIx64 "%016" PRIx64,
             whole.hi, whole.lo, had.hi, had.lo);
    if (!same)
        refused(g, SL_ERR_REFUSED, why);
    return same;
}

static void on_welcome(sl_wgroup *g, const sl_msg_group *m)
{
    if (!same_checkpoint(g, m->fingerprint))
        return;
    g->peers[0].joined = true;
    g->clock->refused_ns = 0;
    sl_wgroup_met(g, m->fingerprint);
    pthread_mutex_lock(&g->lock);
    bool ready = g->ready;
    pthread_mutex_unlock(&g->lock);
    if (ready)
        sl_wgroup_send(g->peers[0].ep, &(sl_msg_group){.news = SL_GROUP_READY});
}

/* from: the rank that says it, which may be this one (mail of the engine thread). */
static void on_news(sl_wgroup *g, const sl_msg_group *m, int32_t from)
{
    bool zero = g->o.rank == 0, own = from == g->o.rank;
    if (!zero && own) {
        if (g->peers[0].joined)
            sl_wgroup_send(g->peers[0].ep, m);
        return;
    }
    switch (m->news) {
    case SL_GROUP_WELCOME:
        if (!zero)
            on_welcome(g, m);
        return;
    case SL_GROUP_READY:
        if (zero && own)
            g->clock->self_ready = true;
        else if (zero)
            g->peers[from].ready = true;
        return;
    case SL_GROUP_INVITE:
        if (zero)
            tell_all(g, m, 0);
        else
            on_invite(g, m);
        return;
    case SL_GROUP_BROKEN:
        on_broken(g, m, from);
        return;
    case SL_GROUP_RING:
        if (zero)
            tell_all(g, m, from);
        if (!own)
            rung(g, m);
        return;
    default:
        return;
    }
}

static void on_refuse(sl_wgroup *g, const sl_msg_refuse *m)
{
    uint64_t now = sl_now_ns();
    sl_log(SL_LOG_ERROR, "group", "refused", "by=%s reason=\"%s\"", g->address, m->reason);
    if (!g->clock->refused_ns)
        g->clock->refused_ns = now;
    if (!m->retry || now - g->clock->refused_ns >= TAKEN_PATIENCE * g->o.link.dead_after_ms * MS)
        refused(g, SL_ERR_REFUSED, m->reason);
}

/* ---- callbacks of the links ---- */

static void count_links(sl_wgroup *g, int32_t change)
{
    pthread_mutex_lock(&g->lock);
    g->open_links += change;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void ep_accepted(void *arg, sl_wep *ep, const char *address)
{
    (void)address;
    count_links(arg, 1);
    sl_wep_set_user(ep, NULL); /* until it has joined */
    sl_wgroup_stranger_add(arg, ep);
}

static void ep_connected(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_wgroup *g = arg;
    if (g->peers[0].ep != ep)
        return;
    if (st != SL_OK) {
        lost(g, &g->peers[0], why);
        return;
    }
    g->peers[0].heard_ns = sl_now_ns();
    sl_msg m = {.type = SL_MSG_GROUP_JOIN};
    m.group_join = g->join;
    pthread_mutex_lock(&g->lock);
    if (g->met) { /* it has its store: rank 0 is a new process */
        m.group_join.host_bytes = 0;
        m.group_join.host_free = UINT64_MAX;
    }
    pthread_mutex_unlock(&g->lock);
    sl_wep_send(ep, &m);
}

static void ep_msg(void *arg, sl_wep *ep, sl_wmsg *m)
{
    sl_wgroup *g = arg;
    sl_wgroup_peer *p = sl_wep_user(ep);
    if (p)
        p->heard_ns = sl_now_ns();
    if (m->msg.type == SL_MSG_GROUP_JOIN && g->o.rank == 0 && !p) {
        sl_wgroup_on_join(g, ep, &m->msg.group_join);
    } else if (p && m->msg.type == SL_MSG_PING) {
        m->msg.type = SL_MSG_PONG;
        sl_wep_send(ep, &m->msg);
    } else if (p && m->msg.type == SL_MSG_GROUP) {
        on_news(g, &m->msg.group, rank_of(g, p));
    } else if (p && m->msg.type == SL_MSG_REFUSE && g->o.rank != 0) {
        on_refuse(g, &m->msg.refuse);
    }
    sl_wmsg_free(m);
}

static void ep_failed(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_wgroup *g = arg;
    sl_wgroup_peer *p = sl_wep_user(ep);
    (void)st;
    if (p)
        lost(g, p, why);
    else
        sl_wep_close(ep, SL_TP_CLOSE_FORCE);
}

static void ep_closed(void *arg, sl_wep *ep)
{
    sl_wgroup *g = arg;
    if (g->o.rank != 0)
        return;
    sl_wgroup_stranger_forget(g, ep);
    count_links(g, -1);
}

static void refuse_all(sl_wgroup *g, const char *why)
{
    for (int32_t r = 1; r < g->o.ranks; r++) {
        sl_wgroup_peer *p = &g->peers[r];
        if (!p->ep)
            continue;
        sl_wep_set_user(p->ep, NULL);
        sl_wgroup_refuse(p->ep, why, false);
        *p = (sl_wgroup_peer){.ep = NULL};
    }
}

static void on_mail(void *arg, sl_wmail *mail)
{
    sl_wgroup *g = arg;
    sl_wgroup_mail *m = (sl_wgroup_mail *)mail;
    if (mail->kind == SL_WGROUP_MAIL_REFUSE)
        refuse_all(g, m->msg.reason);
    else
        on_news(g, &m->msg, g->o.rank);
    free(m);
}

/* ---- time ---- */

static void connect_now(sl_wgroup *g, uint64_t now)
{
    sl_err err = {0};
    sl_wgroup_peer *p = &g->peers[0];
    sl_status st = sl_worker_connect(g->link, g->address, p, &p->ep, &err);
    if (st == SL_OK)
        return;
    p->ep = NULL;
    g->clock->next_try_ns = now + g->o.link.reconnect_ms * MS;
    refused(g, st, err.text); /* the address cannot be used */
}

static void beat(sl_wgroup *g, uint64_t now)
{
    sl_msg ping = {.type = SL_MSG_PING};
    ping.ping.stamp = now;
    for (int32_t r = 0; r < g->o.ranks; r++) {
        if (g->peers[r].ep && g->peers[r].joined)
            sl_wep_send(g->peers[r].ep, &ping);
    }
    g->clock->next_beat_ns = now + g->o.link.heartbeat_ms * MS;
}

static void find_silent(sl_wgroup *g, uint64_t now)
{
    uint64_t late = g->clock->last_tick_ns ? now - g->clock->last_tick_ns : 0;
    for (int32_t r = 0; r < g->o.ranks; r++) {
        sl_wgroup_peer *p = &g->peers[r];
        if (!p->ep || !p->joined)
            continue;
        if (late >
            4 * g->o.link.heartbeat_ms * MS) /* this thread did not run: the other side is not to blame */
            p->heard_ns += late;
        if (now > p->heard_ns && now - p->heard_ns > g->o.link.dead_after_ms * MS)
            lost(g, p, "it was silent for dead_after_ms");
    }
}

static uint64_t on_tick(void *arg, uint64_t now)
{
    sl_wgroup *g = arg;
    find_silent(g, now);
    g->clock->last_tick_ns = now;
    if (now >= g->clock->next_beat_ns)
        beat(g, now);
    if (g->o.rank == 0) {
        form_if_ready(g, now);
        sl_wgroup_strangers_end(g, now);
    } else if (!g->peers[0].ep && now >= g->clock->next_try_ns && g->refused == SL_OK) {
        connect_now(g, now);
    }
    return g->clock->next_beat_ns;
}

/* ---- start ---- */

static sl_status place(sl_wgroup *g, sl_worker_opts *w, sl_err *err)
{
    SL_TRY(sl_tp_address_parse(g->address, g->host, sizeof g->host, &w->listen_port, err));
    w->listens = g->o.rank == 0;
    w->listen_host = g->host;
    if (!w->listen_port)
        return sl_fail(err, SL_ERR_INVALID, "the address %s of a group needs a port", g->address);
    return SL_OK;
}

sl_status sl_wgroup_link_start(sl_wgroup *g, sl_err *err)
{
    sl_worker_opts w = g->o.link;
    sl_worker_calls calls = {.arg = g,
                             .comp = "group",
                             .ep_accepted = ep_accepted,
                             .ep_connected = ep_connected,
                             .ep_msg = ep_msg,
                             .ep_failed = ep_failed,
                             .ep_closed = ep_closed,
                             .mail = on_mail,
                             .tick = on_tick};
    w.n_routers = 0;
    w.memory = NULL;
    w.memory_bytes = 0;
    w.n_device_memory = 0;
    w.enter = NULL;
    w.hello = &g->hello;
    w.metrics = NULL; /* the worker's own links count there */
    w.advertise_host = NULL;
    SL_TRY(place(g, &w, err));
    g->clock = calloc(1, sizeof *g->clock);
    if (!g->clock)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    g->clock->last_forming = sl_random_u64() >> 1;
    sl_wgroup_list_missing(g);
    sl_status st = sl_worker_start(&w, &calls, &g->link, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "the group's address %s", g->address);
}
