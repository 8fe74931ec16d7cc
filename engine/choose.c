/* See choose.h: the rules of that comment, and the registries for every name other than auto. */
#include "engine/choose.h"

#include <string.h>

#include "base/hash.h"
#include "base/wire.h"
#include "kernels/backend.h"
#include "sparse/channels.h"

static bool is_auto(const char *name)
{
    return !name || strcmp(name, "auto") == 0;
}

sl_status sl_choose_policy(const char *name, unsigned caps, sl_evict_policy *out, sl_err *err)
{
    if (is_auto(name)) {
        *out = caps & SL_BE_UNIFIED ? SL_EVICT_LRU : SL_EVICT_CLOCK;
        return SL_OK;
    }
    const sl_evict_policy_desc *d = sl_evict_policy_find(name);
    if (!d)
        return sl_fail_unknown(err, "victim policy", name, sl_evict_policy_names());
    *out = d->policy;
    return SL_OK;
}

sl_status sl_choose_layout(const char *name, unsigned caps, sl_layout *out, sl_err *err)
{
    if (is_auto(name)) {
        *out = caps & SL_BE_UNIFIED ? SL_LAYOUT_PAGE_FIRST : SL_LAYOUT_LAYER_FIRST;
        return SL_OK;
    }
    const sl_layout_desc *d = sl_layout_find(name);
    if (!d)
        return sl_fail_unknown(err, "layout", name, sl_layout_names());
    *out = d->layout;
    return SL_OK;
}

sl_status sl_choose_algorithm(const char *name, const sl_model_config *cfg, const sl_algo_desc **out,
                              sl_err *err)
{
    if (is_auto(name)) {
        *out = cfg->index_topk > 0 ? &sl_algo_dsa : &sl_algo_dense;
        return SL_OK;
    }
    const sl_algo_desc *found = sl_algo_find(name);
    if (!found)
        return sl_fail_unknown(err, "sparse algorithm", name, sl_algo_names());
    *out = found;
    return SL_OK;
}

/* ---- selection ---- */

static const char *const scope_names[] = {"kv_head", "request", NULL};
static const char *const label_names[] = {"f32", "bf16", NULL};
static const char *const bounds_names[] = {"f32", "bf16", "int8", NULL}; /* begins with those of labels */

const char *const *sl_list_scope_names(void)
{
    return scope_names;
}

const char *const *sl_bounds_dtype_names(void)
{
    return bounds_names;
}

const char *const *sl_label_dtype_names(void)
{
    return label_names;
}

