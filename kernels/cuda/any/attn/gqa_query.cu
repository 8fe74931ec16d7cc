/*
 * Queries of grouped-query attention: bias, norm and RoPE of each head. One warp per head of a token. The whole head is
 * in shared memory before its first value is written, so the result may take the place of the input.
 */
#include "kernels/cuda/any/attn/gqa_head.cuh"

__global__ static void __launch_bounds__(32 * SL_GQA_WARPS) gqa_query_kernel(sl_gqa_query_params p)
{
    extern __shared__ __align__(16) float heads[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t i = (int64_t)blockIdx.x * SL_GQA_WARPS + warp, all = (int64_t)p.tokens * p.heads;
    float *v = heads + (int64_t)warp * p.dim;

    if (i >= all)
        return;
    sl_gqa_head(p.head, p.q + i * p.dim, (int)(i % p.heads), p.dim, p.pos[i / p.heads], p.act, v);
    for (int j = lane; j < p.dim; j += 32)
        p.out[i * p.dim + j] = v[j];
}

static sl_status run_gqa_query(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gqa_query_params *p = (const sl_gqa_query_params *)params;
    size_t smem = sizeof(float) * SL_GQA_WARPS * (size_t)p->dim;
    int blocks = sl_ceil_div((int64_t)p->tokens * p->heads, SL_GQA_WARPS);

    if (blocks > 0)
        SL_TRY(SL_LAUNCH(sl_cuda_of(be), gqa_query_kernel,
                         (sl_launch{blocks, (int)(32 * SL_GQA_WARPS), smem}), err, *p));
    return SL_OK;
}

const sl_op_impl sl_cuda_gqa_query = {.run = run_gqa_query};
