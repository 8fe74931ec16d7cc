/* Conformance cases of grouped-query attention: queries, rows, attention over lists of rows. */
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"
#include "kernels/gqa.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

static sl_gqa_head_params head_params(cf_run *r, int64_t heads, int64_t dim, bool bias, bool norm,
                                      int32_t positions, int64_t rope)
{
    return (sl_gqa_head_params){.bias =
                                    bias ? cf_matrix(r, 5, 0, 1, heads * dim, heads * dim, SL_F32, 1) : NULL,
                                .norm = norm ? cf_matrix(r, 6, 0, 1, dim, dim, SL_F32, 1) : NULL,
                                .cos_sin = cf_cos_sin(r, positions, (int32_t)(rope ? rope : dim)),
                                .eps = 1e-6f,
                                .rope = (int32_t)rope};
}

/* T, heads, dim, act, bias, norm, in place, rope */
static void query(cf_run *r, const int64_t *a)
{
    int64_t width = a[1] * a[2];
    int32_t *pos = cf_temp(r, 4 * (size_t)r->n);
    float *q = cf_matrix(r, 1, r->first, r->n, width, width, SL_F32, 2);
    sl_gqa_query_params p = {.q = q,
                             .head = head_params(r, a[1], a[2], a[4], a[5], 400, a[7]),
                             .tokens = (int32_t)r->n,
                             .heads = (int32_t)a[1],
                             .dim = (int32_t)a[2],
                             .act = (sl_dtype)a[3]};

    for (int64_t t = 0; t < r->n; t++)
        pos[t] = (int32_t)(cf_hash(3, r->first + t) % 400);
    p.pos = cf_mem(r, pos, 4 * (size_t)r->n);
    p.out = a[6] ? q : cf_mem(r, NULL, 4 * (size_t)(r->n * width));
    cf_op(r, SL_OP_GQA_QUERY, &p);
    cf_work(r, 8 * (double)(r->n * width), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, 4 * (size_t)width, CF_F32, p.act == SL_BF16 ? 8e-3 : 1e-6);
}

enum { BY_HEAD = 16 }; /* rows of one KV head, + log2 of the tokens of a row; without it, rows of all heads */

/* T, per, length, KV heads, dim, format, act, bias, norm, host, hier, division of rows, rope */
static void append(cf_run *r, const int64_t *a)
{
    batch b;
    int64_t width = a[3] * a[4], rows, lists = a[11] & BY_HEAD ? a[3] : 1;
    sl_gqa_append_params p = {
        .heads = (int32_t)a[3], .dim = (int32_t)a[4], .format = (sl_row_format)a[5], .act = (sl_dtype)a[6]};
    p.rows.heads = a[11] & BY_HEAD ? p.heads : 0;
    p.rows.block_log2 = (int32_t)a[11] % BY_HEAD;
    int64_t blocks = 64 >> p.rows.block_log2;
    size_t row = (size_t)sl_gqa_row_bytes(p.format, sl_gqa_row_slots(&p.rows, p.heads), p.dim);
    cf_kind kind = p.format == SL_ROW_GQA_F32 ? CF_F32 : p.format == SL_ROW_GQA_BF16 ? CF_BF16 : CF_BYTES;
    double tol = p.act == SL_BF16 ? 8e-3 : 1e-6;

    batch_make(r, &b, a[0], a[1], a[2], (int)a[10]);
    p.seqs = &b.t;
    p.rows.row_bytes = (int64_t)row;
    p.rows.hot_base = (int32_t)(b.pages * blocks * lists);
    p.rows.hot_rows = (int32_t)(5 * lists);
    p.rows.tail_rows = (int32_t)(3 * lists);
    rows = p.rows.hot_base + b.seqs * (int64_t)(p.rows.hot_rows + p.rows.tail_rows);
    p.rows.base = cf_mem(r, NULL, (size_t)rows * row);
    p.host.row_stride = lists * (int64_t)row + 16;
    p.host.page_stride = blocks * p.host.row_stride + 48;
    p.host.base = a[9] ? cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride)) : NULL;
    p.k = cf_matrix(r, 1, r->first, r->n, width, width, SL_F32, 2);
    p.v = cf_matrix(r, 2, r->first, r->n, width, width, SL_F32, 2);
    p.v_bias = a[7] ? cf_matrix(r, 7, 0, 1, width, width, SL_F32, 1) : NULL;
    p.key = head_params(r, a[3], a[4], a[7], a[8], (int32_t)a[2], a[12]);
    cf_op(r, SL_OP_GQA_APPEND, &p);
    cf_work(r, (double)r->n * (8 * (double)width + (double)row), 0, SL_F32,
            a[9] ? (double)r->n * (double)row : 0);
    cf_out(r, "rows", p.rows.base, rows, row, row, kind, tol); /* nothing else was touched */
    if (a[9])
        cf_out(r, "host rows", p.host.base, b.pages * blocks, (size_t)lists * row, (size_t)p.host.row_stride,
               kind, tol);
}

