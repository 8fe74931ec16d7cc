/*
 * Looks the handles of the metrics up. The gauges that mirror tables are refreshed in core/facts.c.
 */
#include "router/stats.h"

#include <stdio.h>
#include <string.h>

#include "base/msg.h"
#include "base/version.h"

static const char *const roles[SL_STATS_ROLES] = {"prefill", "decode", "both"};
static const char *const states[] = {"ready", "draining", "dead"};

static void init_requests(sl_request_stats *s, sl_metrics *m)
{
    static const char stage[] = "sluice_request_stage_seconds", retries[] = "sluice_request_retries_total";
    s->prompt_tokens = sl_metrics_counter(m, "sluice_prompt_tokens_total", NULL);
    s->cached_tokens = sl_metrics_counter(m, "sluice_cached_prompt_tokens_total", NULL);
    s->generated_tokens = sl_metrics_counter(m, "sluice_generation_tokens_total", NULL);
    s->resumes = sl_metrics_counter(m, "sluice_stream_resumes_total", NULL);
    s->ttft = sl_metrics_histogram(m, "sluice_time_to_first_token_seconds", NULL);
    s->itl = sl_metrics_histogram(m, "sluice_inter_token_latency_seconds", NULL);
    s->e2e = sl_metrics_histogram(m, "sluice_request_duration_seconds", NULL);
    s->queue = sl_metrics_histogram(m, "sluice_request_queue_seconds", NULL);
    s->overhead = sl_metrics_histogram(m, "sluice_router_overhead_seconds", NULL);
    s->tokenize = sl_metrics_histogram(m, stage, SL_LABELS("tokenize"));
    s->reserve = sl_metrics_histogram(m, stage, SL_LABELS("reserve"));
    s->prefill = sl_metrics_histogram(m, stage, SL_LABELS("prefill"));
    s->transfer = sl_metrics_histogram(m, stage, SL_LABELS("transfer"));
    s->decode = sl_metrics_histogram(m, stage, SL_LABELS("decode"));
    s->retry_reserve = sl_metrics_counter(m, retries, SL_LABELS("reserve"));
    s->retry_prefill = sl_metrics_counter(m, retries, SL_LABELS("prefill"));
    s->retry_decode = sl_metrics_counter(m, retries, SL_LABELS("decode"));
    s->repeated_equal = sl_metrics_counter(m, "sluice_repeated_tokens_total", SL_LABELS("equal"));
    s->repeated_different = sl_metrics_counter(m, "sluice_repeated_tokens_total", SL_LABELS("different"));
}

static void init_placement(sl_placement_stats *s, sl_metrics *m)
{
    static const char placements[] = "sluice_placements_total", aside[] = "sluice_workers_set_aside_total",
                      prefetches[] = "sluice_router_prefetches_total";
    s->by_prefix = sl_metrics_counter(m, placements, SL_LABELS("prefix"));
    s->by_load = sl_metrics_counter(m, placements, SL_LABELS("load"));
    s->by_order = sl_metrics_counter(m, placements, SL_LABELS("order"));
    s->set_aside_pages = sl_metrics_counter(m, aside, SL_LABELS("pages"));
    s->set_aside_alone = sl_metrics_counter(m, aside, SL_LABELS("alone"));
    s->prefetch_sent = sl_metrics_counter(m, prefetches, SL_LABELS("sent"));
    s->prefetch_used = sl_metrics_counter(m, prefetches, SL_LABELS("used"));
    s->prefetch_withdrawn = sl_metrics_counter(m, prefetches, SL_LABELS("withdrawn"));
    s->copies = sl_metrics_counter(m, "sluice_router_copies_total", NULL);
}

static void init_directory(sl_pages_stats *s, sl_metrics *m)
{
    for (int i = 0; i < SL_MEDIUM_COUNT; i++)
        s->held[i] = sl_metrics_gauge(m, "sluice_directory_pages", SL_LABELS(sl_medium_name((sl_medium)i)));
    s->bytes = sl_metrics_gauge(m, "sluice_directory_bytes", NULL);
    s->lookups = sl_metrics_counter(m, "sluice_directory_lookups_total", NULL);
    s->lookup_pages = sl_metrics_counter(m, "sluice_directory_lookup_pages_total", NULL);
    s->forgotten = sl_metrics_counter(m, "sluice_directory_forgotten_pages_total", NULL);
    s->gaps = sl_metrics_counter(m, "sluice_directory_gaps_total", NULL);
    s->resyncs = sl_metrics_counter(m, "sluice_directory_resyncs_total", NULL);
}

