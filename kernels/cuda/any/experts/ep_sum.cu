/*
 * Combine, at home: the sum of a token's results over its experts, in ascending order, in float32 with separately
 * rounded products, as SL_OP_MOE does. Where the result of a choice lies is the number of choices before it on the same
 * rank: of few tokens every block counts them itself, which costs less than another launch and a wait for its end; of
 * many a kernel of its own finds all places.
 */
#include "kernels/cuda/any/experts/ep.cuh"

#define THREADS 128
#define OUTS 8 /* per thread */
#define FEW_TOKENS                                                                                           \
    512 /* at most this many, with at most FEW_CHOICES each, are counted by the block that adds */
#define FEW_CHOICES 8

struct ep_sum {
    const uint8_t *recv;
    const int32_t *count, *ids, *seq;
    const float *weights;
    int32_t *where; /* [T][top_k]: the result among all of recv, or -1 */
    void *out;
    int64_t result_bytes;
    int tokens, cap, ranks, top_k, hidden; /* cap: of the results */
    sl_dtype act;
    sl_ep_first first;
};

/* Fewer results than choices of a rank: it broke off, or the ranks do not agree about the step. */
__global__ static void __launch_bounds__(SL_EP_THREADS) place_kernel(ep_sum a, uint32_t *deverr)
{
    int q = blockIdx.x, base = 0, all, came = sl_ep_count(a.count, q, a.cap);

    for (int t0 = 0; t0 < a.tokens; t0 += SL_EP_THREADS) {
        int t = t0 + threadIdx.x, n = 0;
        const int32_t *ids = a.ids + (int64_t)t * a.top_k;
        bool real = t < a.tokens && !(a.seq && a.seq[t] < 0);
        for (int k = 0; real && k < a.top_k; k++)
            n += ids[k] >= a.first.of[q] && ids[k] < a.first.of[q + 1];
        int at = base + sl_ep_before(n, &all);
        for (int k = 0; t < a.tokens && k < a.top_k; k++) {
            int32_t *where = a.where + (int64_t)t * a.top_k + k;
            if (!real || ids[k] < 0 || ids[k] >= a.first.of[a.ranks]) {
                if (q == 0)
                    *where = -1;
            } else if (ids[k] >= a.first.of[q] && ids[k] < a.first.of[q + 1]) {
                *where = at < came ? q * a.cap + at : -1;
                at++;
            }
        }
        base += all;
    }
    if (threadIdx.x == 0 && base > came)
        atomicOr(deverr, SL_DEVERR_ROWS);
}

/* The rank that holds expert e, or -1: no choice, or one that does not exist. */
__device__ static inline int rank_of(const ep_sum &a, int e)
{
    int q = -1;

    if (e >= 0 && e < a.first.of[a.ranks])
        for (q = 0; e >= a.first.of[q + 1]; q++)
            ;
    return q;
}

/*
 * where[k]: the result of choice k of token t among all of recv, or -1. All threads of the block call it. A thread
 * counts its part of the choices of earlier tokens for all ranks that token t needs; n[k] counts those on the rank of
 * choice k, the earlier ones of t itself included.
 */
__device__ static void find_places(const ep_sum &a, int t, int *where, uint32_t *deverr)
{
    __shared__ int part[THREADS / 32][FEW_CHOICES];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, from[FEW_CHOICES], to[FEW_CHOICES],
        n[FEW_CHOICES] = {};
    bool real = !(a.seq && a.seq[t] < 0);

#pragma unroll
    for (int k = 0; k < FEW_CHOICES; k++) {
        int q = real && k < a.top_k ? rank_of(a, a.ids[(int64_t)t * a.top_k + k]) : -1;
        from[k] = q < 0 ? 0 : a.first.of[q], to[k] = q < 0 ? 0 : a.first.of[q + 1];
        if (q >= 0 && threadIdx.x < k) {
            int e = a.ids[(int64_t)t * a.top_k + threadIdx.x];
            n[k] = e >= from[k] && e < to[k];
        }
    }
#pragma unroll 4
    for (int i = threadIdx.x; i < t * a.top_k; i += THREADS) {
        int e = a.seq && a.seq[i / a.top_k] < 0 ? -1 : a.ids[i];
#pragma unroll
        for (int k = 0; k < FEW_CHOICES; k++)
            n[k] += e >= from[k] && e < to[k];
    }
#pragma unroll
    for (int k = 0; k < FEW_CHOICES; k++) {
        int sum = sl_warp_sum(n[k]);
        if (lane == 0)
            part[warp][k] = sum;
    }
    __syncthreads();
    if (threadIdx.x < FEW_CHOICES) {
        int k = threadIdx.x, at = 0,
            q = real && k < a.top_k ? rank_of(a, a.ids[(int64_t)t * a.top_k + k]) : -1;
        for (int w = 0; w < THREADS / 32; w++)
            at += part[w][k];
        bool came = q >= 0 && at < sl_ep_count(a.count, q, a.cap);
        where[k] = came ? q * a.cap + at : -1;
        if (q >= 0 && !came)
            atomicOr(deverr, SL_DEVERR_ROWS);
    }
    __syncthreads();
}

