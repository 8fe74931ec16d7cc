/* The host store of a worker, and its engine with the device memory that is left. See setup_impl.h. */
#include <stdio.h>

#include "engine/choose.h"
#include "engine/plan.h"
#include "kernels/space.h"
#include "worker/fit.h"
#include "worker/setup_impl.h"

static sl_switch switch_of(sl_cfg_tristate t)
{
    static const sl_switch of[] = {
        [SL_CFG_TRI_AUTO] = SL_AUTO, [SL_CFG_TRI_ON] = SL_ON, [SL_CFG_TRI_OFF] = SL_OFF};
    return of[t];
}

sl_status sl_setup_pin(sl_setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_layout layout;
    sl_geometry g;
    SL_TRY(sl_choose_layout(c->kvstore.layout, sl_backend_caps(s->p->backend), &layout, err));
    SL_TRY(sl_engine_geometry(&s->mc, &s->cache, s->p->engine_opts.algorithm, layout, s->mo.fingerprint, &g,
                              err));
    SL_TRY(sl_setup_check_store(c->kvstore.bytes, &g, s->mc.max_context, 0, err));
    sl_arena_opts o = {.bytes = c->kvstore.bytes,
                       .huge_pages = SL_AUTO,
                       .lock = switch_of(c->kvstore.lock),
                       .numa_node = s->p->numa_node,
                       .shared =
                           sl_role_does(s->role, SL_ROLE_DECODE) && sl_shipping_shares_store(s->p->shipping)};
    return sl_pinning_start(&g, &o, s->p->backend, &s->pinning, err);
}

sl_status sl_setup_arena(sl_setup *s, sl_err *err)
{
    double seconds;
    if (!s->pinning)
        SL_TRY(sl_setup_pin(s, err));
    sl_pinning *p = s->pinning;
    s->pinning = NULL;
    SL_TRY(sl_pinning_take(p, &s->p->arena, &seconds, err));
    s->p->engine_opts.arena_readable = true;
    sl_log(SL_LOG_INFO, s->comp, "arena", "store=\"%s\"", sl_arena_describe(s->p->arena));
    sl_setup_took(s, SL_START_PINNING, seconds);
    if (s->cfg->kvstore.verify != SL_CFG_VERIFY_ROWS || !sl_role_does(s->role, SL_ROLE_DECODE))
        return SL_OK;
    SL_TRY(sl_row_sums_create(s->p->arena, &s->p->row_sums, err));
    sl_log(SL_LOG_INFO, s->comp, "row_sums", "mib=%.1f",
           (double)sl_row_sums_size(s->p->row_sums) / (1 << 20));
    return SL_OK;
}

/*
 * Device memory for the cache. That of the CPU backend is host memory, of which at most half of the free part is used.
 */
static sl_status device_budget(const sl_setup *s, uint64_t *out, sl_err *err)
{
    uint64_t free_bytes = 0, total = 0;
    if (s->cfg->decode.device_bytes && sl_role_does(s->role, SL_ROLE_DECODE)) {
        *out = s->cfg->decode.device_bytes;
        return SL_OK;
    }
    SL_TRY(sl_be_memory(s->p->backend, &free_bytes, &total, err));
    bool unified = sl_backend_caps(s->p->backend) & SL_BE_UNIFIED;
    *out = unified ? free_bytes / 2 : free_bytes - free_bytes / 16;
    return SL_OK;
}

sl_status sl_setup_select(const sl_config *cfg, const sl_model_config *mc, sl_setup_selection *out,
                          sl_err *err)
{
    sl_setup_selection s = {.gates = {.dense_layers = cfg->sparse_attention.dense_layers.v,
                                      .n_dense_layers = cfg->sparse_attention.dense_layers.n,
                                      .sink_tokens = cfg->sparse_attention.sink_tokens,
                                      .recent_tokens = cfg->sparse_attention.recent_tokens,
                                      .min_tokens = cfg->sparse_attention.min_tokens}};
    SL_TRY(sl_choose_algorithm(cfg->sparse_attention.algorithm, mc, &s.algorithm, err));
    const void *options = sl_config_part(cfg, s.algorithm->options);
    sl_status st = sl_choose_selection(s.algorithm, options, mc, &s.gates, &s.select, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "sparse_attention");
    const int32_t chunk = cfg->prefill.chunk_tokens; /* 0: auto, which is more */
    if (s.algorithm->prompt_lists && chunk > 0 && chunk < SL_PAGE_TOKENS)
        return sl_fail(
            err, SL_ERR_INVALID,
            "prefill.chunk_tokens: %d, but sparse_attention.algorithm %s computes prompts by pages of %d tokens",
            chunk, s.algorithm->name, SL_PAGE_TOKENS);
    *out = s;
    return SL_OK;
}

