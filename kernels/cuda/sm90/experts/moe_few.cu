/*
 * Routed experts with fp8 weights and bf16 activations, by streaming (ring.cuh); the sum over experts is in
 * moe.cu.
 *
 * The (token, choice) pairs are grouped by expert into rows, and each expert's rows are padded to a multiple of
 * eight. Their quantised inputs are stored in that order, so that the tokens of a tile are a few boxes of eight
 * rows. Gate and up are the two boxes of one tile; silu(gate) * up is quantised by the block that computed it,
 * because a box is a group of 128. The tensor core sums each group; across groups acc += dot * (s_x * s_w) in
 * float32, in order.
 */
#include "kernels/cuda/any/experts/moe_rows.cuh"
#include "kernels/cuda/sm90/experts/moe_tiles.cuh"

#define GROUP 128
#define TOKENS MT_TOKENS /* per tile; the results of the other 32 rows of the product are unused */
#define X_BYTES (TOKENS * GROUP)
#define STAGE (2 * ST_BOX_BYTES + X_BYTES)
/* A pair of stages is filled together, so that 256 contiguous bytes of each weight row are requested. Supposedly
 * DRAM delivers these faster than pieces of 128 bytes; this was not measured alone. */
#define STAGES 6
#define XS_BYTES (TOKENS * 4)
#define EXCHANGE (TOKENS * ST_BOX * 2)
#define SMEM (STAGES * (STAGE + XS_BYTES + 16) + EXCHANGE + 1024)
#define BAR_UP_WRITTEN 1 /* named barrier: the results of up are in the exchange memory */
#define BAR_UP_READ 2    /* named barrier: they have been read, and the next tile may overwrite them */

struct moe_args {
    CUtensorMap x;              /* [rows][in] */
    const CUtensorMap *wa, *wb; /* gate and up; or down, and wb is unused */
    const sl_weight *ta, *tb;
    moe_rows rows;
    const float *xs;    /* [groups][ld] */
    float *ms;          /* gate and up: scales of their result, [outs / 128][ld] */
    uint8_t *mq;        /* gate and up: their result, [rows][outs] */
    __nv_bfloat16 *res; /* down: [pairs][outs] */
    sl_moe_to to;       /* down: where they go instead */
    int ld, groups, outs, out_tiles;
    sl_glu glu; /* gate and up */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct moe_tile {
    int e, first, count, out0; /* out0: the first output of box 0 */
};

template <bool DUAL> __device__ static inline moe_tile tile_of(const moe_args &p, int tile)
{
    int t = tile / p.out_tiles, o = tile % p.out_tiles;

    return {p.rows.tile_expert[t], p.rows.tile_first[t], p.rows.tile_count[t],
            o * (DUAL ? ST_BOX : 2 * ST_BOX)};
}

typedef st_ring<STAGES> ring;

/* Starts the copies of one stage's weights, and announces how many bytes the whole stage will receive. */
template <bool DUAL>
__device__ static inline void copy_weights(const moe_args &p, const moe_tile &t, uint32_t at, uint32_t full,
                                           int g)
{
    sl_mbar_expect(full, 2 * ST_BOX_BYTES + (t.count + 7) / 8 * 1024 + XS_BYTES);
    sl_copy_box(at, p.wa + t.e, g * GROUP, t.out0, full);
    sl_copy_box(at + ST_BOX_BYTES, (DUAL ? p.wb : p.wa) + t.e, g * GROUP, DUAL ? t.out0 : t.out0 + ST_BOX,
                full);
}

/* Starts the copies of the tokens and their scales to the stage that r points to. */
__device__ static inline void copy_tokens(const moe_args &p, const moe_tile &t, const ring &r,
                                          uint32_t xs_base, int g)
{
    uint32_t at = r.base + r.stage * STAGE + 2 * ST_BOX_BYTES, full = r.full + r.stage * 8;

    for (int i = 0; i < t.count; i += 8)
        sl_copy_box(at + i * 128, &p.x, g * GROUP, t.first + i, full);
    sl_copy_bulk(xs_base + r.stage * XS_BYTES, p.xs + (int64_t)g * p.ld + t.first, XS_BYTES, full);
}

/*
 * Fills the ring. The previous kernel produces the tokens. The weights of the first stages do not depend on it, so
 * their copies start before it has ended; the list of tiles was complete before it began.
 */
template <bool DUAL> __device__ static void produce(const moe_args &p, ring r, uint32_t xs_base, int n_tiles)
{
    bool early = true;
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        moe_tile t = tile_of<DUAL>(p, tile);
        for (int g = 0; early && g < STAGES && g < p.groups; g++)
            copy_weights<DUAL>(p, t, r.base + g * STAGE, r.full + g * 8, g);
        if (early)
            sl_after_previous();
        for (int g = 0; g < p.groups; g += 2) {
            ring pair[2] = {r, r};
            int n = min(2, p.groups - g);
            st_next(pair[1]);
            for (int i = 0; i < n; i++)
                if (!early || g + i >= STAGES)
                    sl_mbar_wait(r.empty + pair[i].stage * 8, pair[i].phase ^ 1);
            for (int i = 0; i < n; i++)
                if (!early || g + i >= STAGES)
                    copy_weights<DUAL>(p, t, r.base + pair[i].stage * STAGE, r.full + pair[i].stage * 8,
                                       g + i);
            for (int i = 0; i < n; i++, st_next(r))
                copy_tokens(p, t, r, xs_base, g + i);
        }
        early = false;
    }
    if (early)
        sl_after_previous(); /* also in blocks without a tile: the next kernel relies on every block having waited */
}

