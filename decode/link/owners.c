/*
 * Connections to other decode workers whose pages this worker reads ("owners"), for decode/pages/pull.h. Transport thread.
 *
 * The connection itself is worker/remote.h. It is made when the first pull of a session needs it, greeted like the connection of a
 * prefill worker (PEER_HELLO, marked as reader), and closed when the session ends, when it was not used for IDLE_MS, or when
 * anything fails.
 *
 * `asking` has the questions that wait for LEASE and `getting` the gets, the oldest first. When one operation of a get
 * fails, the get is answered when the connection is closed: only then nothing writes into its pages any more. A get that is
 * cancelled is answered when its operations in flight have completed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "decode/link/link_impl.h"
#include "worker/remote.h"

static const uint64_t MS = 1000000;
enum {
    ASK_MS = 10000, /* until LEASE; the owner may be in a long step of its engine */
    IDLE_MS = 120000,
    RETRY_MS = 1, /* after SL_AGAIN */
    WINDOW = 64,  /* gets in flight on one connection */
};

struct sl_owner {
    sl_link_kind kind; /* first member */
    sl_owners *all;
    sl_owner *next;
    sl_remote remote;
    bool again; /* the transport was full at the last post */
    uint64_t used_ns;
    uint64_t done_ns; /* when the last get ended */
    sl_pull *asking;
    sl_pull_get *getting;
};

struct sl_owners {
    sl_link_env *e;
    sl_owner *list;
};

sl_owners *sl_owners_new(sl_link_env *e)
{
    sl_owners *s = calloc(1, sizeof *s);
    if (s)
        s->e = e;
    return s;
}

void sl_owners_free(sl_owners *s)
{
    if (!s)
        return;
    for (sl_owner *o; (o = s->list);) {
        s->list = o->next;
        free(o);
    }
    free(s);
}

static sl_remote_self self(const sl_owners *s)
{
    return (sl_remote_self){
        .worker = sl_link_worker(s->e), .hello = s->e->o.hello, .geo = s->e->geo, .reader = true};
}

static void answer_ask(sl_owners *s, sl_pull *p, sl_status st)
{
    p->status = st;
    p->mail.kind = DM_PULL_ASKED;
    sl_mailbox_post(s->e->o.inbox, &p->mail.link);
}

static void answer_get(sl_owners *s, sl_pull_get *g, sl_status st)
{
    g->status = g->cancelled ? SL_ERR_CANCELLED : g->status == SL_OK ? st : g->status;
    g->mail.kind = DM_PULL_GOT;
    sl_mailbox_post(s->e->o.inbox, &g->mail.link);
}

static void answer_asks(sl_owners *s, sl_owner *o, sl_status st)
{
    for (sl_pull *p; (p = o->asking);) {
        o->asking = p->next_there;
        answer_ask(s, p, st);
    }
}

/* ---- the connection ---- */

/* A connection that nothing uses may end at any time: its owner leaves, its session ends. */
static void drop(sl_owners *s, sl_owner *o, sl_status st, const char *why)
{
    bool used = o->asking || o->getting;
    if (!sl_remote_drop(&o->remote))
        return;
    sl_log(used ? SL_LOG_WARN : SL_LOG_INFO, "decode", used ? "owner_lost" : "owner_closed",
           "address=%s worker_id=%u status=%s reason=\"%s\"", o->remote.address, o->remote.worker_id,
           sl_status_name(st), why);
    answer_asks(s, o, st);
    for (sl_pull_get *g = o->getting; g; g = g->next_there)
        g->status = g->status == SL_OK ? st : g->status;
}

static sl_owner *find(const sl_owners *s, const sl_tier_source *source)
{
    sl_owner *o = s->list;
    while (o && !sl_remote_is(&o->remote, source->router, source->epoch, source->address))
        o = o->next;
    return o;
}

