/*
 * Routed experts in the pipeline of pipeline.cuh: what the plans of few tokens (moe_few.cu), of many (moe_grouped.cu) and of
 * weights in 4 bits (moe_half.cu) share. Internal to kernels/cuda.
 *
 * The (token, choice) pairs are grouped by expert into rows, on the device; each expert's rows are padded to a multiple of eight,
 * and their inputs are stored in that order. A tile is up to TILE rows of one expert by two boxes of 128 outputs: gate and up, or
 * two of down. silu(gate) * up is quantised by the block that computed it, because a box is a group of 128. Each result is
 * stored for its (token, choice), and the results of a token are added in the order of its choices, without atomics. The sort leaves
 * the order of an expert's rows undefined; no result depends on that.
 */
#ifndef SL_KERNELS_CUDA_SM90_EXPERTS_MOE_PIPELINE_CUH
#define SL_KERNELS_CUDA_SM90_EXPERTS_MOE_PIPELINE_CUH

#include "kernels/cuda/any/experts/moe_group.cuh"
#include "kernels/cuda/any/experts/moe_list.cuh"
#include "kernels/cuda/any/experts/moe_rows.cuh"
#include "kernels/cuda/sm90/pipeline.cuh"
#include "kernels/scratch.h"

struct moe_lists {
    int32_t *pair;   /* [rows], -1 for padding */
    int32_t *row_of; /* [pairs], -1 without a row */
    int4 *tile;      /* expert, first row, rows | first tile of the expert << 8, tiles of the expert */
    int32_t *n_tiles;
};

/* Inputs of padding rows are not initialised: their results are not stored. */
template <int TILE>
__global__ static void __launch_bounds__(SL_MOE_MAX_EXPERTS)
    moe_group_kernel(const int32_t *ids, int pairs, int experts, moe_lists lists, sl_moe_arrived arrived,
                     uint32_t *deverr)
{
    if (sl_moe_list(arrived, deverr))
        return;
    sl_moe_group<TILE, 8, TILE == 32 ? 4 : 8>(
        ids, pairs, experts, lists.pair, lists.n_tiles, deverr,
        [&](int e, int at, int first, int count, int base, int of) {
            lists.tile[at] = make_int4(e, first, count | base << 8, of);
        },
        [&](int i, int row) { lists.row_of[i] = row; });
}

