/*
 * skip_softmax: dense attention whose kernel leaves out tiles of 64 tokens that cannot matter (BLASST, arXiv 2512.12087;
 * TensorRT-LLM's algorithm of this name). With L tokens up to the query and the factor threshold_scale_factor, a tile is
 * left out if for every query head of the KV head
 *
 *   exp(largest score of the tile - largest score before it) < threshold_scale_factor / L
 *
 * The products with the keys are always computed; the exponentials, the values and their sum are saved. Nothing is left
 * out where L is at most the factor, and never the first tile.
 *
 * A tile here has one query, in prefill too, and a list is attended in one pass in the order of positions: the kernels of
 * TensorRT-LLM decide for 64 queries at a time in prefill and split long lists in decode, which saves less and makes the
 * result depend on how a prompt is cut. For the same reason there is one factor, not one for prefill and one for decode:
 * a token that was generated may be computed again as part of a prompt, and must get the same bits.
 *
 * The lists are those of dense, whose functions it uses: nothing is saved in memory or in bytes that are swapped in.
 */
#include "sparse/algorithm.h"

#include "sparse/sparse.h"

typedef struct skip_options {
    double threshold_scale_factor;
} skip_options;

static const sl_option option_rows[] = {
    SL_OPTION(
        skip_options, threshold_scale_factor, SL_OPTION_FLOAT, SL_OPTION_PAGES, "0", 0, 1000000000,
        "A query at position p leaves out tiles of 64 tokens whose weights are below this factor / (p + 1) of the "
        "largest weight before them. 0: none."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "skip_softmax",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(skip_options)};
_Static_assert(sizeof(skip_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static skip_options options_of(const sl_cache_dims *d)
{
    skip_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

static float skip_factor(const sl_cache_dims *d)
{
    return (float)options_of(d).threshold_scale_factor;
}

static sl_selector skip_selector(const sl_cache_dims *d)
{
    return sl_algo_dense.selector(d);
}

static sl_status skip_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    (void)d;
    if (g->sink_tokens || g->recent_tokens)
        return sl_fail(
            err, SL_ERR_INVALID,
            "skip_softmax: sink_tokens %d and recent_tokens %d: tokens are not selected, so none can be "
            "forced",
            g->sink_tokens, g->recent_tokens);
    return SL_OK;
}

static int32_t skip_width(const sl_algo_dims *d, int32_t dense_below)
{
    return sl_algo_dense.width(d, dense_below);
}

static uint64_t skip_device_bytes(const sl_algo_dims *d)
{
    return sl_algo_dense.device_bytes(d);
}

static sl_status skip_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(sl_algo_dense.create(be, d, out, err));
    (*out)->desc = &sl_algo_skip_softmax;
    return SL_OK;
}

static void skip_destroy(sl_algo *a)
{
    sl_algo_dense.destroy(a);
}

static sl_status skip_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                               int32_t *ids, sl_err *err)
{
    return sl_algo_dense.retrieve(a, call, first, count, ids, err);
}

const sl_algo_desc sl_algo_skip_softmax = {
    .name = "skip_softmax",
    .description =
        "dense attention that leaves out tiles whose largest score is far below the largest so far",
    .action = SL_ACTION_KERNEL,
    .options = &table,
    .skip_factor = skip_factor,
    .needs_kv_heads = true,
    .reads_all = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = skip_selector,
    .check = skip_check,
    .width = skip_width,
    .device_bytes = skip_device_bytes,
    .create = skip_create,
    .destroy = skip_destroy,
    .retrieve = skip_retrieve,
};
