/*
 * What others learn: changes of the prefix tree for the router, load for the heartbeat, metrics. Engine
 * thread.
 */
#include <stdio.h>

#include "decode/decode_impl.h"

enum { ENGINE_STATS_NS = 100000000 };

static void write_key(sl_wr *w, sl_key k)
{
    sl_wr_u64(w, k.lo);
    sl_wr_u64(w, k.hi);
}

void sl_report_event(void *ctx, sl_store_event ev, sl_key parent, sl_key key)
{
    sl_decode *d = ctx;
    if (!d->router_up)
        return; /* a new session begins with the whole tree */
    switch (ev) {
    case SL_STORE_STORED:
        if (d->kv_removed.len)
            sl_report_kv_events(d); /* receivers apply removals first */
        write_key(&d->kv_stored, parent);
        write_key(&d->kv_stored, key);
        break;
    case SL_STORE_REMOVED:
        if (d->kv_stored.len)
            sl_report_kv_events(d);
        write_key(&d->kv_removed, key);
        break;
    case SL_STORE_CLEARED:
        d->kv_stored.len = d->kv_removed.len = 0;
        d->kv_cleared = true;
        break;
    }
}

void sl_report_kv_events(sl_decode *d)
{
    if (!d->kv_cleared && !d->kv_stored.len && !d->kv_removed.len)
        return;
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    m.kv_events = (sl_msg_kv_events){.sequence = ++d->kv_sequence,
                                     .stored = {d->kv_stored.data, d->kv_stored.len},
                                     .removed = {d->kv_removed.data, d->kv_removed.len},
                                     .cleared = d->kv_cleared};
    if (!d->kv_stored.bad && !d->kv_removed.bad)
        sl_worker_tell_router(d->worker, &m);
    d->kv_stored.len = d->kv_removed.len = 0;
    d->kv_stored.bad = d->kv_removed.bad = d->kv_cleared = false;
}

static void on_walk(void *ctx, sl_key parent, sl_key key)
{
    sl_decode *d = ctx;
    write_key(&d->kv_stored, parent);
    write_key(&d->kv_stored, key);
}

void sl_report_router_up(sl_decode *d)
{
    d->router_up = true;
    d->kv_sequence = 0;
    d->kv_stored.len = d->kv_removed.len = 0;
    d->kv_cleared = true;
    if (sl_store_walk(d->store, on_walk, d) != SL_OK)
        d->kv_stored.len = 0;
    sl_report_kv_events(d);
}

/* ---- metrics ---- */

static sl_counter *counter(sl_metrics *m, const char *name, const char *label)
{
    return sl_metrics_counter(m, name, label ? SL_LABELS(label) : NULL);
}

static void find_layers(sl_decode *d, sl_metrics *m)
{
    for (int32_t l = 0; m && l < d->geo->n_layers; l++) {
        char layer[16];
        snprintf(layer, sizeof layer, "%d", l);
        d->c.layer_hit[l] = sl_metrics_counter(m, "sluice_swap_rows_total", SL_LABELS(layer, "hit"));
        d->c.layer_miss[l] = sl_metrics_counter(m, "sluice_swap_rows_total", SL_LABELS(layer, "miss"));
        d->c.layer_evict[l] = sl_metrics_counter(m, "sluice_swap_evictions_total", SL_LABELS(layer));
    }
}

void sl_report_metrics_find(sl_decode *d, sl_metrics *m)
{
    d->c.stale = counter(m, "sluice_messages_dropped_total", "stale");
    d->c.refused = counter(m, "sluice_messages_dropped_total", "refused");
    d->c.t_committed = counter(m, "sluice_tickets_total", "committed");
    d->c.t_aborted = counter(m, "sluice_tickets_total", "aborted");
    d->c.t_expired = counter(m, "sluice_tickets_total", "expired");
    d->c.t_refused = counter(m, "sluice_tickets_total", "refused");
    d->c.checksum = counter(m, "sluice_checksum_failures_total", NULL);
    d->c.retractions = counter(m, "sluice_decode_retractions_total", NULL);
    d->c.spills = counter(m, "sluice_decode_spills_total", NULL);
    d->c.tokens = counter(m, "sluice_decode_tokens_total", NULL);
    d->c.queries = counter(m, "sluice_kv_prefix_queries_tokens_total", NULL);
    d->c.hits = counter(m, "sluice_kv_prefix_hits_tokens_total", NULL);
    d->c.evictions = counter(m, "sluice_kv_evictions_total", NULL);
    d->c.swap_bytes = counter(m, "sluice_swap_bytes_total", NULL);
    d->c.swap_exposed = counter(m, "sluice_swap_exposed_seconds_total", NULL);
    d->c.swap_hidden = counter(m, "sluice_swap_hidden_seconds_total", NULL);
    d->c.running = sl_metrics_gauge(m, "sluice_decode_requests_running", NULL);
    d->c.waiting = sl_metrics_gauge(m, "sluice_decode_requests_waiting", NULL);
    d->c.resident = sl_metrics_gauge(m, "sluice_decode_requests_resident", NULL);
    d->c.v_running = sl_metrics_gauge(m, "vllm:num_requests_running", SL_LABELS(d->o.model));
    d->c.v_waiting = sl_metrics_gauge(m, "vllm:num_requests_waiting", SL_LABELS(d->o.model));
    d->c.usage = sl_metrics_gauge(m, "vllm:kv_cache_usage_perc", SL_LABELS(d->o.model));
    d->c.pages_free = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("free"));
    d->c.pages_cached = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("cached"));
    d->c.pages_active = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("active"));
    d->c.pages_landing = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("landing"));
    d->c.reserved = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("reserved"));
    d->c.filling = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("filling"));
    d->c.quarantined = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("draining"));
    d->c.device_used = sl_metrics_gauge(m, "sluice_device_kv_bytes", SL_LABELS("used"));
    d->c.device_total = sl_metrics_gauge(m, "sluice_device_kv_bytes", SL_LABELS("total"));
    d->c.step = sl_metrics_histogram(m, "sluice_decode_step_seconds", NULL);
    d->c.batch = sl_metrics_histogram(m, "sluice_decode_batch_size", NULL);
    sl_gauge_set(sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("total")), sl_arena_pages(d->o.arena));
    sl_gauge_set(sl_metrics_gauge(m, "sluice_kv_arena_bytes", NULL), (double)sl_arena_bytes(d->o.arena));
    find_layers(d, m);
}

