/*
 * Routed experts with weights in 4 bits: the codes travel to shared memory as they are, by the ring of pipeline.cuh, and a
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
#include "kernels/cuda/sm90/experts/moe_pipeline.cuh"

#define TOKENS 32 /* of a tile */
#define X_BOX (TOKENS * 128)
#define EXCHANGE (128 * 16 * 4)
/* Four warpgroups multiply, each 64 outputs: a box has two. Fewer do not hide the latency of the conversion. One copies. */
#define HALF_THREADS 512
#define BAR_UP_WRITTEN 1 /* named barriers, as in moe_few.cu */
#define BAR_UP_READ 2
#define BAR_AMAX 3 /* of the warpgroups of a box */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Address of the codes of row `row` of this thread in chunk 0 of a box; those of chunk c are at this ^ c << 4. */
__device__ static inline uint32_t codes_of(uint32_t box, int bytes)
{
    int lane = threadIdx.x & 31, r = (threadIdx.x >> 5 & 3) * 16 + lane / 4;

    return box + sl_swizzle(r, 0) + bytes * (lane & 3);
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
            e4m3_of<C>(__byte_perm(sl_shared_u16(at), sl_shared_u16(at + 8), 0x5410), even, odd);
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
            __nv_bfloat162 v = bf16_of<C>(sl_shared_u8(at + k % 2 * 8 + 4 * (i >> 1)));
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
            s[i] = xs[c * TOKENS + 8 * (i >> 1) + 2 * q + (i & 1)];
        if constexpr (A8)
            multiply_e4m3<C, SETS>(rows, mult, codes, x + c * X_BOX, c, s, acc);
        else
            multiply_bf16<C, SETS>(rows, mult, codes, x + c * X_BOX, c, acc);
    }
}

/* acc = the products of 64 outputs from `out` on, those of warpgroup wg, over all of k. */
template <class P, bool A8, moe_codes C, int SETS>
__device__ static inline void multiply(const moe_args &p, const sl_weight &w, st_ring<P::STAGES> &r,
                                       const float *xs, int wg, int out, float (&acc)[16])
{
    const multiplier_rows rows = rows_of < A8 ? 2 : 4 > (w, out);
    multipliers<C, SETS, A8 ? 2 : 4> next;

    fetch(rows, 0, next);
#pragma unroll
    for (int i = 0; i < 16; i++)
        acc[i] = 0;
    for (int g = 0; g < p.stages; g++, st_next(r)) {
        uint32_t at = r.base + r.stage * pl_sizes<P>::STAGE;
        const multipliers<C, SETS, A8 ? 2 : 4> mult = next;
        fetch(rows, min(g + 1, p.stages - 1), next);
        sl_mbar_wait(r.full + r.stage * 8, r.phase);
        multiply_stage<A8, C, SETS>(rows, mult, at + wg * (ST_BOX_BYTES / 2), at + 2 * ST_BOX_BYTES,
                                    xs + r.stage * (P::XS / 4), acc);
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

/* The largest magnitude of each token over the outputs of the box, for the threads that hold it. all: [8][TOKENS]. */
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
            all[warp * TOKENS + token_of(i)] = a;
    }
    sl_bar_sync(BAR_AMAX, HALF_THREADS / 2);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int t = token_of((n >> 1) * 4 + (n & 1));
        amax[n] = all[t];
#pragma unroll
        for (int w = 1; w < 8; w++)
            amax[n] = fmaxf(amax[n], all[w * TOKENS + t]);
    }
}

/* silu(gate) * up, quantised where inputs are: gate is acc, up comes from the exchange memory. */
template <bool A8>
__device__ static inline void finish_dual(const moe_args &p, const moe_item &t, const uint32_t *up,
                                          float *all, float (&acc)[16])
{
    float amax[8];

#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        uint32_t pair = up[i / 2 * (HALF_THREADS / 2) + threadIdx.x];
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
        int64_t row = t.row + token;
        float s = A8 ? sl_scale_act_d(amax[(i >> 2) * 2 + (i & 1)]) : 1.0f;
        if (token >= t.count)
            continue;
        int64_t at = row * p.outs + t.out[0] + out_of(i);
        if (A8)
            ((uint8_t *)p.mid)[at] = sl_e4m3(acc[i] * sl_inverse_pow2(s));
        else
            ((__nv_bfloat16 *)p.mid)[at] = __float2bfloat16_rn(acc[i]);
        if (A8 && out_of(i) == 0)
            p.ms[(int64_t)(t.out[0] / 128) * p.ld + row] = s;
    }
}

