/*
 * See report.h. The tables of rows come first: one for the numbers of the worker, one for those of prompts that it computes, one
 * for each storage tier, and one for each layer. tenants.c has those of tenants.
 */
#include "decode/report/report.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "decode/report/rows.h"
#include "decode/report/tenants.h"

/* Numbers that are copied from the device, or asked of every tier, are not read after each step. */
static const uint64_t SELDOM_NS = 100000000;

/* ---- the worker ---- */

typedef struct numbers {
    sl_run_stats run;
    sl_pages_stats pages;
    sl_link_stats link;
    sl_engine_stats engine;
    /* made of them */
    uint64_t tiles_read, swap_hidden_ns, sampled_on_device;
    int32_t quarantined, prompts_waiting;
} numbers;

static const char *const draft_places[SL_DRAFTS_MAX] = {"1", "2", "3", "4"};

static const sl_series_row rows[] = {
    SL_SERIES(numbers, run.stale, "sluice_messages_dropped_total", "stale"),
    SL_SERIES(numbers, pages.stale, "sluice_messages_dropped_total", "stale"),
    SL_SERIES(numbers, link.stale, "sluice_messages_dropped_total", "stale"),
    SL_SERIES(numbers, link.refused, "sluice_messages_dropped_total", "refused"),
    SL_SERIES(numbers, run.committed, "sluice_tickets_total", "committed"),
    SL_SERIES(numbers, run.aborted, "sluice_tickets_total", "aborted"),
    SL_SERIES(numbers, run.expired, "sluice_tickets_total", "expired"),
    SL_SERIES(numbers, run.refused, "sluice_tickets_total", "refused"),
    SL_SERIES(numbers, run.count[SL_TICKET_LANDING], "sluice_tickets", "reserved"),
    SL_SERIES(numbers, run.count[SL_TICKET_CHECKING], "sluice_tickets", "filling"),
    SL_SERIES(numbers, quarantined, "sluice_tickets", "draining"),
    SL_SERIES(numbers, run.landing_pages, "sluice_kv_pages", "landing"),
    SL_SERIES(numbers, run.checksums, "sluice_checksum_failures_total"),
    SL_SERIES(numbers, run.damaged_reused, "sluice_store_damaged_pages_total", "reused"),
    SL_SERIES(numbers, run.damaged_running, "sluice_store_damaged_pages_total", "running"),
    SL_SERIES(numbers, run.damaged_fetched, "sluice_store_damaged_pages_total", "fetched"),
    SL_SERIES(numbers, pages.damage.reused, "sluice_store_damaged_pages_total", "reused"),
    SL_SERIES(numbers, pages.damage.verified, "sluice_store_damaged_pages_total", "verify"),
    SL_SERIES(numbers, run.count[SL_TICKET_RUNNING], "sluice_decode_requests_running"),
    SL_SERIES(numbers, run.count[SL_TICKET_WAITING], "sluice_decode_requests_waiting"),
    SL_SERIES(numbers, run.resident, "sluice_decode_requests_resident"),
    SL_SERIES(numbers, run.tokens, "sluice_decode_tokens_total"),
    SL_SERIES(numbers, run.decoded, "sluice_decode_items_total"),
    SL_SERIES_EACH(numbers, run.drafted, "sluice_draft_tokens_total", draft_places, NULL),
    SL_SERIES_EACH(numbers, run.accepted, "sluice_draft_accepted_tokens_total", draft_places, NULL),
    SL_SERIES(numbers, run.draft_ns, "sluice_draft_seconds_total"),
    SL_SERIES(numbers, run.retracted, "sluice_decode_retractions_total"),
    SL_SERIES(numbers, run.spilled, "sluice_decode_spills_total"),
    SL_SERIES_EACH(numbers, run.snapshots, "sluice_state_snapshots_total", sl_snapshot_event_names, NULL),
    SL_SERIES(numbers, tiles_read, "sluice_attention_tiles_total", "read"),
    SL_SERIES(numbers, engine.tiles_skipped, "sluice_attention_tiles_total", "skipped"),
    SL_SERIES(numbers, engine.idle_ns, "sluice_decode_idle_seconds_total"),
    SL_SERIES(numbers, sampled_on_device, "sluice_sampled_tokens_total", "device"),
    SL_SERIES(numbers, engine.sampled_on_host, "sluice_sampled_tokens_total", "host"),
    SL_SERIES(numbers, engine.swap_bytes, "sluice_swap_bytes_total"),
    SL_SERIES(numbers, engine.swap_exposed_ns, "sluice_swap_exposed_seconds_total"),
    SL_SERIES(numbers, swap_hidden_ns, "sluice_swap_hidden_seconds_total"),
    SL_SERIES(numbers, engine.kv_bytes_used, "sluice_device_kv_bytes", "used"),
    SL_SERIES(numbers, engine.kv_bytes, "sluice_device_kv_bytes", "total"),
    SL_SERIES_EACH(numbers, engine.pool_held, "sluice_device_pool_bytes", sl_dpool_kind_names, NULL),
    SL_SERIES(numbers, engine.pool_moved, "sluice_device_pool_moved_bytes_total"),
    SL_SERIES_EACH(numbers, pages.prefetch.ended, "sluice_prefetch_total", sl_prefetch_end_names, NULL),
    SL_SERIES(numbers, pages.lend.granted, "sluice_lend_leases_total", "granted"),
    SL_SERIES(numbers, pages.lend.refused, "sluice_lend_leases_total", "refused"),
    SL_SERIES(numbers, pages.lend.pages, "sluice_lend_pages_total"),
    SL_SERIES(numbers, pages.lend.expired, "sluice_lend_expired_total"),
    SL_SERIES(numbers, pages.lend.leases, "sluice_lend_leases"),
    SL_SERIES(numbers, pages.lend.pages_now, "sluice_lend_leased_pages"),
    SL_SERIES(numbers, pages.pull.asks, "sluice_pull_asks_total"),
    SL_SERIES(numbers, pages.pull.pages, "sluice_pull_pages_total"),
    SL_SERIES(numbers, pages.pull.bytes, "sluice_pull_bytes_total"),
    SL_SERIES(numbers, pages.pull.ns, "sluice_pull_seconds_total"),
    SL_SERIES_EACH(numbers, pages.pull.misses, "sluice_pull_miss_pages_total", sl_pull_miss_names, NULL),
    SL_SERIES(numbers, pages.pull.leases, "sluice_pull_leases"),
    SL_SERIES(numbers, pages.pull.leased_pages, "sluice_pull_leased_pages"),
    SL_SERIES(numbers, pages.pull.rate, "sluice_pull_rate_bytes"),
};

