/*
 * Dispatch, at home: every token's row is written once for each rank that holds one of its experts. The first kernel
 * finds the position of every row, the second one quantises the values as SL_OP_MOE would and writes the rows. A warp
 * writes a piece of one token's rows: a group of 128 values if they are quantised, else 512 bytes.
 */
#include "kernels/cuda/ep.cuh"

#define WARPS 8

struct ep_send {
    const void *x;
    const int32_t *ids, *seq;
    uint8_t *send;
    int32_t *count, *where; /* where [T][ranks]: position of the token's row in the block for a rank, or -1 */
    sl_ep_row row;
    int tokens, cap, ranks, top_k, hidden;
    sl_dtype act;
    sl_ep_first first;
};

__global__ static void __launch_bounds__(SL_EP_THREADS) place_kernel(ep_send a, uint32_t *deverr)
{
    int q = blockIdx.x, base = 0, all;

    for (int t0 = 0; t0 < a.tokens; t0 += SL_EP_THREADS) {
        int t = t0 + threadIdx.x, sent = 0;
        if (t < a.tokens && !(a.seq && a.seq[t] < 0))
            for (int k = 0; k < a.top_k; k++) {
                int e = a.ids[(int64_t)t * a.top_k + k];
                if (e < -1 || e >= a.first.of[a.ranks])
                    atomicOr(deverr, SL_DEVERR_ID);
                sent |= e >= a.first.of[q] && e < a.first.of[q + 1];
            }
        int at = base + sl_ep_before(sent, &all);
        if (t < a.tokens)
            a.where[(int64_t)t * a.ranks + q] = sent ? at : -1;
        base += all;
    }
    if (threadIdx.x == 0)
        a.count[q] = base;
}

__device__ static inline uint8_t *row_at(const ep_send &a, int q, int at)
{
    return a.send + ((int64_t)q * a.cap + at) * a.row.bytes;
}

/* The token's experts on rank q, counted from its first one, then -1. All lanes of a warp call it. */
__device__ static void write_ids(const ep_send &a, int t, int q, uint8_t *row)
{
    int lane = threadIdx.x & 31, n = 0;
    int32_t *out = (int32_t *)(row + a.row.ids);

    for (int k0 = 0; k0 < a.top_k; k0 += 32) {
        int e = k0 + lane < a.top_k ? a.ids[(int64_t)t * a.top_k + k0 + lane] : -1;
        bool mine = e >= a.first.of[q] && e < a.first.of[q + 1];
        uint32_t set = __ballot_sync(0xffffffffu, mine);
        if (mine)
            out[n + __popc(set & ((1u << lane) - 1))] = e - a.first.of[q];
        n += __popc(set);
    }
    for (int k = n + lane; k < a.top_k; k += 32)
        out[k] = -1;
}

/* Four values of a group of 128 as e4m3, and the group's scale; bytes after the row's end are 0. */
__device__ static uint32_t quantise(const ep_send &a, int t, int g, float *scale)
{
    int i = g * 128 + (threadIdx.x & 31) * 4;
    float v[4], amax = 0;
    uint32_t packed = 0;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = i + j < a.hidden ? sl_ld(a.x, (int64_t)t * a.hidden + i + j, a.act) : 0;
        amax = fmaxf(amax, fabsf(v[j]));
    }
    *scale = sl_scale_act_d(sl_warp_max(amax));
#pragma unroll
    for (int j = 0; j < 4; j++)
        packed |= (uint32_t)sl_e4m3(v[j] / *scale) << 8 * j;
    return packed;
}

/* Word i of a token's values of act; the bytes after an odd number of bf16 values are 0. */
__device__ static uint32_t load_word(const ep_send &a, int t, int i)
{
    if (a.act == SL_F32)
        return ((const uint32_t *)a.x)[(int64_t)t * a.hidden + i];
    const uint16_t *x = (const uint16_t *)a.x + (int64_t)t * a.hidden;
    return x[2 * i] | (2 * i + 1 < a.hidden ? (uint32_t)x[2 * i + 1] << 16 : 0);
}

template <bool F8> __global__ static void write_kernel(ep_send a)
{
    int t = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, piece = blockIdx.y * WARPS + warp;
    int words = (int)(a.row.scales / 4), first = piece * (F8 ? 32 : 128);
    uint32_t v[F8 ? 1 : 4] = {};
    float scale = 0;

    if (F8 && piece * 128 < a.hidden)
        v[0] = quantise(a, t, piece, &scale);
#pragma unroll
    for (int j = 0; !F8 && j < 4; j++)
        if (first + 32 * j + lane < words)
            v[j] = load_word(a, t, first + 32 * j + lane);
    for (int q = 0; q < a.ranks; q++) {
        int at = a.where[(int64_t)t * a.ranks + q];
        if (at < 0)
            continue;
        uint8_t *row = row_at(a, q, at);
#pragma unroll
        for (int j = 0; j < (F8 ? 1 : 4); j++)
            if (first + 32 * j + lane < words)
                ((uint32_t *)row)[first + 32 * j + lane] = v[j];
        if (F8 && lane == 0 && piece * 128 < a.hidden)
            ((float *)(row + a.row.scales))[piece] = scale;
        if (piece == 0)
            write_ids(a, t, q, row);
    }
}

sl_status sl_cuda_ep_send(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_send_params *p = (const sl_ep_send_params *)params;
    const sl_ep_layout *l = &p->layout;
    sl_cuda *cu = sl_cuda_of(be);
    ep_send a = {p->x, p->expert_ids, p->token_seq, (uint8_t *)p->send, p->send_count};
    int pieces = l->quantised ? sl_ceil_div(l->hidden, 128) : sl_ceil_div(sl_ep_row_of(l).scales, 512);

    SL_TRY(sl_cuda_scratch(cu, ((size_t)p->tokens * l->ranks + 1) * sizeof(int32_t), (void **)&a.where, err));
    a.row = sl_ep_row_of(l), a.first = sl_ep_first_of(l), a.act = l->act;
    a.tokens = p->tokens, a.cap = l->cap, a.ranks = l->ranks, a.top_k = l->top_k, a.hidden = l->hidden;
    place_kernel<<<l->ranks, SL_EP_THREADS, 0, cu->stream>>>(a, cu->deverr);
    dim3 grid((unsigned)p->tokens, sl_ceil_div(pieces, WARPS));
    if (p->tokens > 0 && l->quantised)
        write_kernel<true><<<grid, 32 * WARPS, 0, cu->stream>>>(a);
    else if (p->tokens > 0)
        write_kernel<false><<<grid, 32 * WARPS, 0, cu->stream>>>(a);
    return SL_CU_LAUNCHED(err);
}