/* acc = the products of one box over all groups. */
__device__ static inline void multiply(const moe_args &p, ring &r, const float *xs, const float *sw, int wg,
                                       float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = st_row(lane);
    float s0 = lane < p.groups ? sw[lane] : 0, s1 = lane + 32 < p.groups ? sw[lane + 32] : 0, d[64];

#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0;
    for (int g = 0; g < p.groups; g++, st_next(r)) {
        uint32_t at = r.base + r.stage * STAGE;
        uint64_t a = sl_desc_k(at + 2 * ST_BOX_BYTES), b = sl_desc_k(at + wg * ST_BOX_BYTES);
        float w = __shfl_sync(0xffffffffu, g < 32 ? s0 : s1, g & 31), x0 = 0, x1 = 0;
        sl_mbar_wait(r.full + r.stage * 8, r.phase);
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            st_product<true>(d, a + 2 * k, b + 2 * k, k > 0);
        if (row < TOKENS) {
            x0 = __fmul_rn(xs[r.stage * TOKENS + row], w);
            x1 = __fmul_rn(xs[r.stage * TOKENS + row + 8], w);
        }
        sl_wgmma_finish();
        if (lane == 0)
            sl_mbar_arrive(r.empty + r.stage * 8);
        if (row < TOKENS) { /* the same for all lanes of a warp */
#pragma unroll
            for (int i = 0; i < 64; i++)
                acc[i] = fmaf(d[i], i & 2 ? x1 : x0, acc[i]);
        }
    }
}

__device__ static inline float2 unpack(uint32_t v)
{
    return __bfloat1622float2(*(__nv_bfloat162 *)&v);
}

__device__ static inline float glu_up(float g, float u, const sl_glu &v)
{
    g = sl_bf16r(g);
    return sl_bf16r(sl_glu_mul(g, u, v));
}

