/* Conformance cases of the indexer: keys, queries, scores, top-k. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"
#include "tests/unit/kernels/batch.h"

/* T, per, length, dim, rope, interleaved, format, act, norm dtype, host, RMS norm */
static void append(cf_run *r, const int64_t *a)
{
    batch b;
    sl_index_append_params p = {
        .dim = (int32_t)a[3], .rope = (int32_t)a[4], .interleaved = a[5], .eps = 1e-6f};
    size_t *dev = cf_temp(r, sizeof(size_t) * (size_t)r->n),
           *host = cf_temp(r, sizeof(size_t) * (size_t)r->n), key, scales;
    int64_t block;
    cf_kind kind;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.format = (sl_index_format)a[6];
    p.act = (sl_dtype)a[7];
    p.norm_dtype = (sl_dtype)a[8];
    p.seqs = &b.t;
    p.ld_k = p.dim + 5;
    block = sl_index_block_bytes(p.format, p.dim);
    p.index_page_stride = block + 256;
    p.k = cf_matrix(r, 1, r->first, r->n, p.dim, p.ld_k, p.act, 2);
    p.norm_weight = cf_matrix(r, 2, 0, 1, p.dim, p.dim, p.norm_dtype, 1.5f);
    p.norm_bias = a[10] ? NULL : cf_matrix(r, 3, 0, 1, p.dim, p.dim, p.norm_dtype, 0.3f);
    p.cos_sin = p.rope ? cf_cos_sin(r, (int32_t)a[2], p.rope) : NULL;
    p.index_base = cf_mem(r, NULL, (size_t)(b.pages * p.index_page_stride));
    p.host.page_stride = block + 128;
    p.host.base = a[9] ? cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride)) : NULL;
    key = (size_t)p.dim * (p.format == SL_INDEX_PLAIN ? 4 : 1);
    scales = (size_t)SL_PAGE_TOKENS * (size_t)p.dim;
    for (int64_t i = 0; i < r->n; i++) {
        size_t in = (size_t)(b.pos[i] % SL_PAGE_TOKENS) * key;

        dev[i] = (size_t)(batch_page(&b, b.index_pages, b.seq[i], b.pos[i]) * p.index_page_stride) + in;
        host[i] = (size_t)(batch_page(&b, b.host_pages, b.seq[i], b.pos[i]) * p.host.page_stride) + in;
    }
    cf_op(r, SL_OP_INDEX_APPEND, &p);
    cf_work(r, (double)r->n * (double)p.dim * 6, 0, SL_F32, 0);
    kind = p.format == SL_INDEX_PLAIN ? CF_F32 : CF_FP8;
    cf_out_at(r, "key", p.index_base, dev, key, kind, p.act == SL_BF16 ? 8e-3 : 2e-6);
    if (a[9])
        cf_out_at(r, "host key", p.host.base, host, key, kind, p.act == SL_BF16 ? 8e-3 : 2e-6);
    if (p.format == SL_INDEX_OFFICIAL) {
        for (int64_t i = 0; i < r->n; i++) {
            size_t in = (size_t)(b.pos[i] % SL_PAGE_TOKENS);

            dev[i] += scales + in * 4 - in * key;
            host[i] += scales + in * 4 - in * key;
        }
        cf_out_at(r, "scale", p.index_base, dev, 4, CF_BYTES, 0);
        if (a[9])
            cf_out_at(r, "host scale", p.host.base, host, 4, CF_BYTES, 0);
    }
    /* The pool as a whole: nothing else was touched (unwritten bytes are NaN, which only equals NaN). */
    cf_out(r, "pool", p.index_base, b.pages, (size_t)p.index_page_stride, (size_t)p.index_page_stride, kind,
           p.act == SL_BF16 ? 8e-3 : 2e-6);
}

