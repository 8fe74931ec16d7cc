/* Conformance cases of labels of tokens: made from rows as they are appended, and scores of queries against them. */
#include <string.h>

#include "kernels/gqa.h"
#include "kernels/labels.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

/* `count` channels of each head, distinct, in another order for each. */
static int32_t *channels_of(cf_run *r, int64_t heads, int64_t count, int64_t dim)
{
    int32_t *of = cf_temp(r, 4 * (size_t)(heads * count));

    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < count; i++)
            of[h * count + i] = (int32_t)((dim - 1 + h + i * (dim - 1)) % dim);
    return cf_mem(r, of, 4 * (size_t)(heads * count));
}

/* what batch_rows reads (6 is the type of the labels), channels, with a host plane */
static void append(cf_run *r, const int64_t *a)
{
    batch b;
    sl_gqa_append_params rows;

    batch_rows(r, &b, a, &rows);
    const int64_t heads = a[3], dim = a[4], row = rows.rows.row_bytes;
    int64_t labels = heads * sl_labels_unit_bytes((int32_t)a[9], (sl_dtype)a[6]), page = labels + 8;
    sl_labels_append_params p = {.seqs = &b.t,
                                 .rows = rows.rows,
                                 .host_rows = rows.host,
                                 .base = cf_mem(r, NULL, (size_t)(b.pages * page)),
                                 .page_stride = page,
                                 .channels = channels_of(r, heads, a[9], dim),
                                 .heads = rows.heads,
                                 .dim = rows.dim,
                                 .count = (int32_t)a[9],
                                 .format = rows.format,
                                 .dtype = (sl_dtype)a[6]};
    if (a[10]) {
        p.host = (sl_host_plane){.row_stride = labels, .page_stride = labels + 16};
        p.host.base = cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride));
    }
    cf_op(r, SL_OP_LABELS_APPEND, &p);
    cf_work(r, (double)r->n * (double)(row + labels / 64), 0, SL_F32, 0);
    cf_kind kind = p.dtype == SL_F32 ? CF_F32 : CF_BF16;
    cf_out(r, "labels", p.base, b.pages, (size_t)page, (size_t)page, kind,
           1e-6); /* nothing else was touched */
    if (a[10])
        cf_out(r, "host labels", p.host.base, b.pages, (size_t)labels, (size_t)p.host.page_stride, kind,
               1e-6);
}

/* T, per, length, heads, KV heads, dim, lists, channels, reduction, dtype, first position with scores, bytes after a page
 * (0: 8, so that units are not aligned to 16) */