/* silu(gate) * up, quantised: gate is acc, up comes from the exchange memory. A thread's row half h is row + 8 h. */
__device__ static inline void finish_dual(const moe_args &p, const moe_tile &t, const uint32_t *up,
                                          float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = st_row(lane);
    float amax[2] = {0, 0};

#pragma unroll
    for (int i = 0; i < 32; i++) {
        float2 u = unpack(up[i * 2 * TOKENS + (threadIdx.x & 127)]);
        acc[2 * i] = glu_up(acc[2 * i], u.x, p.glu);
        acc[2 * i + 1] = glu_up(acc[2 * i + 1], u.y, p.glu);
        amax[i & 1] = fmaxf(amax[i & 1], fmaxf(fabsf(acc[2 * i]), fabsf(acc[2 * i + 1])));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = fmaxf(amax[h], __shfl_xor_sync(0xffffffffu, amax[h], 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float s = sl_scale_act_d(m), inv = sl_inverse_pow2(s);
        int64_t r = t.first + row + 8 * h;
        if (row + 8 * h >= t.count)
            continue;
        uint8_t *q = p.mq + r * p.outs + t.out0 + (lane & 3) * 2;
#pragma unroll
        for (int j = 0; j < 16; j++)
            *(uint16_t *)(q + 8 * j) = (uint16_t)(sl_e4m3(acc[4 * j + 2 * h] * inv) |
                                                  (uint32_t)sl_e4m3(acc[4 * j + 2 * h + 1] * inv) << 8);
        if ((lane & 3) == 0)
            p.ms[(int64_t)(t.out0 / GROUP) * p.ld + r] = s;
    }
}

__device__ static inline void finish_down(const moe_args &p, const moe_tile &t, int out,
                                          const float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = st_row(lane);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= t.count || out >= p.outs)
            continue;
        __nv_bfloat16 *at =
            (__nv_bfloat16 *)sl_moe_result_at(p.to, (uint8_t *)p.res, p.rows.pair[t.first + row + 8 * h],
                                              2 * (int64_t)p.outs) +
            out + (lane & 3) * 2;
#pragma unroll
        for (int j = 0; j < 16; j++)
            *(__nv_bfloat162 *)(at + 8 * j) =
                __floats2bfloat162_rn(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
}

template <bool DUAL>
__device__ static void consume(const moe_args &p, ring r, const float *xs, uint32_t *exchange, int n_tiles)
{
    int wg = threadIdx.x >> 7;
    float acc[64];

    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        moe_tile t = tile_of<DUAL>(p, tile);
        int out = DUAL ? t.out0 : t.out0 + wg * ST_BOX;
        const float *sw =
            (DUAL && wg ? p.tb : p.ta)[t.e].scale + (int64_t)(min(out, p.outs - 1) / GROUP) * p.groups;
        multiply(p, r, xs, sw, wg, acc);
        if constexpr (!DUAL) {
            finish_down(p, t, out, acc);
        } else {
            bool real = (threadIdx.x & 127) < 2 * TOKENS; /* 16 rows per warp */
            if (wg == 1 && real)
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    __nv_bfloat162 v = __floats2bfloat162_rn(acc[2 * i], acc[2 * i + 1]);
                    exchange[i * 2 * TOKENS + (threadIdx.x & 127)] = *(uint32_t *)&v;
                }
            sl_bar_sync(BAR_UP_WRITTEN, ST_MULTIPLIERS);
            if (wg == 0 && real)
                finish_dual(p, t, exchange, acc);
            sl_bar_sync(BAR_UP_READ, ST_MULTIPLIERS);
        }
    }
}
#endif

template <bool DUAL>
__global__ static void __launch_bounds__(ST_THREADS, 1) gemm_kernel(const __grid_constant__ moe_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t raw_at = sl_smem_addr(raw), pad = (1024 - raw_at % 1024) % 1024;
    uint8_t *smem = raw + pad;
    uint32_t *exchange = (uint32_t *)(smem + STAGES * STAGE);
    float *xs = (float *)((uint8_t *)exchange + EXCHANGE);
    uint32_t bars = sl_smem_addr(xs + STAGES * TOKENS);
    ring r = {raw_at + pad, bars, bars + STAGES * 8, 0, 0};
    int n_tiles = *p.rows.n_tiles * p.out_tiles;

    if (threadIdx.x == 0)
        st_init_stages<STAGES>(r.full, r.empty);
    sl_let_next_start();
    __syncthreads();
    if (threadIdx.x >= ST_MULTIPLIERS) {
        if (threadIdx.x == ST_MULTIPLIERS)
            produce<DUAL>(p, r, sl_smem_addr(xs), n_tiles);
    } else {
        consume<DUAL>(p, r, xs, exchange, n_tiles);
    }
#endif
}

