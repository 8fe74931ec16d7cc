/*
 * Parallel residual streams (hyper-connections). SL_OP_STREAMS_OUT: one thread block per token, which reads the streams twice, for
 * their mean square and for their sum; the second time they come from the caches. SL_OP_STREAMS_ADD: one grid-stride kernel.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256

/* m[n][n] of logits, by one warp: softmax of each row, then columns and rows are divided by their sums in turn. */
__device__ static void balance(float *m, int n, int iters, float eps)
{
    int i = threadIdx.x & 31;

    if (i < n) {
        float top = m[i * n], sum = 0;
        for (int j = 1; j < n; j++)
            top = fmaxf(top, m[i * n + j]);
        for (int j = 0; j < n; j++)
            sum += m[i * n + j] = expf(m[i * n + j] - top);
        for (int j = 0; j < n; j++)
            m[i * n + j] = m[i * n + j] / sum + eps;
    }
    __syncwarp();
    for (int k = 0; k < 2 * iters - 1; k++) {
        int line = k % 2 ? n : 1, step = k % 2 ? 1 : n; /* a row, or a column */
        float sum = eps;
        if (i < n) {
            float all = 0;
            for (int j = 0; j < n; j++)
                all += m[i * line + j * step];
            sum += all;
            for (int j = 0; j < n; j++)
                m[i * line + j * step] /= sum;
        }
        __syncwarp();
    }
}

__global__ static void __launch_bounds__(THREADS) streams_out_kernel(sl_streams_out_params p)
{
    __shared__ double part[THREADS / 32];
    __shared__ float pre[SL_STREAMS_MAX], comb[SL_STREAMS_MAX * SL_STREAMS_MAX], inv;
    int64_t t = blockIdx.x, all = (int64_t)p.count * p.dim;
    int gates = p.post ? 2 * p.count : p.count, lane = threadIdx.x & 31,
        square = p.comb ? p.count * p.count : 0;
    double sum = 0;

    for (int64_t i = threadIdx.x; i < all; i += THREADS) {
        double v = (double)sl_ld(p.streams, t * all + i, p.act);
        sum += v * v;
    }
    for (int o = 16; o > 0; o /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0)
        part[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double whole = 0;
        for (int i = 0; i < THREADS / 32; i++)
            whole += part[i];
        inv = (float)(1.0 / sqrt(whole / (double)all + (double)p.eps));
    }
    __syncthreads();
    if ((int)threadIdx.x < gates) {
        int k = threadIdx.x;
        bool second = k >= p.count;
        float m = __fmul_rn(p.mix[t * (gates + square) + k], inv);
        float s = sl_sigmoid(__fadd_rn(__fmul_rn(m, p.scale[second]), p.base[k]));
        if (second)
            p.post[t * p.count + k - p.count] =
                __fadd_rn(__fmul_rn(p.magnitude, s), p.comb ? 0.0f : p.hc_eps);
        else
            pre[k] = __fadd_rn(s, p.hc_eps);
    }
    for (int k = threadIdx.x; k < square; k += THREADS)
        comb[k] = __fadd_rn(__fmul_rn(__fmul_rn(p.mix[t * (gates + square) + gates + k], inv), p.scale[2]),
                            p.base[gates + k]);
    __syncthreads();
    if (square && threadIdx.x >= THREADS - 32) { /* the others go on with the sum */
        balance(comb, p.count, p.iters, p.hc_eps);
        for (int k = lane; k < square; k += 32)
            p.comb[t * square + k] = comb[k];
    }
    for (int i = threadIdx.x; i < p.dim; i += THREADS) {
        float v = 0;
        for (int k = 0; k < p.count; k++)
            v = __fadd_rn(v, __fmul_rn(pre[k], sl_ld(p.streams, t * all + (int64_t)k * p.dim + i, p.act)));
        sl_st(p.out, t * p.dim + i, v, p.act);
    }
}

__global__ static void streams_mean_kernel(sl_streams_out_params p, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = i / p.dim * p.count * p.dim + i % p.dim;
        float v = 0;
        for (int k = 0; k < p.count; k++)
            v = __fadd_rn(v, sl_ld(p.streams, at + (int64_t)k * p.dim, p.act));
        sl_st(p.out, i, v / (float)p.count, p.act);
    }
}

static sl_status run_streams_out(sl_backend *be, const void *params, sl_err *err)
{
    const sl_streams_out_params *p = (const sl_streams_out_params *)params;
    int64_t n = (int64_t)p->tokens * p->dim;

    if (!p->mix)
        return SL_LAUNCH(sl_cuda_of(be), streams_mean_kernel,
                         (sl_launch{dim3(min(sl_ceil_div(n, 256), 4096)), 256}), err, *p, n);

    return SL_LAUNCH(sl_cuda_of(be), streams_out_kernel, (sl_launch{dim3(p->tokens), THREADS}), err, *p);
}