/* The products with gate and up, or those with down. */
struct moe_args {
    CUtensorMap x;              /* [rows][in] */
    const CUtensorMap *wa, *wb; /* gate and up; or down, and wb is unused */
    const sl_weight *ta, *tb;
    moe_lists lists;
    const float *xs;    /* e4m3: [in / 128][ld] */
    float *ms;          /* e4m3, gate and up: scales of their result, [outs / 128][ld] */
    void *mid;          /* gate and up: their result, [rows][outs] */
    __nv_bfloat16 *res; /* down: [pairs][outs] */
    sl_moe_to to;       /* down: where they go instead */
    int ld, stages, outs, out_tiles;
    sl_glu glu; /* gate and up */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct moe_item {
    int e, row, count, out[2]; /* out: the first output of each box */
};

/* t.out[b]; an array that is indexed by a variable would be in memory. */
__device__ static inline int moe_out(const moe_item &t, int b)
{
    return b ? t.out[1] : t.out[0];
}

/* Work item w. BY_EXPERT: expert by expert, and all rows of a pair of boxes before the next pair; else all pairs of boxes of a tile
 * of rows before the next one. */
template <bool DUAL, bool BY_EXPERT> __device__ static inline moe_item moe_item_of(const moe_args &p, int w)
{
    int o = w % p.out_tiles;
    int4 t = p.lists.tile[w / p.out_tiles];
    moe_item item;

    if (BY_EXPERT) {
        int first = t.z >> 8, in = w - first * p.out_tiles;
        o = in / t.w;
        t = p.lists.tile[first + in % t.w];
    }
    item.e = t.x, item.row = t.y, item.count = t.z & 255;
    item.out[0] = o * (DUAL ? ST_BOX : 2 * ST_BOX);
    item.out[1] = DUAL ? item.out[0] : item.out[0] + ST_BOX;
    return item;
}

/* The scheduler and the weights of all plans of experts. */
template <bool DUAL, bool BY_EXPERT> struct moe_plan {
    typedef moe_item Item;

    __device__ static int items(const moe_args &p)
    {
        return *p.lists.n_tiles * p.out_tiles;
    }

    __device__ static int first()
    {
        return blockIdx.x;
    }

    __device__ static int step()
    {
        return gridDim.x;
    }

    __device__ static Item item(const moe_args &p, int w)
    {
        return moe_item_of<DUAL, BY_EXPERT>(p, w);
    }

    __device__ static int stages(const moe_args &p, const Item &)
    {
        return p.stages;
    }

    __device__ static void copied(const moe_args &)
    {
    }

    /* Both boxes; bytes: of the tokens and their scales, which come too. */
    __device__ static void copy_boxes(const moe_args &p, const Item &t, uint32_t at, uint32_t bar, int g,
                                      int bytes)
    {
        sl_mbar_expect(bar, 2 * ST_BOX_BYTES + bytes);
        sl_copy_box(at, p.wa + t.e, g * ST_BOX, t.out[0], bar);
        sl_copy_box(at + ST_BOX_BYTES, (DUAL ? p.wb : p.wa) + t.e, g * ST_BOX, t.out[1], bar);
    }

    /* Of F8 weights: the scales of box b, one for each stage. */
    __device__ static const float *scales(const moe_args &p, const Item &t, int b)
    {
        const sl_weight *w = DUAL && b ? p.tb : p.ta;

        return w[t.e].scale + (int64_t)(min(moe_out(t, b), p.outs - 1) / ST_BOX) * p.stages;
    }
};

/* Rounds gate and up to bf16, as they would be stored, then silu(gate) * up. */
__device__ static inline float moe_glu(float g, float u, const sl_glu &v)
{
    return sl_bf16r(sl_glu_mul(sl_bf16r(g), sl_bf16r(u), v));
}

/* The row of the first thread of a warp. */
__device__ static inline int first_row(int row)
{
    return row - (threadIdx.x & 31) / 4;
}

/* Stores silu(gate) * up: v, of the 64 rows of a warpgroup, row being that of this thread; quantised: F8. */
template <bool F8>
__device__ static inline void moe_store_mid(const moe_args &p, const moe_item &t, int row,
                                            const float (&v)[64])
{
    float amax[2] = {0, 0};

#pragma unroll
    for (int i = 0; F8 && i < 64; i++)
        amax[i >> 1 & 1] = fmaxf(amax[i >> 1 & 1], fabsf(v[i]));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (first_row(row) + 8 * h >= t.count) /* none of this warp's eight rows exists */
            continue;
        float m = fmaxf(amax[h], __shfl_xor_sync(0xffffffffu, amax[h], 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float s = sl_scale_act_d(m), inv = sl_inverse_pow2(s);
        int64_t r = t.row + row + 8 * h, at = r * p.outs + t.out[0];
        bool real = row + 8 * h < t.count;
        if constexpr (F8)
            pl_store_e4m3((uint8_t *)p.mid + at, v, inv, h, real);
        else
            pl_store_bf16((__nv_bfloat16 *)p.mid + at, v, h, 16, real);
        if (F8 && real && (threadIdx.x & 3) == 0)
            p.ms[(int64_t)(t.out[0] / 128) * p.ld + r] = s;
    }
}

/* Scatters the results of down, N boxes from `out` on, to where those of the rows' pairs belong. */
template <int N>
__device__ static inline void moe_store_down(const moe_args &p, const moe_item &t, int row, int out,
                                             const float (&acc)[N][64])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (first_row(row) + 8 * h >= t.count)
            continue;
        bool real = row + 8 * h < t.count;
        __nv_bfloat16 *at =
            real ? (__nv_bfloat16 *)sl_moe_result_at(p.to, (uint8_t *)p.res,
                                                     p.lists.pair[t.row + row + 8 * h], 2 * (int64_t)p.outs)
                 : NULL;
#pragma unroll
        for (int b = 0; b < N; b++)
            pl_store_bf16(at + out + b * ST_BOX, acc[b], h, (p.outs - out - b * ST_BOX) / 8, real);
    }
}
#endif

