/*
 * Order: device, weights, host store, engine (with what the device has left), exporter. Whatever "auto"
 * stands for is settled and logged here.
 */
#include "worker/setup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/metrics_http.h"
#include "base/version.h"
#include "engine/choose.h"
#include "engine/plan.h"
#include "transport/nic.h"
#include "worker/fit.h"

enum { PROGRESS_LOG_S = 2 };

typedef struct setup {
    const sl_config *cfg;
    const sl_worker_launch *launch;
    sl_role role;
    const char *comp;
    sl_parts *p;
    sl_model_config mc;
    sl_model_opts mo;
    uint64_t load_started_ns, load_logged_ns;
} setup;

/* The list by rank, or one number, or by local rank. The router computes nothing: on its host the devices
 * begin with the next rank. */
static int pick_device(const setup *s)
{
    const sl_config *c = s->cfg;
    if (s->launch->rank >= 0 && s->launch->rank < c->backend.devices.n)
        return c->backend.devices.v[s->launch->rank];
    if (c->backend.device >= 0)
        return c->backend.device;
    int local = s->launch->local_rank, first = s->launch->rank - local;
    if (local < 0)
        return 0;
    for (int r = first; r >= 0 && r < s->launch->rank && r < c->cluster.roles.n; r++) {
        if (c->cluster.roles.v[r] == SL_ROLE_ROUTER)
            return local - 1;
    }
    return local;
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    setup *s = ctx;
    uint64_t now = sl_now_ns();
    if (now - s->load_logged_ns < PROGRESS_LOG_S * 1000000000ull)
        return;
    s->load_logged_ns = now;
    sl_log(SL_LOG_INFO, s->comp, "loading", "done_mib=%.0f total_mib=%.0f", (double)done / 1048576,
           (double)total / 1048576);
}

/* Before anything is loaded: minutes later would be late to learn it. */
static sl_status check_weights(const setup *s, sl_dtype stored, sl_err *err)
{
    uint64_t free_bytes = 0, total = 0;
    sl_status st = sl_be_memory(s->p->backend, &free_bytes, &total, err);
    if (st == SL_OK)
        st = sl_fit_weights(sl_fit_file_bytes(s->cfg->model.path), stored, free_bytes, total,
                            sl_backend_describe(s->p->backend), err);
    return st;
}

static sl_status load_model(setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_dtype stored;
    sl_index_format index;
    sl_row_format row;
    sl_status st = sl_model_config_load(c->model.path, &s->mc, err);
    if (st == SL_OK)
        st = sl_model_stored_dtype(c->model.path, &stored, err);
    if (st != SL_OK)
        return st;
    sl_model_auto_formats(&s->mc, stored, &index, &row);
    if (c->model.indexer != SL_CFG_INDEXER_AUTO)
        index = c->model.indexer == SL_CFG_INDEXER_PLAIN ? SL_INDEX_PLAIN : SL_INDEX_OFFICIAL;
    if (c->model.row_format != SL_CFG_ROWS_AUTO)
        row = (sl_row_format)(c->model.row_format - SL_CFG_ROWS_MLA_F32);
    bool prefill = s->role == SL_ROLE_PREFILL;
    s->mo = (sl_model_opts){.index_format = index,
                            .row_format = row,
                            .act = stored == SL_F32 ? SL_F32 : SL_BF16,
                            .max_tokens = prefill ? c->prefill.chunk_tokens : c->decode.max_batch,
                            .max_logit_rows = prefill ? c->prefill.max_requests : c->decode.max_batch,
                            .progress = on_progress,
                            .progress_ctx = s};
    if (s->mo.max_logit_rows > s->mo.max_tokens)
        s->mo.max_logit_rows = s->mo.max_tokens;
    s->load_started_ns = s->load_logged_ns = sl_now_ns();
    st = check_weights(s, stored, err);
    if (st == SL_OK)
        st = sl_model_load(s->p->backend, c->model.path, &s->mo, &s->p->model, err);
    if (st == SL_OK)
        sl_log(SL_LOG_INFO, s->comp, "model",
               "path=\"%s\" architecture=%s layers=%d weight_mib=%.1f load_s=%.2f", c->model.path,
               s->mc.architecture, s->mc.n_layers, (double)sl_model_weight_bytes(s->p->model) / 1048576,
               (double)(sl_now_ns() - s->load_started_ns) / 1e9);
    return st;
}

