/*
 * Routed experts with fp8 weights and activations on Hopper's fp8 tensor cores; the sum over experts is in
 * moe.cu.
 *
 * The (token, choice) pairs are grouped by expert on the device, 32 per tile. Every tile of 64 outputs reads its
 * expert's weights once per token tile. The weights are loaded from memory directly into the registers that the
 * product reads, three groups of 128 inputs ahead; the tokens' quantised activations pass through shared memory.
 * The tensor core sums each group; across groups acc += dot * (s_x * s_w) in float32, in order. Thus a token's
 * bits do not depend on the other tokens of its tile, and the order of tokens in a tile may be arbitrary.
 */
#include "kernels/cuda/moe_group.cuh"
#include "kernels/cuda/moe_run.h"
#include "kernels/cuda/wgmma.cuh"

#define GROUP 128
#define TOKENS 32
#define OUTS 64
#define AHEAD 3

struct moe_plan {
    int32_t *pairs; /* [pairs], grouped by expert */
    int32_t *tile_expert, *tile_first, *tile_count, *n_tiles;
};

__global__ static void __launch_bounds__(SL_MOE_MAX_EXPERTS)
    group_kernel(const int32_t *ids, int pairs, int experts, moe_plan plan, uint32_t *deverr)
{
    sl_moe_group<TOKENS, 1, 4>(
        ids, pairs, experts, plan.pairs, plan.n_tiles, deverr,
        [&](int e, int at, int first, int rows, int, int) {
            plan.tile_expert[at] = e;
            plan.tile_first[at] = first;
            plan.tile_count[at] = rows;
        },
        [](int, int) {});
}

/* Quantises x [rows][n] to e4m3 with a scale per row and 128 values; one warp per group of 128. */
__global__ static void quantise_kernel(const void *x, sl_dtype dtype, int64_t n, int64_t rows, uint8_t *q,
                                       float *scale)
{
    int64_t g = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    float v[4], amax = 0;

    if (g >= rows * (n / GROUP))
        return;
    for (int i = 0; i < 4; i++) {
        v[i] = sl_ld(x, g * GROUP + i * 32 + lane, dtype);
        amax = fmaxf(amax, fabsf(v[i]));
    }
    float s = sl_scale_act_d(sl_warp_max(amax));
    for (int i = 0; i < 4; i++)
        q[g * GROUP + i * 32 + lane] = sl_e4m3(v[i] / s);
    if (lane == 0)
        scale[g] = s;
}

/* The same for rows that arrived quantised: copies them. */
__global__ static void take_kernel(sl_moe_arrived a, uint8_t *q, float *scale)
{
    int64_t i = blockIdx.x;
    int g = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31,
        groups = a.hidden / GROUP;

    if (g >= groups || i % a.cap >= a.count[i / a.cap])
        return;
    const uint8_t *row = a.recv + i * a.row.bytes;
    ((uint32_t *)(q + i * a.hidden + g * GROUP))[lane] = ((const uint32_t *)(row + g * GROUP))[lane];
    if (lane == 0)
        scale[i * groups + g] = ((const float *)(row + a.row.scales))[g];
}

struct moe_gemm {
    moe_plan plan;
    const sl_weight *a, *b; /* gate and up; or down, and b is unused */
    const uint8_t *x;       /* [rows][in] */
    const float *xs;        /* [rows][in / 128] */
    float *out;             /* [pairs][outs] */
    int in, outs, per_row;  /* per_row: pairs that share a row of x */
    sl_dtype act;
};

struct weight_group { /* 16 bytes of each half of row g, then of row g + 8 */
    uint4 v[4];
};

__device__ static inline void fetch(weight_group &w, const uint8_t *row, int in, int g)
{
    const uint4 *a = (const uint4 *)(row + (int64_t)g * GROUP),
                *b = (const uint4 *)(row + (int64_t)g * GROUP + 8 * (int64_t)in);

    w.v[0] = __ldg(a), w.v[1] = __ldg(a + 4), w.v[2] = __ldg(b), w.v[3] = __ldg(b + 4);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline void product(float (&d)[16], const weight_group &w, uint64_t b)
{
    const uint32_t *lo = (const uint32_t *)&w.v[0], *hi = (const uint32_t *)&w.v[2];

#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t a[4] = {lo[2 * s], hi[2 * s], lo[2 * s + 1], hi[2 * s + 1]};
        sl_wgmma_e4m3(d, a, b + 2 * s, s > 0);
    }
}

