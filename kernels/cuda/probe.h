/* Whether this program has code for a GPU. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_PROBE_H
#define SL_KERNELS_CUDA_PROBE_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cudaSuccess when the driver finds code of this program for the current device; nothing is launched. */
cudaError_t sl_cuda_probe(void);

#ifdef __cplusplus
}
#endif

#endif
