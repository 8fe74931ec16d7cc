/*
 * Routed experts: the choice of the path (moe_grouped.cu, moe_few.cu), and the plain path. In the
 * plain path every (token, choice) pair computes its own expert, so that no result depends on which tokens share
 * an expert. It has three launches: gate and up with their product, down, and the weighted sum in ascending
 * expert order. One warp computes one output. It accepts every dtype; fp8 activations are quantised per 128
 * inputs as in linear.cu. The experts' descriptors are copied to the device once per model layer and kept.
 */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/any/experts/moe_run.h"

#define GROUP 128
#define WARPS 8

struct moe_args {
    sl_moe_params p;
    const sl_weight *gate, *up, *down;
    float *mid, *res;   /* [pairs][inter], [pairs][hidden] */
    int64_t row_bytes;  /* from one row of p.x to the next one */
    int64_t row_scales; /* rows that arrived quantised: where their scales are; 0: rows of p.act */
};

/* Dot product of a weight row with x[n] (float32 in shared memory); quantised: acc += dot * (s_x * s_w) per 128
 * inputs; multipliers of a weight's own groups are in the dot.
 * All lanes of the warp must call it. */
__device__ static float row_dot(const sl_weight &w, int64_t row, const float *x, const float *xs)
{
    int lane = threadIdx.x & 31, groups = (w.in + GROUP - 1) / GROUP;
    float acc = 0;

    for (int g = 0; g < groups; g++) {
        int first = g * GROUP, end = min(w.in, first + GROUP);
        float dot = 0, s = w.scale && !w.group ? w.scale[row / GROUP * groups + g] : 1.0f;
        for (int i = first + lane; i < end; i += 32) {
            float v = sl_ld(w.data, row * w.in + i, w.dtype);
            if (w.group)
                v = __fmul_rn(v, sl_multiplier(w, row, i));
            dot = fmaf(x[i], xs || !w.scale || w.group ? v : __fmul_rn(v, s), dot);
        }
        acc = xs ? fmaf(sl_warp_sum(dot), __fmul_rn(xs[g], s), acc) : acc + dot;
    }
    return xs ? acc : sl_warp_sum(acc);
}

/* sl_weight_takes_e4m3() on the device. */
__device__ static bool takes_e4m3(const sl_weight &w)
{
    return !w.acts_as_given && (w.dtype == SL_F8_E4M3 || w.dtype == SL_I4 || w.dtype == SL_F4_E2M1);
}

/* Quantises x[n] per group: x receives the e4m3 values, xs the scales of the groups. */
__device__ static void quantise(float *x, float *xs, int n)
{
    int lane = threadIdx.x & 31;

    for (int g = threadIdx.x >> 5; g * GROUP < n; g += WARPS) {
        int first = g * GROUP, end = min(n, first + GROUP);
        float amax = 0;
        for (int i = first + lane; i < end; i += 32)
            amax = fmaxf(amax, fabsf(x[i]));
        float s = sl_scale_act_d(sl_warp_max(amax));
        for (int i = first + lane; i < end; i += 32)
            x[i] = sl_e4m3f(sl_e4m3(x[i] / s));
        if (lane == 0)
            xs[g] = s;
    }
    __syncthreads();
}

/* x[n] of one token; quantised (then xs receives the scales) if it arrived so. */
__device__ static void load_row(const moe_args &a, int64_t t, float *x, float *xs)
{
    const uint8_t *row = (const uint8_t *)a.p.x + t * a.row_bytes;

    for (int i = threadIdx.x; i < a.p.hidden; i += blockDim.x)
        x[i] = sl_ld(row, i, a.row_scales ? SL_F8_E4M3 : a.p.act);
    for (int g = threadIdx.x; a.row_scales && g * GROUP < a.p.hidden; g += blockDim.x)
        xs[g] = ((const float *)(row + a.row_scales))[g];
    __syncthreads();
}

/* Where only one of gate and up is F8, the other one reads the row before it is quantised: its product goes to mid, at the
 * outputs of this warp. */
__device__ static void plain_product(const moe_args &a, const sl_weight &w, const float *x, float *mid)
{
    for (int o = blockIdx.y * WARPS + (threadIdx.x >> 5); o < a.p.inter; o += gridDim.y * WARPS) {
        float v = sl_actr(row_dot(w, o, x, NULL), a.p.act);
        if ((threadIdx.x & 31) == 0)
            mid[o] = v;
    }
    __syncthreads(); /* all warps have read x */
}

__global__ static void gate_up_kernel(moe_args a, uint32_t *deverr)
{
    extern __shared__ float x[];
    int64_t pair = blockIdx.x, t = pair / a.p.top_k;
    float *xs = x + a.p.hidden;
    int e = a.p.expert_ids[pair];

    if (e < 0 || e >= a.p.experts) {
        if (e >= a.p.experts && threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_ID);
        return;
    }
    load_row(a, t, x, xs);
    bool qg = a.p.fp8_acts && takes_e4m3(a.gate[e]), qu = a.p.fp8_acts && takes_e4m3(a.up[e]);
    float *mid = a.mid + pair * a.p.inter;
    if (qg != qu)
        plain_product(a, qg ? a.up[e] : a.gate[e], x, mid);
    if ((qg || qu) && !a.row_scales)
        quantise(x, xs, a.p.hidden);
    for (int o = blockIdx.y * WARPS + (threadIdx.x >> 5); o < a.p.inter; o += gridDim.y * WARPS) {
        float g = qu && !qg ? mid[o] : sl_actr(row_dot(a.gate[e], o, x, qg ? xs : NULL), a.p.act),
              u = qg && !qu ? mid[o] : sl_actr(row_dot(a.up[e], o, x, qu ? xs : NULL), a.p.act);
        if ((threadIdx.x & 31) == 0)
            mid[o] = sl_actr(sl_glu_mul(g, u, a.p.glu), a.p.act);
    }
}

