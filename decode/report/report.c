/*
 * What the engine thread reports: its load for the heartbeat, metrics.
 */
#include <stdio.h>

#include "decode/decode_impl.h"

enum {
    ENGINE_STATS_NS = 100000000,
};

static sl_counter *counter(sl_metrics *m, const char *name, const char *label)
{
    return sl_metrics_counter(m, name, label ? SL_LABELS(label) : NULL);
}

static void find_layers(sl_decode *d, sl_metrics *m)
{
    for (int32_t l = 0; m && l < d->geo->n_layers; l++) {
        char layer[16];
        snprintf(layer, sizeof layer, "%d", l);
        d->report.m.layer_hit[l] = sl_metrics_counter(m, "sluice_swap_rows_total", SL_LABELS(layer, "hit"));
        d->report.m.layer_miss[l] = sl_metrics_counter(m, "sluice_swap_rows_total", SL_LABELS(layer, "miss"));
        d->report.m.layer_evict[l] = sl_metrics_counter(m, "sluice_swap_evictions_total", SL_LABELS(layer));
    }
}

static void find_tier(sl_decode *d, sl_metrics *m, int i)
{
    const char *tier = sl_cascade_tier_at(sl_pages_cascade(d->pages), i)->ops->name;
    const char *const *of = SL_LABELS(tier);
    d->report.m.tiers[i].hits = sl_metrics_counter(m, "sluice_tier_hit_pages_total", of);
    d->report.m.tiers[i].stored = sl_metrics_counter(m, "sluice_tier_stored_pages_total", of);
    d->report.m.tiers[i].evictions = sl_metrics_counter(m, "sluice_tier_evictions_total", of);
    d->report.m.tiers[i].pages = sl_metrics_gauge(m, "sluice_tier_pages", of);
    d->report.m.tiers[i].written_ever = sl_metrics_gauge(m, "sluice_tier_written_bytes", of);
    d->report.m.tiers[i].state = sl_metrics_gauge(m, "sluice_tier_state", of);
    d->report.m.tiers[i].waiting = sl_metrics_gauge(m, "sluice_tier_requests_waiting", of);
    d->report.m.tiers[i].rate = sl_metrics_gauge(m, "sluice_tier_read_rate_bytes", of);
    for (int k = 0; k < SL_MISS_REASONS; k++)
        d->report.m.tiers[i].misses[k] =
            sl_metrics_counter(m, "sluice_tier_miss_pages_total", SL_LABELS(tier, sl_cascade_miss_names[k]));
    for (int k = 0; k < SL_LOST_REASONS; k++)
        d->report.m.tiers[i].lost[k] =
            sl_metrics_counter(m, "sluice_tier_lost_pages_total", SL_LABELS(tier, sl_cascade_lost_names[k]));
    d->report.m.tiers[i].bytes_loaded =
        sl_metrics_counter(m, "sluice_tier_bytes_total", SL_LABELS(tier, "load"));
    d->report.m.tiers[i].bytes_stored =
        sl_metrics_counter(m, "sluice_tier_bytes_total", SL_LABELS(tier, "store"));
    d->report.m.tiers[i].load_seconds =
        sl_metrics_counter(m, "sluice_tier_seconds_total", SL_LABELS(tier, "load"));
    d->report.m.tiers[i].store_seconds =
        sl_metrics_counter(m, "sluice_tier_seconds_total", SL_LABELS(tier, "store"));
    d->report.m.tiers[i].bytes = sl_metrics_gauge(m, "sluice_tier_bytes", SL_LABELS(tier, "used"));
    d->report.m.tiers[i].capacity = sl_metrics_gauge(m, "sluice_tier_bytes", SL_LABELS(tier, "capacity"));
}

static void find_prompts(sl_decode *d, sl_metrics *m)
{
    d->report.m.prompts.tokens = counter(m, "sluice_prefill_tokens_total", NULL);
    d->report.m.prompts.reused = counter(m, "sluice_prefill_reused_tokens_total", "local");
    d->report.m.prompts.running = sl_metrics_gauge(m, "sluice_prefill_requests_running", NULL);
    d->report.m.prompts.waiting = sl_metrics_gauge(m, "sluice_prefill_requests_waiting", NULL);
}