__global__ static void __launch_bounds__(THREADS) sum_kernel(ep_sum a)
{
    int64_t t = blockIdx.x;

    for (int o = blockIdx.y * THREADS + threadIdx.x; o < a.hidden; o += gridDim.y * THREADS) {
        float acc = 0;
        for (int k = 0; k < a.top_k; k++) {
            int where = a.where[t * a.top_k + k];
            if (where >= 0)
                acc = __fadd_rn(acc, __fmul_rn(a.weights[t * a.top_k + k],
                                               sl_ld(a.recv + where * a.result_bytes, o, a.act)));
        }
        sl_st(a.out, t * a.hidden + o, acc, a.act);
    }
}

/* The same for bf16 and multiples of eight outputs: a thread adds eight of them, and the results of eight choices are
 * loaded together. FEW: the block finds their places. */
template <bool FEW>
__global__ static void __launch_bounds__(THREADS) sum_bf16_kernel(ep_sum a, uint32_t *deverr)
{
    __shared__ int found[FEW_CHOICES];
    int64_t t = blockIdx.x;
    int o = (blockIdx.y * THREADS + threadIdx.x) * OUTS;
    const int *places = FEW ? found : a.where + t * a.top_k;
    float sum[OUTS] = {};

    if (FEW)
        find_places(a, (int)t, found, deverr);
    if (o >= a.hidden)
        return;
    for (int k0 = 0; k0 < a.top_k; k0 += 8) {
        uint4 v[8];
        float w[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int where = k0 + k < a.top_k ? places[k0 + k] : -1;
            w[k] = where >= 0 ? a.weights[t * a.top_k + k0 + k] : 0;
            v[k] = where >= 0 ? *(const uint4 *)(a.recv + where * a.result_bytes + 2 * o)
                              : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 f = __bfloat1622float2(((const __nv_bfloat162 *)&v[k])[i]);
                sum[2 * i] = __fadd_rn(sum[2 * i], __fmul_rn(w[k], f.x));
                sum[2 * i + 1] = __fadd_rn(sum[2 * i + 1], __fmul_rn(w[k], f.y));
            }
    }
    uint4 out;
#pragma unroll
    for (int i = 0; i < 4; i++)
        ((__nv_bfloat162 *)&out)[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    *(uint4 *)((__nv_bfloat16 *)a.out + t * a.hidden + o) = out;
}

static sl_status run_ep_sum(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_sum_params *p = (const sl_ep_sum_params *)params;
    const sl_ep_layout *l = &p->layout;
    sl_cuda *cu = sl_cuda_of(be);
    ep_sum a = {(const uint8_t *)p->recv, p->recv_count, p->expert_ids, p->token_seq, p->weights};
    bool lines =
        l->act == SL_BF16 && l->hidden % OUTS == 0 && ((uintptr_t)p->recv | (uintptr_t)p->out) % 16 == 0;

    bool few = lines && p->tokens > 0 && p->tokens <= FEW_TOKENS && l->top_k <= FEW_CHOICES;

    a.out = p->out, a.result_bytes = sl_ep_result_bytes(l), a.act = l->act, a.first = sl_ep_first_of(l);
    a.tokens = p->tokens, a.cap = sl_ep_result_cap(l), a.ranks = l->ranks, a.top_k = l->top_k;
    a.hidden = l->hidden;
    dim3 grid((unsigned)p->tokens, sl_ceil_div(l->hidden, THREADS * OUTS));
    if (few) {
        return SL_LAUNCH(cu, sum_bf16_kernel<true>, (sl_launch{grid, THREADS}), err, a, cu->deverr);
    }
    SL_TRY(sl_cuda_scratch(cu, sl_ep_sum_scratch(p->tokens, l->top_k), (void **)&a.where, err));
    SL_TRY(SL_LAUNCH(cu, place_kernel, (sl_launch{dim3(l->ranks), SL_EP_THREADS}), err, a, cu->deverr));
    if (lines)
        SL_TRY(SL_LAUNCH(cu, sum_bf16_kernel<false>, (sl_launch{grid, THREADS}), err, a, cu->deverr));
    else
        SL_TRY(SL_LAUNCH(cu, sum_kernel, (sl_launch{grid, THREADS}), err, a));
    return SL_OK;
}

const sl_op_impl sl_cuda_ep_sum = {.run = run_ep_sum};
