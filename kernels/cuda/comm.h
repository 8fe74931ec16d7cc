/* The collectives of the CUDA backend, as its other files see them. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_COMM_H
#define SL_KERNELS_CUDA_COMM_H

#include "kernels/comm_impl.h"
#include "kernels/cuda/cuda_impl.h"

typedef struct sl_cuda_comm sl_cuda_comm;

extern const sl_comm_desc sl_comm_nccl;

/* The device's count of sl_comm_stats.wait_ns: the words between sl_cuda_counts and SL_CUDA_MEET. */
#define SL_CUDA_WAITED (SL_CUDA_COUNTS + (int)(sizeof(sl_cuda_counts) / sizeof(uint32_t)))
#ifndef __cplusplus
_Static_assert(SL_CUDA_WAITED + 2 <= SL_CUDA_MEET, "the count of waiting fits before the barrier");
#endif

static inline uint64_t *sl_cuda_waited_of(const sl_cuda *cu)
{
    return (uint64_t *)(void *)(cu->words + SL_CUDA_WAITED);
}

/* Waits for the selected stream as cudaStreamSynchronize() does, but ends when the group breaks or the deadline passes:
 * then everything in flight is stopped, and the status says why. */
sl_status sl_cuda_comm_wait(sl_cuda_comm *c, sl_err *err);
/* Adds what the device counted since `seen` to the statistics of the group. */
void sl_cuda_comm_count(sl_cuda_comm *c, const sl_cuda_counts *now, const sl_cuda_counts *seen);

#endif
