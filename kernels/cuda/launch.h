/* The host half of launch.cuh: what can be refused without the device's help, room for shared memory, the range of a
 * profiler, and the status of a launch. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_LAUNCH_H
#define SL_KERNELS_CUDA_LAUNCH_H

#include "kernels/cuda/instance.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name: of the kernel, for messages; x, y, z: blocks. After SL_OK, sl_cuda_launch_end() must follow. */
sl_status sl_cuda_launch_begin(sl_cuda *cu, const char *name, const void *kernel, unsigned x, unsigned y,
                               unsigned z, size_t smem, sl_err *err);
sl_status sl_cuda_launch_end(sl_cuda *cu, const char *name, cudaError_t e, sl_err *err);
/* SL_ERR_UNSUPPORTED: the device cannot run this number of blocks of a kernel, whose blocks wait for each other, at once. */
sl_status sl_cuda_resident(sl_cuda *cu, const char *name, const void *kernel, int threads, size_t smem,
                           int blocks, sl_err *err);
/* SL_OK, or a failure with the names of the op and the kernel. */
sl_status sl_cuda_launched(sl_cuda *cu, const char *name, cudaError_t e, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
