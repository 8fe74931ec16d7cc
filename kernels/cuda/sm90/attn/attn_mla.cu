/*
 * Sparse MLA for lora 512, rope 64 on Hopper's tensor cores, rows in fp8 or bf16; decode and prefill.
 *
 * A work item is a token and 64 of its heads. Its list of rows is cut into parts of SPLIT blocks of 64 rows, whatever
 * the batch size; every part has its own maximum, sum and output, and the parts are merged in order. Either one thread
 * block computes all parts of an item in turn and keeps the merged output in device memory between parts, or,
 * when there are few items, the blocks of a cluster compute one part each and merge through distributed shared
 * memory. Products and merges are the same in both cases, so the bits of a token's output depend on its query,
 * its list and the bytes of its rows only.
 *
 * A thread block has four warpgroups with three roles:
 *
 *     0, 1   values   multiply probabilities with rows, each for half of the output columns   attn_mla_values.cuh
 *     2      scores   multiplies queries with rows, makes probabilities of the scores         attn_mla_scores.cuh
 *     3      fetch    brings rows into a ring of two blocks                                   attn_mla_rows.cuh
 *
 * fp8 rows are converted to f16, which is exact because their scales are powers of two; their rope columns stay
 * bf16, and so do all columns of bf16 rows. Probabilities are rounded to the type of the rows. With fp8 rows
 * magnitudes above 65504 saturate or overflow; a normalised latent does not come near.
 */
#include "kernels/cuda/sm90/attn/attn_mla_merge.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_rows.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_scores.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_values.cuh"

template <typename E>
__global__ static void __launch_bounds__(THREADS, 1) mla_kernel(const __grid_constant__ attn_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
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
            produce(sl_smem_addr(smem), w, x, E());
        if (w.p.block_need) /* this kernel may end only after the gather */
            sl_after_previous();
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else if (wg == SCORE_GROUP) {
        sl_registers_give<SCORE_REGS>();
        load_queries<E, 384>(smem + SMEM_Q, w, item, threadIdx.x);
        sl_fence_async();
        sl_bar_sync(BAR_QUERY, 384);
        score_blocks<E>(smem, w, x, some);
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else {
        sl_registers_take<VALUE_REGS>();
        load_queries<E, 384>(smem + SMEM_Q, w, item, threadIdx.x);
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
#endif
}

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

sl_status sl_cuda_attn_mla(sl_cuda *cu, const sl_sparse_attn_params *p, sl_err *err)
{
    void (*kernel)(attn_work) = p->format == SL_ROW_MLA_FP8 ? mla_kernel<__half> : mla_kernel<__nv_bfloat16>;
    attn_work w = {*p, NULL, sl_ceil_div(p->heads, HEADS), 0, 1};
    int blocks = sl_ceil_div(p->k, BLOCK), sms = cu->sms - (p->block_need ? cu->gpu.gather_sms : 0);
    void *mem;

    w.items = p->tokens * w.groups;
    w.parts = parts_for(sms, blocks, w.items);
    SL_TRY(sl_cuda_scratch(cu, sizeof(float) * PARTIAL * (size_t)cu->sms, &mem, err));
    w.partial = (float *)mem;
    /* With block_need it may start as soon as all blocks of the gather run. */
    return SL_LAUNCH(cu, kernel,
                     (sl_launch{w.parts > 1 ? dim3(w.parts, w.items) : dim3(min(w.items, sms)), THREADS,
                                SMEM_BYTES, p->block_need != NULL, w.parts}),
                     err, w);
}