static void find_pulls(sl_decode *d, sl_metrics *m)
{
    d->report.m.lend.granted = counter(m, "sluice_lend_leases_total", "granted");
    d->report.m.lend.refused = counter(m, "sluice_lend_leases_total", "refused");
    d->report.m.lend.pages = counter(m, "sluice_lend_pages_total", NULL);
    d->report.m.lend.expired = counter(m, "sluice_lend_expired_total", NULL);
    d->report.m.lend.leases = sl_metrics_gauge(m, "sluice_lend_leases", NULL);
    d->report.m.lend.pages_now = sl_metrics_gauge(m, "sluice_lend_leased_pages", NULL);
    d->report.m.pull.asks = counter(m, "sluice_pull_asks_total", NULL);
    d->report.m.pull.pages = counter(m, "sluice_pull_pages_total", NULL);
    d->report.m.pull.bytes = counter(m, "sluice_pull_bytes_total", NULL);
    d->report.m.pull.seconds = counter(m, "sluice_pull_seconds_total", NULL);
    d->report.m.pull.leases = sl_metrics_gauge(m, "sluice_pull_leases", NULL);
    d->report.m.pull.pages_now = sl_metrics_gauge(m, "sluice_pull_leased_pages", NULL);
    d->report.m.pull.rate = sl_metrics_gauge(m, "sluice_pull_rate_bytes", NULL);
    for (int i = 0; i < SL_PULL_REASONS; i++)
        d->report.m.pull.misses[i] = counter(m, "sluice_pull_miss_pages_total", sl_pull_miss_names[i]);
}

void sl_report_metrics_find(sl_decode *d, sl_metrics *m)
{
    d->report.m.stale = counter(m, "sluice_messages_dropped_total", "stale");
    d->report.m.refused = counter(m, "sluice_messages_dropped_total", "refused");
    d->report.m.t_committed = counter(m, "sluice_tickets_total", "committed");
    d->report.m.t_aborted = counter(m, "sluice_tickets_total", "aborted");
    d->report.m.t_expired = counter(m, "sluice_tickets_total", "expired");
    d->report.m.t_refused = counter(m, "sluice_tickets_total", "refused");
    d->report.m.checksum = counter(m, "sluice_checksum_failures_total", NULL);
    d->report.m.retractions = counter(m, "sluice_decode_retractions_total", NULL);
    d->report.m.spills = counter(m, "sluice_decode_spills_total", NULL);
    d->report.m.tokens = counter(m, "sluice_decode_tokens_total", NULL);
    d->report.m.tiles_read = counter(m, "sluice_attention_tiles_total", "read");
    d->report.m.tiles_skipped = counter(m, "sluice_attention_tiles_total", "skipped");
    d->report.m.swap_bytes = counter(m, "sluice_swap_bytes_total", NULL);
    d->report.m.swap_exposed = counter(m, "sluice_swap_exposed_seconds_total", NULL);
    d->report.m.swap_hidden = counter(m, "sluice_swap_hidden_seconds_total", NULL);
    d->report.m.running = sl_metrics_gauge(m, "sluice_decode_requests_running", NULL);
    d->report.m.waiting = sl_metrics_gauge(m, "sluice_decode_requests_waiting", NULL);
    d->report.m.resident = sl_metrics_gauge(m, "sluice_decode_requests_resident", NULL);
    d->report.m.pages_landing = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("landing"));
    d->report.m.reserved = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("reserved"));
    d->report.m.filling = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("filling"));
    d->report.m.quarantined = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("draining"));
    d->report.m.device_used = sl_metrics_gauge(m, "sluice_device_kv_bytes", SL_LABELS("used"));
    d->report.m.device_total = sl_metrics_gauge(m, "sluice_device_kv_bytes", SL_LABELS("total"));
    for (int i = 0; i < SL_PREFETCH_ENDS; i++)
        d->report.m.prefetches[i] = counter(m, "sluice_prefetch_total", sl_prefetch_end_names[i]);
    find_layers(d, m);
    find_pulls(d, m);
    if (d->o.prompts.chunk_tokens)
        find_prompts(d, m);
    for (int i = 0; m && sl_pages_cascade(d->pages) && i < sl_cascade_n_tiers(sl_pages_cascade(d->pages));
         i++)
        find_tier(d, m, i);
}

