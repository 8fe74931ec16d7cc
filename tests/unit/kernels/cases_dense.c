/* Conformance cases of the model's dense part: embed, norms, linear, absorption, activation, add, pick. */
#include <stdlib.h>
#include <string.h>

#include "kernels/synth.h"
#include "tests/unit/kernels/batch.h"

/* T, dim, vocab, table, act */
static void embed(cf_run *r, const int64_t *a)
{
    int32_t *ids = cf_temp(r, 4 * (size_t)r->n);
    sl_embed_params p = {.tokens = (int32_t)r->n, .dim = (int32_t)a[1], .vocab = (int32_t)a[2]};

    for (int64_t i = 0; i < r->n; i++)
        ids[i] = (int32_t)(cf_hash(1, r->first + i) % (uint64_t)a[2]);
    if (r->n > 1) {
        ids[0] = (int32_t)(r->first ? ids[0] : a[2] - 1);
    }
    p.table_dtype = (sl_dtype)a[3];
    p.act = (sl_dtype)a[4];
    p.ids = cf_mem(r, ids, 4 * (size_t)r->n);
    p.table = cf_matrix(r, 2, 0, a[2], a[1], a[1], p.table_dtype, 1);
    p.out = cf_mem(r, NULL, (size_t)(r->n * a[1]) * cf_size(p.act));
    cf_op(r, SL_OP_EMBED, &p);
    cf_work(r, (double)r->n * (double)a[1] * (double)(cf_size(p.table_dtype) + cf_size(p.act)), 0, SL_F32, 0);
    cf_out(r, "out", p.out, r->n, (size_t)a[1] * cf_size(p.act), (size_t)a[1] * cf_size(p.act),
           cf_kind_of(p.act), 0);
}

/* T, dim, ld, act, weight, add, out, groups */
static void rmsnorm(cf_run *r, const int64_t *a)
{
    sl_rmsnorm_params p = {
        .tokens = (int32_t)r->n, .dim = (int32_t)a[1], .ld_x = (int32_t)a[2], .eps = 1e-6f};

    int64_t rows = a[7] ? a[7] : 1; /* of a token */

    p.act = (sl_dtype)a[3];
    p.weight_dtype = (sl_dtype)a[4];
    p.groups = (int32_t)a[7];
    p.tokens *= (int32_t)rows;
    p.x = cf_matrix(r, 1, r->first * rows, r->n * rows, a[1], a[2], p.act, 3);
    if (a[5])
        p.add = cf_matrix(r, 2, r->first, r->n, a[1], a[1], p.act, 2);
    p.weight = cf_matrix(r, 3, 0, rows, a[1], a[1], p.weight_dtype, 1.5f);
    if (a[6])
        p.out = cf_mem(r, NULL, (size_t)(r->n * rows * a[1]) * cf_size(p.act));
    cf_op(r, SL_OP_RMSNORM, &p);
    cf_work(r, (double)r->n * (double)a[1] * (double)cf_size(p.act) * (double)(1 + 2 * a[5] + a[6]), 0,
            SL_F32, 0);
    cf_out_tokens(r, "x", p.x, (size_t)(rows * a[2]) * cf_size(p.act), CF_BYTES, 0);
    if (a[6])
        cf_out_tokens(r, "out", p.out, (size_t)(rows * a[1]) * cf_size(p.act), cf_kind_of(p.act), 2e-6);
}

