/*
 * What a decode worker reports: its load for the heartbeat, metrics. Engine thread.
 */
#ifndef SL_DECODE_REPORT_REPORT_H
#define SL_DECODE_REPORT_REPORT_H

#include "decode/decode.h"
#include "decode/link/link.h"
#include "decode/pages/pages.h"
#include "decode/run/run.h"

/* Metrics of one tenant in one tier (report_quota.c); zero until it is reported first. */
typedef struct sl_decode_tenant {
    sl_gauge *pages;
    sl_counter *evicted[SL_QUOTA_REASONS];
    uint64_t seen[SL_QUOTA_REASONS];
} sl_decode_tenant;

/* Metrics: handles, constant; safe from every thread. */
typedef struct sl_decode_metrics {
    sl_counter *stale, *refused, *t_committed, *t_aborted, *t_expired, *t_refused, *checksum, *retractions,
        *spills, *tokens, *tiles_read, *tiles_skipped, *swap_bytes, *swap_exposed, *swap_hidden;
    sl_counter *prefetches[SL_PREFETCH_ENDS];
    sl_counter **layer_hit, **layer_miss, **layer_evict; /* [n_layers] */
    sl_gauge *running, *waiting, *resident, *pages_landing, *reserved, *filling, *quarantined, *device_used,
        *device_total;
    struct {
        sl_counter *tokens, *reused;
        sl_gauge *running, *waiting;
    } prompts;
    struct {
        sl_counter *hits, *misses[SL_MISS_REASONS], *stored, *lost[SL_LOST_REASONS], *bytes_loaded,
            *bytes_stored, *load_seconds, *store_seconds, *evictions;
        sl_gauge *pages, *bytes, *capacity, *state, *written_ever, *waiting, *rate;
    } tiers[SL_CASCADE_TIERS]; /* NULL without metrics */
    struct {
        sl_counter *granted, *refused, *expired, *pages;
        sl_gauge *leases, *pages_now;
    } lend;
    struct {
        sl_counter *asks, *pages, *misses[SL_PULL_REASONS], *bytes, *seconds;
        sl_gauge *leases, *pages_now, *rate;
    } pull;
} sl_decode_metrics;

typedef struct sl_report {
    sl_decode_metrics m;
    /* what the metrics contain already */
    sl_engine_stats engine_seen;
    uint64_t engine_seen_ns;
    sl_pages_stats pages_seen;
    sl_link_stats link; /* now; set before a report */
    sl_link_stats link_seen;
    sl_run_stats run_seen;
    sl_decode_tenant tenants[2][2 + SL_QUOTA_RULES]; /* host store, disk tier */
    sl_layer_stats *layers_seen, *layers_now;        /* [n_layers] */
    struct {
        sl_cascade_stats cascade;
        sl_tier_stats tier;
        sl_tier_state state; /* as logged last */
    } tiers_seen[SL_CASCADE_TIERS];
} sl_report;

/* report.c */
void sl_report_load(sl_decode *d);
void sl_report_quotas(sl_decode *d); /* report_quota.c */
void sl_report_metrics_find(sl_decode *d, sl_metrics *m);

#endif
