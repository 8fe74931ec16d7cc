/*
 * The member table: the workers that have joined, and whether they are alive.
 *
 * A router that drains does not drain its workers: requests that wait still need them, and so does the next router.
 *
 * Liveness: a member that is silent for dead_after_ms, or whose endpoint broke, is dead. Its endpoint is closed by
 * force, which fences its puts, and every request on it is recovered. Time in which the loop itself did not run does
 * not count as silence of the members: sl_members_tick() is called every 20 ms, and measures its delay.
 *
 * A worker's heartbeat comes from its transport thread. LOAD also contains the time since its engine thread last began
 * an iteration, and since its checker and its copier began what they do. A worker of which one of these threads hangs is
 * treated like a dead one, and does not join again before the thread runs.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

static const uint64_t STALL_NS = 100 * SL_MS; /* a longer delay of the tick means that the loop did not run */
static const uint64_t HELLO_DEADLINE_NS = 10000 * SL_MS; /* a connection without HELLO is then closed */

/* Called for every request in every tick. An older member whose slot a newer one has taken, after 4,095 joins, is in the list. */
sl_member *sl_member_find(sl_router *r, uint32_t id)
{
    if (!id)
        return NULL;
    sl_member *slot = r->cluster.by_id[id % SL_MEMBER_SLOTS];
    if (slot && slot->id == id && slot->state != SL_MEMBER_DEAD)
        return slot;
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id == id && w->state != SL_MEMBER_DEAD)
            return w;
    }
    return NULL;
}

size_t sl_members_count(const sl_router *r, sl_role role)
{
    size_t n = 0;
    for (const sl_member *w = r->cluster.members; w; w = w->next)
        n += w->id && sl_role_does(w->role, role) && w->state == SL_MEMBER_READY;
    return n;
}

bool sl_router_ready(const sl_router *r)
{
    return !r->life.draining && sl_members_count(r, SL_ROLE_PREFILL) && sl_members_count(r, SL_ROLE_DECODE);
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
    w->place = SL_DIRECTORY_NONE;
    w->joined_ns = w->last_seen_ns = sl_now_ns();
    sl_copy_text(w->addr, sizeof w->addr, addr ? addr : "");
    sl_copy_text(w->name, sizeof w->name, "new");
    ep->user = w;
    w->next = r->cluster.members;
    r->cluster.members = w;
}

void sl_member_free(sl_member *w)
{
    for (sl_member **p = &w->r->cluster.members; *p; p = &(*p)->next) {
        if (*p == w) {
            *p = w->next;
            break;
        }
    }
    if (w->id && w->r->cluster.by_id[w->id % SL_MEMBER_SLOTS] == w)
        w->r->cluster.by_id[w->id % SL_MEMBER_SLOTS] = NULL;
    while (w->out_head) {
        sl_outmsg *o = w->out_head;
        w->out_head = o->next;
        free(o->data);
        free(o);
    }
    sl_keyset_destroy(w->prefix);
    sl_keyset_destroy(w->unsalted);
    free(w);
}

static size_t members(const sl_router *r, const sl_member *except)
{
    size_t n = 0;
    for (const sl_member *w = r->cluster.members; w; w = w->next)
        n += w != except && w->id && w->state != SL_MEMBER_DEAD;
    return n;
}

void sl_member_lost(sl_member *w, sl_status why, const char *reason)
{
    if (w->state == SL_MEMBER_DEAD)
        return;
    sl_router *r = w->r;
    bool member = w->id != 0, left = w->state == SL_MEMBER_DRAINING || w->load.group_broken;
    sl_ranks_lost(w);
    w->state = SL_MEMBER_DEAD;
    if (member) {
        int role = sl_router_stats_role(w->role);
        if (!left) {
            sl_counter_add(r->stats.workers.failures[role], 1);
            r->stats.workers.lost[role]++;
        }
        sl_log(left ? SL_LOG_INFO : SL_LOG_WARN, "router", left ? "worker_left" : "worker_lost",
               "worker=%s id=%u requests=%u status=%s reason=\"%s\"", w->name, w->id, w->account.requests,
               sl_status_name(why), reason ? reason : "");
    }
    if (w->ep)
        sl_tp_close(w->ep, SL_TP_CLOSE_FORCE);
    if (!member)
        return;
    if (!members(r, w)) {
        r->cluster.have_bits = false;
        if (!r->o.model.identity)
            r->cluster.have_identity = false;
    }
    sl_kv_on_lost(w);
    sl_directory_leave(r->directory, w->place);
    w->place = SL_DIRECTORY_NONE;
    sl_undrained_forget(r, w->id);
    sl_cache_member_lost(r, w->id);
    sl_requests_member_lost(r, w->id, !left);
    r->queue.dirty = true;
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
    if (l->draining)
        sl_ranks_drain(w);
    if (freed)
        w->blocked_until_ns = 0;
    w->r->queue.dirty |= freed;
    if (l->group_broken)
        sl_member_lost(w, SL_ERR_PEER, "its group is broken: another rank was lost");
    else if (sl_msg_load_hangs(l, w->r->o.link.dead_after_ms))
        sl_member_lost(w, SL_ERR_TIMEOUT, sl_msg_load_hangs(l, w->r->o.link.dead_after_ms));
}

