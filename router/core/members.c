/*
 * The worker table: who joined, whether they fit, whether they live.
 *
 * Handshake: HELLO is answered by WELCOME (with the id that names the worker from now on) or REFUSE with the
 * reason. The first worker defines what pages look like (fingerprint and geometry); everybody after it must
 * be equal, because rows of one would be read by another. When the last worker is gone the next one defines
 * anew. A worker that comes back (same name) replaces its former self, whose requests are recovered.
 *
 * A router that drains does not drain its workers: requests that wait still need them, and so does the next
 * router.
 *
 * Liveness: silent for dead_after_ms, or a broken endpoint, is dead: the endpoint is closed by force, which
 * fences its puts, and every request on it is recovered. A loop that was itself held up does not blame the
 * workers.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

static const uint64_t STALL_NS = 100 * SL_MS;            /* a tick later than that was a held-up loop */
static const uint64_t HELLO_DEADLINE_NS = 10000 * SL_MS; /* a connection that says nothing is closed */

sl_member *sl_member_find(sl_router *r, uint32_t id)
{
    if (!id)
        return NULL;
    for (sl_member *w = r->workers; w; w = w->next) {
        if (w->id == id && w->state != SL_MEMBER_DEAD)
            return w;
    }
    return NULL;
}

size_t sl_members_count(const sl_router *r, sl_role role)
{
    size_t n = 0;
    for (const sl_member *w = r->workers; w; w = w->next)
        n += w->id && w->role == role && w->state == SL_MEMBER_READY;
    return n;
}

bool sl_router_ready(const sl_router *r)
{
    return !r->draining && sl_members_count(r, SL_ROLE_PREFILL) && sl_members_count(r, SL_ROLE_DECODE);
}

void sl_member_accept(sl_router *r, sl_tp_ep *ep, const char *addr)
{
    sl_member *w = calloc(1, sizeof *w);
    if (!w) {
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
        return;
    }
    w->r = r;
    w->ep = ep;
    w->joined_ns = w->last_seen_ns = sl_now_ns();
    sl_copy_text(w->addr, sizeof w->addr, addr ? addr : "");
    sl_copy_text(w->name, sizeof w->name, "new");
    ep->user = w;
    w->next = r->workers;
    r->workers = w;
}

void sl_member_free(sl_member *w)
{
    for (sl_member **p = &w->r->workers; *p; p = &(*p)->next) {
        if (*p == w) {
            *p = w->next;
            break;
        }
    }
    while (w->out_head) {
        sl_outmsg *o = w->out_head;
        w->out_head = o->next;
        free(o->data);
        free(o);
    }
    sl_keyset_destroy(w->prefix);
    free(w);
}

static size_t members(const sl_router *r, const sl_member *except)
{
    size_t n = 0;
    for (const sl_member *w = r->workers; w; w = w->next)
        n += w != except && w->id && w->state != SL_MEMBER_DEAD;
    return n;
}

void sl_member_lost(sl_member *w, sl_status why, const char *reason)
{
    if (w->state == SL_MEMBER_DEAD)
        return;
    sl_router *r = w->r;
    bool member = w->id != 0, left = w->state == SL_MEMBER_DRAINING;
    w->state = SL_MEMBER_DEAD;
    if (member) {
        int role = w->role == SL_ROLE_DECODE;
        if (!left) {
            sl_counter_add(r->stats.worker_failures[role], 1);
            r->stats.lost_workers[role]++;
        }
        sl_log(left ? SL_LOG_INFO : SL_LOG_WARN, "router", left ? "worker_left" : "worker_lost",
               "worker=%s id=%u requests=%u status=%s reason=\"%s\"", w->name, w->id, w->placed,
               sl_status_name(why), reason ? reason : "");
    }
    if (w->ep)
        sl_tp_close(w->ep, SL_TP_CLOSE_FORCE);
    if (!member)
        return;
    if (!members(r, w))
        r->have_identity = false;
    sl_requests_member_lost(w);
    sl_place_all(r);
}

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
    if (!r->have_identity)
        return SL_OK;
    if (!sl_key_eq(r->fingerprint, h->id.fingerprint))
        return sl_fail(
            err, SL_ERR_REFUSED,
            "fingerprint %016lx%016lx differs from the cluster's %016lx%016lx: another checkpoint, config or "
            "numeric convention",
            h->id.fingerprint.hi, h->id.fingerprint.lo, r->fingerprint.hi, r->fingerprint.lo);
    if (r->geometry_len != h->id.geometry.len ||
        (r->geometry_len && memcmp(r->geometry, h->id.geometry.data, r->geometry_len)))
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
    if ((int32_t)h->vocab_size < sl_tokenizer_vocab_size(r->tok))
        return sl_fail(err, SL_ERR_REFUSED, "vocabulary of %u ids is smaller than the tokenizer's %d",
                       h->vocab_size, sl_tokenizer_vocab_size(r->tok));
    if (!h->max_context || !h->max_batch || (h->role == SL_ROLE_DECODE && !h->total_pages))
        return sl_fail(err, SL_ERR_REFUSED, "max_context, max_batch or total_pages is 0");
    return SL_OK;
}

