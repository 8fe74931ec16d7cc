/* Conformance cases of parallel residual streams and of gates: streams_out, streams_add, sigmoid_mul, join, and the variants of
 * silu_mul. */
#include "kernels/streams.h"
#include "tests/unit/kernels/cf.h"

/* T, dim, count, act, post, times that a matrix is balanced */
static void streams_out(cf_run *r, const int64_t *a)
{
    sl_streams_out_params p = {.tokens = (int32_t)r->n,
                               .dim = (int32_t)a[1],
                               .count = (int32_t)a[2],
                               .act = (sl_dtype)a[3],
                               .eps = 1e-5f,
                               .hc_eps = 1e-3f,
                               .magnitude = 1.75f,
                               .iters = (int32_t)a[5]};
    int64_t gates = a[5] ? (2 + a[2]) * a[2] : a[4] ? 2 * a[2] : a[2], scales = a[5] ? 3 : a[4] ? 2 : 1;

    p.streams = cf_matrix(r, 1, r->first, r->n, a[1] * a[2], a[1] * a[2], p.act, 3);
    p.mix = cf_matrix(r, 2, r->first, r->n, gates, gates, SL_F32, 8);
    p.base = cf_matrix(r, 3, 0, 1, gates, gates, SL_F32, 1);
    p.scale = cf_matrix(r, 4, 0, 1, scales, scales, SL_F32, 2);
    p.out = cf_mem(r, NULL, (size_t)(r->n * a[1]) * cf_size(p.act));
    if (a[4])
        p.post = cf_mem(r, NULL, 4 * (size_t)(r->n * a[2]));
    if (a[5])
        p.comb = cf_mem(r, NULL, 4 * (size_t)(r->n * a[2] * a[2]));
    cf_op(r, SL_OP_STREAMS_OUT, &p);
    cf_work(r, (double)r->n * (double)(a[1] * (a[2] + 1)) * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)a[1] * cf_size(p.act), cf_kind_of(p.act), 2e-6);
    if (a[4])
        cf_out_tokens(r, "post", p.post, 4 * (size_t)a[2], CF_F32, 2e-6);
    if (a[5])
        cf_out_tokens(r, "comb", p.comb, 4 * (size_t)(a[2] * a[2]), CF_F32, 1e-5);
}

/* T, dim, count, act */
static void streams_mean(cf_run *r, const int64_t *a)
{
    sl_streams_out_params p = {
        .tokens = (int32_t)r->n, .dim = (int32_t)a[1], .count = (int32_t)a[2], .act = (sl_dtype)a[3]};

    p.streams = cf_matrix(r, 1, r->first, r->n, a[1] * a[2], a[1] * a[2], p.act, 3);
    p.out = cf_mem(r, NULL, (size_t)(r->n * a[1]) * cf_size(p.act));
    cf_op(r, SL_OP_STREAMS_OUT, &p);
    cf_work(r, (double)r->n * (double)(a[1] * (a[2] + 1)) * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)a[1] * cf_size(p.act), cf_kind_of(p.act), 1e-6);
}

/* T, dim, count, act, post, mixed */
static void streams_add(cf_run *r, const int64_t *a)
{
    sl_streams_add_params p = {
        .tokens = (int32_t)r->n, .dim = (int32_t)a[1], .count = (int32_t)a[2], .act = (sl_dtype)a[3]};
    size_t row = (size_t)(a[1] * a[2]) * cf_size(p.act);

    p.streams = a[4] ? cf_matrix(r, 1, r->first, r->n, a[1] * a[2], a[1] * a[2], p.act, 3)
                     : cf_mem(r, NULL, (size_t)r->n * row);
    p.y = cf_matrix(r, 2, r->first, r->n, a[1], a[1], p.act, 2);
    if (a[4])
        p.post = cf_matrix(r, 3, r->first, r->n, a[2], a[2], SL_F32, 2);
    if (a[5])
        p.comb = cf_matrix(r, 4, r->first, r->n, a[2] * a[2], a[2] * a[2], SL_F32, 1);
    cf_op(r, SL_OP_STREAMS_ADD, &p);
    cf_work(r, (double)r->n * (double)(a[1] * (2 * a[2] + 1)) * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "streams", p.streams, row, cf_kind_of(p.act), 1e-6);
}

