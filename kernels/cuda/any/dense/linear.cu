/*
 * Linear layers: the path that sl_path_linear() gives is the same for every number of tokens, up to paths with the same
 * order of sums. x is quantised here where weights and activations are fp8. The plain kernel computes everything and is not
 * meant to be fast: mixed types, fp8 weights with float activations, and shapes that the library refuses. A checkpoint at
 * its native precision uses it on Hopper only for shapes that are not multiples of the tile.
 */
#include "kernels/cuda/any/dense/linear_narrow.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/sm90/dense/linear.h"
#include "kernels/scratch.h"

#define TILE_T 16
#define TILE_O 64
#define TILE_K 32
#define GROUP 128

/* Quantises x per token and 128 inputs: q [T][K] e4m3, scale [K/128][ld_scale]. The token index of the scales
 * varies fastest, because cuBLASLt requires this layout. */
__global__ static void quant_acts_kernel(const void *x, sl_dtype act, int ld_x, int k, uint8_t *q,
                                         float *scale, int ld_scale)
{
    int t = blockIdx.y, g = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int first = g * GROUP, end = min(k, first + GROUP);
    float v[GROUP / 32], amax = 0;

    sl_let_next_start();
    if (first >= k)
        return;
    for (int i = 0; i < GROUP / 32; i++) {
        int j = first + i * 32 + lane;
        v[i] = j < end ? sl_ld(x, (int64_t)t * ld_x + j, act) : 0.0f;
        amax = fmaxf(amax, fabsf(v[i]));
    }
    float s = sl_scale_act_d(sl_warp_max(amax));
    for (int i = 0; i < GROUP / 32; i++) {
        int j = first + i * 32 + lane;
        if (j < end)
            q[(int64_t)t * k + j] = sl_e4m3(v[i] / s);
    }
    if (lane == 0)
        scale[(int64_t)g * ld_scale + t] = s;
}

/*
 * The same for bf16 and whole groups of 128: 16 lanes per group, eight values per lane, U groups in flight. A
 * scale is a power of two, so its inverse is exact, and a multiplication by it equals the division.
 */
template <int U>
__global__ static void __launch_bounds__(256)
    quant_bf16_kernel(const __nv_bfloat16 *x, int ld_x, int groups, int total, uint8_t *q, float *scale,
                      int ld_scale)
{
    int first = blockIdx.x * (U * 16) + (threadIdx.x >> 4), lane = threadIdx.x & 15;
    uint4 raw[U];

    sl_let_next_start();
#pragma unroll
    for (int u = 0; u < U; u++) {
        int i = min(first + 16 * u, total - 1);
        raw[u] = *(const uint4 *)(x + (int64_t)(i / groups) * ld_x + i % groups * GROUP + lane * 8);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        int i = first + 16 * u, t = i / groups, g = i - t * groups;
        const __nv_bfloat162 *b = (const __nv_bfloat162 *)&raw[u];
        float2 v[4];
        float amax = 0;
        for (int k = 0; k < 4; k++) {
            v[k] = __bfloat1622float2(b[k]);
            amax = fmaxf(amax, fmaxf(fabsf(v[k].x), fabsf(v[k].y)));
        }
        for (int o = 8; o; o >>= 1)
            amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
        float s = sl_scale_act_d(amax), m = sl_inverse_pow2(s);
        uint32_t out[2];
        for (int k = 0; k < 2; k++)
            out[k] = sl_e4m3x4(v[2 * k].x, v[2 * k].y, v[2 * k + 1].x, v[2 * k + 1].y, m);
        if (i >= total)
            continue;
        *(uint2 *)(q + ((int64_t)i * GROUP + lane * 8)) = make_uint2(out[0], out[1]);
        if (lane == 0)
            scale[(int64_t)g * ld_scale + t] = s;
    }
}

struct plain_args {
    const void *x;
    const uint8_t *xq;
    const float *xs;
    int ld_xs;
    sl_linear_params p;
};

__device__ static float weight_at(const sl_weight &w, int64_t o, int64_t i)
{
    float v = sl_ld(w.data, o * w.in + i, w.dtype);

    return w.scale ? __fmul_rn(v, sl_multiplier(w, o, i)) : v;
}

/* out[t][o] = sum over ascending k of x * w; with quantised x per 128 inputs: acc += dot * (s_x * s_w). Multipliers of
 * groups, of which 128 inputs may have several, are in the dot. */
