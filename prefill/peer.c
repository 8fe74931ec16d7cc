/* See peer.h. */
#include "prefill/peer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prefill/prefill_impl.h"
#include "worker/remote_arena.h"

static const uint64_t MS = 1000000;
enum { HELLO_ANSWER_MS = 10000 };

static sl_decode_peer *find(sl_prefill *p, uint32_t router, const sl_msg_prefill *m)
{
    for (sl_decode_peer *d = p->peers; d; d = d->next) {
        if (d->state < PEER_CLOSING && d->router == router && d->epoch == m->decode_epoch &&
            d->worker_id == m->decode_worker && strcmp(d->address, m->decode_addr) == 0)
            return d;
    }
    return NULL;
}

sl_decode_peer *sl_peer_get(sl_prefill *p, uint32_t router, const sl_msg_prefill *m, sl_err *err)
{
    sl_decode_peer *d = find(p, router, m);
    if (d)
        return d;
    d = calloc(1, sizeof *d);
    if (!d) {
        sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    memcpy(d->address, m->decode_addr, sizeof d->address);
    d->router = router;
    d->worker_id = m->decode_worker;
    d->epoch = m->decode_epoch;
    d->hello_deadline_ns = UINT64_MAX;
    if (sl_worker_connect(p->worker, d->address, d, &d->ep, err) != SL_OK) {
        free(d);
        return NULL;
    }
    d->next = p->peers;
    p->peers = d;
    return d;
}

/* Releases the key, unless operations use it; then this is called again when the close has cancelled them. */
static void release_key(sl_decode_peer *d)
{
    sl_tp_rkey_release(d->rkey);
    d->rkey = NULL;
}

void sl_peer_drop(sl_prefill *p, sl_decode_peer *d, sl_status st, const char *why)
{
    if (d->state >= PEER_CLOSING)
        return;
    d->state = PEER_CLOSING;
    sl_log(SL_LOG_WARN, "prefill", "decode_lost", "address=%s worker_id=%u status=%s reason=\"%s\"",
           d->address, d->worker_id, sl_status_name(st), why);
    if (!d->in_flight)
        release_key(d);
    sl_wep_close(d->ep, SL_TP_CLOSE_FORCE);
    sl_ship_fail_peer(p, d, st, why);
}

void sl_peer_connected(sl_prefill *p, sl_wep *ep, sl_status st, const char *why)
{
    sl_decode_peer *d = sl_wep_user(ep);
    if (d->state >= PEER_CLOSING)
        return;
    if (st != SL_OK) {
        sl_peer_drop(p, d, st, why);
        return;
    }
    d->own_id = sl_worker_id(p->worker, d->router);
    if (!d->own_id) {
        sl_peer_drop(p, d, SL_ERR_PEER, "the router that introduces it is gone");
        return;
    }
    sl_msg m = {.type = SL_MSG_PEER_HELLO};
    m.peer_hello.version = SL_MSG_VERSION;
    m.peer_hello.worker_id = d->own_id;
    m.peer_hello.epoch = sl_worker_epoch(p->worker, d->router);
    m.peer_hello.decode_epoch = d->epoch;
    memcpy(m.peer_hello.cluster_tag, p->role.hello.cluster_tag, sizeof m.peer_hello.cluster_tag);
    m.peer_hello.id = p->role.hello.id;
    m.peer_hello.direct_pid = sl_path_needs_process(p) ? (uint32_t)getpid() : 0;
    d->hello_deadline_ns = sl_now_ns() + HELLO_ANSWER_MS * MS;
    sl_wep_send(ep, &m);
}

static sl_status adopt(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err)
{
    sl_remote_arena arena;
    SL_TRY(sl_remote_arena_open(sl_wep_tp(d->ep), w, d->epoch, p->geo, &arena, err));
    d->geo = arena.geo;
    d->rkey = arena.rkey;
    d->base = arena.base;
    SL_TRY(sl_path_choose(p, d, w, err));
    d->n_pages = arena.n_pages;
    d->state = PEER_UP;
    d->hello_deadline_ns = UINT64_MAX;
    d->progress_ns = sl_now_ns();
    return SL_OK;
}

static void on_welcome(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w)
{
    sl_err err = {0};
    if (d->state != PEER_CONNECTING)
        return;
    sl_status st = adopt(p, d, w, &err);
    if (st != SL_OK) {
        sl_peer_drop(p, d, st, err.text);
        return;
    }
    char text[200];
    sl_tp_ep_query(sl_wep_tp(d->ep), text, sizeof text);
    sl_log(SL_LOG_INFO, "prefill", "decode_connected", "address=%s worker_id=%u pages=%ld %s", d->address,
           d->worker_id, (long)d->n_pages, text);
    sl_ship_peer_up(p, d);
}

void sl_peer_msg(sl_prefill *p, sl_wep *ep, sl_wmsg *m)
{
    sl_decode_peer *d = sl_wep_user(ep);
    switch (m->msg.type) {
    case SL_MSG_PEER_WELCOME:
        on_welcome(p, d, &m->msg.peer_welcome);
        break;
    case SL_MSG_REFUSE:
        sl_peer_drop(p, d, SL_ERR_REFUSED, m->msg.refuse.reason);
        break;
    case SL_MSG_PAGES_CRC:
        sl_ship_pages_crc(p, d->router, &m->msg.pages_crc);
        break;
    case SL_MSG_LEASE:
        sl_ship_leased(p, d, &m->msg.lease);
        break;
    default:
        sl_counter_add(p->c.stale, 1);
        break;
    }
    sl_wmsg_free(m);
}

void sl_peer_failed(sl_prefill *p, sl_wep *ep, sl_status st, const char *why)
{
    sl_peer_drop(p, sl_wep_user(ep), st, why);
}

/* Removes d from the list; true if it was there. */
static bool unlink_from(sl_decode_peer **list, sl_decode_peer *d)
{
    for (sl_decode_peer **at = list; *at; at = &(*at)->next) {
        if (*at == d) {
            *at = d->next;
            return true;
        }
    }
    return false;
}

void sl_peer_closed(sl_prefill *p, sl_wep *ep)
{
    sl_decode_peer *d = sl_wep_user(ep);
    unlink_from(&p->peers, d);
    d->state = PEER_CLOSED;
    d->ep = NULL;
    release_key(d);
    sl_ship_peer_closed(p, d);
    d->next = p->closed_peers;
    p->closed_peers = d;
    if (!d->path || !d->path->close || d->path->close(p, d))
        sl_peer_unused(p, d);
}

void sl_peer_unused(sl_prefill *p, sl_decode_peer *d)
{
    SL_CHECK(d->state == PEER_CLOSED && unlink_from(&p->closed_peers, d), "peer in state %d", d->state);
    free(d);
}

static void free_list(sl_decode_peer **list)
{
    while (*list) {
        sl_decode_peer *d = *list;
        *list = d->next;
        free(d);
    }
}

void sl_peer_free_all(sl_prefill *p)
{
    free_list(&p->peers);
    free_list(&p->closed_peers);
}

static bool has_shipment(const sl_prefill *p, const sl_decode_peer *d)
{
    for (const sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->ship.peer == d && j->ship.state != SHIP_OVER)
            return true;
    }
    return false;
}

uint64_t sl_peer_tick(sl_prefill *p, uint64_t now)
{
    uint64_t due = UINT64_MAX, stall = p->o.drain_ms * MS;
    for (sl_decode_peer *d = p->peers, *next; d; d = next) {
        next = d->next;
        if (d->state >= PEER_CLOSING)
            continue;
        if (now >= d->hello_deadline_ns) {
            sl_peer_drop(p, d, SL_ERR_TIMEOUT, "no answer to PEER_HELLO");
            continue;
        }
        if (d->in_flight && now - d->progress_ns > stall && now > d->progress_ns) {
            sl_peer_drop(p, d, SL_ERR_TIMEOUT, "posted operations do not complete");
            continue;
        }
        if (!sl_worker_id(p->worker, d->router) && !has_shipment(p, d)) { /* the last DRAINED has been sent */
            sl_peer_drop(p, d, SL_ERR_PEER, "the router that introduced it is gone");
            continue;
        }
        uint64_t at = d->in_flight ? d->progress_ns + stall + MS : d->hello_deadline_ns;
        due = at < due ? at : due;
    }
    return due;
}