/* From the first seven numbers of a case: T, heads, KV heads, dim, k, format, act. */
static sl_gqa_attn_params params_of(const cf_run *r, const int64_t *a)
{
    return (sl_gqa_attn_params){.tokens = (int32_t)r->n,
                                .heads = (int32_t)a[1],
                                .kv_heads = (int32_t)a[2],
                                .dim = (int32_t)a[3],
                                .k = (int32_t)a[4],
                                .ld_ids = (int32_t)a[4] + 2,
                                .scale = 0.3f,
                                .format = (sl_row_format)a[5],
                                .act = (sl_dtype)a[6]};
}

/* Queries as SL_OP_GQA_QUERY makes them: rounded to act. */
static const float *queries(cf_run *r, int64_t width, sl_dtype act)
{
    float *q = cf_temp(r, 4 * (size_t)(r->n * width));

    for (int64_t i = 0; i < r->n * width; i++) {
        float v = cf_uniform(1, (r->first + i / width) * 1000003 + i % width);

        q[i] = act == SL_BF16 ? sl_bf16_to_f32(sl_f32_to_bf16(v)) : v;
    }
    return cf_mem(r, q, 4 * (size_t)(r->n * width));
}

/* Names the output. A backend may round queries and weights to bf16 where activations are bf16. */
static void report(cf_run *r, const sl_gqa_attn_params *p, size_t row)
{
    double tol = r->be && p->act == SL_BF16 && p->format != SL_ROW_GQA_F32 ? 1e-2 : 2e-5;

    cf_out_tokens(r, "out", p->out, row, p->act == SL_BF16 ? CF_BF16 : CF_F32, tol);
}

