/*
 * The algorithms of this build. A new one is a name in ALGORITHMS: its descriptor is sl_algo_NAME; see
 * docs/sparse-algorithms.md.
 */
#include <string.h>

#include "sparse/registry.h"

#define ALGORITHMS(X)                                                                                        \
    X(dsa)                                                                                                   \
    X(dense)                                                                                                 \
    X(msa)                                                                                                   \
    X(quest)                                                                                                 \
    X(snapkv)                                                                                                \
    X(streaming_llm)                                                                                         \
    X(double_sparsity)                                                                                       \
    X(skip_softmax)                                                                                          \
    X(cluster_kv)                                                                                            \
    X(pq_cache)                                                                                              \
    X(rocket_kv)                                                                                             \
    X(pooled)                                                                                                \
    X(xattention)
#define DECLARE(name) extern const sl_algo_desc sl_algo_##name;
#define ENTRY(name) &sl_algo_##name,
#define NAME(name) #name,

ALGORITHMS(DECLARE)
enum { ROOM = 96 }; /* of this build and of plug-ins, and the NULL at the end */
static const sl_algo_desc *registry[ROOM] = {ALGORITHMS(ENTRY)};
static const char *names[ROOM] = {ALGORITHMS(NAME)};
static uint64_t objects[ROOM]; /* of those of plug-ins */

void sl_algo_options(const sl_options *table, const sl_cache_dims *dims, void *out)
{
    if (dims->select.set)
        memcpy(out, dims->select.values, table->bytes);
    else
        sl_options_default(table, out);
}

sl_status sl_algo_select(const sl_algo_desc *algo, const char *text, sl_select_options *out, sl_err *err)
{
    sl_select_options s = {.set = algo->options != NULL};
    if (!algo->options)
        return text[0] ? sl_fail(err, SL_ERR_INVALID, "%.64s: %s has no options", text, algo->name) : SL_OK;
    sl_options_default(algo->options, s.values);
    SL_TRY(sl_options_read(algo->options, s.values, text, err));
    *out = s;
    return SL_OK;
}

/* Whether some layer has rows of tokens, among which an algorithm could select. */
static bool has_rows(const sl_cache_dims *dims)
{
    bool has = dims->n_classes == 0;
    for (int32_t c = 0; c < dims->n_classes; c++)
        has = has || dims->classes[c].kind == SL_LAYER_TOKENS;
    return has;
}

sl_status sl_algo_serves(const sl_algo_desc *algo, const sl_cache_dims *dims, sl_err *err)
{
    if (!has_rows(dims) && algo != &sl_algo_dense)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "sparse algorithm %s: no layer of the model has rows of tokens; what its layers read is "
            "chosen by the model alone (auto, dense)",
            algo->name);
    if (algo->needs_kv_heads && (!dims->rows || dims->rows->attn != SL_ATTN_GQA || dims->kv_heads < 1))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "sparse algorithm %s: selects by the keys of KV heads, which rows of %s do not have",
                       algo->name, dims->rows ? dims->rows->name : "an unknown format");
    if (algo->index_blocks && dims->index_dim < 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "sparse algorithm %s: the model has no index keys; dense serves it", algo->name);
    if (algo->needs_indexer && dims->index_dim > 0 && algo->index_blocks != (dims->index_block > 0))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "sparse algorithm %s: needs index keys that select %s, and the model's select %s",
                       algo->name, algo->index_blocks ? "blocks" : "tokens",
                       algo->index_blocks ? "tokens" : "blocks");
    if (algo->needs_indexer && dims->index_dim && algo->pooled_keys != (dims->index_unit > 0))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "sparse algorithm %s: the model has an index key for %s",
                       algo->name, dims->index_unit ? "units of tokens, which pooled serves" : "every token");
    return SL_OK;
}

bool sl_algo_leaves_out(const sl_algo_desc *algo, const sl_cache_dims *dims, bool has_indexer)
{
    return algo->needs_indexer && !has_indexer && !algo->selector(dims).shared_by_layers;
}

sl_status sl_algo_cache_shape(const sl_algo_desc *algo, const sl_cache_dims *dims, sl_cache_shape *out,
                              sl_err *err)
{
    sl_cache_dims d = *dims;
    sl_cache_shape s;
    SL_TRY(sl_algo_serves(algo, dims, err));
    const sl_selector sel = algo->selector(dims);
    SL_TRY(sl_selector_check(&sel, err));
    d.row_scope = sel.scope, d.row_tokens = sl_selector_entry(&sel);
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

sl_status sl_registry_add(const sl_algo_desc *a, uint64_t object, sl_err *err)
{
    size_t n = 0;
    while (registry[n])
        n++;
    if (n + 1 == ROOM)
        return sl_fail(err, SL_ERR_TOO_LARGE, "algorithm %s: there are %d algorithms, and no room for more",
                       a->name, ROOM - 1);
    registry[n] = a, names[n] = a->name, objects[n] = object;
    return SL_OK;
}

uint64_t sl_algo_object(const sl_algo_desc *a)
{
    for (size_t i = 0; registry[i]; i++)
        if (registry[i] == a)
            return objects[i];
    return 0;
}

const sl_algo_desc *sl_algo_find(const char *name)
{
    for (const sl_algo_desc *const *a = registry; name && *a; a++)
        if (strcmp((*a)->name, name) == 0)
            return *a;
    return NULL;
}
