/*
 * Creation, the engine thread's loop, the callbacks that the worker core makes on the transport thread,
 * destruction.
 */
#include "prefill/prefill.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prefill/prefill_impl.h"

enum {
    IDLE_MS = 100,
    LEAVE_MS = 150 /* so that the router hears of it and what was on its way is refused */
};

/* ---- transport thread ---- */

static void on_router_up(void *arg, const sl_msg_welcome *w)
{
    (void)arg;
    (void)w;
}

static void on_router_down(void *arg, sl_status st, const char *why)
{
    (void)st;
    (void)why;
    sl_ship_router_down(arg);
}

static void on_fatal(void *arg, sl_status st, const char *why)
{
    sl_prefill *p = arg;
    p->fatal_status = st;
    strncpy(p->fatal_reason, why, sizeof p->fatal_reason - 1);
    p->fatal_mail.kind = PM_FATAL;
    sl_mailbox_post(p->inbox, &p->fatal_mail.link);
}

static void hand_over(sl_prefill *p, sl_wmsg *m, int kind)
{
    m->mail.kind = kind;
    sl_mailbox_post(p->inbox, &m->mail.link);
}

static void on_router_msg(void *arg, sl_wmsg *m)
{
    sl_prefill *p = arg;
    switch (m->msg.type) {
    case SL_MSG_PREFILL:
        sl_ship_new(p, m);
        return;
    case SL_MSG_ABORT:
        sl_ship_abort(p, m->msg.abort.rid, m->msg.abort.attempt);
        break;
    case SL_MSG_FLUSH_CACHE:
        hand_over(p, m, PM_FLUSH_CACHE);
        return;
    case SL_MSG_DRAIN:
        hand_over(p, m, PM_DRAIN);
        return;
    default:
        sl_counter_add(p->c.stale, 1);
        break;
    }
    sl_wmsg_free(m);
}

static void on_load(void *arg, sl_msg_load *out)
{
    sl_prefill *p = arg;
    out->running = atomic_load(&p->load.running);
    out->waiting = atomic_load(&p->load.waiting);
    out->free_pages = atomic_load(&p->load.free_pages);
    out->cached_pages = atomic_load(&p->load.cached_pages);
    out->total_pages = (uint32_t)sl_arena_pages(p->o.arena);
    out->queued_tokens = atomic_load(&p->load.queued_tokens);
    out->tokens_done = atomic_load(&p->load.tokens_done);
    out->draining = atomic_load(&p->load.draining) != 0;
}

static void on_accepted(void *arg, sl_wep *ep, const char *address)
{
    (void)arg;
    (void)address;
    sl_wep_close(ep, SL_TP_CLOSE_FORCE); /* cannot happen: we do not listen */
}

static void on_connected(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_dpeer_connected(arg, ep, st, why);
}

static void on_msg(void *arg, sl_wep *ep, sl_wmsg *m)
{
    sl_dpeer_msg(arg, ep, m);
}

static void on_failed(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_dpeer_failed(arg, ep, st, why);
}

static void on_closed(void *arg, sl_wep *ep)
{
    sl_dpeer_closed(arg, ep);
}

static void on_mail(void *arg, sl_wmail *m)
{
    sl_ship_mail(arg, m);
}

static uint64_t on_tick(void *arg, uint64_t now)
{
    sl_prefill *p = arg;
    uint64_t a = sl_ship_tick(p, now), b = sl_dpeer_tick(p, now);
    if (sl_ship_pump(p))
        return now;
    return a < b ? a : b;
}

static sl_worker_role make_role(sl_prefill *p)
{
    return (sl_worker_role){.arg = p,
                            .comp = "prefill",
                            .router_up = on_router_up,
                            .router_down = on_router_down,
                            .fatal = on_fatal,
                            .router_msg = on_router_msg,
                            .load = on_load,
                            .ep_accepted = on_accepted,
                            .ep_connected = on_connected,
                            .ep_msg = on_msg,
                            .ep_failed = on_failed,
                            .ep_closed = on_closed,
                            .mail = on_mail,
                            .tick = on_tick};
}

/* ---- engine thread ---- */

static void take_mail(sl_prefill *p)
{
    for (sl_mail *m; (m = sl_mailbox_take(p->inbox));)
        sl_pengine_mail(p, (sl_wmail *)m);
}

