/* The workers of the test cluster, its start and stop, and what tests ask it for. cluster_router.c has the router. */
#include "tests/unit/worker/cluster.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const uint64_t MS = 1000000;

static const sl_shipping *default_shipping(void)
{
    const sl_shipping *want = sl_shipping_find(getenv("SL_SHIP"));
    return want ? want : &sl_shipping_staging;
}

cluster_opts cluster_defaults(void)
{
    return (cluster_opts){.n_prefill = 1,
                          .n_decode = 1,
                          .prefill_pages = 64,
                          .decode_pages = 64,
                          .layers = 3,
                          .indexers = 2,
                          .rows = SL_ROW_MLA_FP8,
                          .index = SL_INDEX_OFFICIAL,
                          .vocab = 97,
                          .chunk_tokens = 128,
                          .max_requests = 4,
                          .max_batch = 8,
                          .max_waiting = 8,
                          .max_seqs = 16,
                          .max_context = 4096,
                          .times.drain_ms = 1000,
                          .times.quarantine_ms = 2000,
                          .times.deadline_ms = 20000,
                          .times.leave_ms = 300,
                          .verify = SL_CFG_VERIFY_ALWAYS,
                          .shipping = default_shipping(),
                          .eos = -1};
}

static sl_geometry make_geometry(const cluster_opts *o, sl_layout layout)
{
    sl_geometry g = o->geometry;
    g.layout = layout;
    if (g.n_layers)
        return g;
    bool has_indexer[SL_GEOMETRY_MAX_LAYERS] = {0};
    for (int l = 0; l < o->layers; l++)
        has_indexer[l] = l % 3 < o->indexers;
    sl_cache_dims d = {.rows = sl_row_format_of(o->rows),
                       .index_format = o->index,
                       .latent = 128,
                       .rope = 16,
                       .index_dim = o->indexers ? 32 : 0};
    sl_cache_shape shape;
    sl_geometry_opts go = {.fingerprint = {11, 12},
                           .layout = layout,
                           .shape = &shape,
                           .n_layers = o->layers,
                           .has_indexer = has_indexer};
    ck_assert_int_eq(sl_cache_shape_make(&d, &shape, NULL), SL_OK);
    ck_assert_int_eq(sl_geometry_make(&go, &g, NULL), SL_OK);
    return g;
}

/* ---- workers ---- */

static void hook(void *arg, sl_transport *tp)
{
    cworker *w = arg;
    sl_tp_stats s;
    sl_tp_get_stats(tp, &s);
    atomic_store(&w->device_bytes_put, s.device_bytes_put);
    if (w->c->o.transport)
        return;
    if (atomic_exchange(&w->faults_change, 0))
        sl_loopback_set_default_faults(tp, &w->faults);
    if (atomic_load(&w->kill)) {
        sl_loopback_kill(tp);
        atomic_store(&w->kill, 0);
    }
}

static sl_worker_role_opts role_opts(cworker *w)
{
    const cluster_opts *o = &w->c->o;
    const cluster *second = o->second;
    return (sl_worker_role_opts){.worker = {.transport = o->transport ? o->transport : "loopback",
                                            .listen_host = o->transport ? "127.0.0.1" : NULL,
                                            .fabric = w->c->fabric,
                                            .numa_node = -1,
                                            .routers = {w->c->address, second ? second->address : NULL},
                                            .n_routers = second ? 2 : 1,
                                            .heartbeat_ms = 50,
                                            .dead_after_ms = 3000,
                                            .connect_timeout_ms = 1000,
                                            .reconnect_ms = 20,
                                            .hook = hook,
                                            .hook_arg = w},
                                 .name = w->name,
                                 .model = "m",
                                 .cluster_tag = "t",
                                 .metrics_address = "",
                                 .runner = &w->runner,
                                 .arena = w->arena,
                                 .eos_ids = &o->eos,
                                 .n_eos = o->eos >= 0,
                                 .prefix_cache = !(o->no_prefill_cache && w->role == SL_ROLE_PREFILL),
                                 .verify_checksums = w->role == SL_ROLE_PREFILL || !o->no_verify,
                                 .verify = o->verify};
}

