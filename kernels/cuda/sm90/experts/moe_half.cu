/*
 * Routed experts with weights in 4 bits: the codes travel to shared memory as they are, by the ring of ring.cuh, and a
 * thread converts them to operands in its registers. Here the weights are the 64 rows of a product and the tokens its
 * columns, so nothing is computed for tokens that do not exist beyond the 32 of a tile, and a multiplier belongs to a row.
 * One kernel for any number of tokens: the order of sums does not depend on it.
 *
 * Inputs in e4m3 (int4, MXFP4): codes become e4m3, the tensor core sums each group of the weight, and at most 128 inputs;
 * acc += dot * (s_x * s_w) in float32, in order. Inputs in bf16: int4 codes become bf16 and acc += dot * s_w for each group,
 * and at most 64 inputs; codes of MXFP4 and NVFP4 are multiplied with their multipliers, which is exact in bf16, and all of
 * k is one chain; `global` multiplies at the end.
 */
#include "kernels/cuda/sm90/experts/moe_half.cuh"
#include "kernels/cuda/any/experts/moe_rows.cuh"
#include "kernels/cuda/sm90/experts/moe_tiles.cuh"

#define X_BOX (MT_TOKENS * 128)
#define EXCHANGE (128 * 16 * 4)
/* Four warpgroups multiply, each 64 outputs: a box has two. Fewer do not hide the latency of the conversion. One copies. */
#define MULTIPLIERS 512
#define THREADS (MULTIPLIERS + 128)
#define COPY_REGS 32
#define MULTIPLY_REGS 112
#define BAR_UP_WRITTEN 1 /* named barriers, as in moe_few.cu */
#define BAR_UP_READ 2
#define BAR_AMAX 3 /* of the warpgroups of a box */

template <bool A8> struct shape {
    static const int X = A8 ? 2 * X_BOX : 4 * X_BOX, /* of a stage */
        STAGE = 2 * ST_BOX_BYTES + X, STAGES = A8 ? 5 : 4, XS = A8 ? 2 * MT_TOKENS * 4 : 0,
                     SMEM = STAGES * (STAGE + XS + 16) + EXCHANGE + 8 * MT_TOKENS * 4 + 1024;
};

struct half_args {
    CUtensorMap x;              /* [rows][in] */
    const CUtensorMap *wa, *wb; /* gate and up; or down, and wb is unused */
    const sl_weight *ta, *tb;
    moe_rows rows;
    const float *xs;    /* e4m3: [in / 128][ld] */
    float *ms;          /* e4m3, gate and up: scales of their result, [outs / 128][ld] */
    void *mid;          /* gate and up: their result, [rows][outs] */
    __nv_bfloat16 *res; /* down: [pairs][outs] */
    sl_moe_to to;       /* down: where they go instead */
    sl_glu glu;         /* gate and up */
    int ld, stages, outs, out_tiles;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct half_tile {
    int e, first, count, out0; /* out0: the first output of box 0 */
};

template <bool DUAL> __device__ static inline half_tile tile_of(const half_args &p, int tile)
{
    int t = tile / p.out_tiles, o = tile % p.out_tiles;

    return {p.rows.tile_expert[t], p.rows.tile_first[t], p.rows.tile_count[t],
            o * (DUAL ? ST_BOX : 2 * ST_BOX)};
}

template <bool A8, bool DUAL>
__device__ static void produce(const half_args &p, st_ring<shape<A8>::STAGES> r, uint32_t xs_base,
                               int n_tiles)
{
    typedef shape<A8> S;
    const int boxes = A8 ? 2 : 4;

    sl_after_previous();
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        half_tile t = tile_of<DUAL>(p, tile);
        for (int g = 0; g < p.stages; g++, st_next(r)) {
            uint32_t at = r.base + r.stage * S::STAGE, full = r.full + r.stage * 8;
            sl_mbar_wait(r.empty + r.stage * 8, r.phase ^ 1);
            sl_mbar_expect(full, 2 * ST_BOX_BYTES + boxes * ((t.count + 7) / 8) * 1024 + S::XS);
            sl_copy_box(at, p.wa + t.e, g * 128, t.out0, full);
            sl_copy_box(at + ST_BOX_BYTES, (DUAL ? p.wb : p.wa) + t.e, g * 128,
                        DUAL ? t.out0 : t.out0 + ST_BOX, full);
            for (int b = 0; b < boxes; b++)
                for (int i = 0; i < t.count; i += 8)
                    sl_copy_box(at + 2 * ST_BOX_BYTES + b * X_BOX + i * 128, &p.x, (g * boxes + b) * 128,
                                t.first + i, full);
            for (int b = 0; A8 && b < 2; b++)
                sl_copy_bulk(xs_base + r.stage * S::XS + b * MT_TOKENS * 4,
                             p.xs + (int64_t)(2 * g + b) * p.ld + t.first, MT_TOKENS * 4, full);
        }
    }
}