/* T, dim, ld_x, ld_gate, act, the gate is x itself */
static void sigmoid_mul(cf_run *r, const int64_t *a)
{
    sl_sigmoid_mul_params p = {.tokens = (int32_t)r->n,
                               .dim = (int32_t)a[1],
                               .ld_x = (int32_t)a[2],
                               .ld_gate = (int32_t)a[3],
                               .act = (sl_dtype)a[4]};

    p.x = cf_matrix(r, 1, r->first, r->n, a[1], a[2], p.act, 3);
    p.gate = a[5] ? p.x : cf_matrix(r, 2, r->first, r->n, a[1], a[3], p.act, 8);
    cf_op(r, SL_OP_SIGMOID_MUL, &p);
    cf_work(r, 3.0 * (double)r->n * (double)a[1] * (double)cf_size(p.act), 0, SL_F32, 0);
    cf_out_tokens(r, "x", p.x, (size_t)a[2] * cf_size(p.act), cf_kind_of(p.act), 1e-6);
}

/* T, dim_a, dim_b, act */
static void join(cf_run *r, const int64_t *a)
{
    sl_join_params p = {
        .tokens = (int32_t)r->n, .dim_a = (int32_t)a[1], .dim_b = (int32_t)a[2], .act = (sl_dtype)a[3]};
    size_t row = (size_t)(a[1] + a[2]) * cf_size(p.act);

    p.a = cf_matrix(r, 1, r->first, r->n, a[1], a[1], p.act, 3);
    p.b = cf_matrix(r, 2, r->first, r->n, a[2], a[2], p.act, 3);
    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_JOIN, &p);
    cf_work(r, 2.0 * (double)r->n * (double)row, 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, row, CF_BYTES, 0);
}

/* T, dim, act, limit, alpha, offset in thousandths */
static void glu(cf_run *r, const int64_t *a)
{
    sl_silu_mul_params p = {.tokens = (int32_t)r->n,
                            .dim = (int32_t)a[1],
                            .ld_in = (int32_t)a[1],
                            .ld_out = (int32_t)a[1],
                            .act = (sl_dtype)a[2],
                            .glu = {(float)a[3] / 1000, (float)a[4] / 1000, (float)a[5] / 1000}};
    size_t row = (size_t)a[1] * cf_size(p.act);

    p.gate = cf_matrix(r, 1, r->first, r->n, a[1], a[1], p.act, 12);
    p.up = cf_matrix(r, 2, r->first, r->n, a[1], a[1], p.act, 12);
    p.out = cf_mem(r, NULL, (size_t)r->n * row);
    cf_op(r, SL_OP_SILU_MUL, &p);
    cf_work(r, 3.0 * (double)r->n * (double)row, 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, row, cf_kind_of(p.act), 1e-6);
}

static void refused(cf_run *r, const int64_t *a)
{
    sl_streams_add_params s = {.tokens = 2, .dim = 4, .count = 0, .act = SL_F32};
    sl_silu_mul_params g = {.tokens = 2, .dim = 4, .ld_in = 4, .ld_out = 4, .act = SL_F32, .glu.limit = -1};
    float values[32] = {0};

    (void)a;
    s.streams = g.out = cf_mem(r, values, sizeof(values));
    s.y = g.gate = g.up = cf_mem(r, values, sizeof(values));
    cf_refused(r, SL_OP_STREAMS_ADD, &s, SL_ERR_INVALID, "count");
    s.count = SL_STREAMS_MAX + 1;
    cf_refused(r, SL_OP_STREAMS_ADD, &s, SL_ERR_INVALID, "count");
    cf_refused(r, SL_OP_SILU_MUL, &g, SL_ERR_INVALID, "glu");
    cf_out(r, "streams", s.streams, 1, sizeof(values), sizeof(values), CF_BYTES, 0);
}

