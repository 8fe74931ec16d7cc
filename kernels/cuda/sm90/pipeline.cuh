/*
 * The one pipeline of products with big weights: linear layers of few and of many tokens, routed experts of few and of many
 * tokens, and experts in 4 bits. Internal to kernels/cuda.
 *
 * A block has one thread that keeps a ring of bulk tensor copies full, also from one work item to the next, and warpgroups that
 * multiply. A stage of the ring is what is multiplied together: boxes of 128 outputs by 128 bytes of k, the same bytes of k of
 * the tokens, and their scales. What differs is a plan, a struct P of constants and functions:
 *
 *   Args, name()                what the kernel gets, and its name for errors and profilers
 *   MULTIPLIERS, THREADS        threads that multiply; all threads of a block. Thread MULTIPLIERS copies
 *   COPY_REGS, MULTIPLY_REGS    registers that the copying warpgroup keeps, and the others then have; 0, both: none are moved
 *   STAGES, BOXES, X, XS, EXTRA the ring: stages; of a stage boxes, bytes of tokens and of scales; bytes of shared memory besides
 *   EARLY                       weights of the first stages are copied while the kernel before, which makes the tokens, still runs
 *   TOGETHER                    stages that are filled together, so that twice as many contiguous bytes of each row are requested
 *   LET_NEXT                    the next kernel may begin while this one runs
 *   SCALES_FIRST                scales of the tokens are read before the products of a stage and not while they run: faster where the
 *                               products are the limit, and not the weights
 *
 *   Item, items(), step()       the scheduler: work items of a block are first(), first() + step(), ... below items(). Kinds: one
 *   item(), stages()            tile and range of k for each block (linear_few); tiles in bands (linear_many); tiles of experts, whose
 *                               list is on the device (moe_few, moe_half) or ordered so that they share weights (moe_grouped)
 *   copy_weights(), copy_tokens()   the copies of a stage; the former announces the bytes of both
 *   consume()                   the warpgroups that multiply: pl_multiply() where weights lie in memory as the tensor cores read
 *                               them (fp8, bf16), own code where a thread converts them (4 bits); then the epilogue: store, add the
 *                               parts of a cluster, silu and quantise, scatter
 *   copied()                    what the copying warpgroup does at the end
 *
 * A product always has 64 rows of tokens, whether the tokens exist or not; thus every shape runs the same instructions, and a
 * token's bits do not depend on the other tokens. Sums: the tensor core adds the 128 bytes of k of a stage in four products; of
 * fp8 acc = acc + dot * (s_x * s_w) in float32, stage by stage; of bf16 all of a range of k is one chain.
 */
#ifndef SL_KERNELS_CUDA_SM90_PIPELINE_CUH
#define SL_KERNELS_CUDA_SM90_PIPELINE_CUH

#include "kernels/cuda/sm90/ring.cuh"

