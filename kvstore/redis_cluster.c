/*
 * Which server of a Redis Cluster has which key. The map of slots comes from CLUSTER NODES, is corrected by each MOVED, and is
 * asked for again after a MOVED or when a server is lost. A server that is no longer listed is not connected again. Without
 * a cluster the map stays empty, and the configured server has every key.
 *
 * A server could name any address, and the worker would connect to it from inside its network and offer it the password. So only
 * servers are used that the configuration names, by kvstore.redis.address or kvstore.redis.nodes. Slots of others are misses.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/redis_impl.h"

int32_t sl_redis_server_of(const sl_redis_tier *t, int slot)
{
    return t->clustered && t->slots[slot] >= 0 ? t->slots[slot] : 0;
}

static bool same_address(const sl_redis_address *a, const sl_redis_address *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

static int32_t find_server(const sl_redis_tier *t, const sl_redis_address *at)
{
    for (int32_t i = 0; i < t->n_servers; i++)
        if (same_address(&t->servers[i].conn->at, at))
            return i;
    return -1;
}

/* A place that a new server can have: a new one, or that of a server that has left the cluster and has neither a connection nor
 * commands. Servers come and go with new addresses where an orchestrator replaces them. -1: there is none. */
static int32_t free_place(sl_redis_tier *t)
{
    if (t->n_servers < SL_REDIS_NODES)
        return t->n_servers++;
    for (int32_t i = 1; i < t->n_servers; i++) {
        const sl_redis_server *s = &t->servers[i];
        if (s->wanted || s->conn->phase != SL_REDIS_DOWN || s->sent.head || s->held.head)
            continue;
        for (int slot = 0; slot < SL_REDIS_SLOTS; slot++)
            if (t->slots[slot] == i)
                t->slots[slot] = -1;
        sl_redis_conn_free(s->conn);
        return i;
    }
    return -1;
}

int32_t sl_redis_server_add(sl_redis_tier *t, const sl_redis_address *at)
{
    int32_t i = find_server(t, at);
    sl_redis_conn *conn = i < 0 ? calloc(1, sizeof *conn) : NULL;
    if (i >= 0 || !conn)
        return i;
    i = free_place(t);
    if (i < 0) {
        free(conn);
        return -1;
    }
    sl_redis_server *s = &t->servers[i];
    *s = (sl_redis_server){.tier = t, .wanted = true, .conn = conn};
    s->conn->at = *at;
    s->conn->owner = s;
    s->conn->answer = sl_redis_on_answer;
    s->conn->answer_max = SL_PAGE_RECORD_BYTES + t->o.page_bytes + SL_REDIS_TEXT_MAX;
    sl_list_init(&s->sent);
    sl_list_init(&s->held);
    return i;
}

/* An answer without a host means the host that answered. */
static sl_redis_address complete_address(const sl_redis_tier *t, int32_t server, const sl_redis_address *at)
{
    sl_redis_address full = *at;
    if (!full.host[0])
        snprintf(full.host, sizeof full.host, "%s", t->servers[server].conn->at.host);
    return full;
}

static void note_foreign(sl_redis_tier *t, const sl_redis_address *at)
{
    char text[SL_REDIS_HOST_BYTES + 16], shown[sizeof t->foreign];
    uint64_t now = sl_now_ns();
    size_t n = strlen(sl_redis_at_text(at, text));
    n = n < sizeof shown - 1 ? n : sizeof shown - 1;
    for (size_t i = 0; i < n; i++)
        shown[i] = text[i] > ' ' && text[i] < 127 && text[i] != '"' && text[i] != '\\' ? text[i] : '?';
    shown[n] = '\0';
    if (!t->foreign_ns || now - t->foreign_ns > 10000000000ull)
        sl_log(
            SL_LOG_WARN, "tier", "redis_foreign",
            "server=\"%s\" effect=\"its keys are misses\" advice=\"add it to kvstore.redis.nodes if it belongs to the "
            "cluster\"",
            shown);
    pthread_mutex_lock(&t->th.lock);
    memcpy(t->foreign, shown, sizeof shown);
    pthread_mutex_unlock(&t->th.lock);
    t->foreign_ns = now;
}

static bool is_allowed(sl_redis_tier *t, const sl_redis_address *at)
{
    bool allowed = same_address(&t->servers[0].conn->at, at);
    for (int i = 0; i < t->r.nodes.n && !allowed; i++)
        allowed = sl_redis_rule_allows(&t->rules[i], at);
    if (!allowed)
        note_foreign(t, at);
    return allowed;
}

static bool has_slots(const sl_redis_node *node)
{
    return node->master && !node->failed && node->ranges_n;
}

/* Servers that are not listed have left. This is known of all of them before the first new one needs a place. */
static void keep_listed(sl_redis_tier *t, int32_t server, const char *text, size_t n)
{
    sl_redis_node node;
    size_t at = 0;
    for (int32_t i = 0; i < t->n_servers; i++)
        t->servers[i].wanted = i == 0;
    while (sl_redis_node_next(text, n, &at, &node)) {
        sl_redis_address full = complete_address(t, server, &node.at);
        int32_t i = node.myself ? server : find_server(t, &full);
        if (i >= 0 && has_slots(&node))
            t->servers[i].wanted = true;
    }
}

void sl_redis_learn_nodes(sl_redis_tier *t, int32_t server, const char *text, size_t n)
{
    sl_redis_node node;
    size_t at = 0, range;
    int first, last;
    keep_listed(t, server, text, n);
    while (sl_redis_node_next(text, n, &at, &node)) {
        if (!has_slots(&node))
            continue;
        sl_redis_address full = complete_address(t, server, &node.at);
        if (!node.myself && !is_allowed(t, &full))
            continue;
        int32_t s = node.myself ? server : sl_redis_server_add(t, &full); /* it may have several names */
        if (s < 0) {
            sl_log(SL_LOG_WARN, "tier", "redis_nodes", "reason=\"more than %d servers\"", SL_REDIS_NODES);
            continue;
        }
        t->servers[s].wanted = true;
        for (range = 0; sl_redis_range_next(&node, &range, &first, &last);)
            for (int slot = first; slot <= last; slot++)
                t->slots[slot] = (int16_t)s;
    }
}

int32_t sl_redis_learn_redirect(sl_redis_tier *t, int32_t server, const sl_redis_redirect *to)
{
    sl_redis_address full = complete_address(t, server, &to->to);
    int32_t s = is_allowed(t, &full) ? sl_redis_server_add(t, &full) : -1;
    if (s >= 0 && !to->ask) {
        t->clustered = true;
        t->slots[to->slot] = (int16_t)s;
        t->servers[s].wanted = true;
    }
    return s;
}
