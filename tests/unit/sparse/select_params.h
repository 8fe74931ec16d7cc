/*
 * Options of sparse algorithms for tests that compute with them: the witnesses read these numbers, and the algorithm gets
 * them by the names of its own table, as from a configuration. A field that is 0 is the algorithm's default, but
 * output_tokens (0: all) and recent_ratio, which every table that has them gets.
 */
#ifndef SL_TEST_SELECT_PARAMS_H
#define SL_TEST_SELECT_PARAMS_H

#include <stdio.h>

#include "sparse/algorithm.h"
#include "sparse/channels.h"

typedef struct select_params {
    int32_t token_budget, block_tokens;
    bool shared_lists;
    sl_group_reduce reduce;
    float list_mass;
    bool bounds_typed;
    sl_dtype bounds;
    int32_t heavy_channels;
    float skip_factor;
    const struct sl_channels *channels;
    int32_t prompt_budget, window, kernel;
    bool pooled;
    sl_pooling pooling;
    int32_t output_tokens;
    int32_t niter, cluster_tokens, cluster_window, window_nlist, n_subvec, n_subbits;
    float recent_ratio;
    int32_t top_pages, top_channels, retained_page;
    sl_kt_type kt_type;
    uint64_t stamp;
} select_params;

/* Sets an option that the algorithm has; others do not matter to it. */
static inline void select_text(const sl_algo_desc *a, sl_select_options *s, const char *name,
                               const char *text)
{
    sl_err err = {0};
    if (sl_options_find(a->options, name))
        SL_CHECK(sl_options_set(a->options, s->values, name, text, &err) == SL_OK, "%s", err.text);
}

static inline void select_int(const sl_algo_desc *a, sl_select_options *s, const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    if (value)
        select_text(a, s, name, text);
}

static inline const char *select_dtype(sl_dtype t)
{
    return t == SL_F32 ? "f32" : t == SL_I8 ? "int8" : "bf16";
}

static inline sl_select_options select_options(const sl_algo_desc *a, const select_params *p)
{
    sl_select_options s = {.set = a->options != NULL, .stamp = p->stamp};
    char text[32];
    if (!a->options)
        return s;
    sl_options_default(a->options, s.values);
    const struct {
        const char *name;
        int32_t value;
    } numbers[] = {{"token_budget", p->token_budget},
                   {"block_tokens", p->block_tokens},
                   {"heavy_channels", p->heavy_channels},
                   {"prompt_budget", p->prompt_budget},
                   {"window_size", p->window},
                   {"kernel_size", p->kernel},
                   {"niter", p->niter},
                   {"cluster_tokens", p->cluster_tokens},
                   {"cluster_window", p->cluster_window},
                   {"window_nlist", p->window_nlist},
                   {"n_subvec", p->n_subvec},
                   {"n_subbits", p->n_subbits},
                   {"topk", p->top_pages},
                   {"topr", p->top_channels},
                   {"page_size", p->retained_page}};
    for (size_t i = 0; i < SL_COUNT(numbers); i++)
        select_int(a, &s, numbers[i].name, numbers[i].value);
    snprintf(text, sizeof text, "%d", p->output_tokens);
    select_text(a, &s, "output_tokens", text);
    snprintf(text, sizeof text, "%.9g", (double)p->recent_ratio);
    select_text(a, &s, "recent_ratio", text);
    snprintf(text, sizeof text, "%.9g", (double)p->skip_factor);
    select_text(a, &s, "threshold_scale_factor", text);
    select_text(a, &s, "list_scope", p->shared_lists ? "request" : "kv_head");
    select_text(a, &s, "gqa_reduction", sl_group_reduce_names()[p->reduce]);
    snprintf(text, sizeof text, "%.9g", (double)p->list_mass);
    select_text(a, &s, "list_mass", text);
    select_text(a, &s, "kt_cache_dtype", sl_kt_type_names()[p->kt_type]);
    if (p->pooled)
        select_text(a, &s, "pooling", sl_pooling_names()[p->pooling]);
    if (p->bounds_typed)
        select_text(a, &s, "bounds_dtype", select_dtype(p->bounds));
    if (a->options == sl_algo_double_sparsity.options) /* a witness is a copy of the descriptor */
        sl_select_channels(&s, p->channels);
    return s;
}

#endif