/* Stores 16 bytes, chunk c of a row, in the order of k in which lanes hold the weights: word m of lane t becomes
 * word 4 m + t. */
__device__ static inline void store_chunk(uint8_t *tile, int r, int c, uint4 v)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int j = 0; j < 4; j++)
        *(uint32_t *)(tile + sl_swizzle(r, c / 4 * 4 + j) + c % 4 * 4) = w[j];
}
#endif

template <bool DUAL> __global__ static void __launch_bounds__(128) gemm_kernel(moe_gemm p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ __align__(1024) uint8_t tile[2][TOKENS * 128];
    __shared__ float scales[2][TOKENS];
    __shared__ int32_t pairs[TOKENS];

    if ((int)blockIdx.y >= *p.plan.n_tiles)
        return;
    int e = p.plan.tile_expert[blockIdx.y], n = p.plan.tile_count[blockIdx.y],
        first = p.plan.tile_first[blockIdx.y];
    int lane = threadIdx.x & 31, out0 = blockIdx.x * OUTS, row = out0 + (threadIdx.x >> 5) * 16 + lane / 4;
    int groups = p.in / GROUP;
    const uint8_t *wa = (const uint8_t *)p.a[e].data + (int64_t)row * p.in + (lane & 3) * 16,
                  *wb = DUAL ? (const uint8_t *)p.b[e].data + (int64_t)row * p.in + (lane & 3) * 16 : NULL;
    const float *sa = p.a[e].scale + (int64_t)(out0 / GROUP) * groups,
                *sb = DUAL ? p.b[e].scale + (int64_t)(out0 / GROUP) * groups : NULL;
    weight_group a[AHEAD], b[DUAL ? AHEAD : 1];
    float acc_a[16] = {}, acc_b[DUAL ? 16 : 1] = {}, d[16], f[DUAL ? 16 : 1];

#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < groups) {
            fetch(a[i], wa, p.in, i);
            if constexpr (DUAL)
                fetch(b[i], wb, p.in, i);
        }
    if (threadIdx.x < TOKENS)
        pairs[threadIdx.x] = p.plan.pairs[first + min((int)threadIdx.x, n - 1)];
    __syncthreads();
    /* Each thread loads two 16-byte chunks of a group; the first 32 threads also load a scale each. Rows of the
     * tile that have no token load the data of another token. */
    int r0 = threadIdx.x / 8, r1 = r0 + 16, c = threadIdx.x % 8;
    const uint8_t *x0 = p.x + (int64_t)(pairs[r0] / p.per_row) * p.in + 16 * c,
                  *x1 = p.x + (int64_t)(pairs[r1] / p.per_row) * p.in + 16 * c;
    const float *xs = p.xs + (int64_t)(pairs[threadIdx.x % TOKENS] / p.per_row) * groups;
    uint4 v0 = *(const uint4 *)x0, v1 = *(const uint4 *)x1;
    float s = *xs;
    for (int g0 = 0; g0 < groups; g0 += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int g = g0 + i, stage = g & 1;
            if (g >= groups)
                break;
            store_chunk(tile[stage], r0, c, v0);
            store_chunk(tile[stage], r1, c, v1);
            if (threadIdx.x < TOKENS)
                scales[stage][threadIdx.x] = s;
            sl_fence_async();
            __syncthreads();
            if (g + 1 < groups) {
                v0 = *(const uint4 *)(x0 + (g + 1) * GROUP), v1 = *(const uint4 *)(x1 + (g + 1) * GROUP);
                s = xs[g + 1];
            }
            sl_wgmma_fence();
            product(d, a[i], sl_desc_k(sl_smem_addr(tile[stage])));
            if constexpr (DUAL)
                product(f, b[i], sl_desc_k(sl_smem_addr(tile[stage])));
            sl_wgmma_finish();
#pragma unroll
            for (int k = 0; k < 16; k++) {
                float sx = scales[stage][k / 4 * 8 + (lane & 3) * 2 + k % 2];
                acc_a[k] = fmaf(d[k], __fmul_rn(sx, sa[g]), acc_a[k]);
                if constexpr (DUAL)
                    acc_b[k] = fmaf(f[k], __fmul_rn(sx, sb[g]), acc_b[k]);
            }
            if (g + AHEAD < groups) {
                fetch(a[i], wa, p.in, g + AHEAD);
                if constexpr (DUAL)
                    fetch(b[i], wb, p.in, g + AHEAD);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int col = k / 4 * 8 + (lane & 3) * 2 + k % 2, o = row + k % 4 / 2 * 8;
        float v = sl_actr(acc_a[k], p.act);
        if constexpr (DUAL)
            v = sl_actr(__fmul_rn(v / (1.0f + expf(-v)), sl_actr(acc_b[k], p.act)), p.act);
        if (col < n)
            p.out[(int64_t)pairs[col] * p.outs + o] = v;
    }
#endif
}