/* Options that say which rows attention reads and which of them the hot buffer keeps. */
static sl_status selection_opts(sl_setup *s, sl_plan_in *in, sl_engine_opts *o, sl_err *err)
{
    const sl_config *c = s->cfg;
    SL_TRY(sl_choose_policy(NULL, sl_backend_caps(s->p->backend), &o->policy, err));
    for (int i = 0; i < c->sparse_attention.dense_layers.n; i++)
        s->p->dense_layers[i] = c->sparse_attention.dense_layers.v[i];
    o->gates.dense_layers = s->p->dense_layers;
    in->gates = o->gates;
    in->policy = o->policy;
    in->algorithm = o->algorithm;
    return SL_OK;
}

static sl_status check_layers(int n, const sl_model_config *mc, sl_err *err)
{
    if (n > 1 && n != mc->n_layers)
        return sl_fail(err, SL_ERR_INVALID,
                       "sparse_attention.hot_rows has %d entries, but the model has %d layers", n,
                       mc->n_layers);
    return SL_OK;
}

/* Hot-buffer rows of each layer, when the configuration lists them. */
static sl_status hot_layer_opts(sl_setup *s, sl_plan_in *in, sl_engine_opts *o, sl_err *err)
{
    const int n = s->cfg->sparse_attention.hot_rows.n, *rows = s->cfg->sparse_attention.hot_rows.v;
    SL_TRY(check_layers(n, &s->mc, err));
    for (int l = 0; l < s->mc.n_layers; l++)
        s->p->hot_rows_layer[l] = rows[n == 1 ? 0 : l];
    in->hot_rows_layer = o->hot_rows_layer = s->p->hot_rows_layer;
    return SL_OK;
}

/* layer < 0: one number for all. */
static sl_status check_rows(int32_t hot, int32_t layer, const sl_plan *plan, sl_err *err)
{
    char of[48] = "";
    if (hot <= 0 || (hot >= plan->width && hot <= SL_HOT_ROWS_MAX))
        return SL_OK;
    if (layer >= 0)
        snprintf(of, sizeof of, " is %d for layer %d", hot, layer);
    else
        snprintf(of, sizeof of, " is %d", hot);
    return sl_fail(err, SL_ERR_INVALID,
                   "sparse_attention.hot_rows%s: this model selects %d rows, at most %d are possible", of,
                   plan->width, SL_HOT_ROWS_MAX);
}

sl_status sl_setup_check_hot(const sl_config *c, const sl_model_config *mc, const sl_plan_in *in, sl_err *err)
{
    sl_plan plan;
    const int n = c->sparse_attention.hot_rows.n, *rows = c->sparse_attention.hot_rows.v;
    SL_TRY(check_layers(n, mc, err));
    if (in->gates.n_dense_layers || in->gates.min_tokens || !in->algorithm->constant_k)
        return SL_OK;
    sl_plan_in selection = *in; /* the plan refuses the same rows, but knows no keys */
    selection.hot_rows_layer = NULL;
    SL_TRY(sl_plan_make(&selection, &plan, err));
    for (int l = 0; l < n; l++)
        SL_TRY(check_rows(rows[l], n == 1 ? -1 : l, &plan, err));
    return SL_OK;
}

/*
 * Checks that the hot buffer can hold the longest list of a selection. The coordinator checks lists that are as long as
 * the context (dense layers, dense queries), because it knows the context that the store can hold.
 */
