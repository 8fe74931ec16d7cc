/*
 * How a worker joins. The router answers HELLO by WELCOME, with the id of the worker, or by REFUSE, with the reason.
 *
 * The identity that workers must have (fingerprint and page geometry, without the layout) comes from the router's own
 * configuration and checkpoint. A router without it (tests, benchmarks, a router without weights) takes the identity of
 * the first worker, and keeps it until the last worker has left.
 *
 * A name belongs to one process. Everything else is checked before the name. A living holder of a name is never
 * replaced by another process: the other process is refused and may try again, because the holder may be its
 * predecessor whose loss has not been noticed yet. Only another connection of the same process (the same instance)
 * replaces the former connection at once.
 */
#include <stdio.h>
#include <string.h>

#include "router/core/core_impl.h"

/* retry: the same HELLO may be accepted later. */
static void refuse(sl_member *w, sl_status st, const char *reason, bool retry)
{
    sl_msg m = {.type = SL_MSG_REFUSE};
    m.refuse.status = st;
    m.refuse.retry = retry;
    sl_copy_text(m.refuse.reason, sizeof m.refuse.reason, reason);
    sl_router_link_send(w, &m);
    sl_counter_add(w->r->stats.workers.refused, 1);
    sl_log(SL_LOG_WARN, "router", "worker_refused", "worker=%s peer=%s reason=\"%s\"", w->name, w->addr,
           reason);
    w->state = SL_MEMBER_DEAD;
    if (w->ep)
        sl_tp_close(w->ep, SL_TP_CLOSE_FLUSH);
}

/* bits: as in sl_msg_hello. */
static void write_bits(uint32_t bits, char *out, size_t cap)
{
    if (bits)
        snprintf(out, cap, "GPUs of compute capability %u.%u", bits / 10, bits % 10);
    else
        snprintf(out, cap, "the CPU");
}

/* Checks that pages may move between this worker and the others. *theirs: its geometry. */
static sl_status check_identity(sl_router *r, const sl_msg_hello *h, sl_geometry *theirs, sl_err *err)
{
    const sl_cluster *c = &r->cluster;
    sl_err why = {""};
    if (c->have_identity && !sl_key_eq(c->fingerprint, h->id.fingerprint))
        return sl_fail(
            err, SL_ERR_REFUSED,
            "fingerprint %016lx%016lx differs from the cluster's %016lx%016lx: another checkpoint, config or "
            "numeric convention",
            h->id.fingerprint.hi, h->id.fingerprint.lo, c->fingerprint.hi, c->fingerprint.lo);
    if (c->have_bits && c->bits != h->bits) {
        char theirs_are[48], ours_are[48];
        write_bits(h->bits, theirs_are, sizeof theirs_are);
        write_bits(c->bits, ours_are, sizeof ours_are);
        return sl_fail(
            err, SL_ERR_REFUSED,
            "its rows have the bits of %s, those of the cluster the bits of %s: the same prompt would have "
            "other tokens",
            theirs_are, ours_are);
    }
    if (sl_geometry_read(h->id.geometry.data, h->id.geometry.len, theirs, &why) ||
        (c->have_identity && sl_geometry_compatible(&c->geometry, theirs, &why)))
        return sl_fail(err, SL_ERR_REFUSED, "page geometry differs from the cluster's: %s", why.text);
    return SL_OK;
}

sl_status sl_cluster_init(sl_router *r, sl_err *err)
{
    const sl_identity *id = r->o.model.identity;
    if (!id)
        return SL_OK;
    SL_TRY(sl_geometry_read(id->geometry.data, id->geometry.len, &r->cluster.geometry, err));
    r->cluster.fingerprint = id->fingerprint;
    r->cluster.have_identity = true;
    return SL_OK;
}

static sl_status check_hello(sl_router *r, const sl_msg_hello *h, sl_err *err)
{
    if (h->version != SL_MSG_VERSION)
        return sl_fail(err, SL_ERR_REFUSED, "message version %u, this router speaks %d", h->version,
                       SL_MSG_VERSION);
    if (strcmp(h->cluster_tag, r->o.link.cluster_tag))
        return sl_fail(err, SL_ERR_REFUSED, "cluster.tag is '%s', this cluster is '%s'", h->cluster_tag,
                       r->o.link.cluster_tag);
    if (h->role == SL_ROLE_ROUTER || h->role > SL_ROLE_BOTH)
        return sl_fail(err, SL_ERR_REFUSED, "role %u is neither prefill nor decode nor both", h->role);
    if (!h->name[0])
        return sl_fail(err, SL_ERR_REFUSED, "name is empty");
    if (strcmp(h->model, r->o.model.served_name))
        return sl_fail(err, SL_ERR_REFUSED, "model is '%s', this cluster serves '%s'", h->model,
                       r->o.model.served_name);
    if ((int32_t)h->vocab_size < sl_tokenizer_vocab_size(r->model.tok))
        return sl_fail(err, SL_ERR_REFUSED, "vocabulary of %u ids is smaller than the tokenizer's %d",
                       h->vocab_size, sl_tokenizer_vocab_size(r->model.tok));
    if (!h->max_context || !h->max_batch || (sl_role_does(h->role, SL_ROLE_DECODE) && !h->total_pages))
        return sl_fail(err, SL_ERR_REFUSED, "max_context, max_batch or total_pages is 0");
    return SL_OK;
}

