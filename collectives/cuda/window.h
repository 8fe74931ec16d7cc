/*
 * Opening the windows of peer.h and memory of the group, and moving rows through them. Every rank allocates its own,
 * the ranks exchange handles, and each maps those of the others. Either all ranks have all windows afterwards, or none
 * has any: then the group uses NCCL alone. Reasons for none: ranks on several hosts, GPUs that cannot reach each other,
 * containers that do not share handles, no device memory left, NCCL_P2P_DISABLE=1, or sl_comm_opts.library_only.
 *
 * Ownership: sl_cuda_windows belongs to the communicator. Threads: its thread.
 */
#ifndef SL_COLLECTIVES_CUDA_WINDOW_H
#define SL_COLLECTIVES_CUDA_WINDOW_H

#include "collectives/cuda/peer.h"

/* Memory of every rank that all ranks have mapped: sl_comm_memory(). */
typedef struct sl_cuda_shared {
    uint8_t *at[SL_COMM_RANKS_MAX]; /* as this rank sees them */
    size_t bytes;                   /* 0: there is none */
    int32_t rank, ranks;
} sl_cuda_shared;

typedef struct sl_cuda_windows {
    sl_peer_view view;
    bool open;
    sl_cuda_shared shared[SL_COMM_MEMORIES];
    int32_t n_shared;
} sl_cuda_windows;

/* Gathers `bytes` of host memory from every rank into dst [ranks][bytes]; complete when it returns. */
typedef sl_status (*sl_cuda_gather_fn)(void *ctx, const void *src, void *dst, size_t bytes, sl_err *err);

/* SL_OK also when there will be no windows: see w->open. An error is one of gather. */
sl_status sl_cuda_windows_open(const sl_comm_opts *o, sl_cuda_gather_fn gather, void *ctx, sl_cuda_windows *w,
                               sl_err *err);
/* A zeroed struct is fine. No exchange may be in flight. */
void sl_cuda_windows_close(sl_cuda_windows *w);

/* sl_comm_memory(). *out: NULL if there is none. An error is one of gather. */
sl_status sl_cuda_windows_memory(sl_cuda_windows *w, const sl_comm_opts *o, size_t bytes,
                                 sl_cuda_gather_fn gather, void *ctx, void **out, sl_err *err);
/* sl_comm_at(). */
void *sl_cuda_windows_at(const sl_cuda_windows *w, const void *own, int32_t r);
/* Enqueues an exchange into memory of the group or through the windows; *moved is false if NCCL must move the rows. The same
 * on all ranks. */
sl_status sl_cuda_windows_move(sl_cuda *cu, const sl_cuda_windows *w, const sl_comm_rows *p, bool *moved,
                               sl_err *err);

#endif