static void find_nics(setup *s)
{
    sl_nic nics[SL_NIC_MAX];
    size_t n = 0;
    char text[1024] = "";
    s->p->numa_node = s->cfg->kvstore.numa_node;
    if (sl_nic_list(nics, SL_COUNT(nics), &n, NULL) != SL_OK)
        n = 0;
    for (size_t i = 0; i < n && s->p->numa_node < 0; i++)
        s->p->numa_node = nics[i].active ? nics[i].numa_node : -1;
    sl_nic_describe(nics, n, text, sizeof text);
    if (s->cfg->cluster.devices[0])
        snprintf(s->p->devices, sizeof s->p->devices, "%s", s->cfg->cluster.devices);
    sl_log(SL_LOG_INFO, s->comp, "nics", "numa_node=%d devices=\"%s\" found=\"%s\"", s->p->numa_node,
           s->p->devices, n ? text : "none");
}

/* Prefill workers of this host may then write into a decode worker's store directly. */
static bool share_arena(const setup *s)
{
    sl_cfg_shipping want = s->cfg->cluster.shipping;
    return s->role == SL_ROLE_DECODE && (want == SL_CFG_SHIP_AUTO || want == SL_CFG_SHIP_DIRECT);
}

static sl_status make_arena(setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_geometry g;
    sl_layout layout;
    SL_TRY(sl_choose_layout(sl_config_enum_name("kvstore.layout", (int)c->kvstore.layout),
                            sl_backend_caps(s->p->backend), &layout, err));
    SL_TRY(sl_engine_geometry(&s->mc, s->mo.row_format, s->mo.index_format, layout,
                              sl_model_fingerprint(s->p->model), &g, err));
    sl_arena_opts o = {.bytes = c->kvstore.bytes,
                       .huge_pages = (sl_switch)c->kvstore.huge_pages,
                       .lock = (sl_switch)c->kvstore.lock,
                       .numa_node = s->p->numa_node,
                       .shared = share_arena(s)};
    SL_TRY(sl_arena_create(&g, &o, &s->p->arena, err));
    sl_log(SL_LOG_INFO, s->comp, "arena", "store=\"%s\"", sl_arena_describe(s->p->arena));
    return SL_OK;
}

/* Device memory for the cache. On the host backend device and host memory are the same: at most half of what
 * is left. */
static sl_status device_budget(setup *s, uint64_t *out, sl_err *err)
{
    uint64_t free_bytes = 0, total = 0;
    if (s->cfg->decode.device_bytes && s->role == SL_ROLE_DECODE) {
        *out = s->cfg->decode.device_bytes;
        return SL_OK;
    }
    sl_status st = sl_be_memory(s->p->backend, &free_bytes, &total, err);
    if (st != SL_OK)
        return st;
    bool unified = sl_backend_caps(s->p->backend) & SL_BE_UNIFIED;
    *out = unified ? free_bytes / 2 : free_bytes - free_bytes / 16;
    return SL_OK;
}

static sl_status gate_opts(const setup *s, sl_plan_in *in, sl_engine_opts *o, int32_t *dense, sl_err *err)
{
    const sl_config *c = s->cfg;
    for (int i = 0; i < c->sparse_attention.dense_layers.n; i++)
        dense[i] = c->sparse_attention.dense_layers.v[i];
    in->dense_layers = o->dense_layers = dense;
    in->n_dense_layers = o->n_dense_layers = c->sparse_attention.dense_layers.n;
    in->sink_tokens = o->sink_tokens = c->sparse_attention.sink_tokens;
    in->recent_tokens = o->recent_tokens = c->sparse_attention.recent_tokens;
    in->min_tokens = o->min_tokens = c->sparse_attention.min_tokens;
    in->algorithm = o->algorithm = c->sparse_attention.algorithm == SL_CFG_ALGORITHM_DSA ? "dsa" : "dense";
    SL_TRY(sl_choose_policy(sl_config_enum_name("sparse_attention.policy", (int)c->sparse_attention.policy),
                            sl_backend_caps(s->p->backend), &o->policy, err));
    in->policy = o->policy;
    return SL_OK;
}

static sl_status layer_opts(const setup *s, sl_plan_in *in, sl_engine_opts *o, int32_t *rows, sl_err *err)
{
    int n = s->cfg->sparse_attention.hot_rows_layers.n;
    if (n != s->mc.n_layers)
        return sl_fail(err, SL_ERR_INVALID,
                       "sparse_attention.hot_rows_layers has %d entries, the model has %d layers", n,
                       s->mc.n_layers);
    for (int l = 0; l < n; l++)
        rows[l] = s->cfg->sparse_attention.hot_rows_layers.v[l];
    in->hot_rows_layer = o->hot_rows_layer = rows;
    return SL_OK;
}

