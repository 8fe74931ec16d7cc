/* See role.h. The loop of the engine thread is in role_loop.c. */
#include "worker/role.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/worker_impl.h"

static const uint64_t MS = 1000000;

static void fill_hello(sl_worker_role *r, sl_role role, const sl_worker_role_opts *o, int32_t max_batch)
{
    const sl_geometry *geo = sl_arena_geometry(o->arena);
    sl_msg_hello *h = &r->hello;
    h->version = SL_MSG_VERSION;
    h->role = role;
    strncpy(h->name, o->name, sizeof h->name - 1);
    strncpy(h->cluster_tag, o->cluster_tag, sizeof h->cluster_tag - 1);
    strncpy(h->model, o->model, sizeof h->model - 1);
    strncpy(h->metrics, o->metrics_address, sizeof h->metrics - 1);
    sl_wr_init(&r->geometry);
    sl_geometry_write(geo, &r->geometry);
    h->id.fingerprint = geo->fingerprint;
    h->id.geometry = (sl_blob){r->geometry.data, r->geometry.len};
    h->max_context = (uint32_t)o->runner->max_context;
    h->max_batch = (uint32_t)max_batch;
    h->total_pages = r->total_pages;
    h->vocab_size = (uint32_t)o->runner->vocab;
    h->pid = (uint32_t)getpid();
    gethostname(h->host, sizeof h->host - 1);
    h->instance = sl_random_u64();
    h->group = o->runner->group_number;
    h->rank = o->runner->group_rank;
    h->ranks = o->runner->group_ranks;
    h->bits = o->bits;
}

static void find_metrics(sl_worker_role *r, const sl_worker_role_opts *o)
{
    sl_metrics *m = o->worker.metrics;
    r->ages = sl_worker_ages_find(m, "host");
    r->metrics.queries = sl_metrics_counter(m, "sluice_kv_prefix_queries_tokens_total", NULL);
    r->metrics.hits = sl_metrics_counter(m, "sluice_kv_prefix_hits_tokens_total", NULL);
    r->metrics.evictions = sl_metrics_counter(m, "sluice_kv_evictions_total", NULL);
    r->metrics.damaged_reused =
        sl_metrics_counter(m, "sluice_store_damaged_pages_total", SL_LABELS("reused"));
    r->metrics.damaged_running =
        sl_metrics_counter(m, "sluice_store_damaged_pages_total", SL_LABELS("running"));
    r->metrics.damaged_verified =
        sl_metrics_counter(m, "sluice_store_damaged_pages_total", SL_LABELS("verify"));
    r->metrics.running = sl_metrics_gauge(m, "vllm:num_requests_running", SL_LABELS(o->model));
    r->metrics.waiting = sl_metrics_gauge(m, "vllm:num_requests_waiting", SL_LABELS(o->model));
    r->metrics.usage = sl_metrics_gauge(m, "vllm:kv_cache_usage_perc", SL_LABELS(o->model));
    r->metrics.pages_free = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("free"));
    r->metrics.pages_cached = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("cached"));
    r->metrics.pages_active = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("active"));
    sl_gauge_set(sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("total")), r->total_pages);
    sl_gauge_set(sl_metrics_gauge(m, "sluice_kv_arena_bytes", NULL), (double)sl_arena_bytes(o->arena));
}

sl_worker_ages sl_worker_ages_find(sl_metrics *m, const char *tier)
{
    return (sl_worker_ages){
        sl_metrics_histogram(m, "sluice_eviction_age_seconds", SL_LABELS(tier, "use")),
        sl_metrics_histogram(m, "sluice_eviction_age_seconds", SL_LABELS(tier, "stored"))};
}

void sl_worker_ages_add(void *ctx, double unused_s, double age_s)
{
    const sl_worker_ages *a = ctx;
    sl_histogram_observe(a->unused, unused_s);
    sl_histogram_observe(a->age, age_s);
}

sl_status sl_worker_role_init(sl_worker_role *r, sl_role role, const sl_worker_role_opts *o,
                              int32_t max_batch, int checked_kind, sl_store_event_fn *event, void *event_ctx,
                              sl_err *err)
{
    r->total_pages = (uint32_t)sl_arena_pages(o->arena);
    fill_hello(r, role, o, max_batch);
    if (r->geometry.bad)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    find_metrics(r, o);
    sl_store_opts so = {.n_pages = sl_arena_pages(o->arena),
                        .prefix_cache = o->prefix_cache,
                        .event = event,
                        .event_ctx = event_ctx,
                        .evicted = sl_worker_ages_add,
                        .evicted_ctx = &r->ages,
                        .quota = o->quota};
    SL_TRY(sl_store_create(&so, &r->store, err));
    SL_TRY(sl_sampler_create(o->runner->vocab, o->eos_ids, (size_t)o->n_eos, &r->sampler));
    sl_status st = sl_mailbox_create(&r->inbox);
    if (st != SL_OK)
        return sl_fail(err, st, "cannot create a mailbox");
    sl_constraints_opts constraints = {.grammars = {.dir = o->model_dir,
                                                    .vocab = o->runner->vocab,
                                                    .eos = o->eos_ids,
                                                    .n_eos = (size_t)o->n_eos},
                                       .wake = r->inbox,
                                       .metrics = o->worker.metrics};
    SL_TRY(sl_constraints_create(&constraints, &r->constraints, err));
    r->group = o->runner->group;
    st = sl_checker_open(&r->checker, o->arena, o->row_sums, o->verify, r->inbox, checked_kind);
    if (st != SL_OK)
        return sl_fail(err, st, "cannot create the checker");
    return SL_OK;
}

