/* Linear layers in the pipeline of pipeline.cuh. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_SM90_DENSE_LINEAR_H
#define SL_KERNELS_CUDA_SM90_DENSE_LINEAR_H

#include "kernels/cuda/instance.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How many layers of the chain, from p on, can be one launch: the whole chain, or 1. p fits. */
int sl_cuda_linear_together(const sl_cuda *cu, const sl_linear_params *p);
/* Runs the first n layers of the chain, of which sl_path_linear() gives SL_LINEAR_FEW or SL_LINEAR_MANY: fp8 with xq [T][in]
 * and xs [in / 128][ld_xs], after which 64 more floats are readable; or bf16 with both NULL. linear_few.cu */
sl_status sl_cuda_linear_few(sl_cuda *cu, const sl_linear_params *p, int n, const uint8_t *xq,
                             const float *xs, int ld_xs, sl_err *err);
/* The same for many tokens, with the same bits; chunk: groups of 128 bytes of k per range. linear_many.cu */
sl_status sl_cuda_linear_many(sl_cuda *cu, const sl_linear_params *p, int n, const uint8_t *xq,
                              const float *xs, int ld_xs, int chunk, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