static sl_status check_hot_rows(sl_setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_engine_opts *o = &s->p->engine_opts;
    sl_plan_in in = {.cfg = &s->mc,
                     .cache = s->cache,
                     .tail_rows = c->sparse_attention.tail_rows,
                     .max_step_tokens = s->mo.max_tokens,
                     .max_seqs = sl_setup_seqs(s)};
    SL_TRY(selection_opts(s, &in, o, err));
    if (sl_config_hot_by_layer(&c->sparse_attention))
        SL_TRY(hot_layer_opts(s, &in, o, err));
    return sl_setup_check_hot(c, &s->mc, &in, err);
}

sl_status sl_setup_cache(sl_setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_setup_selection selected;
    SL_TRY(sl_setup_select(c, &s->mc, &selected, err));
    s->p->engine_opts.algorithm = selected.algorithm;
    s->p->engine_opts.select = selected.select;
    s->p->engine_opts.gates = selected.gates;
    s->cache = sl_engine_cache_dims(&s->mc, s->mo.row_format, s->mo.index_format);
    s->cache.select = selected.select;
    SL_TRY(sl_algo_serves(selected.algorithm, &s->cache, err));
    bool hot = sl_role_does(s->role, SL_ROLE_DECODE) && c->sparse_attention.mode != SL_CFG_MODE_RESIDENT;
    return hot ? check_hot_rows(s, err) : SL_OK;
}

/* The length of the longest request that the configuration, the model and the host store allow. */
static int32_t max_context(const sl_setup *s)
{
    const int32_t asked = s->cfg->model.max_context, most = s->mc.max_context;
    const int64_t store = (int64_t)sl_arena_pages(s->p->arena) * SL_PAGE_TOKENS;
    int32_t context = asked && asked < most ? asked : most;
    if (context > store)
        context = (int32_t)store;
    if (asked > context || (!asked && context < most))
        sl_log(SL_LOG_WARN, s->comp, "context_lowered",
               "tokens=%d model.max_context=%d of_checkpoint=%d of_store=%lld reason=\"%s\"", context, asked,
               most, (long long)store,
               context == store ? "kvstore.bytes holds no longer request"
                                : "the checkpoint has no longer context");
    return context;
}

/* The key that is named when the requests of this role do not fit. */
static const char *requests_key(const sl_setup *s)
{
    return s->role == SL_ROLE_PREFILL ? "prefill.max_requests" : "decode.max_batch";
}

/*
 * The pools of the device. A prompt that a worker of role both computes is resident, also where requests that decode are
 * hierarchical: the pages of the longest prompt are set aside before the requests that decode get the rest. Of one pool they only
 * must fit.
 */
static sl_status fit_pools(sl_setup *s, bool hot, sl_plan *plan, int32_t context, sl_err *err)
{
    sl_engine_opts *o = &s->p->engine_opts;
    const bool both = s->role == SL_ROLE_BOTH;
    int32_t seqs = both ? s->cfg->decode.max_batch : sl_setup_seqs(s);
    int64_t pages = both ? sl_pages_for(context) : 0;
    uint64_t bytes = (uint64_t)pages * (plan->row_page_device + plan->index_page_device);
    if (bytes >= plan->cache_bytes && both)
        return sl_fail(
            err, SL_ERR_DEVICE_MEMORY,
            "device memory: %.1f MiB are left for the cache; a prompt of model.max_context %d takes %.1f MiB "
            "while a worker of role both computes it",
            (double)plan->cache_bytes / 1048576, context, (double)bytes / 1048576);
    plan->cache_bytes -= plan->pool_unit > 0 ? 0 : bytes;
    SL_TRY(sl_setup_fit_pools(plan, hot ? SL_HIERARCHICAL : SL_RESIDENT, seqs, context, requests_key(s), o,
                              err));
    o->max_seqs = sl_setup_seqs(s);
    o->row_pages += pages;
    o->index_pages += pages;
    s->p->prompt_pages = pages;
    return SL_OK;
}