__global__ static void plain_kernel(plain_args a)
{
    __shared__ float xs[TILE_T][TILE_K + 1], ws[TILE_O][TILE_K + 1];
    const sl_linear_params &p = a.p;
    int o0 = blockIdx.x * TILE_O, t0 = blockIdx.y * TILE_T, o = threadIdx.x % TILE_O,
        tg = threadIdx.x / TILE_O;
    float acc[4] = {0, 0, 0, 0}, dot[4] = {0, 0, 0, 0};
    int groups = (p.w.in + GROUP - 1) / GROUP;

    for (int k0 = 0; k0 < p.w.in; k0 += TILE_K) {
        for (int i = threadIdx.x; i < TILE_T * TILE_K; i += 256) {
            int t = t0 + i / TILE_K, k = k0 + i % TILE_K;
            bool in = t < p.tokens && k < p.w.in;
            xs[i / TILE_K][i % TILE_K] = !in    ? 0.0f
                                         : a.xq ? sl_e4m3f(a.xq[(int64_t)t * p.w.in + k])
                                                : sl_ld(a.x, (int64_t)t * p.ld_x + k, p.act);
        }
        for (int i = threadIdx.x; i < TILE_O * TILE_K; i += 256) {
            int oo = o0 + i / TILE_K, k = k0 + i % TILE_K;
            bool in = oo < p.w.out && k < p.w.in;
            ws[i / TILE_K][i % TILE_K] = !in ? 0.0f
                                         : a.xq && !p.w.group
                                             ? sl_ld(p.w.data, (int64_t)oo * p.w.in + k, p.w.dtype)
                                             : weight_at(p.w, oo, k);
        }
        __syncthreads();
        for (int k = 0; k < TILE_K; k++)
            for (int j = 0; j < 4; j++)
                dot[j] = fmaf(xs[tg * 4 + j][k], ws[o][k], dot[j]);
        __syncthreads();
        if (a.xq && ((k0 + TILE_K) % GROUP == 0 || k0 + TILE_K >= p.w.in) && o0 + o < p.w.out)
            for (int j = 0; j < 4; j++) {
                int t = min(t0 + tg * 4 + j, p.tokens - 1), g = k0 / GROUP;
                acc[j] = fmaf(dot[j],
                              __fmul_rn(a.xs[(int64_t)g * a.ld_xs + t],
                                        p.w.group ? 1.0f : p.w.scale[(o0 + o) / GROUP * groups + g]),
                              acc[j]);
                dot[j] = 0;
            }
    }
    for (int j = 0; j < 4; j++) {
        int t = t0 + tg * 4 + j;
        if (t < p.tokens && o0 + o < p.w.out)
            sl_st(p.out, (int64_t)t * p.ld_out + o0 + o, a.xq ? acc[j] : dot[j], p.out_dtype);
    }
}

/* Scratch: q [padded][in] | scale [groups][padded] | out [padded][out] bf16. The last part exists only when the
 * library is called with padded tokens. */
static sl_status quantise(sl_cuda *cu, const sl_linear_params *p, bool library, int padded, uint8_t **q,
                          float **scale, void **padded_out, sl_err *err)
{
    size_t groups = (size_t)sl_ceil_div(p->w.in, GROUP),
           q_bytes = ((size_t)padded * p->w.in + 255) / 256 * 256;
    /* + 128: a copy reads up to 128 scales at once. */
    size_t s_bytes = ((groups * padded + 128) * sizeof(float) + 255) / 256 * 256;
    void *mem;
    SL_TRY(sl_cuda_scratch(cu, sl_linear_scratch(p->tokens, p->w.in, library ? p->w.out : 0), &mem, err));
    *q = (uint8_t *)mem;
    *scale = (float *)((uint8_t *)mem + q_bytes);
    *padded_out = (uint8_t *)mem + q_bytes + s_bytes;
    int total = (int)groups * p->tokens;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)p->x;
    if (p->act != SL_BF16 || p->w.in % GROUP || p->ld_x % 8)
        SL_TRY(SL_LAUNCH(cu, quant_acts_kernel, (sl_launch{dim3(sl_ceil_div(groups, 4), p->tokens), 128}),
                         err, p->x, p->act, p->ld_x, p->w.in, *q, *scale, padded));
    else if (total < 64 * cu->sms)
        SL_TRY(SL_LAUNCH(cu, quant_bf16_kernel<1>, (sl_launch{dim3(sl_ceil_div(total, 16)), 256}), err, x,
                         p->ld_x, (int)groups, total, *q, *scale, padded));
    else
        SL_TRY(SL_LAUNCH(cu, quant_bf16_kernel<4>, (sl_launch{dim3(sl_ceil_div(total, 64)), 256}), err, x,
                         p->ld_x, (int)groups, total, *q, *scale, padded));
    return SL_OK;
}

/*
 * fp8 x fp8 through cuBLASLt, which requires a multiple of 4 tokens. The tokens that are missing to the next
 * multiple are whatever scratch contains (the sum of a token does not depend on other tokens), and only the rows
 * that exist are copied to the output.
 */
