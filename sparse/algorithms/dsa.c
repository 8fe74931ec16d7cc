/*
 * dsa: the model's own lightning indexer (DeepSeek-V3.2, GLM-5). Its metadata are the index keys, one per token,
 * which are kept in the page's index plane and copied to the device; a query selects exactly the index_topk best
 * keys of its sequence. It owns the workspace of the scores: tokens are scored in slices that fit it.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "sparse/load.h"

typedef struct dsa {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    float *scores;
    void *hint;       /* what the scores op passes to the selection op */
    int64_t capacity; /* floats in scores */
    int32_t index;    /* plane of the index keys */
    int32_t kept,
        ld; /* scores of tokens 0 .. kept - 1 of a call that said that others follow are in rows of ld floats */
} dsa;

static sl_selector dsa_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_WEIGHTED_RELU,
                         .scope = SL_SCOPE_REQUEST,
                         .shared_by_layers = true};
}

static int32_t dsa_width(const sl_algo_dims *d, int32_t dense_below)
{
    int32_t w = d->cache.index_topk > dense_below ? d->cache.index_topk : dense_below;
    return w < d->max_context ? w : d->max_context;
}

/* The number of scores that are kept at once: those of a whole step if they fit, but at least those of one token. */
static int64_t dsa_capacity(const sl_algo_dims *dims)
{
    int64_t one = (int64_t)sl_pages_for(dims->max_context) * SL_PAGE_TOKENS;
    int64_t most = one * dims->max_step_tokens, fit = dims->workspace_bytes / 4;
    return most < fit ? most : fit > one ? fit : one;
}

/* Bytes of the hint of any slice: rows are whole pages, so it grows with their total length alone. */
static uint64_t hint_bytes(const sl_algo_dims *dims)
{
    int64_t scores = dsa_capacity(dims);
    return sl_topk_hint_bytes(1, scores < INT32_MAX ? (int32_t)scores : INT32_MAX);
}

static uint64_t dsa_device_bytes(const sl_algo_dims *dims)
{
    return (uint64_t)dsa_capacity(dims) * 4 + hint_bytes(dims);
}

static void dsa_destroy(sl_algo *a)
{
    dsa *d = (dsa *)a;
    if (!d)
        return;
    sl_be_free(d->be, SL_MEM_DEVICE, d->hint);
    sl_be_free(d->be, SL_MEM_DEVICE, d->scores);
    free(d);
}

static sl_status dsa_create(sl_backend *be, const sl_algo_dims *dims, sl_algo **out, sl_err *err)
{
    dsa *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail(err, SL_ERR_NO_MEMORY, "dsa: out of memory");
    *d = (dsa){.base.desc = &sl_algo_dsa, .be = be, .dims = *dims};
    d->capacity = dsa_capacity(dims);
    d->index = sl_cache_find(&dims->shape, SL_PLANE_INDEX);
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)d->capacity * 4, (void **)&d->scores, err);
    if (st != SL_OK)
        goto destroy;
    st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)hint_bytes(dims), &d->hint, err);
    if (st != SL_OK)
        goto destroy;
    *out = &d->base;
    return SL_OK;
destroy:
    dsa_destroy(&d->base);
    return st;
}

/* The keys of cached pages are in the index plane of the host pages: they are copied. */
static sl_status dsa_construct(sl_algo *a, const sl_algo_pages *p, sl_err *err)
{
    dsa *d = (dsa *)a;
    const sl_algo_plane *plane = &p->planes[d->index];
    if (!plane->device)
        return SL_OK;
    return sl_load_plane(d->be, &d->dims.shape.planes[d->index], plane, p->host_pages, p->device_pages,
                         p->n_pages, err);
}

static sl_topk_params selection(const dsa *d, const sl_algo_call *call, const sl_seq_tables *seqs,
                                int32_t ld_scores, int32_t *ids)
{
    return (sl_topk_params){
        .scores = d->scores,
        .seqs = seqs,
        .ids = ids,
        .token_count = seqs->n_tokens,
        .k = d->dims.cache.index_topk < call->k ? d->dims.cache.index_topk : call->k,
        .ld_scores = ld_scores,
        .ld_ids = call->k,
        .sinks = call->sinks,
        .recent = call->recent,
        .dense_below = call->dense_below,
    };
}

