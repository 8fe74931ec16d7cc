/*
 * What the engine thread reports: changes of the prefix tree to the routers, its load for the heartbeat, metrics.
 */
#include <stdio.h>

#include "decode/decode_impl.h"

enum {
    ENGINE_STATS_NS = 100000000,
    /* Pages in one KV_EVENTS: 144 KiB, far below the limits of the transport and of a gRPC client. */
    KV_BATCH_PAGES = 512,
};

static void write_key(sl_wr *w, sl_key k)
{
    sl_wr_u64(w, k.lo);
    sl_wr_u64(w, k.hi);
}

static void stored(sl_decode *d, const sl_store_page *p)
{
    sl_key none = {0, 0};
    if (d->e.kv.removed.len || d->e.kv.stored.len >= KV_BATCH_PAGES * 32)
        sl_report_kv_events(d); /* a receiver applies the removals of a message first */
    write_key(&d->e.kv.stored, sl_key_eq(p->prev, p->seed) ? none : p->prev);
    write_key(&d->e.kv.stored, p->key);
    for (int i = 0; i < SL_PAGE_TOKENS; i++)
        sl_wr_i32(&d->e.kv.tokens, p->tokens[i]);
}

void sl_report_event(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    sl_decode *d = ctx;
    if (!d->e.n_routers)
        return; /* a new session begins with a report of the whole tree */
    switch (ev) {
    case SL_STORE_STORED:
        stored(d, page);
        break;
    case SL_STORE_REMOVED:
        if (d->e.kv.stored.len || d->e.kv.removed.len >= KV_BATCH_PAGES * 16)
            sl_report_kv_events(d);
        write_key(&d->e.kv.removed, page->key);
        break;
    case SL_STORE_CLEARED:
        d->e.kv.stored.len = d->e.kv.removed.len = d->e.kv.tokens.len = 0;
        d->e.kv.cleared = true;
        break;
    }
}

/* A batch that is lost because memory is exhausted has a sequence number as well, so the routers see the gap. */
void sl_report_kv_events(sl_decode *d)
{
    sl_wr *s = &d->e.kv.stored, *r = &d->e.kv.removed, *t = &d->e.kv.tokens;
    if (!d->e.kv.cleared && !s->len && !r->len && !s->bad && !r->bad && !t->bad)
        return;
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    m.kv_events = (sl_msg_kv_events){.stored = {s->data, s->len},
                                     .removed = {r->data, r->len},
                                     .tokens = {t->data, t->len},
                                     .cleared = d->e.kv.cleared};
    for (int i = 0; i < d->e.n_routers; i++) {
        sl_decode_router *to = &d->e.routers[i];
        if (d->e.kv.only && d->e.kv.only != to->session)
            continue;
        m.kv_events.sequence = ++to->kv_sequence;
        if (!s->bad && !r->bad && !t->bad)
            sl_worker_tell_router(d->worker, to->session, &m);
    }
    s->len = r->len = t->len = 0;
    s->bad = r->bad = t->bad = d->e.kv.cleared = false;
}

void sl_report_router_up(sl_decode *d, uint32_t router)
{
    SL_CHECK(d->e.n_routers < SL_WORKER_ROUTERS_MAX, "%d sessions", d->e.n_routers);
    sl_report_kv_events(d); /* of the other sessions; a session begins with the whole tree */
    d->e.routers[d->e.n_routers++] = (sl_decode_router){.session = router};
    sl_report_resync(d, router);
}

void sl_report_resync(sl_decode *d, uint32_t router)
{
    sl_report_kv_events(d); /* what the others have not been told yet is in the tree already */
    d->e.kv.only = router;
    d->e.kv.cleared = true;
    if (sl_store_walk(d->role.store, sl_report_event, d) != SL_OK)
        sl_log(SL_LOG_WARN, "decode", "kv_events_lost",
               "reason=\"out of memory for the list of cached pages\"");
    sl_report_kv_events(d);
    d->e.kv.only = 0;
    sl_holdings_begin(d, router);
}

