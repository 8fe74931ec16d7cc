/*
 * dense: every query attends to everything before it. It is the baseline with which sparse algorithms are compared,
 * and is used by dense layers, then with the lists and blocks of the other algorithm. It has no metadata and reads no
 * scores; the selection op with a budget of the whole sequence writes the list of all blocks.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#define NO_SCORES_BYTES 256

typedef struct dense {
    sl_algo base;
    sl_backend *be;
    /* the selection op requires an array, but does not read it when everything is selected */
    float *no_scores;
} dense;

static sl_selector dense_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1, .block_tokens = 1, .scope = SL_SCOPE_REQUEST};
}

static int32_t dense_width(const sl_algo_dims *d, int32_t dense_below)
{
    (void)dense_below;
    return d->max_context;
}

static uint64_t dense_device_bytes(const sl_algo_dims *d)
{
    (void)d;
    return NO_SCORES_BYTES;
}

static void dense_destroy(sl_algo *a)
{
    dense *d = (dense *)a;
    if (!d)
        return;
    sl_be_free(d->be, SL_MEM_DEVICE, d->no_scores);
    free(d);
}

static sl_status dense_create(sl_backend *be, const sl_algo_dims *dims, sl_algo **out, sl_err *err)
{
    (void)dims;
    dense *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail(err, SL_ERR_NO_MEMORY, "dense: out of memory");
    *d = (dense){.base.desc = &sl_algo_dense, .be = be};
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, NO_SCORES_BYTES, (void **)&d->no_scores, err);
    if (st != SL_OK)
        goto destroy;
    *out = &d->base;
    return SL_OK;
destroy:
    dense_destroy(&d->base);
    return st;
}

static sl_status dense_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                int32_t *ids, sl_err *err)
{
    dense *d = (dense *)a;
    sl_seq_tables seqs = sl_seq_tables_slice(call->attn->seqs, first, count);
    sl_topk_params t = {
        .scores = d->no_scores,
        .seqs = &seqs,
        .ids = ids,
        .token_count = count,
        .k = call->k,
        .ld_scores = call->k,
        .ld_ids = call->k,
        .lists = call->lists,
        .block_log2 = call->block_log2,
    };
    return sl_be_run(d->be, SL_OP_TOPK, &t, err);
}

const sl_algo_desc sl_algo_dense = {
    .name = "dense",
    .description = "no selection: every query attends to everything before it",
    .action = SL_ACTION_VISIBILITY,
    .reads_all = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = dense_selector,
    .width = dense_width,
    .device_bytes = dense_device_bytes,
    .create = dense_create,
    .destroy = dense_destroy,
    .retrieve = dense_retrieve,
};
