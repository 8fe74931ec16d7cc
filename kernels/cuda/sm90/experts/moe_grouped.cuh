/*
 * The device side of moe_grouped.cu: sorting pairs by expert, and the product.
 */
#ifndef SL_KERNELS_CUDA_SM90_EXPERTS_MOE_GROUPED_CUH
#define SL_KERNELS_CUDA_SM90_EXPERTS_MOE_GROUPED_CUH

#include "kernels/cuda/any/experts/moe_group.cuh"
#include "kernels/cuda/any/experts/moe_list.cuh"
#include "kernels/cuda/any/experts/moe_rows.cuh"

#define MG_ROWS 128 /* per tile */
#define MG_X_BYTES (MG_ROWS * ST_BOX)
#define MG_STAGE (2 * ST_BOX_BYTES + MG_X_BYTES)
#define MG_STAGES 4
#define MG_XS_BYTES (MG_ROWS * 4)
#define MG_SMEM (MG_STAGES * (MG_STAGE + MG_XS_BYTES + 16) + 1024)
#define MG_THREADS 384 /* two warpgroups that multiply, and one of which the first warp copies */

struct mg_rows {
    int32_t *pair;   /* [rows], -1 for padding */
    int32_t *row_of; /* [pairs], -1 without a row */
    int4 *tile;      /* expert, first row, rows | first tile of the expert << 8, tiles of the expert */
    int32_t *n_tiles;
};

__global__ static void __launch_bounds__(SL_MOE_MAX_EXPERTS)
    mg_group_kernel(const int32_t *ids, int pairs, int experts, mg_rows rows, sl_moe_arrived arrived,
                    uint32_t *deverr)
{
    if (sl_moe_list(arrived, deverr))
        return;
    sl_moe_group<MG_ROWS, 8, 8>(
        ids, pairs, experts, rows.pair, rows.n_tiles, deverr,
        [&](int e, int at, int first, int count, int base, int of) {
            rows.tile[at] = make_int4(e, first, count | base << 8, of);
        },
        [&](int i, int row) { rows.row_of[i] = row; });
}

struct mg_args {
    CUtensorMap x;              /* [rows][in], boxes of MG_ROWS */
    const CUtensorMap *wa, *wb; /* gate and up; or down, and wb is unused */
    const sl_weight *ta, *tb;
    mg_rows rows;
    const float *xs;    /* fp8: [groups][ld] */
    float *ms;          /* fp8, gate and up: scales of their result, [outs / 128][ld] */
    void *mid;          /* gate and up: their result, [rows][outs] */
    __nv_bfloat16 *res; /* down: [pairs][outs] */
    sl_moe_to to;       /* down: where they go instead */
    int ld, groups, outs, out_tiles;
    sl_glu glu; /* gate and up */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct mg_tile {
    int e, row, count, out[2]; /* out: the first output of each box */
};

/* The tile of work item w: expert by expert, and all rows of a pair of boxes before the next pair. */
template <bool DUAL> __device__ static inline mg_tile mg_tile_of(const mg_args &p, int w)
{
    int4 t = p.rows.tile[w / p.out_tiles];
    int first = t.z >> 8, in = w - first * p.out_tiles, o = in / t.w;
    mg_tile tile;

    t = p.rows.tile[first + in % t.w];
    tile.e = t.x, tile.row = t.y, tile.count = t.z & 255;
    tile.out[0] = o * (DUAL ? ST_BOX : 2 * ST_BOX);
    tile.out[1] = DUAL ? tile.out[0] : tile.out[0] + ST_BOX;
    return tile;
}

typedef st_ring<MG_STAGES> mg_ring;

template <bool F8, bool DUAL>
__device__ static void mg_produce(const mg_args &p, mg_ring r, uint32_t xs_base, int work)
{
    for (int w = blockIdx.x; w < work; w += gridDim.x) {
        mg_tile t = mg_tile_of<DUAL>(p, w);
        for (int g = 0; g < p.groups; g++, st_next(r)) {
            uint32_t at = r.base + r.stage * MG_STAGE, full = r.full + r.stage * 8;
            sl_mbar_wait(r.empty + r.stage * 8, r.phase ^ 1);
            sl_mbar_expect(full, MG_STAGE + (F8 ? MG_XS_BYTES : 0));
            sl_copy_box(at, p.wa + t.e, g * ST_BOX, t.out[0], full);
            sl_copy_box(at + ST_BOX_BYTES, (DUAL ? p.wb : p.wa) + t.e, g * ST_BOX, t.out[1], full);
            sl_copy_box(at + 2 * ST_BOX_BYTES, &p.x, g * ST_BOX, t.row, full);
            if (F8)
                sl_copy_bulk(xs_base + r.stage * MG_XS_BYTES, p.xs + (int64_t)g * p.ld + t.row, MG_XS_BYTES,
                             full);
        }
    }
}

/* fp8: the product of one group of 128 is a sum of its own per box; it is scaled and added to acc in float32. */
__device__ static inline void mg_group_f8(const mg_ring &r, uint64_t a, uint64_t b, const float (&x)[2],
                                          float wa, float wb, float (&acc)[2][64])
{
#pragma unroll
    for (int box = 0; box < 2; box++) {
        float d[64], w = box ? wb : wa, x0 = __fmul_rn(x[0], w), x1 = __fmul_rn(x[1], w);
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            st_product<true>(d, a + 2 * k, b + box * (ST_BOX_BYTES >> 4) + 2 * k, k > 0);
        }
        sl_wgmma_finish();
        if (box)
            st_release(r);
#pragma unroll
        for (int i = 0; i < 64; i++)
            acc[box][i] = fmaf(d[i], i & 2 ? x1 : x0, acc[box][i]);
    }
}

