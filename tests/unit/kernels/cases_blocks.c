/* Conformance cases of the selection of blocks by index keys: scores, and lists. */
#include <math.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/formats.h"
#include "tests/unit/kernels/batch.h"

/* The keys of all sequences; the rest of the pool is NaN. */
static uint8_t *keys_of(cf_run *r, const batch *b, int32_t dim, int64_t stride)
{
    uint8_t *pool = cf_temp(r, (size_t)(b->pages * stride));
    float *key = cf_temp(r, 4 * (size_t)dim);

    memset(pool, 0xff, (size_t)(b->pages * stride));
    for (int64_t s = 0; s < b->seqs; s++)
        for (int32_t pos = 0; pos <= batch_last(b, s); pos++) {
            for (int32_t d = 0; d < dim; d++)
                key[d] = 2 * cf_uniform(40 + (uint32_t)s, (int64_t)pos * dim + d);
            sl_index_key_encode(SL_INDEX_PLAIN, dim, key,
                                pool + batch_page(b, b->index_pages, s, pos) * stride, pos % SL_PAGE_TOKENS);
        }
    return cf_mem(r, pool, (size_t)(b->pages * stride));
}

/* T, per, length, heads, dim, tokens of a block, first position with scores, chunk of tokens */
static void scores(cf_run *r, const int64_t *a)
{
    batch b;
    sl_block_scores_params p = {.heads = (int32_t)a[3],
                                .dim = (int32_t)a[4],
                                .block_tokens = (int32_t)a[5],
                                .from_pos = (int32_t)a[6],
                                .ld_scores = (int32_t)((a[2] + a[5] - 1) / a[5] + 3)};
    const int64_t width = a[3] * a[4], out = a[3] * p.ld_scores;
    double loads = 0;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    if (r->perf)
        batch_full(r, &b);
    p.seqs = &b.t;
    p.index_page_stride = sl_index_block_bytes(SL_INDEX_PLAIN, p.dim) + 64;
    p.index_base = keys_of(r, &b, p.dim, p.index_page_stride);
    p.q = cf_matrix(r, 3, r->first, r->n, width, width, SL_F32, 1);
    float *base = cf_mem(r, NULL, 4 * (size_t)(r->n * out));
    for (p.token_first = 0; p.token_first < r->n; p.token_first += p.token_count) {
        p.token_count = (int32_t)(r->n - p.token_first < a[7] ? r->n - p.token_first : a[7]);
        p.scores = base + p.token_first * out;
        cf_op(r, SL_OP_BLOCK_SCORES, &p);
    }
    for (int64_t i = 0; i < r->n; i++)
        if (i + 1 == r->n || b.seq[i + 1] != b.seq[i])
            loads += (b.pos[i] + 1) * (double)(4 * p.dim);
    cf_work(r, loads, 0, SL_F32, 0);
    cf_out_tokens(r, "scores", base, 4 * (size_t)out, CF_F32, 2e-5);
}

/* Score of block b of head h and token t: several kinds of distribution, with ties, infinities and NaN. */
static float score_of(int64_t t, int64_t h, int64_t b)
{
    const float u = cf_uniform(30 + (uint32_t)t, h * 100000 + b);
    const uint64_t hash = cf_hash(60 + (uint32_t)t, h * 100000 + b);

    switch ((t + h) % 6) {
    case 0:
        return 1.5f;
    case 1:
        return (float)(hash % 4) - 2.0f;
    case 2:
        return hash % 3 ? u : -INFINITY;
    case 3:
        return hash % 5 ? u : hash % 2 ? INFINITY : NAN;
    case 4:
        return hash % 2 ? 0.0f : -0.0f;
    default:
        return u;
    }
}