#define F SL_F32
#define B SL_BF16
static const cf_case cases[] = {
    {SL_OP_STREAMS_OUT, "T=5 dim=37 C=3 f32", streams_out, {5, 37, 3, F, 1}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=4 dim=300 C=4 bf16", streams_out, {4, 300, 4, B, 1}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=3 dim=64 C=16 f32", streams_out, {3, 64, 16, F, 1}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=3 dim=129 C=1 f32 head", streams_out, {3, 129, 1, F, 0}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=3 dim=260 C=4 bf16 head", streams_out, {3, 260, 4, B, 0}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=5 dim=37 C=3 f32 mixed once", streams_out, {5, 37, 3, F, 1, 1}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=4 dim=300 C=4 bf16 mixed", streams_out, {4, 300, 4, B, 1, 20}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=3 dim=65 C=16 f32 mixed", streams_out, {3, 65, 16, F, 1, 5}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=3 dim=64 C=1 f32 mixed", streams_out, {3, 64, 1, F, 1, 2}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=5 dim=37 C=3 f32 mean", streams_mean, {5, 37, 3, F}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=4 dim=300 C=4 bf16 mean", streams_mean, {4, 300, 4, B}, CF_SPLIT},
    {SL_OP_STREAMS_OUT, "T=64 dim=4096 C=4 bf16 mixed", streams_out, {64, 4096, 4, B, 1, 20}, CF_PERF_ONLY},
    {SL_OP_STREAMS_OUT, "T=64 dim=4096 C=4 bf16", streams_out, {64, 4096, 4, B, 1}, CF_PERF_ONLY},
    {SL_OP_STREAMS_ADD, "T=5 dim=37 C=3 f32", streams_add, {5, 37, 3, F, 1}, CF_SPLIT},
    {SL_OP_STREAMS_ADD, "T=4 dim=300 C=4 bf16", streams_add, {4, 300, 4, B, 1}, CF_SPLIT},
    {SL_OP_STREAMS_ADD, "T=4 dim=130 C=4 f32 copies", streams_add, {4, 130, 4, F, 0}, CF_SPLIT},
    {SL_OP_STREAMS_ADD, "T=5 dim=37 C=3 f32 mixed", streams_add, {5, 37, 3, F, 1, 1}, CF_SPLIT},
    {SL_OP_STREAMS_ADD, "T=4 dim=300 C=4 bf16 mixed", streams_add, {4, 300, 4, B, 1, 1}, CF_SPLIT},
    {SL_OP_STREAMS_ADD, "T=3 dim=65 C=16 f32 mixed", streams_add, {3, 65, 16, F, 1, 1}, CF_SPLIT},
    {SL_OP_STREAMS_ADD, "T=64 dim=4096 C=4 bf16 mixed", streams_add, {64, 4096, 4, B, 1, 1}, CF_PERF_ONLY},
    {SL_OP_STREAMS_ADD, "T=64 dim=4096 C=4 bf16", streams_add, {64, 4096, 4, B, 1}, CF_PERF_ONLY},
    {SL_OP_STREAMS_ADD, "streams and gates refused", refused, {1}, 0},
    {SL_OP_SIGMOID_MUL, "T=5 dim=37 f32", sigmoid_mul, {5, 37, 40, 44, F, 0}, CF_SPLIT},
    {SL_OP_SIGMOID_MUL, "T=4 dim=300 bf16", sigmoid_mul, {4, 300, 300, 300, B, 0}, CF_SPLIT},
    {SL_OP_SIGMOID_MUL, "T=4 dim=33 f32 of itself", sigmoid_mul, {4, 33, 33, 33, F, 1}, CF_SPLIT},
    {SL_OP_JOIN, "T=5 3+7 f32", join, {5, 3, 7, F}, CF_SPLIT},
    {SL_OP_JOIN, "T=4 384+384 bf16", join, {4, 384, 384, B}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=5 dim=300 clamped f32", glu, {5, 300, F, 1500, 0, 0}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=5 dim=300 clamped bf16", glu, {5, 300, B, 10000, 0, 0}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=5 dim=300 swigluoai f32", glu, {5, 300, F, 7000, 1702, 1000}, CF_SPLIT},
    {SL_OP_SILU_MUL, "T=5 dim=300 swigluoai bf16", glu, {5, 300, B, 7000, 1702, 1000}, CF_SPLIT},
};

const cf_table cf_streams_cases = {cases, SL_COUNT(cases)};