/* bf16: 64 values of k, added to one chain of sums over all of k. */
__device__ static inline void mg_group_bf16(const mg_ring &r, uint64_t a, uint64_t b, float (&acc)[2][64])
{
    sl_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        st_product<false>(acc[0], a + 2 * k, b + 2 * k, true);
        st_product<false>(acc[1], a + 2 * k, b + (ST_BOX_BYTES >> 4) + 2 * k, true);
    }
    sl_wgmma_finish();
    st_release(r);
}

/* Computes both boxes for this warpgroup's 64 rows; idle: none of these rows exists. */
template <bool F8>
__device__ static inline void mg_multiply(const mg_args &p, mg_ring &r, const float *xs, const float *sa,
                                          const float *sb, int wg, bool idle, float (&acc)[2][64])
{
    int row = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4;

#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[0][i] = acc[1][i] = 0;
    for (int g = 0; g < p.groups; g++, st_next(r)) {
        uint32_t at = r.base + r.stage * MG_STAGE;
        uint64_t a = sl_desc_k(at + 2 * ST_BOX_BYTES + wg * (MG_X_BYTES / 2)), b = sl_desc_k(at);
        float wa = F8 ? __ldg(sa + g) : 0, wb = F8 ? __ldg(sb + g) : 0;
        sl_mbar_wait(r.full + r.stage * 8, r.phase);
        if (idle) {
            st_release(r);
        } else if constexpr (F8) {
            const float x[2] = {xs[r.stage * MG_ROWS + row], xs[r.stage * MG_ROWS + row + 8]};
            mg_group_f8(r, a, b, x, wa, wb, acc);
        } else {
            mg_group_bf16(r, a, b, acc);
        }
    }
}

__device__ static inline float mg_glu_up(float g, float u, const sl_glu &v)
{
    g = sl_bf16r(g);
    return sl_bf16r(sl_glu_mul(g, sl_bf16r(u), v));
}

