/*
 * The connections of prefill workers, which write into the arena and read pages ("writers"), and of other decode workers, which
 * only read ("readers"). Both read under leases (pages/lend.c). Transport thread.
 *
 * The answer to PEER_HELLO is either the address and the geometry of the arena with the memory key, or a refusal with
 * its reason. A writer has no key before that. To fence a writer, its connections are closed by force: after the last
 * one is closed, no put of that writer can reach the arena. A writer that may also write directly (worker/direct.h)
 * loses that right when its connection is closed. While such writes are in flight its peer stays in the list
 * without a connection and counts as connected.
 *
 * A writer without a connection cannot write either, but it may connect later to ship requests that have ended here.
 * Therefore the first PEER_HELLO after such a fence is refused, which makes the writer drop these requests.
 *
 * A reader says in PEER_HELLO that it is one. It gets the same answer, without the right to write directly. Leases belong to a
 * connection: DM_READER_GONE says once that it is closed, so that none of its gets reads the arena any more.
 *
 * Every router introduces its writers and readers itself: PEER_HELLO names the epoch of this worker's session with that router, and
 * the connection carries requests of that router only. When the session ends, its connections are closed and its epoch
 * is refused from then on; connections of other routers stay.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "decode/link/link_impl.h"
#include "worker/direct.h"

static const uint64_t MS = 1000000;
enum { HELLO_MS = 10000, LINGER_MS = 5, MAX_BANS = 64 };

typedef struct peer {
    sl_link_kind kind; /* first member */
    bool reader;       /* known from PEER_HELLO on */
    struct peer *next;
    sl_wep *ep;       /* NULL: closed, but its direct writes may not have ended */
    sl_writer writer; /* id 0: before PEER_HELLO */
    int slot;         /* entry of its right to write directly, -1: none */
    uint64_t hello_deadline_ns;
    char address[SL_TP_ADDRESS_MAX];
} peer;

struct sl_peers {
    sl_link_env *e;
    peer *list;
    sl_direct_host *direct; /* NULL: no writer writes directly */
    sl_writer bans[MAX_BANS];
    uint32_t n_bans;
};

static sl_status open_direct(sl_peers *s, sl_err *err)
{
    const sl_link_opts *o = &s->e->o;
    sl_err why = {0};
    if (!sl_shipping_shares_store(o->shipping))
        return SL_OK;
    sl_status st =
        sl_arena_fd(o->arena) < 0
            ? sl_fail(&why, SL_ERR_UNSUPPORTED, "the store is not shared memory")
            : sl_direct_host_create(sl_arena_fd(o->arena), sl_arena_bytes(o->arena), &s->direct, &why);
    if (st != SL_OK && o->shipping)
        return sl_fail(err, st, "cluster.shipping is %s, which is not possible: %s", o->shipping->name,
                       why.text);
    sl_log(SL_LOG_INFO, "decode", "shipping", "direct=%s reason=\"%s\"", st == SL_OK ? "offered" : "no",
           st == SL_OK ? "to writers of this host" : why.text);
    return SL_OK;
}

sl_status sl_peers_new(sl_link_env *e, sl_peers **out, sl_err *err)
{
    sl_peers *s = *out = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    s->e = e;
    return open_direct(s, err);
}

void sl_peers_free(sl_peers *s)
{
    if (!s)
        return;
    for (peer *w; (w = s->list);) {
        s->list = w->next;
        free(w);
    }
    sl_direct_host_destroy(s->direct);
    free(s);
}

void sl_peers_accepted(sl_peers *s, sl_wep *ep, const char *address)
{
    peer *w = calloc(1, sizeof *w);
    if (!w) {
        sl_wep_close(ep, SL_TP_CLOSE_FORCE);
        return;
    }
    w->kind = SL_LINK_PEER;
    w->ep = ep;
    w->slot = -1;
    w->hello_deadline_ns = sl_now_ns() + HELLO_MS * MS;
    strncpy(w->address, address, sizeof w->address - 1);
    w->next = s->list;
    s->list = w;
    sl_wep_set_user(ep, w);
}

