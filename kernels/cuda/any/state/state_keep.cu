/*
 * Copies of states, for sequences whose last tokens may be taken back. A thread block copies a piece of the state of one token's
 * sequence, in words of 16 bytes where all is aligned for it. Limit: memory, both ways.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256
#define PIECES 64 /* of a state, at most */

template <class WORD>
__global__ static void __launch_bounds__(THREADS)
    keep_kernel(sl_state_keep_params p, sl_seq_tables s, uint32_t *deverr)
{
    int seq, pos;
    int64_t words = p.bytes / (int64_t)sizeof(WORD);

    if (!sl_token(&s, (int)blockIdx.x, deverr, &seq, &pos))
        return;
    const WORD *from = (const WORD *)(p.from + seq * p.stride);
    WORD *to = (WORD *)(p.to + seq * p.stride);
    for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < words;
         i += (int64_t)gridDim.y * THREADS)
        to[i] = from[i];
}

static sl_status run_state_keep(sl_backend *be, const void *params, sl_err *err)
{
    const sl_state_keep_params *p = (const sl_state_keep_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    const uint64_t all =
        (uint64_t)(uintptr_t)p->from | (uint64_t)(uintptr_t)p->to | (uint64_t)p->stride | (uint64_t)p->bytes;
    const int64_t word = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
    const int64_t pieces = sl_ceil_div(p->bytes / word, THREADS);
    sl_launch shape = {dim3((unsigned)p->seqs->n_tokens, (unsigned)(pieces < PIECES ? pieces : PIECES)),
                       THREADS};

    if (word == 16)
        return SL_LAUNCH(cu, keep_kernel<uint4>, shape, err, *p, *p->seqs, cu->deverr);
    if (word == 4)
        return SL_LAUNCH(cu, keep_kernel<uint32_t>, shape, err, *p, *p->seqs, cu->deverr);
    return SL_LAUNCH(cu, keep_kernel<uint8_t>, shape, err, *p, *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_state_keep = {.run = run_state_keep};
