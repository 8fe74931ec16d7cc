/*
 * Life of the router: create, the loop, drain, destroy. One prepare handle runs before every poll and does everything
 * that must be settled before the loop sleeps; one timer looks at deadlines and heartbeats.
 */
#include "router/router.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "router/core/core_impl.h"
#include "router/front.h"
#include "router/served.h"

enum {
    SETTLE_ROUNDS = 16,
    CPU_READ_NS = 1000000,
    TURN_NS = 20000000,  /* after which a turn ends as soon as it can */
    LONG_NS = 50000000,  /* of CPU time: more than a turn should take */
    LAST_WORDS_MS = 1000 /* for the errors of requests that a drain cut off */
};

static sl_status choose_names(sl_router *r, sl_err *err)
{
    r->queue.policy = sl_policy_find(r->o.placement.policy);
    if (!r->queue.policy)
        return sl_fail(err, SL_ERR_INVALID, "router.policy: '%s' is unknown", r->o.placement.policy);
    const sl_options *options = r->queue.policy->options;
    if (options && r->o.placement.policy_options)
        memcpy(r->queue.policy_options, r->o.placement.policy_options, options->bytes);
    else if (options)
        sl_options_default(options, r->queue.policy_options);
    if (!strcmp(r->o.model.chat_template, "auto"))
        r->model.chat = sl_chat_format_for(r->model.model_type, r->model.tok);
    else if (sl_chat_format_parse(r->o.model.chat_template, &r->model.chat))
        return sl_fail(err, SL_ERR_INVALID, "router.chat_template: '%s' is unknown",
                       r->o.model.chat_template);
    return SL_OK;
}

/* ---- fronts ---- */

static sl_status create_fronts(sl_router *r, sl_err *err)
{
    for (size_t i = 0; i < SL_FRONTS; i++)
        SL_TRY(sl_front_at(i)->create(r, &r->loop, &r->fronts[i], err));
    return SL_OK;
}

static bool flush_fronts(sl_router *r)
{
    bool any = false;
    for (size_t i = 0; i < SL_FRONTS; i++) {
        sl_router_work(r, sl_front_at(i)->name);
        if (r->fronts[i])
            any |= r->fronts[i]->c->flush(r->fronts[i]);
    }
    return any;
}

static bool fronts_behind(const sl_router *r)
{
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (r->fronts[i] && r->fronts[i]->c->behind(r->fronts[i]))
            return true;
    }
    return false;
}

static void tick_fronts(sl_router *r, uint64_t now)
{
    for (size_t i = 0; i < SL_FRONTS; i++) {
        sl_router_work(r, sl_front_at(i)->name);
        if (r->fronts[i])
            r->fronts[i]->c->tick(r->fronts[i], now);
    }
}

static bool fronts_idle(const sl_router *r)
{
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (r->fronts[i] && !r->fronts[i]->c->idle(r->fronts[i]))
            return false;
    }
    return true;
}

sl_front_shared *sl_router_shared(sl_router *r)
{
    return &r->shared;
}

sl_budget *sl_router_budget(sl_router *r)
{
    return &r->shared.budget;
}

sl_pool *sl_router_pool(sl_router *r)
{
    return &r->shared.pool;
}

sl_tls *sl_router_tls(sl_router *r)
{
    return r->tls;
}

/* Descriptors that clients cannot take: workers, their transports, files, health checks. */
enum { RESERVED_DESCRIPTORS = 256 };

static void limit_connections(sl_router *r)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur == RLIM_INFINITY)
        return;
    rlim_t room =
        lim.rlim_cur > 2 * RESERVED_DESCRIPTORS ? lim.rlim_cur - RESERVED_DESCRIPTORS : lim.rlim_cur / 2;
    if (r->o.front.max_connections <= room / SL_FRONTS)
        return;
    uint32_t n = room < SL_FRONTS ? 1 : (uint32_t)(room / SL_FRONTS);
    sl_log(SL_LOG_WARN, "router", "connections_limited",
           "router.max_connections=%u lowered_to=%u descriptors=%lu", r->o.front.max_connections, n,
           (unsigned long)lim.rlim_cur);
    r->o.front.max_connections = n;
}

