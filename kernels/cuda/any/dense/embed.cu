/* Embedding lookup: one block per token. For an id outside the vocabulary it writes zeros and reports the error. */
#include "kernels/cuda/common.cuh"

__global__ static void embed_kernel(sl_embed_params p, uint32_t *deverr)
{
    int t = blockIdx.x, id = p.ids[t];
    bool ok = id >= 0 && id < p.vocab;

    if (!ok && threadIdx.x == 0)
        atomicOr(deverr, SL_DEVERR_ID);
    for (int i = threadIdx.x; i < p.dim; i += blockDim.x)
        sl_st(p.out, (int64_t)t * p.dim + i,
              ok ? sl_ld(p.table, (int64_t)id * p.dim + i, p.table_dtype) : 0.0f, p.act);
}

static sl_status run_embed(sl_backend *be, const void *params, sl_err *err)
{
    const sl_embed_params *p = (const sl_embed_params *)params;

    return SL_LAUNCH(sl_cuda_of(be), embed_kernel, (sl_launch{dim3(p->tokens), 256}), err, *p,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_embed = {.run = run_embed};
