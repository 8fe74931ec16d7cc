/* See peer.h. */
#include "prefill/peer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prefill/path.h"

static const uint64_t MS = 1000000;

static sl_remote_self self(const sl_prefill *p)
{
    return (sl_remote_self){.worker = p->worker,
                            .hello = &p->role.hello,
                            .geo = p->geo,
                            .direct_pid = sl_path_needs_process(p) ? (uint32_t)getpid() : 0};
}

static sl_decode_peer *find(sl_prefill *p, uint32_t router, const sl_msg_prefill *m)
{
    for (sl_decode_peer *d = p->peers; d; d = d->next) {
        if (d->remote.worker_id == m->decode_worker &&
            sl_remote_is(&d->remote, router, m->decode_epoch, m->decode_addr))
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
    const sl_remote_self me = self(p);
    sl_remote to = {.router = router, .worker_id = m->decode_worker, .epoch = m->decode_epoch};
    memcpy(to.address, m->decode_addr, sizeof to.address);
    if (sl_remote_connect(&d->remote, &me, &to, d, err) != SL_OK) {
        free(d);
        return NULL;
    }
    d->next = p->peers;
    p->peers = d;
    return d;
}

void sl_peer_drop(sl_prefill *p, sl_decode_peer *d, sl_status st, const char *why)
{
    if (!sl_remote_drop(&d->remote))
        return;
    sl_log(SL_LOG_WARN, "prefill", "decode_lost", "address=%s worker_id=%u status=%s reason=\"%s\"",
           d->remote.address, d->remote.worker_id, sl_status_name(st), why);
    sl_ship_fail_peer(p, d, st, why);
}

void sl_peer_connected(sl_prefill *p, sl_wep *ep, sl_status st, const char *why)
{
    sl_decode_peer *d = sl_wep_user(ep);
    sl_err err = {0};
    if (d->remote.state >= SL_REMOTE_CLOSING)
        return;
    if (st != SL_OK) {
        sl_peer_drop(p, d, st, why);
        return;
    }
    const sl_remote_self me = self(p);
    st = sl_remote_greet(&d->remote, &me, &err);
    if (st != SL_OK)
        sl_peer_drop(p, d, st, err.text);
}

static void on_welcome(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w)
{
    sl_err err = {0};
    const sl_remote_self me = self(p);
    if (d->remote.state != SL_REMOTE_CONNECTING)
        return;
    sl_status st = sl_remote_welcome(&d->remote, &me, w, &err);
    st = st == SL_OK ? sl_path_choose(p, d, w, &err) : st;
    if (st != SL_OK) {
        sl_peer_drop(p, d, st, err.text);
        return;
    }
    sl_remote_up(&d->remote);
    char text[200];
    sl_tp_ep_query(sl_wep_tp(d->remote.ep), text, sizeof text);
    sl_log(SL_LOG_INFO, "prefill", "decode_connected", "address=%s worker_id=%u pages=%ld %s",
           d->remote.address, d->remote.worker_id, (long)d->remote.n_pages, text);
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
        sl_ship_pages_crc(p, d->remote.router, &m->msg.pages_crc);
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
    sl_remote_closed(&d->remote);
    sl_ship_peer_closed(p, d);
    d->next = p->closed_peers;
    p->closed_peers = d;
    if (!d->path || !d->path->close || d->path->close(p, d))
        sl_peer_unused(p, d);
}

void sl_peer_unused(sl_prefill *p, sl_decode_peer *d)
{
    SL_CHECK(d->remote.state == SL_REMOTE_CLOSED && unlink_from(&p->closed_peers, d), "peer in state %d",
             (int)d->remote.state);
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
        if (d->remote.state >= SL_REMOTE_CLOSING)
            continue;
        const char *late = sl_remote_late(&d->remote, now, stall);
        if (late)
            sl_peer_drop(p, d, SL_ERR_TIMEOUT, late);
        else if (!sl_worker_id(p->worker, d->remote.router) && !has_shipment(p, d))
            sl_peer_drop(p, d, SL_ERR_PEER,
                         "the router that named it is gone"); /* the last DRAINED has been sent */
        uint64_t at = sl_remote_due(&d->remote, stall);
        due = at < due ? at : due;
    }
    return due;
}