/* Scores one slice of tokens, from `first` on, and selects their best keys. ids points to the row of token `first`. */
static sl_status score_and_select(dsa *d, const sl_algo_call *call, int32_t first, int32_t count,
                                  int32_t ld_scores, int32_t *ids, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    sl_index_scores_params s = {
        .q = c->index.q,
        .weights = c->index.weights,
        .seqs = c->seqs,
        .index_base = call->planes[d->index].device,
        .index_page_stride = call->planes[d->index].device_stride,
        .scores = d->scores,
        .token_first = first,
        .token_count = count,
        .heads = c->index.heads,
        .dim = c->index.dim,
        .ld_scores = ld_scores,
        .format = c->index.format,
        .hint = d->hint,
    };
    SL_TRY(sl_be_run(d->be, SL_OP_INDEX_SCORES, &s, err));
    sl_seq_tables seqs = sl_seq_tables_slice(c->seqs, first, count);
    sl_topk_params t = selection(d, call, &seqs, ld_scores, ids);
    t.hint = d->hint;
    return sl_be_run(d->be, SL_OP_TOPK, &t, err);
}

/* By the scores of the call before, in which the newest tokens have none: they are selected in any case. */
static sl_status select_again(const dsa *d, const sl_algo_call *call, int32_t count, int32_t *ids,
                              sl_err *err)
{
    sl_seq_tables seqs = sl_seq_tables_slice(call->attn->seqs, 0, count);
    sl_topk_params t = selection(d, call, &seqs, d->ld, ids);
    SL_CHECK(count <= d->kept && call->max_pos < d->ld, "%d lists again, of %d", count, d->kept);
    if (t.recent < call->attn->again)
        t.recent = call->attn->again;
    if (t.recent > t.k - t.sinks)
        t.recent = t.k - t.sinks;
    return sl_be_run(d->be, SL_OP_TOPK, &t, err);
}

static sl_status dsa_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                              int32_t *ids, sl_err *err)
{
    dsa *d = (dsa *)a;
    if (call->attn->again > 0)
        return select_again(d, call, count, ids, err);
    int32_t end = call->max_pos + 1 + call->attn->later, most = d->dims.max_context;
    int32_t ld = sl_pages_for(end < most ? end : most) * SL_PAGE_TOKENS;
    int64_t slice = d->capacity / ld;
    d->kept = first == 0 && count <= slice ? count : 0, d->ld = ld;
    for (int32_t done = 0; done < count;) {
        int32_t n = count - done < slice ? count - done : (int32_t)slice;
        SL_TRY(score_and_select(d, call, first + done, n, ld, ids + (int64_t)done * call->k, err));
        if (call->scores)
            *call->scores = (sl_algo_scores){.at = d->scores,
                                             .first = first + done,
                                             .count = n,
                                             .ld = ld,
                                             .from_pos = call->dense_below,
                                             .sinks = call->sinks,
                                             .recent = call->recent};
        done += n;
    }
    return SL_OK;
}

static bool dsa_again(const sl_algo *a, int32_t tokens)
{
    return tokens <= ((const dsa *)a)->kept;
}

const sl_algo_desc sl_algo_dsa = {
    .name = "dsa",
    .description = "the model's lightning indexer: exact top-k of the index scores",
    .action = SL_ACTION_VISIBILITY,
    .needs_indexer = true,
    .keeps_lists = true,
    .constant_k = true,
    .groupable = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = dsa_selector,
    .width = dsa_width,
    .device_bytes = dsa_device_bytes,
    .create = dsa_create,
    .destroy = dsa_destroy,
    .construct = dsa_construct,
    /* no update: the coordinator captures index keys */
    .retrieve = dsa_retrieve,
    .again = dsa_again,
};
