/* Linear layers of few outputs with float32 weights, which stay so while activations are bf16. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_ANY_DENSE_LINEAR_NARROW_H
#define SL_KERNELS_CUDA_ANY_DENSE_LINEAR_NARROW_H

#include "kernels/cuda/instance.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One layer of which sl_path_linear() gives SL_LINEAR_NARROW. Its scratch is within sl_linear_scratch(). */
sl_status sl_cuda_linear_narrow(sl_cuda *cu, const sl_linear_params *p, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
