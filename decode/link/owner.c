/*
 * Connections to other decode workers whose pages this worker reads ("owners"), for decode/pages/pull.h. Transport thread.
 *
 * A connection is made when the first pull of a session needs it, one for each (session with the router, epoch of the
 * owner), greeted like the connection of a prefill worker (PEER_HELLO, marked as reader), and closed when the session ends,
 * when it was not used for IDLE_MS, or when anything fails:
 *
 *     CONNECTING ──PEER_WELCOME──▶ UP ──error, refusal, timeout, session ended──▶ CLOSING ──closed──▶ freed
 *
 * `asking` has the questions that wait for LEASE and `getting` the gets, the oldest first. When one operation of a get
 * fails, the get is answered when the connection is closed: only then nothing writes into its pages any more. A get that is
 * cancelled is answered when its operations in flight have completed.
 */
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"
#include "worker/remote_arena.h"

static const uint64_t MS = 1000000;
enum {
    ANSWER_MS = 10000, /* until PEER_WELCOME, twice: from the call on, and from PEER_HELLO on */
    ASK_MS = 10000,    /* until LEASE; the owner may be in a long step of its engine */
    IDLE_MS = 120000,
    RETRY_MS = 1,      /* after SL_AGAIN */
    WINDOW = 64,       /* gets in flight on one connection */
    LONGEST = 1 << 20, /* bytes of one get, so that its progress can be seen */
};

typedef enum { OWNER_CONNECTING, OWNER_UP, OWNER_CLOSING } owner_state;

struct sl_owner {
    sl_dpeer_kind kind; /* first member */
    sl_decode *d;
    sl_owner *next;
    sl_wep *ep;
    uint32_t router, worker_id;
    uint64_t epoch;
    char address[128];
    owner_state state;
    sl_remote_arena arena; /* UP */
    uint32_t in_flight;
    bool again; /* the transport was full at the last post */
    uint64_t hello_deadline_ns, progress_ns, used_ns;
    uint64_t done_ns; /* when the last get ended */
    sl_pull *asking;
    sl_pull_get *getting;
};

static void answer_ask(sl_decode *d, sl_pull *p, sl_status st)
{
    p->status = st;
    p->mail.kind = DM_PULL_ASKED;
    sl_mailbox_post(d->role.inbox, &p->mail.link);
}

static void answer_get(sl_decode *d, sl_pull_get *g, sl_status st)
{
    g->status = g->cancelled ? SL_ERR_CANCELLED : g->status == SL_OK ? st : g->status;
    g->mail.kind = DM_PULL_GOT;
    sl_mailbox_post(d->role.inbox, &g->mail.link);
}

static void answer_asks(sl_decode *d, sl_owner *o, sl_status st)
{
    for (sl_pull *p; (p = o->asking);) {
        o->asking = p->next_there;
        answer_ask(d, p, st);
    }
}

/* ---- the connection ---- */

/* A connection that nothing uses may end at any time: its owner leaves, its session ends. */
static void drop(sl_decode *d, sl_owner *o, sl_status st, const char *why)
{
    bool used = o->asking || o->getting;
    if (o->state == OWNER_CLOSING)
        return;
    o->state = OWNER_CLOSING;
    sl_log(used ? SL_LOG_WARN : SL_LOG_INFO, "decode", used ? "owner_lost" : "owner_closed",
           "address=%s worker_id=%u status=%s reason=\"%s\"", o->address, o->worker_id, sl_status_name(st),
           why);
    answer_asks(d, o, st);
    for (sl_pull_get *g = o->getting; g; g = g->next_there)
        g->status = g->status == SL_OK ? st : g->status;
    if (!o->in_flight) {
        sl_tp_rkey_release(o->arena.rkey);
        o->arena.rkey = NULL;
    }
    sl_wep_close(o->ep, SL_TP_CLOSE_FORCE);
}

static sl_owner *find(sl_decode *d, const sl_tier_source *s)
{
    for (sl_owner *o = d->link.owners; o; o = o->next) {
        if (o->state != OWNER_CLOSING && o->router == s->router && o->epoch == s->epoch &&
            strcmp(o->address, s->address) == 0)
            return o;
    }
    return NULL;
}