static void tell(sl_peers *s, sl_fence *f, int kind)
{
    f->mail.kind = kind;
    sl_mailbox_post(s->e->o.inbox, &f->mail.link);
}

static void tell_new(sl_peers *s, sl_writer writer, int kind)
{
    sl_fence *f = calloc(1, sizeof *f);
    SL_CHECK(f, "out of memory");
    f->writer = writer;
    tell(s, f, kind);
}

static void refuse(sl_peers *s, peer *w, sl_status st, const char *why)
{
    sl_msg m = {.type = SL_MSG_REFUSE};
    memset(&m.refuse, 0, sizeof m.refuse);
    m.refuse.status = st;
    snprintf(m.refuse.reason, sizeof m.refuse.reason, "%.399s", why);
    sl_wep_send(w->ep, &m);
    atomic_fetch_add(&s->e->refused, 1);
    sl_log(SL_LOG_WARN, "decode", "writer_refused", "peer=%s status=%s reason=\"%s\"", w->address,
           sl_status_name(st), why);
    sl_wep_close(w->ep, SL_TP_CLOSE_FLUSH);
}

static bool lift_ban(sl_peers *s, sl_writer writer)
{
    for (uint32_t i = 0; i < s->n_bans; i++) {
        if (sl_writer_eq(s->bans[i], writer)) {
            s->bans[i] = s->bans[--s->n_bans];
            return true;
        }
    }
    return false;
}

/* Also packs the memory key that the answer carries. *router: the session of the router that introduces the writer. */
static sl_status check_hello(sl_peers *s, const sl_msg_peer_hello *h, uint32_t *router,
                             uint8_t key[SL_TP_RKEY_MAX], size_t *key_len, sl_err *err)
{
    sl_geometry g;
    if (h->version != SL_MSG_VERSION)
        return sl_fail(err, SL_ERR_REFUSED, "message version %u, this worker speaks %d", h->version,
                       SL_MSG_VERSION);
    if (strcmp(h->cluster_tag, s->e->o.hello->cluster_tag) != 0)
        return sl_fail(err, SL_ERR_REFUSED, "cluster.tag is \"%s\", this cluster is \"%s\"", h->cluster_tag,
                       s->e->o.hello->cluster_tag);
    if (!h->worker_id)
        return sl_fail(err, SL_ERR_REFUSED, "no worker id: it has not joined the router");
    SL_TRY(sl_geometry_read(h->id.geometry.data, h->id.geometry.len, &g, err));
    SL_TRY(sl_geometry_compatible(s->e->geo, &g, err));
    *router = sl_worker_session(sl_link_worker(s->e), h->decode_epoch);
    if (!*router)
        return sl_fail(err, SL_ERR_STALE, "the session with the router that introduces it has ended");
    if (!h->reader && lift_ban(s, (sl_writer){*router, h->worker_id}))
        return sl_fail(err, SL_ERR_STALE, "requests that this writer is still shipping have ended here");
    sl_status st = sl_tp_rkey_pack(sl_worker_memory(sl_link_worker(s->e)), key, SL_TP_RKEY_MAX, key_len);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "cannot pack the memory key");
}

/* Grants the right to write directly if the writer asks for it and it is possible; otherwise it uses the transport.
 * Returns the length of the descriptor, 0: not granted. */
static size_t offer_direct(sl_peers *s, peer *w, const sl_msg_peer_hello *h, uint8_t *desc)
{
    size_t n = 0;
    sl_err err = {0};
    if (!s->direct || !h->direct_pid)
        return 0;
    int slot = sl_direct_grant(s->direct, h->direct_pid, desc, &n, &err);
    if (slot < 0) {
        sl_log(SL_LOG_INFO, "decode", "not_direct", "peer=%s worker_id=%u reason=\"%s\"", w->address,
               h->worker_id, err.text);
        return 0;
    }
    w->slot = slot;
    return n;
}