/* T, out, in, weight, act, out dtype, fp8_acts, extra ld */
static void linear(cf_run *r, const int64_t *a)
{
    sl_linear_params p = {
        .tokens = (int32_t)r->n, .ld_x = (int32_t)(a[2] + a[7]), .ld_out = (int32_t)(a[1] + a[7])};
    size_t row;

    p.act = (sl_dtype)a[4];
    p.out_dtype = (sl_dtype)a[5];
    p.fp8_acts = a[6];
    p.w = cf_weight(r, 1, (int32_t)a[1], (int32_t)a[2], a[3]);
    p.x = cf_matrix(r, 2, r->first, r->n, a[2], p.ld_x, p.act, 1);
    row = (size_t)p.ld_out * cf_size(p.out_dtype);
    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_LINEAR, &p);
    cf_work(r,
            (double)a[1] * (double)a[2] * (double)cf_size(p.w.dtype) +
                (double)r->n *
                    ((double)a[2] * (double)cf_size(p.act) + (double)a[1] * (double)cf_size(p.out_dtype)),
            2.0 * (double)r->n * (double)a[1] * (double)a[2], p.fp8_acts ? SL_F8_E4M3 : p.act, 0);
    /* An fp8 tensor core adds the products of an instruction with fewer bits than float32 (14 were observed on
     * Hopper). Where the terms of a sum cancel, two backends may differ by that much, relative to the row's largest
     * value. */
    cf_out_tokens(r, "out", p.out, row, cf_kind_of(p.out_dtype),
                  r->be && p.fp8_acts              ? 4e-4
                  : p.act == SL_BF16 || p.fp8_acts ? 2e-5
                                                   : 5e-6);
}

/* T, outs of three layers, in, weight, act, fp8_acts: a chain, whose last layer has another weight dtype */
static void chain(cf_run *r, const int64_t *a)
{
    sl_linear_params p[3];

    for (int i = 2; i >= 0; i--) {
        size_t row = (size_t)a[1 + i] * cf_size((sl_dtype)a[6]);
        p[i] = (sl_linear_params){.tokens = (int32_t)r->n,
                                  .ld_x = (int32_t)a[4],
                                  .ld_out = (int32_t)a[1 + i],
                                  .fp8_acts = a[7],
                                  .act = (sl_dtype)a[6],
                                  .out_dtype = (sl_dtype)a[6],
                                  .next = i < 2 ? &p[i + 1] : NULL};
        p[i].w = cf_weight(r, 1 + (uint32_t)i, (int32_t)a[1 + i], (int32_t)a[4], i == 2 ? a[8] : a[5]);
        p[i].out = cf_mem(r, NULL, (size_t)r->n * row);
    }
    p[0].x = p[1].x = p[2].x = cf_matrix(r, 9, r->first, r->n, a[4], a[4], p[0].act, 1);
    cf_op(r, SL_OP_LINEAR, &p[0]);
    cf_work(r, (double)(a[1] + a[2] + a[3]) * (double)a[4] * (double)cf_size(p[0].w.dtype),
            2.0 * (double)r->n * (double)(a[1] + a[2] + a[3]) * (double)a[4],
            p[0].fp8_acts ? SL_F8_E4M3 : p[0].act, 0);
    for (int i = 0; i < 3; i++)
        cf_out_tokens(r,
                      i == 0   ? "first"
                      : i == 1 ? "second"
                               : "third",
                      p[i].out, (size_t)a[1 + i] * cf_size(p[i].out_dtype), cf_kind_of(p[i].out_dtype),
                      r->be && p[i].fp8_acts                 ? 4e-4
                      : p[i].act == SL_BF16 || p[i].fp8_acts ? 2e-5
                                                             : 5e-6);
}

/* T, heads, nope, rope, v, lora, weight, act */
static void q_absorb(cf_run *r, const int64_t *a)
{
    sl_q_absorb_params p = {
        .tokens = (int32_t)r->n, .heads = (int32_t)a[1], .nope = (int32_t)a[2], .rope = (int32_t)a[3]};
    int32_t *pos = cf_temp(r, 4 * (size_t)r->n);
    size_t row;

    p.v = (int32_t)a[4];
    p.lora = (int32_t)a[5];
    p.act = (sl_dtype)a[7];
    for (int64_t i = 0; i < r->n; i++)
        pos[i] = (int32_t)(cf_hash(3, r->first + i) % 500);
    p.pos = cf_mem(r, pos, 4 * (size_t)r->n);
    p.cos_sin = p.rope ? cf_cos_sin(r, 500, p.rope) : NULL;
    p.q = cf_matrix(r, 1, r->first, r->n, a[1] * (a[2] + a[3]), a[1] * (a[2] + a[3]), p.act, 1);
    p.kv_b = cf_weight(r, 2, (int32_t)(a[1] * (a[2] + a[4])), (int32_t)a[5], a[6]);
    row = (size_t)(a[1] * (a[5] + a[3])) * 4;
    p.ql = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_Q_ABSORB, &p);
    cf_work(r,
            (double)(a[1] * a[2] * a[5]) * (double)cf_size(p.kv_b.dtype) + (double)r->n * (double)row * 1.25,
            2.0 * (double)r->n * (double)(a[1] * a[2] * a[5]), p.act, 0);
    cf_out_tokens(r, "ql", p.ql, row, CF_F32, p.act == SL_BF16 ? 1e-4 : 5e-6);
}

