/*
 * Life of the router: create, the loop, drain, destroy. One prepare handle runs before every poll and does
 * everything that must be settled before sleeping; one timer looks at deadlines and heartbeats.
 */
#include "router/router.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/model.h"
#include "router/grpc/grpc.h"
#include "router/http/http.h"
#include "router/core/core_impl.h"

enum { TICK_MS = 20, SETTLE_ROUNDS = 16 };

/* ---- model facts ---- */

static void eos_from_tokenizer(sl_router *r)
{
    int32_t eos = sl_tokenizer_eos(r->tok);
    if (eos >= 0)
        r->eos[r->n_eos++] = eos;
}

static sl_status load_model_facts(sl_router *r, sl_err *err)
{
    r->model_context = r->o.max_context;
    if (r->o.tokenizer) {
        r->tok = r->o.tokenizer;
        eos_from_tokenizer(r);
        return SL_OK;
    }
    if (!r->o.model_path || !*r->o.model_path)
        return sl_fail(err, SL_ERR_INVALID, "model.path: is not set");
    sl_status st = sl_tokenizer_load(r->o.model_path, &r->own_tok, err);
    if (st)
        return st;
    r->tok = r->own_tok;
    sl_model_config *mc = calloc(1, sizeof *mc);
    if (!mc)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    st = sl_model_config_load(r->o.model_path, mc, err);
    if (!st) {
        for (int i = 0; i < mc->n_eos && r->n_eos < SL_COUNT(r->eos); i++)
            r->eos[r->n_eos++] = mc->eos_ids[i];
        if (!r->model_context || r->model_context > mc->max_context)
            r->model_context = mc->max_context;
        memcpy(r->model_type, mc->family, sizeof mc->family);
        memcpy(r->architecture, mc->architecture, sizeof mc->architecture);
    }
    free(mc);
    if (!st && !r->n_eos)
        eos_from_tokenizer(r);
    return st;
}

static sl_status choose_names(sl_router *r, sl_err *err)
{
    r->policy = sl_policy_find(r->o.policy);
    if (!r->policy)
        return sl_fail(err, SL_ERR_INVALID, "router.policy: '%s' is unknown", r->o.policy);
    r->policy_opts = (sl_policy_opts){r->o.cache_threshold, r->o.imbalance_abs, r->o.imbalance_rel};
    if (!strcmp(r->o.chat_template, "auto"))
        r->chat = sl_chat_format_for(r->model_type);
    else if (sl_chat_format_parse(r->o.chat_template, &r->chat))
        return sl_fail(err, SL_ERR_INVALID, "router.chat_template: '%s' is unknown", r->o.chat_template);
    return SL_OK;
}

/* ---- loop ---- */

/*
 * Settles everything before the loop sleeps: what one side does (a message to a worker, a token for a client)
 * may give the other side work, so rounds repeat until nobody has any. The transport is armed by the last
 * link flush.
 */
static void on_prepare(uv_prepare_t *h)
{
    sl_router *r = h->data;
    for (int i = 0; i < SETTLE_ROUNDS; i++) {
        r->posted = false;
        sl_router_link_flush(r);
        if (r->place_again)
            sl_place_all(r);
        bool more = sl_grpc_flush(r->grpc);
        more |= sl_http_flush(r->http);
        sl_groups_sweep(r);
        if (!more && !r->posted && !r->place_again)
            return;
    }
    sl_router_link_stay_awake(r);
}

static void on_transport(uv_poll_t *h, int status, int events)
{
    (void)h;
    (void)status;
    (void)events; /* waking was the purpose: prepare progresses */
}

static void begin_drain(sl_router *r)
{
    if (r->draining)
        return;
    r->draining = true;
    r->drain_deadline_ns = sl_now_ns() + r->o.drain_timeout_ms * SL_MS;
    sl_log(SL_LOG_INFO, "router", "drain_begin", "active=%u timeout_ms=%u", r->active, r->o.drain_timeout_ms);
    sl_grpc_drain(r->grpc);
    sl_http_drain(r->http);
}

static void stop_loop(sl_router *r, sl_status st)
{
    if (r->stopping)
        return;
    r->stopping = true;
    r->result = st;
    sl_log(st ? SL_LOG_WARN : SL_LOG_INFO, "router", "drain_end", "active=%u status=%s", r->active,
           sl_status_name(st));
    uv_stop(&r->loop);
}

static void check_drain(sl_router *r, uint64_t now)
{
    int calls = __atomic_load_n(&r->stop_calls, __ATOMIC_SEQ_CST);
    if (calls > 1)
        stop_loop(r, SL_ERR_CANCELLED);
    else if (calls > 0)
        begin_drain(r);
    if (!r->draining || r->stopping)
        return;
    if (!r->active && !r->queue_head && sl_http_idle(r->http) && sl_grpc_idle(r->grpc))
        stop_loop(r, SL_OK);
    else if (now >= r->drain_deadline_ns)
        stop_loop(r, SL_ERR_DEADLINE);
}

static void on_tick(uv_timer_t *h)
{
    sl_router *r = h->data;
    uint64_t now = sl_now_ns();
    sl_members_tick(r, now);
    r->last_tick_ns = now;
    sl_requests_tick(r, now);
    sl_place_all(r); /* backed-off requests, workers that may be asked again */
    sl_grpc_tick(r->grpc, now);
    sl_router_stats_tick(r);
    check_drain(r, now);
}