/* The flag may be set by a signal handler or by another thread. */
static bool stopping(const volatile int *stop)
{
    return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

sl_status sl_prefill_run(sl_prefill *p, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err)
{
    uint64_t give_up = UINT64_MAX, told = 0;
    for (;;) {
        take_mail(p);
        if (p->fatal)
            return sl_fail(err, p->fatal_status, "%s", p->fatal_reason);
        if (stopping(stop) && give_up == UINT64_MAX) {
            p->draining = true;
            told = sl_now_ns();
            give_up = told + drain_timeout_ms * 1000000ull;
            sl_pengine_publish_load(p);
            sl_worker_tell_router(p->worker, &(sl_msg){.type = SL_MSG_DRAIN});
        }
        uint64_t now = sl_now_ns();
        if (stopping(stop) && ((!p->n_jobs && now >= told + LEAVE_MS * 1000000ull) || now >= give_up))
            return SL_OK;
        sl_pengine_admit(p);
        sl_status st;
        bool worked = sl_pengine_step(p, &st, err);
        sl_pengine_publish_load(p);
        if (st != SL_OK)
            return st;
        if (!worked)
            sl_mailbox_wait(p->inbox, IDLE_MS);
    }
}

static void find_metrics(sl_prefill *p, sl_metrics *m)
{
    p->c.tokens = sl_metrics_counter(m, "sluice_prefill_tokens_total", NULL);
    p->c.reused_local = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("local"));
    p->c.reused_remote = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("remote"));
    p->c.transfer_ok = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("ok"));
    p->c.transfer_aborted = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("aborted"));
    p->c.transfer_failed = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("failed"));
    p->c.transfer_bytes = sl_metrics_counter(m, "sluice_transfer_bytes_total", NULL);
    p->c.put_ok = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("put", "ok"));
    p->c.put_failed = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("put", "failed"));
    p->c.put_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("put"));
    p->c.get_ok = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("get", "ok"));
    p->c.get_failed = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("get", "failed"));
    p->c.get_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("get"));
    p->c.stale = sl_metrics_counter(m, "sluice_messages_dropped_total", SL_LABELS("stale"));
    p->c.checksum = sl_metrics_counter(m, "sluice_checksum_failures_total", NULL);
    p->c.queries = sl_metrics_counter(m, "sluice_kv_prefix_queries_tokens_total", NULL);
    p->c.hits = sl_metrics_counter(m, "sluice_kv_prefix_hits_tokens_total", NULL);
    p->c.evictions = sl_metrics_counter(m, "sluice_kv_evictions_total", NULL);
    p->c.running = sl_metrics_gauge(m, "sluice_prefill_requests_running", NULL);
    p->c.waiting = sl_metrics_gauge(m, "sluice_prefill_requests_waiting", NULL);
    p->c.v_running = sl_metrics_gauge(m, "vllm:num_requests_running", SL_LABELS(p->o.model));
    p->c.v_waiting = sl_metrics_gauge(m, "vllm:num_requests_waiting", SL_LABELS(p->o.model));
    p->c.usage = sl_metrics_gauge(m, "vllm:kv_cache_usage_perc", SL_LABELS(p->o.model));
    p->c.pages_free = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("free"));
    p->c.pages_cached = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("cached"));
    p->c.pages_active = sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("active"));
    p->c.chunk = sl_metrics_histogram(m, "sluice_prefill_chunk_seconds", NULL);
    p->c.exposed = sl_metrics_histogram(m, "sluice_transfer_exposed_seconds", NULL);
    sl_gauge_set(sl_metrics_gauge(m, "sluice_kv_pages", SL_LABELS("total")), sl_arena_pages(p->o.arena));
    sl_gauge_set(sl_metrics_gauge(m, "sluice_kv_arena_bytes", NULL), (double)sl_arena_bytes(p->o.arena));
}

static void fill_hello(sl_prefill *p)
{
    const sl_prefill_opts *o = &p->o;
    sl_msg_hello *h = &p->hello;
    h->version = SL_MSG_VERSION;
    h->role = SL_ROLE_PREFILL;
    strncpy(h->name, o->name, sizeof h->name - 1);
    strncpy(h->cluster_tag, o->cluster_tag, sizeof h->cluster_tag - 1);
    strncpy(h->model, o->model, sizeof h->model - 1);
    strncpy(h->metrics, o->metrics_address, sizeof h->metrics - 1);
    sl_geometry_write(p->geo, &p->geometry);
    h->id.fingerprint = p->geo->fingerprint;
    h->id.geometry = (sl_blob){p->geometry.data, p->geometry.len};
    h->max_context = (uint32_t)o->runner->max_context;
    h->max_batch = (uint32_t)o->max_requests;
    h->total_pages = (uint32_t)sl_arena_pages(o->arena);
    h->vocab_size = (uint32_t)o->runner->vocab;
    h->pid = (uint32_t)getpid();
}

/* What the transport must be able to put from. */
static sl_status list_device_memory(sl_prefill *p, sl_err *err)
{
    int32_t n = p->o.runner->n_layers;
    p->dev_memory = calloc(2 * (size_t)n, sizeof *p->dev_memory);
    if (!p->dev_memory)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t l = 0; l < n; l++) {
        const sl_device_layer *d = &p->dev_layers[l];
        p->dev_memory[p->n_dev_memory++] = (sl_worker_range){d->rows.base, (size_t)d->row_bytes};
        if (d->index.base)
            p->dev_memory[p->n_dev_memory++] = (sl_worker_range){d->index.base, (size_t)d->index_bytes};
    }
    return SL_OK;
}