static sl_status create(cworker *w, sl_err *err)
{
    const cluster_opts *o = &w->c->o;
    if (w->role == SL_ROLE_PREFILL) {
        sl_prefill_opts p = {.role = role_opts(w),
                             .chunk_tokens = o->chunk_tokens,
                             .max_requests = o->max_requests,
                             .shipping = o->shipping,
                             .backend = "cpu",
                             .backend_opts = {.threads = 1},
                             .drain_ms = o->times.drain_ms,
                             .direct_hook = o->direct_hook,
                             .direct_hook_arg = w};
        return sl_prefill_create(&p, &w->prefill, err);
    }
    sl_decode_opts d = {.role = role_opts(w),
                        .residency = SL_HIERARCHICAL,
                        .row_pages = o->row_pages,
                        .draft_tokens = o->draft_tokens,
                        .max_batch = o->max_batch,
                        .max_waiting = o->max_waiting,
                        .shipping = o->decode_ships_by_staging ? &sl_shipping_staging : o->shipping,
                        .pages = {.pull = o->pull,
                                  .lend = o->pull,
                                  .pull_timeout_ms = o->times.pull_timeout_ms,
                                  .prefetch = {.policy = SL_CFG_PREFETCH_WAIT_COMPLETE, .budget = 0.5}},
                        .quarantine_ms = o->times.quarantine_ms};
    return sl_decode_create(&d, &w->decode, err);
}

static void *worker_main(void *arg)
{
    cworker *w = arg;
    const cluster_opts *o = &w->c->o;
    bool p = w->role == SL_ROLE_PREFILL;
    cluster_opts mine = *o;
    mine.rows = p && o->prefill_differs ? o->prefill_rows : o->rows;
    bool second = w->index == 1 && o->second_decode_layout;
    sl_layout layout = p ? o->prefill_layout : second ? *o->second_decode_layout : o->decode_layout;
    sl_geometry g = make_geometry(&mine, layout);
    sl_arena_opts ao = {.bytes = (uint64_t)((p ? o->prefill_pages : o->decode_pages) * g.page_bytes),
                        .lock = SL_OFF,
                        .numa_node = -1,
                        .shared = !p && o->shipping != &sl_shipping_staging};
    SL_CHECK(sl_arena_create(&g, &ao, &w->arena, &w->run_err) == SL_OK, "%s", w->run_err.text);
    memset(sl_arena_base(w->arena), 0x5a, sl_arena_bytes(w->arena)); /* stale rows are not zero */
    if (o->make_runner) {
        SL_CHECK(o->make_runner(w), "no runner");
    } else {
        fake_opts f = {.vocab = o->vocab,
                       .max_context = o->max_context,
                       .max_step_tokens = p ? o->chunk_tokens : 64,
                       .max_seqs = o->max_seqs,
                       .overlaps = true,
                       .layer_us = p ? o->times.prefill_layer_us : o->times.decode_layer_us};
        w->fake = fake_create(w->arena, &f);
        w->runner = fake_runner_of(w->fake);
    }
    w->run_status = create(w, &w->run_err);
    atomic_store(&w->broken, w->run_status != SL_OK);
    if (w->run_status == SL_OK)
        w->run_status = p ? sl_prefill_run(w->prefill, &w->stop, o->times.leave_ms, &w->run_err)
                          : sl_decode_run(w->decode, &w->stop, o->times.leave_ms, &w->run_err);
    atomic_store(&w->ended, 1);
    return NULL;
}

void cworker_start(cluster *c, sl_role role, int index)
{
    cworker *w = NULL;
    for (int i = 0; i < c->n; i++) {
        if (c->w[i].role == role && c->w[i].index == index)
            w = &c->w[i];
    }
    if (!w)
        w = &c->w[c->n++];
    /* the router has not noticed its end yet, and its place in the table is about to be reused */
    else if (w->id)
        cluster_worker_lost(c, w);
    sl_loopback_faults f = role == SL_ROLE_PREFILL ? c->o.prefill_faults : (sl_loopback_faults){0};
    *w = (cworker){.c = c, .index = index, .role = role, .faults = f, .faults_change = 1, .running = true};
    snprintf(w->name, sizeof w->name, "%s/%d", sl_role_name(role), index);
    ck_assert_int_eq(pthread_create(&w->thread, NULL, worker_main, w), 0);
}