/* T, heads, dim, rope, interleaved, format, act */
static void query(cf_run *r, const int64_t *a)
{
    sl_index_query_params p = {
        .tokens = (int32_t)r->n, .heads = (int32_t)a[1], .dim = (int32_t)a[2], .rope = (int32_t)a[3]};
    int32_t *pos = cf_temp(r, 4 * (size_t)r->n);
    size_t row;

    p.interleaved = a[4];
    p.format = (sl_index_format)a[5];
    p.act = (sl_dtype)a[6];
    for (int64_t i = 0; i < r->n; i++)
        pos[i] = (int32_t)(cf_hash(6, r->first + i) % 300);
    p.pos = cf_mem(r, pos, 4 * (size_t)r->n);
    p.cos_sin = p.rope ? cf_cos_sin(r, 300, p.rope) : NULL;
    p.q = cf_matrix(r, 1, r->first, r->n, a[1] * a[2], a[1] * a[2], p.act, 3);
    p.wproj = cf_matrix(r, 2, r->first, r->n, a[1], a[1], SL_F32, 1);
    row = (size_t)(a[1] * a[2]) * (p.format == SL_INDEX_PLAIN ? 4 : 1);
    p.q_out = cf_mem(r, NULL, (size_t)r->n * row);
    p.weights = cf_mem(r, NULL, 4 * (size_t)(r->n * a[1]));
    cf_op(r, SL_OP_INDEX_QUERY, &p);
    cf_work(r,
            (double)r->n * (double)a[1] * (double)(a[2] * (int64_t)sl_dtype_size(p.act) + 8) +
                (double)r->n * (double)row,
            0, SL_F32, 0);
    cf_out_tokens(r, "q", p.q_out, row, p.format == SL_INDEX_PLAIN ? CF_F32 : CF_FP8,
                  p.act == SL_BF16 ? 8e-3 : 1e-6);
    cf_out_tokens(r, "weights", p.weights, 4 * (size_t)a[1], CF_BYTES, 0);
}

#define DISTINCT 64
/* Keys of all sequences as the appended ones would be; the rest of the pool is NaN. */
static uint8_t *key_pool(cf_run *r, const batch *b, sl_index_format format, int32_t dim, int64_t stride)
{
    uint8_t *host = cf_temp(r, (size_t)(b->pages * stride)), *pool;
    float *key = cf_temp(r, 4 * (size_t)dim);

    memset(host, 0xff, (size_t)(b->pages * stride));
    for (int64_t s = 0; s < b->seqs; s++)
        for (int32_t pos = 0; pos <= batch_last(b, s); pos++) {
            uint8_t *block = host + batch_page(b, b->index_pages, s, pos) * stride;

            if (r->perf && (s > 0 || pos >= DISTINCT * SL_PAGE_TOKENS)) { /* timing: pages repeat */
                memcpy(block,
                       host + batch_page(b, b->index_pages, 0, pos % (DISTINCT * SL_PAGE_TOKENS)) * stride,
                       (size_t)sl_index_block_bytes(format, dim));
                pos |= SL_PAGE_TOKENS - 1;
                continue;
            }
            for (int32_t d = 0; d < dim; d++)
                key[d] = 2 * cf_uniform(40 + (uint32_t)s, (int64_t)pos * dim + d);
            sl_index_key_encode(format, dim, key, host + batch_page(b, b->index_pages, s, pos) * stride,
                                pos % SL_PAGE_TOKENS);
        }
    pool = cf_mem(r, host, (size_t)(b->pages * stride));
    return pool;
}

/* T, per, length, heads, dim, format, chunk of tokens */
static void scores(cf_run *r, const int64_t *a)
{
    batch b;
    sl_index_scores_params p = {
        .heads = (int32_t)a[3], .dim = (int32_t)a[4], .format = (sl_index_format)a[5]};
    bool official = p.format == SL_INDEX_OFFICIAL;
    double keys = 0, loads = 0;
    float *base;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    if (r->perf)
        batch_full(r, &b);
    p.seqs = &b.t;
    p.ld_scores = (int32_t)a[2] + (r->perf ? 0 : 7);
    p.index_page_stride = sl_index_block_bytes(p.format, p.dim) + 64;
    p.index_base = key_pool(r, &b, p.format, p.dim, p.index_page_stride);
    p.q = cf_matrix(r, 1, r->first, r->n, a[3] * a[4], a[3] * a[4], official ? SL_F8_E4M3 : SL_F32,
                    official ? 200 : 1);
    p.weights = cf_matrix(r, 2, r->first, r->n, a[3], a[3], SL_F32, 0.1f);
    base = cf_mem(r, NULL, 4 * (size_t)(r->n * p.ld_scores));
    for (p.token_first = 0; p.token_first < r->n; p.token_first += p.token_count) {
        p.token_count = (int32_t)(r->n - p.token_first < a[6] ? r->n - p.token_first : a[6]);
        p.scores = base + (int64_t)p.token_first * p.ld_scores;
        cf_op(r, SL_OP_INDEX_SCORES, &p);
    }
    for (int64_t i = 0; i < r->n; i++) {
        keys += b.pos[i] + 1;
        if (i + 1 == r->n || b.seq[i + 1] != b.seq[i])
            loads += b.pos[i] + 1;
    }
    cf_work(r, loads * (double)sl_index_block_bytes(p.format, p.dim) / SL_PAGE_TOKENS + keys * 4,
            2 * keys * (double)(a[3] * a[4]), official ? SL_F8_E4M3 : SL_F32, 0);
    /* Another backend may add over heads and dims in another order, and round differently inside a tensor core. */
    cf_out_tokens(r, "scores", base, 4 * (size_t)p.ld_scores, CF_F32, !r->be ? 5e-6 : official ? 2e-3 : 2e-5);
}

