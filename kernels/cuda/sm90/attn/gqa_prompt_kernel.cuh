/*
 * Inside gqa_prompt_64.cu, gqa_prompt_128.cu and gqa_prompt_256.cu: the two warpgroups that multiply, the kernel for one
 * head dimension, and its launch.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_KERNEL_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_KERNEL_CUH
#include "kernels/cuda/sm90/attn/gqa_prompt_bytes.cuh"
#include "kernels/cuda/sm90/attn/gqa_prompt_multiply.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* What a warpgroup has while it computes a unit. */
template <int DIM> struct gqa_prompt {
    typedef gqa_prompt_size<DIM> size;
    gqa_row_state st[2];
    gqa_sum<DIM> o;
    float keep[2], take[2]; /* the factors of the merge of a segment */
    float4 *kept;
    gqa_prompt_shared *x;
    uint32_t q, ring;
    float scale;
    int wg, it, at;  /* number of the step in the ring, its first token */
    bool any;        /* whether a row of this warp is not empty */
    bool wide;       /* whether a group of rows can lie in two warps */
    uint32_t own[2]; /* with SKIP, of each row: the votes of its group in this warp */
    bool
        empty; /* nothing was added to o since the segment began: what o holds is undefined, and stands for 0 */

    __device__ int stage() const
    {
        return it % size::STAGES;
    }
    __device__ uint32_t keys() const
    {
        return ring + stage() * 2 * size::SIDE;
    }
    __device__ void wait(uint64_t *full) const
    {
        sl_mbar_wait(&full[stage()], it / size::STAGES & 1);
    }
};

/* Scores to weights, of the step whose products with the keys are complete; mid: see gqa_soften_some(). Returns the tiles
 * that this warp leaves out. */
template <int DIM, bool SKIP, class MID>
__device__ static inline uint32_t
gqa_prompt_weigh(gqa_prompt<DIM> &y, float (&s)[gqa_prompt_size<DIM>::STEP / 2], float (&fix)[2], MID mid)
{
    const int step = gqa_prompt_size<DIM>::STEP;
    int left[2] = {y.st[0].limit - y.at, y.st[1].limit - y.at};
    float best[2][step / 64], top[2];
    uint32_t out = 0;

    if (__any_sync(0xffffffffu, left[0] < step || left[1] < step))
        gqa_mask(s, left);
    if (SKIP) {
        out = gqa_vote(s, y.st, best, y.x->vote[y.it & 1][y.wg], y.x->group[y.wg], y.own, y.at, y.scale,
                       y.wide ? BAR_GROUP + y.wg : 0);
        gqa_tops(best, top);
    } else {
        top[0] = __fmul_rn(gqa_largest<step / 2>(s, 0, 0), y.scale);
        top[1] = __fmul_rn(gqa_largest<step / 2>(s, 0, 1), y.scale);
    }
    gqa_soften_some(s, y.st, top, y.scale, out, fix, mid);
    return out;
}

/*
 * Waits for the products with the values of stage `stage`, and gives the stage back. least: not negative, and made of all
 * weights so far: without a branch that needs it the compiler waits before it computes the exponentials, which are there
 * to hide these products.
 */
template <int DIM> __device__ static inline void gqa_prompt_added(gqa_prompt<DIM> &y, int stage, float least)
{
    if (least < 0)
        sl_yield();
    sl_wgmma_wait<0>();
    gqa_arrived(y.o);
    gqa_warp_arrive(&y.x->empty_v[stage]);
}

/* The sums of a segment are complete: the factors of its merge; the next one begins. */
template <int DIM> __device__ static inline void gqa_prompt_end_sums(gqa_prompt<DIM> &y)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        gqa_row_state &st = y.st[r];
        float l = __fadd_rn(st.l, __shfl_xor_sync(0xffffffffu, st.l, 1));

        l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
        y.keep[r] = 0, y.take[r] = 1;
        if (y.at < SEGMENT)
            st.all_m = st.m, st.all_l = l;
        else
            gqa_merge_sums(st.all_m, st.all_l, st.m, l, &y.keep[r], &y.take[r]);
        st.m = -INFINITY, st.l = 0;
    }
}

