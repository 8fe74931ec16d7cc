/*
 * msa: the model's own selection of blocks by index keys (MiniMax-M3). Its metadata are the index keys, one per token, which are
 * kept in the page's index plane and copied to the device. The score of a block for one head of the indexer is the largest product
 * of its query with a key of the block; the query heads of a KV head read the blocks that its head of the indexer takes. The
 * newest index_local blocks are always among them. Layers without an indexer attend to everything.
 *
 * What is selected are blocks of index_block tokens; rows, and the entries of lists, are the largest part of such a block that
 * divides a page.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "kernels/blocks.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/load.h"

typedef struct msa {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    float *scores;    /* device, [tokens of a slice][index heads][blocks] */
    int64_t capacity; /* floats in scores */
    int32_t index;    /* plane of the index keys */
} msa;

static int32_t topk_blocks(const sl_cache_dims *d)
{
    return d->index_topk / d->index_block;
}

/* The largest power of two that divides a block and a page. */
static int32_t row_tokens(const sl_cache_dims *d)
{
    int32_t n = 1;
    while (n < SL_PAGE_TOKENS && d->index_block % (2 * n) == 0)
        n *= 2;
    return n;
}

static sl_selector msa_selector(const sl_cache_dims *d)
{
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = d->index_block,
                         .entry_tokens = row_tokens(d),
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .reduce = d->index_block > 1 ? SL_REDUCE_MAX : SL_REDUCE_NONE,
                         .scope = SL_SCOPE_KV_HEAD,
                         .force_last = d->index_local};
}

/* The number of tokens that are always read at the end: one of each of the newest blocks. */
static int32_t recent_of(const sl_cache_dims *d, int32_t recent)
{
    const int32_t local = d->index_local > 0 ? (d->index_local - 1) * d->index_block + 1 : 0;
    return recent > local ? recent : local;
}

/* The most blocks in which the first `sinks` and the newest `recent` tokens lie. */
static int64_t forced_blocks(const sl_cache_dims *d, int32_t sinks, int32_t recent)
{
    const int64_t size = d->index_block, first = (sinks + size - 1) / size;
    return first + (recent > 0 ? (recent - 1 + size - 1) / size + 1 : 0);
}

static sl_status msa_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_cache_dims *c = &d->cache;
    const int32_t blocks = topk_blocks(c);
    if (c->kv_heads % c->index_heads)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "msa: %d heads of the indexer do not divide %d KV heads, whose rows are selected",
                       c->index_heads, c->kv_heads);
    if (c->index_format != SL_INDEX_PLAIN)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "msa: index keys are in the format plain, not %s",
                       sl_index_format_name(c->index_format));
    if (blocks < forced_blocks(c, g->sink_tokens, recent_of(c, g->recent_tokens)))
        return sl_fail(
            err, SL_ERR_INVALID,
            "msa: %d blocks of %d tokens are read, but sink_tokens %d, recent_tokens %d and the newest %d "
            "blocks need %lld",
            blocks, c->index_block, g->sink_tokens, g->recent_tokens, c->index_local,
            (long long)forced_blocks(c, g->sink_tokens, recent_of(c, g->recent_tokens)));
    return SL_OK;
}

static int32_t msa_width(const sl_algo_dims *d, int32_t dense_below)
{
    return sl_budget_width(d, d->cache.index_topk, dense_below);
}

/* The number of scores that are kept at once: those of a whole step if they fit, but at least those of one token. */
static int64_t capacity_of(const sl_algo_dims *d)
{
    const int64_t blocks = (d->max_context + d->cache.index_block - 1) / d->cache.index_block;
    const int64_t one = blocks * d->cache.index_heads, most = one * d->max_step_tokens,
                  fit = d->workspace_bytes / 4;
    return most < fit ? most : fit > one ? fit : one;
}

static uint64_t msa_device_bytes(const sl_algo_dims *d)
{
    return 4 * (uint64_t)capacity_of(d);
}

static void msa_destroy(sl_algo *a)
{
    msa *m = (msa *)a;
    if (!m)
        return;
    sl_be_free(m->be, SL_MEM_DEVICE, m->scores);
    free(m);
}