/* Address of the codes of row `row` of this thread in chunk 0 of a box; those of chunk c are at this ^ c << 4. */
__device__ static inline uint32_t codes_of(uint32_t box, int bytes)
{
    int lane = threadIdx.x & 31, r = (threadIdx.x >> 5 & 3) * 16 + lane / 4;

    return box + sl_swizzle(r, 0) + bytes * (lane & 3);
}

__device__ static inline uint32_t load_u16(uint32_t at)
{
    uint16_t v;

    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

__device__ static inline uint32_t load_u8(uint32_t at)
{
    uint32_t v;

    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

/*
 * e4m3: acc += the products of 64 rows with 128 inputs, half c of a stage. The sums are 1 / unshift() of what they should be.
 */
template <moe_codes C, int SETS>
__device__ static inline void multiply_e4m3(const multiplier_rows &rows, const multipliers<C, SETS, 2> &mult,
                                            uint32_t codes, uint32_t x, int c, const float (&s)[8],
                                            float (&acc)[16])
{
    uint32_t a[4][4];
    const int PARTS = SETS == 4 ? 2 : 1, N = SETS / PARTS; /* fewer sums at a time: registers */
    float d[N][16];

#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t at = (codes ^ (uint32_t)(c * 4 + k) << 4) + h * 1024, even, odd;
            e4m3_of<C>(__byte_perm(load_u16(at), load_u16(at + 8), 0x5410), even, odd);
            a[k][h] = __byte_perm(even, odd, 0x5140);
            a[k][2 + h] = __byte_perm(even, odd, 0x7362);
        }
    uint64_t desc = sl_desc_k(x);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        sl_wgmma_fence();
#pragma unroll
        for (int k = part * 4 / PARTS; k < (part + 1) * 4 / PARTS; k++)
            sl_wgmma_e4m3(d[k * SETS / 4 % N], a[k], desc + 2 * k, k % (4 / SETS) > 0);
        sl_wgmma_finish();
#pragma unroll
        for (int i = 0; i < N; i++) {
            float w[2] = {multiplier(rows, mult, 0, c * SETS + part * N + i),
                          multiplier(rows, mult, 1, c * SETS + part * N + i)};
            sl_wgmma_results(d[i]);
#pragma unroll
            for (int j = 0; j < 16; j++)
                acc[j] = fmaf(d[i][j], __fmul_rn(s[(j >> 2) * 2 + (j & 1)], w[j >> 1 & 1]), acc[j]);
        }
    }
}

