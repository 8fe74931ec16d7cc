/* See remote.h. */
#include "worker/remote.h"

#include <string.h>

static const uint64_t MS = 1000000;
enum { ANSWER_MS = 10000 }; /* until PEER_WELCOME, twice: from the call on, and from PEER_HELLO on */

bool sl_remote_is(const sl_remote *r, uint32_t router, uint64_t epoch, const char *address)
{
    return r->state < SL_REMOTE_CLOSING && r->router == router && r->epoch == epoch &&
           strcmp(r->address, address) == 0;
}

sl_status sl_remote_connect(sl_remote *r, const sl_remote_self *self, const sl_remote *to, void *user,
                            sl_err *err)
{
    *r = *to;
    r->hello_deadline_ns = sl_now_ns() + ANSWER_MS * MS;
    return sl_worker_connect(self->worker, r->address, user, &r->ep, err);
}

sl_status sl_remote_greet(sl_remote *r, const sl_remote_self *self, sl_err *err)
{
    sl_msg m = {.type = SL_MSG_PEER_HELLO};
    r->own_id = sl_worker_id(self->worker, r->router);
    if (!r->own_id)
        return sl_fail(err, SL_ERR_PEER, "the router that named it is gone");
    m.peer_hello.version = SL_MSG_VERSION;
    m.peer_hello.worker_id = r->own_id;
    m.peer_hello.epoch = sl_worker_epoch(self->worker, r->router);
    m.peer_hello.decode_epoch = r->epoch;
    memcpy(m.peer_hello.cluster_tag, self->hello->cluster_tag, sizeof m.peer_hello.cluster_tag);
    m.peer_hello.id = self->hello->id;
    m.peer_hello.reader = self->reader;
    m.peer_hello.direct_pid = self->direct_pid;
    r->hello_deadline_ns = sl_now_ns() + ANSWER_MS * MS;
    sl_wep_send(r->ep, &m);
    return SL_OK;
}

sl_status sl_remote_welcome(sl_remote *r, const sl_remote_self *self, const sl_msg_peer_welcome *w,
                            sl_err *err)
{
    if (w->epoch != r->epoch)
        return sl_fail(err, SL_ERR_STALE, "it has begun another session since");
    SL_TRY(sl_geometry_read(w->geometry.data, w->geometry.len, &r->geo, err));
    SL_TRY(sl_geometry_compatible(self->geo, &r->geo, err));
    if (!w->total_pages || w->arena_bytes / (uint64_t)r->geo.page_bytes < w->total_pages)
        return sl_fail(err, SL_ERR_CORRUPT, "%u pages do not fit into its arena of %lu bytes", w->total_pages,
                       w->arena_bytes);
    r->base = w->arena_addr;
    r->n_pages = w->total_pages;
    return sl_tp_rkey_unpack(sl_wep_tp(r->ep), w->rkey.data, w->rkey.len, &r->rkey, err);
}

void sl_remote_up(sl_remote *r)
{
    r->state = SL_REMOTE_UP;
    r->hello_deadline_ns = UINT64_MAX;
    r->progress_ns = sl_now_ns();
}

static void release_key(sl_remote *r)
{
    sl_tp_rkey_release(r->rkey);
    r->rkey = NULL;
}

bool sl_remote_drop(sl_remote *r)
{
    if (r->state >= SL_REMOTE_CLOSING)
        return false;
    r->state = SL_REMOTE_CLOSING;
    if (!r->in_flight)
        release_key(r);
    sl_wep_close(r->ep, SL_TP_CLOSE_FORCE);
    return true;
}

void sl_remote_closed(sl_remote *r)
{
    r->state = SL_REMOTE_CLOSED;
    r->ep = NULL;
    release_key(r);
}

void sl_remote_posted(sl_remote *r)
{
    if (!r->in_flight++)
        r->progress_ns = sl_now_ns();
}

void sl_remote_completed(sl_remote *r)
{
    r->in_flight--;
    r->progress_ns = sl_now_ns();
}

const char *sl_remote_late(const sl_remote *r, uint64_t now, uint64_t stall_ns)
{
    if (r->state >= SL_REMOTE_CLOSING)
        return NULL;
    if (now >= r->hello_deadline_ns)
        return "no connection, or no answer to PEER_HELLO";
    if (r->in_flight && now > r->progress_ns && now - r->progress_ns > stall_ns)
        return "posted operations do not complete";
    return NULL;
}

uint64_t sl_remote_due(const sl_remote *r, uint64_t stall_ns)
{
    if (r->state >= SL_REMOTE_CLOSING)
        return UINT64_MAX;
    return r->in_flight ? r->progress_ns + stall_ns + MS : r->hello_deadline_ns;
}