static sl_owner *find_or_connect(sl_decode *d, const sl_tier_source *s, sl_err *err)
{
    sl_owner *o = find(d, s);
    if (o)
        return o;
    if (!sl_worker_id(d->worker, s->router)) {
        sl_fail(err, SL_ERR_PEER, "the router that named it is gone");
        return NULL;
    }
    o = calloc(1, sizeof *o);
    if (!o) {
        sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    *o = (sl_owner){.kind = DPEER_OWNER,
                    .d = d,
                    .router = s->router,
                    .worker_id = s->worker,
                    .epoch = s->epoch,
                    .hello_deadline_ns = sl_now_ns() + ANSWER_MS * MS,
                    .used_ns = sl_now_ns()};
    memcpy(o->address, s->address, sizeof o->address);
    if (sl_worker_connect(d->worker, o->address, o, &o->ep, err) != SL_OK) {
        free(o);
        return NULL;
    }
    o->next = d->link.owners;
    d->link.owners = o;
    return o;
}

void sl_owner_connected(sl_decode *d, sl_wep *ep, sl_status st, const char *why)
{
    sl_owner *o = sl_wep_user(ep);
    if (o->state == OWNER_CLOSING)
        return;
    uint32_t own_id = sl_worker_id(d->worker, o->router);
    if (st == SL_OK && !own_id) {
        st = SL_ERR_PEER;
        why = "the router that named it is gone";
    }
    if (st != SL_OK) {
        drop(d, o, st, why);
        return;
    }
    sl_msg m = {.type = SL_MSG_PEER_HELLO};
    m.peer_hello.version = SL_MSG_VERSION;
    m.peer_hello.worker_id = own_id;
    m.peer_hello.epoch = sl_worker_epoch(d->worker, o->router);
    m.peer_hello.decode_epoch = o->epoch;
    memcpy(m.peer_hello.cluster_tag, d->role.hello.cluster_tag, sizeof m.peer_hello.cluster_tag);
    m.peer_hello.id = d->role.hello.id;
    m.peer_hello.reader = 1;
    o->hello_deadline_ns = sl_now_ns() + ANSWER_MS * MS;
    sl_wep_send(ep, &m);
}

static void ask(sl_owner *o, const sl_pull *p)
{
    sl_msg m = {.type = SL_MSG_LEASE_ASK};
    _Static_assert(sizeof(sl_key) == 16, "as encoded on every machine that runs this: little-endian");
    m.lease_ask = (sl_msg_lease_ask){.lease = p->id,
                                     .ms = p->lease_ms,
                                     .seed = p->source.seed,
                                     .keys = {(const uint8_t *)p->keys, (size_t)p->n * sizeof *p->keys}};
    sl_wep_send(o->ep, &m);
}

static void on_welcome(sl_decode *d, sl_owner *o, const sl_msg_peer_welcome *w)
{
    sl_err err = {0};
    if (o->state != OWNER_CONNECTING)
        return;
    sl_status st = sl_remote_arena_open(sl_wep_tp(o->ep), w, o->epoch, d->geo, &o->arena, &err);
    if (st != SL_OK) {
        drop(d, o, st, err.text);
        return;
    }
    o->state = OWNER_UP;
    o->hello_deadline_ns = UINT64_MAX;
    char text[200];
    sl_tp_ep_query(sl_wep_tp(o->ep), text, sizeof text);
    sl_log(SL_LOG_INFO, "decode", "owner_connected", "address=%s worker_id=%u pages=%ld %s", o->address,
           o->worker_id, (long)o->arena.n_pages, text);
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
        if (m->pages[i] >= o->arena.n_pages)
            return SL_ERR_CORRUPT;
    }
    p->lent = m->lent;
    p->ep_serial = sl_wep_serial(o->ep);
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
    sl_wep_send(o->ep, &m);
}

static void on_lease(sl_decode *d, sl_owner *o, const sl_msg_lease *m)
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
        drop(d, o, st, "its LEASE does not fit the question");
        return;
    }
    *at = p->next_there;
    if (st != SL_OK && m->n_pages)
        end_lease(o, m->lease);
    answer_ask(d, p, st);
}

/* ---- gets ---- */

static void finish_get(sl_decode *d, sl_owner *o, sl_pull_get *g)
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
    answer_get(d, g, SL_OK);
}

static void on_got(void *cookie, sl_status st)
{
    sl_pull_get *g = cookie;
    sl_owner *o = g->at;
    sl_decode *d = o->d;
    g->in_flight--;
    o->in_flight--;
    o->progress_ns = o->used_ns = sl_now_ns();
    if (st != SL_OK) {
        g->status = st;
        drop(d, o, SL_ERR_PEER, "a get failed");
        return;
    }
    if (o->state == OWNER_UP && !g->in_flight && g->all_posted)
        finish_get(d, o, g);
}