static sl_status msa_create(sl_backend *be, const sl_algo_dims *dims, sl_algo **out, sl_err *err)
{
    msa *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_NO_MEMORY, "msa: out of memory");
    *m = (msa){.base.desc = &sl_algo_msa, .be = be, .dims = *dims, .capacity = capacity_of(dims)};
    m->index = sl_cache_find(&dims->shape, SL_PLANE_INDEX);
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)m->capacity * 4, (void **)&m->scores, err);
    if (st != SL_OK) {
        msa_destroy(&m->base);
        return st;
    }
    *out = &m->base;
    return SL_OK;
}

/* The keys of cached pages are in the index plane of the host pages: they are copied. */
static sl_status msa_construct(sl_algo *a, const sl_algo_pages *p, sl_err *err)
{
    const msa *m = (const msa *)a;
    const sl_algo_plane *plane = &p->planes[m->index];
    if (!plane->device)
        return SL_OK;
    return sl_load_plane(m->be, &m->dims.shape.planes[m->index], plane, p->host_pages, p->device_pages,
                         p->n_pages, err);
}

/* Scores one slice of tokens, from `first` on, and selects their best blocks. ids points to the lists of token `first`. */
static sl_status score_and_select(const msa *m, const sl_algo_call *call, int32_t first, int32_t count,
                                  int32_t ld, int32_t *ids, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const sl_cache_dims *d = &m->dims.cache;
    const sl_block_scores_params s = {.q = c->index.q,
                                      .seqs = c->seqs,
                                      .index_base = call->planes[m->index].device,
                                      .index_page_stride = call->planes[m->index].device_stride,
                                      .scores = m->scores,
                                      .token_first = first,
                                      .token_count = count,
                                      .heads = d->index_heads,
                                      .dim = d->index_dim,
                                      .block_tokens = d->index_block,
                                      .ld_scores = ld,
                                      .from_pos = call->dense_below > d->index_topk ? call->dense_below
                                                                                    : d->index_topk};
    SL_TRY(sl_be_run(m->be, SL_OP_BLOCK_SCORES, &s, err));
    const sl_seq_tables seqs = sl_seq_tables_slice(c->seqs, first, count);
    const sl_block_lists_params p = {.scores = m->scores,
                                     .seqs = &seqs,
                                     .ids = ids,
                                     .token_count = count,
                                     .k = topk_blocks(d),
                                     .heads = d->index_heads,
                                     .lists = call->lists,
                                     .ld_scores = ld,
                                     .ld_ids = call->k,
                                     .block_tokens = d->index_block,
                                     .block_log2 = call->block_log2,
                                     .sinks = call->sinks,
                                     .recent = recent_of(d, call->recent),
                                     .dense_below = call->dense_below};
    return sl_be_run(m->be, SL_OP_BLOCK_LISTS, &p, err);
}

static sl_status msa_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                              int32_t *ids, sl_err *err)
{
    const msa *m = (const msa *)a;
    const int32_t ld = call->max_pos / m->dims.cache.index_block + 1;
    const int64_t fit = m->capacity / ((int64_t)ld * m->dims.cache.index_heads);
    for (int32_t done = 0; done < count;) {
        const int32_t n = count - done < fit ? count - done : (int32_t)fit;
        SL_TRY(
            score_and_select(m, call, first + done, n, ld, ids + (int64_t)done * call->lists * call->k, err));
        done += n;
    }
    return SL_OK;
}

const sl_algo_desc sl_algo_msa = {
    .name = "msa",
    .description = "the model's index keys: the blocks with the largest products, for every KV head",
    .action = SL_ACTION_VISIBILITY,
    .needs_indexer = true,
    .index_blocks = true,
    .needs_kv_heads = true,
    .keeps_lists = true,
    .constant_k = true,
    .groupable = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = msa_selector,
    .check = msa_check,
    .width = msa_width,
    .device_bytes = msa_device_bytes,
    .create = msa_create,
    .destroy = msa_destroy,
    .construct = msa_construct,
    /* no update: the coordinator captures index keys */
    .retrieve = msa_retrieve,
};