static const sl_series_row prompt_rows[] = {
    SL_SERIES(numbers, run.prompt_tokens, "sluice_prefill_tokens_total"),
    SL_SERIES(numbers, run.prompt_reused, "sluice_prefill_reused_tokens_total", "local"),
    SL_SERIES(numbers, run.prompts, "sluice_prefill_requests_running"),
    SL_SERIES(numbers, prompts_waiting, "sluice_prefill_requests_waiting"),
};

/* ---- a storage tier ---- */

typedef struct tier_numbers {
    sl_cascade_stats cascade;
    sl_tier_stats tier;
    int32_t state;
} tier_numbers;

static const sl_series_row tier_rows[] = {
    SL_SERIES(tier_numbers, cascade.hits, "sluice_tier_hit_pages_total", "@0"),
    SL_SERIES(tier_numbers, cascade.stored, "sluice_tier_stored_pages_total", "@0"),
    SL_SERIES_EACH(tier_numbers, cascade.misses, "sluice_tier_miss_pages_total", sl_cascade_miss_names, "@0"),
    SL_SERIES_EACH(tier_numbers, cascade.lost, "sluice_tier_lost_pages_total", sl_cascade_lost_names, "@0"),
    SL_SERIES(tier_numbers, cascade.bytes_loaded, "sluice_tier_bytes_total", "@0", "load"),
    SL_SERIES(tier_numbers, cascade.bytes_stored, "sluice_tier_bytes_total", "@0", "store"),
    SL_SERIES(tier_numbers, cascade.load_ns, "sluice_tier_seconds_total", "@0", "load"),
    SL_SERIES(tier_numbers, cascade.write_ns, "sluice_tier_seconds_total", "@0", "store"),
    SL_SERIES(tier_numbers, cascade.waiting, "sluice_tier_requests_waiting", "@0"),
    SL_SERIES(tier_numbers, cascade.read_rate, "sluice_tier_read_rate_bytes", "@0"),
    SL_SERIES(tier_numbers, tier.evictions, "sluice_tier_evictions_total", "@0"),
    SL_SERIES(tier_numbers, tier.pages, "sluice_tier_pages", "@0"),
    SL_SERIES(tier_numbers, tier.bytes, "sluice_tier_bytes", "@0", "used"),
    SL_SERIES(tier_numbers, tier.capacity_bytes, "sluice_tier_bytes", "@0", "capacity"),
    SL_SERIES(tier_numbers, tier.bytes_written_ever, "sluice_tier_written_bytes", "@0"),
    SL_SERIES(tier_numbers, state, "sluice_tier_state", "@0"),
};

