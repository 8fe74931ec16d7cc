/*
 * Dispatch, at home: every token's row is written once for each rank that holds one of its experts. A warp quantises a
 * piece of one token's rows as SL_OP_MOE would, and writes it: a group of 128 values if they are quantised, else 512
 * bytes.
 *
 * Decode steps are one kernel: every block counts the earlier tokens for each rank itself, because reading up to 512
 * lists of choices again costs less than another launch and a wait for its end. With more tokens a kernel of its own
 * finds the positions.
 */
#include "kernels/cuda/any/experts/ep.cuh"

#define WARPS 8

struct ep_send {
    const void *x;
    const int32_t *ids, *seq;
    uint8_t *send;
    int32_t *count, *where; /* where [T][ranks]: position of the token's row in the block for a rank, or -1 */
    sl_ep_row row;
    int tokens, cap, ranks, top_k, hidden;
    sl_dtype act;
    bool quads;     /* bf16, rows of a multiple of four values: one load of them */
    bool elsewhere; /* the blocks are at `to`, not in send */
    uint8_t *to[SL_EP_TO_RANKS];
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

/* The ranks that hold an expert of token t, one bit each; a choice that does not exist counts for none. */
__device__ static inline uint64_t ranks_of(const ep_send &a, int t)
{
    uint64_t set = 0;

    if (t >= a.tokens || (a.seq && a.seq[t] < 0))
        return 0;
#pragma unroll 8
    for (int k = 0; k < a.top_k; k++) {
        int e = a.ids[(int64_t)t * a.top_k + k];
        for (int q = 0; q < a.ranks; q++)
            set |= (uint64_t)(e >= a.first.of[q] && e < a.first.of[q + 1]) << q;
    }
    return set;
}

/* Choices that do not exist; a thread looks at one of them. */
__device__ static inline void check_ids(const ep_send &a, int t, uint32_t *deverr)
{
    if (a.seq && a.seq[t] < 0)
        return;
    for (int k = threadIdx.x; k < a.top_k; k += blockDim.x) {
        int e = a.ids[(int64_t)t * a.top_k + k];
        if (e < -1 || e >= a.first.of[a.ranks])
            atomicOr(deverr, SL_DEVERR_ID);
    }
}

/* at[q]: the position of token t's row in the block for rank q, or -1. All threads of the block call it. The block of
 * the last token stores the counts. */
__device__ static void find_places(const ep_send &a, int t, int *at)
{
    uint64_t mine = ranks_of(a, t), low = (int)threadIdx.x < t ? ranks_of(a, threadIdx.x) : 0,
             high = (int)threadIdx.x + 256 < t ? ranks_of(a, threadIdx.x + 256) : 0;

    for (int q = 0; q < a.ranks; q++) {
        int before = __syncthreads_count((int)(low >> q & 1));
        if (t > 256)
            before += __syncthreads_count((int)(high >> q & 1));
        bool sent = mine >> q & 1;
        if (threadIdx.x == 0)
            at[q] = sent ? before : -1;
        if (threadIdx.x == 0 && t == a.tokens - 1 && blockIdx.y == 0)
            a.count[q] = before + sent;
    }
    __syncthreads();
}

__device__ static inline uint8_t *row_at(const ep_send &a, int q, int at)
{
    uint8_t *block = a.elsewhere ? a.to[q] : a.send + (int64_t)q * a.cap * a.row.bytes;

    return block + at * a.row.bytes;
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

/* Values i to i + 3 of token t; 0 after the row's end. */
__device__ static inline void load_four(const ep_send &a, int t, int i, float (&v)[4])
{
    if (a.quads) {
        uint2 w = i < a.hidden ? *(const uint2 *)((const uint16_t *)a.x + (int64_t)t * a.hidden + i)
                               : make_uint2(0, 0);
        float2 low = __bfloat1622float2(*(const __nv_bfloat162 *)&w.x),
               high = __bfloat1622float2(*(const __nv_bfloat162 *)&w.y);

        v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = i + j < a.hidden ? sl_ld(a.x, (int64_t)t * a.hidden + i + j, a.act) : 0;
}

/* Four values of a group of 128 as e4m3, and the group's scale; bytes after the row's end are 0. */
__device__ static uint32_t quantise(const ep_send &a, int t, int g, float *scale)
{
    int i = g * 128 + (threadIdx.x & 31) * 4;
    float v[4], amax = 0;
    uint32_t packed = 0;

    load_four(a, t, i, v);
#pragma unroll
    for (int j = 0; j < 4; j++)
        amax = fmaxf(amax, fabsf(v[j]));
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

/* FUSED: the positions are found here; else they are in a.where. */
template <bool F8, bool FUSED>
__global__ static void __launch_bounds__(32 * WARPS) write_kernel(ep_send a, uint32_t *deverr)
{
    __shared__ int found[SL_EP_RANKS_MAX];
    int t = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, piece = blockIdx.y * WARPS + warp;
    int words = (int)(a.row.scales / 4), first = piece * (F8 ? 32 : 128);
    const int *places = FUSED ? found : a.where + (int64_t)t * a.ranks;
    uint32_t v[F8 ? 1 : 4] = {};
    float scale = 0;

    if (FUSED)
        sl_after_previous();
    if (F8 && piece * 128 < a.hidden)
        v[0] = quantise(a, t, piece, &scale);
#pragma unroll
    for (int j = 0; !F8 && j < 4; j++)
        if (first + 32 * j + lane < words)
            v[j] = load_word(a, t, first + 32 * j + lane);
    if (FUSED)
        find_places(a, t, found);
    if (FUSED && blockIdx.y == 0)
        check_ids(a, t, deverr);
    for (int q = 0; q < a.ranks; q++) {
        int at = places[q];
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

static sl_status write_fused(sl_cuda *cu, const ep_send &a, dim3 grid, bool f8, sl_err *err)
{
    if (f8)
        return SL_LAUNCH(cu, (write_kernel<true, true>), (sl_launch{grid, (int)(32 * WARPS), 0, true}), err,
                         a, cu->deverr);
    return SL_LAUNCH(cu, (write_kernel<false, true>), (sl_launch{grid, (int)(32 * WARPS), 0, true}), err, a,
                     cu->deverr);
}

/* Also without tokens, because the counts are stored. */
static sl_status write_placed(sl_cuda *cu, ep_send a, dim3 grid, bool f8, sl_err *err)
{
    SL_TRY(sl_cuda_scratch(cu, sl_ep_send_scratch(a.tokens, a.ranks), (void **)&a.where, err));
    SL_TRY(SL_LAUNCH(cu, place_kernel, (sl_launch{dim3(a.ranks), SL_EP_THREADS}), err, a, cu->deverr));
    if (a.tokens > 0 && f8)
        SL_TRY(SL_LAUNCH(cu, (write_kernel<true, false>), (sl_launch{grid, (int)(32 * WARPS)}), err, a,
                         cu->deverr));
    else if (a.tokens > 0)
        SL_TRY(SL_LAUNCH(cu, (write_kernel<false, false>), (sl_launch{grid, (int)(32 * WARPS)}), err, a,
                         cu->deverr));
    return SL_OK;
}

static sl_status run_ep_send(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_send_params *p = (const sl_ep_send_params *)params;
    const sl_ep_layout *l = &p->layout;
    sl_cuda *cu = sl_cuda_of(be);
    ep_send a = {p->x, p->expert_ids, p->token_seq, (uint8_t *)p->send, p->send_count};
    int pieces = l->quantised ? sl_ceil_div(l->hidden, 128) : sl_ceil_div(sl_ep_row_of(l).scales, 512);
    dim3 grid((unsigned)p->tokens, sl_ceil_div(pieces, WARPS));

    a.row = sl_ep_row_of(l), a.first = sl_ep_first_of(l), a.act = l->act;
    a.tokens = p->tokens, a.cap = l->cap, a.ranks = l->ranks, a.top_k = l->top_k, a.hidden = l->hidden;
    a.quads = l->act == SL_BF16 && l->hidden % 4 == 0 && (uintptr_t)p->x % 8 == 0;
    a.elsewhere = p->to != NULL;
    for (int q = 0; a.elsewhere && q < l->ranks; q++)
        a.to[q] = (uint8_t *)p->to[q];
    if (p->tokens > 0 && p->tokens <= SL_EP_FUSED_TOKENS)
        return write_fused(cu, a, grid, l->quantised, err);
    return write_placed(cu, a, grid, l->quantised, err);
}

const sl_op_impl sl_cuda_ep_send = {.run = run_ep_send};
