/* Conformance cases of the mixture of experts: router and routed experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/cf.h"

/* T, experts, groups, top_groups, top_k, bias, normalise, ties */
static void route(cf_run *r, const int64_t *a)
{
    sl_moe_route_params p = {.tokens = (int32_t)r->n, .experts = (int32_t)a[1], .groups = (int32_t)a[2]};
    float *logits = cf_temp(r, 4 * (size_t)(r->n * a[1]));

    p.top_groups = (int32_t)a[3];
    p.top_k = (int32_t)a[4];
    p.normalise = a[6];
    p.scale = 2.5f;
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < a[1]; i++) {
            float v = 4 * cf_uniform(1, (r->first + t) * a[1] + i);

            logits[t * a[1] + i] = a[7] ? roundf(v) : v; /* whole numbers: many equal experts and groups */
        }
    p.logits = cf_mem(r, logits, 4 * (size_t)(r->n * a[1]));
    p.bias = a[5] ? cf_matrix(r, 2, 0, 1, a[1], a[1], SL_F32, 0.5f) : NULL;
    p.experts_out = cf_mem(r, NULL, 4 * (size_t)(r->n * a[4]));
    p.weights_out = cf_mem(r, NULL, 4 * (size_t)(r->n * a[4]));
    cf_op(r, SL_OP_MOE_ROUTE, &p);
    cf_work(r, 4.0 * (double)r->n * (double)(a[1] + 2 * a[4]), 0, SL_F32, 0);
    cf_out_tokens(r, "experts", p.experts_out, 4 * (size_t)a[4], CF_BYTES, 0);
    cf_out_tokens(r, "weights", p.weights_out, 4 * (size_t)a[4], CF_F32, 2e-6);
}

static sl_weight *expert_weights(cf_run *r, uint32_t stream, int64_t n, int32_t out, int32_t in,
                                 sl_dtype dtype)
{
    sl_weight *w = cf_temp(r, sizeof(*w) * (size_t)n);
    sl_weight all = cf_weight(r, stream, (int32_t)((out + 127) / 128 * 128 * n), in, dtype);
    int32_t rows = (out + 127) / 128 * 128; /* whole blocks of scales per expert */

    for (int64_t i = 0; i < n; i++) {
        w[i] = all;
        w[i].out = out;
        w[i].data = (const uint8_t *)all.data + (size_t)i * (size_t)rows * (size_t)in * sl_dtype_size(dtype);
        w[i].scale = all.scale ? all.scale + i * (rows / 128) * ((in + 127) / 128) : NULL;
    }
    return w;
}

/* T, hidden, inter, experts, top_k, weight, act, fp8_acts, skipped: the last choice of every third token is
 * -1 */
static void moe(cf_run *r, const int64_t *a)
{
    sl_moe_params p = {
        .tokens = (int32_t)r->n, .hidden = (int32_t)a[1], .inter = (int32_t)a[2], .experts = (int32_t)a[3]};
    int32_t *ids = cf_temp(r, 4 * (size_t)(r->n * a[4]));
    float *weights = cf_temp(r, 4 * (size_t)(r->n * a[4]));
    size_t row;

    p.top_k = (int32_t)a[4];
    p.act = (sl_dtype)a[6];
    p.fp8_acts = a[7];
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < a[4]; i++) { /* distinct, ascending: a run of experts with gaps */
            int64_t g = r->first + t, span = a[3] / a[4];

            ids[t * a[4] + i] = (int32_t)(i * span + (int64_t)(cf_hash(9, g * 64 + i) % (uint64_t)span));
            weights[t * a[4] + i] = 0.6f + 0.5f * cf_uniform(8, g * 64 + i);
            if (a[8] && i == a[4] - 1 && g % 3 == 0)
                ids[t * a[4] + i] = -1;
        }
    p.expert_ids = cf_mem(r, ids, 4 * (size_t)(r->n * a[4]));
    p.weights = cf_mem(r, weights, 4 * (size_t)(r->n * a[4]));
    p.gate = expert_weights(r, 1, a[3], p.inter, p.hidden, (sl_dtype)a[5]);
    p.up = expert_weights(r, 2, a[3], p.inter, p.hidden, (sl_dtype)a[5]);
    p.down = expert_weights(r, 3, a[3], p.hidden, p.inter, (sl_dtype)a[5]);
    p.x = cf_matrix(r, 4, r->first, r->n, a[1], a[1], p.act, 2);
    row = (size_t)a[1] * sl_dtype_size(p.act);
    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    p.workspace_bytes = sl_moe_workspace_bytes(p.tokens, p.hidden, p.inter, p.experts, p.top_k);
    p.workspace = cf_mem(r, NULL, p.workspace_bytes);
    cf_op(r, SL_OP_MOE, &p);
    {
        double touched = (double)a[3] * (1 - pow(1 - 1.0 / (double)(a[3] / a[4]), (double)r->n));
        double each = 3.0 * (double)a[1] * (double)a[2];

        cf_work(r, touched * each * (double)sl_dtype_size((sl_dtype)a[5]), 2.0 * each * (double)(r->n * a[4]),
                p.fp8_acts ? SL_F8_E4M3 : p.act, 0);
    }
    /* A value midway between two e4m3 or bf16 codes may be rounded to either in the product between the two layers. */
    cf_out_tokens(r, "out", p.out, row, p.act == SL_BF16 ? CF_BF16 : CF_F32,
                  p.fp8_acts         ? 2e-2
                  : p.act == SL_BF16 ? 6e-3
                                     : 1e-5);
}