void sl_report_router_down(sl_decode *d, uint32_t router)
{
    for (int i = 0; i < d->e.n_routers; i++) {
        if (d->e.routers[i].session == router)
            d->e.routers[i--] = d->e.routers[--d->e.n_routers];
    }
    if (!d->e.n_routers) { /* nothing is kept for later: the next session begins with the whole tree */
        d->e.kv.stored.len = d->e.kv.removed.len = d->e.kv.tokens.len = 0;
        d->e.kv.cleared = false;
        d->e.disk_kv.stored.len = d->e.disk_kv.removed.len = 0;
    }
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

static void find_tier(sl_decode *d, sl_metrics *m, int i)
{
    const char *tier = sl_cascade_tier_at(d->e.cascade, i)->ops->name;
    const char *const *of = SL_LABELS(tier);
    d->c.tiers[i].hits = sl_metrics_counter(m, "sluice_tier_hit_pages_total", of);
    d->c.tiers[i].stored = sl_metrics_counter(m, "sluice_tier_stored_pages_total", of);
    d->c.tiers[i].evictions = sl_metrics_counter(m, "sluice_tier_evictions_total", of);
    d->c.tiers[i].pages = sl_metrics_gauge(m, "sluice_tier_pages", of);
    d->c.tiers[i].written_ever = sl_metrics_gauge(m, "sluice_tier_written_bytes", of);
    d->c.tiers[i].state = sl_metrics_gauge(m, "sluice_tier_state", of);
    d->c.tiers[i].waiting = sl_metrics_gauge(m, "sluice_tier_requests_waiting", of);
    d->c.tiers[i].rate = sl_metrics_gauge(m, "sluice_tier_read_rate_bytes", of);
    for (int k = 0; k < SL_MISS_REASONS; k++)
        d->c.tiers[i].misses[k] =
            sl_metrics_counter(m, "sluice_tier_miss_pages_total", SL_LABELS(tier, sl_cascade_miss_names[k]));
    for (int k = 0; k < SL_LOST_REASONS; k++)
        d->c.tiers[i].lost[k] =
            sl_metrics_counter(m, "sluice_tier_lost_pages_total", SL_LABELS(tier, sl_cascade_lost_names[k]));
    d->c.tiers[i].bytes_loaded = sl_metrics_counter(m, "sluice_tier_bytes_total", SL_LABELS(tier, "load"));
    d->c.tiers[i].bytes_stored = sl_metrics_counter(m, "sluice_tier_bytes_total", SL_LABELS(tier, "store"));
    d->c.tiers[i].load_seconds = sl_metrics_counter(m, "sluice_tier_seconds_total", SL_LABELS(tier, "load"));
    d->c.tiers[i].store_seconds =
        sl_metrics_counter(m, "sluice_tier_seconds_total", SL_LABELS(tier, "store"));
    d->c.tiers[i].bytes = sl_metrics_gauge(m, "sluice_tier_bytes", SL_LABELS(tier, "used"));
    d->c.tiers[i].capacity = sl_metrics_gauge(m, "sluice_tier_bytes", SL_LABELS(tier, "capacity"));
}

static void find_prompts(sl_decode *d, sl_metrics *m)
{
    d->c.prompts.tokens = counter(m, "sluice_prefill_tokens_total", NULL);
    d->c.prompts.reused = counter(m, "sluice_prefill_reused_tokens_total", "local");
    d->c.prompts.running = sl_metrics_gauge(m, "sluice_prefill_requests_running", NULL);
    d->c.prompts.waiting = sl_metrics_gauge(m, "sluice_prefill_requests_waiting", NULL);
    d->c.prompts.chunk = sl_metrics_histogram(m, "sluice_prefill_chunk_seconds", NULL);
}

static void find_pulls(sl_decode *d, sl_metrics *m)
{
    d->c.lend.granted = counter(m, "sluice_lend_leases_total", "granted");
    d->c.lend.refused = counter(m, "sluice_lend_leases_total", "refused");
    d->c.lend.pages = counter(m, "sluice_lend_pages_total", NULL);
    d->c.lend.expired = counter(m, "sluice_lend_expired_total", NULL);
    d->c.lend.leases = sl_metrics_gauge(m, "sluice_lend_leases", NULL);
    d->c.lend.pages_now = sl_metrics_gauge(m, "sluice_lend_leased_pages", NULL);
    d->c.pull.asks = counter(m, "sluice_pull_asks_total", NULL);
    d->c.pull.pages = counter(m, "sluice_pull_pages_total", NULL);
    d->c.pull.bytes = counter(m, "sluice_pull_bytes_total", NULL);
    d->c.pull.seconds = counter(m, "sluice_pull_seconds_total", NULL);
    d->c.pull.leases = sl_metrics_gauge(m, "sluice_pull_leases", NULL);
    d->c.pull.pages_now = sl_metrics_gauge(m, "sluice_pull_leased_pages", NULL);
    d->c.pull.rate = sl_metrics_gauge(m, "sluice_pull_rate_bytes", NULL);
    for (int i = 0; i < SL_PULL_REASONS; i++)
        d->c.pull.misses[i] = counter(m, "sluice_pull_miss_pages_total", sl_pull_miss_names[i]);
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
    d->c.tiles_read = counter(m, "sluice_attention_tiles_total", "read");
    d->c.tiles_skipped = counter(m, "sluice_attention_tiles_total", "skipped");
    d->c.swap_bytes = counter(m, "sluice_swap_bytes_total", NULL);
    d->c.swap_exposed = counter(m, "sluice_swap_exposed_seconds_total", NULL);
    d->c.swap_hidden = counter(m, "sluice_swap_hidden_seconds_total", NULL);
    d->c.running = sl_metrics_gauge(m, "sluice_decode_requests_running", NULL);
    d->c.waiting = sl_metrics_gauge(m, "sluice_decode_requests_waiting", NULL);
    d->c.resident = sl_metrics_gauge(m, "sluice_decode_requests_resident", NULL);
    d->c.pages_landing = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("landing"));
    d->c.reserved = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("reserved"));
    d->c.filling = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("filling"));
    d->c.quarantined = sl_metrics_gauge(m, "sluice_tickets", SL_LABELS("draining"));
    d->c.device_used = sl_metrics_gauge(m, "sluice_device_kv_bytes", SL_LABELS("used"));
    d->c.device_total = sl_metrics_gauge(m, "sluice_device_kv_bytes", SL_LABELS("total"));
    d->c.step = sl_metrics_histogram(m, "sluice_decode_step_seconds", NULL);
    d->c.batch = sl_metrics_histogram(m, "sluice_decode_batch_size", NULL);
    for (int i = 0; i < SL_PREFETCH_ENDS; i++)
        d->c.prefetches[i] = counter(m, "sluice_prefetch_total", sl_prefetch_end_names[i]);
    find_layers(d, m);
    find_pulls(d, m);
    if (d->o.prompts.chunk_tokens)
        find_prompts(d, m);
    for (int i = 0; m && d->e.cascade && i < sl_cascade_n_tiers(d->e.cascade); i++)
        find_tier(d, m, i);
}

