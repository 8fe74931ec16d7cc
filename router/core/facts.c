/*
 * The queries of core.h about the model, the cluster and the metrics: copies and counts of the router's state.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

const sl_served_model *sl_router_model(const sl_router *r)
{
    return &r->model;
}

const sl_router_opts *sl_router_options(const sl_router *r)
{
    return &r->o;
}

sl_router_stats *sl_router_get_stats(sl_router *r)
{
    return &r->stats;
}

const char *sl_router_tenant(const sl_router *r, const char *key, bool *admin)
{
    const sl_tenant *t = sl_tenants_of_key(&r->tenants, key);
    *admin = t && t->admin;
    return t ? t->name : NULL;
}

const char *sl_member_state_name(sl_member_state s)
{
    static const char *const names[] = {"joining", "waiting", "ready", "draining", "dead"};
    return (size_t)s < SL_COUNT(names) ? names[s] : "?";
}

sl_member_info *sl_cluster_members(const sl_router *r, size_t *n)
{
    size_t count = 0, k = 0;
    for (const sl_member *w = r->cluster.members; w; w = w->next)
        count += w->id != 0;
    *n = 0;
    sl_member_info *list = count ? calloc(count, sizeof *list) : NULL;
    if (!list)
        return NULL;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id)
            continue;
        list[k++] =
            (sl_member_info){.id = w->id,
                             .role = (sl_role)w->role,
                             .state = w->state,
                             .name = w->name,
                             .listen = w->listen,
                             .metrics = w->metrics,
                             .pid = w->pid,
                             .max_batch = w->max_batch,
                             .total_pages = w->total_pages,
                             .group = w->rank.group,
                             .rank = w->rank.rank,
                             .ranks = w->rank.ranks,
                             .placed = w->account.requests,
                             .known_pages = {sl_directory_count(r->directory, w->place, SL_MEDIUM_HOST),
                                             sl_directory_count(r->directory, w->place, SL_MEDIUM_DISK)},
                             .has_load = w->has_load,
                             .load = w->load};
    }
    *n = k;
    return list;
}

void sl_cluster_get_info(const sl_router *r, sl_cluster_info *out)
{
    *out = (sl_cluster_info){
        .ready = sl_router_ready(r),
        .draining = r->life.draining,
        .prefill = (uint32_t)sl_members_count(r, SL_ROLE_PREFILL),
        .decode = (uint32_t)sl_members_count(r, SL_ROLE_DECODE),
        .queued = r->queue.waiting,
        .active = r->requests.active,
        .max_context = r->cluster.max_context,
        .vocab = r->cluster.vocab ? (int32_t)r->cluster.vocab : sl_tokenizer_vocab_size(r->model.tok),
        .started_ns = r->life.started_ns,
        .started_unix = r->life.started_unix,
    };
}

const char *sl_cluster_health(const sl_cluster_info *c)
{
    return c->ready ? "ok" : c->draining ? "draining" : "waiting for workers";
}

/* ---- gauges that mirror tables ---- */

static void tick_members(sl_router *r)
{
    uint32_t n[SL_STATS_ROLES][2] = {{0}};
    uint64_t used = 0, total = 0;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id || w->state == SL_MEMBER_DEAD || w->state == SL_MEMBER_JOINING)
            continue; /* a rank that waits for its group counts as ready: its process is */
        n[sl_router_stats_role(w->role)][w->state == SL_MEMBER_DRAINING]++;
        if (sl_role_does(w->role, SL_ROLE_DECODE) && w->has_load) {
            uint32_t idle = w->load.free_pages + w->load.cached_pages;
            total += w->load.total_pages;
            used += w->load.total_pages > idle ? w->load.total_pages - idle : 0;
        }
    }
    for (int i = 0; i < SL_STATS_ROLES; i++) {
        sl_gauge_set(r->stats.workers.states[i][0], n[i][0]);
        sl_gauge_set(r->stats.workers.states[i][1], n[i][1]);
        sl_gauge_set(r->stats.workers.states[i][2], (double)r->stats.workers.lost[i]);
    }
    sl_gauge_set(r->stats.loop.vllm_usage, total ? (double)used / (double)total : 0);
}

static void tick_directory(sl_router *r)
{
    sl_router_stats *s = &r->stats;
    sl_directory_stats d;
    sl_directory_get_stats(r->directory, &d);
    for (int i = 0; i < SL_MEDIUM_COUNT; i++)
        sl_gauge_set(s->directory.held[i], (double)d.held[i]);
    sl_gauge_set(s->directory.bytes, (double)d.bytes);
    sl_counter_add(s->directory.lookups, d.lookups - s->directory.seen_lookups);
    sl_counter_add(s->directory.lookup_pages, d.lookup_pages - s->directory.seen_lookup_pages);
    sl_counter_add(s->directory.forgotten, d.forgotten - s->directory.seen_forgotten);
    s->directory.seen_lookups = d.lookups;
    s->directory.seen_lookup_pages = d.lookup_pages;
    s->directory.seen_forgotten = d.forgotten;
}

void sl_router_stats_tick(sl_router *r)
{
    sl_router_stats *s = &r->stats;
    double running = r->requests.active - r->queue.waiting;
    sl_gauge_set(s->loop.running, running);
    sl_gauge_set(s->loop.waiting, r->queue.waiting);
    sl_gauge_set(s->loop.vllm_running, running);
    sl_gauge_set(s->loop.vllm_waiting, r->queue.waiting);
    tick_members(r);
    tick_directory(r);
    sl_tp_stats t;
    sl_tp_get_stats(r->link.tp, &t);
    sl_gauge_set(s->link.peers, (double)t.endpoints);
    sl_counter_add(s->link.message_bytes, t.message_bytes_sent - s->link.seen_bytes);
    sl_counter_add(s->link.messages_ok, t.messages_sent - s->link.seen_sent);
    s->link.seen_bytes = t.message_bytes_sent;
    s->link.seen_sent = t.messages_sent;
}

/* Removes the families whose names begin so, in place. */
static void remove_families(char *text, const char *prefix)
{
    char *to = text;
    size_t n = strlen(prefix);
    for (const char *line = text, *end; *line; line = end) {
        end = strchr(line, '\n');
        end = end ? end + 1 : line + strlen(line);
        bool comment = !strncmp(line, "# HELP ", 7) || !strncmp(line, "# TYPE ", 7);
        if (!strncmp(comment ? line + 7 : line, prefix, n))
            continue;
        memmove(to, line, (size_t)(end - line));
        to += end - line;
    }
    *to = 0;
}

char *sl_router_metrics_text(sl_router *r, bool tenants)
{
    sl_router_stats_tick(r);
    char *text = sl_metrics_text(r->stats.m);
    if (text && !tenants)
        remove_families(text, "sluice_tenant_");
    return text;
}