/* Stores row half h of a box as bf16 at `out`; real: the row exists. */
__device__ static inline void mg_store_bf16(__nv_bfloat16 *out, const float (&v)[64], int h, int blocks,
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
__device__ static inline void mg_store_f8(uint8_t *out, const float (&v)[64], float inv, int h, bool real)
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

/* silu(gate) * up; for fp8 it is quantised, where a box is a group of 128. A thread's row half h is row + 8 h. */
template <bool F8>
__device__ static inline void mg_finish_dual(const mg_args &p, const mg_tile &t, float (&acc)[2][64])
{
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + lane / 4;
    float amax[2] = {0, 0};

#pragma unroll
    for (int i = 0; i < 64; i++) {
        acc[0][i] = mg_glu_up(acc[0][i], acc[1][i], p.glu);
        amax[i >> 1 & 1] = fmaxf(amax[i >> 1 & 1], fabsf(acc[0][i]));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = fmaxf(amax[h], __shfl_xor_sync(0xffffffffu, amax[h], 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float s = sl_scale_act_d(m), inv = sl_inverse_pow2(s);
        int64_t r = t.row + row + 8 * h, at = r * p.outs + t.out[0];
        bool real = row + 8 * h < t.count;
        if constexpr (F8)
            mg_store_f8((uint8_t *)p.mid + at, acc[0], inv, h, real);
        else
            mg_store_bf16((__nv_bfloat16 *)p.mid + at, acc[0], h, 16, real);
        if (F8 && real && (lane & 3) == 0)
            p.ms[(int64_t)(t.out[0] / 128) * p.ld + r] = s;
    }
}

__device__ static inline void mg_finish_down(const mg_args &p, const mg_tile &t, const float (&acc)[2][64])
{
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + lane / 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool real = row + 8 * h < t.count;
        __nv_bfloat16 *at =
            real ? (__nv_bfloat16 *)sl_moe_result_at(p.to, (uint8_t *)p.res, p.rows.pair[t.row + row + 8 * h],
                                                     2 * (int64_t)p.outs)
                 : NULL;
#pragma unroll
        for (int b = 0; b < 2; b++)
            mg_store_bf16(at + t.out[b], acc[b], h, (p.outs - t.out[b]) / 8, real);
    }
}

template <bool F8, bool DUAL>
__device__ static void mg_consume(const mg_args &p, mg_ring r, const float *xs, int work)
{
    int wg = threadIdx.x >> 7, w = blockIdx.x;
    mg_tile t = {};
    float acc[2][64];

    if (w < work)
        t = mg_tile_of<DUAL>(p, w);
    while (w < work) {
        const float *sa = NULL, *sb = NULL;
        bool idle = wg * 64 >= t.count;
        if (F8) {
            sa = p.ta[t.e].scale + (int64_t)(t.out[0] / 128) * p.groups;
            sb = (DUAL ? p.tb : p.ta)[t.e].scale + (int64_t)(min(t.out[1], p.outs - 1) / 128) * p.groups;
        }
        mg_multiply<F8>(p, r, xs, sa, sb, wg, idle, acc);
        if (!idle && DUAL)
            mg_finish_dual<F8>(p, t, acc);
        if (!idle && !DUAL)
            mg_finish_down(p, t, acc);
        w += gridDim.x;
        if (w < work)
            t = mg_tile_of<DUAL>(p, w);
    }
}
#endif

template <bool F8, bool DUAL>
__global__ static void __launch_bounds__(MG_THREADS, 1) mg_gemm_kernel(const __grid_constant__ mg_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t raw_at = sl_smem_addr(raw), pad = (1024 - raw_at % 1024) % 1024;
    float *xs = (float *)(raw + pad + MG_STAGES * MG_STAGE);
    uint32_t bars = sl_smem_addr(xs + MG_STAGES * MG_ROWS);
    mg_ring r = {raw_at + pad, bars, bars + MG_STAGES * 8, 0, 0};

    if (threadIdx.x == 0)
        st_init_stages<MG_STAGES>(r.full, r.empty);
    __syncthreads();
    int work = *p.rows.n_tiles * p.out_tiles;
    if (threadIdx.x >= ST_MULTIPLIERS) {
        sl_registers_give<ST_COPY_REGS>();
        if (threadIdx.x == ST_MULTIPLIERS)
            mg_produce<F8, DUAL>(p, r, sl_smem_addr(xs), work);
    } else {
        sl_registers_take<ST_MULTIPLY_REGS>();
        mg_consume<F8, DUAL>(p, r, xs, work);
    }
#endif
}

#endif