/* The router is told the measured speed of the disk, and of the shared store that was read last. The tier of other workers
 * measures its own, for each worker (pull.h). */
static void report_rate(sl_decode *d, int i, const sl_cascade_stats *now)
{
    const sl_tier_ops *ops = sl_cascade_tier_at(d->e.cascade, i)->ops;
    uint64_t rate = (uint64_t)now->read_rate;
    if (now->read_rate == d->e.tiers_seen[i].cascade.read_rate)
        return;
    sl_gauge_set(d->c.tiers[i].rate, (double)rate);
    if (!ops->needs_source)
        atomic_store(ops->persistent && !ops->shared ? &d->role.load.disk_rate : &d->role.load.shared_rate,
                     rate);
}

static void report_cascade(sl_decode *d, int i)
{
    sl_cascade_stats now, *seen = &d->e.tiers_seen[i].cascade;
    sl_cascade_stats_get(d->e.cascade, i, &now);
    report_rate(d, i, &now);
    sl_counter_add(d->c.tiers[i].hits, now.hits - seen->hits);
    sl_counter_add(d->c.tiers[i].stored, now.stored - seen->stored);
    for (int k = 0; k < SL_MISS_REASONS; k++)
        sl_counter_add(d->c.tiers[i].misses[k], now.misses[k] - seen->misses[k]);
    for (int k = 0; k < SL_LOST_REASONS; k++)
        sl_counter_add(d->c.tiers[i].lost[k], now.lost[k] - seen->lost[k]);
    sl_counter_add(d->c.tiers[i].bytes_loaded, now.bytes_loaded - seen->bytes_loaded);
    sl_counter_add(d->c.tiers[i].bytes_stored, now.bytes_stored - seen->bytes_stored);
    sl_counter_add(d->c.tiers[i].load_seconds, now.load_ns - seen->load_ns);
    sl_counter_add(d->c.tiers[i].store_seconds, now.write_ns - seen->write_ns);
    sl_gauge_set(d->c.tiers[i].waiting, now.waiting);
    *seen = now;
}