const sl_op_impl sl_cuda_streams_out = {.run = run_streams_out};

__global__ static void streams_add_kernel(sl_streams_add_params p, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / p.dim; /* token * count + stream */
        float y = sl_ld(p.y, row / p.count * p.dim + i % p.dim, p.act);
        float v = p.post ? __fadd_rn(sl_ld(p.streams, i, p.act), __fmul_rn(p.post[row], y)) : y;
        sl_st(p.streams, i, v, p.act);
    }
}

/* A thread has one value of every stream. */
__global__ static void streams_mix_add_kernel(sl_streams_add_params p, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t t = i / p.dim, at = t * p.count * p.dim + i % p.dim;
        float x[SL_STREAMS_MAX], y = sl_ld(p.y, i, p.act);
        for (int j = 0; j < p.count; j++)
            x[j] = sl_ld(p.streams, at + (int64_t)j * p.dim, p.act);
        for (int k = 0; k < p.count; k++) {
            float v = __fmul_rn(p.post[t * p.count + k], y);
            for (int j = 0; j < p.count; j++)
                v = __fadd_rn(v, __fmul_rn(p.comb[(t * p.count + j) * p.count + k], x[j]));
            sl_st(p.streams, at + (int64_t)k * p.dim, v, p.act);
        }
    }
}

static sl_status run_streams_add(sl_backend *be, const void *params, sl_err *err)
{
    const sl_streams_add_params *p = (const sl_streams_add_params *)params;
    int64_t n = (int64_t)p->tokens * p->count * p->dim, rows = (int64_t)p->tokens * p->dim;

    if (p->comb)
        return SL_LAUNCH(sl_cuda_of(be), streams_mix_add_kernel,
                         (sl_launch{dim3(min(sl_ceil_div(rows, 256), 4096)), 256}), err, *p, rows);
    return SL_LAUNCH(sl_cuda_of(be), streams_add_kernel,
                     (sl_launch{dim3(min(sl_ceil_div(n, 256), 4096)), 256}), err, *p, n);
}

const sl_op_impl sl_cuda_streams_add = {.run = run_streams_add};

/* ---- streams_mix ---- */

__global__ static void __launch_bounds__(THREADS) streams_mix_kernel(sl_streams_mix_params p)
{
    int64_t t = blockIdx.x;
    int i = blockIdx.y * THREADS + threadIdx.x;
    float v = 0;

    if (p.post && i < p.count)
        p.post[t * p.count + i] = 2 * sl_sigmoid(p.inject[t * p.count + i] / (float)p.count);
    if (i >= p.dim)
        return;
    for (int k = 0; k < p.count; k++) {
        int64_t at = (t * p.count + k) * p.dim + i;
        v = __fadd_rn(v, __fmul_rn(sl_sigmoid(p.up[at]), sl_ld(p.normed, at, p.act)));
    }
    sl_st(p.out, t * p.dim + i, v / (float)p.count, p.act);
}

static sl_status run_streams_mix(sl_backend *be, const void *params, sl_err *err)
{
    const sl_streams_mix_params *p = (const sl_streams_mix_params *)params;
    int wide = p->dim > p->count ? p->dim : p->count;

    return SL_LAUNCH(sl_cuda_of(be), streams_mix_kernel,
                     (sl_launch{dim3((unsigned)p->tokens, (unsigned)sl_ceil_div(wide, THREADS)), THREADS}),
                     err, *p);
}

const sl_op_impl sl_cuda_streams_mix = {.run = run_streams_mix};

/* ---- unary ---- */

__global__ static void __launch_bounds__(THREADS) unary_kernel(sl_unary_params p)
{
    int64_t n = (int64_t)p.tokens * p.dim, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    float x = __fmul_rn(p.x[i], p.scale), f = sl_sigmoid(x);
    sl_st(p.out, i, p.form == SL_UNARY_SILU ? __fmul_rn(x, f) : f, p.out_dtype);
}

static sl_status run_unary(sl_backend *be, const void *params, sl_err *err)
{
    const sl_unary_params *p = (const sl_unary_params *)params;

    return SL_LAUNCH(sl_cuda_of(be), unary_kernel,
                     (sl_launch{dim3((unsigned)sl_ceil_div((int64_t)p->tokens * p->dim, THREADS)), THREADS}),
                     err, *p);
}

const sl_op_impl sl_cuda_unary = {.run = run_unary};