/* Merges the segment in o with the earlier ones; unless it is the last one, the result waits where they did. */
template <int DIM, bool SKIP>
__device__ static inline void gqa_prompt_merge(gqa_prompt<DIM> &y, bool first, bool last)
{
    const int n = gqa_sum<DIM>::COLS / 8;
    const bool shared = gqa_prompt_size<DIM>::KEPT > 0;

#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        float *v = &y.o.o[i / n][i % n * 4];

        if (SKIP && y.empty) /* every tile of the segment was left out */
            v[0] = v[1] = v[2] = v[3] = 0;
        if (!first) {
            float4 old = shared ? y.kept[i * 128] : __ldcg(y.kept + i * 128);
            v[0] = gqa_merge(old.x, y.keep[0], v[0], y.take[0]);
            v[1] = gqa_merge(old.y, y.keep[0], v[1], y.take[0]);
            v[2] = gqa_merge(old.z, y.keep[1], v[2], y.take[1]);
            v[3] = gqa_merge(old.w, y.keep[1], v[3], y.take[1]);
        }
        if (DIM > 128 && i % 4 == 3)
            asm volatile("" ::: "memory"); /* or the loads of all columns are in registers together */
        if (last)
            continue;
        if (shared)
            y.kept[i * 128] = make_float4(v[0], v[1], v[2], v[3]);
        else
            __stcg(y.kept + i * 128, make_float4(v[0], v[1], v[2], v[3]));
    }
}

/* The weights of a step as an operand, zeros for the tiles in `out`. */
template <int DIM, bool SKIP>
__device__ static inline void gqa_prompt_pack(uint32_t (&p)[gqa_prompt_size<DIM>::STEP / 16][4],
                                              const float (&s)[gqa_prompt_size<DIM>::STEP / 2], uint32_t out)
{
    const int step = gqa_prompt_size<DIM>::STEP;

#pragma unroll
    for (int tile = 0; tile < step / GQA_TILE; tile++) {
        bool none = SKIP && out >> tile & 1;

#pragma unroll
        for (int i = tile * 16; i < tile * 16 + 16; i++)
            p[i / 4][i % 4] = none ? 0 : gqa_pack(s[2 * i], s[2 * i + 1]);
    }
}

/* A descriptor and a number of bytes after what it names. */
__device__ static inline uint64_t gqa_desc_at(uint64_t desc, uint32_t bytes)
{
    return desc & 0xffffffff00000000ull | (uint32_t)desc + (bytes >> 4);
}

/* Starts the products of the queries with the keys of a step. */
template <int DIM>
__device__ static inline void gqa_prompt_score(float (&s)[gqa_prompt_size<DIM>::STEP / 2], uint32_t q,
                                               uint32_t k)
{
    const int step = gqa_prompt_size<DIM>::STEP;
    const uint64_t dq = sl_desc_k(q), dk = sl_desc_k(k);

    sl_wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        gqa_product(s, gqa_desc_at(dq, i / 4 * SL_TILE + i % 4 * 32),
                    gqa_desc_at(dk, i / 4 * (step * 128) + i % 4 * 32), i > 0);
    sl_wgmma_commit();
}

/* Starts to add the values of a step, except those of the tiles in OUT. While y.empty, what o holds is not added to. */
template <int DIM, uint32_t OUT>
__device__ static inline void
gqa_prompt_add_some(gqa_prompt<DIM> &y, const uint32_t (&p)[gqa_prompt_size<DIM>::STEP / 16][4], uint32_t v)
{
    const int step = gqa_prompt_size<DIM>::STEP, n = gqa_sum<DIM>::N, all = step / 16 * n,
              from = (OUT & 1) * 4 * n;
    const uint64_t dv = sl_desc_mn(v, step * 128);

    sl_wgmma_fence();
#pragma unroll
    for (int i = from; i < all; i++) {
        if (OUT >> (i / n / 4) & 1)
            continue;
        sl_wgmma_bf16_mn(y.o.o[i % n], p[i / n],
                         gqa_desc_at(dv, i % n * 2 * (step * 128) + i / n * SL_TILE_16),
                         i >= from + n || !y.empty);
    }
    sl_wgmma_commit();
    y.empty = false;
}

/* The same for tiles that are known late. Each case ends its group by itself: if one commit follows all cases, the compiler
 * makes each tile a group of its own, and a wait for the scores then waits for the values too. */
template <int DIM, bool SKIP>
__device__ static inline void gqa_prompt_add(gqa_prompt<DIM> &y,
                                             const uint32_t (&p)[gqa_prompt_size<DIM>::STEP / 16][4],
                                             uint32_t v, uint32_t out)
{
    const int tiles = gqa_prompt_size<DIM>::STEP / GQA_TILE;

    if (!SKIP || out == 0)
        gqa_prompt_add_some<DIM, 0>(y, p, v);
    else if (out == (1u << tiles) - 1)
        sl_wgmma_commit();
    else if (out == 1)
        gqa_prompt_add_some<DIM, tiles == 2 ? 1 : 0>(y, p, v);
    else
        gqa_prompt_add_some<DIM, tiles == 2 ? 2 : 0>(y, p, v);
}