/* bf16: the same for 64 inputs, quarter c of a stage. Of FP4 the products are added by the tensor core. */
template <moe_codes C, int SETS>
__device__ static inline void multiply_bf16(const multiplier_rows &rows, const multipliers<C, SETS, 4> &mult,
                                            uint32_t codes, uint32_t x, int c, float (&acc)[16])
{
    uint32_t a[4][4];
    float d[SETS][16], w[SETS][2];
    uint64_t desc = sl_desc_k(x);

#pragma unroll
    for (int i = 0; i < SETS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            w[i][h] = multiplier(rows, mult, h, c * SETS + i);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t at = (codes ^ (uint32_t)(c * 2 + k / 2) << 4) + (i & 1) * 1024;
            __nv_bfloat162 v = bf16_of<C>(load_u8(at + k % 2 * 8 + 4 * (i >> 1)));
            if (C == FP4)
                v = __hmul2(v, __float2bfloat162_rn(w[k * SETS / 4][i & 1]));
            a[k][i] = *(uint32_t *)&v;
        }
    sl_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        if constexpr (C == FP4)
            sl_wgmma_bf16(acc, a[k], desc + 2 * k, true);
        else
            sl_wgmma_bf16(d[k * SETS / 4], a[k], desc + 2 * k, k % (4 / SETS) > 0);
    sl_wgmma_finish();
    if constexpr (C == FP4) {
        sl_wgmma_results(acc);
    } else {
#pragma unroll
        for (int i = 0; i < SETS; i++) {
            sl_wgmma_results(d[i]);
#pragma unroll
            for (int j = 0; j < 16; j++)
                acc[j] = fmaf(d[i][j], w[i][j >> 1 & 1], acc[j]);
        }
    }
}

/* acc += the products of one stage. */
template <bool A8, moe_codes C, int SETS>
__device__ static inline void multiply_stage(const multiplier_rows &rows,
                                             const multipliers<C, SETS, A8 ? 2 : 4> &mult, uint32_t box,
                                             uint32_t x, const float *xs, float (&acc)[16])
{
    uint32_t codes = codes_of(box, A8 ? 2 : 1);
    int q = threadIdx.x & 3;

#pragma unroll
    for (int c = 0; c < (A8 ? 2 : 4); c++) {
        float s[8];
#pragma unroll
        for (int i = 0; A8 && i < 8; i++)
            s[i] = xs[c * MT_TOKENS + 8 * (i >> 1) + 2 * q + (i & 1)];
        if constexpr (A8)
            multiply_e4m3<C, SETS>(rows, mult, codes, x + c * X_BOX, c, s, acc);
        else
            multiply_bf16<C, SETS>(rows, mult, codes, x + c * X_BOX, c, acc);
    }
}

/* acc = the products of 64 outputs from `out` on, those of warpgroup wg, over all of k. */
template <bool A8, moe_codes C, int SETS>
__device__ static inline void multiply(const half_args &p, const sl_weight &w, st_ring<shape<A8>::STAGES> &r,
                                       const float *xs, int wg, int out, float (&acc)[16])
{
    typedef shape<A8> S;
    const multiplier_rows rows = rows_of < A8 ? 2 : 4 > (w, out);
    multipliers<C, SETS, A8 ? 2 : 4> next;

    fetch(rows, 0, next);
#pragma unroll
    for (int i = 0; i < 16; i++)
        acc[i] = 0;
    for (int g = 0; g < p.stages; g++, st_next(r)) {
        uint32_t at = r.base + r.stage * S::STAGE;
        const multipliers<C, SETS, A8 ? 2 : 4> mult = next;
        fetch(rows, min(g + 1, p.stages - 1), next);
        sl_mbar_wait(r.full + r.stage * 8, r.phase);
        multiply_stage<A8, C, SETS>(rows, mult, at + wg * (ST_BOX_BYTES / 2), at + 2 * ST_BOX_BYTES,
                                    xs + r.stage * (S::XS / 4), acc);
        st_release(r);
    }
    float factor = A8 ? unshift<C>() : w.scale_type == SL_SCALE_E4M3 ? w.global : 1.0f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        acc[i] = __fmul_rn(acc[i], factor);
}

/* Output (from the first of the box) and token of value i of acc. */
__device__ static inline int out_of(int i)
{
    return (threadIdx.x >> 7 & 1) * 64 + (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x & 31) / 4 +
           8 * (i >> 1 & 1);
}