/* T, heads, KV heads, dim, k, format, act, pool rows, per mille of the list's length that skip_factor is */
static void attention(cf_run *r, const int64_t *a)
{
    static const int32_t lengths[] = {0, 1, 63, 64, 65, 128, 1 << 30, 7, 1 << 30};
    int64_t width = a[1] * a[3], pool = a[7];
    sl_gqa_attn_params p = params_of(r, a);
    size_t row = (size_t)sl_gqa_row_bytes(p.format, p.kv_heads, p.dim);
    size_t out = (size_t)width * sl_dtype_size(p.act);
    const sl_row_view whole = {.row_bytes = (int64_t)row};
    uint8_t *rows = cf_temp(r, 2 * (size_t)pool * row);
    uint8_t *got[2] = {cf_temp(r, (size_t)r->n * out), cf_temp(r, (size_t)r->n * out)};
    int32_t *phys = cf_temp(r, 4 * (size_t)(r->n * p.ld_ids));

    /* Logical row i is at i; a second copy of all rows follows the first, in reverse order. */
    for (int64_t i = 0; i < pool; i++) {
        batch_put_token(&whole, p.format, p.kv_heads, p.dim, 0, (batch_values){5, 8, i, i},
                        rows + (size_t)i * row);
        memcpy(rows + (size_t)(2 * pool - 1 - i) * row, rows + (size_t)i * row, row);
    }
    p.rows = (sl_row_view){.row_bytes = (int64_t)row, .base = cf_mem(r, rows, 2 * (size_t)pool * row)};
    p.q = queries(r, width, p.act);
    p.out = cf_mem(r, NULL, (size_t)r->n * out);
    if (a[8]) { /* every third token is below skip_from, every second one has a length below the factor */
        int32_t *pos = cf_temp(r, 4 * (size_t)r->n);

        for (int64_t t = 0; t < r->n; t++)
            pos[t] = (r->first + t) % 3 == 0 ? 2 : (r->first + t) % 2 ? 10 : p.k - 1;
        p.pos = cf_mem(r, pos, 4 * (size_t)r->n);
        p.skip_factor = (float)(p.k * a[8]) / 1000, p.skip_from = 3;
        p.tiles = cf_mem(r, (uint64_t[2]){0}, 2 * sizeof *p.tiles);
    }
    for (int place = 0; place < 2; place++) {
        for (int64_t t = 0; t < r->n; t++) {
            int32_t n = lengths[(r->first + t) % (int64_t)SL_COUNT(lengths)];

            for (int32_t i = 0; i < p.ld_ids; i++) {
                int64_t logical = i * (pool / p.k) +
                                  (int64_t)(cf_hash(4, (r->first + t) * 99991 + i) % (uint64_t)(pool / p.k));

                phys[t * p.ld_ids + i] = i >= n || i >= p.k ? -1
                                         : place            ? (int32_t)(2 * pool - 1 - logical)
                                                            : (int32_t)logical;
            }
        }
        p.phys = cf_mem(r, phys, 4 * (size_t)(r->n * p.ld_ids));
        cf_op(r, SL_OP_GQA_ATTN, &p);
        cf_get(r, got[place], p.out, (size_t)r->n * out);
    }
    if (r->st == SL_OK && !r->perf && memcmp(got[0], got[1], (size_t)r->n * out) != 0)
        cf_fail(r, "the result depends on where the rows are");
    if (a[8] && r->n == a[0]) { /* of all tokens: those of a slice are others */
        uint64_t tiles[2] = {0};

        cf_get(r, tiles, p.tiles, sizeof tiles);
        if (r->st == SL_OK && (tiles[1] == 0 || tiles[1] >= tiles[0]))
            cf_fail(r, "%d of %d tiles are left out", (int)tiles[1], (int)tiles[0]);
    }
    cf_work(r, (double)r->n * (double)p.k * (double)row, 4.0 * (double)r->n * (double)p.k * (double)width,
            SL_BF16, 0);
    report(r, &p, out);
}

/* Attention over divided rows, and the same tokens as rows of one token for all heads. */
typedef struct division {
    sl_gqa_attn_params p;
    int64_t block, lists, blocks, whole; /* whole: bytes of a token's row for all heads */
    uint8_t *tokens, *rows;
    int32_t *ids, *phys, *pos,
        *single; /* single: the tokens of the lists, [T][k * block]; for one list per token */
} division;

static void make_division(cf_run *r, division *d, const int64_t *a)
{
    sl_gqa_attn_params *p = &d->p;

    *p = params_of(r, a);
    p->rows.heads = a[8] & BY_HEAD ? p->kv_heads : 0;
    p->rows.block_log2 = (int32_t)a[8] % BY_HEAD;
    p->rows.row_bytes = sl_gqa_row_bytes(p->format, sl_gqa_row_slots(&p->rows, p->kv_heads), p->dim);
    d->block = 1 << p->rows.block_log2, d->lists = sl_row_lists(&p->rows), d->blocks = a[7];
    d->whole = sl_gqa_row_bytes(p->format, p->kv_heads, p->dim);
}

/* Both pools, with the same values. */
static void make_pools(cf_run *r, division *d)
{
    const sl_gqa_attn_params *p = &d->p;
    const sl_row_view whole = {.row_bytes = d->whole};

    d->tokens = cf_temp(r, (size_t)(d->blocks * d->block * d->whole));
    d->rows = cf_temp(r, (size_t)(d->blocks * d->lists * p->rows.row_bytes));
    for (int64_t t = 0; t < d->blocks * d->block; t++) {
        const batch_values from = {5, 8, t, t};

        batch_put_token(&whole, p->format, p->kv_heads, p->dim, 0, from, d->tokens + t * d->whole);
        batch_put_token(&p->rows, p->format, p->kv_heads, p->dim, (int32_t)(t % d->block), from,
                        d->rows + t / d->block * d->lists * p->rows.row_bytes);
    }
}

