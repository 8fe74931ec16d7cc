/*
 * Linear layers of many tokens whose k is cut into ranges (pipeline.cuh): fp8 with block scales, or bf16. The
 * bits are those of linear_few.cu: a range is one chain of sums, and ranges are added in order. Weights whose k
 * is a single range use cuBLASLt, which also adds them as one chain.
 *
 * A tile is 128 tokens x 128 outputs over all of k, so that the sum over the ranges stays in registers. There is
 * one persistent block per SM; two warpgroups compute 64
 * tokens each. The tiles are ordered by bands of BAND token tiles: all outputs of one band precede the next band.
 * Thus the tokens of the band and the weights that are being used stay in the L2 cache.
 */
#include "kernels/cuda/sm90/dense/linear.h"
#include "kernels/cuda/sm90/pipeline.cuh"

#define GROUP 128
#define TOKENS 128 /* per tile */
#define BAND 8     /* token tiles per band */

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

/* Stores row half h of a box: lines of 16 bytes where the output is aligned for them. */
__device__ static inline void store_half(const many_out &o, int64_t t, int out0, const float (&v)[64], int h,
                                         bool real)
{
    int q = threadIdx.x & 3;

    if (o.dtype == SL_BF16 && o.ld_out % 8 == 0 && o.outs % 8 == 0 && (uintptr_t)o.out % 16 == 0) {
        pl_store_bf16((__nv_bfloat16 *)o.out + t * o.ld_out + out0, v, h, (o.outs - out0) / 8, real);
        return;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int out = out0 + 8 * (i / 2) + 2 * q + i % 2;
        if (real && out < o.outs)
            sl_st(o.out, t * o.ld_out + out, v[4 * (i / 2) + 2 * h + i % 2], o.dtype);
    }
}
#endif

template <bool F8> struct many_plan {
    typedef many_args Args;
    static constexpr int MULTIPLIERS = ST_MULTIPLIERS, THREADS = 384, COPY_REGS = ST_COPY_REGS,
                         MULTIPLY_REGS = ST_MULTIPLY_REGS, STAGES = 6, BOXES = 1, X = TOKENS * GROUP,
                         XS = TOKENS * 4, EXTRA = 0, TOGETHER = 1;
    static constexpr bool EARLY = false, LET_NEXT = false, SCALES_FIRST = true;

    static const char *name()
    {
        return "linear_many";
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef many_tile Item;

    __device__ static int items(const Args &p)
    {
        return p.token_tiles * p.out_tiles;
    }

    __device__ static int first()
    {
        return blockIdx.x;
    }

    __device__ static int step()
    {
        return gridDim.x;
    }

    __device__ static Item item(const Args &p, int w)
    {
        return tile_of(p, w);
    }

    __device__ static int stages(const Args &p, const Item &)
    {
        return p.groups;
    }

    __device__ static void copy_weights(const Args &p, const Item &t, uint32_t at, uint32_t bar, int g)
    {
        sl_mbar_expect(bar, ST_BOX_BYTES + X + (F8 ? XS : 0));
        sl_copy_box(at, &p.o[t.which].w, g * GROUP, t.out0, bar);
    }

    __device__ static void copy_tokens(const Args &p, const Item &t, uint32_t at, uint32_t xs, uint32_t bar,
                                       int g)
    {
        sl_copy_box(at, &p.x, g * GROUP, t.t0, bar);
        if (F8)
            sl_copy_bulk(xs, p.xs + (int64_t)g * p.ld_xs + t.t0, XS, bar);
    }

    __device__ static void consume(const Args &p, pl_memory<many_plan> &m, int items)
    {
        const int wg = threadIdx.x >> 7, row = wg * 64 + st_row(threadIdx.x & 31);
        float acc[1][1][64], sum[64];

        for (int w = first(); w < items; w += step()) {
            const many_tile t = tile_of(p, w);
            const many_out &o = p.o[t.which];
            const float *ws = F8 ? o.ws + (int64_t)(t.out0 / GROUP) * p.groups : NULL;
            const bool exists = t.t0 + wg * 64 < p.tokens;
            for (int g0 = 0; g0 < p.groups; g0 += p.chunk) {
                pl_multiply<many_plan, F8, 64>(
                    m.ring, m.xs, ST_BOX_BYTES + wg * ST_X_BYTES, 0, row, min(p.groups - g0, p.chunk), exists,
                    [&](int, int g) { return __ldg(ws + g0 + g); }, acc);
#pragma unroll
                for (int i = 0; i < 64; i++)
                    sum[i] = g0 == 0 ? acc[0][0][i] : __fadd_rn(sum[i], acc[0][0][i]);
            }
#pragma unroll
            for (int h = 0; exists && h < 2; h++)
                store_half(o, t.t0 + row + 8 * h, t.out0, sum, h, t.t0 + row + 8 * h < p.tokens);
        }
    }

    __device__ static void copied(const Args &)
    {
    }
#endif
};

template <bool F8> static sl_status launch(sl_cuda *cu, const many_args *a, sl_err *err)
{
    return pl_launch<many_plan<F8>>(cu, *a, dim3(min(cu->sms, a->token_tiles * a->out_tiles)), false, 0, err);
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
