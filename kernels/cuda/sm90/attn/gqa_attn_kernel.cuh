/*
 * Inside gqa_attn_64.cu, gqa_attn_128.cu and gqa_attn_256.cu, which are separate because they take long to compile: the
 * kernel of gqa_attn_tensor.cu for one head dimension, and its launch.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_KERNEL_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_KERNEL_CUH
#include "kernels/cuda/sm90/attn/gqa_attn_multiply.cuh"

template <int DIM, int GROUPS, bool FP8, bool SKIP>
__global__ static void __launch_bounds__(128 * (GROUPS + 1), 1)
    tensor_kernel(const __grid_constant__ gqa_tensor_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t smem[];
    gqa_shared *x = (gqa_shared *)(smem + gqa_size<DIM, GROUPS>::INFO);
    int wg = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);

    if (threadIdx.x == 0) {
        for (int i = 0; i < MAX_STAGES; i++) {
            sl_mbar_init(&x->full_k[i], KEY_ARRIVALS);
            sl_mbar_init(&x->full_v[i], VALUE_ARRIVALS);
            sl_mbar_init(&x->empty_k[i], 4 * GROUPS);
            sl_mbar_init(&x->empty_v[i], 4 * GROUPS);
        }
        sl_mbar_init_fence();
    }
    __syncthreads();
    if (wg == GROUPS) {
        if (GROUPS > 1)
            sl_registers_give<FETCH_REGS>();
        gqa_fetch<DIM, GROUPS, FP8>(w, smem, x);
    } else {
        if (GROUPS > 1)
            sl_registers_take<MULTIPLY_REGS>();
        gqa_multiply<DIM, GROUPS, SKIP>(w, smem, x, wg);
    }
#endif
}

template <int DIM, int GROUPS, bool FP8>
static sl_status gqa_launch_kernel(sl_cuda *cu, const gqa_tensor_work *w, int grid, sl_err *err)
{
    const int smem = gqa_size<DIM, GROUPS>::INFO + (int)sizeof(gqa_shared);
    void (*kernel)(gqa_tensor_work) = w->g.p.skip_factor > 0 ? tensor_kernel<DIM, GROUPS, FP8, true>
                                                             : tensor_kernel<DIM, GROUPS, FP8, false>;

    return SL_LAUNCH(cu, kernel, (sl_launch{grid, (int)(gqa_size<DIM, GROUPS>::THREADS), smem}), err, *w);
}

template <int DIM>
static sl_status gqa_launch(sl_cuda *cu, const gqa_tensor_work *w, int groups, int grid, sl_err *err)
{
    if (w->g.p.format == SL_ROW_GQA_BF16) /* gqa_prompt.cu has two multiplying warpgroups for these rows */
        return gqa_launch_kernel<DIM, 1, false>(cu, w, grid, err);
    return groups == 2 ? gqa_launch_kernel<DIM, 2, true>(cu, w, grid, err)
                       : gqa_launch_kernel<DIM, 1, true>(cu, w, grid, err);
}

#endif
