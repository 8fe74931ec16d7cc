/*
 * The router's metrics: handles of base/metrics rows, looked up once. Names and meanings are in base/metrics_table.c.
 * Threads: the loop's thread. core/facts.c refreshes the gauges that mirror tables.
 */
#ifndef SL_ROUTER_STATS_H
#define SL_ROUTER_STATS_H

#include "base/metrics.h"
#include "base/msg.h"

enum { SL_STATS_ROLES = 3 }; /* prefill, decode, both */

typedef struct sl_router_stats {
    sl_metrics *m;
    sl_gauge *running, *waiting, *vllm_running, *vllm_waiting, *vllm_usage;
    sl_counter *prompt_tokens, *cached_tokens, *generated_tokens, *resumes, *disconnects;
    sl_histogram *ttft, *itl, *e2e, *queue, *overhead;
    sl_histogram *stage_tokenize, *stage_reserve, *stage_prefill, *stage_transfer, *stage_decode;
    sl_counter *retry_reserve, *retry_prefill, *retry_decode;
    sl_gauge *http_connections, *grpc_connections, *request_bytes;
    sl_histogram *loop_turn, *loop_turn_cpu;
    sl_counter *stale, *malformed, *unknown, *refused;
    sl_counter *by_prefix, *by_load, *by_order;
    sl_counter *set_aside_pages, *set_aside_alone;
    sl_counter *repeated_equal, *repeated_different;
    sl_gauge *directory_pages[3], *directory_bytes; /* by sl_medium */
    sl_counter *directory_lookups, *directory_lookup_pages, *directory_forgotten;
    sl_counter *prefetch_sent, *prefetch_used, *prefetch_withdrawn;
    sl_counter *copies;
    sl_counter *directory_gaps, *directory_resyncs;
    sl_gauge *workers[SL_STATS_ROLES][3]; /* sl_router_stats_role(); ready, draining, dead */
    sl_counter *worker_failures[SL_STATS_ROLES], *worker_joins[SL_STATS_ROLES];
    sl_gauge *peers;
    sl_counter *peer_failures, *message_bytes, *messages_ok, *messages_failed;
    uint64_t seen_bytes, seen_sent, seen_failed; /* transport counters already added */
    uint64_t lost_workers[SL_STATS_ROLES];
    uint64_t seen_lookups, seen_lookup_pages, seen_forgotten; /* of the directory, already added */
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