/* Score j of token t: every token has another kind of distribution. */
static float score_of(int64_t t, int64_t j, int64_t kind)
{
    float u = cf_uniform(30 + (uint32_t)t, j);
    uint64_t h = cf_hash(60 + (uint32_t)t, j);

    switch (kind >= 0 ? kind : t % 12) {
    case 0:
        return u;
    case 1:
        return 1.5f; /* all equal */
    case 2:
        return h % 2 ? 1.0f : -1.0f; /* two values */
    case 3:
        return -1.0f - (float)(h % 1000); /* negative, repeated */
    case 4:
        return h % 3 == 0 ? NAN : u;
    case 5:
        return h % 4 == 0 ? INFINITY : h % 4 == 1 ? -INFINITY : u;
    case 6:
        return h % 2 ? 0.0f : -0.0f; /* equal zeros */
    case 7:
        return 1.0f + 1e-7f * (float)(h % 3); /* neighbouring floats */
    case 8:
        return h % 50 == 0 ? -INFINITY : NAN; /* mostly NaN */
    case 9:
        return 1e-42f * u; /* denormal */
    case 11: {             /* about N(0, 1) */
        float z = -6;

        for (int i = 0; i < 6; i++)
            z += (float)((h >> 10 * i & 1023) * 2) / 1023.0f;
        return z * 0.70710678f;
    }
    case 12: /* a few values far from all others, one of them infinite */
        return j % 4099 == 7 ? 1e30f * (1 + u) : j == 5000 ? INFINITY : j == 6000 ? -INFINITY : u;
    case 13: /* far from zero compared with their spread */
        return 1e7f + 100 * u;
    default:
        return 10 + 0.1f * u; /* one fp16 bin */
    }
}

/* T, per, length, k, extra ids, chunk, kind, sinks, recent, dense_below, lists per token (0: 1), log2 of a block, percent of
 * the mass, whether each list has a limit of its own */
static void topk(cf_run *r, const int64_t *a)
{
    batch b;
    sl_topk_params p = {.k = (int32_t)a[3],
                        .ld_ids = (int32_t)(a[3] + a[4]),
                        .ld_scores = (int32_t)a[2] + (r->perf ? 0 : 3),
                        .lists = (int32_t)a[10],
                        .block_log2 = (int32_t)a[11]};
    int64_t lists = a[10] ? a[10] : 1;
    float *host = cf_temp(r, 4 * (size_t)(r->n * lists * p.ld_scores)), *base;
    double n = 0;

    p.sinks = (int32_t)a[7];
    p.recent = (int32_t)a[8];
    p.dense_below = (int32_t)a[9];
    p.mass = (float)a[12] / 100;
    if (a[13]) {
        int32_t *of = cf_temp(r, 4 * (size_t)lists);
        for (int64_t h = 0; h < lists; h++)
            of[h] = h == 1 ? INT32_MAX : (int32_t)(cf_hash(94, h + a[13]) % (uint64_t)(p.k + 1));
        p.k_of = cf_mem(r, of, 4 * (size_t)lists);
    }
    batch_make(r, &b, a[0], a[1], a[2], 0);
    if (r->perf)
        batch_full(r, &b);
    p.seqs = &b.t;
    memset(host, 0xff, 4 * (size_t)(r->n * lists * p.ld_scores));
    for (int64_t i = 0; i < r->n * lists; i++) {
        for (int64_t j = 0; j <= b.pos[i / lists] >> a[11]; j++)
            host[i * p.ld_scores + j] = score_of(r->first * lists + i, j, a[6]);
        n += b.pos[i / lists] + 1;
    }
    base = cf_mem(r, host, 4 * (size_t)(r->n * lists * p.ld_scores));
    p.ids = cf_mem(r, NULL, 4 * (size_t)(r->n * lists * p.ld_ids));
    for (p.token_first = 0; p.token_first < r->n; p.token_first += p.token_count) {
        p.token_count = (int32_t)(r->n - p.token_first < a[5] ? r->n - p.token_first : a[5]);
        p.scores = base + p.token_first * lists * p.ld_scores;
        cf_op(r, SL_OP_TOPK, &p);
    }
    cf_work(r, 4 * n + 4.0 * (double)(r->n * a[3]), 0, SL_F32, 0);
    cf_out_tokens(r, "ids", p.ids, 4 * (size_t)(lists * p.ld_ids), CF_BYTES, 0);
}