/*
 * What all plans do before the products: scratch, the tables of the weights, the lists of rows and the inputs in their order. size:
 * bytes of an input, 1 for e4m3; per_stage: inputs of a stage; box: rows of a copy of tokens.
 */
template <int TILE>
static sl_status moe_prepare(sl_cuda *cu, sl_moe_run *r, int size, int per_stage, int box, moe_args *up,
                             moe_args *down, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    const sl_moe_rows_size n =
        sl_moe_rows_size_of(TILE, p->tokens, p->top_k, p->experts, p->hidden, p->inter, size);
    const int64_t pairs = (int64_t)p->tokens * p->top_k;
    moe_lists lists;
    uint8_t *x;

    SL_TRY(sl_moe_begin(cu, r, false, n.bytes, (void **)&x, err));
    up->mid = x + n.x, up->xs = (float *)((uint8_t *)up->mid + n.mid);
    up->ms = (float *)((uint8_t *)up->xs + n.xs), down->xs = up->ms;
    lists.tile = (int4 *)((uint8_t *)up->ms + n.ms);
    lists.pair = (int32_t *)(lists.tile + n.tiles);
    lists.row_of = lists.pair + n.rows;
    lists.n_tiles = lists.row_of + pairs;
    SL_TRY(sl_moe_weights(cu, p->gate, p->experts, &up->ta, &up->wa, err));
    SL_TRY(sl_moe_weights(cu, p->up, p->experts, &up->tb, &up->wb, err));
    SL_TRY(sl_moe_weights(cu, p->down, p->experts, &down->ta, &down->wa, err));
    SL_TRY(
        sl_cuda_map(cu, x, n.rows, (int64_t)p->hidden * size, (int64_t)p->hidden * size, box, &up->x, err));
    SL_TRY(sl_cuda_map(cu, up->mid, n.rows, (int64_t)p->inter * size, (int64_t)p->inter * size, box, &down->x,
                       err));
    up->lists = down->lists = lists, up->ld = down->ld = (int)n.ld, up->glu = p->glu;
    up->stages = p->hidden / per_stage, up->outs = p->inter, up->out_tiles = p->inter / ST_BOX;
    down->stages = p->inter / per_stage, down->outs = p->hidden,
    down->out_tiles = sl_ceil_div(p->hidden, 2 * ST_BOX);
    down->res = (__nv_bfloat16 *)p->workspace, down->to = r->arrived.to;
    SL_TRY(SL_LAUNCH(cu, moe_group_kernel<TILE>, (sl_launch{dim3(sl_moe_sort_blocks(&r->arrived)), 1024}),
                     err, p->expert_ids, (int)pairs, p->experts, lists, r->arrived, cu->deverr));
    if (size == 1)
        return sl_moe_rows_f8(cu, r, lists.row_of, lists.pair, x, (float *)up->xs, up->ld, err);
    return sl_moe_rows_bf16(cu, r, lists.row_of, lists.pair, x, err);
}

/* The two products, and the sum over the experts. One block per multiprocessor; early: it starts as soon as the previous
 * kernel leaves enough resources free. */
template <class UP, class DOWN>
static sl_status moe_launch(sl_cuda *cu, const sl_moe_run *r, const moe_args &up, const moe_args &down,
                            bool early, sl_err *err)
{
    SL_TRY(pl_launch<UP>(cu, up, dim3((unsigned)cu->sms), early, 0, err));
    SL_TRY(pl_launch<DOWN>(cu, down, dim3((unsigned)cu->sms), early, 0, err));
    return sl_moe_finish(cu, r, down.res, err);
}

#endif