/* For rows that go straight from the device: by the copier to a decode worker of this host, or by puts. */
static sl_status make_copier(sl_prefill *p, sl_err *err)
{
    const sl_runner *r = p->o.runner;
    if (!r->device_layers || p->o.shipping == SL_CFG_SHIP_STAGING)
        return SL_OK;
    p->dev_layers = calloc((size_t)r->n_layers, sizeof *p->dev_layers);
    if (!p->dev_layers)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    r->device_layers(r->impl, p->dev_layers);
    if (p->o.shipping == SL_CFG_SHIP_GPU)
        return list_device_memory(p, err);
    return sl_copier_create(p->o.backend, &p->o.backend_opts, PM_COPIED, &p->copier, err);
}

static sl_status make_parts(sl_prefill *p, sl_err *err)
{
    sl_store_opts so = {.n_pages = sl_arena_pages(p->o.arena),
                        .fingerprint = p->geo->fingerprint,
                        .prefix_cache = p->o.prefix_cache};
    sl_status st = sl_store_create(&so, &p->store, err);
    if (st == SL_OK)
        st = sl_sampler_create(p->o.runner->vocab, p->o.eos_ids, (size_t)p->o.n_eos, &p->sampler);
    if (st == SL_OK)
        st = sl_mailbox_create(&p->inbox);
    p->items = calloc((size_t)p->o.max_requests + 1024, sizeof *p->items);
    if (st == SL_OK && !p->items)
        st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return st == SL_OK ? make_copier(p, err) : st;
}

sl_status sl_prefill_create(const sl_prefill_opts *opts, sl_prefill **out, sl_err *err)
{
    if (opts->chunk_tokens < 1 || opts->chunk_tokens > opts->runner->max_step_tokens)
        return sl_fail(err, SL_ERR_INVALID, "prefill.chunk_tokens %d is not in 1..%d", opts->chunk_tokens,
                       opts->runner->max_step_tokens);
    if (opts->shipping == SL_CFG_SHIP_GPU && !opts->runner->device_layers)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cluster.shipping is gpu, but this engine's rows are not in a device's memory");
    sl_prefill *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    p->o = *opts;
    p->geo = sl_arena_geometry(opts->arena);
    sl_wr_init(&p->geometry);
    fill_hello(p);
    find_metrics(p, opts->worker.metrics);
    sl_status st = make_parts(p, err);
    if (st == SL_OK) {
        sl_pengine_publish_load(p);
        sl_worker_opts w = opts->worker;
        w.listens = false;
        w.memory = sl_arena_base(opts->arena);
        w.memory_bytes = sl_arena_bytes(opts->arena);
        w.device_memory = p->dev_memory;
        w.n_device_memory = p->n_dev_memory;
        w.hello = &p->hello;
        sl_worker_role role = make_role(p);
        st = sl_worker_start(&w, &role, &p->worker, err);
    }
    if (st != SL_OK) {
        sl_prefill_destroy(p);
        return st;
    }
    *out = p;
    return SL_OK;
}

/* After the transport thread is gone: jobs that were still in work. */
static void drop_jobs(sl_prefill *p)
{
    while (p->ships) {
        sl_pjob *j = p->ships;
        if (j->e.seq)
            p->o.runner->close(p->o.runner->impl, j->e.seq);
        sl_lease_release(j->e.lease, true);
        if (j->e.has_sampling)
            sl_sampling_free(&j->e.sampling);
        sl_ship_free(p, j);
    }
}

static void drop_mail(sl_prefill *p)
{
    for (sl_mail *m; p->inbox && (m = sl_mailbox_take(p->inbox));) {
        int kind = ((sl_wmail *)m)->kind;
        if (kind == PM_STEP_BACK)
            sl_pengine_mail(p, (sl_wmail *)m);
        else if (kind == PM_FLUSH_CACHE || kind == PM_DRAIN)
            sl_wmsg_free((sl_wmsg *)m);
    }
}

void sl_prefill_destroy(sl_prefill *p)
{
    if (!p)
        return;
    sl_copier_stop(p->copier); /* while the transport thread can still take what it gives back */
    sl_worker_stop(p->worker);
    drop_mail(p);
    drop_jobs(p);
    sl_path_destroy(p);
    while (p->free_steps) {
        sl_pstep *s = p->free_steps;
        p->free_steps = s->next;
        free(s);
    }
    sl_mailbox_destroy(p->inbox);
    sl_sampler_destroy(p->sampler);
    sl_store_destroy(p->store);
    sl_wr_free(&p->geometry);
    free(p->items);
    free(p);
}

sl_status sl_prefill_counts_get(const sl_prefill *p, sl_prefill_counts *out, sl_err *err)
{
    sl_store_stats st;
    sl_store_stats_get(p->store, &st);
    *out = (sl_prefill_counts){.requests = p->n_jobs,
                               .pages_total = st.total,
                               .pages_free = st.free,
                               .pages_cached = st.cached,
                               .tokens_computed = atomic_load(&p->load.tokens_done),
                               .tokens_reused = p->reused,
                               .tokens_pulled = p->pulled};
    return sl_store_check(p->store, err);
}