/* The tiles of step `it` that the warpgroup leaves out; a barrier of the warpgroup lies between the votes and this. */
template <int DIM, bool SKIP>
__device__ static inline uint32_t gqa_prompt_out(const gqa_prompt<DIM> &y, int it)
{
    return SKIP ? gqa_left_out<gqa_prompt_size<DIM>::STEP / GQA_TILE>(*(const uint4 *)y.x->vote[it & 1][y.wg])
                : 0;
}

/*
 * The walk over the steps of a unit up to token `end`. The products with the keys of the next step and with the values of
 * this one are in flight together, and while the latter run, the next weights are computed. The warpgroups take turns to
 * start products, so that one computes weights while the other one has the tensor cores.
 */
template <int DIM, bool SKIP> __device__ static inline void gqa_prompt_walk(gqa_prompt<DIM> &y, int end)
{
    typedef gqa_prompt_size<DIM> size;
    float s[size::STEP / 2], fix[2];
    uint32_t p[size::STEP / 16][4], out;

    y.wait(y.x->full_k);
    gqa_prompt_score<DIM>(s, y.q, y.keys());
    sl_wgmma_wait<0>();
    gqa_warp_arrive(&y.x->empty_k[y.stage()]);
    out = gqa_prompt_weigh<DIM, SKIP>(y, s, fix, [](float) {});
    y.empty = true;
    gqa_prompt_pack<DIM, SKIP>(p, s, out);
    while (y.at + size::STEP < end) {
        uint32_t v = y.keys() + size::SIDE;
        int stage = y.stage();
        bool ends = (y.at + size::STEP) % SEGMENT == 0, first = y.at < SEGMENT;
        uint64_t *full_v = &y.x->full_v[stage];
        uint32_t phase = y.it / size::STAGES & 1;

        y.it++;
        y.wait(y.x->full_k);
        sl_bar_sync(BAR_TURN + y.wg, 256);
        out = gqa_prompt_out<DIM, SKIP>(y, y.it - 1);
        gqa_prompt_score<DIM>(s, y.q, y.keys());
        sl_mbar_wait(full_v, phase);
        gqa_prompt_add<DIM, SKIP>(y, p, v, out);
        sl_bar_arrive(BAR_TURN + 1 - y.wg, 256);
        sl_wgmma_wait<1>();
        sl_wgmma_results(s);
        gqa_warp_arrive(&y.x->empty_k[y.stage()]);
        if (ends)
            gqa_prompt_end_sums(y);
        y.at += size::STEP;
        out = gqa_prompt_weigh<DIM, SKIP>(y, s, fix, [&](float least) { gqa_prompt_added(y, stage, least); });
        if (ends) {
            if (y.any)
                gqa_prompt_merge<DIM, SKIP>(y, first, false);
            y.empty = true;
        }
        if (__any_sync(0xffffffffu, fix[0] != 1.0f || fix[1] != 1.0f))
            gqa_scale(y.o, fix);
        gqa_prompt_pack<DIM, SKIP>(p, s, out);
    }
    y.wait(y.x->full_v);
    if (SKIP)
        sl_bar_sync(BAR_GROUP + y.wg, 128);
    gqa_prompt_add<DIM, SKIP>(y, p, y.keys() + size::SIDE, gqa_prompt_out<DIM, SKIP>(y, y.it));
    gqa_prompt_end_sums(y);
    sl_wgmma_wait<0>();
    gqa_arrived(y.o);
    gqa_warp_arrive(&y.x->empty_v[y.stage()]);
    if (y.any)
        gqa_prompt_merge<DIM, SKIP>(y, y.at < SEGMENT, true);
    y.it++;
}