/* T, heads, nope, v, lora, weight, act */
static void v_up(cf_run *r, const int64_t *a)
{
    sl_v_up_params p = {
        .tokens = (int32_t)r->n, .heads = (int32_t)a[1], .nope = (int32_t)a[2], .v = (int32_t)a[3]};
    size_t row;

    p.lora = (int32_t)a[4];
    p.act = (sl_dtype)a[6];
    p.o = cf_matrix(r, 1, r->first, r->n, a[1] * a[4], a[1] * a[4], SL_F32, 1);
    p.kv_b = cf_weight(r, 2, (int32_t)(a[1] * (a[2] + a[3])), (int32_t)a[4], a[5]);
    row = (size_t)(a[1] * a[3]) * cf_size(p.act);
    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_V_UP, &p);
    cf_work(r,
            (double)(a[1] * a[3] * a[4]) * (double)cf_size(p.kv_b.dtype) +
                (double)r->n * (double)(a[1] * a[4] * 4) + (double)row,
            2.0 * (double)r->n * (double)(a[1] * a[3] * a[4]), p.act, 0);
    cf_out_tokens(r, "out", p.out, row, cf_kind_of(p.act), p.act == SL_BF16 ? 4e-3 : 5e-6);
}

/* T, dim, ld_in, ld_out, act */
static void silu_mul(cf_run *r, const int64_t *a)
{
    sl_silu_mul_params p = {
        .tokens = (int32_t)r->n, .dim = (int32_t)a[1], .ld_in = (int32_t)a[2], .ld_out = (int32_t)a[3]};
    size_t row;

    p.act = (sl_dtype)a[4];
    p.gate = cf_matrix(r, 1, r->first, r->n, a[2], a[2], p.act, 8);
    /* With room in the row, up is the second half of the same matrix. */
    p.up = a[2] >= 2 * a[1] ? (const void *)((const uint8_t *)p.gate + (size_t)a[1] * cf_size(p.act))
                            : cf_matrix(r, 2, r->first, r->n, a[1], a[2], p.act, 2);
    row = (size_t)a[3] * cf_size(p.act);
    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_SILU_MUL, &p);
    cf_work(r, 3.0 * (double)r->n * (double)a[1] * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, row, cf_kind_of(p.act), 1e-6);
}

/* T, dim, act */
static void add(cf_run *r, const int64_t *a)
{
    sl_add_params p = {.tokens = (int32_t)r->n, .dim = (int32_t)a[1], .act = (sl_dtype)a[2]};

    p.x = cf_matrix(r, 1, r->first, r->n, a[1], a[1], p.act, 3);
    p.y = cf_matrix(r, 2, r->first, r->n, a[1], a[1], p.act, 3);
    cf_op(r, SL_OP_ADD, &p);
    cf_work(r, 3.0 * (double)r->n * (double)a[1] * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "x", p.x, (size_t)a[1] * cf_size(p.act), CF_BYTES, 0);
}