/* The router is told the measured speed of the disk, and of the shared store that was read last. The tier of other workers
 * measures its own, for each worker (pull.h). */
static void report_rate(sl_decode *d, int i, const sl_cascade_stats *now)
{
    const sl_tier_ops *ops = sl_cascade_tier_at(sl_pages_cascade(d->pages), i)->ops;
    uint64_t rate = (uint64_t)now->read_rate;
    if (now->read_rate == d->report.tiers_seen[i].cascade.read_rate)
        return;
    sl_gauge_set(d->report.m.tiers[i].rate, (double)rate);
    if (!ops->needs_source)
        atomic_store(ops->persistent && !ops->shared ? &d->role.load.disk_rate : &d->role.load.shared_rate,
                     rate);
}

static void report_cascade(sl_decode *d, int i)
{
    sl_cascade_stats now, *seen = &d->report.tiers_seen[i].cascade;
    sl_cascade_stats_get(sl_pages_cascade(d->pages), i, &now);
    report_rate(d, i, &now);
    sl_counter_add(d->report.m.tiers[i].hits, now.hits - seen->hits);
    sl_counter_add(d->report.m.tiers[i].stored, now.stored - seen->stored);
    for (int k = 0; k < SL_MISS_REASONS; k++)
        sl_counter_add(d->report.m.tiers[i].misses[k], now.misses[k] - seen->misses[k]);
    for (int k = 0; k < SL_LOST_REASONS; k++)
        sl_counter_add(d->report.m.tiers[i].lost[k], now.lost[k] - seen->lost[k]);
    sl_counter_add(d->report.m.tiers[i].bytes_loaded, now.bytes_loaded - seen->bytes_loaded);
    sl_counter_add(d->report.m.tiers[i].bytes_stored, now.bytes_stored - seen->bytes_stored);
    sl_counter_add(d->report.m.tiers[i].load_seconds, now.load_ns - seen->load_ns);
    sl_counter_add(d->report.m.tiers[i].store_seconds, now.write_ns - seen->write_ns);
    sl_gauge_set(d->report.m.tiers[i].waiting, now.waiting);
    *seen = now;
}

static void report_tier(sl_decode *d, int i)
{
    sl_tier *tier = sl_cascade_tier_at(sl_pages_cascade(d->pages), i);
    sl_tier_stats now;
    sl_tier_health health;
    sl_tier_get_stats(tier, &now);
    sl_tier_get_health(tier, &health);
    sl_counter_add(d->report.m.tiers[i].evictions, now.evictions - d->report.tiers_seen[i].tier.evictions);
    sl_gauge_set(d->report.m.tiers[i].pages, (double)now.pages);
    sl_gauge_set(d->report.m.tiers[i].bytes, (double)now.bytes);
    sl_gauge_set(d->report.m.tiers[i].capacity, (double)now.capacity_bytes);
    sl_gauge_set(d->report.m.tiers[i].written_ever, (double)now.bytes_written_ever);
    sl_gauge_set(d->report.m.tiers[i].state, health.state);
    if (health.state != d->report.tiers_seen[i].state)
        sl_log(health.state == SL_TIER_HEALTHY ? SL_LOG_INFO : SL_LOG_WARN, "decode", "tier_health",
               "tier=%s state=%d reason=\"%s\"", tier->ops->name, health.state, health.reason);
    d->report.tiers_seen[i].state = health.state;
    d->report.tiers_seen[i].tier = now;
}

