/* Attention over keys and values on tensor cores (gqa_attn_tensor.cu), head dimension 256. */
#include "kernels/cuda/sm90/attn/gqa_attn_kernel.cuh"

sl_status sl_cuda_gqa_launch_256(sl_cuda *cu, const gqa_tensor_work *w, int groups, int grid, sl_err *err)
{
    return gqa_launch<256>(cu, w, groups, grid, err);
}