__global__ static void down_kernel(moe_args a)
{
    extern __shared__ float x[];
    int64_t pair = blockIdx.x;
    float *xs = x + a.p.inter;
    int e = a.p.expert_ids[pair];

    if (e < 0 || e >= a.p.experts)
        return;
    for (int i = threadIdx.x; i < a.p.inter; i += blockDim.x)
        x[i] = a.mid[pair * a.p.inter + i];
    __syncthreads();
    bool q = a.p.fp8_acts && takes_e4m3(a.down[e]);
    if (q)
        quantise(x, xs, a.p.inter);
    for (int o = blockIdx.y * WARPS + (threadIdx.x >> 5); o < a.p.hidden; o += gridDim.y * WARPS) {
        float v = sl_actr(row_dot(a.down[e], o, x, q ? xs : NULL), a.p.act);
        if ((threadIdx.x & 31) == 0)
            a.res[pair * a.p.hidden + o] = v;
    }
}

__global__ static void sum_kernel(moe_args a)
{
    int64_t t = blockIdx.x;

    for (int o = threadIdx.x; o < a.p.hidden; o += blockDim.x) {
        float acc = 0;
        for (int k = 0; k < a.p.top_k; k++) {
            int64_t pair = t * a.p.top_k + k;
            int e = a.p.expert_ids[pair];
            if (e >= 0 && e < a.p.experts)
                acc = __fadd_rn(acc, __fmul_rn(a.p.weights[pair], a.res[pair * a.p.hidden + o]));
        }
        sl_st(a.p.out, t * a.p.hidden + o, acc, a.p.act);
    }
}

static sl_status plain(sl_cuda *cu, const moe_args &a, sl_err *err)
{
    const sl_moe_params *p = &a.p;
    int64_t pairs = (int64_t)p->tokens * p->top_k;
    size_t smem_h = (size_t)(p->hidden + sl_ceil_div(p->hidden, GROUP)) * 4,
           smem_i = (size_t)(p->inter + sl_ceil_div(p->inter, GROUP)) * 4;

    SL_TRY(SL_LAUNCH(cu, gate_up_kernel,
                     (sl_launch{dim3(pairs, min(sl_ceil_div(p->inter, WARPS), 32)), 32 * WARPS, smem_h}), err,
                     a, cu->deverr));
    return SL_LAUNCH(cu, down_kernel,
                     (sl_launch{dim3(pairs, min(sl_ceil_div(p->hidden, WARPS), 32)), 32 * WARPS, smem_i}),
                     err, a);
}

/* The path with float32 results. */
static sl_status run_floats(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    moe_args a = {};
    void *none;

    SL_TRY(sl_cuda_table(cu, p->gate, p->experts, &a.gate, err));
    SL_TRY(sl_cuda_table(cu, p->up, p->experts, &a.up, err));
    SL_TRY(sl_cuda_table(cu, p->down, p->experts, &a.down, err));
    SL_TRY(sl_moe_begin(cu, r, true, 0, &none, err));
    a.p = *p, a.mid = r->mid, a.res = r->res;
    a.row_bytes = r->arrived.recv ? r->arrived.row.bytes : p->hidden * (int64_t)sl_dtype_size(p->act);
    a.row_scales = r->arrived.quantised ? r->arrived.row.scales : 0;
    SL_TRY(plain(cu, a, err));
    if (r->arrived.recv)
        return sl_moe_send(cu, r, err);
    return SL_LAUNCH(cu, sum_kernel, (sl_launch{dim3(p->tokens), 256}), err, a);
}

sl_status sl_moe_products(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    r->p.glu = sl_glu_full(r->p.glu);
    const bool quantised = r->p.fp8_acts && (!r->arrived.recv || r->arrived.quantised);

    switch (sl_path_moe(&cu->gpu, &r->p, r->arrived.recv ? r->arrived.cap : r->p.tokens, quantised)) {
    case SL_MOE_FEW:
        return sl_cuda_moe_few(cu, r, err);
    case SL_MOE_GROUPED:
    case SL_MOE_GROUPED_BF16:
        return sl_cuda_moe_grouped(cu, r, err);
    case SL_MOE_HALF:
        return sl_cuda_moe_half(cu, r, err);
    default:
        return run_floats(cu, r, err);
    }
}

static sl_status run_moe(sl_backend *be, const void *params, sl_err *err)
{
    const sl_moe_params *p = (const sl_moe_params *)params;
    sl_moe_run r = {*p};
    size_t need = (size_t)p->tokens * p->top_k * ((size_t)p->inter + p->hidden) * 4;

    if (need > p->workspace_bytes)
        return sl_fail(err, SL_ERR_INVALID, "cuda: moe: workspace of %zu bytes, %zu needed",
                       p->workspace_bytes, need);
    return sl_moe_products(sl_cuda_of(be), &r, err);
}

const sl_op_impl sl_cuda_moe = {.run = run_moe};