/* T, per, length, k, heads, lists, tokens of a block, log2 of those of a row, sinks, recent, dense_below, chunk of tokens */
static void lists(cf_run *r, const int64_t *a)
{
    batch b;
    sl_block_lists_params p = {.k = (int32_t)a[3],
                               .heads = (int32_t)a[4],
                               .lists = (int32_t)a[5],
                               .block_tokens = (int32_t)a[6],
                               .block_log2 = (int32_t)a[7],
                               .sinks = (int32_t)a[8],
                               .recent = (int32_t)a[9],
                               .dense_below = (int32_t)a[10],
                               .ld_scores = (int32_t)((a[2] + a[6] - 1) / a[6] + 2)};
    const int64_t all = ((a[2] - 1) >> a[7]) + 1, some = a[3] * (a[6] >> a[7]), gate = (a[10] >> a[7]) + 1;
    const int64_t width = a[4] * p.ld_scores;
    float *host = cf_temp(r, 4 * (size_t)(r->n * width));

    p.ld_ids = (int32_t)((some > gate ? some : gate) < all ? (some > gate ? some : gate) : all);
    batch_make(r, &b, a[0], a[1], a[2], 0);
    if (r->perf)
        batch_full(r, &b);
    p.seqs = &b.t;
    for (int64_t i = 0; i < r->n * width; i++)
        host[i] = score_of(r->first + i / width, i % width / p.ld_scores, i % p.ld_scores);
    float *base = cf_mem(r, host, 4 * (size_t)(r->n * width));
    p.ids = cf_mem(r, NULL, 4 * (size_t)(r->n * p.lists * p.ld_ids));
    for (p.token_first = 0; p.token_first < r->n; p.token_first += p.token_count) {
        p.token_count = (int32_t)(r->n - p.token_first < a[11] ? r->n - p.token_first : a[11]);
        p.scores = base + p.token_first * width;
        cf_op(r, SL_OP_BLOCK_LISTS, &p);
    }
    cf_work(r, 4.0 * (double)(r->n * width), 0, SL_F32, 0);
    cf_out_tokens(r, "ids", p.ids, 4 * (size_t)(p.lists * p.ld_ids), CF_BYTES, 0);
}

/* What the ops refuse. */
static void refusals(cf_run *r, const int64_t *a)
{
    batch b;
    batch_make(r, &b, 1, 1, 70, 0);
    const sl_block_scores_params scores_good = {.q = cf_matrix(r, 1, 0, 1, 8, 8, SL_F32, 1),
                                                .seqs = &b.t,
                                                .index_base = keys_of(r, &b, 4, 64 * 16),
                                                .index_page_stride = 64 * 16,
                                                .scores = cf_mem(r, NULL, 4 * 2 * 20),
                                                .token_count = 1,
                                                .heads = 2,
                                                .dim = 4,
                                                .block_tokens = 8,
                                                .ld_scores = 20};
    const sl_block_lists_params good = {.scores = scores_good.scores,
                                        .seqs = &b.t,
                                        .ids = cf_mem(r, NULL, 4 * 2 * 20),
                                        .token_count = 1,
                                        .k = 2,
                                        .heads = 2,
                                        .lists = 2,
                                        .ld_scores = 20,
                                        .ld_ids = 4,
                                        .block_tokens = 8,
                                        .block_log2 = 2};
    sl_block_scores_params s = scores_good;
    sl_block_lists_params p = good;
    (void)a;
    s.dim = 257, cf_refused(r, SL_OP_BLOCK_SCORES, &s, SL_ERR_UNSUPPORTED, "dim");
    s = scores_good, s.block_tokens = 0,
    cf_refused(r, SL_OP_BLOCK_SCORES, &s, SL_ERR_INVALID, "block_tokens");
    s = scores_good, s.index_page_stride = 64,
    cf_refused(r, SL_OP_BLOCK_SCORES, &s, SL_ERR_INVALID, "index_page_stride");
    s = scores_good, s.token_count = 2, cf_refused(r, SL_OP_BLOCK_SCORES, &s, SL_ERR_INVALID, "token_count");
    p.lists = 3, cf_refused(r, SL_OP_BLOCK_LISTS, &p, SL_ERR_INVALID, "lists");
    p = good, p.block_log2 = 4, cf_refused(r, SL_OP_BLOCK_LISTS, &p, SL_ERR_INVALID, "block_log2");
    p = good, p.block_log2 = 7, cf_refused(r, SL_OP_BLOCK_LISTS, &p, SL_ERR_INVALID, "block_log2");
    p = good, p.k = 0, cf_refused(r, SL_OP_BLOCK_LISTS, &p, SL_ERR_INVALID, "k");
    p = good, p.recent = -1, cf_refused(r, SL_OP_BLOCK_LISTS, &p, SL_ERR_INVALID, "recent");
}