/* Lists of visible blocks in ascending order, of which some are left out at random. */
static void make_lists(cf_run *r, division *d)
{
    const int64_t k = d->p.k, ld = d->p.ld_ids, per = k * d->block;
    size_t all = 4 * (size_t)(r->n * d->lists * ld);

    d->ids = memset(cf_temp(r, all), 0xff, all);
    d->phys = memset(cf_temp(r, all), 0xff, all);
    d->single = memset(cf_temp(r, 4 * (size_t)(r->n * per)), 0xff, 4 * (size_t)(r->n * per));
    d->pos = cf_temp(r, 4 * (size_t)r->n);
    for (int64_t t = 0; t < r->n; t++)
        d->pos[t] = (int32_t)(cf_hash(6, r->first + t) % (uint64_t)(d->blocks * d->block));
    for (int64_t i = 0; i < r->n * d->lists; i++) {
        int64_t t = i / d->lists, m = 0;

        for (int64_t b = 0, n = 0; b <= d->pos[t] / d->block && n < k; b++) {
            if (b > 0 && cf_hash(7 + (uint32_t)(i % d->lists), (r->first + t) * 9973 + b) % 4 == 0)
                continue;
            d->ids[i * ld + n] = (int32_t)b;
            d->phys[i * ld + n++] = (int32_t)(b * d->lists + i % d->lists);
            for (int64_t j = b * d->block; d->lists == 1 && j < (b + 1) * d->block && j <= d->pos[t]; j++)
                d->single[t * per + m++] = (int32_t)j;
        }
    }
}

/*
 * Attention over lists of blocks, one list per KV head or one for all; and, where there is one list, the same tokens as
 * rows of one token: the bits must agree. T, heads, KV heads, dim, k, format, act, blocks, division of rows
 */
static void divided(cf_run *r, const int64_t *a)
{
    division d;
    sl_gqa_attn_params *p = &d.p;
    int64_t width = a[1] * a[3];

    make_division(r, &d, a);
    make_pools(r, &d);
    make_lists(r, &d);
    size_t out = (size_t)width * sl_dtype_size(p->act), lists = 4 * (size_t)(r->n * d.lists * p->ld_ids);
    uint8_t *got[2] = {cf_temp(r, (size_t)r->n * out), cf_temp(r, (size_t)r->n * out)};
    p->rows.base = cf_mem(r, d.rows, (size_t)(d.blocks * d.lists * p->rows.row_bytes));
    p->q = queries(r, width, p->act);
    p->out = cf_mem(r, NULL, (size_t)r->n * out);
    p->ids = cf_mem(r, d.ids, lists);
    p->phys = cf_mem(r, d.phys, lists);
    p->pos = cf_mem(r, d.pos, 4 * (size_t)r->n);
    cf_op(r, SL_OP_GQA_ATTN, p);
    cf_get(r, got[0], p->out, (size_t)r->n * out);
    report(r, p, out);
    if (d.lists > 1)
        return;
    p->k = p->ld_ids = (int32_t)(p->k * d.block);
    p->rows = (sl_row_view){.row_bytes = d.whole,
                            .base = cf_mem(r, d.tokens, (size_t)(d.blocks * d.block * d.whole))};
    p->phys = cf_mem(r, d.single, 4 * (size_t)(r->n * p->k));
    p->out = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_GQA_ATTN, p);
    cf_get(r, got[1], p->out, (size_t)r->n * out);
    if (r->st == SL_OK && r->be && memcmp(got[0], got[1], (size_t)r->n * out) != 0)
        cf_fail(r, "the result depends on how tokens are divided into rows");
}

