/* Entry points of the ops of kernels/clusters.h and kernels/codes.h, as those in instance.h. Only kernels/cuda includes it. */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_CODES_STEP_H
#define SL_KERNELS_CUDA_ANY_SELECT_CODES_STEP_H

#include "kernels/cuda/instance.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/codes.h"

/* SL_OP_CODES with `step` set: codes_step.cu. */
sl_status sl_cuda_codes_step(sl_cuda *cu, const sl_codes_params *p, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