__device__ static inline int token_of(int i)
{
    return 8 * (i >> 2) + 2 * (threadIdx.x & 3) + (i & 1);
}

/* The largest magnitude of each token over the outputs of the box, for the threads that hold it. all: [8][MT_TOKENS]. */
__device__ static inline void largest(const float (&v)[16], float *all, float (&amax)[8])
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 7;

#pragma unroll
    for (int n = 0; n < 8; n++) {
        int i = (n >> 1) * 4 + (n & 1);
        float a = fmaxf(fabsf(v[i]), fabsf(v[i + 2]));
        for (int o = 4; o < 32; o <<= 1)
            a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, o));
        if (lane < 4)
            all[warp * MT_TOKENS + token_of(i)] = a;
    }
    sl_bar_sync(BAR_AMAX, MULTIPLIERS / 2);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int t = token_of((n >> 1) * 4 + (n & 1));
        amax[n] = all[t];
#pragma unroll
        for (int w = 1; w < 8; w++)
            amax[n] = fmaxf(amax[n], all[w * MT_TOKENS + t]);
    }
}

/* silu(gate) * up, quantised where inputs are: gate is acc, up comes from the exchange memory. */
template <bool A8>
__device__ static inline void finish_dual(const half_args &p, const half_tile &t, const uint32_t *up,
                                          float *all, float (&acc)[16])
{
    float amax[8];

#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        uint32_t pair = up[i / 2 * (MULTIPLIERS / 2) + threadIdx.x];
        float2 u = __bfloat1622float2(*(__nv_bfloat162 *)&pair);
        float *g = &acc[i];
        g[0] = sl_bf16r(sl_glu_mul(sl_bf16r(g[0]), u.x, p.glu));
        g[1] = sl_bf16r(sl_glu_mul(sl_bf16r(g[1]), u.y, p.glu));
    }
    if (A8)
        largest(acc, all, amax);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int token = token_of(i);
        int64_t row = t.first + token;
        float s = A8 ? sl_scale_act_d(amax[(i >> 2) * 2 + (i & 1)]) : 1.0f;
        if (token >= t.count)
            continue;
        int64_t at = row * p.outs + t.out0 + out_of(i);
        if (A8)
            ((uint8_t *)p.mid)[at] = sl_e4m3(acc[i] * sl_inverse_pow2(s));
        else
            ((__nv_bfloat16 *)p.mid)[at] = __float2bfloat16_rn(acc[i]);
        if (A8 && out_of(i) == 0)
            p.ms[(int64_t)(t.out0 / 128) * p.ld + row] = s;
    }
}

__device__ static inline void finish_down(const half_args &p, const half_tile &t, int out,
                                          const float (&acc)[16])
{
    int pair[8]; /* read together, also for tokens that do not exist */

#pragma unroll
    for (int n = 0; n < 8; n++)
        pair[n] = p.rows.pair[t.first + min(token_of((n >> 1) * 4 + (n & 1)), t.count - 1)];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int i = (n >> 1) * 4 + (n & 1);
        if (token_of(i) >= t.count || out >= p.outs)
            continue;
        __nv_bfloat16 *at =
            (__nv_bfloat16 *)sl_moe_result_at(p.to, (uint8_t *)p.res, pair[n], 2 * (int64_t)p.outs) + out;
        at[out_of(i)] = __float2bfloat16_rn(acc[i]);
        at[out_of(i + 2)] = __float2bfloat16_rn(acc[i + 2]);
    }
}