/* The lists of all blocks that each token sees, for the same tokens as a batch. */
static void list_all(cf_run *r, const batch *b, sl_gqa_attn_params *p)
{
    int64_t lists = sl_row_lists(&p->rows), blocks = 64 >> p->rows.block_log2, n = r->n * lists * p->ld_ids;
    int32_t *phys = cf_temp(r, 4 * (size_t)n), *ids = cf_temp(r, 4 * (size_t)n);

    memset(phys, 0xff, 4 * (size_t)n);
    memset(ids, 0xff, 4 * (size_t)n);
    for (int64_t i = 0; i < r->n * lists; i++)
        for (int32_t j = 0; b->seq[i / lists] >= 0 && j <= b->pos[i / lists] >> p->rows.block_log2; j++) {
            int32_t page = b->row_pages[b->seq[i / lists] * b->ld + j / blocks];

            ids[i * p->ld_ids + j] = j;
            phys[i * p->ld_ids + j] = (int32_t)((page * blocks + j % blocks) * lists + i % lists);
        }
    p->ids = cf_mem(r, ids, 4 * (size_t)n);
    p->phys = cf_mem(r, phys, 4 * (size_t)n);
    p->pos = p->seqs->token_pos;
}

/*
 * Every token attends to everything before it: by the tables of the sequences, and by lists of all blocks: the bits must
 * agree, and with skip_factor the tiles that were counted. Each sequence's first token of the case is padding if the last number is 1. T, heads, KV heads, dim, format,
 * act, division of rows, tokens of a sequence, length, per mille of the length that skip_factor is, padding
 */
