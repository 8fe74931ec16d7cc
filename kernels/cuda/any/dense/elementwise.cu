/* The small element-wise ops: add, pick, join, silu_mul, sigmoid_mul. The time is memory traffic and launch overhead; each is one
 * grid-stride kernel. */
#include "kernels/cuda/common.cuh"

__global__ static void add_kernel(sl_add_params p, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        sl_st(p.x, i, __fadd_rn(sl_ld(p.x, i, p.act), sl_ld(p.y, i, p.act)), p.act);
}

static sl_status run_add(sl_backend *be, const void *params, sl_err *err)
{
    const sl_add_params *p = (const sl_add_params *)params;
    int64_t n = (int64_t)p->tokens * p->dim;

    return SL_LAUNCH(sl_cuda_of(be), add_kernel, (sl_launch{dim3(min(sl_ceil_div(n, 256), 4096)), 256}), err,
                     *p, n);
}

const sl_op_impl sl_cuda_add = {.run = run_add};

__global__ static void pick_kernel(sl_pick_params p, uint32_t *deverr)
{
    int i = blockIdx.x, row = p.rows[i];

    if (row < 0 && threadIdx.x == 0)
        atomicOr(deverr, SL_DEVERR_ID);
    for (int j = threadIdx.x; j < p.dim; j += blockDim.x)
        sl_st(p.out, (int64_t)i * p.dim + j, row < 0 ? 0.0f : sl_ld(p.x, (int64_t)row * p.dim + j, p.act),
              p.act);
}

static sl_status run_pick(sl_backend *be, const void *params, sl_err *err)
{
    const sl_pick_params *p = (const sl_pick_params *)params;

    return SL_LAUNCH(sl_cuda_of(be), pick_kernel, (sl_launch{dim3(p->n), 256}), err, *p,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_pick = {.run = run_pick};

__global__ static void silu_mul_kernel(sl_silu_mul_params p)
{
    int64_t t = blockIdx.x;

    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.dim; i += gridDim.y * blockDim.x) {
        float g = sl_ld(p.gate, t * p.ld_in + i, p.act), u = sl_ld(p.up, t * p.ld_in + i, p.act);
        sl_st(p.out, t * p.ld_out + i, sl_glu_mul(g, u, p.glu), p.act);
    }
}

static sl_status run_silu_mul(sl_backend *be, const void *params, sl_err *err)
{
    const sl_silu_mul_params *p = (const sl_silu_mul_params *)params;
    sl_silu_mul_params full = *p;

    full.glu = sl_glu_full(p->glu);
    return SL_LAUNCH(sl_cuda_of(be), silu_mul_kernel,
                     (sl_launch{dim3(p->tokens, min(sl_ceil_div(p->dim, 256), 64)), 256}), err, full);
}

const sl_op_impl sl_cuda_silu_mul = {.run = run_silu_mul};

__global__ static void sigmoid_mul_kernel(sl_sigmoid_mul_params p)
{
    int64_t t = blockIdx.x;

    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.dim; i += gridDim.y * blockDim.x) {
        float g = sl_ld(p.gate, t * p.ld_gate + i, p.act), x = sl_ld(p.x, t * p.ld_x + i, p.act);
        sl_st(p.x, t * p.ld_x + i, __fmul_rn(x, sl_sigmoid(g)), p.act);
    }
}

static sl_status run_sigmoid_mul(sl_backend *be, const void *params, sl_err *err)
{
    const sl_sigmoid_mul_params *p = (const sl_sigmoid_mul_params *)params;

    return SL_LAUNCH(sl_cuda_of(be), sigmoid_mul_kernel,
                     (sl_launch{dim3(p->tokens, min(sl_ceil_div(p->dim, 256), 64)), 256}), err, *p);
}

const sl_op_impl sl_cuda_sigmoid_mul = {.run = run_sigmoid_mul};

__global__ static void join_kernel(sl_join_params p)
{
    int64_t t = blockIdx.x;
    int dim = p.dim_a + p.dim_b;

    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < dim; i += gridDim.y * blockDim.x)
        sl_st(p.out, t * dim + i,
              i < p.dim_a ? sl_ld(p.a, t * p.dim_a + i, p.act) : sl_ld(p.b, t * p.dim_b + i - p.dim_a, p.act),
              p.act);
}

static sl_status run_join(sl_backend *be, const void *params, sl_err *err)
{
    const sl_join_params *p = (const sl_join_params *)params;

    return SL_LAUNCH(sl_cuda_of(be), join_kernel,
                     (sl_launch{dim3(p->tokens, min(sl_ceil_div(p->dim_a + p->dim_b, 256), 64)), 256}), err,
                     *p);
}

const sl_op_impl sl_cuda_join = {.run = run_join};