static void scores(cf_run *r, const int64_t *a)
{
    batch b;
    int64_t width = a[3] * a[5],
            page = a[4] * sl_labels_unit_bytes((int32_t)a[7], (sl_dtype)a[9]) + (a[11] ? a[11] : 8);
    sl_labels_scores_params p = {.heads = (int32_t)a[3],
                                 .kv_heads = (int32_t)a[4],
                                 .dim = (int32_t)a[5],
                                 .lists = (int32_t)a[6],
                                 .count = (int32_t)a[7],
                                 .ld_scores = (int32_t)a[2] + 3,
                                 .from_pos = (int32_t)a[10],
                                 .reduce = (sl_group_reduce)a[8],
                                 .scale = 0.2f,
                                 .dtype = (sl_dtype)a[9],
                                 .page_stride = page,
                                 .token_count = (int32_t)r->n};
    size_t out = 4 * (size_t)p.lists * (size_t)p.ld_scores;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    uint8_t *plane = cf_temp(r, (size_t)(b.pages * page));
    memset(plane, 0xff, (size_t)(b.pages * page));
    for (int64_t i = 0; i < b.pages; i++)
        for (int64_t v = 0; v < a[4] * 64 * a[7]; v++)
            ref_put(plane + i * page, p.dtype, v, (double)cf_uniform(31, i * a[4] * 64 * a[7] + v));
    p.seqs = &b.t;
    p.base = cf_mem(r, plane, (size_t)(b.pages * page));
    p.channels = channels_of(r, a[4], a[7], a[5]);
    p.q = cf_matrix(r, 3, r->first, r->n, width, width, SL_F32, 2);
    p.scores = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_LABELS_SCORES, &p);
    cf_work(r, (double)r->n * (double)(a[2] / 64) * (double)page, 0, SL_F32, 0);
    cf_out_tokens(r, "scores", p.scores, out, CF_F32, 1e-5);
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define F SL_F32
#define B SL_BF16
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_LABELS_APPEND, "T=1 h=1 d=2 f32", append, {1, 1, 1, 1, 2, G4, F, 0, BATCH_BY_HEAD, 1, 0}, CF_FIX_ALL},
    {SL_OP_LABELS_APPEND, "T=40 h=2 d=64 f32 as bf16", append, {40, 20, 150, 2, 64, G4, B, 0, BATCH_BY_HEAD, 32, 1}, CF_FIX_ALL},
    {SL_OP_LABELS_APPEND, "T=60 h=3 d=14 bf16 all channels", append, {60, 30, 200, 3, 14, G2, B, 0, 0, 14, 1}, CF_FIX_ALL},
    {SL_OP_LABELS_APPEND, "T=90 h=2 d=16 fp8 hierarchical", append, {90, 45, 200, 2, 16, G1, B, 1, BATCH_BY_HEAD, 5, 1}, CF_FIX_ALL},
    {SL_OP_LABELS_APPEND, "T=90 h=4 d=32 bf16 blocks of 4 hierarchical", append, {90, 45, 200, 4, 32, G2, F, 1, BATCH_BY_HEAD + 2, 8, 0}, CF_FIX_ALL},
    {SL_OP_LABELS_SCORES, "T=1 h=1 kv=1 d=2", scores, {1, 1, 1, 1, 1, 2, 1, 1, SL_GROUP_MAX, F, 0}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=18 h=14 kv=2 d=64 max", scores, {18, 3, 300, 14, 2, 64, 2, 32, SL_GROUP_MAX, B, 0}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=18 h=8 kv=4 d=14 mean", scores, {18, 6, 200, 8, 4, 14, 4, 5, SL_GROUP_MEAN, F, 100}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=12 h=12 kv=4 d=32 softmax", scores, {12, 4, 300, 12, 4, 32, 4, 32, SL_GROUP_SOFTMAX, B, 0}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=12 h=6 kv=3 d=16 max one list", scores, {12, 3, 130, 6, 3, 16, 1, 7, SL_GROUP_MAX, F, 0}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=12 h=32 kv=8 d=128 max aligned", scores, {12, 3, 700, 32, 8, 128, 8, 32, SL_GROUP_MAX, B, 0, 16}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=80 h=10 kv=2 d=64 softmax aligned 16 channels", scores, {80, 40, 500, 10, 2, 64, 2, 16, SL_GROUP_SOFTMAX, B, 0, 16}, CF_SPLIT | CF_FEW},
    {SL_OP_LABELS_SCORES, "T=6 h=9 kv=1 d=32 max aligned 8 channels", scores, {6, 2, 300, 9, 1, 32, 1, 8, SL_GROUP_MAX, B, 0, 16}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=18 h=14 kv=2 d=64 union", scores, {18, 3, 300, 14, 2, 64, 2, 32, SL_GROUP_UNION, B, 0}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=6 h=6 kv=3 d=16 union one list", scores, {6, 3, 130, 6, 3, 16, 1, 7, SL_GROUP_UNION, F, 50}, CF_SPLIT},
    {SL_OP_LABELS_SCORES, "T=6 h=32 kv=8 d=128 mean one list", scores, {6, 2, 200, 32, 8, 128, 1, 32, SL_GROUP_MEAN, B, 0}, CF_SPLIT},
};
/* clang-format on */

const cf_table cf_labels_cases = {cases, SL_COUNT(cases)};
