/*
 * The router's metrics: handles of base/metrics rows, looked up once. Names and meanings are in base/metrics_table.c.
 * Threads: the loop's thread. core/facts.c refreshes the gauges that mirror tables.
 */
#ifndef SL_ROUTER_STATS_H
#define SL_ROUTER_STATS_H

#include "base/metrics.h"
#include "base/msg.h"

enum { SL_STATS_ROLES = 3 }; /* prefill, decode, both */

/* Of requests: by their step function, its effects and their groups. */
typedef struct sl_request_stats {
    sl_counter *prompt_tokens, *cached_tokens, *generated_tokens, *resumes;
    sl_histogram *ttft, *itl, *e2e, *queue, *overhead;
    sl_histogram *tokenize, *reserve, *prefill, *transfer, *decode; /* how long the stages took */
    sl_counter *retry_reserve, *retry_prefill, *retry_decode;
    sl_counter *repeated_equal, *repeated_different;
} sl_request_stats;

/* Of the choice of workers: by core/place.c, aside.c and prefetch.c. */
typedef struct sl_placement_stats {
    sl_counter *by_prefix, *by_load, *by_order;
    sl_counter *set_aside_pages, *set_aside_alone;
    sl_counter *prefetch_sent, *prefetch_used, *prefetch_withdrawn;
    sl_counter *copies;
} sl_placement_stats;

/* Of the directory of pages: by core/kv_events.c, and by the tick from what the directory counts itself. */
typedef struct sl_pages_stats {
    sl_gauge *held[SL_MEDIUM_COUNT], *bytes;
    sl_counter *lookups, *lookup_pages, *forgotten;
    sl_counter *gaps, *resyncs;
    uint64_t seen_lookups, seen_lookup_pages, seen_forgotten; /* already added */
} sl_pages_stats;

/* Of workers: by core/join.c, members.c and whatever reads their messages. */
typedef struct sl_workers_stats {
    sl_gauge *states[SL_STATS_ROLES][3]; /* sl_router_stats_role(); ready, draining, dead */
    sl_counter *failures[SL_STATS_ROLES], *joins[SL_STATS_ROLES];
    uint64_t lost[SL_STATS_ROLES];
    sl_counter *stale, *malformed, *unknown, *refused; /* messages that were dropped */
} sl_workers_stats;

/* Of the transport: by the tick from what the transport counts. */
typedef struct sl_link_stats {
    sl_gauge *peers;
    sl_counter *peer_failures, *message_bytes, *messages_ok, *messages_failed;
    uint64_t seen_bytes, seen_sent; /* already added */
} sl_link_stats;

/* Of the fronts: by HTTP and gRPC. */
typedef struct sl_fronts_stats {
    sl_gauge *http_connections, *grpc_connections, *request_bytes;
    sl_counter *disconnects;
} sl_fronts_stats;

/* Of the router as a whole: by the loop and its tick. */
typedef struct sl_loop_stats {
    sl_histogram *turn, *turn_cpu;
    sl_gauge *running, *waiting; /* requests */
    sl_gauge *vllm_running, *vllm_waiting, *vllm_usage;
} sl_loop_stats;

/* One struct for each part of the router that counts. Besides, rows that are looked up when they are counted. */
typedef struct sl_router_stats {
    sl_metrics *m;
    sl_request_stats requests;
    sl_placement_stats placement;
    sl_pages_stats directory;
    sl_workers_stats workers;
    sl_link_stats link;
    sl_fronts_stats fronts;
    sl_loop_stats loop;
} sl_router_stats;

sl_status sl_router_stats_init(sl_router_stats *s, const char *model_name);
/* The index of a worker's role in the arrays above. */
static inline int sl_router_stats_role(uint8_t role)
{
    return role == SL_ROLE_PREFILL ? 0 : role == SL_ROLE_DECODE ? 1 : 2;
}
void sl_router_stats_free(sl_router_stats *s);
/* One request ended: outcome "stop", "length", "cancelled", "deadline", "rejected", "invalid", "failed",
 * "data_loss". */
void sl_router_stats_request(sl_router_stats *s, const char *api, const char *outcome);
const char *sl_router_stats_outcome(sl_status st); /* of a request that ended with this status */
void sl_router_stats_http(sl_router_stats *s, const char *path, int code);
/* A connection or request that a front ended: protocol "http" or "grpc"; reason as in the metrics' table. */
void sl_router_stats_closed(sl_router_stats *s, const char *protocol, const char *reason);
void sl_router_stats_grpc(sl_router_stats *s, const char *method, const char *code);

#endif
