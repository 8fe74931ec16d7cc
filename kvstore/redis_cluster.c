/*
 * Which server of a Redis Cluster has which key. The map of slots comes from CLUSTER NODES, is corrected by each MOVED, and is
 * asked for again after a MOVED or when a server is lost. A server that is no longer listed is not connected again. Without
 * a cluster the map stays empty, and the configured server has every key.
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

int32_t sl_redis_server_add(sl_redis_tier *t, const sl_redis_address *at)
{
    for (int32_t i = 0; i < t->n_servers; i++)
        if (same_address(&t->servers[i].conn->at, at))
            return i;
    if (t->n_servers == SL_REDIS_NODES)
        return -1;
    sl_redis_server *s = &t->servers[t->n_servers];
    *s = (sl_redis_server){.tier = t, .wanted = true};
    s->conn = calloc(1, sizeof *s->conn);
    if (!s->conn)
        return -1;
    s->conn->at = *at;
    s->conn->owner = s;
    s->conn->answer = sl_redis_on_answer;
    s->conn->answer_max = SL_PAGE_RECORD_BYTES + t->o.page_bytes + SL_REDIS_TEXT_MAX;
    s->sent.tail = &s->sent.head;
    s->held.tail = &s->held.head;
    return t->n_servers++;
}

/* An answer without a host means the host that answered. */
static sl_redis_address complete_address(const sl_redis_tier *t, int32_t server, const sl_redis_address *at)
{
    sl_redis_address full = *at;
    if (!full.host[0])
        snprintf(full.host, sizeof full.host, "%s", t->servers[server].conn->at.host);
    return full;
}

void sl_redis_learn_nodes(sl_redis_tier *t, int32_t server, const char *text, size_t n)
{
    sl_redis_node node;
    size_t at = 0, range;
    int first, last;
    for (int32_t i = 0; i < t->n_servers; i++)
        t->servers[i].wanted = i == 0;
    while (sl_redis_node_next(text, n, &at, &node)) {
        if (!node.master || node.failed || !node.ranges_n)
            continue;
        sl_redis_address full = complete_address(t, server, &node.at);
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
    int32_t s = sl_redis_server_add(t, &full);
    if (s >= 0 && !to->ask) {
        t->clustered = true;
        t->slots[to->slot] = (int16_t)s;
        t->servers[s].wanted = true;
    }
    return s;
}