static void report_tier(sl_decode *d, int i)
{
    sl_tier *tier = sl_cascade_tier_at(d->e.cascade, i);
    sl_tier_stats now;
    sl_tier_health health;
    sl_tier_get_stats(tier, &now);
    sl_tier_get_health(tier, &health);
    sl_counter_add(d->c.tiers[i].evictions, now.evictions - d->e.tiers_seen[i].tier.evictions);
    sl_gauge_set(d->c.tiers[i].pages, (double)now.pages);
    sl_gauge_set(d->c.tiers[i].bytes, (double)now.bytes);
    sl_gauge_set(d->c.tiers[i].capacity, (double)now.capacity_bytes);
    sl_gauge_set(d->c.tiers[i].written_ever, (double)now.bytes_written_ever);
    sl_gauge_set(d->c.tiers[i].state, health.state);
    if (health.state != d->e.tiers_seen[i].state)
        sl_log(health.state == SL_TIER_HEALTHY ? SL_LOG_INFO : SL_LOG_WARN, "decode", "tier_health",
               "tier=%s state=%d reason=\"%s\"", tier->ops->name, health.state, health.reason);
    d->e.tiers_seen[i].state = health.state;
    d->e.tiers_seen[i].tier = now;
}

static void report_pulls(sl_decode *d)
{
    sl_gauge_set(d->c.lend.leases, d->e.n_lent);
    sl_gauge_set(d->c.lend.pages_now, d->e.lent_pages);
    if (!d->e.pull)
        return;
    sl_pull_stats now, *seen = &d->e.pull_seen;
    sl_pull_stats_get(d->e.pull, &now);
    sl_counter_add(d->c.pull.asks, now.asks - seen->asks);
    sl_counter_add(d->c.pull.pages, now.pages - seen->pages);
    sl_counter_add(d->c.pull.bytes, now.bytes - seen->bytes);
    sl_counter_add(d->c.pull.seconds, now.ns - seen->ns);
    for (int i = 0; i < SL_PULL_REASONS; i++)
        sl_counter_add(d->c.pull.misses[i], now.misses[i] - seen->misses[i]);
    sl_gauge_set(d->c.pull.leases, now.leases);
    sl_gauge_set(d->c.pull.pages_now, now.leased_pages);
    sl_gauge_set(d->c.pull.rate, (double)now.rate);
    atomic_store(&d->role.load.peer_rate, now.rate);
    *seen = now;
}