/* ---- loop ---- */

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sl_router_turn(const sl_router *r)
{
    return r->life.turns;
}

uint64_t sl_router_turn_ns(const sl_router *r)
{
    const sl_router_life *l = &r->life;
    if (!l->turn_ns)
        return 0;
    uint64_t past = sl_now_ns() - l->turn_ns,
             slept = uv_metrics_idle_time((uv_loop_t *)&r->loop) - l->turn_idle_ns;
    return past > slept ? past - slept : 0;
}

const char *sl_router_work(sl_router *r, const char *name)
{
    return sl_work_enter(&r->life.work, name, sl_now_ns());
}

/* What sockets, timers and the pool call between two turns of settle(); the loop sleeps within it. */
static const char CALLBACKS[] = "sockets and timers";

/* At most once in a second. */
static void tell_long_turn(sl_router *r, uint64_t now, uint64_t turn, uint64_t cpu_turn, uint64_t slept)
{
    sl_router_life *l = &r->life;
    uint64_t ns;
    if (now - l->told_ns < 1000 * SL_MS)
        return;
    l->told_ns = now;
    sl_work_slept(&l->work, CALLBACKS, slept);
    const char *name = sl_work_most(&l->work, &ns);
    sl_log(SL_LOG_WARN, "router", "long_turn", "cpu_ms=%lu ms=%lu work=\"%s\" work_ms=%lu",
           (unsigned long)(cpu_turn / SL_MS), (unsigned long)(turn / SL_MS), name,
           (unsigned long)(ns / SL_MS));
}

/*
 * The time of a turn is the time since the last call, less what the loop slept meanwhile. Reading the thread's CPU time is
 * a system call, so it is read at most once in CPU_READ_NS: a turn in between was shorter than that and counts with its
 * time, and a longer turn may be given so much CPU time of the turns before it, but never more than its time.
 */
static void observe_turn(sl_router *r)
{
    uint64_t now = sl_now_ns(), idle = uv_metrics_idle_time(&r->loop);
    sl_router_life *l = &r->life;
    uint64_t past = now - l->turn_ns, slept = idle - l->turn_idle_ns, turn = past > slept ? past - slept : 0;
    uint64_t cpu_turn = turn;
    if (now - l->cpu_read_ns >= CPU_READ_NS) {
        uint64_t cpu = thread_cpu_ns();
        if (cpu - l->turn_cpu_ns < turn)
            cpu_turn = cpu - l->turn_cpu_ns;
        l->turn_cpu_ns = cpu;
        l->cpu_read_ns = now;
    }
    if (l->turn_ns) {
        sl_histogram_observe(r->stats.loop.turn, (double)turn / 1e9);
        sl_histogram_observe(r->stats.loop.turn_cpu, (double)cpu_turn / 1e9);
        if (cpu_turn > LONG_NS)
            tell_long_turn(r, now, turn, cpu_turn, slept);
    }
    l->turn_ns = now;
    l->turn_idle_ns = idle;
    l->turns++;
    sl_work_reset(&l->work, now);
}

static const char EFFECTS[] = "effects of events";

/*
 * Settles everything before the loop sleeps: what one side does (a message of a worker, a call of a client) may give
 * the other side work, so rounds repeat until there is none. The transport is armed by the last flush of the link.
 */
static void settle(sl_router *r)
{
    for (int i = 0; i < SETTLE_ROUNDS; i++) {
        r->link.posted = false;
        sl_router_work(r, "messages of workers");
        sl_router_link_flush(r);
        sl_router_work(r, EFFECTS);
        sl_effects_run(r);
        bool more = flush_fronts(r);
        if (r->link.written.n && !fronts_behind(r))
            sl_written_done(&r->link.written);
        sl_router_work(r, EFFECTS);
        sl_effects_run(r);
        sl_router_work(r, "groups that ended");
        sl_groups_sweep(r);
        if (!more && !r->link.posted)
            return;
        if (sl_router_turn_ns(r) >= TURN_NS)
            break; /* the rest in the next turn, after what has arrived meanwhile */
    }
    sl_router_link_stay_awake(r);
}

