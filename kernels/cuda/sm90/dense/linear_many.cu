/*
 * Linear layers of many tokens whose k is cut into ranges (linear_few.cu): fp8 with block scales, or bf16. The
 * bits are those of linear_few.cu: a range is one chain of sums, and ranges are added in order. Weights whose k
 * is a single range use cuBLASLt, which also adds them as one chain.
 *
 * A tile is 128 tokens x 128 outputs over all of k, so that the sum over the ranges stays in registers. There is
 * one persistent block per SM. One thread keeps a ring of bulk tensor copies full; two warpgroups compute 64
 * tokens each. The tiles are ordered by bands of BAND token tiles: all outputs of one band precede the next band.
 * Thus the tokens of the band and the weights that are being used stay in the L2 cache.
 */
#include "kernels/cuda/sm90/dense/linear.h"
#include "kernels/cuda/sm90/ring.cuh"

#define GROUP 128
#define TOKENS 128 /* per tile */
#define X_BYTES (TOKENS * GROUP)
#define STAGE (ST_BOX_BYTES + X_BYTES)
#define STAGES 6
#define XS_BYTES (TOKENS * 4)
#define SMEM (STAGES * (STAGE + XS_BYTES + 16) + 1024)
#define THREADS 384
#define BAND 8 /* token tiles per band */

struct many_out {
    CUtensorMap w;
    const float *ws; /* [outs / 128][groups] */
    void *out;
    int outs, ld_out, first_tile;
    sl_dtype dtype;
};

/* Layers that read the same x. The tiles are numbered through all layers, beginning with the first layer. */
struct many_args {
    CUtensorMap x;
    many_out o[SL_LINEAR_CHAIN];
    const float *xs;                     /* [groups][ld_xs] */
    int n, ld_xs, groups, chunk, tokens; /* groups: of 128 bytes of k; chunk: groups per range */
    int token_tiles, out_tiles;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct many_tile {
    int which, out0, t0;
};

__device__ static inline many_tile tile_of(const many_args &p, int w)
{
    int band = w / (BAND * p.out_tiles), in = w - band * BAND * p.out_tiles,
        wide = min(BAND, p.token_tiles - band * BAND), tile = in / wide;
    many_tile t = {0, 0, (band * BAND + in % wide) * TOKENS};

    while (t.which + 1 < p.n && tile >= p.o[t.which + 1].first_tile)
        t.which++;
    t.out0 = (tile - p.o[t.which].first_tile) * ST_BOX;
    return t;
}

typedef st_ring<STAGES> many_ring;

template <bool F8> __device__ static void produce(const many_args &p, many_ring r, uint32_t xs_base, int work)
{
    for (int w = blockIdx.x; w < work; w += gridDim.x) {
        many_tile t = tile_of(p, w);
        for (int g = 0; g < p.groups; g++, st_next(r)) {
            uint32_t at = r.base + r.stage * STAGE, full = r.full + r.stage * 8;
            sl_mbar_wait(r.empty + r.stage * 8, r.phase ^ 1);
            sl_mbar_expect(full, STAGE + (F8 ? XS_BYTES : 0));
            sl_copy_box(at, &p.o[t.which].w, g * GROUP, t.out0, full);
            sl_copy_box(at + ST_BOX_BYTES, &p.x, g * GROUP, t.t0, full);
            if (F8)
                sl_copy_bulk(xs_base + r.stage * XS_BYTES, p.xs + (int64_t)g * p.ld_xs + t.t0, XS_BYTES,
                             full);
        }
    }
}

/* Multiplies one range of k; acc begins at zero. */
template <bool F8>
__device__ static inline void multiply(const many_args &p, many_ring &r, const float *xs, const float *ws,
                                       int g0, int g1, float (&acc)[64])
{
    int wg = threadIdx.x >> 7, row = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4;
    float d[F8 ? 64 : 1];

#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0;
    for (int g = g0; g < g1; g++, st_next(r)) {
        uint32_t at = r.base + r.stage * STAGE;
        uint64_t a = sl_desc_k(at + ST_BOX_BYTES + wg * (X_BYTES / 2)), b = sl_desc_k(at);
        float w = F8 ? __ldg(ws + g) : 0, x0 = 0, x1 = 0;
        sl_mbar_wait(r.full + r.stage * 8, r.phase);
        if constexpr (F8) {
            x0 = __fmul_rn(xs[r.stage * TOKENS + row], w);
            x1 = __fmul_rn(xs[r.stage * TOKENS + row + 8], w);
        }
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            if constexpr (F8)
                st_product<true>(d, a + 2 * k, b + 2 * k, k > 0);
            else
                st_product<false>(acc, a + 2 * k, b + 2 * k, true);
        sl_wgmma_finish();
        st_release(r);
        if constexpr (F8)
#pragma unroll
            for (int i = 0; i < 64; i++)
                acc[i] = fmaf(d[i], i & 2 ? x1 : x0, acc[i]);
    }
}

/* Stores row half h of a box: two values per lane, or lines of 16 bytes where the output is aligned for them. */
__device__ static inline void store_half(const many_out &o, int64_t t, int out0, const float (&v)[64], int h,
                                         bool real)
{
    int q = threadIdx.x & 3;
    bool lines = o.dtype == SL_BF16 && o.ld_out % 8 == 0 && o.outs % 8 == 0 && (uintptr_t)o.out % 16 == 0;

#pragma unroll
    for (int j = 0; j < 16; j += 4) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = st_pack(v[4 * (j + i) + 2 * h], v[4 * (j + i) + 2 * h + 1]);
        uint4 line = st_turn(w[0], w[1], w[2], w[3]);
        if (!real)
            continue;
        if (lines && out0 + 8 * (j + q) < o.outs)
            *(uint4 *)((__nv_bfloat16 *)o.out + t * o.ld_out + out0 + 8 * (j + q)) = line;
#pragma unroll
        for (int i = 0; i < 8 && !lines; i++) {
            int out = out0 + 8 * (j + i / 2) + 2 * q + i % 2;
            if (out < o.outs)
                sl_st(o.out, t * o.ld_out + out, v[4 * (j + i / 2) + 2 * h + i % 2], o.dtype);
        }
    }
}