static sl_owner *find_or_connect(sl_owners *s, const sl_tier_source *source, sl_err *err)
{
    sl_owner *o = find(s, source);
    if (o)
        return o;
    const sl_remote_self me = self(s);
    if (!sl_worker_id(me.worker, source->router)) {
        sl_fail(err, SL_ERR_PEER, "the router that named it is gone");
        return NULL;
    }
    o = calloc(1, sizeof *o);
    if (!o) {
        sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    sl_remote to = {.router = source->router, .worker_id = source->worker, .epoch = source->epoch};
    memcpy(to.address, source->address, sizeof to.address);
    *o = (sl_owner){.kind = SL_LINK_OWNER, .all = s, .used_ns = sl_now_ns()};
    if (sl_remote_connect(&o->remote, &me, &to, o, err) != SL_OK) {
        free(o);
        return NULL;
    }
    o->next = s->list;
    s->list = o;
    return o;
}

void sl_owners_connected(sl_owners *s, sl_wep *ep, sl_status st, const char *why)
{
    sl_owner *o = sl_wep_user(ep);
    const sl_remote_self me = self(s);
    sl_err err = {0};
    if (o->remote.state >= SL_REMOTE_CLOSING)
        return;
    if (st != SL_OK) {
        drop(s, o, st, why);
        return;
    }
    st = sl_remote_greet(&o->remote, &me, &err);
    if (st != SL_OK)
        drop(s, o, st, err.text);
}

static void ask(sl_owner *o, const sl_pull *p)
{
    sl_msg m = {.type = SL_MSG_LEASE_ASK};
    _Static_assert(sizeof(sl_key) == 16, "as encoded on every machine that runs this: little-endian");
    m.lease_ask = (sl_msg_lease_ask){.lease = p->id,
                                     .ms = p->lease_ms,
                                     .seed = p->source.seed,
                                     .keys = {(const uint8_t *)p->keys, (size_t)p->n * sizeof *p->keys}};
    sl_wep_send(o->remote.ep, &m);
}

static void on_welcome(sl_owners *s, sl_owner *o, const sl_msg_peer_welcome *w)
{
    const sl_remote_self me = self(s);
    sl_err err = {0};
    if (o->remote.state != SL_REMOTE_CONNECTING)
        return;
    sl_status st = sl_remote_welcome(&o->remote, &me, w, &err);
    if (st != SL_OK) {
        drop(s, o, st, err.text);
        return;
    }
    sl_remote_up(&o->remote);
    char text[200];
    sl_tp_ep_query(sl_wep_tp(o->remote.ep), text, sizeof text);
    sl_log(SL_LOG_INFO, "decode", "owner_connected", "address=%s worker_id=%u pages=%ld %s",
           o->remote.address, o->remote.worker_id, (long)o->remote.n_pages, text);
    for (sl_pull *p = o->asking; p; p = p->next_there) {
        p->began_ns = sl_now_ns();
        ask(o, p);
    }
}

/* ---- leases ---- */

static sl_status take_lease(const sl_owner *o, sl_pull *p, const sl_msg_lease *m)
{
    if (m->n_pages > (size_t)p->n || (m->n_pages && m->labels.len / m->n_pages != p->label_bytes))
        return SL_ERR_CORRUPT;
    for (size_t i = 0; i < m->n_pages; i++) {
        if (m->pages[i] >= o->remote.n_pages)
            return SL_ERR_CORRUPT;
    }
    p->lent = m->lent;
    p->ep_serial = sl_wep_serial(o->remote.ep);
    if (!m->n_pages)
        return SL_OK;
    p->pages = malloc(m->n_pages * sizeof *p->pages);
    p->labels = malloc(m->labels.len);
    if (!p->pages || !p->labels)
        return SL_ERR_NO_MEMORY;
    memcpy(p->pages, m->pages, m->n_pages * sizeof *p->pages);
    memcpy(p->labels, m->labels.data, m->labels.len);
    p->granted = (int32_t)m->n_pages;
    return SL_OK;
}

static void end_lease(sl_owner *o, uint64_t id)
{
    sl_msg m = {.type = SL_MSG_LEASE_END};
    m.lease_end.lease = id;
    sl_wep_send(o->remote.ep, &m);
}

static void on_lease(sl_owners *s, sl_owner *o, const sl_msg_lease *m)
{
    sl_pull **at = &o->asking;
    while (*at && (*at)->id != m->lease)
        at = &(*at)->next_there;
    o->used_ns = sl_now_ns();
    sl_pull *p = *at;
    if (!p) { /* given up meanwhile */
        if (m->n_pages)
            end_lease(o, m->lease);
        return;
    }
    sl_status st = take_lease(o, p, m);
    if (st == SL_ERR_CORRUPT) {
        drop(s, o, st, "its LEASE does not fit the question");
        return;
    }
    *at = p->next_there;
    if (st != SL_OK && m->n_pages)
        end_lease(o, m->lease);
    answer_ask(s, p, st);
}

/* ---- gets ---- */

static void finish_get(sl_owners *s, sl_owner *o, sl_pull_get *g)
{
    sl_pull_get **at = &o->getting;
    while (*at != g)
        at = &(*at)->next_there;
    *at = g->next_there;
    /* Gets of one connection share its rate, and end in about the order in which they were posted: the time of a get begins
     * when the one before it has ended. */
    uint64_t now = sl_now_ns(), from = g->began_ns > o->done_ns ? g->began_ns : o->done_ns;
    g->ns = now - from;
    o->done_ns = now;
    answer_get(s, g, SL_OK);
}

static void on_got(void *cookie, sl_status st)
{
    sl_pull_get *g = cookie;
    sl_owner *o = g->at;
    g->in_flight--;
    sl_remote_completed(&o->remote);
    o->used_ns = sl_now_ns();
    if (st != SL_OK) {
        g->status = st;
        drop(o->all, o, SL_ERR_PEER, "a get failed");
        return;
    }
    if (o->remote.state == SL_REMOTE_UP && !g->in_flight && g->all_posted)
        finish_get(o->all, o, g);
}

/* SL_INPROGRESS: all are posted, or the get was cancelled. */
static sl_status post_next(sl_owners *s, sl_owner *o, sl_pull_get *g)
{
    sl_span span;
    if (g->cancelled || !sl_page_read_next(&g->read, &span))
        return SL_INPROGRESS;
    sl_status st = sl_tp_get(sl_wep_tp(o->remote.ep), span.local, sl_worker_memory(sl_link_worker(s->e)),
                             (size_t)span.bytes, span.remote, o->remote.rkey, on_got, g);
    if (st != SL_OK) {
        sl_page_read_hold(&g->read, &span);
        return st;
    }
    g->began_ns = g->began_ns ? g->began_ns : sl_now_ns();
    g->bytes += (uint64_t)span.bytes;
    g->in_flight++;
    sl_remote_posted(&o->remote);
    return SL_OK;
}

static void pump(sl_owners *s, sl_owner *o)
{
    o->again = false;
    for (sl_pull_get *g = o->getting, *next; g && o->remote.state == SL_REMOTE_UP; g = next) {
        next = g->next_there;
        sl_status st = g->all_posted ? SL_INPROGRESS : SL_OK;
        while (st == SL_OK && o->remote.in_flight < WINDOW)
            st = post_next(s, o, g);
        if (st == SL_INPROGRESS) {
            g->all_posted = true;
            if (!g->in_flight)
                finish_get(s, o, g);
            continue;
        }
        o->again = st == SL_AGAIN;
        if (st != SL_OK && st != SL_AGAIN)
            drop(s, o, st, "cannot post a get");
        return; /* the window or the transport is full */
    }
}

static void begin_get(sl_owners *s, sl_owner *o, sl_pull_get *g)
{
    g->map = (sl_page_map){.local = s->e->geo,
                           .remote = &o->remote.geo,
                           .local_base = sl_arena_base(s->e->o.arena),
                           .remote_base = o->remote.base,
                           .local_n = sl_arena_pages(s->e->o.arena),
                           .remote_n = o->remote.n_pages,
                           .lpages = g->local,
                           .rpages = g->remote};
    sl_page_read_begin(&g->read, &g->map, 0, g->n);
    sl_pull_get **at = &o->getting;
    while (*at)
        at = &(*at)->next_there;
    *at = g;
    pump(s, o);
}

/* ---- what the engine thread wants ---- */

void sl_owners_get(sl_owners *s, sl_pull_get *g)
{
    const sl_pull *lease = g->lease;
    sl_owner *o = find(s, &lease->source);
    if (!o || o->remote.state != SL_REMOTE_UP || sl_wep_serial(o->remote.ep) != lease->ep_serial) {
        answer_get(s, g, SL_ERR_PEER); /* the lease has ended with its connection */
        return;
    }
    g->at = o;
    begin_get(s, o, g);
}

void sl_owners_ask(sl_owners *s, sl_pull *p)
{
    sl_err err = {0};
    sl_owner *o = find_or_connect(s, &p->source, &err);
    if (!o) {
        sl_log(SL_LOG_WARN, "decode", "owner_lost", "address=%s worker_id=%u reason=\"%s\"",
               p->source.address, p->source.worker, err.text);
        answer_ask(s, p, SL_ERR_PEER);
        return;
    }
    p->began_ns = o->used_ns = sl_now_ns();
    sl_pull **at = &o->asking;
    while (*at)
        at = &(*at)->next_there;
    *at = p;
    if (o->remote.state == SL_REMOTE_UP)
        ask(o, p);
}

static bool cancel_at(sl_owners *s, sl_owner *o, uint64_t id)
{
    for (sl_pull **at = &o->asking; *at; at = &(*at)->next_there) {
        sl_pull *p = *at;
        if (p->id != id)
            continue;
        *at = p->next_there;
        answer_ask(s, p, SL_ERR_CANCELLED);
        return true;
    }
    for (sl_pull_get *g = o->getting; g; g = g->next_there) {
        if (g->id != id)
            continue;
        g->cancelled = true;
        g->all_posted = true;
        if (!g->in_flight && o->remote.state == SL_REMOTE_UP)
            finish_get(s, o, g);
        return true;
    }
    return false;
}

void sl_owners_cancel(sl_owners *s, uint64_t id)
{
    for (sl_owner *o = s->list; o; o = o->next) {
        if (cancel_at(s, o, id))
            return;
    }
}

/* ---- events ---- */

void sl_owners_msg(sl_owners *s, sl_wep *ep, sl_wmsg *m)
{
    sl_owner *o = sl_wep_user(ep);
    switch (m->msg.type) {
    case SL_MSG_PEER_WELCOME:
        on_welcome(s, o, &m->msg.peer_welcome);
        break;
    case SL_MSG_REFUSE:
        drop(s, o, SL_ERR_REFUSED, m->msg.refuse.reason);
        break;
    case SL_MSG_LEASE:
        if (o->remote.state == SL_REMOTE_UP) {
            on_lease(s, o, &m->msg.lease);
            break;
        }
        /* fallthrough */
    default:
        atomic_fetch_add(&s->e->stale, 1);
        break;
    }
    sl_wmsg_free(m);
}

void sl_owners_failed(sl_owners *s, sl_wep *ep, sl_status st, const char *why)
{
    drop(s, sl_wep_user(ep), st, why);
}

void sl_owners_closed(sl_owners *s, sl_wep *ep)
{
    sl_owner *o = sl_wep_user(ep);
    for (sl_owner **at = &s->list; *at; at = &(*at)->next) {
        if (*at == o) {
            *at = o->next;
            break;
        }
    }
    sl_remote_closed(&o->remote);
    answer_asks(s, o, SL_ERR_PEER);
    for (sl_pull_get *g; (g = o->getting);) { /* nothing writes into their pages any more */
        o->getting = g->next_there;
        answer_get(s, g, SL_ERR_PEER);
    }
    free(o);
}

void sl_owners_router_down(sl_owners *s, uint32_t router)
{
    for (sl_owner *o = s->list; o; o = o->next) {
        if (o->remote.router == router)
            drop(s, o, SL_ERR_PEER, "the session with the router that named it has ended");
    }
}

/* The next time at which this connection has something to do. */
static uint64_t tick_one(sl_owners *s, sl_owner *o, uint64_t now)
{
    uint64_t stall = s->e->o.stall_ms * MS, idle = o->used_ns + IDLE_MS * MS, asked = UINT64_MAX;
    if (o->remote.state == SL_REMOTE_UP && o->asking)
        asked = o->asking->began_ns + ASK_MS * MS;
    if (o->getting)
        pump(s, o);
    bool used = o->asking || o->getting;
    const char *late = sl_remote_late(&o->remote, now, stall);
    if (!late && now >= asked)
        late = "no answer to LEASE_ASK";
    if (!late && !used && now > idle)
        late = "it was not used";
    if (late)
        drop(s, o, SL_ERR_TIMEOUT, late);
    if (o->remote.state >= SL_REMOTE_CLOSING)
        return UINT64_MAX;
    uint64_t due = sl_remote_due(&o->remote, stall);
    due = o->again && now + RETRY_MS * MS < due ? now + RETRY_MS * MS : due;
    due = asked < due ? asked : due;
    return !used && idle + MS < due ? idle + MS : due;
}

uint64_t sl_owners_tick(sl_owners *s, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_owner *o = s->list; o; o = o->next) {
        uint64_t at = tick_one(s, o, now);
        due = at < due ? at : due;
    }
    return due;
}