template <class P> struct pl_sizes {
    static constexpr int STAGE = P::BOXES * ST_BOX_BYTES + P::X,
                         SMEM = P::STAGES * (STAGE + P::XS + 16) + P::EXTRA + 1024;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* A block's shared memory: the stages, EXTRA bytes, the scales of each stage, and the barriers. */
template <class P> struct pl_memory {
    st_ring<P::STAGES> ring;
    uint8_t *stages, *extra; /* stages: at a multiple of 1,024 bytes */
    float *xs;               /* [STAGES][XS / 4] */
};

template <class P> __device__ static inline pl_memory<P> pl_memory_of(uint8_t *raw)
{
    uint32_t at = sl_smem_addr(raw), pad = (1024 - at % 1024) % 1024;
    pl_memory<P> m;

    m.stages = raw + pad;
    m.extra = m.stages + P::STAGES * pl_sizes<P>::STAGE;
    m.xs = (float *)(m.extra + P::EXTRA);
    uint32_t bars = sl_smem_addr(m.xs) + P::STAGES * P::XS;
    m.ring = {at + pad, bars, bars + P::STAGES * 8, 0, 0};
    return m;
}

/*
 * Fills the ring. Also a block without work waits for the kernel before: the next kernel relies on every block having waited.
 */
template <class P>
__device__ static inline void pl_produce(const typename P::Args &p, st_ring<P::STAGES> r, uint32_t xs,
                                         int items)
{
    bool early = P::EARLY;

    if (!P::EARLY)
        sl_after_previous();
    for (int w = P::first(); w < items; w += P::step()) {
        const typename P::Item t = P::item(p, w);
        const int stages = P::stages(p, t);
        for (int g = 0; early && g < P::STAGES && g < stages; g++)
            P::copy_weights(p, t, r.base + g * pl_sizes<P>::STAGE, r.full + g * 8, g);
        if (early)
            sl_after_previous();
        for (int g = 0; g < stages; g += P::TOGETHER) {
            st_ring<P::STAGES> at[P::TOGETHER]; /* the stages that are filled together */
            bool fill[P::TOGETHER];             /* their weights are not copied yet */

#pragma unroll
            for (int i = 0; i < P::TOGETHER; i++) {
                at[i] = i ? at[i - 1] : r;
                if (i)
                    st_next(at[i]);
                fill[i] = g + i < stages && (!early || g + i >= P::STAGES);
                if (fill[i])
                    sl_mbar_wait(at[i].empty + at[i].stage * 8, at[i].phase ^ 1);
            }
#pragma unroll
            for (int i = 0; i < P::TOGETHER; i++)
                if (fill[i])
                    P::copy_weights(p, t, at[i].base + at[i].stage * pl_sizes<P>::STAGE,
                                    at[i].full + at[i].stage * 8, g + i);
#pragma unroll
            for (int i = 0; i < P::TOGETHER; i++)
                if (g + i < stages) {
                    P::copy_tokens(p, t, r.base + r.stage * pl_sizes<P>::STAGE + P::BOXES * ST_BOX_BYTES,
                                   xs + r.stage * P::XS, r.full + r.stage * 8, g + i);
                    st_next(r);
                }
        }
        early = false;
    }
    if (early)
        sl_after_previous();
}

/* One product of the stage at `at`: 64 tokens by one box, 128 bytes of k. */
template <bool F8>
__device__ static inline void pl_dot(float (&d)[64], uint32_t tokens, uint32_t box, int k, bool add)
{
    st_product<F8>(d, sl_desc_k(tokens) + 2 * k, sl_desc_k(box) + 2 * k, add);
}

/*
 * acc[m][b] = the products of 64 tokens (those of tile m) with the outputs of box b over `stages` stages of the ring, of which it
 * releases each. tokens, box: offsets in a stage of the first tile and of the first box of this warpgroup; row: among the scales of
 * a stage that of the first token of this thread. scale(b, g): that of box b in stage g. ROWS: rows of a tile that can be
 * tokens; of the others acc is not computed. exists: false: the stages are released only.
 */
template <class P, bool F8, int ROWS, int M, int N, class SCALE>
__device__ static inline void pl_multiply(st_ring<P::STAGES> &r, const float *xs, int tokens, int box,
                                          int row, int stages, bool exists, const SCALE &scale,
                                          float (&acc)[M][N][64])
{
    const bool real = ROWS >= 64 || row < ROWS; /* the same for all lanes of a warp */

#pragma unroll
    for (int i = 0; i < M * N * 64; i++)
        acc[i / (N * 64)][i / 64 % N][i % 64] = 0;
    for (int g = 0; g < stages; g++, st_next(r)) {
        uint32_t at = r.base + r.stage * pl_sizes<P>::STAGE;
        const float *x = xs + r.stage * (P::XS / 4) + row;
        float w[N];
#pragma unroll
        for (int b = 0; b < N; b++)
            w[b] = F8 ? scale(b, g) : 0;
        sl_mbar_wait(r.full + r.stage * 8, r.phase);
        if (!exists) {
            st_release(r);
            continue;
        }
        if constexpr (F8) {
            float x0[M], x1[M];
#pragma unroll
            for (int m = 0; P::SCALES_FIRST && m < M; m++)
                x0[m] = x[m * 64], x1[m] = x[m * 64 + 8];
#pragma unroll
            for (int i = 0; i < M * N; i++) {
                const int m = i / N, b = i % N;
                float d[64], s0 = 0,
                             s1 = 0; /* d of its own: the sums of a box may overlap the next product */
                if (P::SCALES_FIRST)
                    s0 = __fmul_rn(x0[m], w[b]), s1 = __fmul_rn(x1[m], w[b]);
                sl_wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    pl_dot<true>(d, at + tokens + m * ST_X_BYTES, at + box + b * ST_BOX_BYTES, k, k > 0);
                if (!P::SCALES_FIRST && real)
                    s0 = __fmul_rn(x[m * 64], w[b]), s1 = __fmul_rn(x[m * 64 + 8], w[b]);
                sl_wgmma_finish();
                if (i == M * N - 1)
                    st_release(r);
                if (real) {
#pragma unroll
                    for (int j = 0; j < 64; j++)
                        acc[m][b][j] = fmaf(d[j], j & 2 ? s1 : s0, acc[m][b][j]);
                }
            }
        } else {
            sl_wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int i = 0; i < M * N; i++)
                    pl_dot<false>(acc[i / N][i % N], at + tokens + i / N * ST_X_BYTES,
                                  at + box + i % N * ST_BOX_BYTES, k, true);
            sl_wgmma_finish();
            st_release(r);
        }
    }
}