static void report_pulls(sl_decode *d)
{
    sl_pages_stats all, *before = &d->report.pages_seen;
    const sl_link_stats link = d->report.link;
    sl_link_stats *seen_link = &d->report.link_seen;
    sl_counter_add(d->report.m.stale, link.stale - seen_link->stale);
    sl_counter_add(d->report.m.refused, link.refused - seen_link->refused);
    *seen_link = link;
    sl_pages_stats_get(d->pages, &all);
    sl_counter_add(d->report.m.stale, all.stale - before->stale);
    sl_counter_add(d->role.metrics.damaged_reused, all.damage.reused - before->damage.reused);
    sl_counter_add(d->role.metrics.damaged_verified, all.damage.verified - before->damage.verified);
    for (int i = 0; i < SL_PREFETCH_ENDS; i++)
        sl_counter_add(d->report.m.prefetches[i], all.prefetch.ended[i] - before->prefetch.ended[i]);
    sl_counter_add(d->report.m.lend.granted, all.lend.granted - before->lend.granted);
    sl_counter_add(d->report.m.lend.refused, all.lend.refused - before->lend.refused);
    sl_counter_add(d->report.m.lend.expired, all.lend.expired - before->lend.expired);
    sl_counter_add(d->report.m.lend.pages, all.lend.pages - before->lend.pages);
    sl_gauge_set(d->report.m.lend.leases, all.lend.leases);
    sl_gauge_set(d->report.m.lend.pages_now, all.lend.pages_now);
    sl_pull_stats now = all.pull, *seen = &before->pull;
    sl_counter_add(d->report.m.pull.asks, now.asks - seen->asks);
    sl_counter_add(d->report.m.pull.pages, now.pages - seen->pages);
    sl_counter_add(d->report.m.pull.bytes, now.bytes - seen->bytes);
    sl_counter_add(d->report.m.pull.seconds, now.ns - seen->ns);
    for (int i = 0; i < SL_PULL_REASONS; i++)
        sl_counter_add(d->report.m.pull.misses[i], now.misses[i] - seen->misses[i]);
    sl_gauge_set(d->report.m.pull.leases, now.leases);
    sl_gauge_set(d->report.m.pull.pages_now, now.leased_pages);
    sl_gauge_set(d->report.m.pull.rate, (double)now.rate);
    atomic_store(&d->role.load.peer_rate, now.rate);
    *before = all;
}

/* Not after every step, because reading the counters may copy from the device. */
static void report_engine(sl_decode *d)
{
    sl_engine_stats now;
    uint64_t t = sl_now_ns();
    if (t - d->report.engine_seen_ns < ENGINE_STATS_NS)
        return;
    d->report.engine_seen_ns = t;
    for (int i = 0; sl_pages_cascade(d->pages) && i < sl_cascade_n_tiers(sl_pages_cascade(d->pages)); i++)
        report_tier(d, i);
    sl_report_quotas(d);
    d->o.role.runner->stats(d->o.role.runner->impl, &now);
    atomic_store(&d->role.load.hits, now.hits + now.tail_hits);
    atomic_store(&d->role.load.misses, now.misses);
    atomic_store(&d->role.load.swap_bytes, now.swap_bytes);
    sl_counter_add(d->report.m.tiles_read,
                   (now.tiles - now.tiles_skipped) -
                       (d->report.engine_seen.tiles - d->report.engine_seen.tiles_skipped));
    sl_counter_add(d->report.m.tiles_skipped, now.tiles_skipped - d->report.engine_seen.tiles_skipped);
    sl_counter_add(d->report.m.swap_bytes, now.swap_bytes - d->report.engine_seen.swap_bytes);
    sl_counter_add(d->report.m.swap_exposed, now.swap_exposed_ns - d->report.engine_seen.swap_exposed_ns);
    sl_counter_add(d->report.m.swap_hidden,
                   (now.swap_ns - now.swap_exposed_ns) -
                       (d->report.engine_seen.swap_ns - d->report.engine_seen.swap_exposed_ns));
    sl_gauge_set(d->report.m.device_used, (double)now.kv_bytes_used);
    sl_gauge_set(d->report.m.device_total, (double)now.kv_bytes);
    d->report.engine_seen = now;
    if (!d->o.role.worker.metrics)
        return;
    d->o.role.runner->layer_stats(d->o.role.runner->impl, d->report.layers_now);
    for (int32_t l = 0; l < d->geo->n_layers; l++) {
        const sl_layer_stats *a = &d->report.layers_now[l], *b = &d->report.layers_seen[l];
        sl_counter_add(d->report.m.layer_hit[l], a->hits + a->tail_hits - b->hits - b->tail_hits);
        sl_counter_add(d->report.m.layer_miss[l], a->misses - b->misses);
        sl_counter_add(d->report.m.layer_evict[l], a->evictions - b->evictions);
        d->report.layers_seen[l] = *a;
    }
}