template <bool A8, moe_codes C, int SETS, bool DUAL>
__device__ static void consume(const half_args &p, st_ring<shape<A8>::STAGES> r, const float *xs,
                               uint32_t *exchange, float *all, int n_tiles)
{
    int wg = threadIdx.x >> 7, box = wg / 2;
    float acc[16];

    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        half_tile t = tile_of<DUAL>(p, tile);
        int out = DUAL ? t.out0 : t.out0 + box * ST_BOX;
        multiply<A8, C, SETS>(p, (DUAL && box ? p.tb : p.ta)[t.e], r, xs, wg, out + wg % 2 * 64, acc);
        if constexpr (!DUAL) {
            finish_down(p, t, out, acc);
        } else {
            if (box == 1)
#pragma unroll
                for (int i = 0; i < 16; i += 2)
                    exchange[i / 2 * (MULTIPLIERS / 2) + threadIdx.x - MULTIPLIERS / 2] =
                        st_pack(acc[i], acc[i + 1]);
            sl_bar_sync(BAR_UP_WRITTEN, MULTIPLIERS);
            if (box == 0)
                finish_dual<A8>(p, t, exchange, all, acc);
            sl_bar_sync(BAR_UP_READ, MULTIPLIERS);
        }
    }
}
#endif

template <bool A8, moe_codes C, int SETS, bool DUAL>
__global__ static void __launch_bounds__(THREADS, 1) half_kernel(const __grid_constant__ half_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef shape<A8> S;
    extern __shared__ uint8_t raw[];
    uint32_t raw_at = sl_smem_addr(raw), pad = (1024 - raw_at % 1024) % 1024;
    uint32_t *exchange = (uint32_t *)(raw + pad + S::STAGES * S::STAGE);
    float *xs = (float *)((uint8_t *)exchange + EXCHANGE),
          *all = (float *)((uint8_t *)xs + S::STAGES * S::XS);
    uint32_t bars = sl_smem_addr(all + 8 * MT_TOKENS);
    st_ring<S::STAGES> r = {raw_at + pad, bars, bars + S::STAGES * 8, 0, 0};

    if (threadIdx.x == 0)
        st_init_stages<S::STAGES, MULTIPLIERS>(r.full, r.empty);
    sl_let_next_start();
    __syncthreads();
    int n_tiles = *p.rows.n_tiles * p.out_tiles;
    if (threadIdx.x >= MULTIPLIERS) {
        sl_registers_give<COPY_REGS>();
        if (threadIdx.x == MULTIPLIERS)
            produce<A8, DUAL>(p, r, sl_smem_addr(xs), n_tiles);
        else
            sl_after_previous();
    } else {
        sl_registers_take<MULTIPLY_REGS>();
        consume<A8, C, SETS, DUAL>(p, r, xs, exchange, all, n_tiles);
    }
#endif
}

template <bool A8, moe_codes C, int SETS>
static sl_status launch_both(sl_cuda *cu, const half_args &up, const half_args &down, sl_err *err)
{
    const sl_launch l = {dim3((unsigned)cu->sms), THREADS, shape<A8>::SMEM, true};

    SL_TRY(SL_LAUNCH(cu, (half_kernel<A8, C, SETS, true>), l, err, up));
    return SL_LAUNCH(cu, (half_kernel<A8, C, SETS, false>), l, err, down);
}

/* Groups of the weight in the inputs that are multiplied together: 128 of e4m3, 64 of bf16. */
static sl_status launch(sl_cuda *cu, const sl_weight *w, bool a8, const half_args &up, const half_args &down,
                        sl_err *err)
{
    if (w->dtype == SL_F4_E2M1)
        return a8               ? launch_both<true, FP4, 4>(cu, up, down, err)
               : w->group == 32 ? launch_both<false, FP4, 2>(cu, up, down, err)
                                : launch_both<false, FP4, 4>(cu, up, down, err);
    if (a8)
        return w->group == 32   ? launch_both<true, INT4, 4>(cu, up, down, err)
               : w->group == 64 ? launch_both<true, INT4, 2>(cu, up, down, err)
                                : launch_both<true, INT4, 1>(cu, up, down, err);
    return w->group == 32 ? launch_both<false, INT4, 2>(cu, up, down, err)
                          : launch_both<false, INT4, 1>(cu, up, down, err);
}