static sl_status run_block_scaled(sl_cuda *cu, const sl_linear_params *p, sl_cuda_gemm g, int padded,
                                  const uint8_t *q, const float *scale, void *padded_out, sl_err *err)
{
    g.b = q, g.b_scale = scale, g.n = padded;
    if (padded != p->tokens)
        g.d = padded_out, g.ldd = p->w.out;
    SL_TRY(sl_cuda_gemm_run(cu, &g, err));
    if (padded == p->tokens)
        return SL_OK;
    return SL_CU(cudaMemcpy2DAsync(p->out, (size_t)p->ld_out * 2, padded_out, (size_t)p->w.out * 2,
                                   (size_t)p->w.out * 2, p->tokens, cudaMemcpyDeviceToDevice, cu->stream),
                 err);
}

static sl_status run_plain(sl_cuda *cu, const sl_linear_params *p, const uint8_t *q, const float *scale,
                           int ld_scale, sl_err *err)
{
    plain_args a = {p->x, q, scale, ld_scale, *p};

    return SL_LAUNCH(cu, plain_kernel,
                     (sl_launch{dim3(sl_ceil_div(p->w.out, TILE_O), sl_ceil_div(p->tokens, TILE_T)), 256}),
                     err, a);
}

/* The product as the library sees it. f8: the quantised x is not known yet. */
static sl_cuda_gemm product_of(const sl_linear_params *p, bool f8)
{
    sl_cuda_gemm g = {};

    g.a = p->w.data, g.b = p->x, g.d = p->out;
    g.lda = p->w.in, g.ldb = f8 ? p->w.in : p->ld_x, g.ldd = p->ld_out;
    g.m = p->w.out, g.n = p->tokens, g.k = p->w.in, g.batch = 1, g.a_transposed = true;
    g.in = f8 ? SL_F8_E4M3 : p->act, g.out = p->out_dtype;
    g.a_scale = f8 ? p->w.scale : NULL;
    return g;
}

/*
 * The path of one layer. Where the library has no algorithm for a weight, which does not depend on the number of tokens
 * (lt.c), another path takes its place, again for any number of tokens: the own kernel with the same order of sums, or the
 * plain one.
 */
static sl_linear_path path_of(sl_cuda *cu, const sl_linear_params *p, const sl_cuda_gemm *g)
{
    sl_linear_path path = sl_path_linear(&cu->gpu, p);

    if (path != SL_LINEAR_ONE_CHAIN && path != SL_LINEAR_LIBRARY && path != SL_LINEAR_SCALED)
        return path;
    if (sl_cuda_gemm_offered(cu, g))
        return path;
    return path == SL_LINEAR_ONE_CHAIN ? SL_LINEAR_MANY : SL_LINEAR_PLAIN;
}

/* Runs one layer, or the whole chain where one launch can do it; *done receives the number of layers. */
static sl_status run_some(sl_cuda *cu, const sl_linear_params *p, int *done, sl_err *err)
{
    const bool f8 = p->fp8_acts && sl_weight_takes_e4m3(&p->w);
    const int padded = (p->tokens + 3) / 4 * 4;
    sl_cuda_gemm g = product_of(p, f8);
    const sl_linear_path path = path_of(cu, p, &g);
    uint8_t *q = NULL;
    float *scale = NULL;
    void *padded_out = NULL;

    const bool library = path == SL_LINEAR_ONE_CHAIN || path == SL_LINEAR_LIBRARY || path == SL_LINEAR_SCALED;

    *done = 1;
    if (f8)
        SL_TRY(quantise(cu, p, library, padded, &q, &scale, &padded_out, err));
    switch (path) {
    case SL_LINEAR_FEW:
    case SL_LINEAR_MANY:
        *done = sl_cuda_linear_together(cu, p);
        return sl_cuda_linear_few(cu, p, *done, q, scale, f8 ? padded : 0, err);
    case SL_LINEAR_ONE_CHAIN:
    case SL_LINEAR_LIBRARY:
    case SL_LINEAR_SCALED:
        return f8 ? run_block_scaled(cu, p, g, padded, q, scale, padded_out, err)
                  : sl_cuda_gemm_run(cu, &g, err);
    case SL_LINEAR_NARROW:
        return sl_cuda_linear_narrow(cu, p, err);
    default:
        return run_plain(cu, p, q, scale, f8 ? padded : 0, err);
    }
}

static sl_status run_linear(sl_backend *be, const void *params, sl_err *err)
{
    const sl_linear_params *p = (const sl_linear_params *)params;
    int done;

    while (p) {
        SL_TRY(run_some(sl_cuda_of(be), p, &done, err));
        for (; done > 0 && p; done--)
            p = p->next;
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_linear = {.run = run_linear};