template <int DIM, bool SKIP>
__device__ static inline void gqa_prompt_multiply(const gqa_prompt_work &w, uint8_t *smem,
                                                  gqa_prompt_shared *x, int wg)
{
    typedef gqa_prompt_size<DIM> size;
    int units = gqa_units(w), mine = threadIdx.x & 127, row = mine / 32 * 16 + (mine & 31) / 4;
    gqa_prompt<DIM> y;

    y.kept = size::KEPT ? (float4 *)(smem + size::QUERIES + wg * (size::KEPT / 2)) + mine
                        : (float4 *)w.partial + ((int64_t)blockIdx.x * 2 + wg) * (DIM / 8 * 128) + mine;
    y.x = x;
    y.q = sl_smem_addr(smem) + wg * ROWS * DIM * 2;
    y.ring = sl_smem_addr(smem) + size::RING;
    y.scale = w.g.p.scale * LOG2E;
    y.wg = wg, y.it = 0, y.wide = ROWS / 4 % w.g.group != 0;
    if (wg == 1)
        sl_bar_arrive(BAR_TURN, 256); /* the first turn is that of warpgroup 0 */
    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        gqa_unit u = gqa_unit_at(w, i);
        int end = gqa_list_of(w.g, u.t + u.count - 1, u.kv_head).n, gone = gqa_gone(w, u);

        sl_bar_sync(BAR_GROUP + wg, 128); /* no warp reads the queries of the unit before */
        gqa_load_queries<DIM>(w, u, smem + wg * ROWS * DIM * 2, wg);
        if (SKIP && mine < ROWS)
            x->group[wg][mine] = gqa_vote_bits(mine - mine % w.g.group, w.g.group);
        sl_bar_sync(BAR_GROUP + wg, 128);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            y.st[r] = gqa_start_row(w, u, gone, wg, row + 8 * r);
            if (y.st[r].head < 0) /* nothing of an empty row is stored; it must not slow down the others */
                y.st[r].limit = INT_MAX;
        }
        if (SKIP)
#pragma unroll
            for (int r = 0; r < 2; r++)
                y.own[r] = ((const uint32_t *)&x->group[wg][row + 8 * r])[mine / 32];
        y.any = __any_sync(0xffffffffu, y.st[0].head >= 0 || y.st[1].head >= 0);
        y.at = 0;
        gqa_prompt_walk<DIM, SKIP>(y, end);
        gqa_store<DIM>(w, y.o, y.st);
    }
}
#endif

template <int DIM, bool SKIP, bool FP8>
__global__ static void __launch_bounds__(PROMPT_THREADS, 1)
    prompt_kernel(const __grid_constant__ gqa_prompt_work w, const __grid_constant__ CUtensorMap map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t smem[];
    gqa_prompt_shared *x = (gqa_prompt_shared *)(smem + gqa_prompt_size<DIM>::INFO);
    int wg = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);

    if (threadIdx.x == 0) {
        for (int i = 0; i < MAX_STAGES; i++) {
            sl_mbar_init(&x->full_k[i], FP8 ? 128 : 1);
            sl_mbar_init(&x->full_v[i], FP8 ? 128 : 1);
            sl_mbar_init(&x->empty_k[i], 8);
            sl_mbar_init(&x->empty_v[i], 8);
        }
        sl_mbar_init(&x->tail, 1);
        sl_mbar_init_fence();
    }
    __syncthreads();
    if (wg == 2 && FP8) {
        sl_registers_give<BYTES_BRING_REGS>();
        gqa_prompt_convert<DIM>(w, sl_smem_addr(smem), x);
    } else if (wg == 2) {
        sl_registers_give<PROMPT_BRING_REGS>();
        int side = __shfl_sync(0xffffffffu, threadIdx.x >> 5 & 3, 0);
        if (side < 2)
            gqa_prompt_bring<DIM>(w, &map, sl_smem_addr(smem), x, side);
    } else {
        sl_registers_take<FP8 ? BYTES_MULTIPLY_REGS : PROMPT_MULTIPLY_REGS>();
        gqa_prompt_multiply<DIM, SKIP>(w, smem, x, wg);
    }
#endif
}

template <int DIM, bool FP8>
static sl_status gqa_prompt_launch_rows(sl_cuda *cu, const gqa_prompt_work *w, const CUtensorMap *map,
                                        sl_err *err)
{
    const int smem = gqa_prompt_size<DIM>::INFO + (int)sizeof(gqa_prompt_shared);
    void (*kernel)(gqa_prompt_work, CUtensorMap) =
        w->g.p.skip_factor > 0 ? prompt_kernel<DIM, true, FP8> : prompt_kernel<DIM, false, FP8>;

    static_assert(smem <= 227 * 1024, "shared memory of a block");
    return SL_LAUNCH(cu, kernel, (sl_launch{dim3(cu->sms), PROMPT_THREADS, smem}), err, *w, *map);
}

template <int DIM>
static sl_status gqa_prompt_launch(sl_cuda *cu, const gqa_prompt_work *w, const CUtensorMap *map, sl_err *err)
{
    return w->g.p.format == SL_ROW_GQA_FP8 ? gqa_prompt_launch_rows<DIM, true>(cu, w, map, err)
                                           : gqa_prompt_launch_rows<DIM, false>(cu, w, map, err);
}

#endif