#define F SL_F32
#define B SL_BF16
#define Q SL_F8_E4M3
static const cf_case cases[] = {
    {SL_OP_MOE_ROUTE, "T=1 E=1", route, {1, 1, 1, 1, 1, 0, 1, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=16 groups=4/2 k=4", route, {9, 16, 4, 2, 4, 1, 1, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=40 E=256 groups=8/4 k=8", route, {40, 256, 8, 4, 8, 1, 1, 0}, CF_SPLIT | CF_PERF},
    {SL_OP_MOE_ROUTE, "T=7 E=256 groups=1 k=8", route, {7, 256, 1, 1, 8, 1, 1, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=7 E=24 groups=0 k=24", route, {7, 24, 0, 0, 24, 0, 0, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=30 E=64 groups=8/3 k=6 ties", route, {30, 64, 8, 3, 6, 0, 1, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=5 E=8 groups=8/3 k=3 one each", route, {5, 8, 8, 3, 3, 1, 0, 0}, CF_SPLIT},

    {SL_OP_MOE, "T=1 1x1 E=1", moe, {1, 1, 1, 1, 1, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=11 hidden=96 inter=40 E=16 k=4 f32", moe, {11, 96, 40, 16, 4, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=11 hidden=96 inter=40 E=16 k=4 skipped", moe, {11, 96, 40, 16, 4, F, F, 0, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=256 inter=128 E=8 k=2 bf16", moe, {7, 256, 128, 8, 2, B, B, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=256 inter=128 E=8 k=2 f8", moe, {7, 256, 128, 8, 2, Q, B, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=300 inter=200 E=8 k=2 f8 acts", moe, {7, 300, 200, 8, 2, Q, B, 1, 0}, CF_SPLIT},
    {SL_OP_MOE,
     "T=7 hidden=300 inter=200 E=8 k=2 f8 acts f32",
     moe,
     {7, 300, 200, 8, 2, Q, F, 1, 0},
     CF_SPLIT},
    {SL_OP_MOE,
     "T=90 hidden=256 inter=384 E=8 k=4 f8 acts",
     moe,
     {90, 256, 384, 8, 4, Q, B, 1, 1},
     CF_SPLIT | CF_LARGE},
    {SL_OP_MOE,
     "T=7 hidden=512 inter=128 E=8 k=2 f8 acts f32",
     moe,
     {7, 512, 128, 8, 2, Q, F, 1, 0},
     CF_SPLIT},
    {SL_OP_MOE,
     "T=300 hidden=640 inter=256 E=8 k=4 f8 acts",
     moe,
     {300, 640, 256, 8, 4, Q, B, 1, 1},
     CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_MOE,
     "T=150 hidden=256 inter=128 E=1 k=1 f8 acts",
     moe,
     {150, 256, 128, 1, 1, Q, B, 1, 0},
     CF_SPLIT},
    {SL_OP_MOE,
     "T=140 hidden=192 inter=256 E=4 k=2 bf16 skipped",
     moe,
     {140, 192, 256, 4, 2, B, B, 0, 1},
     CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=5 hidden=320 inter=128 E=40 k=2 bf16", moe, {5, 320, 128, 40, 2, B, B, 0, 1}, CF_SPLIT},
    {SL_OP_MOE,
     "T=16 hidden=7168 inter=2048 E=16 k=8 f8 acts",
     moe,
     {16, 7168, 2048, 16, 8, Q, B, 1, 0},
     CF_PERF_ONLY},
    {SL_OP_MOE,
     "T=2048 hidden=2048 inter=1024 E=16 k=4 bf16",
     moe,
     {2048, 2048, 1024, 16, 4, B, B, 0, 0},
     CF_PERF_ONLY},
    {SL_OP_MOE,
     "T=2048 hidden=2048 inter=1024 E=16 k=4 f8 acts",
     moe,
     {2048, 2048, 1024, 16, 4, Q, B, 1, 0},
     CF_PERF_ONLY},
};

const cf_table cf_expert_cases = {cases, SL_COUNT(cases)};