/* Reading the counters may cost copies from the device: not every step. */
static void add_engine(sl_decode *d)
{
    sl_engine_stats now;
    uint64_t t = sl_now_ns();
    if (t - d->engine_seen_ns < ENGINE_STATS_NS)
        return;
    d->engine_seen_ns = t;
    d->o.runner->stats(d->o.runner->impl, &now);
    atomic_store(&d->load.hits, now.hits + now.tail_hits);
    atomic_store(&d->load.misses, now.misses);
    atomic_store(&d->load.swap_bytes, now.swap_bytes);
    sl_counter_add(d->c.swap_bytes, now.swap_bytes - d->engine_seen.swap_bytes);
    sl_counter_add(d->c.swap_exposed, now.swap_exposed_ns - d->engine_seen.swap_exposed_ns);
    sl_counter_add(d->c.swap_hidden, (now.swap_ns - now.swap_exposed_ns) -
                                         (d->engine_seen.swap_ns - d->engine_seen.swap_exposed_ns));
    sl_gauge_set(d->c.device_used, (double)now.kv_bytes_used);
    sl_gauge_set(d->c.device_total, (double)now.kv_bytes);
    d->engine_seen = now;
    if (!d->o.worker.metrics)
        return;
    d->o.runner->layer_stats(d->o.runner->impl, d->layers_now);
    for (int32_t l = 0; l < d->geo->n_layers; l++) {
        const sl_layer_stats *a = &d->layers_now[l], *b = &d->layers_seen[l];
        sl_counter_add(d->c.layer_hit[l], a->hits + a->tail_hits - b->hits - b->tail_hits);
        sl_counter_add(d->c.layer_miss[l], a->misses - b->misses);
        sl_counter_add(d->c.layer_evict[l], a->evictions - b->evictions);
        d->layers_seen[l] = *a;
    }
}

static void add_store(sl_decode *d, const sl_store_stats *st, int32_t landing)
{
    sl_gauge_set(d->c.pages_free, st->free);
    sl_gauge_set(d->c.pages_cached, st->cached);
    sl_gauge_set(d->c.pages_landing, landing);
    sl_gauge_set(d->c.pages_active, st->held - landing > 0 ? st->held - landing : 0);
    sl_gauge_set(d->c.usage, (double)st->held / st->total);
    sl_counter_add(d->c.queries, st->query_tokens - d->store_queries);
    sl_counter_add(d->c.hits, st->hit_tokens - d->store_hits);
    sl_counter_add(d->c.evictions, st->evictions - d->store_evictions);
    d->store_queries = st->query_tokens;
    d->store_hits = st->hit_tokens;
    d->store_evictions = st->evictions;
}

void sl_report_load(sl_decode *d)
{
    sl_store_stats st;
    sl_store_stats_get(d->store, &st);
    uint32_t n[TICKET_QUARANTINE + 1] = {0};
    int32_t landing = 0;
    uint64_t queued = 0;
    for (const sl_ticket *t = d->tickets; t; t = t->next) {
        n[t->state]++;
        if (t->state == TICKET_LANDING || t->state == TICKET_CHECKING || t->state == TICKET_QUARANTINE)
            landing += sl_lease_n_pages(t->lease) - sl_lease_matched(t->lease);
        if (t->state == TICKET_LANDING)
            queued += (uint64_t)t->n_tokens;
    }
    uint32_t waiting = n[TICKET_LANDING] + n[TICKET_CHECKING] + n[TICKET_WAITING];
    atomic_store(&d->load.running, n[TICKET_RUNNING]);
    atomic_store(&d->load.waiting, waiting);
    atomic_store(&d->load.free_pages, (uint32_t)st.free);
    atomic_store(&d->load.cached_pages, (uint32_t)st.cached);
    atomic_store(&d->load.queued_tokens, queued);
    atomic_store(&d->load.tokens_done, d->tokens);
    atomic_store(&d->load.draining, d->draining);
    sl_gauge_set(d->c.running, n[TICKET_RUNNING]);
    sl_gauge_set(d->c.v_running, n[TICKET_RUNNING]);
    sl_gauge_set(d->c.resident, sl_residency_count(d));
    sl_gauge_set(d->c.waiting, n[TICKET_WAITING]);
    sl_gauge_set(d->c.v_waiting, waiting);
    sl_gauge_set(d->c.reserved, n[TICKET_LANDING]);
    sl_gauge_set(d->c.filling, n[TICKET_CHECKING]);
    sl_gauge_set(d->c.quarantined, n[TICKET_QUARANTINE]);
    add_store(d, &st, landing);
    add_engine(d);
}