void sl_member_message(sl_member *w, const sl_msg *m)
{
    if (m->type == SL_MSG_HELLO) {
        sl_member_hello(w, &m->hello);
        return;
    }
    if (!w->id) { /* other messages are ignored before HELLO */
        sl_counter_add(w->r->stats.workers.unknown, 1);
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
        break; /* it only updates last_seen_ns, which link.c did */
    case SL_MSG_KV_EVENTS:
        sl_kv_on_events(w, &m->kv_events);
        break;
    case SL_MSG_CACHE_PAGES:
    case SL_MSG_CACHE_JOB:
        sl_cache_on_message(w, m);
        break;
    case SL_MSG_LOADING:
        sl_prefetch_loading(w, &m->loading);
        break;
    case SL_MSG_DRAIN: /* the worker leaves by its own decision */
        sl_ranks_drain(w);
        break;
    case SL_MSG_JOINED:
        sl_traced_joined(w->r, w, &m->joined);
        break;
    case SL_MSG_RESERVED:
    case SL_MSG_PREFILLED:
    case SL_MSG_FAILED:
    case SL_MSG_TOKENS:
    case SL_MSG_SCORES:
    case SL_MSG_DONE:
    case SL_MSG_RETRACTED:
    case SL_MSG_DRAINED:
        sl_request_message(w, m);
        break;
    default:
        sl_counter_add(w->r->stats.workers.unknown, 1);
        break;
    }
}

void sl_members_tick(sl_router *r, uint64_t now)
{
    uint64_t beat = r->o.link.heartbeat_ms * SL_MS, late = now - r->cluster.last_tick_ns;
    bool ping = now - r->cluster.last_ping_ns >= beat;
    if (ping)
        r->cluster.last_ping_ns = now;
    sl_msg m = {.type = SL_MSG_PING};
    m.ping.stamp = now;
    for (sl_member *w = r->cluster.members, *next; w; w = next) {
        next = w->next;
        if (w->state == SL_MEMBER_DEAD)
            continue;
        /* the loop was held up: what they sent is read before silence counts again */
        if (late > beat + STALL_NS)
            w->last_seen_ns += late;
        if (!w->id) {
            if (now - w->joined_ns > HELLO_DEADLINE_NS)
                sl_member_lost(w, SL_ERR_TIMEOUT, "no HELLO");
            continue;
        }
        if (now > w->last_seen_ns && now - w->last_seen_ns > r->o.link.dead_after_ms * SL_MS) {
            sl_member_lost(w, SL_ERR_TIMEOUT, "silent for cluster.dead_after_ms");
            continue;
        }
        if (ping)
            sl_router_link_send(w, &m);
        sl_kv_tick(w, now);
    }
    sl_leaving_tick(r, now);
    sl_cache_tick(r, now);
    sl_directory_sweep(r->directory);
    sl_members_update_context(r);
}

void sl_members_update_context(sl_router *r)
{
    int32_t least = r->model.context;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id && w->state != SL_MEMBER_DEAD && w->max_context &&
            (!least || (int32_t)w->max_context < least))
            least = (int32_t)w->max_context;
    }
    r->cluster.max_context = least;
}

static void tell_all(sl_router *r, sl_msg_type type)
{
    sl_msg m = {.type = type};
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id && w->state != SL_MEMBER_DEAD)
            sl_router_link_send(w, &m);
    }
}

void sl_cluster_flush_cache(sl_router *r)
{
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->prefix)
            sl_keyset_clear(w->prefix);
        sl_directory_clear(r->directory, w->place, SL_MEDIUM_HOST);
    }
    tell_all(r, SL_MSG_FLUSH_CACHE);
}
