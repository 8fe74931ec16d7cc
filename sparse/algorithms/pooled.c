/*
 * pooled: the indexer of models whose index keys are those of units of tokens (Qwen 4, GLM-5.3-Flash; kernels/pooled.h). A query scores
 * the units that are complete for it, selects the best of them up to index_topk tokens, and always reads the tokens of the open one.
 * The keys are a plane of the cache, with one entry for each unit; the coordinator makes them. Rows by KV head are divided by units, and
 * lists are of units; latent rows are those of single tokens, and so are the lists of them.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "sparse/load.h"

typedef struct pooled {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    float *scores;
    int64_t capacity;    /* floats in scores */
    int32_t *unit_seq;   /* [max_step_tokens], and as many positions after them */
    int32_t index, log2; /* plane of the keys; tokens of a unit */
} pooled;

static bool by_token(const sl_cache_dims *d)
{
    return d->kv_heads < 1;
}

static sl_selector pooled_selector(const sl_cache_dims *d)
{
    const int32_t unit = d->index_unit > 0 ? d->index_unit : 1;
    return (sl_selector){.unit_tokens = unit,
                         .block_tokens = unit,
                         .entry_tokens = by_token(d) ? 1 : 0,
                         .key = SL_KEY_MEAN,
                         .score = SL_SCORE_RELU,
                         .scope = SL_SCOPE_REQUEST,
                         .force_open = true,
                         .shared_by_layers = true};
}

static int32_t unit_of(const sl_algo_dims *d)
{
    return d->cache.index_unit > 0 ? d->cache.index_unit : 1;
}

static int32_t log2_of(int32_t unit)
{
    int32_t n = 0;
    while (1 << n < unit)
        n++;
    return n;
}

/* Complete units that a list has at most. */
static int32_t budget(const sl_algo_dims *d)
{
    return d->cache.index_topk / unit_of(d);
}

/* The sinks and the newest tokens of a query may lie in parts of units. */
static sl_status pooled_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const int32_t forced = sl_forced_blocks(g->sink_tokens, g->recent_tokens, log2_of(unit_of(d)));
    if (budget(d) < 1 || forced > budget(d))
        return sl_fail(
            err, SL_ERR_INVALID,
            "pooled: index_topk %d is %d units of %d tokens, but sink_tokens %d and recent_tokens %d need %d",
            d->cache.index_topk, budget(d), unit_of(d), g->sink_tokens, g->recent_tokens,
            forced > 1 ? forced : 1);
    return SL_OK;
}

static int32_t pooled_width(const sl_algo_dims *d, int32_t dense_below)
{
    const int64_t w = ((int64_t)budget(d) + 1) * unit_of(d), dense = (int64_t)dense_below + unit_of(d);
    const int64_t most = dense_below > 0 && dense > w ? dense : w;
    return most < d->max_context ? (int32_t)most : d->max_context;
}

/* Scores of one token, and as many as a step has if they fit. */
static int64_t capacity_of(const sl_algo_dims *d)
{
    const int64_t one =
        (int64_t)sl_pages_for(d->max_context) * (SL_PAGE_TOKENS / unit_of(d)) + SL_PAGE_TOKENS;
    const int64_t most = one * d->max_step_tokens, fit = d->workspace_bytes / 4;
    return most < fit ? most : fit > one ? fit : one;
}

static uint64_t pooled_device_bytes(const sl_algo_dims *d)
{
    return 4 * ((uint64_t)capacity_of(d) + 2 * (uint64_t)d->max_step_tokens);
}

static void pooled_destroy(sl_algo *a)
{
    pooled *p = (pooled *)a;
    if (!p)
        return;
    sl_be_free(p->be, SL_MEM_DEVICE, p->unit_seq);
    sl_be_free(p->be, SL_MEM_DEVICE, p->scores);
    free(p);
}

static sl_status pooled_create(sl_backend *be, const sl_algo_dims *dims, sl_algo **out, sl_err *err)
{
    pooled *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pooled: out of memory");
    *p = (pooled){.base.desc = &sl_algo_pooled, .be = be, .dims = *dims};
    p->capacity = capacity_of(dims);
    p->index = sl_cache_find(&dims->shape, SL_PLANE_INDEX);
    p->log2 = log2_of(unit_of(dims));
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)p->capacity * 4, (void **)&p->scores, err);
    if (st != SL_OK)
        goto destroy;
    st = sl_be_alloc(be, SL_MEM_DEVICE, 8 * (size_t)dims->max_step_tokens, (void **)&p->unit_seq, err);
    if (st != SL_OK)
        goto destroy;
    *out = &p->base;
    return SL_OK;