/* Index of a name; -1: not in the list. */
static int index_of(const char *name, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static sl_status read_dtype(const char *key, const char *name, const char *const *names, bool *typed,
                            sl_dtype *out, sl_err *err)
{
    if (is_auto(name))
        return SL_OK;
    static const sl_dtype types[] = {SL_F32, SL_BF16, SL_I8};
    int type = index_of(name, names);
    if (type < 0)
        return sl_fail_unknown(err, key, name, names);
    *typed = true, *out = types[type];
    return SL_OK;
}

sl_status sl_choose_bounds(const char *name, sl_select_params *p, sl_err *err)
{
    return read_dtype("bounds_dtype", name, bounds_names, &p->bounds_typed, &p->bounds, err);
}

static sl_status read_names(const sl_selection_keys *k, sl_select_params *p, sl_err *err)
{
    int scope = k->list_scope ? index_of(k->list_scope, scope_names) : 0;
    if (scope < 0)
        return sl_fail_unknown(err, "list_scope", k->list_scope, scope_names);
    p->shared_lists = scope == 1;
    if (k->gqa_reduction && !sl_group_reduce_find(k->gqa_reduction, &p->reduce))
        return sl_fail_unknown(err, "gqa_reduction", k->gqa_reduction, sl_group_reduce_names());
    if (k->kt_cache_dtype && !sl_kt_type_find(k->kt_cache_dtype, &p->kt_type))
        return sl_fail_unknown(err, "kt_cache_dtype", k->kt_cache_dtype, sl_kt_type_names());
    if (!is_auto(k->pooling)) {
        if (!sl_pooling_find(k->pooling, &p->pooling))
            return sl_fail_unknown(err, "pooling", k->pooling, sl_pooling_names());
        p->pooled = true;
    }
    SL_TRY(sl_choose_bounds(k->bounds_dtype, p, err));
    return read_dtype("klabel_dtype", k->klabel_dtype, label_names, &p->labels_typed, &p->labels, err);
}

/* The table of channels that an algorithm needs. */
static sl_status read_channels(const sl_selection_keys *k, const sl_model_config *cfg, sl_select_params *p,
                               sl_err *err)
{
    const sl_channels_model m = {.architecture = cfg->architecture,
                                 .n_layers = cfg->n_layers,
                                 .n_heads = cfg->n_heads,
                                 .kv_heads = cfg->n_kv_heads,
                                 .head_dim = cfg->v_head_dim,
                                 .hidden_size = cfg->hidden_size,
                                 .vocab_size = cfg->vocab_size};
    if (cfg->n_kv_heads < 1) /* refused with the reason when the cache is shaped */
        return SL_OK;
    if (!k->channel_config_path || !k->channel_config_path[0])
        return sl_fail(
            err, SL_ERR_INVALID,
            "channel_config_path is not set; `sluice calibrate` makes the file that the algorithm needs");
    sl_status st = sl_channels_load(k->channel_config_path, &m, &p->channels, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "channel_config_path");
    if (p->heavy_channels > p->channels->count)
        return sl_fail(err, SL_ERR_INVALID, "heavy_channels is %d, but %s lists %d channels per head",
                       p->heavy_channels, k->channel_config_path, p->channels->count);
    return SL_OK;
}

/* Forgets the parameters that the algorithm does not read, so that its pages do not depend on them. */
static void keep_read(const sl_algo_desc *a, sl_select_params *p)
{
    if (a->has_clusters)
        *p = (sl_select_params){.token_budget = p->token_budget,
                                .reduce = p->reduce,
                                .niter = p->niter,
                                .cluster_tokens = p->cluster_tokens,
                                .cluster_window = p->cluster_window,
                                .window_nlist = p->window_nlist,
                                .n_subvec = p->n_subvec,
                                .n_subbits = p->n_subbits,
                                .recent_ratio = p->recent_ratio};
    else if (a->prompt)
        *p = (sl_select_params){.prompt_budget = p->prompt_budget,
                                .window = p->window,
                                .kernel = p->kernel,
                                .pooled = p->pooled,
                                .pooling = p->pooling,
                                .output_tokens = a->has_retained_pages ? 0 : p->output_tokens,
                                .top_pages = p->top_pages,
                                .top_channels = p->top_channels,
                                .retained_page = p->retained_page,
                                .kt_type = p->kt_type};
    else
        p->prompt_budget = p->window = p->kernel = p->output_tokens = 0, p->pooled = false,
        p->pooling = SL_POOLING_AVG, p->niter = p->cluster_tokens = p->cluster_window = p->window_nlist = 0,
        p->n_subvec = p->n_subbits = 0, p->recent_ratio = 0;
    if (!a->has_retained_pages)
        p->top_pages = p->top_channels = p->retained_page = 0, p->kt_type = SL_KT_E5M2;
}

static sl_status check_sizes(const sl_select_params *p, const sl_model_config *cfg, sl_err *err)
{
    if (p->block_tokens > 0 && SL_PAGE_TOKENS % p->block_tokens)
        return sl_fail(err, SL_ERR_INVALID, "block_tokens %d does not divide a page of %d tokens",
                       p->block_tokens, SL_PAGE_TOKENS);
    if (p->prompt_budget > cfg->max_context)
        return sl_fail(err, SL_ERR_INVALID, "prompt_budget %d exceeds the model's context of %d tokens",
                       p->prompt_budget, cfg->max_context);
    if ((int64_t)p->top_pages * p->retained_page > cfg->max_context)
        return sl_fail(err, SL_ERR_INVALID,
                       "topk %d pages of page_size %d tokens exceed the model's context of %d tokens",
                       p->top_pages, p->retained_page, cfg->max_context);
    if (p->retained_page > 0 && SL_PAGE_TOKENS % p->retained_page)
        return sl_fail(err, SL_ERR_INVALID, "page_size %d does not divide a page of %d tokens",
                       p->retained_page, SL_PAGE_TOKENS);
    if (p->token_budget > cfg->max_context)
        return sl_fail(err, SL_ERR_INVALID, "token_budget %d exceeds the model's context of %d tokens",
                       p->token_budget, cfg->max_context);
    return SL_OK;
}

/* 0 when the rows are those of the model alone. */
static sl_status stamp_of(const sl_algo_desc *a, const sl_model_config *cfg, const sl_gates *g,
                          sl_select_params *p, sl_err *err)
{
    const sl_algo_desc *usual = NULL;
    sl_wr w;
    SL_TRY(sl_choose_algorithm(NULL, cfg, &usual, err));
    if (a == usual && !g->sink_tokens && !g->recent_tokens && !g->min_tokens && !g->n_dense_layers)
        return SL_OK;
    sl_wr_init(&w);
    sl_wr_str(&w, a->name);
    const int32_t numbers[] = {p->token_budget, p->block_tokens,     p->shared_lists, (int32_t)p->reduce,
                               p->bounds_typed, (int32_t)p->bounds,  g->sink_tokens,  g->recent_tokens,
                               g->min_tokens,   p->prompt_budget,    p->window,       p->kernel,
                               p->pooled,       (int32_t)p->pooling, p->output_tokens};
    sl_wr_i32s(&w, numbers, SL_COUNT(numbers));
    sl_wr_i32s(&w, g->dense_layers, (size_t)g->n_dense_layers);
    if (a->action == SL_ACTION_KERNEL)
        sl_wr_f32(&w, p->skip_factor);
    if (a->has_clusters) {
        const int32_t clusters[] = {p->niter,        p->cluster_tokens, p->cluster_window,
                                    p->window_nlist, p->n_subvec,       p->n_subbits};
        sl_wr_i32s(&w, clusters, SL_COUNT(clusters));
        sl_wr_f32(&w, p->recent_ratio);
    }
    if (a->has_retained_pages) {
        const int32_t pages[] = {p->top_pages, p->top_channels, p->retained_page, (int32_t)p->kt_type};
        sl_wr_i32s(&w, pages, SL_COUNT(pages));
    }
    if (p->channels) {
        const int32_t labels[] = {p->heavy_channels, p->labels_typed, (int32_t)p->labels};
        sl_wr_u64(&w, p->channels->hash);
        sl_wr_i32s(&w, labels, SL_COUNT(labels));
    }
    bool made = !w.bad;
    if (made)
        p->stamp = sl_hash_chain((sl_key){0}, w.data, w.len).lo;
    sl_wr_free(&w);
    return made ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

sl_status sl_choose_selection(const sl_algo_desc *algorithm, const sl_selection_keys *keys,
                              const sl_model_config *cfg, sl_gates *gates, sl_select_params *out, sl_err *err)
{
    sl_select_params p = {.token_budget = keys->token_budget,
                          .block_tokens = keys->block_tokens,
                          .heavy_channels = keys->heavy_channels,
                          .skip_factor = (float)keys->threshold_scale_factor,
                          .prompt_budget = keys->prompt_budget,
                          .window = keys->window_size,
                          .kernel = keys->kernel_size,
                          .output_tokens = keys->output_tokens,
                          .niter = keys->niter,
                          .cluster_tokens = keys->cluster_tokens,
                          .cluster_window = keys->cluster_window,
                          .window_nlist = keys->window_nlist,
                          .n_subvec = keys->n_subvec,
                          .n_subbits = keys->n_subbits,
                          .recent_ratio = (float)keys->recent_ratio,
                          .top_pages = keys->topk,
                          .top_channels = keys->topr,
                          .retained_page = keys->page_size};
    SL_TRY(read_names(keys, &p, err));
    keep_read(algorithm, &p);
    if (!gates->sink_tokens && !gates->recent_tokens)
        gates->sink_tokens = algorithm->default_sinks, gates->recent_tokens = algorithm->default_recent;
    if (algorithm->has_params)
        SL_TRY(check_sizes(&p, cfg, err));
    else
        p = (sl_select_params){0};
    if (algorithm->needs_channels)
        SL_TRY(read_channels(keys, cfg, &p, err));
    SL_TRY(stamp_of(algorithm, cfg, gates, &p, err));
    *out = p;
    return SL_OK;
}