static void on_hello(sl_peers *s, peer *w, const sl_msg_peer_hello *h)
{
    sl_err err = {0};
    if (w->writer.id)
        return;
    uint32_t router = 0;
    uint8_t key[SL_TP_RKEY_MAX];
    size_t key_len = 0;
    sl_status st = check_hello(s, h, &router, key, &key_len, &err);
    if (st != SL_OK) {
        refuse(s, w, st, err.text);
        return;
    }
    w->writer = (sl_writer){router, h->worker_id};
    w->reader = h->reader;
    w->hello_deadline_ns = UINT64_MAX;
    if (!w->reader)
        tell_new(s, w->writer, DM_CONNECTED);
    uint8_t desc[SL_DIRECT_DESC_MAX];
    size_t desc_len = offer_direct(s, w, h, desc);
    sl_msg m = {.type = SL_MSG_PEER_WELCOME};
    m.peer_welcome = (sl_msg_peer_welcome){.epoch = h->decode_epoch,
                                           .arena_addr = (uint64_t)(uintptr_t)sl_arena_base(s->e->o.arena),
                                           .arena_bytes = sl_arena_bytes(s->e->o.arena),
                                           .total_pages = (uint32_t)sl_arena_pages(s->e->o.arena),
                                           .geometry = {s->e->o.geometry->data, s->e->o.geometry->len},
                                           .rkey = {key, key_len},
                                           .direct = {desc, desc_len}};
    sl_wep_send(w->ep, &m);
    sl_log(SL_LOG_INFO, "decode", w->reader ? "reader_connected" : "writer_connected",
           "peer=%s worker_id=%u direct=%s", w->address, w->writer.id, desc_len ? "offered" : "no");
}

static bool of_reader(sl_msg_type type)
{
    return type == SL_MSG_LEASE_ASK || type == SL_MSG_LEASE_END || type == SL_MSG_LEASE_DAMAGED;
}

void sl_peers_msg(sl_peers *s, sl_wep *ep, sl_wmsg *m)
{
    peer *w = sl_wep_user(ep);
    switch (m->msg.type) {
    case SL_MSG_PEER_HELLO:
        on_hello(s, w, &m->msg.peer_hello);
        break;
    case SL_MSG_SCORES: /* of a ticket whose COMMIT follows; the router knows what it belongs to */
        if (!w->writer.id || w->reader)
            break;
        sl_worker_send_router(sl_link_worker(s->e), w->writer.router, &m->msg);
        sl_wmsg_free(m);
        return;
    case SL_MSG_COMMIT:
    case SL_MSG_DRAINED:
    case SL_MSG_PAGES_ASK:
    case SL_MSG_LEASE_ASK:
    case SL_MSG_LEASE_END:
    case SL_MSG_LEASE_DAMAGED:
        if (!w->writer.id || (w->reader && !of_reader(m->msg.type)))
            break;
        m->router = w->writer.router;
        m->worker_id = w->writer.id;
        m->mail.kind = DM_MSG;
        sl_mailbox_post(s->e->o.inbox, &m->mail.link);
        return;
    default:
        break;
    }
    if (m->msg.type != SL_MSG_PEER_HELLO)
        atomic_fetch_add(&s->e->stale, 1);
    sl_wmsg_free(m);
}

void sl_peers_failed(sl_peers *s, sl_wep *ep, sl_status st, const char *why)
{
    peer *w = sl_wep_user(ep);
    (void)s;
    /* a reader closes its connection when it does not use it; if it has leases, they are released (pages/lend.c) */
    sl_log(w->reader ? SL_LOG_INFO : SL_LOG_WARN, "decode", w->reader ? "reader_closed" : "writer_lost",
           "peer=%s worker_id=%u status=%s reason=\"%s\"", w->address, w->writer.id, sl_status_name(st), why);
    sl_wep_close(ep, SL_TP_CLOSE_FORCE);
}

static bool connected(const sl_peers *s, sl_writer writer)
{
    for (const peer *w = s->list; w; w = w->next) {
        if (!w->reader && sl_writer_eq(w->writer, writer))
            return true;
    }
    return false;
}

