/* Conformance cases of bounds of blocks: made from rows as they are appended, and scores of queries against them. */
#include <string.h>

#include "kernels/bounds.h"
#include "kernels/formats.h"
#include "kernels/gqa.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

static void put_code(uint8_t *unit, int64_t i, double v)
{
    double code = v * 140;

    unit[i] = (uint8_t)(int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
}

/* Bounds of every unit of `pages` pages, the larger first; some blocks of a batch begin with the tokens before it. The bytes
 * after the exponents of int8 are not the zeros that an append must leave there. */
static uint8_t *make_plane(cf_run *r, int64_t pages, int64_t units, int64_t dim, sl_dtype dtype,
                           int64_t stride)
{
    uint8_t *all = cf_temp(r, (size_t)(pages * stride));
    int64_t unit = sl_bounds_unit_bytes((int32_t)dim, dtype);

    memset(all, 0xff, (size_t)(pages * stride));
    for (int64_t p = 0; p < pages; p++)
        for (int64_t u = 0; u < units; u++)
            for (int64_t i = 0; i < dim; i++) {
                int64_t at = (p * units + u) * dim + i;
                uint8_t *to = all + p * stride + u * unit;
                double a = (double)cf_uniform(31, at), b = (double)cf_uniform(32, at);

                if (dtype == SL_I8) { /* codes, some of which are the largest ones */
                    put_code(to, i, a > b ? a : b);
                    put_code(to, dim + i, a > b ? b : a);
                    to[2 * dim + i / 16] = (uint8_t)(117 + (p + u + i / 16) % 7);
                    continue;
                }
                ref_put(to, dtype, i, a > b ? a : b);
                ref_put(to, dtype, dim + i, a > b ? b : a);
            }
    return all;
}

/* The rows of tokens before the batch become keys of zeros. */
static void clear_rows(cf_run *r, const batch *b, const sl_gqa_append_params *rows)
{
    const sl_row_view *v = &rows->rows;
    const size_t bytes = (size_t)((v->hot_base + b->seqs * (v->hot_rows + v->tail_rows)) * v->row_bytes);

    cf_put(r, v->base, memset(cf_temp(r, bytes), 0, bytes), bytes);
    cf_op(r, SL_OP_GQA_APPEND, rows);
}

/* what batch_rows reads (6 is the type of the bounds), with device rows, with a host plane, whole blocks */
static void append(cf_run *r, const int64_t *a)
{
    batch b;
    sl_gqa_append_params rows;

    batch_rows(r, &b, a, &rows);
    if (a[11])
        clear_rows(r, &b, &rows);
    const int64_t heads = a[3], dim = a[4], row = rows.rows.row_bytes, blocks = 64 >> rows.rows.block_log2;
    int64_t unit = sl_bounds_unit_bytes((int32_t)dim, (sl_dtype)a[6]),
            page = blocks * heads * unit + (a[6] == SL_I8 ? 16 : 8);
    sl_bounds_append_params p = {
        .seqs = &b.t,
        .rows = rows.rows,
        .host_rows = rows.host,
        .base = cf_mem(r, make_plane(r, b.pages, blocks * heads, dim, (sl_dtype)a[6], page),
                       (size_t)(b.pages * page)),
        .page_stride = page,
        .heads = rows.heads,
        .dim = rows.dim,
        .format = rows.format,
        .dtype = (sl_dtype)a[6],
        .whole = a[11] != 0};
    if (!a[9])
        p.rows.base = NULL;
    if (a[10]) {
        p.host = (sl_host_plane){.row_stride = heads * unit + 32};
        p.host.page_stride = blocks * p.host.row_stride + 16;
        p.host.base = cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride));
    }
    cf_op(r, SL_OP_BOUNDS_APPEND, &p);
    cf_work(r, (double)r->n * (double)(row + heads * unit), 0, SL_F32, 0);
    cf_kind kind = p.dtype == SL_F32 ? CF_F32 : p.dtype == SL_I8 ? CF_BYTES : CF_BF16;
    cf_out(r, "bounds", p.base, b.pages, (size_t)page, (size_t)page, kind,
           kind == CF_BYTES ? 0 : 1e-6); /* nothing else was touched */
    if (a[10])
        cf_out(r, "host bounds", p.host.base, b.pages * blocks, (size_t)(heads * unit),
               (size_t)p.host.row_stride, kind, kind == CF_BYTES ? 0 : 1e-6);
}

/* T, per, length, heads, KV heads, dim, lists, block_log2, reduction, dtype, first position with scores, bytes after a page
 * (0: 8, so that units are not aligned to 16) */