/* Lists that are too long for any hot buffer are served by layers that keep all their rows on the device. */
static void keep_all_rows(sl_setup *s, sl_engine_opts *o)
{
    for (int l = 0; l < s->mc.n_layers; l++)
        s->p->hot_rows_layer[l] = SL_HOT_RESIDENT;
    o->hot_rows_layer = s->p->hot_rows_layer;
    sl_log(
        SL_LOG_WARN, s->comp, "resident",
        "algorithm=%s reason=\"its lists hold the whole context, more than a hot buffer of at most %d rows; all "
        "rows stay on the device, and sparse_attention.mode hierarchical saves nothing\"",
        o->algorithm->name, SL_HOT_ROWS_MAX);
}

/* Prefill workers have few requests of one kind, and ship rows from device memory that stays where it is. */
static uint64_t pool_unit(const sl_setup *s)
{
    return s->role == SL_ROLE_PREFILL ? 0 : sl_space_unit(s->p->backend);
}

/* Fills the engine's options. *budget: the device memory for the cache. */
static sl_status plan_engine(sl_setup *s, bool hot, uint64_t *budget, sl_err *err)
{
    const sl_config *c = s->cfg;
    sl_engine_opts *o = &s->p->engine_opts;
    sl_plan plan;
    sl_plan_in in = {.cfg = &s->mc,
                     .cache = s->cache,
                     .hot_rows = sl_config_hot_rows(&c->sparse_attention),
                     .tail_rows = c->sparse_attention.tail_rows,
                     .max_context = max_context(s),
                     .max_step_tokens = s->mo.max_tokens,
                     .max_item_tokens = sl_setup_item_tokens(s->cfg, s->role),
                     .max_seqs = sl_setup_seqs(s),
                     .pool_unit = pool_unit(s),
                     .host_bytes = sl_arena_bytes(s->p->arena),
                     .on_host = !sl_be_gpu(s->p->backend),
                     .row_sums = s->p->row_sums != NULL};
    SL_TRY(selection_opts(s, &in, o, err));
    if (hot && sl_config_hot_by_layer(&c->sparse_attention))
        SL_TRY(hot_layer_opts(s, &in, o, err));
    SL_TRY(device_budget(s, &in.gpu_bytes, err));
    SL_TRY(sl_plan_make(&in, &plan, err));
    if (hot && plan.all_resident)
        keep_all_rows(s, o);
    SL_TRY(fit_pools(s, hot, &plan, in.max_context, err));
    o->max_step_tokens = s->mo.max_tokens;
    o->row_sums = s->p->row_sums;
    *budget = in.gpu_bytes;
    return sl_setup_draw(s, &plan, err);
}

sl_status sl_setup_engine(sl_setup *s, sl_err *err)
{
    sl_parts *p = s->p;
    sl_engine_opts *o = &p->engine_opts;
    sl_cfg_mode mode = s->role == SL_ROLE_PREFILL ? SL_CFG_MODE_RESIDENT : s->cfg->sparse_attention.mode;
    uint64_t budget = 0;
    SL_TRY(plan_engine(s, mode != SL_CFG_MODE_RESIDENT, &budget, err));
    SL_TRY(sl_engine_create(p->backend, p->model, p->arena, o, &p->engine, err));
    p->runner = sl_runner_for_engine(p->engine, sl_model_get_config(p->model), o);
    sl_engine_stats es;
    sl_engine_stats_get(p->engine, &es);
    sl_log(
        SL_LOG_INFO, s->comp, "plan",
        "mode=%s algorithm=%s policy=%s max_context=%d max_seqs=%d hot_rows=%d tail_rows=%d index_pages=%ld "
        "row_pages=%ld pool_mib=%.1f device_mib=%.1f device_budget_mib=%.1f",
        sl_config_enum_name("sparse_attention.mode", (int)mode), o->algorithm->name,
        sl_evict_policy_name(o->policy), o->max_context, o->max_seqs, o->hot_rows, o->tail_rows,
        (long)o->index_pages, (long)o->row_pages, (double)o->pool_bytes / 1048576,
        (double)es.device_bytes / 1048576, (double)budget / 1048576);
    return SL_OK;
}