static void on_prepare(uv_prepare_t *h)
{
    settle(h->data);
    sl_router_work(h->data, CALLBACKS);
    observe_turn(h->data);
}

static void on_transport(uv_poll_t *h, int status, int events)
{
    (void)h, (void)status, (void)events; /* waking was the purpose: prepare progresses */
}

static void begin_drain(sl_router *r)
{
    if (r->life.draining)
        return;
    r->life.draining = true;
    r->life.drain_deadline_ns = sl_now_ns() + r->o.drain_timeout_ms * SL_MS;
    sl_log(SL_LOG_INFO, "router", "drain_begin", "active=%u timeout_ms=%u", r->requests.active,
           r->o.drain_timeout_ms);
    sl_router_pool_stop(r, SL_ERR_PEER); /* what is not admitted yet would be refused */
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (r->fronts[i])
            r->fronts[i]->c->drain(r->fronts[i]);
    }
}

static void stop_loop(sl_router *r, sl_status st)
{
    if (r->life.stopping)
        return;
    r->life.stopping = true;
    r->life.result = st;
    sl_log(st ? SL_LOG_WARN : SL_LOG_INFO, "router", "drain_end", "active=%u status=%s", r->requests.active,
           sl_status_name(st));
    uv_stop(&r->loop);
}

/* The drain took too long: every request ends with an error that its client can read, then the loop stops. */
static void cut_requests(sl_router *r, uint64_t now)
{
    r->life.cut = r->requests.active;
    r->life.drain_deadline_ns = now + LAST_WORDS_MS * SL_MS;
    r->life.cutting = true;
    for (sl_group *g = r->requests.groups; g; g = g->next) {
        for (uint32_t i = 0; i < g->n_requests; i++)
            sl_request_fail(r, g->requests[i], SL_ERR_PEER,
                            "the server is shutting down (router.drain_timeout_ms)");
    }
    sl_effects_run(r);
}

static bool all_done(const sl_router *r)
{
    return !r->requests.active && !r->queue.length && fronts_idle(r);
}

static void check_drain(sl_router *r, uint64_t now)
{
    int calls = __atomic_load_n(&r->life.stop_calls, __ATOMIC_SEQ_CST);
    if (calls > 1)
        stop_loop(r, SL_ERR_CANCELLED);
    else if (calls > 0)
        begin_drain(r);
    if (!r->life.draining || r->life.stopping)
        return;
    if (now >= r->life.drain_deadline_ns && !r->life.cutting && !all_done(r))
        cut_requests(r, now);
    if (all_done(r))
        stop_loop(r, r->life.cutting ? SL_ERR_DEADLINE : SL_OK);
    else if (now >= r->life.drain_deadline_ns)
        stop_loop(r, SL_ERR_DEADLINE);
}

void sl_router_core_tick(sl_router *r, uint64_t now)
{
    sl_members_tick(r, now);
    r->cluster.last_tick_ns = now;
    sl_requests_tick(r, now);
    sl_queue_tick(r, now);
    r->queue.dirty = true; /* requests whose backoff is over, workers that may be asked again */
    sl_effects_run(r);
}

static void on_tick(uv_timer_t *h)
{
    sl_router *r = h->data;
    uint64_t now = sl_now_ns();
    const char *before = sl_router_work(r, "tick: requests and workers");
    sl_router_core_tick(r, now);
    sl_router_work(r, "tick: pool");
    sl_router_pool_tick(r, now);
    tick_fronts(r, now);
    sl_router_work(r, "tick: metrics");
    sl_router_stats_tick(r);
    sl_router_work(r, before);
    check_drain(r, now);
}

