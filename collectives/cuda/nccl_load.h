/*
 * NCCL, loaded when the first group is founded or joined, so that a program without groups runs where NCCL is not
 * installed. The calls are declared by the nccl.h that the program was compiled with; the library must have the same
 * major version and be at least as new, which is what NCCL promises to keep compatible.
 *
 * NVLink multicast (NVLS) is switched off before the library is loaded: on some hosts it can put GPUs that others share
 * out of service. Threads: any; loading happens once.
 */
#ifndef SL_COLLECTIVES_CUDA_NCCL_LOAD_H
#define SL_COLLECTIVES_CUDA_NCCL_LOAD_H

#include <nccl.h>

#include "base/status.h"

typedef struct sl_nccl {
    ncclResult_t (*get_version)(int *version);
    ncclResult_t (*get_unique_id)(ncclUniqueId *id);
    ncclResult_t (*comm_init)(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
    ncclResult_t (*comm_revoke)(ncclComm_t comm, int flags);
    ncclResult_t (*comm_abort)(ncclComm_t comm);
    ncclResult_t (*comm_async_error)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*all_gather)(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream);
    ncclResult_t (*broadcast)(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*all_to_all)(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    const char *(*error_string)(ncclResult_t result);
    const char *(*last_error)(ncclComm_t comm);
} sl_nccl;

/* SL_ERR_UNSUPPORTED: libnccl.so.2 is missing, too old, or lacks a call; the message says which. */
sl_status sl_nccl_load(const sl_nccl **out, sl_err *err);
/* Of the library that runs, as in NCCL_VERSION_CODE. An error: that of sl_nccl_load(). */
sl_status sl_nccl_version(uint32_t *out, sl_err *err);

#endif