template <bool F8> __device__ static void consume(const many_args &p, many_ring r, const float *xs, int work)
{
    int wg = threadIdx.x >> 7, row = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4;
    float acc[64], sum[64];

    for (int w = blockIdx.x; w < work; w += gridDim.x) {
        many_tile t = tile_of(p, w);
        const many_out &o = p.o[t.which];
        const float *ws = F8 ? o.ws + (int64_t)(t.out0 / GROUP) * p.groups : NULL;
        if (t.t0 + wg * 64 >= p.tokens) { /* this warpgroup's tokens do not exist */
            for (int g = 0; g < p.groups; g++, st_next(r)) {
                sl_mbar_wait(r.full + r.stage * 8, r.phase);
                st_release(r);
            }
            continue;
        }
        for (int g = 0; g < p.groups; g += p.chunk) {
            multiply<F8>(p, r, xs, ws, g, min(p.groups, g + p.chunk), acc);
#pragma unroll
            for (int i = 0; i < 64; i++)
                sum[i] = g == 0 ? acc[i] : __fadd_rn(sum[i], acc[i]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            store_half(o, t.t0 + row + 8 * h, t.out0, sum, h, t.t0 + row + 8 * h < p.tokens);
    }
}
#endif

template <bool F8>
__global__ static void __launch_bounds__(THREADS, 1) many_kernel(const __grid_constant__ many_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t raw_at = sl_smem_addr(raw), pad = (1024 - raw_at % 1024) % 1024;
    float *xs = (float *)(raw + pad + STAGES * STAGE);
    uint32_t bars = sl_smem_addr(xs + STAGES * TOKENS);
    many_ring r = {raw_at + pad, bars, bars + STAGES * 8, 0, 0};
    int work = p.token_tiles * p.out_tiles;

    if (threadIdx.x == 0)
        st_init_stages<STAGES>(r.full, r.empty);
    __syncthreads();
    if (threadIdx.x >= ST_MULTIPLIERS) {
        sl_registers_give<ST_COPY_REGS>();
        if (threadIdx.x == ST_MULTIPLIERS)
            produce<F8>(p, r, sl_smem_addr(xs), work);
    } else {
        sl_registers_take<ST_MULTIPLY_REGS>();
        consume<F8>(p, r, xs, work);
    }
#endif
}

template <bool F8> static sl_status launch(sl_cuda *cu, const many_args *a, sl_err *err)
{
    return SL_LAUNCH(cu, many_kernel<F8>,
                     (sl_launch{dim3(min(cu->sms, a->token_tiles * a->out_tiles)), THREADS, SMEM}), err, *a);
}

sl_status sl_cuda_linear_many(sl_cuda *cu, const sl_linear_params *p, int n, const uint8_t *xq,
                              const float *xs, int ld_xs, int chunk, sl_err *err)
{
    int64_t bytes = p->w.in * (int64_t)sl_dtype_size(p->w.dtype);
    many_args a = {};

    SL_TRY(xq ? sl_cuda_map(cu, xq, p->tokens, bytes, bytes, TOKENS, &a.x, err)
              : sl_cuda_map(cu, p->x, p->tokens, bytes, (int64_t)p->ld_x * 2, TOKENS, &a.x, err));
    a.xs = xs, a.ld_xs = ld_xs, a.groups = (int)(bytes / GROUP), a.chunk = chunk, a.tokens = p->tokens;
    a.token_tiles = sl_ceil_div(p->tokens, TOKENS);
    for (; a.n < n; a.n++, p = p->next) {
        many_out *o = &a.o[a.n];
        SL_TRY(sl_cuda_map(cu, p->w.data, p->w.out, bytes, bytes, ST_BOX, &o->w, err));
        o->ws = p->w.scale, o->out = p->out, o->outs = p->w.out, o->ld_out = p->ld_out;
        o->dtype = p->out_dtype, o->first_tile = a.out_tiles;
        a.out_tiles += sl_ceil_div(p->w.out, ST_BOX);
    }
    return xq ? launch<true>(cu, &a, err) : launch<false>(cu, &a, err);
}