/*
 * Scores, then top-k of them with the hint that index_scores wrote and without it: the ids must be the same. T,
 * per, length, heads, dim, format, k, sinks, recent
 */
static void hinted(cf_run *r, const int64_t *a)
{
    batch b;
    sl_index_scores_params s = {
        .heads = (int32_t)a[3], .dim = (int32_t)a[4], .format = (sl_index_format)a[5]};
    sl_topk_params t = {.k = (int32_t)a[6], .ld_ids = (int32_t)a[6]};
    bool official = s.format == SL_INDEX_OFFICIAL;
    size_t bytes = 4 * (size_t)(r->n * a[6]);
    int32_t *with = cf_temp(r, bytes), *without = cf_temp(r, bytes), wrong = 0;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    if (r->perf)
        batch_full(r, &b);
    s.seqs = t.seqs = &b.t;
    s.token_count = t.token_count = (int32_t)r->n;
    s.ld_scores = t.ld_scores = sl_pages_for(a[2]) * SL_PAGE_TOKENS;
    s.index_page_stride = sl_index_block_bytes(s.format, s.dim);
    s.index_base = key_pool(r, &b, s.format, s.dim, s.index_page_stride);
    s.q = cf_matrix(r, 1, r->first, r->n, a[3] * a[4], a[3] * a[4], official ? SL_F8_E4M3 : SL_F32,
                    official ? 200 : 1);
    s.weights = cf_matrix(r, 2, r->first, r->n, a[3], a[3], SL_F32, 0.1f);
    s.scores = cf_mem(r, NULL, 4 * (size_t)(r->n * s.ld_scores));
    t.scores = s.scores;
    t.sinks = (int32_t)a[7];
    t.recent = (int32_t)a[8];
    t.ids = cf_mem(r, NULL, bytes);
    s.hint = cf_mem(r, NULL, sl_topk_hint_bytes((int32_t)r->n, s.ld_scores));
    t.hint = s.hint;
    if (r->be && r->st == SL_OK) {
        r->st = sl_be_run(r->be, SL_OP_INDEX_SCORES, &s, &r->err);
        cf_op(r, SL_OP_TOPK, &t);
        cf_get(r, with, t.ids, bytes);
        t.hint = NULL;
        if (r->st == SL_OK)
            r->st = sl_be_run(r->be, SL_OP_TOPK, &t, &r->err);
        cf_get(r, without, t.ids, bytes);
        for (int64_t i = 0; r->st == SL_OK && i < r->n * a[6]; i++)
            wrong += with[i] != without[i];
    }
    cf_out(r, "ids that the hint changes", cf_mem(r, &wrong, 4), 1, 4, 4, CF_BYTES, 0);
    cf_work(r, 4.0 * (double)r->n * (double)(a[2] + a[6]), 0, SL_F32, 0);
}

