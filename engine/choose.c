/* See choose.h: the rules of that comment, and the registries for every name other than auto. */
#include "engine/choose.h"

#include <string.h>

#include "base/hash.h"
#include "base/wire.h"
#include "kernels/backend.h"

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
        *out = cfg->index.blocks.tokens > 0 ? &sl_algo_msa
               : cfg->index.unit > 0        ? &sl_algo_pooled
               : cfg->index.topk > 0        ? &sl_algo_dsa
                                            : &sl_algo_dense;
        return SL_OK;
    }
    const sl_algo_desc *found = sl_algo_find(name);
    if (!found)
        return sl_fail_unknown(err, "sparse algorithm", name, sl_algo_names());
    *out = found;
    return SL_OK;
}

/* ---- selection ---- */

static uint64_t print_of(const void *cfg)
{
    return sl_model_attention_print(cfg);
}

sl_algo_model sl_choose_model(const sl_model_config *cfg)
{
    return (sl_algo_model){.architecture = cfg->architecture,
                           .n_layers = cfg->n_layers,
                           .n_heads = cfg->attn.n_heads,
                           .kv_heads = cfg->attn.n_kv_heads,
                           .head_dim = cfg->attn.v_head_dim,
                           .hidden_size = cfg->hidden_size,
                           .vocab_size = cfg->vocab_size,
                           .max_context = cfg->max_context,
                           .print = print_of,
                           .print_ctx = cfg};
}

static sl_status check_tokens(const sl_options *t, const void *options, int32_t context, sl_err *err)
{
    for (size_t i = 0; i < t->n; i++) {
        const sl_option *o = &t->rows[i];
        int tokens;
        if (!(o->flags & SL_OPTION_CONTEXT))
            continue;
        memcpy(&tokens, (const char *)options + o->offset, sizeof tokens);
        if (tokens > context)
            return sl_fail(err, SL_ERR_INVALID, "%s %d exceeds the model's context of %d tokens", o->name,
                           tokens, context);
    }
    return SL_OK;
}

/* Whether an algorithm that reads everything in any case makes the same pages whatever the gates are. */
static bool ignores_gates(const sl_algo_desc *a)
{
    return a->reads_all && a->action == SL_ACTION_VISIBILITY && !a->prompt_lists;
}

/* The gates as far as pages depend on them. Dense layers are a set: neither their order nor their repetition counts. */
static void stamp_gates(const sl_gates *g, sl_wr *w)
{
    const int32_t tokens[] = {g->sink_tokens, g->recent_tokens, g->min_tokens};
    int32_t layers[SL_GEOMETRY_MAX_LAYERS], n = 0;
    for (int32_t l = 0; l < SL_GEOMETRY_MAX_LAYERS; l++)
        for (int32_t i = 0; i < g->n_dense_layers; i++)
            if (g->dense_layers[i] == l) {
                layers[n++] = l;
                break;
            }
    sl_wr_i32s(w, tokens, SL_COUNT(tokens));
    sl_wr_i32s(w, layers, (size_t)n);
}

/* 0 when the rows are those of the model alone. content: of the files that the options name. */
static sl_status stamp_of(const sl_algo_desc *a, const sl_model_config *cfg, const sl_gates *g,
                          const void *options, uint64_t content, uint64_t *out, sl_err *err)
{
    const sl_algo_desc *usual = NULL;
    sl_wr w;
    *out = 0;
    SL_TRY(sl_choose_algorithm(NULL, cfg, &usual, err));
    static const sl_gates none;
    if (ignores_gates(a))
        g = &none;
    if (a == usual && !g->sink_tokens && !g->recent_tokens && !g->min_tokens && !g->n_dense_layers)
        return SL_OK;
    sl_wr_init(&w);
    sl_wr_str(&w, a->name);
    stamp_gates(g, &w);
    if (a->options)
        sl_options_stamp(a->options, options, &w);
    sl_wr_u64(&w, content);
    if (sl_algo_object(a))
        sl_wr_u64(&w, sl_algo_object(a));
    bool made = !w.bad;
    if (made)
        *out = sl_hash_chain((sl_key){0}, w.data, w.len).lo;
    sl_wr_free(&w);
    return made ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

sl_status sl_choose_selection(const sl_algo_desc *algorithm, const void *options, const sl_model_config *cfg,
                              sl_gates *gates, sl_select_options *out, sl_err *err)
{
    sl_select_options s = {.set = algorithm->options != NULL};
    const sl_algo_model model = sl_choose_model(cfg);
    uint64_t content = 0;
    if (algorithm->options && options)
        memcpy(s.values, options, algorithm->options->bytes);
    else if (algorithm->options)
        sl_options_default(algorithm->options, s.values);
    if (algorithm->options)
        SL_TRY(check_tokens(algorithm->options, s.values, cfg->max_context, err));
    if (algorithm->prepare)
        SL_TRY(algorithm->prepare(s.values, &model, &content, err));
    if (!gates->sink_tokens && !gates->recent_tokens)
        gates->sink_tokens = algorithm->default_sinks, gates->recent_tokens = algorithm->default_recent;
    SL_TRY(stamp_of(algorithm, cfg, gates, s.values, content, &s.stamp, err));
    *out = s;
    return SL_OK;
}