static void on_wake(uv_async_t *h)
{
    check_drain(h->data, sl_now_ns());
}

static void on_signal(uv_signal_t *h, int signum)
{
    (void)signum;
    sl_router_stop(h->data);
}

void sl_router_stop(sl_router *r)
{
    __atomic_add_fetch(&r->stop_calls, 1, __ATOMIC_SEQ_CST);
    uv_async_send(&r->wake);
}

static sl_status start_loop(sl_router *r, sl_err *err)
{
    if (uv_loop_init(&r->loop))
        return sl_fail(err, SL_ERR_IO, "cannot make an event loop");
    r->loop_ready = true;
    uv_prepare_init(&r->loop, &r->prepare);
    uv_idle_init(&r->loop, &r->idle);
    uv_timer_init(&r->loop, &r->tick);
    uv_async_init(&r->loop, &r->wake, on_wake);
    uv_signal_init(&r->loop, &r->sigterm);
    uv_signal_init(&r->loop, &r->sigint);
    r->prepare.data = r->idle.data = r->tick.data = r->wake.data = r->sigterm.data = r->sigint.data = r;
    uv_prepare_start(&r->prepare, on_prepare);
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    if (r->o.signals) {
        signal(SIGPIPE, SIG_IGN);
        uv_signal_start(&r->sigterm, on_signal, SIGTERM);
        uv_signal_start(&r->sigint, on_signal, SIGINT);
    }
    return SL_OK;
}

static sl_status poll_transport(sl_router *r, sl_err *err)
{
    if (uv_poll_init(&r->loop, &r->tp_poll, sl_tp_event_fd(r->tp)))
        return sl_fail(err, SL_ERR_IO, "cannot poll the transport");
    r->have_poll = true;
    r->tp_poll.data = r;
    uv_poll_start(&r->tp_poll, UV_READABLE, on_transport);
    return SL_OK;
}

sl_status sl_router_create_opts(const sl_router_opts *o, sl_router **out, sl_err *err)
{
    sl_router *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    r->o = *o;
    r->epoch = sl_random_u64();
    r->next_rid = r->epoch & 0xffffffff00000000ull;
    r->started_ns = r->last_tick_ns = r->last_ping_ns = sl_now_ns();
    r->started_unix = (int64_t)time(NULL);
    sl_status st = sl_router_stats_init(&r->stats, o->served_name);
    if (!st)
        st = load_model_facts(r, err);
    if (!st)
        st = choose_names(r, err);
    r->max_context = r->model_context;
    if (!st)
        st = start_loop(r, err);
    if (!st)
        st = sl_router_link_open(r, err);
    if (!st)
        st = poll_transport(r, err);
    if (!st)
        st = sl_http_create(r, &r->http, err);
    if (!st)
        st = sl_grpc_create(r, &r->grpc, err);
    if (st) {
        sl_router_destroy(r);
        return st;
    }
    sl_log(SL_LOG_INFO, "router", "listening",
           "workers=%s http=%s:%d grpc=%s:%d model=%s policy=%s context=%d tls=%s", r->worker_address,
           o->http_host, sl_http_port(r->http), o->grpc_host, sl_grpc_port(r->grpc), o->served_name,
           r->policy->name, r->model_context, o->tls_cert && *o->tls_cert ? "yes" : "no");
    *out = r;
    return SL_OK;
}

const char *sl_router_worker_address(const sl_router *r)
{
    return r->worker_address;
}

int sl_router_http_port(const sl_router *r)
{
    return sl_http_port(r->http);
}

int sl_router_grpc_port(const sl_router *r)
{
    return sl_grpc_port(r->grpc);
}

sl_status sl_router_run(sl_router *r, sl_err *err)
{
    r->last_tick_ns = sl_now_ns();
    uv_run(&r->loop, UV_RUN_DEFAULT);
    if (r->result)
        return sl_fail(err, r->result, "%u requests were cut off", r->active);
    return SL_OK;
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void free_tables(sl_router *r)
{
    while (r->workers)
        sl_member_free(r->workers);
    while (r->drains) {
        sl_undrained *d = r->drains;
        r->drains = d->next;
        free(d);
    }
    for (size_t i = 0; i < SL_KV_RING; i++) {
        free(r->kv[i].stored);
        free(r->kv[i].removed);
    }
    sl_sb_free(&r->text);
    free(r->piece);
    free(r->geometry);
}

void sl_router_destroy(sl_router *r)
{
    if (!r)
        return;
    r->draining = true;
    sl_http_destroy(r->http); /* they release their groups */
    sl_grpc_destroy(r->grpc);
    sl_groups_free_all(r);
    if (r->have_poll)
        uv_poll_stop(&r->tp_poll);
    sl_router_link_close(r);
    if (r->loop_ready) {
        uv_walk(&r->loop, close_handle, NULL);
        uv_run(&r->loop, UV_RUN_DEFAULT);
        uv_loop_close(&r->loop);
    }
    free_tables(r);
    sl_tokenizer_destroy(r->own_tok);
    sl_router_stats_free(&r->stats);
    free(r);
}
