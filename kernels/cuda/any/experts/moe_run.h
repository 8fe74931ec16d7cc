/*
 * Routed experts as their paths see them: the run of SL_OP_MOE, or of SL_OP_EP_EXPERTS, whose rows other ranks of a
 * group sent. Internal to kernels/cuda.
 *
 * The bits of both are equal: an expert's result of a row does not depend on the other rows, the path is chosen by
 * dtypes and dimensions (the two fp8 paths that are chosen by the number of rows give the same bits), and a row that
 * arrives quantised has the values that the path would have computed. All experts of a layer have the same dtypes, on
 * every rank: sl_op_check() requires it of those that it sees, and the model of all.
 *
 * A run of rows that arrived works on places: place i is row i % cap of the block from rank i / cap. How many of them
 * are rows is known on the device only, so launches are sized by the capacity, and the choices of other places are -1.
 */
#ifndef SL_KERNELS_CUDA_ANY_EXPERTS_MOE_RUN_H
#define SL_KERNELS_CUDA_ANY_EXPERTS_MOE_RUN_H

#include "kernels/cuda/maps.h"

/* Where results go when their blocks are not in send: sl_ep_experts_params.to. A parameter of kernels. */
typedef struct sl_moe_to {
    uint8_t *block[SL_EP_TO_RANKS];
    int32_t rows; /* of a block; 0: the results are in send */
} sl_moe_to;

/* Rows of other ranks and what becomes of them; a parameter of kernels. */
typedef struct sl_moe_arrived {
    const uint8_t *recv; /* [ranks][cap][row.bytes]; NULL: SL_OP_MOE */
    const int32_t *count;
    uint8_t *send; /* [ranks][cap * top_k][result_bytes] */
    int32_t *send_count;
    int32_t *ids,
        *result; /* [places][top_k] in scratch: expert or -1; the choice's result among all of send */
    sl_ep_row row;
    int64_t result_bytes;
    sl_moe_to to;
    int32_t ranks, cap, top_k, hidden, experts;
    bool quantised;
    bool sort_lists; /* the kernel that sorts the choices lists them too (moe_list.cuh); sl_moe_begin() */
    sl_dtype act;
    sl_cuda_counts *counts; /* rows and busiest, or NULL */
} sl_moe_arrived;

typedef struct sl_moe_run {
    /* of SL_OP_MOE. With rows that arrived: tokens are the places, x is recv, out and workspace are send, experts are
     * those of this rank. expert_ids is set by sl_moe_begin(). */
    sl_moe_params p;
    sl_moe_arrived arrived;
    float *mid, *res; /* of the paths with float32 results: [pairs][inter], [pairs][hidden]; sl_moe_begin() */
} sl_moe_run;

#ifdef __CUDACC__
/* The place of result i, of all that are sent. */
__device__ static inline uint8_t *sl_moe_result_at(const sl_moe_to &to, uint8_t *send, int32_t i,
                                                   int64_t bytes)
{
    if (to.rows == 0)
        return send + i * bytes;
    return to.block[i / to.rows] + i % to.rows * bytes;
}
#endif

/* Runs the path that fits; for SL_OP_MOE the sum over the experts too. */
sl_status sl_moe_products(sl_cuda *cu, sl_moe_run *r, sl_err *err);

/*
 * What every path calls first: `bytes` of scratch, which end with the run. For rows that arrived it sets p.expert_ids,
 * and enqueues the kernel that lists their choices unless it sets arrived.sort_lists. floats: the path stores its
 * results in r->res; it does not list.
 */
sl_status sl_moe_begin(sl_cuda *cu, sl_moe_run *r, bool floats, size_t bytes, void **mem, sl_err *err);
/* Rows that arrived: copies r->res to where the results are sent from. ep_experts.cu */
sl_status sl_moe_send(sl_cuda *cu, const sl_moe_run *r, sl_err *err);

/* The fast paths of sl_path_moe(): moe_few.cu and moe_grouped.cu. */
sl_status sl_cuda_moe_few(sl_cuda *cu, sl_moe_run *r, sl_err *err);
sl_status sl_cuda_moe_grouped(sl_cuda *cu, sl_moe_run *r, sl_err *err);
sl_status sl_cuda_moe_half(sl_cuda *cu, sl_moe_run *r, sl_err *err); /* moe_half.cu */

#endif
