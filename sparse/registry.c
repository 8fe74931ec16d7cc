/*
 * The algorithms of this build. A new one is a row in both tables and a declaration in algorithm.h; see
 * docs/sparse-algorithms.md. tests/unit/sparse/test_conformance.c checks that the tables agree.
 */
#include <string.h>

#include "sparse/algorithm.h"

static const sl_algo_desc *const registry[] = {&sl_algo_dsa,
                                               &sl_algo_dense,
                                               &sl_algo_quest,
                                               &sl_algo_snapkv,
                                               &sl_algo_streaming_llm,
                                               &sl_algo_double_sparsity,
                                               &sl_algo_skip_softmax,
                                               &sl_algo_cluster_kv,
                                               &sl_algo_pq_cache,
                                               &sl_algo_rocket_kv,
                                               NULL};
static const char *const names[] = {
    "dsa",        "dense",    "quest",     "snapkv", "streaming_llm", "double_sparsity", "skip_softmax",
    "cluster_kv", "pq_cache", "rocket_kv", NULL};

sl_status sl_algo_serves(const sl_algo_desc *algo, const sl_cache_dims *dims, sl_err *err)
{
    if (algo->needs_kv_heads && (!dims->rows || dims->rows->attn != SL_ATTN_GQA || dims->kv_heads < 1))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "sparse algorithm %s: selects by the keys of KV heads, which rows of %s do not have",
                       algo->name, dims->rows ? dims->rows->name : "an unknown format");
    return SL_OK;
}

sl_status sl_algo_cache_shape(const sl_algo_desc *algo, const sl_cache_dims *dims, sl_cache_shape *out,
                              sl_err *err)
{
    const sl_selector sel = algo->selector(dims);
    sl_cache_dims d = *dims;
    sl_cache_shape s;
    SL_TRY(sl_algo_serves(algo, dims, err));
    SL_TRY(sl_selector_check(&sel, err));
    d.row_scope = sel.scope, d.row_tokens = sel.block_tokens;
    SL_TRY(sl_cache_shape_make(&d, &s, err));
    if (algo->planes)
        s.n_planes += algo->planes(dims, s.planes + s.n_planes, SL_CACHE_PLANES - s.n_planes);
    s.planes[SL_CACHE_ROWS].stamp = dims->select.stamp;
    SL_TRY(sl_cache_shape_check(&s, err));
    *out = s;
    return SL_OK;
}

const sl_algo_desc *const *sl_algo_registry(void)
{
    return registry;
}

const char *const *sl_algo_names(void)
{
    return names;
}

const sl_algo_desc *sl_algo_find(const char *name)
{
    for (const sl_algo_desc *const *a = registry; name && *a; a++)
        if (strcmp((*a)->name, name) == 0)
            return *a;
    return NULL;
}