__device__ static inline void finish_down(const moe_args &p, const moe_item &t, int out,
                                          const float (&acc)[16])
{
    int pair[8]; /* read together, also for tokens that do not exist */

#pragma unroll
    for (int n = 0; n < 8; n++)
        pair[n] = p.lists.pair[t.row + min(token_of((n >> 1) * 4 + (n & 1)), t.count - 1)];
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

#endif

template <bool A8, moe_codes C, int SETS, bool DUAL>
struct half_plan
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    : moe_plan<DUAL, false>
#endif
{
    typedef moe_args Args;
    static constexpr int MULTIPLIERS = HALF_THREADS, THREADS = MULTIPLIERS + 128, COPY_REGS = 32,
                         MULTIPLY_REGS = 112, STAGES = A8 ? 5 : 4, BOXES = 2, TOKEN_BOXES = A8 ? 2 : 4,
                         X = TOKEN_BOXES * X_BOX, XS = A8 ? 2 * TOKENS * 4 : 0,
                         EXTRA = EXCHANGE + 8 * TOKENS * 4, TOGETHER = 1;
    static constexpr bool EARLY = false, LET_NEXT = true;

    static const char *name()
    {
        return DUAL ? "moe_half_up" : "moe_half_down";
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef moe_plan<DUAL, false> plan;

    __device__ static void copy_weights(const Args &p, const moe_item &t, uint32_t at, uint32_t bar, int g)
    {
        plan::copy_boxes(p, t, at, bar, g, TOKEN_BOXES * ((t.count + 7) / 8) * 1024 + XS);
    }

    __device__ static void copy_tokens(const Args &p, const moe_item &t, uint32_t at, uint32_t xs,
                                       uint32_t bar, int g)
    {
        for (int b = 0; b < TOKEN_BOXES; b++)
            for (int i = 0; i < t.count; i += 8)
                sl_copy_box(at + b * X_BOX + i * 128, &p.x, (g * TOKEN_BOXES + b) * 128, t.row + i, bar);
        for (int b = 0; A8 && b < 2; b++)
            sl_copy_bulk(xs + b * TOKENS * 4, p.xs + (int64_t)(2 * g + b) * p.ld + t.row, TOKENS * 4, bar);
    }

    __device__ static void consume(const Args &p, pl_memory<half_plan> &m, int items)
    {
        const int wg = threadIdx.x >> 7, box = wg / 2;
        uint32_t *exchange = (uint32_t *)m.extra;
        float acc[16], *all = (float *)(m.extra + EXCHANGE);

        for (int w = plan::first(); w < items; w += plan::step()) {
            const moe_item t = plan::item(p, w);
            multiply<half_plan, A8, C, SETS>(p, (DUAL && box ? p.tb : p.ta)[t.e], m.ring, m.xs, wg,
                                             moe_out(t, box) + wg % 2 * 64, acc);
            if constexpr (!DUAL) {
                finish_down(p, t, moe_out(t, box), acc);
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
};

template <bool A8, moe_codes C, int SETS>
static sl_status launch_both(sl_cuda *cu, const sl_moe_run *r, const moe_args &up, const moe_args &down,
                             sl_err *err)
{
    return moe_launch<half_plan<A8, C, SETS, true>, half_plan<A8, C, SETS, false>>(cu, r, up, down, true,
                                                                                   err);
}

/* Groups of the weight in the inputs that are multiplied together: 128 of e4m3, 64 of bf16. */
static sl_status launch(sl_cuda *cu, const sl_moe_run *r, bool a8, const moe_args &up, const moe_args &down,
                        sl_err *err)
{
    const sl_weight *w = &r->p.gate[0];

    if (w->dtype == SL_F4_E2M1)
        return a8               ? launch_both<true, FP4, 4>(cu, r, up, down, err)
               : w->group == 32 ? launch_both<false, FP4, 2>(cu, r, up, down, err)
                                : launch_both<false, FP4, 4>(cu, r, up, down, err);
    if (a8)
        return w->group == 32   ? launch_both<true, INT4, 4>(cu, r, up, down, err)
               : w->group == 64 ? launch_both<true, INT4, 2>(cu, r, up, down, err)
                                : launch_both<true, INT4, 1>(cu, r, up, down, err);
    return w->group == 32 ? launch_both<false, INT4, 2>(cu, r, up, down, err)
                          : launch_both<false, INT4, 1>(cu, r, up, down, err);
}

sl_status sl_cuda_moe_half(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    const bool a8 = r->p.fp8_acts && sl_weight_takes_e4m3(&r->p.gate[0]);
    moe_args up = {}, down = {};

    static_assert(TOKENS == SL_MOE_NARROW, "the scratch that is stated is that of these tiles");
    SL_TRY(moe_prepare<TOKENS>(cu, r, a8 ? 1 : 2, K_STAGE, 8, &up, &down, err));
    return launch(cu, r, a8, up, down, err);
}