bool sl_cuda_moe_mma_fits(const sl_cuda *cu, const sl_moe_run *r)
{
    const sl_moe_params *p = &r->p;

    return cu->cc == 90 && sl_moe_fp8_rows(r) && p->hidden % GROUP == 0 && p->inter % GROUP == 0 &&
           p->experts <= SL_MOE_MAX_EXPERTS && sl_moe_all_fp8(p->gate, p->experts) &&
           sl_moe_all_fp8(p->up, p->experts) && sl_moe_all_fp8(p->down, p->experts);
}

sl_status sl_cuda_moe_mma(sl_cuda *cu, sl_moe_run *r, const sl_weight *gate, const sl_weight *up,
                          const sl_weight *down, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    int64_t pairs = (int64_t)p->tokens * p->top_k, tiles = min(pairs, p->experts + pairs / TOKENS),
            x_groups = (int64_t)p->tokens * p->hidden / GROUP, m_groups = pairs * p->inter / GROUP;
    moe_gemm g = {};
    uint8_t *mem, *xq, *mq;
    float *xs, *ms;
    SL_TRY(sl_moe_begin(cu, r, true,
                        (size_t)((x_groups + m_groups) * (GROUP + 4) + (pairs + 3 * tiles + 1) * 4),
                        (void **)&mem, err));
    xq = mem, mq = xq + x_groups * GROUP;
    xs = (float *)(mq + m_groups * GROUP), ms = xs + x_groups;
    g.plan.pairs = (int32_t *)(ms + m_groups);
    g.plan.tile_expert = g.plan.pairs + pairs;
    g.plan.tile_first = g.plan.tile_expert + tiles;
    g.plan.tile_count = g.plan.tile_first + tiles;
    g.plan.n_tiles = g.plan.tile_count + tiles;
    group_kernel<<<1, 1024, 0, cu->stream>>>(p->expert_ids, (int)pairs, p->experts, g.plan, cu->deverr);
    if (r->arrived.recv)
        take_kernel<<<dim3((unsigned)p->tokens, sl_ceil_div(p->hidden / GROUP, 8)), 256, 0, cu->stream>>>(
            r->arrived, xq, xs);
    else
        quantise_kernel<<<sl_ceil_div(x_groups, 8), 256, 0, cu->stream>>>(p->x, p->act, p->hidden, p->tokens,
                                                                          xq, xs);
    g.a = gate, g.b = up, g.x = xq, g.xs = xs, g.out = r->mid;
    g.in = p->hidden, g.outs = p->inter, g.per_row = p->top_k, g.act = p->act;
    gemm_kernel<true><<<dim3(p->inter / OUTS, (unsigned)tiles), 128, 0, cu->stream>>>(g);
    quantise_kernel<<<sl_ceil_div(m_groups, 8), 256, 0, cu->stream>>>(r->mid, SL_F32, p->inter, pairs, mq,
                                                                      ms);
    g.a = down, g.b = NULL, g.x = mq, g.xs = ms, g.out = r->res;
    g.in = p->inter, g.outs = p->hidden, g.per_row = 1;
    gemm_kernel<false><<<dim3(p->hidden / OUTS, (unsigned)tiles), 128, 0, cu->stream>>>(g);
    return SL_CU_LAUNCHED(err);
}
