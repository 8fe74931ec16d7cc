/*
 * Linear layers of few tokens, by streaming the weight (ring.cuh): fp8 with block scales, or bf16. A block
 * computes 64 or 128 tokens (with the same products in both cases) x 256 outputs over its range of k. The ranges
 * of one tile form a cluster; its blocks add their partial sums in the order of the ranges through distributed
 * shared memory. The number of ranges depends on the weight's shape alone. Layers of more tokens use
 * linear_many.cu, which adds in the same order.
 */
#include "kernels/cuda/sm90/dense/linear.h"
#include "kernels/cuda/sm90/ring.cuh"

#define GROUP 128
#define MANY_TOKENS 2048
#define OUTS (2 * ST_BOX)
#define PART_LD (OUTS + 4) /* floats; the partial sums of a tile reuse the memory of the stages */
#define X_BYTES(mt) ((mt)*ST_X_BYTES)
#define STAGES(mt) ((mt) == 1 ? 5 : 4)
#define STAGE(mt) (2 * ST_BOX_BYTES + X_BYTES(mt))
#define SMEM(mt) (STAGES(mt) * (STAGE(mt) + (mt)*ST_XS_BYTES + 16) + 1024)
#define THREADS 384   /* two warpgroups that multiply, and one that copies and gives them its registers */
#define MOST_RANGES 8 /* of sl_linear_ranges() */
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

/* Starts the copies of one stage's weights; `bytes` is what the whole stage will receive, tokens included. */
template <int MT>
__device__ static inline void copy_weights(const linear_out &o, uint32_t at, uint32_t bar, int g, int out0,
                                           int bytes)
{
    sl_mbar_expect(bar, bytes);
    sl_copy_box(at, &o.w, g * GROUP, out0, bar);
    if (out0 + ST_BOX < o.outs)
        sl_copy_box(at + ST_BOX_BYTES, &o.w, g * GROUP, out0 + ST_BOX, bar);
}

template <bool F8, int MT>
__device__ static void produce(const linear_args &p, const linear_out &o, uint32_t base, uint32_t full,
                               uint32_t empty, uint32_t xs_at, int g0, int g1, int t0, int out0)
{
    int boxes = (min(MT * ST_TOKENS, p.tokens - t0) + 7) / 8;
    bool second = out0 + ST_BOX < o.outs;

    /* The previous kernel produces the tokens. The weights do not depend on it, so their copies start first. */
    for (int n = 0; n < STAGES(MT) && g0 + n < g1; n++)
        copy_weights<MT>(o, base + n * STAGE(MT), full + n * 8, g0 + n, out0,
                         (second ? 2 : 1) * ST_BOX_BYTES + boxes * 1024 + (F8 ? MT * ST_XS_BYTES : 0));
    sl_after_previous();
    for (int g = g0, n = 0; g < g1; g++, n++) {
        int s = n % STAGES(MT);
        uint32_t at = base + s * STAGE(MT), bar = full + s * 8;
        if (n >= STAGES(MT)) {
            sl_mbar_wait(empty + s * 8, (n / STAGES(MT) & 1) ^ 1);
            copy_weights<MT>(o, at, bar, g, out0,
                             (second ? 2 : 1) * ST_BOX_BYTES + boxes * 1024 + (F8 ? MT * ST_XS_BYTES : 0));
        }
        for (int i = 0; i < boxes; i++)
            sl_copy_box(at + 2 * ST_BOX_BYTES + i * 1024, &p.x, g * GROUP, t0 + 8 * i, bar);
        if (F8)
            sl_copy_bulk(xs_at + s * MT * ST_XS_BYTES, p.xs + (int64_t)g * p.ld_xs + t0, MT * ST_XS_BYTES,
                         bar);
    }
}

