/*
 * Sparse MLA for lora 512 and rope 64 or none on Hopper's tensor cores, rows in fp8 or bf16; decode and prefill.
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
#include "kernels/cuda/sm90/attn/attn_mla_kernel.cuh"

/* E: f16 of fp8 rows, or bf16; R: rope columns. */
template <typename E, int R>
__global__ static void __launch_bounds__(THREADS, 1) mla_kernel(const __grid_constant__ attn_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    attend<E, R>(w);
#endif
}

sl_status sl_cuda_attn_mla(sl_cuda *cu, const sl_sparse_attn_params *p, sl_err *err)
{
    const bool fp8 = p->format == SL_ROW_MLA_FP8;
    void (*kernel)(attn_work) = p->rope ? fp8 ? mla_kernel<__half, 64> : mla_kernel<__nv_bfloat16, 64>
                                : fp8 ? mla_kernel<__half, 0>
                                        : mla_kernel<__nv_bfloat16, 0>;
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