void sl_worker_role_close(sl_worker_role *r)
{
    sl_checker_close(&r->checker);
    sl_constraints_destroy(r->constraints);
    while (sl_worker_role_take(r)) /* what woke a loop that has ended */
        ;
    sl_mailbox_destroy(r->inbox);
    sl_sampler_destroy(r->sampler);
    sl_store_destroy(r->store);
    sl_wr_free(&r->geometry);
}

sl_worker_opts sl_worker_role_core_opts(const sl_worker_role *r, const sl_worker_role_opts *o, bool listens)
{
    sl_worker_opts w = o->worker;
    w.listens = listens;
    w.held = r->group != NULL;
    w.memory = sl_arena_base(o->arena);
    w.memory_bytes = sl_arena_bytes(o->arena);
    w.hello = &r->hello;
    return w;
}

/* ---- transport thread ---- */

void sl_worker_role_fatal(sl_worker_role *r, sl_status st, const char *why)
{
    r->fatal_status = st;
    strncpy(r->fatal_reason, why, sizeof r->fatal_reason - 1);
    r->fatal_mail.kind = SL_WMAIL_FATAL;
    sl_mailbox_post(r->inbox, &r->fatal_mail.link);
}

void sl_worker_role_read_load(sl_worker_role *r, sl_msg_load *out)
{
    out->running = atomic_load(&r->load.running);
    out->waiting = atomic_load(&r->load.waiting);
    out->free_pages = atomic_load(&r->load.free_pages);
    out->cached_pages = atomic_load(&r->load.cached_pages);
    out->total_pages = r->total_pages;
    out->queued_tokens = atomic_load(&r->load.queued_tokens);
    out->tokens_done = atomic_load(&r->load.tokens_done);
    out->hits = atomic_load(&r->load.hits);
    out->misses = atomic_load(&r->load.misses);
    out->swap_bytes = atomic_load(&r->load.swap_bytes);
    out->draining = atomic_load(&r->load.leaving) != 0;
    out->prefill_rate = (uint32_t)atomic_load(&r->load.prefill_rate);
    out->disk_rate = atomic_load(&r->load.disk_rate);
    out->shared_rate = atomic_load(&r->load.shared_rate);
    out->peer_rate = atomic_load(&r->load.peer_rate);
    uint64_t turn = atomic_load(&r->load.turn_ns), now = sl_now_ns();
    out->engine_age_ms = turn && now > turn ? (uint32_t)((now - turn) / MS) : 0;
    out->checker_age_ms = sl_watch_age_ms(&r->checker.watch, now);
}

/* ---- engine thread ---- */

sl_wmail *sl_worker_role_take(sl_worker_role *r)
{
    for (sl_wmail *m; r->inbox && (m = (sl_wmail *)sl_mailbox_take(r->inbox));) {
        if (m->kind == SL_WMAIL_HELD)
            r->ending--;
        if (m->kind == SL_WMAIL_WAKE || m->kind == SL_WMAIL_HELD)
            free(m);
        else if (m->kind == SL_WMAIL_FATAL)
            r->failed = true;
        else
            return m;
    }
    return NULL;
}

static void report_store(sl_worker_role *r, const sl_store_stats *st, int32_t landing)
{
    sl_gauge_set(r->metrics.pages_free, st->free);
    sl_gauge_set(r->metrics.pages_cached, st->cached);
    sl_gauge_set(r->metrics.pages_active, st->held - landing > 0 ? st->held - landing : 0);
    sl_gauge_set(r->metrics.usage, (double)st->held / st->total);
    sl_counter_add(r->metrics.queries, st->query_tokens - r->seen.query_tokens);
    sl_counter_add(r->metrics.hits, st->hit_tokens - r->seen.hit_tokens);
    sl_counter_add(r->metrics.evictions, st->evictions - r->seen.evictions);
    r->seen = *st;
}

void sl_worker_role_report(sl_worker_role *r, const sl_worker_report *now)
{
    sl_store_stats st;
    sl_store_stats_get(r->store, &st);
    atomic_store(&r->load.running, now->running);
    atomic_store(&r->load.waiting, now->waiting);
    atomic_store(&r->load.free_pages, (uint32_t)st.free);
    atomic_store(&r->load.cached_pages, (uint32_t)st.cached);
    atomic_store(&r->load.queued_tokens, now->queued_tokens);
    atomic_store(&r->load.leaving, r->leaving);
    sl_gauge_set(r->metrics.running, now->running);
    sl_gauge_set(r->metrics.waiting, now->waiting);
    report_store(r, &st, now->landing_pages);
}