static sl_status make_engine(setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_engine_opts *o = &s->p->engine_opts;
    static _Thread_local int32_t dense[SL_CFG_MAX_LAYERS], hot_layer[SL_CFG_MAX_LAYERS];
    bool prefill = s->role == SL_ROLE_PREFILL,
         hot = !prefill && c->sparse_attention.mode != SL_CFG_MODE_RESIDENT;
    int32_t most = c->model.max_context, seqs = prefill ? c->prefill.max_requests : c->decode.max_batch;
    if (!most || most > s->mc.max_context)
        most = s->mc.max_context;
    int64_t store_tokens = (int64_t)sl_arena_pages(s->p->arena) * SL_PAGE_TOKENS;
    if (most > store_tokens)
        most = (int32_t)store_tokens; /* no longer request can ever be held */
    sl_plan_in in = {.cfg = &s->mc,
                     .row_format = s->mo.row_format,
                     .index_format = s->mo.index_format,
                     .hot_rows = c->sparse_attention.hot_rows,
                     .tail_rows = c->sparse_attention.tail_rows,
                     .max_context = most,
                     .max_step_tokens = s->mo.max_tokens,
                     .max_seqs = seqs,
                     .host_bytes = sl_arena_bytes(s->p->arena)};
    SL_TRY(gate_opts(s, &in, o, dense, err));
    sl_status st =
        hot && c->sparse_attention.hot_rows_layers.n ? layer_opts(s, &in, o, hot_layer, err) : SL_OK;
    sl_plan plan;
    if (st == SL_OK)
        st = device_budget(s, &in.gpu_bytes, err);
    if (st == SL_OK)
        st = sl_plan_make(&in, &plan, err);
    if (st == SL_OK)
        st = sl_fit_pools(&plan, hot ? SL_HIERARCHICAL : SL_RESIDENT, seqs, most,
                          prefill ? "prefill.max_requests" : "decode.max_batch", o, err);
    if (st != SL_OK)
        return st;
    o->max_step_tokens = s->mo.max_tokens;
    st = sl_engine_create(s->p->backend, s->p->model, s->p->arena, o, &s->p->engine, err);
    if (st != SL_OK)
        return st;
    s->p->runner = sl_runner_for_engine(s->p->engine, sl_model_get_config(s->p->model), o);
    sl_engine_stats es;
    sl_engine_stats_get(s->p->engine, &es);
    sl_log(
        SL_LOG_INFO, s->comp, "plan",
        "mode=%s algorithm=%s policy=%s max_context=%d max_seqs=%d hot_rows=%d tail_rows=%d index_pages=%ld "
        "row_pages=%ld device_mib=%.1f device_budget_mib=%.1f",
        prefill ? "resident" : sl_config_enum_name("sparse_attention.mode", (int)c->sparse_attention.mode),
        o->algorithm, sl_evict_policy_name(o->policy), o->max_context, o->max_seqs, o->hot_rows, o->tail_rows,
        (long)o->index_pages, (long)o->row_pages, (double)es.device_bytes / 1048576,
        (double)in.gpu_bytes / 1048576);
    return SL_OK;
}

/* The local address of the route to the router: what others on that network reach us at. */
static void route_address(const char *router, char *out, size_t cap)
{
    char host[SL_TP_ADDRESS_MAX], port[8];
    uint16_t number;
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_DGRAM};
    out[0] = '\0';
    if (sl_tp_address_parse(router, host, sizeof host, &number, NULL) != SL_OK)
        return;
    snprintf(port, sizeof port, "%u", number ? number : 9);
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return;
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage me;
    socklen_t n = sizeof me;
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&me, &n) == 0 &&
        getnameinfo((struct sockaddr *)&me, n, out, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
}

/* Rows are put straight from the device: the transport's thread works with its memory. */
static sl_status use_device(void *arg, sl_err *err)
{
    return sl_be_use_thread(arg, err);
}

static sl_worker_opts core_opts(setup *s)
{
    const sl_config *c = s->cfg;
    sl_parts *p = s->p;
    bool ucx = c->cluster.transport == SL_CFG_TRANSPORT_UCX;
    if (!c->cluster.advertise_host[0] && ucx)
        route_address(s->launch->router_address, p->listen_host, sizeof p->listen_host);
    sl_worker_opts o = {.transport = ucx ? "ucx" : "loopback",
                        .tls = c->cluster.tls,
                        .devices = p->devices,
                        .numa_node = p->numa_node,
                        .router_address = s->launch->router_address,
                        .listen_host = p->listen_host,
                        .listen_port = (uint16_t)c->cluster.listen_port,
                        .advertise_host = c->cluster.advertise_host,
                        .heartbeat_ms = (uint32_t)c->cluster.heartbeat_ms,
                        .dead_after_ms = (uint32_t)c->cluster.dead_after_ms,
                        .connect_timeout_ms = (uint32_t)c->cluster.connect_timeout_ms,
                        .reconnect_ms = (uint32_t)c->cluster.reconnect_ms,
                        .metrics = p->metrics};
    if (s->role == SL_ROLE_PREFILL && c->cluster.shipping == SL_CFG_SHIP_GPU) {
        o.enter = use_device;
        o.enter_arg = p->backend;
    }
    return o;
}

