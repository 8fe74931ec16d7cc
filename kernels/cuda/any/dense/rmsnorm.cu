/*
 * RMSNorm with an optional residual addition before it: one block per token, sum of squares in double as in the CPU
 * implementation. bf16 rows whose pieces are aligned are kept in registers, eight values per thread and iteration;
 * other rows are processed one value at a time.
 */
#include "kernels/cuda/common.cuh"

#define WIDE 8 /* values per piece */
#define TURNS 2

__global__ static void rmsnorm_kernel(sl_rmsnorm_params p)
{
    int64_t t = blockIdx.x, x0 = t * p.ld_x, d0 = t * p.dim;
    extern __shared__ float row[];
    double sum = 0;

    for (int i = threadIdx.x; i < p.dim; i += blockDim.x) {
        float v = sl_ld(p.x, x0 + i, p.act);
        if (p.add) {
            v = __fadd_rn(v, sl_ld(p.add, d0 + i, p.act));
            sl_st(p.x, x0 + i, v, p.act);
        }
        row[i] = v;
        sum += (double)v * v;
    }
    if (!p.out)
        return;
    sum = sl_block_sum(sum);
    float r = (float)(1.0 / sqrt(sum / p.dim + (double)p.eps));
    int64_t w0 = p.groups ? t % p.groups * p.dim : 0;
    for (int i = threadIdx.x; i < p.dim; i += blockDim.x)
        sl_st(p.out, d0 + i, __fmul_rn(__fmul_rn(row[i], r), sl_ld(p.weight, w0 + i, p.weight_dtype)), p.act);
}

/* Converts the values of a piece to float. */
__device__ static inline void unpack(uint4 raw, float (&v)[WIDE])
{
    const __nv_bfloat162 *b = (const __nv_bfloat162 *)&raw;

#pragma unroll
    for (int i = 0; i < WIDE / 2; i++) {
        float2 f = __bfloat1622float2(b[i]);
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}

__device__ static inline uint4 pack(const float (&v)[WIDE])
{
    uint4 raw;
    __nv_bfloat162 *b = (__nv_bfloat162 *)&raw;

#pragma unroll
    for (int i = 0; i < WIDE / 2; i++)
        b[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    return raw;
}

/* The row stays in registers between the sum and the scaling. */
__global__ static void __launch_bounds__(512) wide_kernel(sl_rmsnorm_params p)
{
    int64_t t = blockIdx.x;
    uint4 *x = (uint4 *)((__nv_bfloat16 *)p.x + t * p.ld_x);
    const uint4 *add = (const uint4 *)((const __nv_bfloat16 *)p.add + t * p.dim),
                *w = (const uint4 *)p.weight;
    uint4 *out = (uint4 *)((__nv_bfloat16 *)p.out + t * p.dim);
    int n = p.dim / WIDE;
    float v[TURNS][WIDE], a[WIDE];
    double sum = 0;

#pragma unroll
    for (int k = 0; k < TURNS; k++) {
        int i = k * blockDim.x + threadIdx.x;
        if (i >= n)
            break;
        unpack(x[i], v[k]);
        if (p.add) {
            unpack(add[i], a);
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                v[k][j] = __fadd_rn(v[k][j], a[j]);
            x[i] = pack(v[k]);
        }
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            sum += (double)v[k][j] * v[k][j];
    }
    if (!p.out)
        return;
    sum = sl_block_sum(sum);
    float r = (float)(1.0 / sqrt(sum / p.dim + (double)p.eps));
#pragma unroll
    for (int k = 0; k < TURNS; k++) {
        int i = k * blockDim.x + threadIdx.x;
        if (i >= n)
            break;
        unpack(w[i], a);
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            v[k][j] = __fmul_rn(__fmul_rn(v[k][j], r), a[j]);
        out[i] = pack(v[k]);
    }
}

static sl_status run_rmsnorm(sl_backend *be, const void *params, sl_err *err)
{
    const sl_rmsnorm_params *p = (const sl_rmsnorm_params *)params;
    size_t smem = (size_t)p->dim * sizeof(float);

    if (smem > 48 * 1024)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: rmsnorm: dim %d exceeds 12288", p->dim);
    if (sl_path_rmsnorm(p) == SL_NORM_WIDE) {
        int threads = min(512, (sl_ceil_div(p->dim, WIDE * TURNS) + 31) / 32 * 32);
        return SL_LAUNCH(sl_cuda_of(be), wide_kernel, (sl_launch{dim3(p->tokens), threads}), err, *p);
    }
    return SL_LAUNCH(sl_cuda_of(be), rmsnorm_kernel,
                     (sl_launch{dim3(p->tokens), (int)(p->dim >= 2048 ? 512 : 128), smem}), err, *p);
}

const sl_op_impl sl_cuda_rmsnorm = {.run = run_rmsnorm};