#define F SL_F32
#define B SL_BF16
#define P SL_INDEX_PLAIN
#define O SL_INDEX_OFFICIAL
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_INDEX_APPEND, "T=1 dim=2 plain", append, {1, 1, 1, 2, 0, 0, P, F, F, 0}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=12 dim=32 rope=16 plain f32", append, {12, 3, 200, 32, 16, 0, P, F, F, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=8 dim=37 rope=6 plain interleaved bf16", append, {8, 1, 500, 37, 6, 1, P, B, F, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=12 dim=128 rope=64 official bf16", append, {12, 2, 300, 128, 64, 0, O, B, F, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=90 dim=128 rope=64 official inter.", append, {90, 90, 130, 128, 64, 1, O, B, B, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=6 dim=32 rope=16 official f32", append, {6, 1, 100, 32, 16, 0, O, F, F, 0}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=9 dim=32 rope=8 rms", append, {9, 3, 200, 32, 8, 0, P, F, F, 1, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=9 dim=128 rope=64 rms bf16", append, {9, 3, 200, 128, 64, 0, P, B, F, 1, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=6 dim=64 rope=64 rms official", append, {6, 2, 90, 64, 64, 0, O, B, B, 1, 1}, CF_SPLIT},
    {SL_OP_INDEX_APPEND, "T=64 dim=128 rope=64 official bf16", append, {64, 1, 4096, 128, 64, 0, O, B, F, 1}, CF_PERF_ONLY},

    {SL_OP_INDEX_QUERY, "T=1 h=1 dim=2 plain", query, {1, 1, 2, 0, 0, P, F}, CF_SPLIT},
    {SL_OP_INDEX_QUERY, "T=9 h=32 dim=32 rope=16 plain", query, {9, 32, 32, 16, 0, P, F}, CF_SPLIT},
    {SL_OP_INDEX_QUERY, "T=5 h=3 dim=37 rope=6 plain inter. bf16", query, {5, 3, 37, 6, 1, P, B}, CF_SPLIT},
    {SL_OP_INDEX_QUERY, "T=9 h=64 dim=128 rope=64 official bf16", query, {9, 64, 128, 64, 0, O, B}, CF_SPLIT},
    {SL_OP_INDEX_QUERY, "T=7 h=12 dim=128 rope=64 official inter.", query, {7, 12, 128, 64, 1, O, B}, CF_SPLIT},
    {SL_OP_INDEX_QUERY, "T=260 h=16 dim=128 rope=64 official bf16", query, {260, 16, 128, 64, 0, O, B}, CF_SPLIT | CF_LARGE},
    {SL_OP_INDEX_QUERY, "T=4 h=5 dim=64 rope=32 official f32", query, {4, 5, 64, 32, 1, O, F}, CF_SPLIT},
    {SL_OP_INDEX_QUERY, "T=64 h=64 dim=128 rope=64 official bf16", query, {64, 64, 128, 64, 0, O, B}, CF_PERF_ONLY},
    {SL_OP_INDEX_QUERY, "T=4096 h=64 dim=128 rope=64 official bf16", query, {4096, 64, 128, 64, 0, O, B}, CF_PERF_ONLY},

    {SL_OP_INDEX_SCORES, "T=1 len=1 h=1 dim=2 plain", scores, {1, 1, 1, 1, 2, P, 1}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=12 len=200 h=32 dim=32 plain", scores, {12, 3, 200, 32, 32, P, 5}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=6 len=700 h=3 dim=37 plain", scores, {6, 1, 700, 3, 37, P, 6}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=8 len=1000 h=64 dim=128 official", scores, {8, 1, 1000, 64, 128, O, 8}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=40 len=100 h=64 dim=128 official", scores, {40, 40, 100, 64, 128, O, 33}, CF_SPLIT | CF_LARGE},
    {SL_OP_INDEX_SCORES, "T=6 len=500 h=64 per 3", scores, {6, 3, 500, 64, 128, O, 6}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=270 len=300 h=64 per 270", scores, {270, 270, 300, 64, 128, O, 270}, CF_SPLIT | CF_LARGE},
    {SL_OP_INDEX_SCORES, "T=12 len=4000 h=32 per 6", scores, {12, 6, 4000, 32, 128, O, 12}, CF_SPLIT | CF_LARGE},
    {SL_OP_INDEX_SCORES, "T=1 len=9000 h=64", scores, {1, 1, 9000, 64, 128, O, 1}, CF_SPLIT | CF_LARGE},
    {SL_OP_INDEX_SCORES, "T=1 len=280000 h=32", scores, {1, 1, 280000, 32, 128, O, 1}, CF_LARGE},
    {SL_OP_INDEX_SCORES, "T=6 len=129 h=5 dim=32 official", scores, {6, 1, 129, 5, 32, O, 2}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=6 len=700 h=32 dim=128 official", scores, {6, 2, 700, 32, 128, O, 6}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=5 len=400 h=16 dim=128 official", scores, {5, 1, 400, 16, 128, O, 3}, CF_SPLIT},
    {SL_OP_INDEX_SCORES, "T=1 len=16384 h=64", scores, {1, 1, 16384, 64, 128, O, 1}, CF_PERF_ONLY},
    {SL_OP_INDEX_SCORES, "T=1 len=131072 h=64", scores, {1, 1, 131072, 64, 128, O, 1}, CF_PERF_ONLY},
    {SL_OP_INDEX_SCORES, "T=4 len=131072 h=64", scores, {4, 1, 131072, 64, 128, O, 4}, CF_PERF_ONLY},
    {SL_OP_INDEX_SCORES, "T=20 len=65536 h=64", scores, {20, 1, 65536, 64, 128, O, 20}, CF_PERF_ONLY},
    {SL_OP_INDEX_SCORES, "T=32 len=131072 h=64", scores, {32, 1, 131072, 64, 128, O, 32}, CF_PERF_ONLY},
    {SL_OP_INDEX_SCORES, "T=64 len=131072 h=64", scores, {64, 1, 131072, 64, 128, O, 64}, CF_PERF_ONLY},
    {SL_OP_INDEX_SCORES, "T=20 len=65536 h=32", scores, {20, 1, 65536, 32, 128, O, 20}, CF_PERF_ONLY},

    {SL_OP_TOPK, "T=1 len=1 k=1", topk, {1, 1, 1, 1, 0, 1, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=16", topk, {22, 1, 300, 16, 0, 7, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=33 len=70 k=64 around k", topk, {33, 33, 70, 64, 5, 33, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=20 k=64 all", topk, {22, 1, 20, 64, 0, 22, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=5000 k=2048", topk, {22, 1, 5000, 2048, 0, 22, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=44 len=5000 k=2047", topk, {44, 22, 5000, 2047, 1, 10, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=16 sinks=4 recent=5", topk, {22, 1, 300, 16, 0, 22, -1, 4, 5, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=9 all sinks or recent", topk, {22, 1, 300, 9, 0, 22, -1, 4, 5, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=16 dense below 150", topk, {22, 1, 300, 16, 140, 22, -1, 0, 2, 150}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=40 half the mass", topk, {22, 1, 300, 40, 0, 7, -1, 0, 0, 0, 0, 0, 10}, CF_SPLIT},
    {SL_OP_TOPK, "T=33 len=70 k=64 mass around k", topk, {33, 33, 70, 64, 5, 33, 11, 4, 5, 20, 0, 0, 60}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=20 k=64 mass of all", topk, {22, 1, 20, 64, 0, 22, -1, 0, 0, 0, 0, 0, 100}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=600 k=29 lists=4 blocks gates mass", topk, {22, 2, 600, 29, 0, 22, 11, 17, 30, 0, 4, 4, 80}, CF_SPLIT},
    {SL_OP_TOPK, "T=9 len=900 k=6 lists=2 blocks mass", topk, {9, 3, 900, 6, 1, 4, -1, 0, 0, 0, 2, 4, 5}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=9 all sinks or recent, mass", topk, {22, 1, 300, 9, 0, 22, 12, 4, 5, 0, 0, 0, 50}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=40 a limit", topk, {22, 1, 300, 40, 3, 7, -1, 0, 0, 0, 0, 0, 0, 1}, CF_SPLIT},
    {SL_OP_TOPK, "T=40 len=600 k=29 lists=4 limits gates", topk, {40, 2, 600, 29, 2, 40, 11, 3, 4, 30, 4, 0, 0, 2}, CF_SPLIT},
    {SL_OP_TOPK, "T=40 len=900 k=29 lists=8 blocks limits gates mass", topk, {40, 4, 900, 29, 2, 22, 11, 17, 30, 0, 8, 4, 70, 3}, CF_SPLIT},
    {SL_OP_TOPK, "T=30 len=3000 k=900 lists=4 limits of equal scores", topk, {30, 3, 3000, 900, 0, 30, 2, 4, 1, 0, 4, 0, 0, 5}, CF_SPLIT | CF_FEW},
    {SL_OP_TOPK, "T=18 len=20 k=64 lists=3 limits of all", topk, {18, 1, 20, 64, 0, 18, -1, 1, 1, 0, 3, 0, 0, 4}, CF_SPLIT},
    {SL_OP_TOPK, "T=9 len=500 k=6 lists=3", topk, {9, 3, 500, 6, 1, 4, -1, 0, 0, 0, 3, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=9 len=500 k=6 lists=2 blocks", topk, {9, 3, 500, 6, 1, 4, -1, 0, 0, 0, 2, 4}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=600 k=9 lists=4 blocks gates", topk, {22, 2, 600, 9, 20, 22, -1, 17, 30, 400, 4, 4}, CF_SPLIT},
    {SL_OP_TOPK, "T=22 len=300 k=7 blocks of 2", topk, {22, 11, 300, 7, 0, 22, -1, 3, 4, 0, 0, 1}, CF_SPLIT},
    {SL_OP_TOPK, "T=6 len=3000 k=200 lists=8", topk, {6, 1, 3000, 200, 0, 6, -1, 0, 0, 0, 8, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=20 k=200 lists=8", topk, {20, 4, 3000, 200, 0, 20, -1, 0, 0, 0, 8}, CF_SPLIT | CF_FEW},
    {SL_OP_TOPK, "T=20 k=300 lists=8", topk, {20, 2, 5000, 300, 3, 20, 11, 4, 64, 0, 8, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_TOPK, "T=20 k=2000 lists=8", topk, {20, 10, 8000, 2000, 0, 20, 2, 0, 0, 0, 8}, CF_SPLIT | CF_FEW},
    {SL_OP_TOPK, "T=20 k=16 lists=8", topk, {20, 5, 4000, 16, 1, 20, 12, 0, 0, 0, 8}, CF_SPLIT | CF_FEW},
    {SL_OP_TOPK, "T=40 k=20 lists=4 blocks", topk, {40, 10, 900, 20, 5, 40, -1, 10, 40, 24, 4, 2}, CF_SPLIT | CF_FEW},
    {SL_OP_TOPK, "T=16 len=4096 k=128 lists=8", topk, {16, 1, 4096, 128, 0, 16, 11, 0, 0, 0, 8}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=64 len=4096 k=128 lists=8", topk, {64, 1, 4096, 128, 0, 64, 11, 0, 0, 0, 8}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=120 len=4096 k=128 lists=8", topk, {120, 1, 4096, 128, 0, 120, 11, 0, 0, 0, 8}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=120 len=4100 k=128 lists=8", topk, {120, 1, 4100, 128, 0, 120, 11, 0, 0, 0, 8}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=3 len=40000 k=500 lists=4", topk, {3, 1, 40000, 500, 0, 3, 11, 4, 64, 0, 4, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=4 len=9000 all lists=3 blocks", topk, {4, 2, 9000, 9003, 2, 4, -1, 0, 0, 0, 3, 4}, CF_SPLIT},
    {SL_OP_TOPK, "T=4 len=5000 all", topk, {4, 2, 5000, 5003, 1, 4, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=12 len=40000 k=2048", topk, {12, 1, 40000, 2048, 0, 12, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=24 len=20000 k=512", topk, {24, 2, 20000, 512, 0, 24, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=3 len=150000 k=1024", topk, {3, 1, 150000, 1024, 7, 3, 11, 4, 5, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=12 len=33000 k=2048 no hint", topk, {12, 1, 33000, 2048, 0, 12, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=12 len=70001 k=64", topk, {12, 1, 70001, 64, 0, 12, -1, 4, 5, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=2 len=50000 k=9000", topk, {2, 1, 50000, 9000, 0, 2, 11, 0, 0, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=2 len=50000 k=9000 all recent", topk, {2, 1, 50000, 9000, 0, 2, 11, 500, 8500, 0}, CF_SPLIT},
    {SL_OP_TOPK, "T=13 len=70000 k=2048", topk, {13, 1, 70000, 2048, 0, 13, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=24 len=40000 k=500", topk, {24, 1, 40000, 500, 0, 24, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=6 len=140000 k=1024", topk, {6, 1, 140000, 1024, 0, 6, -1}, CF_SPLIT},
    {SL_OP_TOPK, "T=6 len=130000 k=2048", topk, {6, 1, 130000, 2048, 0, 6, -1}, 0},
    {SL_OP_TOPK, "T=1 len=1048576 k=2048", topk, {1, 1, 1048576, 2048, 0, 1, 11}, 0},
    {SL_OP_TOPK, "T=4 len=20000 k=2048 outliers", topk, {4, 1, 20000, 2048, 0, 4, 12}, CF_SPLIT},
    {SL_OP_TOPK, "T=4 len=50000 k=2048 outliers", topk, {4, 1, 50000, 2048, 0, 4, 12}, CF_SPLIT},
    {SL_OP_TOPK, "T=4 len=50000 k=512 far from 0", topk, {4, 1, 50000, 512, 0, 4, 13}, CF_SPLIT},
    {SL_OP_TOPK, "scores, hint: T=3 len=40000", hinted, {3, 1, 40000, 64, 128, O, 2048, 0, 0}, 0},
    {SL_OP_TOPK, "scores, hint: T=5 len=20000", hinted, {5, 1, 20000, 64, 128, O, 2048, 3, 60}, 0},
    {SL_OP_TOPK, "scores, hint: T=8 len=70000 per 4", hinted, {8, 4, 70000, 32, 128, O, 512, 4, 9}, 0},
    {SL_OP_TOPK, "scores, hint: T=2 len=35000 plain", hinted, {2, 2, 35000, 2, 16, P, 1024, 0, 0}, 0},
    {SL_OP_TOPK, "T=2 len=131072 k=2048", topk, {2, 1, 131072, 2048, 0, 2, 0}, CF_PERF},
    {SL_OP_TOPK, "T=2 len=131072 k=2048 one bin", topk, {2, 1, 131072, 2048, 0, 2, 10}, CF_PERF},
    {SL_OP_TOPK, "T=4 len=128K k=2048 two values", topk, {4, 1, 131072, 2048, 0, 4, 2}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=4 len=128K k=2048 near 10", topk, {4, 1, 131072, 2048, 0, 4, 10}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=1 len=16K k=2048", topk, {1, 1, 16384, 2048, 0, 1, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=1 len=32K k=2048", topk, {1, 1, 32768, 2048, 0, 1, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=1 len=64K k=2048", topk, {1, 1, 65536, 2048, 0, 1, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=1 len=128K k=2048", topk, {1, 1, 131072, 2048, 0, 1, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=4 len=16K k=2048", topk, {4, 1, 16384, 2048, 0, 4, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=4 len=32K k=2048", topk, {4, 1, 32768, 2048, 0, 4, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=4 len=64K k=2048", topk, {4, 1, 65536, 2048, 0, 4, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=4 len=128K k=2048", topk, {4, 1, 131072, 2048, 0, 4, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=16 len=16K k=2048", topk, {16, 1, 16384, 2048, 0, 16, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=16 len=32K k=2048", topk, {16, 1, 32768, 2048, 0, 16, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=16 len=64K k=2048", topk, {16, 1, 65536, 2048, 0, 16, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=16 len=128K k=2048", topk, {16, 1, 131072, 2048, 0, 16, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=20 len=16K k=2048", topk, {20, 1, 16384, 2048, 0, 20, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=20 len=32K k=2048", topk, {20, 1, 32768, 2048, 0, 20, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=20 len=64K k=2048", topk, {20, 1, 65536, 2048, 0, 20, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=20 len=128K k=2048", topk, {20, 1, 131072, 2048, 0, 20, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=32 len=16K k=2048", topk, {32, 1, 16384, 2048, 0, 32, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=32 len=32K k=2048", topk, {32, 1, 32768, 2048, 0, 32, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=32 len=64K k=2048", topk, {32, 1, 65536, 2048, 0, 32, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=32 len=128K k=2048", topk, {32, 1, 131072, 2048, 0, 32, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=64 len=16K k=2048", topk, {64, 1, 16384, 2048, 0, 64, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=64 len=32K k=2048", topk, {64, 1, 32768, 2048, 0, 64, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=64 len=64K k=2048", topk, {64, 1, 65536, 2048, 0, 64, 11}, CF_PERF_ONLY},
    {SL_OP_TOPK, "T=64 len=128K k=2048", topk, {64, 1, 131072, 2048, 0, 64, 11}, CF_PERF_ONLY},
};
/* clang-format on */

const cf_table cf_index_cases = {cases, SL_COUNT(cases)};