static void init_workers(sl_workers_stats *s, sl_metrics *m)
{
    static const char dropped[] = "sluice_messages_dropped_total";
    for (int i = 0; i < SL_STATS_ROLES; i++) {
        s->failures[i] = sl_metrics_counter(m, "sluice_worker_failures_total", SL_LABELS(roles[i]));
        s->joins[i] = sl_metrics_counter(m, "sluice_worker_joins_total", SL_LABELS(roles[i]));
        for (int k = 0; k < 3; k++)
            s->states[i][k] = sl_metrics_gauge(m, "sluice_workers", SL_LABELS(roles[i], states[k]));
    }
    s->stale = sl_metrics_counter(m, dropped, SL_LABELS("stale"));
    s->malformed = sl_metrics_counter(m, dropped, SL_LABELS("malformed"));
    s->unknown = sl_metrics_counter(m, dropped, SL_LABELS("unknown"));
    s->refused = sl_metrics_counter(m, dropped, SL_LABELS("refused"));
}

static void init_link(sl_link_stats *s, sl_metrics *m)
{
    static const char operations[] = "sluice_transport_operations_total";
    s->peers = sl_metrics_gauge(m, "sluice_transport_peers", NULL);
    s->peer_failures = sl_metrics_counter(m, "sluice_transport_peer_failures_total", NULL);
    s->message_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("message"));
    s->messages_ok = sl_metrics_counter(m, operations, SL_LABELS("message", "ok"));
    s->messages_failed = sl_metrics_counter(m, operations, SL_LABELS("message", "failed"));
}

static void init_fronts(sl_fronts_stats *s, sl_metrics *m)
{
    s->http_connections = sl_metrics_gauge(m, "sluice_connections", SL_LABELS("http"));
    s->grpc_connections = sl_metrics_gauge(m, "sluice_connections", SL_LABELS("grpc"));
    s->request_bytes = sl_metrics_gauge(m, "sluice_request_bytes", NULL);
    s->disconnects = sl_metrics_counter(m, "sluice_client_disconnects_total", NULL);
}

static void init_loop(sl_loop_stats *s, sl_metrics *m, const char *model)
{
    s->turn = sl_metrics_histogram(m, "sluice_router_loop_turn_seconds", NULL);
    s->turn_cpu = sl_metrics_histogram(m, "sluice_router_loop_turn_cpu_seconds", NULL);
    s->running = sl_metrics_gauge(m, "sluice_requests_running", NULL);
    s->waiting = sl_metrics_gauge(m, "sluice_requests_waiting", NULL);
    s->vllm_running = sl_metrics_gauge(m, "vllm:num_requests_running", SL_LABELS(model));
    s->vllm_waiting = sl_metrics_gauge(m, "vllm:num_requests_waiting", SL_LABELS(model));
    s->vllm_usage = sl_metrics_gauge(m, "vllm:kv_cache_usage_perc", SL_LABELS(model));
}

sl_status sl_router_stats_init(sl_router_stats *s, const char *model_name)
{
    memset(s, 0, sizeof *s);
    sl_status st = sl_metrics_create(SL_METRICS_ROUTER, &s->m);
    if (st)
        return st;
    sl_metrics *m = s->m;
    init_requests(&s->requests, m);
    init_placement(&s->placement, m);
    init_directory(&s->directory, m);
    init_workers(&s->workers, m);
    init_link(&s->link, m);
    init_fronts(&s->fronts, m);
    init_loop(&s->loop, m, model_name);
    sl_gauge_set(sl_metrics_gauge(m, "sluice_build_info", SL_LABELS(SL_VERSION, "router", "none")), 1);
    return SL_OK;
}

void sl_router_stats_free(sl_router_stats *s)
{
    sl_metrics_destroy(s->m);
    s->m = NULL;
}

void sl_router_stats_request(sl_router_stats *s, const char *api, const char *outcome)
{
    sl_counter_add(sl_metrics_counter(s->m, "sluice_requests_total", SL_LABELS(api, outcome)), 1);
}

const char *sl_router_stats_outcome(sl_status st)
{
    switch (st) {
    case SL_ERR_CANCELLED:
        return "cancelled";
    case SL_ERR_DEADLINE:
        return "deadline";
    case SL_ERR_EXHAUSTED:
        return "rejected";
    case SL_ERR_DATA_LOSS:
        return "data_loss";
    case SL_ERR_INVALID:
    case SL_ERR_NOT_FOUND:
    case SL_ERR_TOO_LARGE:
    case SL_ERR_UNSUPPORTED:
        return "invalid";
    default:
        return "failed";
    }
}

void sl_router_stats_http(sl_router_stats *s, const char *path, int code)
{
    char text[16];
    snprintf(text, sizeof text, "%d", code);
    sl_counter_add(sl_metrics_counter(s->m, "sluice_http_responses_total", SL_LABELS(path, text)), 1);
}

void sl_router_stats_closed(sl_router_stats *s, const char *protocol, const char *reason)
{
    sl_counter_add(sl_metrics_counter(s->m, "sluice_connections_closed_total", SL_LABELS(protocol, reason)),
                   1);
}

void sl_router_stats_grpc(sl_router_stats *s, const char *method, const char *code)
{
    sl_counter_add(sl_metrics_counter(s->m, "sluice_grpc_responses_total", SL_LABELS(method, code)), 1);
}