static void causal(cf_run *r, const int64_t *a)
{
    batch b;
    sl_gqa_attn_params p = {.tokens = (int32_t)r->n,
                            .heads = (int32_t)a[1],
                            .kv_heads = (int32_t)a[2],
                            .dim = (int32_t)a[3],
                            .format = (sl_row_format)a[4],
                            .act = (sl_dtype)a[5],
                            .scale = 0.3f};
    size_t out = (size_t)(a[1] * a[3]) * sl_dtype_size(p.act);
    uint8_t *got[2] = {cf_temp(r, (size_t)r->n * out), cf_temp(r, (size_t)r->n * out)};
    uint64_t tiles[2][2] = {{0}};

    p.rows.heads = a[6] & BY_HEAD ? p.kv_heads : 0;
    p.rows.block_log2 = (int32_t)a[6] % BY_HEAD;
    p.rows.row_bytes = sl_gqa_row_bytes(p.format, sl_gqa_row_slots(&p.rows, p.kv_heads), p.dim);
    p.k = p.ld_ids = sl_blocks_for((int32_t)a[8], p.rows.block_log2);
    batch_make(r, &b, a[0], a[7], a[8], 0);
    for (int64_t t = 0; a[10] && t < r->n; t++)
        if ((r->first + t) % a[7] == 0)
            b.seq[t] = -1, b.pos[t] = 0;
    cf_put(r, (void *)(uintptr_t)b.t.token_seq, b.seq, 4 * (size_t)r->n);
    cf_put(r, (void *)(uintptr_t)b.t.token_pos, b.pos, 4 * (size_t)r->n);
    p.seqs = &b.t;
    batch_pages(r, &b, &p.rows, p.format, p.kv_heads, p.dim, false);
    p.q = queries(r, a[1] * a[3], p.act);
    p.out = cf_mem(r, NULL, (size_t)r->n * out);
    if (a[9]) {
        p.skip_factor = (float)(a[8] * a[9]) / 1000, p.skip_from = 70;
        p.tiles = cf_mem(r, tiles[0], sizeof tiles[0]);
    }
    cf_op(r, SL_OP_GQA_ATTN, &p);
    cf_get(r, got[0], p.out, (size_t)r->n * out);
    report(r, &p, out);
    cf_work(r, 0, 4.0 * (double)a[0] * (double)(a[1] * a[3]) * ((double)a[8] - (double)a[7] / 2), SL_BF16, 0);
    if (r->perf)
        return;
    if (a[9]) {
        cf_get(r, tiles[0], p.tiles, sizeof tiles[0]);
        p.tiles = cf_mem(r, tiles[1], sizeof tiles[1]);
    }
    list_all(r, &b, &p);
    p.seqs = NULL;
    p.out = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_GQA_ATTN, &p);
    cf_get(r, got[1], p.out, (size_t)r->n * out);
    if (r->st == SL_OK && r->be && memcmp(got[0], got[1], (size_t)r->n * out) != 0)
        cf_fail(r, "with lists the result has other bits");
    if (a[9])
        cf_get(r, tiles[1], p.tiles, sizeof tiles[1]);
    if (r->st == SL_OK && memcmp(tiles[0], tiles[1], sizeof tiles[0]) != 0)
        cf_fail(r, "%d of %d tiles are left out, with lists %d of %d", (int)tiles[0][1], (int)tiles[0][0],
                (int)tiles[1][1], (int)tiles[1][0]);
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define F SL_F32
#define B SL_BF16
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_GQA_QUERY, "T=1 h=1 d=2", query, {1, 1, 2, F, 0, 0, 0}, CF_SPLIT},
    {SL_OP_GQA_QUERY, "T=19 h=14 d=64 bias", query, {19, 14, 64, F, 1, 0, 0}, CF_SPLIT},
    {SL_OP_GQA_QUERY, "T=9 h=5 d=14 bf16 bias norm in place", query, {9, 5, 14, B, 1, 1, 1}, CF_SPLIT},
    {SL_OP_GQA_QUERY, "T=7 h=4 d=256 norm", query, {7, 4, 256, F, 0, 1, 1}, CF_SPLIT},
    {SL_OP_GQA_QUERY, "T=7 h=24 d=256 norm 64 rotated", query, {7, 24, 256, F, 0, 1, 1, 64}, CF_SPLIT},
    {SL_OP_GQA_QUERY, "T=5 h=3 d=14 bf16 6 rotated", query, {5, 3, 14, B, 0, 1, 0, 6}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=24 h=2 d=128 bf16 norm 64 rotated", append, {24, 3, 200, 2, 128, G2, B, 0, 1, 1, 0, 0, 64}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=24 h=3 d=10 f32 blocks 4 rotated", append, {24, 3, 200, 3, 10, G4, F, 0, 1, 1, 1, 2, 4}, CF_FIX_ALL},
    {SL_OP_GQA_APPEND, "T=1 h=1 d=2 f32", append, {1, 1, 1, 1, 2, G4, F, 0, 0, 0, 0}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=24 h=2 d=64 f32 bias", append, {24, 3, 200, 2, 64, G4, F, 1, 0, 1, 0}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=20 h=3 d=14 bf16 norm", append, {20, 4, 150, 3, 14, G2, B, 0, 1, 1, 0}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=20 h=8 d=128 fp8", append, {20, 2, 300, 8, 128, G1, F, 1, 1, 1, 0}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=24 h=2 d=128 bf16 hierarchical", append, {24, 3, 200, 2, 128, G2, F, 0, 0, 1, 1}, CF_FIX_ALL},
    {SL_OP_GQA_APPEND, "T=24 h=3 d=64 f32 by head", append, {24, 3, 200, 3, 64, G4, F, 1, 0, 1, 0, BY_HEAD}, CF_SPLIT},
    {SL_OP_GQA_APPEND, "T=40 h=2 d=14 bf16 blocks by head", append, {40, 20, 150, 2, 14, G2, B, 0, 1, 1, 0, BY_HEAD + 4}, CF_FIX_ALL},
    {SL_OP_GQA_APPEND, "T=60 h=4 d=32 fp8 blocks by head hierarchical", append, {60, 30, 200, 4, 32, G1, F, 1, 1, 1, 1, BY_HEAD + 2}, CF_FIX_ALL},
    {SL_OP_GQA_APPEND, "T=90 h=3 d=16 bf16 blocks hierarchical", append, {90, 45, 200, 3, 16, G2, F, 0, 0, 1, 1, 4}, CF_FIX_ALL},
    {SL_OP_GQA_QUERY, "T=64 h=32 d=128 norm bf16", query, {64, 32, 128, B, 0, 1, 1}, CF_PERF_ONLY},
    {SL_OP_GQA_QUERY, "T=4096 h=32 d=128 norm bf16", query, {4096, 32, 128, B, 0, 1, 1}, CF_PERF_ONLY},
    {SL_OP_GQA_APPEND, "T=64 h=8 d=128 bf16", append, {64, 1, 1024, 8, 128, G2, B, 0, 1, 1, 0}, CF_PERF_ONLY},
    {SL_OP_GQA_APPEND, "T=64 h=8 d=128 bf16 blocks by head", append, {64, 1, 1024, 8, 128, G2, B, 0, 1, 1, 0, BY_HEAD + 4}, CF_PERF_ONLY},
    {SL_OP_GQA_ATTN, "T=1 h=1 kv=1 d=2 k=1", attention, {1, 1, 1, 2, 1, G4, F, 3}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=18 h=14 kv=2 d=64 k=200 f32", attention, {18, 14, 2, 64, 200, G4, F, 500}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=5 kv=5 d=14 k=70 f32", attention, {9, 5, 5, 14, 70, G4, F, 200}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=32 kv=8 d=128 k=130 bf16", attention, {9, 32, 8, 128, 130, G2, B, 300}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=16 kv=1 d=256 k=65 bf16", attention, {9, 16, 1, 256, 65, G2, F, 200}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=28 kv=4 d=128 k=200 fp8", attention, {9, 28, 4, 128, 200, G1, B, 500}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=18 h=4 kv=2 d=16 k=400 f32 skip", attention, {18, 4, 2, 16, 400, G4, F, 900, 900}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=8 kv=8 d=14 k=500 bf16 skip", attention, {9, 8, 8, 14, 500, G2, F, 1000, 400}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=13 h=6 kv=3 d=64 f32 by head", divided, {13, 6, 3, 64, 70, G4, F, 100, BY_HEAD}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=13 h=14 kv=2 d=64 bf16 blocks by head", divided, {13, 14, 2, 64, 9, G2, B, 20, BY_HEAD + 4}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=8 kv=8 d=14 fp8 blocks of 64 by head", divided, {9, 8, 8, 14, 3, G1, F, 5, BY_HEAD + 6}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=13 h=6 kv=2 d=32 f32 blocks", divided, {13, 6, 2, 32, 11, G4, F, 20, 4}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=13 h=4 kv=1 d=32 bf16 blocks", divided, {13, 4, 1, 32, 30, G2, F, 70, 1}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=5 h=4 kv=2 d=128 bf16 blocks by head", divided, {5, 4, 2, 128, 70, G2, B, 80, BY_HEAD + 4}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=5 h=6 kv=2 d=64 fp8 blocks", divided, {5, 6, 2, 64, 40, G1, B, 50, 4}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=4 h=4 kv=2 d=256 bf16 blocks", divided, {4, 4, 2, 256, 18, G2, B, 20, 5}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=5 h=7 kv=1 d=128 fp8 blocks by head", divided, {5, 7, 1, 128, 40, G1, B, 50, BY_HEAD + 4}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=7 kv=1 d=64 k=600 bf16", attention, {9, 7, 1, 64, 600, G2, B, 700}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=8 h=2 kv=2 d=128 k=1100 fp8 skip", attention, {8, 2, 2, 128, 1100, G1, B, 1200, 200}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=9 h=2 kv=1 d=256 k=600 bf16 skip", attention, {9, 2, 1, 256, 600, G2, B, 700, 900}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=5 h=8 kv=4 d=128 bf16 by head", divided, {5, 8, 4, 128, 600, G2, B, 700, BY_HEAD}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=5 h=6 kv=2 d=64 fp8 by head", divided, {5, 6, 2, 64, 550, G1, B, 600, BY_HEAD}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=4 h=16 kv=1 d=128 bf16 blocks of 8 by head", divided, {4, 16, 1, 128, 70, G2, B, 80, BY_HEAD + 3}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=4 h=10 kv=1 d=256 fp8 blocks", divided, {4, 10, 1, 256, 18, G1, B, 20, 5}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=3 h=8 kv=2 d=128 bf16 causal, one token each", causal, {3, 8, 2, 128, G2, B, 0, 1, 1100, 0, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=3 h=4 kv=2 d=256 bf16 causal blocks by head, one token each", causal, {3, 4, 2, 256, G2, B, BY_HEAD + 4, 1, 700, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=3 h=9 kv=1 d=128 fp8 causal, one token each", causal, {3, 9, 1, 128, G1, B, 0, 1, 900, 0, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=2 h=1 kv=1 d=64 bf16 causal, one token each, 40 segments", causal, {2, 1, 1, 64, G2, B, 4, 1, 20200, 0, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=70 h=2 kv=1 d=64 fp8 causal blocks by head", causal, {70, 2, 1, 64, G1, B, BY_HEAD + 4, 35, 600, 0, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=12 h=6 kv=2 d=32 f32 causal", causal, {12, 6, 2, 32, G4, F, 0, 4, 150, 0, 1}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=12 h=4 kv=2 d=16 f32 causal blocks by head skip", causal, {12, 4, 2, 16, G4, F, BY_HEAD + 4, 6, 500, 500, 0}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=44 h=14 kv=2 d=64 bf16 causal blocks by head", causal, {44, 14, 2, 64, G2, B, BY_HEAD + 4, 22, 200, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=210 h=1 kv=1 d=128 bf16 causal", causal, {210, 1, 1, 128, G2, B, 0, 70, 600, 0, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=34 h=5 kv=1 d=128 fp8 causal blocks", causal, {34, 5, 1, 128, G1, B, 4, 17, 140, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=24 h=3 kv=1 d=256 bf16 causal blocks by head", causal, {24, 3, 1, 256, G2, B, BY_HEAD + 4, 12, 160, 0, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=18 h=16 kv=1 d=64 bf16 causal blocks by head skip", causal, {18, 16, 1, 64, G2, B, BY_HEAD + 4, 9, 300, 900, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=20 h=2 kv=1 d=128 bf16 causal skip", causal, {20, 2, 1, 128, G2, B, 0, 10, 700, 300, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=130 h=4 kv=1 d=128 bf16 causal blocks by head", causal, {130, 4, 1, 128, G2, B, BY_HEAD + 4, 65, 1500, 0, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=74 h=14 kv=2 d=64 bf16 causal skip", causal, {74, 14, 2, 64, G2, B, 0, 37, 1300, 300, 1}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=70 h=6 kv=1 d=128 bf16 causal blocks by head skip", causal, {70, 6, 1, 128, G2, B, BY_HEAD + 4, 70, 1400, 600, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=70 h=4 kv=1 d=128 bf16 causal blocks by head skip", causal, {70, 4, 1, 128, G2, B, BY_HEAD + 4, 70, 1400, 600, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=40 h=8 kv=1 d=256 bf16 causal blocks by head skip", causal, {40, 8, 1, 256, G2, B, BY_HEAD + 4, 40, 1200, 700, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=60 h=5 kv=1 d=256 bf16 causal blocks skip", causal, {60, 5, 1, 256, G2, B, 5, 60, 1200, 500, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=18 h=16 kv=1 d=64 fp8 causal blocks by head skip", causal, {18, 16, 1, 64, G1, B, BY_HEAD + 4, 9, 300, 900, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=3 h=5 kv=1 d=64 fp8 causal skip, one token each", causal, {3, 5, 1, 64, G1, B, 0, 1, 700, 500, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=3 h=12 kv=1 d=128 bf16 causal blocks by head skip, one token each", causal, {3, 12, 1, 128, G2, B, BY_HEAD + 4, 1, 1000, 600, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=210 h=2 kv=1 d=128 fp8 causal", causal, {210, 2, 1, 128, G1, B, 0, 70, 600, 0, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=70 h=6 kv=1 d=128 fp8 causal blocks by head skip", causal, {70, 6, 1, 128, G1, B, BY_HEAD + 4, 70, 1400, 600, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=74 h=14 kv=2 d=64 fp8 causal skip", causal, {74, 14, 2, 64, G1, B, 0, 37, 1300, 300, 1}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=40 h=8 kv=1 d=256 fp8 causal blocks by head skip", causal, {40, 8, 1, 256, G1, B, BY_HEAD + 4, 40, 1200, 700, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=40 h=16 kv=1 d=256 fp8 causal", causal, {40, 16, 1, 256, G1, B, 0, 20, 700, 0, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=40 h=16 kv=1 d=256 bf16 causal", causal, {40, 16, 1, 256, G2, B, 0, 20, 700, 0, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
};
/* clang-format on */

const cf_table cf_gqa_cases = {cases, SL_COUNT(cases)};
