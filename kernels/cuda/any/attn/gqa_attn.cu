/* Attention over lists of keys and values (kernels/gqa.h): which path computes a call. */
#include "kernels/cuda/any/attn/gqa_attn.cuh"

static sl_status run_gqa_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gqa_attn_params *p = (const sl_gqa_attn_params *)params;

    if (p->heads / p->kv_heads > GQA_GROUP)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: gqa_attn: heads: a KV head has %d query heads, at most %d are possible",
                       p->heads / p->kv_heads, GQA_GROUP);
    switch (sl_path_gqa_attn(&sl_cuda_of(be)->gpu, p)) {
    case SL_GQA_DECODE:
        return sl_cuda_gqa_decode(sl_cuda_of(be), p, err);
    case SL_GQA_PROMPT:
        return sl_cuda_gqa_prompt(sl_cuda_of(be), p, err);
    default:
        return sl_cuda_gqa_plain(sl_cuda_of(be), p, err);
    }
}

const sl_op_impl sl_cuda_gqa_attn = {.run = run_gqa_attn};
