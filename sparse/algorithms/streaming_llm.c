/*
 * streaming_llm: the first sink_tokens and the newest recent_tokens tokens (arXiv 2309.17453), the gates alone. It reads no
 * keys and has no metadata; every list has the same length, so its hot buffer is small and a step costs the same at any
 * context. What is outside both ranges stays in the host store and is not read.
 *
 * Positions stay those of the text. The paper's code gives the tokens in its cache new positions without a gap, which
 * would need keys before RoPE.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "sparse/sparse.h"

typedef struct streaming {
    sl_algo base;
    sl_backend *be;
    float *scores;    /* zeros: the selection op needs an array, but the forced tokens are the whole list */
    int64_t capacity; /* floats in scores */
} streaming;

static sl_selector streaming_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1, .block_tokens = 1, .scope = SL_SCOPE_REQUEST};
}

static sl_status streaming_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    (void)d;
    if (g->recent_tokens < 1)
        return sl_fail(err, SL_ERR_INVALID,
                       "streaming_llm: recent_tokens is 0, but a query reads at least its own token");
    return SL_OK;
}

static int32_t streaming_width(const sl_algo_dims *d, int32_t dense_below)
{
    int64_t w = (int64_t)d->sinks + d->recent;
    w = w > dense_below ? w : dense_below;
    w = w < d->max_context ? w : d->max_context;
    return w > 1 ? (int32_t)w : 1;
}

/* Scores of a whole step if they fit, but at least those of one token. */
static int64_t streaming_capacity(const sl_algo_dims *d)
{
    int64_t one = d->max_context, most = one * d->max_step_tokens, fit = d->workspace_bytes / 4;
    return most < fit ? most : fit > one ? fit : one;
}

static uint64_t streaming_device_bytes(const sl_algo_dims *d)
{
    return 4 * (uint64_t)streaming_capacity(d);
}

static void streaming_destroy(sl_algo *a)
{
    streaming *s = (streaming *)a;
    if (!s)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->scores);
    free(s);
}

static sl_status streaming_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    streaming *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "streaming_llm: out of memory");
    *s = (streaming){.base.desc = &sl_algo_streaming_llm, .be = be, .capacity = streaming_capacity(d)};
    const size_t bytes = (size_t)s->capacity * 4;
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, bytes, (void **)&s->scores, err);
    if (st != SL_OK)
        goto destroy;
    st = sl_be_fill(be, s->scores, 0, bytes, err);
    if (st != SL_OK)
        goto destroy;
    *out = &s->base;
    return SL_OK;
destroy:
    streaming_destroy(&s->base);
    return st;
}

static sl_status streaming_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                    int32_t *ids, sl_err *err)
{
    streaming *s = (streaming *)a;
    const int32_t ld = call->max_pos + 1, forced = call->sinks + call->recent;
    const int64_t fit = s->capacity / ld;
    for (int32_t done = 0; done < count;) {
        int32_t n = count - done < fit ? count - done : (int32_t)fit;
        sl_seq_tables seqs = sl_seq_tables_slice(call->attn->seqs, first + done, n);
        sl_topk_params t = {
            .scores = s->scores,
            .seqs = &seqs,
            .ids = ids + (int64_t)done * call->k,
            .token_count = n,
            /* without gates the whole context is shorter than they are, and everything is selected */
            .k = forced > 0 ? forced : call->k,
            .ld_scores = ld,
            .ld_ids = call->k,
            .sinks = call->sinks,
            .recent = call->recent,
            .dense_below = call->dense_below,
        };
        SL_TRY(sl_be_run(s->be, SL_OP_TOPK, &t, err));
        done += n;
    }
    return SL_OK;
}

const sl_algo_desc sl_algo_streaming_llm = {
    .name = "streaming_llm",
    .description = "the first and the newest tokens",
    .action = SL_ACTION_VISIBILITY,
    .budget_key = "recent_tokens",
    .keeps_lists = true,
    .constant_k = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .default_sinks = 4,
    .default_recent = 512,
    .selector = streaming_selector,
    .check = streaming_check,
    .width = streaming_width,
    .device_bytes = streaming_device_bytes,
    .create = streaming_create,
    .destroy = streaming_destroy,
    .retrieve = streaming_retrieve,
};