/* The next span of the get; false: all are posted. */
static bool next_span(const sl_decode *d, const sl_owner *o, sl_pull_get *g, sl_span *out)
{
    if (g->held.bytes) {
        *out = g->held;
        g->held.bytes = 0;
        return true;
    }
    if (g->whole) {
        if (g->at_page == g->n)
            return false;
        int64_t bytes = d->geo->page_bytes;
        int32_t i = g->at_page++;
        *out = (sl_span){.local = sl_arena_base(d->o.role.arena) + g->local[i] * bytes,
                         .remote = o->arena.base + (uint64_t)g->remote[i] * (uint64_t)bytes,
                         .bytes = bytes};
        return true;
    }
    for (;;) {
        if (g->walking && sl_pieces_next(&g->walk, out))
            return true;
        if (g->at_layer == d->geo->n_layers)
            return false;
        sl_pieces_init(&g->walk, &g->map, g->at_layer++, 0, g->n * SL_PAGE_TOKENS);
        g->walking = true;
    }
}

/* SL_INPROGRESS: all are posted, or the get was cancelled. */
static sl_status post_next(sl_decode *d, sl_owner *o, sl_pull_get *g)
{
    sl_span s;
    if (g->cancelled || !next_span(d, o, g, &s))
        return SL_INPROGRESS;
    int64_t n = s.bytes < LONGEST ? s.bytes : LONGEST;
    sl_status st = sl_tp_get(sl_wep_tp(o->ep), s.local, sl_worker_memory(d->worker), (size_t)n, s.remote,
                             o->arena.rkey, on_got, g);
    if (st != SL_OK) {
        g->held = s;
        return st;
    }
    g->held = (sl_span){.local = s.local + n, .remote = s.remote + (uint64_t)n, .bytes = s.bytes - n};
    g->began_ns = g->began_ns ? g->began_ns : sl_now_ns();
    g->bytes += (uint64_t)n;
    g->in_flight++;
    if (!o->in_flight++)
        o->progress_ns = sl_now_ns();
    return SL_OK;
}

static void pump(sl_decode *d, sl_owner *o)
{
    o->again = false;
    for (sl_pull_get *g = o->getting, *next; g && o->state == OWNER_UP; g = next) {
        next = g->next_there;
        sl_status st = g->all_posted ? SL_INPROGRESS : SL_OK;
        while (st == SL_OK && o->in_flight < WINDOW)
            st = post_next(d, o, g);
        if (st == SL_INPROGRESS) {
            g->all_posted = true;
            if (!g->in_flight)
                finish_get(d, o, g);
            continue;
        }
        o->again = st == SL_AGAIN;
        if (st != SL_OK && st != SL_AGAIN)
            drop(d, o, st, "cannot post a get");
        return; /* the window or the transport is full */
    }
}

static void begin_get(sl_decode *d, sl_owner *o, sl_pull_get *g)
{
    g->map = (sl_page_map){.local = d->geo,
                           .remote = &o->arena.geo,
                           .local_base = sl_arena_base(d->o.role.arena),
                           .remote_base = o->arena.base,
                           .local_n = sl_arena_pages(d->o.role.arena),
                           .remote_n = o->arena.n_pages,
                           .lpages = g->local,
                           .rpages = g->remote};
    g->whole = d->geo->layout == o->arena.geo.layout && d->geo->layout != SL_LAYOUT_LAYER_FIRST;
    sl_pull_get **at = &o->getting;
    while (*at)
        at = &(*at)->next_there;
    *at = g;
    pump(d, o);
}

/* ---- what the engine thread wants ---- */

void sl_owner_get(sl_decode *d, sl_pull_get *g)
{
    const sl_pull *lease = g->lease;
    sl_owner *o = find(d, &lease->source);
    if (!o || o->state != OWNER_UP || sl_wep_serial(o->ep) != lease->ep_serial) {
        answer_get(d, g, SL_ERR_PEER); /* the lease has ended with its connection */
        return;
    }
    g->at = o;
    begin_get(d, o, g);
}

void sl_owner_ask(sl_decode *d, sl_pull *p)
{
    sl_err err = {0};
    sl_owner *o = find_or_connect(d, &p->source, &err);
    if (!o) {
        sl_log(SL_LOG_WARN, "decode", "owner_lost", "address=%s worker_id=%u reason=\"%s\"",
               p->source.address, p->source.worker, err.text);
        answer_ask(d, p, SL_ERR_PEER);
        return;
    }
    p->began_ns = o->used_ns = sl_now_ns();
    sl_pull **at = &o->asking;
    while (*at)
        at = &(*at)->next_there;
    *at = p;
    if (o->state == OWNER_UP)
        ask(o, p);
}