/* One block per multiprocessor; it starts as soon as the previous kernel leaves enough resources free. */
static sl_status launch(sl_cuda *cu, void (*kernel)(moe_args), const moe_args &a, sl_err *err)
{
    return SL_LAUNCH(cu, kernel, (sl_launch{dim3((unsigned)cu->sms), ST_THREADS, SMEM, true}), err, a);
}

sl_status sl_cuda_moe_few(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    int64_t pairs = (int64_t)p->tokens * p->top_k, rows = pairs + 8 * min(pairs, (int64_t)p->experts),
            tiles = min(pairs, p->experts + pairs / TOKENS), ld = (rows + 3) / 4 * 4;
    int64_t xq_bytes = sl_moe_up256(rows * p->hidden), mq_bytes = sl_moe_up256(rows * p->inter),
            xs_bytes = sl_moe_up256(ld * (p->hidden / GROUP) * 4 + XS_BYTES),
            ms_bytes = sl_moe_up256(ld * (p->inter / GROUP) * 4 + XS_BYTES);
    moe_args up = {}, down = {};
    uint8_t *mem, *xq, *mq;
    float *xs, *ms;
    SL_TRY(
        sl_moe_begin(cu, r, false,
                     (size_t)(xq_bytes + mq_bytes + xs_bytes + ms_bytes + (rows + pairs + 3 * tiles + 1) * 4),
                     (void **)&mem, err));
    SL_TRY(sl_moe_weights(cu, p->gate, p->experts, &up.ta, &up.wa, err));
    SL_TRY(sl_moe_weights(cu, p->up, p->experts, &up.tb, &up.wb, err));
    SL_TRY(sl_moe_weights(cu, p->down, p->experts, &down.ta, &down.wa, err));
    xq = mem, mq = xq + xq_bytes;
    xs = (float *)(mq + mq_bytes), ms = (float *)((uint8_t *)xs + xs_bytes);
    up.rows.pair = (int32_t *)((uint8_t *)ms + ms_bytes);
    up.rows.row_of = up.rows.pair + rows;
    up.rows.tile_expert = up.rows.row_of + pairs;
    up.rows.tile_first = up.rows.tile_expert + tiles;
    up.rows.tile_count = up.rows.tile_first + tiles;
    up.rows.n_tiles = up.rows.tile_count + tiles;
    SL_TRY(sl_cuda_map(cu, xq, rows, p->hidden, p->hidden, 8, &up.x, err));
    SL_TRY(sl_cuda_map(cu, mq, rows, p->inter, p->inter, 8, &down.x, err));
    SL_TRY(SL_LAUNCH(cu, mt_group_kernel, (sl_launch{dim3(sl_moe_sort_blocks(&r->arrived)), 1024}), err,
                     p->expert_ids, (int)pairs, p->experts, up.rows, r->arrived, cu->deverr));
    SL_TRY(sl_moe_rows_f8(cu, r, up.rows.row_of, up.rows.pair, xq, xs, (int)ld, err));
    up.glu = p->glu;
    up.xs = xs, up.ms = ms, up.mq = mq, up.ld = (int)ld;
    up.groups = p->hidden / GROUP, up.outs = p->inter, up.out_tiles = p->inter / ST_BOX;
    SL_TRY(launch(cu, gemm_kernel<true>, up, err));
    down.to = r->arrived.to;
    down.rows = up.rows, down.xs = ms, down.ld = (int)ld, down.res = (__nv_bfloat16 *)p->workspace;
    down.groups = p->inter / GROUP, down.outs = p->hidden,
    down.out_tiles = sl_ceil_div(p->hidden, 2 * ST_BOX);
    SL_TRY(launch(cu, gemm_kernel<false>, down, err));
    return sl_moe_finish(cu, r, down.res, err);
}