destroy:
    pooled_destroy(&p->base);
    return st;
}

/* The keys of cached pages are in the index plane of the host pages: they are copied. */
static sl_status pooled_construct(sl_algo *a, const sl_algo_pages *pages, sl_err *err)
{
    pooled *p = (pooled *)a;
    const sl_algo_plane *plane = &pages->planes[p->index];
    if (!plane->device)
        return SL_OK;
    return sl_load_plane(p->be, &p->dims.shape.planes[p->index], plane, pages->host_pages,
                         pages->device_pages, pages->n_pages, err);
}

/* The best of the complete units of a slice of tokens; seqs: the tables of their units. */
static sl_status select_best(pooled *p, const sl_algo_call *call, const sl_seq_tables *seqs, int32_t ld,
                             int32_t *ids, sl_err *err)
{
    const int32_t most = budget(&p->dims),
                  fit = by_token(&p->dims.cache) ? sl_blocks_for(call->k, p->log2) : call->k;
    sl_topk_params t = {
        .scores = p->scores,
        .seqs = seqs,
        .ids = ids,
        .token_count = seqs->n_tokens,
        .k = most < fit ? most : fit,
        .ld_scores = ld,
        .ld_ids = call->k,
        .sinks = call->sinks,
        .recent = call->recent,
        .dense_below = call->dense_below,
        .block_log2 = p->log2,
    };
    return sl_be_run(p->be, SL_OP_TOPK, &t, err);
}

static sl_status score_and_select(pooled *p, const sl_algo_call *call, int32_t first, int32_t count,
                                  int32_t ld, int32_t *ids, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const sl_algo_plane *plane = &call->planes[p->index];
    sl_pool_scores_params s = {.q = c->index.q,
                               .weights = c->index.weights,
                               .seqs = c->seqs,
                               .base = plane->device,
                               .page_stride = plane->device_stride,
                               .scores = p->scores,
                               .unit_seq = p->unit_seq,
                               .unit_pos = p->unit_seq + p->dims.max_step_tokens,
                               .token_first = first,
                               .token_count = count,
                               .heads = c->index.heads,
                               .dim = c->index.dim,
                               .unit_log2 = p->log2,
                               .ld_scores = ld,
                               .scale = c->index.scale};
    sl_seq_tables seqs = sl_seq_tables_slice(c->seqs, first, count);
    sl_open_units_params open = {.ids = ids,
                                 .seqs = &seqs,
                                 .unit_log2 = p->log2,
                                 .ld_ids = call->k,
                                 .by_token = by_token(&p->dims.cache)};
    sl_seq_tables units = seqs;
    units.token_seq = s.unit_seq, units.token_pos = s.unit_pos;
    SL_TRY(sl_be_run(p->be, SL_OP_POOL_SCORES, &s, err));
    SL_TRY(select_best(p, call, &units, ld, ids, err));
    return sl_be_run(p->be, SL_OP_OPEN_UNITS, &open, err);
}

static sl_status pooled_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                 int32_t *ids, sl_err *err)
{
    pooled *p = (pooled *)a;
    const int32_t units = (call->max_pos >> p->log2) + 1;
    const int32_t ld = (units + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS * SL_PAGE_TOKENS;
    const int64_t slice = p->capacity / ld;
    for (int32_t done = 0; done < count;) {
        int32_t n = count - done < slice ? count - done : (int32_t)slice;
        SL_TRY(score_and_select(p, call, first + done, n, ld, ids + (int64_t)done * call->k, err));
        done += n;
    }
    return SL_OK;
}

const sl_algo_desc sl_algo_pooled = {
    .name = "pooled",
    .description = "the model's indexer over keys of units of tokens: exact top-k, and the open unit",
    .action = SL_ACTION_VISIBILITY,
    .needs_indexer = true,
    .pooled_keys = true,
    .keeps_lists = true,
    .constant_k = true,
    .groupable = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = pooled_selector,
    .check = pooled_check,
    .width = pooled_width,
    .device_bytes = pooled_device_bytes,
    .create = pooled_create,
    .destroy = pooled_destroy,
    .construct = pooled_construct,
    /* no update: the coordinator captures index keys */
    .retrieve = pooled_retrieve,
};