/* Scales of a box's stages, which the lanes of a warp keep: of at most ST_SCALES stages. */
struct pl_scales {
    float s0, s1;
};

__device__ static inline pl_scales pl_load_scales(const float *s, int n)
{
    int lane = threadIdx.x & 31;

    return {lane < n ? s[lane] : 0, lane + 32 < n ? s[lane + 32] : 0};
}

__device__ static inline float pl_scale(const pl_scales &s, int g)
{
    return __shfl_sync(0xffffffffu, g < 32 ? s.s0 : s.s1, g & 31);
}

/* Stores row half h of a box (a thread's rows are st_row() + 8 h) as bf16 at `out`, in lines of 16 bytes; blocks: of eight outputs
 * that exist; real: the row exists. All lanes of a warp call it. */
__device__ static inline void pl_store_bf16(__nv_bfloat16 *out, const float (&v)[64], int h, int blocks,
                                            bool real)
{
    int q = threadIdx.x & 3;

#pragma unroll
    for (int j = 0; j < 16; j += 4) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = st_pack(v[4 * (j + i) + 2 * h], v[4 * (j + i) + 2 * h + 1]);
        uint4 line = st_turn(w[0], w[1], w[2], w[3]);
        if (real && j + q < blocks)
            *(uint4 *)(out + 8 * (j + q)) = line;
    }
}

/* The same as e4m3, with the values multiplied by inv, the inverse of their scale. */
__device__ static inline void pl_store_e4m3(uint8_t *out, const float (&v)[64], float inv, int h, bool real)
{
    int q = threadIdx.x & 3;

#pragma unroll
    for (int j = 0; j < 16; j += 8) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *b = v + 4 * (j + 2 * i) + 2 * h; /* values of two blocks of eight columns */
            w[i] = (uint32_t)sl_e4m3(b[0] * inv) | (uint32_t)sl_e4m3(b[1] * inv) << 8 |
                   (uint32_t)sl_e4m3(b[4] * inv) << 16 | (uint32_t)sl_e4m3(b[5] * inv) << 24;
        }
        uint4 t = st_turn(w[0], w[1], w[2], w[3]);
        if (real)
            *(uint4 *)(out + 8 * (j + 2 * q)) =
                make_uint4(__byte_perm(t.x, t.y, 0x5410), __byte_perm(t.z, t.w, 0x5410),
                           __byte_perm(t.x, t.y, 0x7632), __byte_perm(t.z, t.w, 0x7632));
    }
}
#endif

template <class P>
__global__ static void __launch_bounds__(P::THREADS, 1) pl_kernel(const __grid_constant__ typename P::Args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    pl_memory<P> m = pl_memory_of<P>(raw);

    if (threadIdx.x == 0)
        st_init_stages<P::STAGES, P::MULTIPLIERS>(m.ring.full, m.ring.empty);
    if (P::LET_NEXT)
        sl_let_next_start();
    __syncthreads();
    const int items = P::items(p);
    if (threadIdx.x >= P::MULTIPLIERS) {
        if constexpr (P::COPY_REGS > 0)
            sl_registers_give<P::COPY_REGS>();
        if (threadIdx.x == P::MULTIPLIERS)
            pl_produce<P>(p, m.ring, sl_smem_addr(m.xs), items);
        P::copied(p);
    } else {
        if constexpr (P::COPY_REGS > 0)
            sl_registers_take<P::MULTIPLY_REGS>();
        P::consume(p, m, items);
    }
#endif
}

/* early: this launch may begin before the kernel before it ends; cluster: blocks of a cluster, or 0. */
template <class P>
static sl_status pl_launch(sl_cuda *cu, const typename P::Args &p, dim3 grid, bool early, int cluster,
                           sl_err *err)
{
    return sl_cuda_launch(cu, P::name(), pl_kernel<P>,
                          sl_launch{grid, P::THREADS, (size_t)pl_sizes<P>::SMEM, early, cluster}, err, p);
}

#endif