/* Frees a worker whose thread has ended. */
static void worker_free(cworker *w, bool check)
{
    sl_err err = {0};
    if (w->prefill && check) {
        sl_prefill_counts n;
        ck_assert_msg(sl_prefill_counts_get(w->prefill, &n, &err) == SL_OK, "%s: %s", w->name, err.text);
        ck_assert_msg(n.requests == 0 && n.pages_free + n.pages_cached == n.pages_total,
                      "%s leaks: %d requests, %d of %d pages", w->name, n.requests,
                      n.pages_free + n.pages_cached, n.pages_total);
        w->c->damaged_prefill += n.damaged;
        w->c->tokens_pulled += n.tokens_pulled;
    }
    if (w->decode && check) {
        sl_decode_counts n;
        ck_assert_msg(sl_decode_counts_get(w->decode, &n, &err) == SL_OK, "%s: %s", w->name, err.text);
        ck_assert_msg(n.tickets == 0 && n.pages_free + n.pages_cached == n.pages_total,
                      "%s leaks: %d tickets (%d quarantined), %d of %d pages", w->name, n.tickets,
                      n.quarantined, n.pages_free + n.pages_cached, n.pages_total);
        w->c->spilled += n.spilled;
        w->c->damaged_decode += n.damaged;
        w->c->pulled += n.pulled;
        w->c->pull_bytes += n.pull_bytes;
        w->c->pull_ns += n.pull_ns;
        w->c->leases_left += n.pull_leases + n.lend_leases;
    }
    sl_prefill_destroy(w->prefill);
    sl_decode_destroy(w->decode);
    w->prefill = NULL;
    w->decode = NULL;
    if (w->c->o.drop_runner)
        w->c->o.drop_runner(w);
    fake_destroy(w->fake);
    w->fake = NULL;
    sl_arena_destroy(w->arena);
    w->arena = NULL;
    w->running = false;
}

void cworker_kill(cworker *w)
{
    atomic_store(&w->kill, 1);
    /* The hook does it, on the worker's own thread. */
    for (int i = 0; i < 60000 && atomic_load(&w->kill); i++)
        nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
    ck_assert_msg(!atomic_load(&w->kill), "%s does not turn its loop", w->name);
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELAXED);
}

void cworker_join(cworker *w)
{
    pthread_join(w->thread, NULL);
    worker_free(w, false);
}

cworker *cluster_worker(cluster *c, sl_role role, int index)
{
    for (int i = 0; i < c->n; i++) {
        if (c->w[i].role == role && c->w[i].index == index)
            return &c->w[i];
    }
    return NULL;
}

void cluster_until(cluster *c, bool (*cond)(cluster *c), int seconds, const char *what)
{
    uint64_t end = sl_now_ns() + (uint64_t)seconds * CLUSTER_PATIENCE * 1000 * MS;
    while (!cond(c) || (c->o.second && !cond(c->o.second))) {
        cluster_poll(c, c->o.second ? 1 : 5);
        if (c->o.second)
            cluster_poll(c->o.second, 1);
        if (sl_now_ns() > end)
            ck_abort_msg("timed out: %s (request 0: state %d attempts %d reason \"%s\")", what,
                         c->req[0].state, c->req[0].attempts, c->req[0].reason);
    }
}

static bool all_joined(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        if (atomic_load(&c->w[i].broken))
            ck_abort_msg("%s: %s", c->w[i].name, c->w[i].run_err.text);
        if (!c->w[i].id || !c->w[i].load.total_pages)
            return false;
    }
    return true;
}

static void open_second(cluster *c)
{
    cluster *s = c->o.second;
    memset(s, 0, sizeof *s);
    s->o = c->o;
    s->o.second = NULL;
    s->auto_place = true;
    memcpy(s->fabric, c->fabric, sizeof s->fabric);
    s->on_msg = c->o.second_refuses;
    cluster_router_open(s);
}

void cluster_start(cluster *c, const cluster_opts *o)
{
    static int n;
    memset(c, 0, sizeof *c);
    c->o = *o;
    c->auto_place = true;
    snprintf(c->fabric, sizeof c->fabric, "test-%d-%d", (int)getpid(), n++);
    cluster_router_open(c);
    if (o->second)
        open_second(c);
    for (int i = 0; i < o->n_prefill; i++)
        cworker_start(c, SL_ROLE_PREFILL, i);
    for (int i = 0; i < o->n_decode; i++)
        cworker_start(c, SL_ROLE_DECODE, i);
    for (int i = 0; i < c->n && o->second; i++) {
        cworker *w = &o->second->w[o->second->n++];
        *w = (cworker){.c = o->second, .index = c->w[i].index, .role = c->w[i].role};
        memcpy(w->name, c->w[i].name, sizeof w->name);
    }
    if (!o->second_refuses)
        cluster_until(c, all_joined, 20, "workers join");
}