static void tell_reader_gone(sl_peers *s, uint32_t ep_serial)
{
    sl_reader_mail *m = calloc(1, sizeof *m);
    SL_CHECK(m, "out of memory");
    m->mail.kind = DM_READER_GONE;
    m->ep_serial = ep_serial;
    sl_mailbox_post(s->e->o.inbox, &m->mail.link);
}

/* No access of this peer can reach the arena any more. */
static void gone(sl_peers *s, peer *w)
{
    for (peer **at = &s->list; *at; at = &(*at)->next) {
        if (*at == w) {
            *at = w->next;
            break;
        }
    }
    sl_writer writer = w->writer;
    bool reader = w->reader;
    free(w);
    if (reader || !writer.id || connected(s, writer))
        return;
    tell_new(s, writer, DM_FENCED);
}

void sl_peers_closed(sl_peers *s, sl_wep *ep)
{
    peer *w = sl_wep_user(ep);
    w->ep = NULL;
    w->hello_deadline_ns = UINT64_MAX;
    if (w->writer.id)
        tell_reader_gone(s, sl_wep_serial(ep));
    if (w->slot < 0 || sl_direct_revoke(s->direct, w->slot)) {
        gone(s, w);
        return;
    }
    sl_log(SL_LOG_WARN, "decode", "writer_lingers",
           "peer=%s worker_id=%u reason=\"it has direct writes in flight\"", w->address, w->writer.id);
}

/* Where the session has ended, its epoch in PEER_HELLO is what refuses the writer. */
static void ban(sl_peers *s, sl_writer writer)
{
    lift_ban(s, writer); /* at most one entry for a writer */
    if (!sl_worker_epoch(sl_link_worker(s->e), writer.router))
        return;
    if (s->n_bans == MAX_BANS)
        s->bans[0] = s->bans[--s->n_bans];
    s->bans[s->n_bans++] = writer;
}

void sl_peers_fence(sl_peers *s, sl_fence *f)
{
    if (!connected(s, f->writer)) {
        ban(s, f->writer);
        tell(s, f, DM_FENCED);
        return;
    }
    sl_log(SL_LOG_WARN, "decode", "writer_fenced", "worker_id=%u reason=\"it did not drain in time\"",
           f->writer.id);
    for (peer *w = s->list; w; w = w->next) {
        if (!w->reader && sl_writer_eq(w->writer, f->writer) && w->ep)
            sl_wep_close(w->ep, SL_TP_CLOSE_FORCE);
    }
    free(f); /* gone() answers after the last connection is closed */
}

void sl_peers_fence_reader(sl_peers *s, uint32_t ep_serial)
{
    for (peer *w = s->list; w; w = w->next) {
        if (w->ep && sl_wep_serial(w->ep) == ep_serial) {
            sl_log(SL_LOG_WARN, "decode", "reader_fenced",
                   "worker_id=%u reason=\"it did not end its lease in time\"", w->writer.id);
            sl_wep_close(w->ep, SL_TP_CLOSE_FORCE);
        }
    }
}

void sl_peers_router_down(sl_peers *s, uint32_t router)
{
    for (uint32_t i = 0; i < s->n_bans; i++) {
        if (s->bans[i].router == router)
            s->bans[i--] = s->bans[--s->n_bans];
    }
    for (peer *w = s->list; w; w = w->next) {
        if (w->writer.router == router && w->ep)
            sl_wep_close(w->ep, SL_TP_CLOSE_FORCE);
    }
}

uint64_t sl_peers_tick(sl_peers *s, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (peer *w = s->list, *next; w; w = next) {
        next = w->next;
        if (!w->ep && sl_direct_revoke(s->direct, w->slot)) {
            gone(s, w);
            continue;
        }
        if (!w->ep)
            due = now + LINGER_MS * MS < due ? now + LINGER_MS * MS : due;
        if (!w->ep || sl_wep_closing(w->ep))
            continue;
        if (now >= w->hello_deadline_ns)
            sl_wep_close(w->ep, SL_TP_CLOSE_FORCE);
        else if (w->hello_deadline_ns < due)
            due = w->hello_deadline_ns;
    }
    return due;
}
