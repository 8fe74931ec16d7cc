/*
 * Inside gqa_attn_tensor.cu: a warpgroup that multiplies 64 rows of queries with the keys of a step, turns the scores into
 * weights, and adds the weighted values. Its accumulators hold one segment of the list; merged segments wait in device
 * memory, each thread's part where that thread finds it again.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_MULTIPLY_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_MULTIPLY_CUH
#include "kernels/cuda/sm90/attn/gqa_attn_weights.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* ---- products ---- */

__device__ static inline void gqa_product(float (&s)[64], uint64_t a, uint64_t b, bool add)
{
    sl_wgmma_n128_bf16(s, a, b, add);
}

__device__ static inline void gqa_product(float (&s)[32], uint64_t a, uint64_t b, bool add)
{
    sl_wgmma_n64_bf16(s, a, b, add);
}

/* Starts the products of the queries with the keys of a step. */
template <int DIM, int STEP>
__device__ static inline void gqa_multiply_keys(float (&s)[STEP / 2], uint32_t q, uint32_t k)
{
    sl_wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        gqa_product(s, sl_desc_k(q + i / 4 * SL_TILE + i % 4 * 32),
                    sl_desc_k(k + i / 4 * (STEP * 128) + i % 4 * 32), i > 0);
    sl_wgmma_commit();
}

/* The accumulators of a thread: instructions of at most 128 columns. */
template <int DIM> struct gqa_sum {
    static constexpr int COLS = DIM < 128 ? DIM : 128, N = DIM / COLS;
    float o[N][COLS / 2];
};

/* Adds the values of one tile of a step; v: the step's. */
template <int DIM, int STEP>
__device__ static inline void gqa_add_tile(gqa_sum<DIM> &o, const uint32_t (&p)[STEP / 16][4], uint32_t v,
                                           int tile)
{
#pragma unroll
    for (int i = tile * 4; i < tile * 4 + 4; i++)
#pragma unroll
        for (int n = 0; n < gqa_sum<DIM>::N; n++)
            sl_wgmma_bf16_mn(o.o[n], p[i], sl_desc_mn(v + n * 2 * (STEP * 128) + i * SL_TILE_16, STEP * 128),
                             true);
}

/* The weights of a step as an operand. */
template <int STEP>
__device__ static inline void gqa_pack_weights(uint32_t (&p)[STEP / 16][4], const float (&s)[STEP / 2])
{
#pragma unroll
    for (int i = 0; i < STEP / 4; i++)
        p[i / 4][i % 4] = gqa_pack(s[2 * i], s[2 * i + 1]);
}

/* Starts to add the values of a step. */
template <int DIM, int STEP>
__device__ static inline void gqa_multiply_values(gqa_sum<DIM> &o, const uint32_t (&p)[STEP / 16][4],
                                                  uint32_t v)
{
    sl_wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < STEP / GQA_TILE; tile++)
        gqa_add_tile<DIM, STEP>(o, p, v, tile);
    sl_wgmma_commit();
}

/* Adds the values of a step, except those of the tiles in `out`. */
template <int DIM, int STEP>
__device__ static inline void gqa_add_some(gqa_sum<DIM> &o, const uint32_t (&p)[STEP / 16][4], uint32_t v,
                                           uint32_t out)
{
    if (out == 0) {
        gqa_multiply_values<DIM, STEP>(o, p, v);
        sl_wgmma_wait<0>();
        return;
    }
#pragma unroll
    for (int tile = 0; tile < STEP / GQA_TILE; tile++)
        if (!(out >> tile & 1)) {
            sl_wgmma_fence();
            gqa_add_tile<DIM, STEP>(o, p, v, tile);
            sl_wgmma_finish();
        }
}

/* ---- segments ---- */

/* Merges the segment in o with the earlier ones, which are in device memory; unless it is the last one, the result goes
 * there. */