/* n, dim, act, rows of x */
static void pick(cf_run *r, const int64_t *a)
{
    sl_pick_params p = {.n = (int32_t)r->n, .dim = (int32_t)a[1], .act = (sl_dtype)a[2]};
    int32_t *rows = cf_temp(r, 4 * (size_t)r->n);

    for (int64_t i = 0; i < r->n; i++)
        rows[i] = (int32_t)(cf_hash(5, r->first + i) % (uint64_t)a[3]);
    p.rows = cf_mem(r, rows, 4 * (size_t)r->n);
    p.x = cf_matrix(r, 1, 0, a[3], a[1], a[1], p.act, 3);
    p.out = cf_mem(r, NULL, (size_t)(r->n * a[1]) * cf_size(p.act));
    cf_op(r, SL_OP_PICK, &p);
    cf_work(r, 2.0 * (double)r->n * (double)a[1] * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)a[1] * cf_size(p.act), CF_BYTES, 0);
}

/* rows, cols, dtype, mean, spread */
static void random_values(cf_run *r, const int64_t *a)
{
    sl_random_params p = {.rows = (int32_t)r->n,
                          .cols = (int32_t)a[1],
                          .dtype = (sl_dtype)a[2],
                          .mean = (float)a[3],
                          .spread = (float)a[4],
                          .seed = 99};
    size_t row = (size_t)a[1] * (p.dtype == SL_I32 ? 4 : cf_size(p.dtype));

    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_RANDOM, &p);
    cf_work(r, (double)r->n * (double)row, 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, row, CF_BYTES, 0);
}

/* T, length, k, ld, span, keep of 65536, lists */
static void drawn(cf_run *r, const int64_t *a)
{
    batch b;
    uint32_t keep = (uint32_t)a[5];
    sl_draw_params p = {.k = (int32_t)a[2],
                        .ld_ids = (int32_t)a[3],
                        .span = (int32_t)a[4],
                        .from_pos = (int32_t)a[4] / 2,
                        .layer = 5,
                        .lists = (int32_t)a[6],
                        .seed = 3};
    size_t row = (size_t)(a[3] * (a[6] ? a[6] : 1)) * 4;

    batch_make(r, &b, a[0], 1, a[1], 0);
    p.seqs = &b.t;
    p.keep = cf_mem(r, &keep, 4);
    p.ids = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_DRAW, &p);
    cf_work(r, (double)r->n * (double)row, 0, SL_F32, 0);
    cf_out_tokens(r, "ids", p.ids, row, CF_BYTES, 0);
}