/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_BLOCK_SCORES, "T=1 len=1 h=1 dim=2 blocks of 1", scores, {1, 1, 1, 1, 2, 1, 0, 1}, CF_SPLIT},
    {SL_OP_BLOCK_SCORES, "T=12 len=300 h=4 dim=128 blocks of 128", scores, {12, 3, 300, 4, 128, 128, 0, 5}, CF_SPLIT},
    {SL_OP_BLOCK_SCORES, "T=18 len=700 h=2 dim=16 blocks of 16", scores, {18, 6, 700, 2, 16, 16, 0, 18}, CF_SPLIT},
    {SL_OP_BLOCK_SCORES, "T=9 len=500 h=3 dim=37 blocks of 24 from 100", scores, {9, 3, 500, 3, 37, 24, 100, 4}, CF_SPLIT},
    {SL_OP_BLOCK_SCORES, "T=6 len=900 h=5 dim=256 blocks of 320", scores, {6, 2, 900, 5, 256, 320, 0, 6}, CF_SPLIT},
    {SL_OP_BLOCK_SCORES, "T=40 len=200 h=4 dim=64 blocks of 64", scores, {40, 40, 200, 4, 64, 64, 0, 33}, CF_SPLIT | CF_FEW},
    {SL_OP_BLOCK_SCORES, "T=6 len=130 h=1 dim=8 blocks of 3", scores, {6, 3, 130, 1, 8, 3, 0, 6}, CF_SPLIT},
    {SL_OP_BLOCK_SCORES, "T=1 len=131072 h=4 dim=128", scores, {1, 1, 131072, 4, 128, 128, 0, 1}, CF_PERF_ONLY},
    {SL_OP_BLOCK_SCORES, "T=16 len=65536 h=4 dim=128", scores, {16, 1, 65536, 4, 128, 128, 0, 16}, CF_PERF_ONLY},
    {SL_OP_BLOCK_SCORES, "T=512 len=32768 h=4 dim=128 per 512", scores, {512, 512, 32768, 4, 128, 128, 0, 512}, CF_PERF_ONLY},
    {SL_OP_BLOCK_LISTS, "T=1 len=1 k=1", lists, {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=24 len=900 k=4 blocks of 16", lists, {24, 3, 900, 4, 2, 2, 16, 4, 0, 1, 0, 24}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=24 len=3000 k=5 blocks of 128", lists, {24, 3, 3000, 5, 4, 4, 128, 6, 0, 129, 0, 7}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=18 len=700 k=6 blocks of 24, two lists of a head", lists, {18, 6, 700, 6, 3, 6, 24, 3, 0, 1, 0, 18}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=18 len=700 k=7 blocks of 8 gates", lists, {18, 6, 700, 7, 2, 2, 8, 3, 9, 20, 300, 5}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=12 len=400 k=9 blocks of 3", lists, {12, 4, 400, 9, 1, 3, 3, 0, 0, 0, 0, 12}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=12 len=2000 k=40 blocks of 4, all forced or tied", lists, {12, 2, 2000, 40, 2, 2, 4, 2, 80, 77, 0, 12}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=6 len=40000 k=16 blocks of 128", lists, {6, 1, 40000, 16, 4, 4, 128, 6, 0, 1, 0, 6}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=3 len=40000 k=3000 blocks of 4", lists, {3, 1, 40000, 3000, 1, 1, 4, 2, 0, 1, 0, 3}, CF_SPLIT},
    {SL_OP_BLOCK_LISTS, "T=40 len=70 k=64 all", lists, {40, 40, 70, 64, 1, 2, 4, 1, 0, 1, 0, 33}, CF_SPLIT | CF_FEW},
    {SL_OP_BLOCK_LISTS, "T=64 len=131072 k=16 blocks of 128", lists, {64, 1, 131072, 16, 4, 4, 128, 6, 0, 1, 0, 64}, CF_PERF_ONLY},
    {SL_OP_BLOCK_LISTS, "refusals", refusals, {1}, 0},
};
/* clang-format on */

const cf_table cf_block_cases = {cases, SL_COUNT(cases)};
