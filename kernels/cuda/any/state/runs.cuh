/* Ops whose tokens look at earlier ones of their sequence, and leave values in its state for later steps. Tokens of a sequence are
 * adjacent in a step and their positions ascend by one, so a token finds a neighbour without a search. */
#ifndef SL_KERNELS_CUDA_ANY_STATE_RUNS_CUH
#define SL_KERNELS_CUDA_ANY_STATE_RUNS_CUH

#include "kernels/cuda/common.cuh"

/* Whether the token `by` places before (negative: after) token t of sequence seq is in this step. */
__device__ static inline bool sl_in_step(const sl_seq_tables &s, int t, int seq, int by)
{
    int at = t - by;

    return at >= 0 && at < s.n_tokens && s.token_seq[at] == seq;
}

#endif
