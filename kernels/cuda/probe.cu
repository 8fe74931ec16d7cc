/* See probe.h. The kernel is never launched: its attributes can be read where its code can be loaded. */
#include "kernels/cuda/probe.h"

#include <stdint.h>

__global__ static void probe_kernel(uint32_t *word)
{
    *word = 1;
}

cudaError_t sl_cuda_probe(void)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, probe_kernel);

    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return e;
}
