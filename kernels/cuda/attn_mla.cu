/*
 * Sparse MLA for lora 512, rope 64 on Hopper's tensor cores, rows in fp8 or bf16; decode and prefill.
 *
 * Work items are (token, 64 heads). A list is cut every SPLIT blocks of 64 rows, whatever the batch; each
 * part gets its own maximum, sum and output, and parts are merged one after the other. One thread block does
 * all parts of an item in turn (the merged output waits in device memory meanwhile), or, when there are few
 * items, a cluster does them side by side and merges over distributed shared memory: same products, same
 * merges, same bits. So a token's bits depend on its query, its list and its rows' bytes only.
 *
 * A thread block is four warpgroups: two hold half of the output columns each and multiply probabilities with
 * rows; one multiplies queries with rows and makes probabilities of the scores; one fetches rows into a ring
 * of two blocks. fp8 rows become f16, exactly, as scales are powers of two; their rope columns stay bf16 and
 * so does everything of bf16 rows. Probabilities are rounded to the type of the rows. Magnitudes beyond 65504
 * saturate or overflow with fp8 rows; a normalised latent does not come near.
 */
#include "kernels/cuda/attn_mla_cluster.cuh"
#include "kernels/cuda/attn_mla_rows.cuh"
#include "kernels/cuda/attn_mla_scores.cuh"
#include "kernels/cuda/attn_mla_values.cuh"

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
            sl_mbar_init(&x->full[i], 128 + 4);
            for (int q = 0; q < QUARTERS; q++)
                sl_mbar_init(&x->empty[i][q], 8);
            sl_mbar_init(&x->prob[i], 4);
            sl_mbar_init(&x->merge[i], 4);
        }
        x->present = some;
        sl_mbar_init_fence();
    }
    __syncthreads();
    if (wg == 3) {
        sl_registers_give<FETCH_REGS>();
        if (some)
            produce(sl_smem_addr(smem), w, x, E());
        if (w.p.block_need) /* our end is the gather's end, too */
            sl_after_previous();
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else if (wg == 2) {
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
            sl_cluster_sync_by_thread(); /* a block's shared memory stays until the others have read it */
        }
    }
#endif
}

bool sl_cuda_attn_mla_fits(const sl_cuda *cu, const sl_sparse_attn_params *p)
{
    return cu->cc == 90 && p->lora == LORA && p->rope == WIDTH - LORA && p->format != SL_ROW_MLA_F32 &&
           p->rows.row_bytes % 16 == 0 &&
           ((uintptr_t)p->rows.base | (uintptr_t)p->ql | (uintptr_t)p->o) % 16 == 0;
}

/* Thread blocks of a cluster for an item, or 1: whichever needs fewer rounds of blocks. */
static int parts_for(int sms, int blocks, int items)
{
    int parts = sl_ceil_div(blocks, SPLIT), clusters;

    if (parts < 2 || parts > MAX_PARTS)
        return 1;
    clusters = parts == 2 ? sms / 2 : sms * 9 / 10 / parts; /* not every processing cluster divides evenly */
    return sl_ceil_div(items, clusters) * SPLIT < sl_ceil_div(items, sms) * blocks ? parts : 1;
}

sl_status sl_cuda_attn_mla(sl_cuda *cu, const sl_sparse_attn_params *p, sl_err *err)
{
    void (*kernel)(attn_work) = p->format == SL_ROW_MLA_FP8 ? mla_kernel<__half> : mla_kernel<__nv_bfloat16>;
    attn_work w = {*p, NULL, sl_ceil_div(p->heads, HEADS), 0, 1};
    int blocks = sl_ceil_div(p->k, BLOCK), sms = cu->sms - (p->block_need ? SL_CUDA_GATHER_SMS : 0);
    cudaLaunchAttribute at[2];
    cudaLaunchConfig_t cfg = {};
    void *mem;
    sl_status st =
        SL_CU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES), err);

    w.items = p->tokens * w.groups;
    w.parts = parts_for(sms, blocks, w.items);
    cfg.gridDim = w.parts > 1 ? dim3(w.parts, w.items) : dim3(min(w.items, sms));
    if (st == SL_OK)
        st = sl_cuda_scratch(cu, sizeof(float) * PARTIAL * (size_t)cu->sms, &mem, err);
    if (st != SL_OK)
        return st;
    w.partial = (float *)mem;
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = w.parts, at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization; /* starts when the gather's blocks have */
    at[1].val.programmaticStreamSerializationAllowed = 1;
    cfg.blockDim = dim3(THREADS), cfg.dynamicSmemBytes = SMEM_BYTES, cfg.stream = cu->stream;
    cfg.attrs = at, cfg.numAttrs = p->block_need ? 2 : 1;
    return SL_CU(cudaLaunchKernelEx(&cfg, kernel, w), err);
}