template <int DIM>
__device__ static inline void gqa_merge_part(gqa_sum<DIM> &o, float4 *at, const float (&keep)[2],
                                             const float (&take)[2], bool first, bool last)
{
    const int n = gqa_sum<DIM>::COLS / 8;

#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        float *v = &o.o[i / n][i % n * 4];

        if (!first) {
            float4 old = __ldcg(at + i * 128);
            v[0] = gqa_merge(old.x, keep[0], v[0], take[0]), v[1] = gqa_merge(old.y, keep[0], v[1], take[0]);
            v[2] = gqa_merge(old.z, keep[1], v[2], take[1]), v[3] = gqa_merge(old.w, keep[1], v[3], take[1]);
        }
        if (!last)
            __stcg(at + i * 128, make_float4(v[0], v[1], v[2], v[3]));
    }
}

/* Writes two values of a row's output: column c of the head. */
template <int DIM>
__device__ static inline void gqa_store2(const gqa_tensor_work &w, const gqa_row_state &x, int c, float a,
                                         float b)
{
    a = gqa_output(a, x.all_l), b = gqa_output(b, x.all_l);
    *(uint32_t *)((__nv_bfloat16 *)w.g.p.out + x.head * DIM + c) = gqa_pack(a, b);
}

/* The results of a unit: the output; or of a part of a list, sums and what belongs to them. */
template <int DIM>
__device__ static inline void gqa_store(const gqa_tensor_work &w, const gqa_unit &u, const gqa_sum<DIM> &o,
                                        const gqa_row_state (&x)[2])
{
    const int n = gqa_sum<DIM>::COLS / 8;
    int c = (threadIdx.x & 3) * 2;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (x[r].head < 0)
            continue;
        float *part = w.partial + (x[r].head * w.parts + u.part) * (DIM + 4);

        if (w.parts > 1 && c == 0)
            part[DIM] = x[r].all_m, part[DIM + 1] = x[r].all_l;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            float a = o.o[j / n][j % n * 4 + r * 2], b = o.o[j / n][j % n * 4 + r * 2 + 1];

            if (w.parts > 1)
                *(float2 *)(part + j * 8 + c) = make_float2(a, b);
            else
                gqa_store2<DIM>(w, x[r], j * 8 + c, a, b);
        }
        if (x[r].below > -INFINITY && c == 0 && x[r].head % w.g.group == 0) {
            atomicAdd((unsigned long long *)w.g.p.tiles, (unsigned long long)x[r].tiles);
            atomicAdd((unsigned long long *)w.g.p.tiles + 1, (unsigned long long)x[r].out);
        }
    }
}

/* ---- a unit ---- */

/* What a warpgroup has while it computes a unit. */
template <int DIM, int GROUPS> struct gqa_walk {
    typedef gqa_size<DIM, GROUPS> size;
    gqa_row_state st[2];
    gqa_sum<DIM> o;
    float keep[2], take[2]; /* the factors of the merge of a segment */
    float4 *kept;
    gqa_shared *x;
    uint32_t q, ring;
    float scale;
    int wg, it, at, begin; /* number of the step in the ring, its first token, the unit's first token */
    bool any;              /* whether a row of this warp is not empty */

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
        sl_fence_async();
    }
    __device__ bool ends(bool last) const
    {
        return last || (at + size::STEP) % SEGMENT == 0;
    }
};

/* Scores to weights, of the step whose products with the keys are complete. Returns the tiles that are left out. */
template <int DIM, int GROUPS, bool SKIP>
__device__ static inline uint32_t gqa_weigh(gqa_walk<DIM, GROUPS> &y, const gqa_tensor_work &w,
                                            float (&s)[gqa_size<DIM, GROUPS>::STEP / 2], int rows,
                                            float (&fix)[2])
{
    const int step = gqa_size<DIM, GROUPS>::STEP;
    int left[2] = {min(rows, y.st[0].limit - y.at), min(rows, y.st[1].limit - y.at)};
    uint32_t out = 0;

    if (__any_sync(0xffffffffu, left[0] < step || left[1] < step))
        gqa_mask(s, left);
    if (SKIP)
        out = gqa_leave_out(s, y.st, y.x->vote[y.it & 1][y.wg], w, y.at, y.scale, y.wg);
    gqa_soften(s, y.st, y.scale, fix);
    return out;
}