/* ---- a layer ---- */

typedef struct layer_numbers {
    uint64_t hits, misses, evictions;
} layer_numbers;

static const sl_series_row layer_rows[] = {
    SL_SERIES(layer_numbers, hits, "sluice_swap_rows_total", "@0", "hit"),
    SL_SERIES(layer_numbers, misses, "sluice_swap_rows_total", "@0", "miss"),
    SL_SERIES(layer_numbers, evictions, "sluice_swap_evictions_total", "@0"),
};

/* ---- life ---- */

struct sl_report {
    sl_report_opts o;
    numbers now;
    uint64_t seldom_ns; /* when the numbers that are read seldom were read last */
    sl_series_list *rows, *prompt_rows;
    struct {
        tier_numbers now;
        sl_series_list *rows;
    } tiers[SL_CASCADE_TIERS];
    int n_tiers;
    sl_layer_stats *layers;      /* [n_layers] */
    sl_series_list **layer_rows; /* [n_layers]; NULL without metrics */
    sl_report_tenants *tenants;
};

static sl_status open_layers(sl_report *r, sl_err *err)
{
    size_t n = (size_t)r->o.n_layers;
    r->layers = calloc(n, sizeof *r->layers);
    r->layer_rows = calloc(n, sizeof *r->layer_rows);
    if (!r->layers || !r->layer_rows)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t l = 0; l < r->o.n_layers; l++) {
        char layer[16];
        snprintf(layer, sizeof layer, "%d", l);
        SL_TRY(sl_series_open(r->o.metrics, layer_rows, SL_COUNT(layer_rows), SL_LABELS(layer),
                              &r->layer_rows[l], err));
    }
    return SL_OK;
}

static sl_status open_all(sl_report *r, sl_err *err)
{
    sl_metrics *m = r->o.metrics;
    SL_TRY(sl_series_open(m, rows, SL_COUNT(rows), NULL, &r->rows, err));
    if (r->o.prompts)
        SL_TRY(sl_series_open(m, prompt_rows, SL_COUNT(prompt_rows), NULL, &r->prompt_rows, err));
    r->n_tiers = r->o.cascade ? sl_cascade_n_tiers(r->o.cascade) : 0;
    for (int t = 0; t < r->n_tiers; t++)
        SL_TRY(sl_series_open(m, tier_rows, SL_COUNT(tier_rows),
                              SL_LABELS(sl_cascade_tier_at(r->o.cascade, t)->ops->name), &r->tiers[t].rows,
                              err));
    SL_TRY(sl_report_tenants_open(m, r->o.role->store, r->o.cascade, &r->tenants, err));
    return open_layers(r, err);
}

sl_status sl_report_create(const sl_report_opts *o, sl_report **out, sl_err *err)
{
    sl_report *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    r->o = *o;
    sl_status st = open_all(r, err);
    if (st != SL_OK)
        sl_report_destroy(r);
    else
        *out = r;
    return st;
}

void sl_report_destroy(sl_report *r)
{
    if (!r)
        return;
    for (int32_t l = 0; r->layer_rows && l < r->o.n_layers; l++)
        sl_series_close(r->layer_rows[l]);
    for (int t = 0; t < r->n_tiers; t++)
        sl_series_close(r->tiers[t].rows);
    sl_series_close(r->rows);
    sl_series_close(r->prompt_rows);
    sl_report_tenants_close(r->tenants);
    free(r->layers);
    free(r->layer_rows);
    free(r);
}

/* ---- a turn ---- */

/* The router is told the measured speed of the disk, and of the shared store that was read last. The tier of other workers
 * measures its own, for each worker (decode/pages/pull.h). */