static void fill_role_opts(setup *s)
{
    sl_parts *p = s->p;
    const sl_config *c = s->cfg;
    const sl_model_config *mc = sl_model_get_config(p->model);
    p->role =
        (sl_worker_role_opts){.worker = core_opts(s),
                              .name = p->name,
                              .model = c->model.served_name,
                              .cluster_tag = c->cluster.tag,
                              .metrics_address = p->metrics_address,
                              .runner = &p->runner,
                              .arena = p->arena,
                              .eos_ids = mc->eos_ids,
                              .n_eos = mc->n_eos,
                              .prefix_cache = c->kvstore.prefix_cache,
                              .verify_checksums = s->role == SL_ROLE_PREFILL ? c->prefill.verify_checksums
                                                                             : c->decode.verify_checksums};
}

static sl_status start_metrics(setup *s, sl_err *err)
{
    sl_parts *p = s->p;
    unsigned roles = s->role == SL_ROLE_PREFILL ? SL_METRICS_PREFILL : SL_METRICS_DECODE;
    sl_status st = sl_metrics_create(roles, &p->metrics);
    if (st != SL_OK)
        return sl_fail(err, st, "metrics: out of memory");
    char pages[16];
    snprintf(pages, sizeof pages, "%d", sl_arena_pages(p->arena));
    sl_gauge_set(sl_metrics_gauge(p->metrics, "sluice_build_info",
                                  SL_LABELS(SL_VERSION, sl_role_name(s->role), sl_backend_name(p->backend))),
                 1);
    sl_gauge_set(sl_metrics_gauge(p->metrics, "vllm:cache_config_info", SL_LABELS("64", pages)), 1);
    if (!s->cfg->metrics.port)
        return SL_OK;
    int port = s->cfg->metrics.port + s->launch->rank;
    st = sl_exporter_start(p->metrics, s->cfg->metrics.host, port, NULL, NULL, &p->exporter, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "metrics.port");
    snprintf(p->metrics_address, sizeof p->metrics_address, "%.100s:%d", s->cfg->metrics.host,
             sl_exporter_port(p->exporter));
    sl_log(SL_LOG_INFO, s->comp, "metrics", "address=%s", p->metrics_address);
    return SL_OK;
}

sl_status sl_parts_create(const sl_config *cfg, const sl_worker_launch *launch, sl_role role, sl_parts *out,
                          sl_err *err)
{
    memset(out, 0, sizeof *out);
    setup s = {.cfg = cfg, .launch = launch, .role = role, .comp = sl_role_name(role), .p = out};
    snprintf(out->name, sizeof out->name, "%s/%d", sl_role_name(role), launch->index);
    static const char *const backends[] = {"cpu", "cuda"};
    sl_backend_opts bo = {.device = pick_device(&s), .threads = cfg->backend.threads};
    out->device = bo.device;
    sl_status st = sl_backend_create(backends[cfg->backend.name], &bo, &out->backend, err);
    if (st == SL_OK) {
        sl_log(SL_LOG_INFO, s.comp, "device", "backend=%s number=%d device=\"%s\"",
               sl_backend_name(out->backend), bo.device, sl_backend_describe(out->backend));
        find_nics(&s);
        st = load_model(&s, err);
    }
    if (st == SL_OK)
        st = make_arena(&s, err);
    if (st == SL_OK)
        st = make_engine(&s, err);
    if (st == SL_OK)
        st = start_metrics(&s, err);
    if (st != SL_OK) {
        sl_parts_destroy(out);
        return st;
    }
    fill_role_opts(&s);
    return SL_OK;
}

void sl_parts_destroy(sl_parts *p)
{
    sl_exporter_stop(p->exporter);
    sl_metrics_destroy(p->metrics);
    sl_engine_destroy(p->engine);
    sl_arena_destroy(p->arena);
    sl_model_destroy(p->model);
    sl_backend_destroy(p->backend);
    memset(p, 0, sizeof *p);
}