static bool drained(cluster *c)
{
    if (!c->tp)
        return true;
    for (int i = 0; i < c->n; i++) {
        const cworker *w = &c->w[i];
        if (w->id && (w->load.running || w->load.waiting ||
                      w->load.free_pages + w->load.cached_pages != w->load.total_pages))
            return false;
    }
    return true;
}

static void router_free(cluster *c)
{
    for (int i = 0; i < 20; i++) /* operations in flight complete now */
        cluster_poll(c, 1);
    sl_tp_destroy(c->tp);
    for (int i = 0; i < c->n_req; i++) {
        sl_sampling_free(&c->req[i].sampling);
        free(c->req[i].tokens);
    }
}

void cluster_stop(cluster *c)
{
    cluster_until(c, drained, 15, "workers to give everything back");
    for (int i = 0; i < c->n; i++) {
        if (!c->w[i].running)
            continue;
        __atomic_store_n(&c->w[i].stop, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < c->n; i++) {
        if (!c->w[i].running)
            continue;
        while (!atomic_load(&c->w[i].ended)) /* it waits for LEAVE */
            cluster_run_ms(c, 1);
        pthread_join(c->w[i].thread, NULL);
        ck_assert_msg(c->w[i].run_status == SL_OK, "%s: %s", c->w[i].name, c->w[i].run_err.text);
        worker_free(&c->w[i], true);
    }
    router_free(c);
    if (c->o.second)
        router_free(c->o.second);
}

void cluster_check_stream(cluster *c, const creq *r)
{
    size_t n = r->n_tokens - r->n_prompt;
    int32_t *want = malloc((n + 1) * sizeof *want);
    sl_geometry g = make_geometry(&c->o, SL_LAYOUT_PAGE_FIRST);
    fake_reference(&g, c->o.vocab, r->tokens, (int)r->n_prompt, want, (int)n);
    for (size_t i = 0; i < n; i++) {
        if (want[i] != r->tokens[r->n_prompt + i])
            ck_abort_msg("request %lx: token %zu of %zu is %d, not %d", (long)r->rid, i, n,
                         r->tokens[r->n_prompt + i], want[i]);
    }
    free(want);
}

void cluster_make_prompt(int32_t *out, int n, int vocab, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (int32_t)((seed >> 33) % (uint64_t)vocab);
    }
}

creq *cluster_ask(cluster *c, int n, int max_tokens, uint64_t seed)
{
    int32_t *prompt = malloc((size_t)n * sizeof *prompt);
    cluster_make_prompt(prompt, n, c->o.vocab, seed);
    creq *r = cluster_request(c, prompt, n, max_tokens);
    free(prompt);
    return r;
}

void cluster_check_streams(cluster *c)
{
    for (int i = 0; i < c->n_req; i++) {
        const creq *r = &c->req[i];
        if (r->state == REQ_ABORTED)
            continue;
        ck_assert_msg(r->state == REQ_DONE, "request %d: state %d, %s", i, r->state, r->reason);
        cluster_check_stream(c, r);
    }
}

void cluster_finish(cluster *c, int seconds)
{
    cluster_until(c, cluster_idle, seconds, "requests end");
    cluster_check_streams(c);
}

void cluster_run_ms(cluster *c, int ms)
{
    uint64_t end = sl_now_ns() + (uint64_t)ms * 1000000;
    while (sl_now_ns() < end)
        cluster_poll(c, 2);
}

void cworker_faults(cworker *w, sl_loopback_faults f)
{
    w->faults = f;
    atomic_store(&w->faults_change, 1);
}

static int held_wanted;

static bool pages_as_wanted(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        const sl_msg_load *l = &c->w[i].load;
        if (c->w[i].role == SL_ROLE_DECODE && c->w[i].id &&
            (int)(l->total_pages - l->free_pages - l->cached_pages) != held_wanted)
            return false;
    }
    return true;
}

void cluster_wait_pages(cluster *c, int held)
{
    held_wanted = held;
    cluster_until(c, pages_as_wanted, 15, "pages to come back");
}