static void tell_rate(sl_report *r, int t, double before)
{
    const sl_tier_ops *ops = sl_cascade_tier_at(r->o.cascade, t)->ops;
    double rate = r->tiers[t].now.cascade.read_rate;
    if (rate != before && !ops->needs_source)
        atomic_store(ops->persistent && !ops->shared ? &r->o.role->load.disk_rate
                                                     : &r->o.role->load.shared_rate,
                     (uint64_t)rate);
}

static void read_health(sl_report *r, int t)
{
    sl_tier *tier = sl_cascade_tier_at(r->o.cascade, t);
    sl_tier_health health;
    sl_tier_get_stats(tier, &r->tiers[t].now.tier);
    sl_tier_get_health(tier, &health);
    if ((int32_t)health.state != r->tiers[t].now.state)
        sl_log(health.state == SL_TIER_HEALTHY ? SL_LOG_INFO : SL_LOG_WARN, "decode", "tier_health",
               "tier=%s state=%d reason=\"%s\"", tier->ops->name, health.state, health.reason);
    r->tiers[t].now.state = (int32_t)health.state;
}

static void show_tiers(sl_report *r, bool seldom)
{
    for (int t = 0; t < r->n_tiers; t++) {
        double before = r->tiers[t].now.cascade.read_rate;
        sl_cascade_stats_get(r->o.cascade, t, &r->tiers[t].now.cascade);
        tell_rate(r, t, before);
        if (seldom)
            read_health(r, t);
        sl_series_show(r->tiers[t].rows, &r->tiers[t].now);
    }
}

static void show_layers(sl_report *r)
{
    if (!r->o.metrics)
        return;
    r->o.runner->layer_stats(r->o.runner->impl, r->layers);
    for (int32_t l = 0; l < r->o.n_layers; l++) {
        const sl_layer_stats *s = &r->layers[l];
        layer_numbers now = {s->hits + s->tail_hits, s->misses, s->evictions};
        sl_series_show(r->layer_rows[l], &now);
    }
}

static void read_engine(sl_report *r)
{
    sl_engine_stats *e = &r->now.engine;
    sl_worker_load *load = &r->o.role->load;
    r->o.runner->stats(r->o.runner->impl, e);
    r->now.tiles_read = e->tiles - e->tiles_skipped;
    r->now.swap_hidden_ns = e->swap_ns - e->swap_exposed_ns;
    r->now.sampled_on_device = e->sampled - e->sampled_on_host;
    atomic_store(&load->hits, e->hits + e->tail_hits);
    atomic_store(&load->misses, e->misses);
    atomic_store(&load->swap_bytes, e->swap_bytes);
}

static void tell_load(sl_report *r)
{
    const sl_run_stats *run = &r->now.run;
    const int32_t *n = run->count;
    const sl_worker_report load = {.running = (uint32_t)n[SL_TICKET_RUNNING],
                                   .waiting = (uint32_t)(n[SL_TICKET_LOADING] + n[SL_TICKET_LANDING] +
                                                         n[SL_TICKET_PROMPT] + n[SL_TICKET_CHECKING] +
                                                         n[SL_TICKET_WAITING]),
                                   .queued_tokens = run->queued_tokens,
                                   .landing_pages = run->landing_pages};
    atomic_store(&r->o.role->load.tokens_done, run->tokens + run->prompt_tokens);
    atomic_store(&r->o.role->load.peer_rate, r->now.pages.pull.rate);
    sl_worker_role_report(r->o.role, &load);
}

void sl_report_turn(sl_report *r, const sl_report_now *now)
{
    uint64_t t = sl_now_ns();
    bool seldom = t - r->seldom_ns >= SELDOM_NS;
    r->now.run = now->run;
    r->now.pages = now->pages;
    r->now.link = now->link;
    r->now.quarantined = now->run.count[SL_TICKET_QUARANTINE] + now->run.count[SL_TICKET_ENDING];
    r->now.prompts_waiting = now->run.count[SL_TICKET_PROMPT] - now->run.prompts;
    tell_load(r);
    if (seldom) {
        r->seldom_ns = t;
        read_engine(r);
        show_layers(r);
        sl_report_tenants_show(r->tenants);
    }
    show_tiers(r, seldom);
    sl_series_show(r->rows, &r->now);
    sl_series_show(r->prompt_rows, &r->now);
}