static sl_member *holder_of(sl_router *r, const sl_member *w, const char *name)
{
    for (sl_member *o = r->cluster.members; o; o = o->next) {
        if (o != w && o->id && o->state != SL_MEMBER_DEAD && !strcmp(o->name, name))
            return o;
    }
    return NULL;
}

/* Checks that the name is free. A former connection of the same process that holds the name is ended. */
static sl_status check_name(sl_router *r, const sl_member *w, const sl_msg_hello *h, sl_err *err)
{
    sl_member *o = holder_of(r, w, h->name);
    if (!o)
        return SL_OK;
    if (o->instance == h->instance) {
        sl_member_lost(o, SL_ERR_PEER, "the same process has connected again");
        return SL_OK;
    }
    uint64_t now = sl_now_ns(), silent = now > o->last_seen_ns ? now - o->last_seen_ns : 0;
    return sl_fail(
        err, SL_ERR_REFUSED,
        "name %s is held by a living worker: pid %u on host %s, heard %llu ms ago; start this one with "
        "another --index, or stop that one",
        h->name, o->pid, o->host, (unsigned long long)(silent / SL_MS));
}

static void take_over(sl_member *w, const sl_msg_hello *h)
{
    memcpy(w->name, h->name, sizeof w->name);
    memcpy(w->listen, h->listen, sizeof w->listen);
    memcpy(w->metrics, h->metrics, sizeof w->metrics);
    memcpy(w->host, h->host, sizeof w->host);
    w->instance = h->instance;
    w->role = h->role;
    w->epoch = h->epoch;
    w->max_context = h->max_context;
    w->max_batch = h->max_batch;
    w->total_pages = h->total_pages;
    w->vocab_size = h->vocab_size;
    w->pid = h->pid;
    w->rank.group = h->group;
    w->rank.rank = h->rank;
    w->rank.ranks = h->ranks;
}

/*
 * Checks in this order: the facts about the worker, the identity of its pages, and that its name is free. *retry: it
 * may be accepted later.
 */
static sl_status admit(sl_member *w, const sl_msg_hello *h, bool *retry, sl_err *err)
{
    sl_router *r = w->r;
    sl_geometry theirs;
    SL_TRY(check_hello(r, h, err));
    SL_TRY(check_identity(r, h, &theirs, err));
    *retry = true;
    if (h->role == SL_ROLE_PREFILL &&
        sl_keyset_create(h->total_pages ? 2 * (size_t)h->total_pages : 4096, &w->prefix))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(check_name(r, w, h, err));
    SL_TRY(sl_ranks_check(r, w, h, err));
    if (!r->cluster.have_identity) {
        r->cluster.geometry = theirs;
        r->cluster.fingerprint = h->id.fingerprint;
        r->cluster.have_identity = true;
        r->cluster.vocab = 0;
    }
    r->cluster.bits = h->bits;
    r->cluster.have_bits = true;
    if (!r->cluster.vocab)
        r->cluster.vocab = h->vocab_size;
    return SL_OK;
}

static void welcome(sl_member *w)
{
    sl_router *r = w->r;
    sl_msg m = {.type = SL_MSG_WELCOME};
    m.welcome.worker_id = w->id;
    m.welcome.router_epoch = r->cluster.epoch;
    m.welcome.heartbeat_ms = r->o.link.heartbeat_ms;
    m.welcome.dead_after_ms = r->o.link.dead_after_ms;
    sl_router_link_send(w, &m);
    sl_log(SL_LOG_INFO, "router", "worker_joined",
           "worker=%s id=%u role=%s listen=%s host=%s pid=%u max_batch=%u pages=%u context=%u", w->name,
           w->id, sl_role_name((sl_role)w->role), w->listen, w->host, w->pid, w->max_batch, w->total_pages,
           w->max_context);
}

void sl_member_hello(sl_member *w, const sl_msg_hello *h)
{
    sl_router *r = w->r;
    if (w->id) { /* twice on one connection */
        sl_counter_add(r->stats.workers.stale, 1);
        return;
    }
    sl_err err = {""};
    memcpy(w->name, h->name, sizeof w->name);
    bool retry = false;
    sl_status st = admit(w, h, &retry, &err);
    if (st) {
        refuse(w, st, err.text, retry);
        return;
    }
    take_over(w, h);
    if (sl_role_does(w->role, SL_ROLE_DECODE))
        w->place = sl_directory_join(r->directory);
    w->id = ++r->cluster.next_id;
    r->cluster.by_id[w->id % SL_MEMBER_SLOTS] = w;
    w->state = SL_MEMBER_READY;
    sl_ranks_joined(w);
    w->progress_ns = sl_now_ns();
    sl_members_update_context(r);
    sl_counter_add(r->stats.workers.joins[sl_router_stats_role(w->role)], 1);
    welcome(w);
    r->queue.dirty = true;
}
