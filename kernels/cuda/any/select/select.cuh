/*
 * Shared by index scores and top-k: the order of scores as unsigned numbers, and the hint that saves top-k its first
 * pass over the row.
 *
 * The hint of a row contains the largest of every SL_HINT_GROUP scores, NaN where all of them are NaN; it is undefined
 * for a group without scores. The score kernels write it at the cost of a few instructions per page; where they did
 * not, top-k makes its own.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_SELECT_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_SELECT_CUH

#include "kernels/cuda/common.cuh"

#define SL_HINT_GROUP 8
#define SL_HINT_MIN 16384 /* top-k uses the hint for longer rows only */

/* A larger key is a better score; NaN is below everything (0), and -0 equals 0. */
__device__ static inline uint32_t sl_order_key(float score)
{
    float v = score + 0.0f;
    uint32_t u = __float_as_uint(v);

    if (v != v)
        return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Length of a row of the hint, in groups. */
static inline int sl_hint_ld(int ld_scores)
{
    return (ld_scores + 4 * SL_HINT_GROUP - 1) / (4 * SL_HINT_GROUP) * 4;
}

/* Fills the hint [token_count][sl_hint_ld(ld_scores)] of rows of at least min_len scores. topk.cu */
sl_status sl_cuda_hint(sl_cuda *cu, const float *scores, const sl_seq_tables *seqs, int token_first,
                       int token_count, int ld_scores, int min_len, float *hint, sl_err *err);

#endif