static void on_wake(uv_async_t *h)
{
    check_drain(h->data, sl_now_ns());
}

static void on_sighup(uv_signal_t *h, int signum)
{
    (void)signum;
    sl_router_reload(h->data);
}

static void on_signal(uv_signal_t *h, int signum)
{
    (void)signum;
    sl_router_stop(h->data);
}

void sl_router_stop(sl_router *r)
{
    __atomic_add_fetch(&r->life.stop_calls, 1, __ATOMIC_SEQ_CST);
    uv_async_send(&r->life.wake);
}

/* ---- create ---- */

static sl_status start_loop(sl_router *r, sl_err *err)
{
    sl_router_life *l = &r->life;
    if (uv_loop_init(&r->loop))
        return sl_fail(err, SL_ERR_IO, "cannot make an event loop");
    l->loop_ready = true;
    uv_loop_configure(&r->loop, UV_METRICS_IDLE_TIME);
    uv_prepare_init(&r->loop, &l->prepare);
    uv_idle_init(&r->loop, &r->link.idle);
    uv_timer_init(&r->loop, &l->tick);
    uv_async_init(&r->loop, &l->wake, on_wake);
    uv_signal_init(&r->loop, &l->sigterm);
    uv_signal_init(&r->loop, &l->sigint);
    uv_signal_init(&r->loop, &l->sighup);
    l->prepare.data = r->link.idle.data = l->tick.data = l->wake.data = l->sigterm.data = l->sigint.data =
        l->sighup.data = r;
    uv_prepare_start(&l->prepare, on_prepare);
    uv_timer_start(&l->tick, on_tick, SL_ROUTER_TICK_MS, SL_ROUTER_TICK_MS);
    if (r->o.signals) {
        signal(SIGPIPE, SIG_IGN);
        uv_signal_start(&l->sigterm, on_signal, SIGTERM);
        uv_signal_start(&l->sigint, on_signal, SIGINT);
        uv_signal_start(&l->sighup, on_sighup, SIGHUP);
    }
    return SL_OK;
}

static sl_status poll_transport(sl_router *r, sl_err *err)
{
    if (uv_poll_init(&r->loop, &r->link.poll, sl_tp_event_fd(r->link.tp)))
        return sl_fail(err, SL_ERR_IO, "cannot poll the transport");
    r->link.have_poll = true;
    r->link.poll.data = r;
    uv_poll_start(&r->link.poll, UV_READABLE, on_transport);
    return SL_OK;
}