static void count_run(sl_decode *d, const sl_run_stats *now)
{
    const sl_run_stats *seen = &d->report.run_seen;
    sl_counter_add(d->report.m.stale, now->stale - seen->stale);
    sl_counter_add(d->report.m.t_committed, now->committed - seen->committed);
    sl_counter_add(d->report.m.t_aborted, now->aborted - seen->aborted);
    sl_counter_add(d->report.m.t_expired, now->expired - seen->expired);
    sl_counter_add(d->report.m.t_refused, now->refused - seen->refused);
    sl_counter_add(d->report.m.checksum, now->checksums - seen->checksums);
    sl_counter_add(d->report.m.retractions, now->retracted - seen->retracted);
    sl_counter_add(d->report.m.spills, now->spilled - seen->spilled);
    sl_counter_add(d->report.m.tokens, now->tokens - seen->tokens);
    sl_counter_add(d->report.m.prompts.tokens, now->prompt_tokens - seen->prompt_tokens);
    sl_counter_add(d->report.m.prompts.reused, now->prompt_reused - seen->prompt_reused);
    sl_counter_add(d->role.metrics.damaged_reused, now->damaged_reused - seen->damaged_reused);
    sl_counter_add(d->role.metrics.damaged_running, now->damaged_running - seen->damaged_running);
    d->report.run_seen = *now;
}

void sl_report_load(sl_decode *d)
{
    sl_run_stats st;
    sl_run_stats_get(d->run, &st);
    const int32_t *n = st.count;
    sl_worker_report now = {.running = (uint32_t)n[SL_TICKET_RUNNING],
                            .waiting =
                                (uint32_t)(n[SL_TICKET_LOADING] + n[SL_TICKET_LANDING] + n[SL_TICKET_PROMPT] +
                                           n[SL_TICKET_CHECKING] + n[SL_TICKET_WAITING]),
                            .queued_tokens = st.queued_tokens,
                            .landing_pages = st.landing_pages};
    atomic_store(&d->role.load.tokens_done, st.tokens + st.prompt_tokens);
    sl_worker_role_report(&d->role, &now);
    count_run(d, &st);
    sl_gauge_set(d->report.m.running, n[SL_TICKET_RUNNING]);
    sl_gauge_set(d->report.m.waiting, n[SL_TICKET_WAITING]);
    sl_gauge_set(d->report.m.prompts.running, st.prompts);
    sl_gauge_set(d->report.m.prompts.waiting, n[SL_TICKET_PROMPT] - st.prompts);
    sl_gauge_set(d->report.m.resident, st.resident);
    sl_gauge_set(d->report.m.pages_landing, st.landing_pages);
    sl_gauge_set(d->report.m.reserved, n[SL_TICKET_LANDING]);
    sl_gauge_set(d->report.m.filling, n[SL_TICKET_CHECKING]);
    sl_gauge_set(d->report.m.quarantined, n[SL_TICKET_QUARANTINE] + n[SL_TICKET_ENDING]);
    for (int i = 0; sl_pages_cascade(d->pages) && i < sl_cascade_n_tiers(sl_pages_cascade(d->pages)); i++)
        report_cascade(d, i);
    report_pulls(d);
    report_engine(d);
}