static void scores(cf_run *r, const int64_t *a)
{
    batch b;
    int64_t width = a[3] * a[5], units = (64 >> a[7]) * a[4],
            unit = sl_bounds_unit_bytes((int32_t)a[5], (sl_dtype)a[9]);
    int64_t page = units * unit + (a[11] ? a[11] : 8);
    sl_bounds_scores_params p = {.heads = (int32_t)a[3],
                                 .kv_heads = (int32_t)a[4],
                                 .dim = (int32_t)a[5],
                                 .lists = (int32_t)a[6],
                                 .block_log2 = (int32_t)a[7],
                                 .ld_scores = (int32_t)(((a[2] - 1) >> a[7]) + 3),
                                 .from_pos = (int32_t)a[10],
                                 .reduce = (sl_group_reduce)a[8],
                                 .scale = 0.2f,
                                 .dtype = (sl_dtype)a[9],
                                 .page_stride = page,
                                 .token_count = (int32_t)r->n};
    size_t out = 4 * (size_t)p.lists * (size_t)p.ld_scores;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.base = cf_mem(r, make_plane(r, b.pages, units, a[5], p.dtype, page), (size_t)(b.pages * page));
    p.q = cf_matrix(r, 3, r->first, r->n, width, width, SL_F32, 2);
    p.scores = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_BOUNDS_SCORES, &p);
    cf_work(r, (double)r->n * (double)(a[2] >> a[7]) * (double)(a[4] * unit), 0, SL_F32, 0);
    cf_out_tokens(r, "scores", p.scores, out, CF_F32, 1e-5);
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define F SL_F32
#define B SL_BF16
#define C SL_I8
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_BOUNDS_APPEND, "T=1 h=1 d=2 f32", append, {1, 1, 1, 1, 2, G4, F, 0, BATCH_BY_HEAD, 1, 0}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=40 h=2 d=64 f32 as bf16", append, {40, 20, 150, 2, 64, G4, B, 0, BATCH_BY_HEAD + 4, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=60 h=3 d=14 bf16 blocks of 4", append, {60, 30, 200, 3, 14, G2, B, 0, BATCH_BY_HEAD + 2, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=90 h=2 d=16 fp8 hierarchical", append, {90, 45, 200, 2, 16, G1, B, 1, BATCH_BY_HEAD + 4, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=90 h=4 d=32 bf16 all heads hierarchical", append, {90, 45, 200, 4, 32, G2, F, 1, 4, 1, 0}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=130 h=2 d=8 fp8 from the host blocks of 64", append, {130, 130, 200, 2, 8, G1, F, 0, BATCH_BY_HEAD + 6, 0, 0}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=40 h=2 d=64 f32 as int8", append, {40, 20, 150, 2, 64, G4, C, 0, BATCH_BY_HEAD + 4, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=60 h=3 d=16 bf16 as int8 blocks of 4", append, {60, 30, 200, 3, 16, G2, C, 0, BATCH_BY_HEAD + 2, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=90 h=2 d=128 fp8 as int8 hierarchical", append, {90, 45, 200, 2, 128, G1, C, 1, BATCH_BY_HEAD + 4, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=40 h=2 d=288 bf16 as int8", append, {40, 20, 150, 2, 288, G2, C, 0, BATCH_BY_HEAD + 4, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=70 h=5 d=256 bf16 as int8 from the host", append, {70, 35, 200, 5, 256, G2, C, 0, BATCH_BY_HEAD + 3, 0, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=20 h=2 d=64 bf16 whole hierarchical", append, {20, 5, 150, 2, 64, G2, B, 1, BATCH_BY_HEAD + 4, 1, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=20 h=3 d=16 fp8 as int8 whole", append, {20, 5, 150, 3, 16, G1, C, 2, BATCH_BY_HEAD + 4, 1, 1, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_APPEND, "T=90 h=4 d=32 f32 all heads whole", append, {90, 45, 200, 4, 32, G4, F, 0, 3, 1, 0, 1}, CF_FIX_ALL},
    {SL_OP_BOUNDS_SCORES, "T=1 h=1 kv=1 d=2", scores, {1, 1, 1, 1, 1, 2, 1, 4, SL_GROUP_MAX, F, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=18 h=14 kv=2 d=64 max", scores, {18, 3, 700, 14, 2, 64, 2, 4, SL_GROUP_MAX, B, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=18 h=8 kv=4 d=14 mean", scores, {18, 6, 500, 8, 4, 14, 4, 2, SL_GROUP_MEAN, F, 100}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=12 kv=4 d=32 softmax", scores, {12, 4, 700, 12, 4, 32, 4, 4, SL_GROUP_SOFTMAX, B, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=6 kv=3 d=16 max one list", scores, {12, 3, 300, 6, 3, 16, 1, 0, SL_GROUP_MAX, F, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=32 kv=8 d=128 mean one list", scores, {12, 3, 900, 32, 8, 128, 1, 6, SL_GROUP_MEAN, B, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=32 kv=8 d=128 max aligned", scores, {12, 3, 900, 32, 8, 128, 8, 4, SL_GROUP_MAX, B, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=80 h=8 kv=2 d=64 max aligned blocks of one", scores, {80, 40, 700, 8, 2, 64, 2, 0, SL_GROUP_MAX, B, 0, 16}, CF_SPLIT | CF_FEW},
    {SL_OP_BOUNDS_SCORES, "T=6 h=20 kv=2 d=32 max aligned ten queries", scores, {6, 2, 300, 20, 2, 32, 2, 0, SL_GROUP_MAX, F, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=6 h=18 kv=2 d=8 max one list nine queries", scores, {6, 2, 300, 18, 2, 8, 1, 1, SL_GROUP_MAX, B, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=14 kv=2 d=128 softmax aligned", scores, {12, 4, 900, 14, 2, 128, 2, 2, SL_GROUP_SOFTMAX, B, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=40 h=16 kv=4 d=256 mean aligned one list", scores, {40, 20, 600, 16, 4, 256, 1, 1, SL_GROUP_MEAN, F, 0, 16}, CF_SPLIT | CF_FEW},
    {SL_OP_BOUNDS_SCORES, "T=1 h=1 kv=1 d=16 int8", scores, {1, 1, 90, 1, 1, 16, 1, 4, SL_GROUP_MAX, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=32 kv=8 d=128 max int8", scores, {12, 3, 900, 32, 8, 128, 8, 4, SL_GROUP_MAX, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=3 h=32 kv=8 d=128 max int8 decode", scores, {3, 1, 3000, 32, 8, 128, 8, 4, SL_GROUP_MAX, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=5 h=14 kv=2 d=64 mean int8 decode", scores, {5, 1, 2500, 14, 2, 64, 2, 4, SL_GROUP_MEAN, C, 100, 32}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=4 h=33 kv=3 d=48 max int8 one list decode", scores, {4, 1, 700, 33, 3, 48, 1, 2, SL_GROUP_MAX, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=18 h=24 kv=12 d=32 mean int8 one list", scores, {18, 3, 500, 24, 12, 32, 1, 3, SL_GROUP_MEAN, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=4 h=16 kv=4 d=256 softmax int8 decode", scores, {4, 1, 600, 16, 4, 256, 4, 4, SL_GROUP_SOFTMAX, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=70 h=8 kv=2 d=96 softmax int8 one list", scores, {70, 35, 700, 8, 2, 96, 1, 1, SL_GROUP_SOFTMAX, C, 0, 16}, CF_SPLIT | CF_FEW},
    {SL_OP_BOUNDS_SCORES, "T=150 h=8 kv=2 d=256 max int8 blocks of one", scores, {150, 75, 700, 8, 2, 256, 2, 0, SL_GROUP_MAX, C, 0, 16}, CF_SPLIT | CF_FEW},
    {SL_OP_BOUNDS_SCORES, "T=4 h=2 kv=1 d=288 max int8", scores, {4, 2, 300, 2, 1, 288, 1, 4, SL_GROUP_MAX, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=18 h=14 kv=2 d=64 union", scores, {18, 3, 700, 14, 2, 64, 2, 4, SL_GROUP_UNION, B, 0}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=12 h=6 kv=3 d=16 union one list", scores, {12, 3, 300, 6, 3, 16, 1, 0, SL_GROUP_UNION, F, 100}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=4 h=32 kv=8 d=128 union int8", scores, {4, 1, 900, 32, 8, 128, 8, 4, SL_GROUP_UNION, C, 0, 16}, CF_SPLIT},
    {SL_OP_BOUNDS_SCORES, "T=6 h=5 kv=5 d=8 softmax one list", scores, {6, 2, 300, 5, 5, 8, 1, 3, SL_GROUP_SOFTMAX, F, 0}, CF_SPLIT},
};
/* clang-format on */

const cf_table cf_bounds_cases = {cases, SL_COUNT(cases)};