/* Whatever fails, sl_router_destroy undoes what was done. */
static sl_status open_router(sl_router *r, sl_err *err)
{
    r->cluster.epoch = sl_random_u64();
    r->requests.next_rid = r->cluster.epoch & 0xffffffff00000000ull;
    r->cluster.next_id = ((uint32_t)r->cluster.epoch & 0x7ffff) << 12;
    r->life.started_ns = r->cluster.last_tick_ns = r->cluster.last_ping_ns = sl_now_ns();
    r->life.started_unix = (int64_t)time(NULL);
    SL_TRY(sl_router_stats_init(&r->stats, r->o.model.served_name));
    SL_TRY(sl_traced_open(r, err));
    SL_TRY(sl_served_model_load(&r->model, &r->o, &r->own_tok, err));
    SL_TRY(choose_names(r, err));
    if (r->o.front.keys_file && *r->o.front.keys_file)
        SL_TRY(sl_tenants_load(r->o.front.keys_file, &r->tenants, err));
    SL_TRY(sl_router_load_tls(r, err));
    SL_TRY(sl_cluster_init(r, err));
    r->cluster.max_context = r->model.context;
    sl_status st = sl_directory_create(r->o.placement.directory_bytes, &r->directory);
    if (st != SL_OK)
        return sl_fail(err, st, "router.directory_bytes (%lu): %s", r->o.placement.directory_bytes,
                       st == SL_ERR_INVALID ? "want at least 1 MiB" : "out of memory");
    if (sl_effects_init(r) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(start_loop(r, err));
    SL_TRY(sl_router_link_open(r, err));
    SL_TRY(poll_transport(r, err));
    return create_fronts(r, err);
}

/* A body of more than a request may ever hold can never be served, so it is too large and not too early: 413, not 429. */
static void limit_bodies(sl_router *r)
{
    uint64_t most = sl_front_most(&r->o);
    if (r->o.front.max_body_bytes <= most)
        return;
    sl_log(SL_LOG_WARN, "router", "bodies_limited",
           "router.max_body_bytes=%lu lowered_to=%lu router.max_request_bytes=%lu",
           (unsigned long)r->o.front.max_body_bytes, (unsigned long)most,
           (unsigned long)r->o.front.max_request_bytes);
    r->o.front.max_body_bytes = most;
}

sl_status sl_router_create_opts(const sl_router_opts *o, sl_router **out, sl_err *err)
{
    sl_router *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    r->o = *o;
    limit_connections(r);
    limit_bodies(r);
    sl_status st = open_router(r, err);
    if (st) {
        sl_router_destroy(r);
        return st;
    }
    sl_log(SL_LOG_INFO, "router", "listening",
           "workers=%s http=%s:%d grpc=%s:%d model=%s policy=%s context=%d tls=%s", r->link.address,
           o->front.host, sl_router_http_port(r), o->front.host, sl_router_grpc_port(r), o->model.served_name,
           r->queue.policy->name, r->model.context, r->tls ? "yes" : "no");
    *out = r;
    return SL_OK;
}

/* ---- use ---- */

const char *sl_router_worker_address(const sl_router *r)
{
    return r->link.address;
}

static int port_of(const sl_router *r, const sl_front_class *c)
{
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (r->fronts[i] && r->fronts[i]->c == c)
            return c->port(r->fronts[i]);
    }
    return -1;
}

int sl_router_http_port(const sl_router *r)
{
    return port_of(r, &sl_front_http);
}

int sl_router_grpc_port(const sl_router *r)
{
    return port_of(r, &sl_front_grpc);
}

sl_status sl_router_run(sl_router *r, sl_err *err)
{
    r->cluster.last_tick_ns = sl_now_ns();
    uv_run(&r->loop, UV_RUN_DEFAULT);
    if (r->life.result)
        return sl_fail(err, r->life.result, "%u requests were cut off", r->life.cut);
    return SL_OK;
}

/* ---- destroy ---- */

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void destroy_fronts(sl_router *r)
{
    for (size_t i = 0; i < SL_FRONTS; i++) {
        sl_front *f = r->fronts[i];
        r->fronts[i] = NULL;
        if (f)
            f->c->destroy(f);
    }
}

static void free_tables(sl_router *r)
{
    while (r->cluster.members)
        sl_member_free(r->cluster.members);
    sl_undrained_free(r);
    sl_cache_free(r);
    sl_kv_free(r);
    sl_directory_destroy(r->directory);
    sl_queue_free(r);
    sl_tenants_free(&r->tenants);
    sl_tls_unref(r->tls);
    sl_effects_free(r);
}

void sl_router_destroy(sl_router *r)
{
    if (!r)
        return;
    r->life.draining = true;
    sl_router_pool_stop(r, SL_ERR_PEER);
    destroy_fronts(r); /* they release their groups */
    sl_groups_free_all(r);
    if (r->link.have_poll)
        uv_poll_stop(&r->link.poll);
    sl_router_link_close(r);
    if (r->life.loop_ready) {
        uv_walk(&r->loop, close_handle, NULL);
        uv_run(&r->loop, UV_RUN_DEFAULT);
        uv_loop_close(&r->loop);
    }
    free_tables(r);
    sl_grammars_close(r->model.grammars);
    sl_tokenizer_destroy(r->own_tok);
    sl_traces_close(r->traces);
    sl_router_stats_free(&r->stats);
    free(r);
}