template <bool F8, int MT>
__device__ static void multiply(const linear_args &p, const linear_out &o, uint32_t base, uint32_t full,
                                uint32_t empty, const float *xs, int g0, int g1, int out, int wg,
                                float (&acc)[MT][64])
{
    int lane = threadIdx.x & 31, row = st_row(lane), n = g1 - g0;
    const float *sw = F8 ? o.ws + (int64_t)(min(out, o.outs - 1) / GROUP) * p.groups + g0 : NULL;
    float s0 = F8 && lane < n ? sw[lane] : 0, s1 = F8 && lane + 32 < n ? sw[lane + 32] : 0, d[F8 ? 64 : 1];

#pragma unroll
    for (int i = 0; i < MT * 64; i++)
        acc[i / 64][i % 64] = 0;
    for (int i = 0; i < n; i++) {
        int s = i % STAGES(MT);
        uint32_t at = base + s * STAGE(MT);
        uint64_t b = sl_desc_k(at + wg * ST_BOX_BYTES);
        float w = F8 ? __shfl_sync(0xffffffffu, i < 32 ? s0 : s1, i & 31) : 0;
        sl_mbar_wait(full + s * 8, i / STAGES(MT) & 1);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            uint64_t a = sl_desc_k(at + 2 * ST_BOX_BYTES + m * ST_X_BYTES);
            sl_wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++)
                if constexpr (F8)
                    st_product<true>(d, a + 2 * k, b + 2 * k, k > 0);
                else
                    st_product<false>(acc[m], a + 2 * k, b + 2 * k, true);
            float x0 = 0, x1 = 0;
            if constexpr (F8) {
                x0 = __fmul_rn(xs[s * MT * ST_TOKENS + m * ST_TOKENS + row], w);
                x1 = __fmul_rn(xs[s * MT * ST_TOKENS + m * ST_TOKENS + row + 8], w);
            }
            sl_wgmma_finish();
            if (m == MT - 1 && lane == 0)
                sl_mbar_arrive(empty + s * 8);
            if constexpr (F8)
#pragma unroll
                for (int k = 0; k < 64; k++)
                    acc[m][k] = fmaf(d[k], k & 2 ? x1 : x0, acc[m][k]);
        }
    }
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

/* blockIdx: x is the range of k (the rank in the cluster), y the tile of outputs, z the tile of tokens. */
template <bool F8, int MT>
__global__ static void __launch_bounds__(THREADS, 1) linear_kernel(const __grid_constant__ linear_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t raw_at = sl_smem_addr(raw), pad = (1024 - raw_at % 1024) % 1024, base = raw_at + pad;
    float *part = (float *)(raw + pad), *xs = (float *)(raw + pad + STAGES(MT) * STAGE(MT));
    uint32_t full = sl_smem_addr(xs + STAGES(MT) * MT * ST_TOKENS), empty = full + STAGES(MT) * 8;
    int g0 = blockIdx.x * p.chunk, g1 = min(p.groups, g0 + p.chunk), out0, which = 0,
        t0 = blockIdx.z * MT * ST_TOKENS, wg = threadIdx.x >> 7;

    while (which + 1 < p.n && (int)blockIdx.y >= p.o[which + 1].first_tile)
        which++;
    const linear_out &o = p.o[which];
    out0 = ((int)blockIdx.y - o.first_tile) * OUTS;
    if (threadIdx.x == 0)
        st_init_stages<STAGES(MT)>(full, empty);
    __syncthreads();
    if (threadIdx.x >= ST_MULTIPLIERS) {
        sl_registers_give<ST_COPY_REGS>();
        if (threadIdx.x == ST_MULTIPLIERS)
            produce<F8, MT>(p, o, base, full, empty, sl_smem_addr(xs), g0, g1, t0, out0);
        __syncwarp();
        if (p.splits > 1) {
            sl_cluster_sync();
            sl_cluster_sync();
        }
    } else {
        float acc[MT][64];
        sl_registers_take<ST_MULTIPLY_REGS>();
        multiply<F8, MT>(p, o, base, full, empty, xs, g0, g1, out0 + wg * ST_BOX, wg, acc);
        if (p.splits > 1)
            sl_bar_sync(BAR_PART, ST_MULTIPLIERS);
#pragma unroll
        for (int m = 0; m < MT; m++)
            if (p.splits == 1)
                store_tile(o, p.tokens, t0 + m * ST_TOKENS, out0 + wg * ST_BOX, acc[m]);
            else
                put_part(part + m * ST_TOKENS * PART_LD, wg, acc[m]);
        if (p.splits > 1) {
            sl_cluster_sync();
            add_parts(p, o, part, blockIdx.x, t0, MT * ST_TOKENS, out0);
            sl_cluster_sync(); /* a block must not exit while other blocks read its partial sums */
        }
    }
#endif
}

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

    return SL_LAUNCH(cu, (linear_kernel<F8, MT>), (sl_launch{grid, THREADS, SMEM(MT), F8, a->splits}), err,
                     *a);
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
