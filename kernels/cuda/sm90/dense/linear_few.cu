/*
 * Linear layers of few tokens (pipeline.cuh): fp8 with block scales, or bf16. A block
 * computes 64 or 128 tokens (with the same products in both cases) x 256 outputs over its range of k. The ranges
 * of one tile form a cluster; its blocks add their partial sums in the order of the ranges through distributed
 * shared memory. The number of ranges depends on the weight's shape alone. Layers of more tokens use
 * linear_many.cu, which adds in the same order.
 */
#include "kernels/cuda/sm90/dense/linear.h"
#include "kernels/cuda/sm90/pipeline.cuh"

#define GROUP 128
#define MANY_TOKENS 2048
#define OUTS (2 * ST_BOX)
#define PART_LD (OUTS + 4) /* floats; the partial sums of a tile reuse the memory of the stages */
#define MOST_RANGES 8      /* of sl_linear_ranges() */
/* Blocks that are enough to occupy the device. */
#define BUSY 112
#define BAR_PART 1 /* named barrier: both warpgroups have read the last stage, the sums may overwrite it */

struct linear_out {
    CUtensorMap w;
    const float *ws; /* [outs / 128][groups] */
    void *out;
    int outs, ld_out, first_tile;
    sl_dtype dtype;
};

/* Layers that read the same x. The tiles are numbered through all layers, beginning with the first layer. */
struct linear_args {
    CUtensorMap x;
    linear_out o[SL_LINEAR_CHAIN];
    const float *xs;                             /* [groups][ld_xs] */
    int n, ld_xs, groups, chunk, splits, tokens; /* groups: of 128 bytes of k; chunk: groups per range */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Loads four floats from address `at` in the shared memory of block `rank` of the cluster. */
__device__ static inline float4 remote(uint32_t at, int rank)
{
    return sl_cluster_load_float4(sl_cluster_addr(at, rank));
}

__device__ static inline void store_pair(const linear_out &o, int64_t t, int out, float a, float b)
{
    if (out + 1 < o.outs && o.dtype == SL_BF16 && (o.ld_out & 1) == 0) {
        *(__nv_bfloat162 *)((__nv_bfloat16 *)o.out + t * o.ld_out + out) = __floats2bfloat162_rn(a, b);
        return;
    }
    if (out < o.outs)
        sl_st(o.out, t * o.ld_out + out, a, o.dtype);
    if (out + 1 < o.outs)
        sl_st(o.out, t * o.ld_out + out + 1, b, o.dtype);
}

/* Stores a tile whose sums are complete (k is one range) directly to the output. */
__device__ static void store_tile(const linear_out &o, int tokens, int t0, int out, const float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = st_row(lane);

#pragma unroll
    for (int i = 0; i < 32; i++) {
        int t = t0 + row + (i & 1) * 8;
        if (t < tokens)
            store_pair(o, t, out + i / 2 * 8 + (lane & 3) * 2, acc[2 * i], acc[2 * i + 1]);
    }
}

__device__ static void put_part(float *part, int wg, const float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = st_row(lane);

#pragma unroll
    for (int i = 0; i < 32; i++)
        *(float2 *)(part + (row + (i & 1) * 8) * PART_LD + wg * ST_BOX + i / 2 * 8 + (lane & 3) * 2) =
            make_float2(acc[2 * i], acc[2 * i + 1]);
}

__device__ static inline float4 plus(float4 a, float4 b)
{
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

/* Computes this block's share of the tile: the sums over the ranges of k, added in order. */
__device__ static void add_parts(const linear_args &p, const linear_out &o, const float *part, int rank,
                                 int t0, int most, int out0)
{
    int quads = min(most, p.tokens - t0) * (OUTS / 4);

    for (int i0 = rank * ST_MULTIPLIERS + threadIdx.x; i0 < quads; i0 += 2 * p.splits * ST_MULTIPLIERS) {
        float4 v[2][MOST_RANGES];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int i = i0 + j * p.splits * ST_MULTIPLIERS, t = i / (OUTS / 4), c = i % (OUTS / 4) * 4;
            uint32_t at = sl_smem_addr(part + t * PART_LD + c);
#pragma unroll
            for (int s = 0; s < MOST_RANGES; s++)
                if (s < p.splits && i < quads)
                    v[j][s] = remote(at, s);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int i = i0 + j * p.splits * ST_MULTIPLIERS, t = i / (OUTS / 4), c = i % (OUTS / 4) * 4;
            float4 sum = v[j][0];
            if (i >= quads)
                break;
#pragma unroll
            for (int s = 1; s < MOST_RANGES; s++)
                if (s < p.splits)
                    sum = plus(sum, v[j][s]);
            store_pair(o, t0 + t, out0 + c, sum.x, sum.y);
            store_pair(o, t0 + t, out0 + c + 2, sum.z, sum.w);
        }
    }
}
#endif

/* blockIdx: x is the range of k (the rank in the cluster), y the tile of outputs, z the tile of tokens. MT: tiles of 64 tokens. */
template <bool F8, int MT> struct few_plan {
    typedef linear_args Args;
    struct Item {
        const linear_out *o;
        int g0, g1, out0, t0;
    };
    static constexpr int MULTIPLIERS = ST_MULTIPLIERS, THREADS = 384, COPY_REGS = ST_COPY_REGS,
                         MULTIPLY_REGS = ST_MULTIPLY_REGS, STAGES = MT == 1 ? 5 : 4, BOXES = 2,
                         X = MT * ST_X_BYTES, XS = MT * ST_XS_BYTES, EXTRA = 0, TOGETHER = 1;
    static constexpr bool EARLY = true, LET_NEXT = false, SCALES_FIRST = false;

    static const char *name()
    {
        return "linear_few";
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __device__ static int items(const Args &)
    {
        return 1;
    }

    __device__ static int first()
    {
        return 0;
    }

    __device__ static int step()
    {
        return 1;
    }

    __device__ static Item item(const Args &p, int)
    {
        int which = 0;

        while (which + 1 < p.n && (int)blockIdx.y >= p.o[which + 1].first_tile)
            which++;
        const int g0 = blockIdx.x * p.chunk;
        return {&p.o[which], g0, min(p.groups, g0 + p.chunk),
                ((int)blockIdx.y - p.o[which].first_tile) * OUTS, (int)blockIdx.z * MT * ST_TOKENS};
    }

    __device__ static int stages(const Args &, const Item &t)
    {
        return t.g1 - t.g0;
    }

    __device__ static int eights(const Args &p, const Item &t)
    {
        return (min(MT * ST_TOKENS, p.tokens - t.t0) + 7) / 8;
    }

    __device__ static void copy_weights(const Args &p, const Item &t, uint32_t at, uint32_t bar, int g)
    {
        const bool second = t.out0 + ST_BOX < t.o->outs;

        sl_mbar_expect(bar, (second ? 2 : 1) * ST_BOX_BYTES + eights(p, t) * 1024 + (F8 ? XS : 0));
        sl_copy_box(at, &t.o->w, (t.g0 + g) * GROUP, t.out0, bar);
        if (second)
            sl_copy_box(at + ST_BOX_BYTES, &t.o->w, (t.g0 + g) * GROUP, t.out0 + ST_BOX, bar);
    }

    __device__ static void copy_tokens(const Args &p, const Item &t, uint32_t at, uint32_t xs, uint32_t bar,
                                       int g)
    {
        const int boxes = eights(p, t);

        for (int i = 0; i < boxes; i++)
            sl_copy_box(at + i * 1024, &p.x, (t.g0 + g) * GROUP, t.t0 + 8 * i, bar);
        if (F8)
            sl_copy_bulk(xs, p.xs + (int64_t)(t.g0 + g) * p.ld_xs + t.t0, XS, bar);
    }

    __device__ static void consume(const Args &p, pl_memory<few_plan> &m, int)
    {
        const Item t = item(p, 0);
        const int wg = threadIdx.x >> 7, out = t.out0 + wg * ST_BOX, n = t.g1 - t.g0;
        float acc[MT][1][64], *part = (float *)m.stages;
        pl_scales s = {};

        if (F8)
            s = pl_load_scales(t.o->ws + (int64_t)(min(out, t.o->outs - 1) / GROUP) * p.groups + t.g0, n);
        pl_multiply<few_plan, F8, 64>(
            m.ring, m.xs, 2 * ST_BOX_BYTES, wg * ST_BOX_BYTES, st_row(threadIdx.x & 31), n, true,
            [&](int, int g) { return pl_scale(s, g); }, acc);
        if (p.splits > 1)
            sl_bar_sync(BAR_PART, ST_MULTIPLIERS);
#pragma unroll
        for (int i = 0; i < MT; i++)
            if (p.splits == 1)
                store_tile(*t.o, p.tokens, t.t0 + i * ST_TOKENS, out, acc[i][0]);
            else
                put_part(part + i * ST_TOKENS * PART_LD, wg, acc[i][0]);
        if (p.splits > 1) {
            sl_cluster_sync();
            add_parts(p, *t.o, part, blockIdx.x, t.t0, MT * ST_TOKENS, t.out0);
            sl_cluster_sync(); /* a block must not exit while other blocks read its partial sums */
        }
    }

    __device__ static void copied(const Args &p)
    {
        __syncwarp();
        if (p.splits > 1) {
            sl_cluster_sync();
            sl_cluster_sync();
        }
    }
#endif
};

static int64_t row_bytes(const sl_linear_params *p)
{
    return p->w.in * (int64_t)sl_dtype_size(p->w.dtype);
}

int sl_cuda_linear_together(const sl_cuda *cu, const sl_linear_params *p)
{
    int n = 1;

    for (const sl_linear_params *q = p->next; q; q = q->next, n++)
        if (q->w.dtype != p->w.dtype || q->fp8_acts != p->fp8_acts || q->w.in != p->w.in ||
            sl_path_linear(&cu->gpu, q) != sl_path_linear(&cu->gpu, p) ||
            sl_linear_ranges(&q->w) != sl_linear_ranges(&p->w))
            return 1;
    return n;
}

/* The kernels that produce a bf16 x do not allow an early start. */
template <bool F8, int MT> static sl_status launch(sl_cuda *cu, const linear_args *a, int tiles, sl_err *err)
{
    dim3 grid(a->splits, tiles, sl_ceil_div(a->tokens, MT * ST_TOKENS));

    return pl_launch<few_plan<F8, MT>>(cu, *a, grid, F8, a->splits, err);
}

/* Describes the first n layers of the chain in a; *tiles receives the number of their output tiles. */
static sl_status describe(sl_cuda *cu, const sl_linear_params *p, int n, linear_args *a, int *tiles,
                          sl_err *err)
{
    *tiles = 0;
    for (a->n = 0; a->n < n; a->n++, p = p->next) {
        linear_out *o = &a->o[a->n];
        SL_TRY(sl_cuda_map(cu, p->w.data, p->w.out, row_bytes(p), row_bytes(p), ST_BOX, &o->w, err));
        o->ws = p->w.scale, o->out = p->out, o->outs = p->w.out, o->ld_out = p->ld_out,
        o->dtype = p->out_dtype;
        o->first_tile = *tiles;
        *tiles += sl_ceil_div(p->w.out, OUTS);
    }
    return SL_OK;
}

/* Whether linear_many.cu computes this layer, with tiles over all of k: for more than SL_LINEAR_FEW_TOKENS tokens, if these
 * are also more than MANY_TOKENS or give enough tiles to occupy the device. */
static bool wants_many(const sl_linear_params *p, int n)
{
    int boxes = 0;

    for (const sl_linear_params *q = p; n > 0; n--, q = q->next)
        boxes += sl_ceil_div(q->w.out, ST_BOX);
    return p->tokens > SL_LINEAR_FEW_TOKENS &&
           (p->tokens > MANY_TOKENS || sl_ceil_div(p->tokens, 128) * boxes > 32);
}

sl_status sl_cuda_linear_few(sl_cuda *cu, const sl_linear_params *p, int n, const uint8_t *xq,
                             const float *xs, int ld_xs, sl_err *err)
{
    bool f8 = xq != NULL;
    int groups = (int)(row_bytes(p) / GROUP);
    linear_args a = {};
    int tiles;

    if (wants_many(p, n))
        return sl_cuda_linear_many(cu, p, n, xq, xs, ld_xs, sl_ceil_div(groups, sl_linear_ranges(&p->w)),
                                   err);
    SL_TRY(describe(cu, p, n, &a, &tiles, err));
    SL_TRY(f8 ? sl_cuda_map(cu, xq, p->tokens, row_bytes(p), row_bytes(p), 8, &a.x, err)
              : sl_cuda_map(cu, p->x, p->tokens, row_bytes(p), (int64_t)p->ld_x * 2, 8, &a.x, err));
    a.xs = xs, a.ld_xs = ld_xs, a.tokens = p->tokens;
    a.groups = groups, a.splits = sl_linear_ranges(&p->w);
    a.chunk = sl_ceil_div(a.groups, a.splits);
    if (p->tokens <= ST_TOKENS || tiles * a.splits * sl_ceil_div(p->tokens, ST_TOKENS) <= BUSY)
        return f8 ? launch<true, 1>(cu, &a, tiles, err) : launch<false, 1>(cu, &a, tiles, err);
    return f8 ? launch<true, 2>(cu, &a, tiles, err) : launch<false, 2>(cu, &a, tiles, err);
}