#define F SL_F32
#define B SL_BF16
#define H SL_F16
#define Q SL_F8_E4M3
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_EMBED, "T=1 dim=1 f32", embed, {1, 1, 3, F, F}, 0},
    {SL_OP_EMBED, "T=7 dim=37 bf16->f32", embed, {7, 37, 50, B, F}, 0},
    {SL_OP_EMBED, "T=33 dim=256 bf16", embed, {33, 256, 512, B, B}, 0},
    {SL_OP_EMBED, "T=5 dim=64 f32->bf16", embed, {5, 64, 9, F, B}, 0},
    {SL_OP_EMBED, "T=64 dim=7168 bf16", embed, {64, 7168, 1000, B, B}, CF_PERF_ONLY},

    {SL_OP_RMSNORM, "T=1 dim=1 f32", rmsnorm, {1, 1, 1, F, F, 0, 1}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=5 dim=37 ld=40 f32 add", rmsnorm, {5, 37, 40, F, F, 1, 1}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=9 dim=256 bf16 add", rmsnorm, {9, 256, 256, B, B, 1, 1}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=4 dim=512 ld=576 bf16 w=f32", rmsnorm, {4, 512, 576, B, F, 0, 1}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=3 dim=130 bf16 w=f16 add only", rmsnorm, {3, 130, 130, B, H, 1, 0}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=5 dim=37 f32 3 groups", rmsnorm, {5, 37, 37, F, F, 0, 1, 3}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=4 dim=256 bf16 4 groups", rmsnorm, {4, 256, 256, B, B, 0, 1, 4}, CF_SPLIT},
    {SL_OP_RMSNORM, "T=2 dim=7168 bf16 add", rmsnorm, {2, 7168, 7168, B, B, 1, 1}, CF_SPLIT | CF_PERF},
    {SL_OP_RMSNORM, "T=64 dim=7168 bf16 add", rmsnorm, {64, 7168, 7168, B, B, 1, 1}, CF_PERF_ONLY},

    {SL_OP_LINEAR, "T=1 1x1 f32", linear, {1, 1, 1, F, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=40 33x37 f32 ld", linear, {40, 33, 37, F, F, F, 0, 3}, CF_SPLIT},
    {SL_OP_LINEAR, "T=17 100x256 bf16 w", linear, {17, 100, 256, B, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=6 65x130 f16 w bf16", linear, {6, 65, 130, H, B, B, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=19 200x300 f8 w", linear, {19, 200, 300, Q, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=19 200x300 f8 acts", linear, {19, 200, 300, Q, F, F, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=5 576x512 f8 acts bf16", linear, {5, 576, 512, Q, B, B, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=9 132x128 f8 acts bf16->f32", linear, {9, 132, 128, Q, B, F, 1, 2}, CF_SPLIT},
    {SL_OP_LINEAR, "T=3 64x96 bf16 w with fp8_acts", linear, {3, 64, 96, B, B, B, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=6 65x130 int4/64", linear, {6, 65, 130, CF_FORM(SL_I4, SL_SCALE_BF16, 64), F, F, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=19 200x300 int4/32 acts", linear, {19, 200, 300, CF_FORM(SL_I4, SL_SCALE_F32, 32), B, B, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=19 72x256 mxfp4 acts", linear, {19, 72, 256, CF_FORM(SL_F4_E2M1, SL_SCALE_E8M0, 32), B, F, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=3 64x96 nvfp4", linear, {3, 64, 96, CF_FORM(SL_F4_E2M1, SL_SCALE_E4M3, 16), B, B, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=3 64x96 nvfp4 acts", linear, {3, 64, 96, CF_FORM(SL_F4_E2M1, SL_SCALE_E4M3, 16), F, F, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=5 130x200 f8 by output", linear, {5, 130, 200, CF_FORM(SL_F8_E4M3, SL_SCALE_F32, 256), B, B, 1, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=130 48x64 bf16", linear, {130, 48, 64, B, B, B, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=140 576x1024 bf16", linear, {140, 576, 1024, B, B, B, 0, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_LINEAR, "T=140 576x1024 f8 acts", linear, {140, 576, 1024, Q, B, B, 1, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_LINEAR, "T=600 264x1024 f8 acts", linear, {600, 264, 1024, Q, B, B, 1, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_LINEAR, "T=70 256x1024 f32", linear, {70, 256, 1024, F, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=6 512x7168 f8 acts", linear, {6, 512, 7168, Q, B, B, 1, 0}, CF_SPLIT | CF_LARGE},
    /* more than 256 tokens, where k is cut into eight and two ranges (summed in the same order), and not cut */
    {SL_OP_LINEAR, "T=450 264x7168 f8 acts", linear, {450, 264, 7168, Q, B, B, 1, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_LINEAR, "T=1100 520x1792 f8 acts", linear, {1100, 520, 1792, Q, B, B, 1, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_LINEAR, "T=520 264x1536 f8 acts", linear, {520, 264, 1536, Q, B, B, 1, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_LINEAR, "T=300 64x7168 bf16 to f32", linear, {300, 64, 7168, B, B, F, 0, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_LINEAR, "T=300 chain 384+64+136 x1792 f8 acts", chain, {300, 384, 64, 136, 1792, Q, B, 1, Q}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_LINEAR, "T=70 chain 384+64+136 x512 f8 acts", chain, {70, 384, 64, 136, 512, Q, B, 1, Q}, CF_SPLIT},
    {SL_OP_LINEAR, "T=9 chain 384+64+136 x7168 f8 acts", chain, {9, 384, 64, 136, 7168, Q, B, 1, Q}, CF_SPLIT | CF_LARGE},
    {SL_OP_LINEAR, "T=1 24x16384 f32 w bf16", linear, {1, 24, 16384, F, B, F, 0, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_LINEAR, "T=19 4x2048 f32 w bf16 ld", linear, {19, 4, 2048, F, B, F, 0, 4}, CF_SPLIT},
    {SL_OP_LINEAR, "T=13 256x1024 f32 w bf16", linear, {13, 256, 1024, F, B, B, 0, 0}, CF_SPLIT},
    {SL_OP_LINEAR, "T=140 33x3072 f32 w bf16", linear, {140, 33, 3072, F, B, F, 0, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_LINEAR, "T=1 24x16384 f32 w bf16", linear, {1, 24, 16384, F, B, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=16 24x16384 f32 w bf16", linear, {16, 24, 16384, F, B, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 24x16384 f32 w bf16", linear, {64, 24, 16384, F, B, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=4096 24x16384 f32 w bf16", linear, {4096, 24, 16384, F, B, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 256x6144 f32 w bf16", linear, {64, 256, 6144, F, B, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=9 chain of kinds x512", chain, {9, 40, 64, 136, 512, Q, B, 1, B}, CF_SPLIT},
    {SL_OP_LINEAR, "T=5 chain 33+7+12 x40 f32", chain, {5, 33, 7, 12, 40, F, F, 0, F}, CF_SPLIT},
    {SL_OP_LINEAR, "T=66 chain 1536+576+128 x7168 f8 acts", chain, {66, 1536, 576, 128, 7168, Q, B, 1, Q}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=66 7168x16384 f8 acts", linear, {66, 7168, 16384, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=66 256x7168 bf16", linear, {66, 256, 7168, B, B, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=66 2048x7168 f8 acts", linear, {66, 2048, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 1536x7168 f8 acts", linear, {64, 1536, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 24576x1536 f8 acts", linear, {64, 24576, 1536, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 576x7168 f8 acts", linear, {64, 576, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 7168x2048 f8 acts", linear, {64, 7168, 2048, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=1 1536x7168 f8 acts", linear, {1, 1536, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=16 1536x7168 f8 acts", linear, {16, 1536, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 4096x7168 f8 acts", linear, {64, 4096, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=4096 1536x7168 f8 acts", linear, {4096, 1536, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=4096 24576x1536 f8 acts", linear, {4096, 24576, 1536, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=4096 576x7168 f8 acts", linear, {4096, 576, 7168, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=4096 7168x16384 f8 acts", linear, {4096, 7168, 16384, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=4096 7168x2048 f8 acts", linear, {4096, 7168, 2048, Q, B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=1 2048x2048 f32", linear, {1, 2048, 2048, F, F, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=64 2048x2048 f32", linear, {64, 2048, 2048, F, F, F, 0, 0}, CF_PERF_ONLY},
    {SL_OP_LINEAR, "T=1 4096x7168 bf16", linear, {1, 4096, 7168, B, B, B, 0, 0}, CF_PERF_ONLY},

    {SL_OP_Q_ABSORB, "T=1 h=1 n=1 r=0 v=1 l=1", q_absorb, {1, 1, 1, 0, 1, 1, F, F}, CF_SPLIT},
    {SL_OP_Q_ABSORB, "T=9 h=4 n=32 r=16 v=32 l=128 f32", q_absorb, {9, 4, 32, 16, 32, 128, F, F}, CF_SPLIT},
    {SL_OP_Q_ABSORB, "T=5 h=3 n=20 r=6 v=11 l=37 bf16", q_absorb, {5, 3, 20, 6, 11, 37, B, B}, CF_SPLIT},
    {SL_OP_Q_ABSORB, "T=4 h=2 n=128 r=64 v=128 l=512 f8", q_absorb, {4, 2, 128, 64, 128, 512, Q, B}, CF_SPLIT},
    {SL_OP_Q_ABSORB, "T=64 h=128 n=128 r=64 v=128 l=512 bf16", q_absorb, {64, 128, 128, 64, 128, 512, B, B}, CF_PERF_ONLY},
    {SL_OP_Q_ABSORB, "T=64 h=128 n=128 r=64 v=128 l=512 f8", q_absorb, {64, 128, 128, 64, 128, 512, Q, B}, CF_PERF_ONLY},

    {SL_OP_V_UP, "T=1 h=1 n=0 v=1 l=1", v_up, {1, 1, 0, 1, 1, F, F}, CF_SPLIT},
    {SL_OP_V_UP, "T=9 h=4 n=32 v=32 l=128 f32", v_up, {9, 4, 32, 32, 128, F, F}, CF_SPLIT},
    {SL_OP_V_UP, "T=5 h=3 n=20 v=11 l=37 bf16", v_up, {5, 3, 20, 11, 37, B, B}, CF_SPLIT},
    {SL_OP_V_UP, "T=4 h=2 n=128 v=128 l=512 f8", v_up, {4, 2, 128, 128, 512, Q, B}, CF_SPLIT},
    {SL_OP_V_UP, "T=64 h=128 n=128 v=128 l=512 bf16", v_up, {64, 128, 128, 128, 512, B, B}, CF_PERF_ONLY},
    {SL_OP_V_UP, "T=64 h=128 n=128 v=128 l=512 f8", v_up, {64, 128, 128, 128, 512, Q, B}, CF_PERF_ONLY},

    {SL_OP_SILU_MUL, "T=1 dim=1 f32", silu_mul, {1, 1, 1, 1, F}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=5 dim=37 halves f32", silu_mul, {5, 37, 74, 40, F}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=6 dim=128 bf16", silu_mul, {6, 128, 128, 128, B}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=64 dim=2048 halves bf16", silu_mul, {64, 2048, 4096, 2048, B}, CF_PERF_ONLY},

    {SL_OP_ADD, "T=3 dim=37 f32", add, {3, 37, F}, CF_SPLIT},
    {SL_OP_ADD, "T=4 dim=256 bf16", add, {4, 256, B}, CF_SPLIT},
    {SL_OP_ADD, "T=64 dim=7168 bf16", add, {64, 7168, B}, CF_PERF_ONLY},
    {SL_OP_PICK, "n=1 dim=3 f32", pick, {1, 3, F, 1}, CF_SPLIT},
    {SL_OP_PICK, "n=5 dim=130 bf16", pick, {5, 130, B, 20}, CF_SPLIT},
    {SL_OP_PICK, "n=64 dim=7168 bf16", pick, {64, 7168, B, 128}, CF_PERF_ONLY},

    {SL_OP_RANDOM, "5x130 f32", random_values, {5, 130, F, 1, 3}, 0},
    {SL_OP_RANDOM, "70x300 bf16", random_values, {70, 300, B, 0, 2}, 0},
    {SL_OP_RANDOM, "9x1000 e4m3", random_values, {9, 1000, Q, 0, 240}, 0},
    {SL_OP_RANDOM, "4x33 i32", random_values, {4, 33, SL_I32, 7, 32}, 0},
    {SL_OP_DRAW, "T=6 k=40 of 1000, 85 %", drawn, {6, 1000, 40, 43, 900, 55706}, CF_SPLIT},
    {SL_OP_DRAW, "T=3 k=8 of 32", drawn, {3, 200, 8, 8, 32, 0}, CF_SPLIT},
    {SL_OP_DRAW, "T=6 8 lists k=40 of 1000", drawn, {6, 1000, 40, 43, 900, 55706, 8}, CF_SPLIT},
    {SL_OP_DRAW, "T=64 8 lists k=128 of 4096", drawn, {64, 65536, 128, 128, 4096, 55706, 8}, CF_PERF_ONLY},
    {SL_OP_DRAW, "T=64 k=2048 of 64K, 85 %", drawn, {64, 65536, 2048, 2048, 65536, 55706}, CF_PERF_ONLY},
};
/* clang-format on */

const cf_table cf_dense_cases = {cases, SL_COUNT(cases)};