struct half_memory {
    uint8_t *x, *mid;
    float *xs, *ms;
    moe_rows rows;
    int64_t n, ld;
};

static sl_status reserve(sl_cuda *cu, sl_moe_run *r, int size, half_memory *m, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    int64_t pairs = (int64_t)p->tokens * p->top_k, tiles = min(pairs, p->experts + pairs / MT_TOKENS);
    m->n = pairs + 8 * min(pairs, (int64_t)p->experts), m->ld = (m->n + 3) / 4 * 4;
    int64_t x = sl_moe_up256(m->n * p->hidden * size), mid = sl_moe_up256(m->n * p->inter * size),
            xs = sl_moe_up256(m->ld * (p->hidden / 128) * 4 + MT_TOKENS * 4),
            ms = sl_moe_up256(m->ld * (p->inter / 128) * 4 + MT_TOKENS * 4);

    SL_TRY(sl_moe_begin(cu, r, false, (size_t)(x + mid + xs + ms + (m->n + pairs + 3 * tiles + 1) * 4),
                        (void **)&m->x, err));
    m->mid = m->x + x;
    m->xs = (float *)(m->mid + mid), m->ms = (float *)((uint8_t *)m->xs + xs);
    m->rows.pair = (int32_t *)((uint8_t *)m->ms + ms);
    m->rows.row_of = m->rows.pair + m->n;
    m->rows.tile_expert = m->rows.row_of + pairs;
    m->rows.tile_first = m->rows.tile_expert + tiles;
    m->rows.tile_count = m->rows.tile_first + tiles;
    m->rows.n_tiles = m->rows.tile_count + tiles;
    return SL_OK;
}

sl_status sl_cuda_moe_half(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    const bool a8 = p->fp8_acts && sl_weight_takes_e4m3(&p->gate[0]);
    const int size = a8 ? 1 : 2;
    half_args up = {}, down = {};
    half_memory m;
    SL_TRY(reserve(cu, r, size, &m, err));
    SL_TRY(sl_moe_weights(cu, p->gate, p->experts, &up.ta, &up.wa, err));
    SL_TRY(sl_moe_weights(cu, p->up, p->experts, &up.tb, &up.wb, err));
    SL_TRY(sl_moe_weights(cu, p->down, p->experts, &down.ta, &down.wa, err));
    SL_TRY(sl_cuda_map(cu, m.x, m.n, p->hidden * size, p->hidden * size, 8, &up.x, err));
    SL_TRY(sl_cuda_map(cu, m.mid, m.n, p->inter * size, p->inter * size, 8, &down.x, err));
    SL_TRY(SL_LAUNCH(cu, mt_group_kernel, (sl_launch{dim3(sl_moe_sort_blocks(&r->arrived)), 1024}), err,
                     p->expert_ids, p->tokens * p->top_k, p->experts, m.rows, r->arrived, cu->deverr));
    if (a8)
        SL_TRY(sl_moe_rows_f8(cu, r, m.rows.row_of, m.rows.pair, m.x, m.xs, (int)m.ld, err));
    else
        SL_TRY(sl_moe_rows_bf16(cu, r, m.rows.row_of, m.rows.pair, m.x, err));
    up.rows = down.rows = m.rows, up.ld = down.ld = (int)m.ld;
    up.xs = m.xs, up.ms = m.ms, up.mid = m.mid, up.glu = p->glu;
    up.stages = p->hidden / K_STAGE, up.outs = p->inter, up.out_tiles = p->inter / ST_BOX;
    down.xs = m.ms, down.res = (__nv_bfloat16 *)p->workspace, down.to = r->arrived.to;
    down.stages = p->inter / K_STAGE, down.outs = p->hidden;
    down.out_tiles = sl_ceil_div(p->hidden, 2 * ST_BOX);
    SL_TRY(launch(cu, &p->gate[0], a8, up, down, err));
    return sl_moe_finish(cu, r, down.res, err);
}