static sl_status adopt_identity(sl_router *r, const sl_msg_hello *h)
{
    if (r->have_identity)
        return SL_OK;
    uint8_t *copy = malloc(h->id.geometry.len + 1);
    if (!copy)
        return SL_ERR_NO_MEMORY;
    if (h->id.geometry.len)
        memcpy(copy, h->id.geometry.data, h->id.geometry.len);
    free(r->geometry);
    r->geometry = copy;
    r->geometry_len = h->id.geometry.len;
    r->fingerprint = h->id.fingerprint;
    r->have_identity = true;
    r->cluster_vocab = h->vocab_size;
    return SL_OK;
}

/* The context everybody can serve. */
static void update_context(sl_router *r)
{
    int32_t least = r->model_context;
    for (const sl_member *w = r->workers; w; w = w->next) {
        if (w->id && w->state != SL_MEMBER_DEAD && w->max_context &&
            (!least || (int32_t)w->max_context < least))
            least = (int32_t)w->max_context;
    }
    r->max_context = least;
}

static void replace_former(sl_router *r, const sl_member *w, const char *name)
{
    for (sl_member *o = r->workers, *next; o; o = next) {
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

static void on_hello(sl_member *w, const sl_msg_hello *h)
{
    sl_router *r = w->r;
    if (w->id) { /* twice on one connection */
        sl_counter_add(r->stats.stale, 1);
        return;
    }
    sl_err err = {""};
    memcpy(w->name, h->name, sizeof w->name);
    sl_status st = check_hello(r, h, &err);
    if (!st) {
        replace_former(r, w, h->name); /* its going may free the identity */
        st = check_identity(r, h, &err);
    }
    if (!st && sl_keyset_create(h->total_pages ? 2 * (size_t)h->total_pages : 4096, &w->prefix))
        st = sl_fail(&err, SL_ERR_NO_MEMORY, "out of memory");
    if (!st && adopt_identity(r, h))
        st = sl_fail(&err, SL_ERR_NO_MEMORY, "out of memory");
    if (st) {
        refuse(w, st, err.text);
        return;
    }
    take_over(w, h);
    w->id = ++r->next_worker_id;
    w->state = SL_MEMBER_READY;
    w->progress_ns = sl_now_ns();
    update_context(r);
    sl_counter_add(r->stats.worker_joins[w->role == SL_ROLE_DECODE], 1);
    sl_msg m = {.type = SL_MSG_WELCOME};
    m.welcome.worker_id = w->id;
    m.welcome.router_epoch = r->epoch;
    m.welcome.heartbeat_ms = r->o.heartbeat_ms;
    m.welcome.dead_after_ms = r->o.dead_after_ms;
    sl_router_link_send(w, &m);
    sl_log(SL_LOG_INFO, "router", "worker_joined",
           "worker=%s id=%u role=%s listen=%s pid=%u max_batch=%u pages=%u context=%u", w->name, w->id,
           sl_role_name((sl_role)w->role), w->listen, w->pid, w->max_batch, w->total_pages, w->max_context);
    sl_place_all(r);
}

static void on_load(sl_member *w, const sl_msg_load *l)
{
    if (!w->has_load || l->tokens_done != w->load.tokens_done)
        w->progress_ns = sl_now_ns();
    bool freed = !w->has_load ||
                 l->free_pages + l->cached_pages > w->load.free_pages + w->load.cached_pages ||
                 l->waiting < w->load.waiting;
    w->load = *l;
    w->has_load = true;
    if (l->draining && w->state == SL_MEMBER_READY) {
        w->state = SL_MEMBER_DRAINING;
        sl_log(SL_LOG_INFO, "router", "worker_draining", "worker=%s id=%u", w->name, w->id);
    }
    if (freed)
        w->blocked_until_ns = 0;
    if (freed && w->r->queue_head)
        sl_place_all(w->r);
}

static bool read_keys(sl_blob b, sl_key **keys, size_t *n)
{
    sl_rd rd = sl_rd_init(b.data, b.len);
    *n = b.len / 16;
    *keys = *n ? malloc(*n * sizeof **keys) : NULL;
    if (*n && !*keys)
        return false;
    for (size_t i = 0; i < *n; i++) {
        (*keys)[i].lo = sl_rd_u64(&rd);
        (*keys)[i].hi = sl_rd_u64(&rd);
    }
    return true;
}

static void on_kv_events(sl_member *w, const sl_msg_kv_events *e)
{
    sl_router *r = w->r;
    sl_kv_batch b = {.worker = w->id, .cleared = e->cleared != 0};
    if (e->stored.len % 32 || e->removed.len % 16) {
        sl_counter_add(r->stats.malformed, 1);
        return;
    }
    if (w->kv_sequence && e->sequence != w->kv_sequence + 1)
        sl_log(SL_LOG_DEBUG, "router", "kv_events_gap", "worker=%s from=%lu to=%lu", w->name, w->kv_sequence,
               e->sequence);
    w->kv_sequence = e->sequence;
    if (!read_keys(e->stored, &b.stored, &b.n_stored) || !read_keys(e->removed, &b.removed, &b.n_removed)) {
        free(b.stored);
        return;
    }
    if (b.cleared)
        sl_keyset_clear(w->prefix);
    for (size_t i = 0; i < b.n_removed; i++)
        sl_keyset_remove(w->prefix, b.removed[i]);
    for (size_t i = 1; i < b.n_stored; i += 2)
        sl_keyset_add(w->prefix, b.stored[i]);
    b.sequence = ++r->kv_next;
    sl_kv_batch *slot = &r->kv[b.sequence % SL_KV_RING];
    free(slot->stored);
    free(slot->removed);
    *slot = b;
    if (r->on_kv)
        r->on_kv(r, slot);
}

void sl_member_message(sl_member *w, const sl_msg *m)
{
    if (m->type == SL_MSG_HELLO) {
        on_hello(w, &m->hello);
        return;
    }
    if (!w->id) { /* nothing else counts before HELLO */
        sl_counter_add(w->r->stats.unknown, 1);
        return;
    }
    switch (m->type) {
    case SL_MSG_LOAD:
        on_load(w, &m->load);
        break;
    case SL_MSG_PING: {
        sl_msg pong = {.type = SL_MSG_PONG};
        pong.ping = m->ping;
        sl_router_link_send(w, &pong);
        break;
    }
    case SL_MSG_PONG:
        break; /* last_seen is all it is for */
    case SL_MSG_KV_EVENTS:
        on_kv_events(w, &m->kv_events);
        break;
    case SL_MSG_DRAIN: /* the worker is leaving on its own account */
        if (w->state == SL_MEMBER_READY)
            w->state = SL_MEMBER_DRAINING;
        break;
    case SL_MSG_RESERVED:
    case SL_MSG_PREFILLED:
    case SL_MSG_FAILED:
    case SL_MSG_TOKENS:
    case SL_MSG_DONE:
    case SL_MSG_RETRACTED:
    case SL_MSG_DRAINED:
        sl_request_message(w, m);
        break;
    default:
        sl_counter_add(w->r->stats.unknown, 1);
        break;
    }
}

void sl_members_tick(sl_router *r, uint64_t now)
{
    uint64_t beat = r->o.heartbeat_ms * SL_MS, late = now - r->last_tick_ns;
    bool ping = now - r->last_ping_ns >= beat;
    if (ping)
        r->last_ping_ns = now;
    sl_msg m = {.type = SL_MSG_PING};
    m.ping.stamp = now;
    for (sl_member *w = r->workers, *next; w; w = next) {
        next = w->next;
        if (w->state == SL_MEMBER_DEAD)
            continue;
        if (late > beat + STALL_NS) /* we slept, not they: what they sent is read before this counts again */
            w->last_seen_ns += late;
        if (!w->id) {
            if (now - w->joined_ns > HELLO_DEADLINE_NS)
                sl_member_lost(w, SL_ERR_TIMEOUT, "no HELLO");
            continue;
        }
        if (now > w->last_seen_ns && now - w->last_seen_ns > r->o.dead_after_ms * SL_MS) {
            sl_member_lost(w, SL_ERR_TIMEOUT, "silent for cluster.dead_after_ms");
            next = r->workers; /* recovery may have changed the list */
            continue;
        }
        if (ping)
            sl_router_link_send(w, &m);
    }
    update_context(r);
}

static void tell_all(sl_router *r, sl_msg_type type)
{
    sl_msg m = {.type = type};
    for (sl_member *w = r->workers; w; w = w->next) {
        if (w->id && w->state != SL_MEMBER_DEAD)
            sl_router_link_send(w, &m);
    }
}

void sl_members_flush_cache(sl_router *r)
{
    for (sl_member *w = r->workers; w; w = w->next) {
        if (w->prefix)
            sl_keyset_clear(w->prefix);
    }
    tell_all(r, SL_MSG_FLUSH_CACHE);
}