/* The sums of a segment are complete: the factors of its merge; the next one begins. */
template <int DIM, int GROUPS> __device__ static inline void gqa_end_sums(gqa_walk<DIM, GROUPS> &y)
{
    bool first = y.at - y.begin < SEGMENT;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        gqa_row_state &st = y.st[r];
        float l = __fadd_rn(st.l, __shfl_xor_sync(0xffffffffu, st.l, 1));

        l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
        y.keep[r] = 0, y.take[r] = 1;
        if (first)
            st.all_m = st.m, st.all_l = l;
        else
            gqa_merge_sums(st.all_m, st.all_l, st.m, l, &y.keep[r], &y.take[r]);
        st.m = -INFINITY, st.l = 0;
    }
}

template <int DIM> __device__ static inline void gqa_scale(gqa_sum<DIM> &o, const float (&fix)[2])
{
    const int n = gqa_sum<DIM>::COLS / 2;

#pragma unroll
    for (int i = 0; i < DIM / 2; i++)
        o.o[i / n][i % n] = __fmul_rn(o.o[i / n][i % n], fix[i / 2 % 2]);
}

/* The products that add to o are complete. */
template <int DIM> __device__ static inline void gqa_arrived(gqa_sum<DIM> &o)
{
#pragma unroll
    for (int n = 0; n < gqa_sum<DIM>::N; n++)
        sl_wgmma_results(o.o[n]);
}

template <int DIM> __device__ static inline void gqa_clear(gqa_sum<DIM> &o)
{
    const int n = gqa_sum<DIM>::COLS / 2;

#pragma unroll
    for (int i = 0; i < DIM / 2; i++)
        o.o[i / n][i % n] = 0;
}

/* The walk over the steps: the products with the keys of the next step run while the values of this one are added, and
 * while both run, the next weights are computed. */
template <int DIM, int GROUPS>
__device__ static inline void gqa_walk_steps(gqa_walk<DIM, GROUPS> &y, const gqa_tensor_work &w)
{
    typedef gqa_size<DIM, GROUPS> size;
    float s[size::STEP / 2], fix[2];
    uint32_t p[size::STEP / 16][4];
    bool last;

    y.wait(y.x->full_k);
    last = y.x->last[y.stage()];
    int rows = y.x->rows[y.stage()];
    gqa_multiply_keys<DIM, size::STEP>(s, y.q, y.keys());
    sl_wgmma_wait<0>();
    gqa_warp_arrive(&y.x->empty_k[y.stage()]);
    gqa_weigh<DIM, GROUPS, false>(y, w, s, rows, fix);
    gqa_clear(y.o);
    while (!last) {
        int v = y.stage();
        bool ends = y.ends(false);

        gqa_pack_weights<size::STEP>(p, s);
        y.wait(y.x->full_v);
        y.it++;
        y.wait(y.x->full_k);
        last = y.x->last[y.stage()];
        rows = y.x->rows[y.stage()];
        gqa_multiply_keys<DIM, size::STEP>(s, y.q, y.keys());
        gqa_multiply_values<DIM, size::STEP>(y.o, p, y.ring + (v * 2 + 1) * size::SIDE);
        sl_wgmma_wait<1>();
        sl_wgmma_results(s);
        gqa_warp_arrive(&y.x->empty_k[y.stage()]);
        if (ends)
            gqa_end_sums(y);
        bool first = y.at - y.begin < SEGMENT;
        y.at += size::STEP;
        gqa_weigh<DIM, GROUPS, false>(y, w, s, rows, fix);
        sl_wgmma_wait<0>();
        gqa_arrived(y.o);
        gqa_warp_arrive(&y.x->empty_v[v]);
        if (ends) {
            if (y.any && w.parts == 1)
                gqa_merge_part<DIM>(y.o, y.kept, y.keep, y.take, first, false);
            gqa_clear(y.o);
        } else if (__any_sync(0xffffffffu, fix[0] != 1.0f || fix[1] != 1.0f)) {
            gqa_scale(y.o, fix);
        }
    }
    gqa_pack_weights<size::STEP>(p, s);
    y.wait(y.x->full_v);
    gqa_multiply_values<DIM, size::STEP>(y.o, p, y.keys() + size::SIDE);
    gqa_end_sums(y);
    sl_wgmma_wait<0>();
    gqa_arrived(y.o);
    gqa_warp_arrive(&y.x->empty_v[y.stage()]);
    if (y.any && w.parts == 1)
        gqa_merge_part<DIM>(y.o, y.kept, y.keep, y.take, y.at - y.begin < SEGMENT, true);
    y.it++;
}

