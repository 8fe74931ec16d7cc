/* The ops of windows and compressed entries: not on CUDA yet, refused by name. */
#include "kernels/cuda/common.cuh"

extern "C" {
#include "kernels/entries.h"
}

static sl_status refuse(sl_err *err, const char *op)
{
    return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: %s: windows and compressed entries run on the CPU only",
                   op);
}

#define NOT_YET(name)                                                                                        \
    static sl_status run_##name(sl_backend *, const void *, sl_err *err)                                     \
    {                                                                                                        \
        return refuse(err, #name);                                                                           \
    }                                                                                                        \
    const sl_op_impl sl_cuda_##name = {.run = run_##name, .supports = run_##name};

NOT_YET(head_rotate)
NOT_YET(entries_append)
NOT_YET(entry_scores)
NOT_YET(ring_attn)
NOT_YET(ring_store)
