/*
 * How a worker joins. HELLO is answered by WELCOME (with the id that names the worker from now on) or REFUSE with the
 * reason. The first worker defines what pages look like (fingerprint and geometry); every later one must be equal,
 * because other workers would read its rows. When the last worker is gone the next one defines anew. A worker that
 * comes back (same name) replaces its former self, whose requests are recovered.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

static void refuse(sl_member *w, sl_status st, const char *reason)
{
    sl_msg m = {.type = SL_MSG_REFUSE};
    m.refuse.status = st;
    sl_copy_text(m.refuse.reason, sizeof m.refuse.reason, reason);
    sl_router_link_send(w, &m);
    sl_counter_add(w->r->stats.refused, 1);
    sl_log(SL_LOG_WARN, "router", "worker_refused", "worker=%s peer=%s reason=\"%s\"", w->name, w->addr,
           reason);
    w->state = SL_MEMBER_DEAD;
    if (w->ep)
        sl_tp_close(w->ep, SL_TP_CLOSE_FLUSH);
}

/* Whether pages may move between this worker and the others. The first worker defines. */
static sl_status check_identity(sl_router *r, const sl_msg_hello *h, sl_err *err)
{
    if (!r->cluster.have_identity)
        return SL_OK;
    if (!sl_key_eq(r->cluster.fingerprint, h->id.fingerprint))
        return sl_fail(
            err, SL_ERR_REFUSED,
            "fingerprint %016lx%016lx differs from the cluster's %016lx%016lx: another checkpoint, config or "
            "numeric convention",
            h->id.fingerprint.hi, h->id.fingerprint.lo, r->cluster.fingerprint.hi, r->cluster.fingerprint.lo);
    if (r->cluster.geometry_len != h->id.geometry.len ||
        (r->cluster.geometry_len &&
         memcmp(r->cluster.geometry, h->id.geometry.data, r->cluster.geometry_len)))
        return sl_fail(err, SL_ERR_REFUSED,
                       "page geometry differs from the cluster's (layout, row format or layers)");
    return SL_OK;
}

static sl_status check_hello(sl_router *r, const sl_msg_hello *h, sl_err *err)
{
    if (h->version != SL_MSG_VERSION)
        return sl_fail(err, SL_ERR_REFUSED, "message version %u, this router speaks %d", h->version,
                       SL_MSG_VERSION);
    if (strcmp(h->cluster_tag, r->o.cluster_tag))
        return sl_fail(err, SL_ERR_REFUSED, "cluster.tag is '%s', this cluster is '%s'", h->cluster_tag,
                       r->o.cluster_tag);
    if (h->role != SL_ROLE_PREFILL && h->role != SL_ROLE_DECODE)
        return sl_fail(err, SL_ERR_REFUSED, "role %u is neither prefill nor decode", h->role);
    if (!h->name[0])
        return sl_fail(err, SL_ERR_REFUSED, "name is empty");
    if (strcmp(h->model, r->o.served_name))
        return sl_fail(err, SL_ERR_REFUSED, "model is '%s', this cluster serves '%s'", h->model,
                       r->o.served_name);
    if ((int32_t)h->vocab_size < sl_tokenizer_vocab_size(r->model.tok))
        return sl_fail(err, SL_ERR_REFUSED, "vocabulary of %u ids is smaller than the tokenizer's %d",
                       h->vocab_size, sl_tokenizer_vocab_size(r->model.tok));
    if (!h->max_context || !h->max_batch || (h->role == SL_ROLE_DECODE && !h->total_pages))
        return sl_fail(err, SL_ERR_REFUSED, "max_context, max_batch or total_pages is 0");
    return SL_OK;
}

static sl_status adopt_identity(sl_router *r, const sl_msg_hello *h)
{
    if (r->cluster.have_identity)
        return SL_OK;
    uint8_t *copy = malloc(h->id.geometry.len + 1);
    if (!copy)
        return SL_ERR_NO_MEMORY;
    if (h->id.geometry.len)
        memcpy(copy, h->id.geometry.data, h->id.geometry.len);
    free(r->cluster.geometry);
    r->cluster.geometry = copy;
    r->cluster.geometry_len = h->id.geometry.len;
    r->cluster.fingerprint = h->id.fingerprint;
    r->cluster.have_identity = true;
    r->cluster.vocab = h->vocab_size;
    return SL_OK;
}

static void replace_former(sl_router *r, const sl_member *w, const char *name)
{
    for (sl_member *o = r->cluster.members, *next; o; o = next) {
        next = o->next;
        if (o != w && o->id && o->state != SL_MEMBER_DEAD && !strcmp(o->name, name))
            sl_member_lost(o, SL_ERR_PEER, "replaced by a new process of the same name");
    }
}

static void take_over(sl_member *w, const sl_msg_hello *h)
{
    memcpy(w->name, h->name, sizeof w->name);
    memcpy(w->listen, h->listen, sizeof w->listen);
    memcpy(w->metrics, h->metrics, sizeof w->metrics);
    w->role = h->role;
    w->epoch = h->epoch;
    w->max_context = h->max_context;
    w->max_batch = h->max_batch;
    w->total_pages = h->total_pages;
    w->vocab_size = h->vocab_size;
    w->pid = h->pid;
}

/* Everything that must agree, in order: what the worker is, then what its pages are. */
static sl_status admit(sl_member *w, const sl_msg_hello *h, sl_err *err)
{
    sl_router *r = w->r;
    SL_TRY(check_hello(r, h, err));
    replace_former(r, w, h->name); /* the identity is free again when that was the last member */
    SL_TRY(check_identity(r, h, err));
    if (sl_keyset_create(h->total_pages ? 2 * (size_t)h->total_pages : 4096, &w->prefix) ||
        adopt_identity(r, h))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return SL_OK;
}

static void welcome(sl_member *w)
{
    sl_router *r = w->r;
    sl_msg m = {.type = SL_MSG_WELCOME};
    m.welcome.worker_id = w->id;
    m.welcome.router_epoch = r->cluster.epoch;
    m.welcome.heartbeat_ms = r->o.heartbeat_ms;
    m.welcome.dead_after_ms = r->o.dead_after_ms;
    sl_router_link_send(w, &m);
    sl_log(SL_LOG_INFO, "router", "worker_joined",
           "worker=%s id=%u role=%s listen=%s pid=%u max_batch=%u pages=%u context=%u", w->name, w->id,
           sl_role_name((sl_role)w->role), w->listen, w->pid, w->max_batch, w->total_pages, w->max_context);
}

void sl_member_hello(sl_member *w, const sl_msg_hello *h)
{
    sl_router *r = w->r;
    if (w->id) { /* twice on one connection */
        sl_counter_add(r->stats.stale, 1);
        return;
    }
    sl_err err = {""};
    memcpy(w->name, h->name, sizeof w->name);
    sl_status st = admit(w, h, &err);
    if (st) {
        refuse(w, st, err.text);
        return;
    }
    take_over(w, h);
    w->id = ++r->cluster.next_id;
    w->state = SL_MEMBER_READY;
    w->progress_ns = sl_now_ns();
    sl_members_update_context(r);
    sl_counter_add(r->stats.worker_joins[w->role == SL_ROLE_DECODE], 1);
    welcome(w);
    r->queue.dirty = true;
}