/* The same, one product after the other, with the rule of skip_factor. */
template <int DIM, int GROUPS>
__device__ static inline void gqa_walk_some(gqa_walk<DIM, GROUPS> &y, const gqa_tensor_work &w)
{
    typedef gqa_size<DIM, GROUPS> size;

    gqa_clear(y.o);
    for (bool last = false; !last; y.at += size::STEP, y.it++) {
        float s[size::STEP / 2], fix[2];
        uint32_t p[size::STEP / 16][4], out;

        y.wait(y.x->full_k);
        last = y.x->last[y.stage()];
        int rows = y.x->rows[y.stage()];
        gqa_multiply_keys<DIM, size::STEP>(s, y.q, y.keys());
        sl_wgmma_wait<0>();
        gqa_warp_arrive(&y.x->empty_k[y.stage()]);
        out = gqa_weigh<DIM, GROUPS, true>(y, w, s, rows, fix);
        if (__any_sync(0xffffffffu, fix[0] != 1.0f || fix[1] != 1.0f))
            gqa_scale(y.o, fix);
        gqa_pack_weights<size::STEP>(p, s);
        y.wait(y.x->full_v);
        gqa_add_some<DIM, size::STEP>(y.o, p, y.keys() + size::SIDE, out);
        gqa_warp_arrive(&y.x->empty_v[y.stage()]);
        if (!y.ends(last))
            continue;
        gqa_end_sums(y);
        if (y.any)
            gqa_merge_part<DIM>(y.o, y.kept, y.keep, y.take, y.at - y.begin < SEGMENT, last);
        if (!last)
            gqa_clear(y.o);
    }
}

template <int DIM, int GROUPS, bool SKIP>
__device__ static inline void gqa_multiply(const gqa_tensor_work &w, uint8_t *smem, gqa_shared *x, int wg)
{
    int units = gqa_units(w), row = (threadIdx.x & 127) / 32 * 16 + (threadIdx.x & 31) / 4;
    gqa_walk<DIM, GROUPS> y;

    y.kept =
        (float4 *)w.partial + ((int64_t)blockIdx.x * GROUPS + wg) * (DIM / 8 * 128) + (threadIdx.x & 127);
    y.x = x;
    y.q = sl_smem_addr(smem) + wg * ROWS * DIM * 2;
    y.ring = sl_smem_addr(smem) + gqa_size<DIM, GROUPS>::QUERIES;
    y.scale = w.g.p.scale * LOG2E;
    y.wg = wg, y.it = 0;
    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        gqa_unit u = gqa_unit_at(w, i);

        sl_bar_sync(1 + wg, 128); /* no warp reads the queries of the unit before */
        gqa_load_queries<DIM>(w, u, smem + wg * ROWS * DIM * 2, wg);
        sl_bar_sync(1 + wg, 128);
        int gone = gqa_gone(w, u);

        y.st[0] = gqa_start_row(w, u, gone, wg, row);
        y.st[1] = gqa_start_row(w, u, gone, wg, row + 8);
        y.any = __any_sync(0xffffffffu, y.st[0].head >= 0 || y.st[1].head >= 0);
        y.at = y.begin = w.parts > 1 ? u.part * SEGMENT : 0;
        if (SKIP)
            gqa_walk_some(y, w);
        else
            gqa_walk_steps(y, w);
        gqa_store<DIM>(w, u, y.o, y.st);
    }
}
#endif

#endif