/* Not after every step, because reading the counters may copy from the device. */
static void report_engine(sl_decode *d)
{
    sl_engine_stats now;
    uint64_t t = sl_now_ns();
    if (t - d->e.engine_seen_ns < ENGINE_STATS_NS)
        return;
    d->e.engine_seen_ns = t;
    for (int i = 0; d->e.cascade && i < sl_cascade_n_tiers(d->e.cascade); i++)
        report_tier(d, i);
    sl_report_quotas(d);
    d->o.role.runner->stats(d->o.role.runner->impl, &now);
    atomic_store(&d->role.load.hits, now.hits + now.tail_hits);
    atomic_store(&d->role.load.misses, now.misses);
    atomic_store(&d->role.load.swap_bytes, now.swap_bytes);
    sl_counter_add(d->c.tiles_read, (now.tiles - now.tiles_skipped) -
                                        (d->e.engine_seen.tiles - d->e.engine_seen.tiles_skipped));
    sl_counter_add(d->c.tiles_skipped, now.tiles_skipped - d->e.engine_seen.tiles_skipped);
    sl_counter_add(d->c.swap_bytes, now.swap_bytes - d->e.engine_seen.swap_bytes);
    sl_counter_add(d->c.swap_exposed, now.swap_exposed_ns - d->e.engine_seen.swap_exposed_ns);
    sl_counter_add(d->c.swap_hidden, (now.swap_ns - now.swap_exposed_ns) -
                                         (d->e.engine_seen.swap_ns - d->e.engine_seen.swap_exposed_ns));
    sl_gauge_set(d->c.device_used, (double)now.kv_bytes_used);
    sl_gauge_set(d->c.device_total, (double)now.kv_bytes);
    d->e.engine_seen = now;
    if (!d->o.role.worker.metrics)
        return;
    d->o.role.runner->layer_stats(d->o.role.runner->impl, d->e.layers_now);
    for (int32_t l = 0; l < d->geo->n_layers; l++) {
        const sl_layer_stats *a = &d->e.layers_now[l], *b = &d->e.layers_seen[l];
        sl_counter_add(d->c.layer_hit[l], a->hits + a->tail_hits - b->hits - b->tail_hits);
        sl_counter_add(d->c.layer_miss[l], a->misses - b->misses);
        sl_counter_add(d->c.layer_evict[l], a->evictions - b->evictions);
        d->e.layers_seen[l] = *a;
    }
}

/* Pages of a ticket that its writer may still write, or that are not verified yet. */
static int32_t landing_pages(const sl_ticket *t)
{
    bool arrived = t->state == TICKET_PROMPT || t->state == TICKET_WAITING || t->state == TICKET_RUNNING;
    return arrived ? 0 : sl_lease_n_pages(t->lease) - sl_lease_matched(t->lease);
}

void sl_report_load(sl_decode *d)
{
    uint32_t n[TICKET_STATES] = {0};
    uint32_t prompts = 0;
    sl_worker_report now = {0};
    for (const sl_ticket *t = d->e.tickets; t; t = t->next) {
        n[t->state]++;
        now.landing_pages += landing_pages(t);
        if (t->state == TICKET_LANDING || t->state == TICKET_PROMPT)
            now.queued_tokens += (uint64_t)(t->n_tokens - t->pos);
        prompts += t->state == TICKET_PROMPT && t->seq;
    }
    now.running = n[TICKET_RUNNING];
    now.waiting = n[TICKET_LANDING] + n[TICKET_PROMPT] + n[TICKET_CHECKING] + n[TICKET_WAITING] +
                  (uint32_t)d->e.n_loading;
    atomic_store(&d->role.load.tokens_done, d->e.count.tokens + d->e.count.prompt_tokens);
    sl_worker_role_report(&d->role, &now);
    sl_gauge_set(d->c.running, n[TICKET_RUNNING]);
    sl_gauge_set(d->c.waiting, n[TICKET_WAITING]);
    sl_gauge_set(d->c.prompts.running, prompts);
    sl_gauge_set(d->c.prompts.waiting, n[TICKET_PROMPT] - prompts);
    sl_gauge_set(d->c.resident, sl_residency_count(d));
    sl_gauge_set(d->c.pages_landing, now.landing_pages);
    sl_gauge_set(d->c.reserved, n[TICKET_LANDING]);
    sl_gauge_set(d->c.filling, n[TICKET_CHECKING]);
    sl_gauge_set(d->c.quarantined, n[TICKET_QUARANTINE] + n[TICKET_ENDING]);
    for (int i = 0; d->e.cascade && i < sl_cascade_n_tiers(d->e.cascade); i++)
        report_cascade(d, i);
    report_pulls(d);
    report_engine(d);
}
