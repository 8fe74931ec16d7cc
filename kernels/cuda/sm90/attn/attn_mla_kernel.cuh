/*
 * Inside attn_mla.cu and attn_ring.cu: what a thread block does, by the roles of its warpgroups, and how a launch is divided.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_KERNEL_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_KERNEL_CUH
#include "kernels/cuda/sm90/attn/attn_mla_merge.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_rows.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_scores.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_values.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* E: f16 of fp8 rows, or bf16; R: rope columns; W: attn_work, or what attn_ring.cu has in its place. */
template <typename E, int R, typename W> __device__ static inline void attend(const W &w)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    cg::cluster_group cl = cg::this_cluster();
    attn_shared *x = (attn_shared *)(smem + SMEM_INFO);
    int wg = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0), item = w.parts > 1 ? blockIdx.y : blockIdx.x;
    bool some = has_rows(w, (int)blockIdx.x);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            sl_mbar_init(&x->full[i], FULL_ARRIVALS);
            for (int q = 0; q < QUARTERS; q++)
                sl_mbar_init(&x->empty[i][q], EMPTY_ARRIVALS);
            sl_mbar_init(&x->prob[i], SCORE_ARRIVALS);
            sl_mbar_init(&x->merge[i], SCORE_ARRIVALS);
        }
        x->present = some;
        sl_mbar_init_fence();
    }
    __syncthreads();
    if (wg == FETCH_GROUP) {
        sl_registers_give<FETCH_REGS>();
        if (some)
            produce<R>(sl_smem_addr(smem), w, x, E());
        if (w.p.block_need) /* this kernel may end only after the gather */
            sl_after_previous();
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else if (wg == SCORE_GROUP) {
        sl_registers_give<SCORE_REGS>();
        load_queries<E, R, 384>(smem + SMEM_Q, w, item, threadIdx.x);
        sl_fence_async();
        sl_bar_sync(BAR_QUERY, 384);
        score_blocks<E, R>(smem, w, x, some);
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else {
        sl_registers_take<VALUE_REGS>();
        load_queries<E, R, 384>(smem + SMEM_Q, w, item, threadIdx.x);
        sl_fence_async();
        sl_bar_sync(BAR_QUERY, 384);
        value_blocks<E>(smem, w, x, some);
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            cluster_merge(cl, (const float *)smem, x, w);
            /* a block must not exit before the others have read its shared memory */
            sl_cluster_sync_by_thread();
        }
    }
}
#endif

/* How many thread blocks of a cluster share an item, or 1 for one block per item: whichever needs fewer rounds. */
static int parts_for(int sms, int blocks, int items)
{
    int parts = sl_ceil_div(blocks, SPLIT), clusters;

    if (parts < 2 || parts > MAX_PARTS)
        return 1;
    /* a graphics processing cluster may have a number of SMs that parts does not divide */
    clusters = parts == 2 ? sms / 2 : sms * 9 / 10 / parts;
    return sl_ceil_div(items, clusters) * SPLIT < sl_ceil_div(items, sms) * blocks ? parts : 1;
}

#endif