static bool cancel_at(sl_decode *d, sl_owner *o, uint64_t id)
{
    for (sl_pull **at = &o->asking; *at; at = &(*at)->next_there) {
        sl_pull *p = *at;
        if (p->id != id)
            continue;
        *at = p->next_there;
        answer_ask(d, p, SL_ERR_CANCELLED);
        return true;
    }
    for (sl_pull_get *g = o->getting; g; g = g->next_there) {
        if (g->id != id)
            continue;
        g->cancelled = true;
        g->all_posted = true;
        if (!g->in_flight && o->state == OWNER_UP)
            finish_get(d, o, g);
        return true;
    }
    return false;
}

void sl_owner_cancel(sl_decode *d, uint64_t id)
{
    for (sl_owner *o = d->link.owners; o; o = o->next) {
        if (cancel_at(d, o, id))
            return;
    }
}

/* ---- events ---- */

void sl_owner_msg(sl_decode *d, sl_wep *ep, sl_wmsg *m)
{
    sl_owner *o = sl_wep_user(ep);
    switch (m->msg.type) {
    case SL_MSG_PEER_WELCOME:
        on_welcome(d, o, &m->msg.peer_welcome);
        break;
    case SL_MSG_REFUSE:
        drop(d, o, SL_ERR_REFUSED, m->msg.refuse.reason);
        break;
    case SL_MSG_LEASE:
        if (o->state == OWNER_UP) {
            on_lease(d, o, &m->msg.lease);
            break;
        }
        /* fallthrough */
    default:
        sl_counter_add(d->report.m.stale, 1);
        break;
    }
    sl_wmsg_free(m);
}

void sl_owner_failed(sl_decode *d, sl_wep *ep, sl_status st, const char *why)
{
    drop(d, sl_wep_user(ep), st, why);
}

void sl_owner_closed(sl_decode *d, sl_wep *ep)
{
    sl_owner *o = sl_wep_user(ep);
    for (sl_owner **at = &d->link.owners; *at; at = &(*at)->next) {
        if (*at == o) {
            *at = o->next;
            break;
        }
    }
    sl_tp_rkey_release(o->arena.rkey);
    answer_asks(d, o, SL_ERR_PEER);
    for (sl_pull_get *g; (g = o->getting);) { /* nothing writes into their pages any more */
        o->getting = g->next_there;
        answer_get(d, g, SL_ERR_PEER);
    }
    free(o);
}

void sl_owner_router_down(sl_decode *d, uint32_t router)
{
    for (sl_owner *o = d->link.owners; o; o = o->next) {
        if (o->router == router)
            drop(d, o, SL_ERR_PEER, "the session with the router that named it has ended");
    }
}

void sl_owner_free_all(sl_decode *d)
{
    while (d->link.owners) {
        sl_owner *o = d->link.owners;
        d->link.owners = o->next;
        free(o);
    }
}

/* The next time at which this connection has something to do. */
static uint64_t tick_one(sl_decode *d, sl_owner *o, uint64_t now)
{
    uint64_t stall = (d->o.stall_ms ? d->o.stall_ms : d->o.quarantine_ms) * MS,
             asked = o->state == OWNER_UP && o->asking ? o->asking->began_ns + ASK_MS * MS : UINT64_MAX;
    if (o->state == OWNER_CLOSING)
        return UINT64_MAX;
    if (o->getting)
        pump(d, o);
    if (now >= o->hello_deadline_ns)
        drop(d, o, SL_ERR_TIMEOUT, "no connection, or no answer to PEER_HELLO");
    else if (now >= asked)
        drop(d, o, SL_ERR_TIMEOUT, "no answer to LEASE_ASK");
    else if (o->in_flight && now > o->progress_ns && now - o->progress_ns > stall)
        drop(d, o, SL_ERR_TIMEOUT, "gets do not complete");
    else if (!o->asking && !o->getting && now > o->used_ns && now - o->used_ns > IDLE_MS * MS)
        drop(d, o, SL_ERR_TIMEOUT, "it was not used");
    if (o->state == OWNER_CLOSING)
        return UINT64_MAX;
    uint64_t due = o->again ? now + RETRY_MS * MS : o->in_flight ? o->progress_ns + stall + MS : asked;
    due = o->hello_deadline_ns < due ? o->hello_deadline_ns : due;
    return o->used_ns + IDLE_MS * MS + MS < due && !o->asking && !o->getting ? o->used_ns + IDLE_MS * MS + MS
                                                                             : due;
}

uint64_t sl_owner_tick(sl_decode *d, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_owner *o = d->link.owners; o; o = o->next) {
        uint64_t at = tick_one(d, o, now);
        due = at < due ? at : due;
    }
    return due;
}
