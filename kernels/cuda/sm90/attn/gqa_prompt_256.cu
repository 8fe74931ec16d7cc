/* Attention of prompts (gqa_prompt.cuh), head dimension 256. */
#include "kernels/cuda/sm90/attn/gqa_prompt_kernel.cuh"

sl_status sl_cuda_gqa_prompt_256(sl_cuda *cu, const gqa_prompt_work *w, const CUtensorMap *map, sl_err *err)
{
    return gqa_prompt_launch<256>(cu, w, map, err);
}
