/*
 * Sparse MLA for lora 512, rope 64 on Hopper's tensor cores, rows in fp8 or bf16; decode and prefill.
 *
 * Work items are (token, 64 heads). A list is cut every SPLIT blocks of 64 rows, whatever the batch; each
 * part gets its own maximum, sum and output, and parts are merged one after the other. One thread block does
 * all parts of an item in turn (the merged output waits in device memory meanwhile), or, when there are few
 * items, a cluster does them side by side and merges over distributed shared memory: same products, same
 * merges, same bits. So a token's bits depend on its query, its list and its rows' bytes only.
 *
 * A thread block is four warpgroups: two hold half of the output columns each and multiply probabilities with
 * rows; one multiplies queries with rows and makes probabilities of the scores; one fetches rows into a ring
 * of two blocks. fp8 rows become f16, exactly, as scales are powers of two; their rope columns stay bf16 and
 * so does everything of bf16 rows. Probabilities are rounded to the type of the rows. Magnitudes beyond 65504
 * saturate or overflow with fp8 rows; a normalised latent does not come near.
 */
#include "kernels/cuda/wgmma.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

#define HEADS 64
#define BLOCK 64
#define LORA 512
#define WIDTH 576
#define TILES 9 /* 64-column tiles of a row block; the last one, rope, later holds the probabilities */
#define STAGE (TILES * SL_TILE)
#define QUARTERS 4 /* of a block, 16 rows: with bf16 rows, what is freed and filled at a time */
#define SPLIT 16   /* blocks of a part of the list */
#define MAX_PARTS 8
#define THREADS 512
#define OUT_LD 520             /* floats; the output tile of a cluster's merge lies over the two stages */
#define PARTIAL (HEADS * LORA) /* floats */

/* Registers per thread of the warpgroups by role: 128 + 64 + 2 * 160 = 4 * 128, what the launch gives to all. */
#define FETCH_REGS 128
#define SCORE_REGS 64
#define VALUE_REGS 160

enum { BAR_QUERY = 1, BAR_SCORES = 2, BAR_VALUES = 3 };

struct attn_shared {
    uint64_t full[2], empty[2][QUARTERS], prob[2], merge[2]; /* empty: fp8 rows, the last only */
    int32_t rows[2], last[2]; /* of the block in a stage: valid rows; the item's last one */
    float fix[2][HEADS];      /* what the output so far is multiplied by before this block */
    float keep[2][HEADS], take[2][HEADS], inv[2][HEADS]; /* of a part's merge */
    float max[HEADS], sum[HEADS];                        /* this thread block's part, for the cluster */
    int32_t present;
    alignas(16) int32_t lists[4][4][16]; /* the fetching warps' own: physical rows of four blocks */
    float part_keep[MAX_PARTS][HEADS], part_take[MAX_PARTS][HEADS], part_inv[HEADS];
};

#define SMEM_Q (2 * STAGE)
#define SMEM_INFO (SMEM_Q + STAGE)
#define SMEM_BYTES (SMEM_INFO + sizeof(attn_shared))

struct attn_work {
    sl_sparse_attn_params p;
    float *partial;   /* [gridDim.x][PARTIAL], one thread block an item */
    int groups;       /* of heads */
    int items, parts; /* parts: of a cluster, 1 = one thread block an item */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "kernels/cuda/attn_mla_rows.cuh"

/* ---- queries ---- */

/* Queries of an item's heads as nine tiles; heads that do not exist are zero. */
template <typename E, int N>
__device__ static inline void load_queries(uint8_t *tile, const attn_work &w, int item, int thread)
{
    const int total = HEADS * WIDTH / 8, batch = 4;
    int64_t t = item / w.groups;
    int h0 = item % w.groups * HEADS;

    for (int base = thread; base < total; base += N * batch) {
        float4 a[batch], b[batch];
#pragma unroll
        for (int u = 0; u < batch; u++) {
            int i = base + u * N, r = i / (WIDTH / 8), c = i % (WIDTH / 8);
            a[u] = b[u] = make_float4(0, 0, 0, 0);
            if (i < total && h0 + r < w.p.heads) {
                const float4 *q = (const float4 *)(w.p.ql + (t * w.p.heads + h0 + r) * WIDTH + 8 * c);
                a[u] = q[0], b[u] = q[1];
            }
        }
#pragma unroll
        for (int u = 0; u < batch; u++) {
            int i = base + u * N, r = i / (WIDTH / 8), c = i % (WIDTH / 8);
            uint4 v;
            if (c < LORA / 8)
                v = make_uint4(pack(a[u].x, a[u].y, E()), pack(a[u].z, a[u].w, E()),
                               pack(b[u].x, b[u].y, E()), pack(b[u].z, b[u].w, E()));
            else
                v = make_uint4(pack(a[u].x, a[u].y, __nv_bfloat16()), pack(a[u].z, a[u].w, __nv_bfloat16()),
                               pack(b[u].x, b[u].y, __nv_bfloat16()), pack(b[u].z, b[u].w, __nv_bfloat16()));
            if (i < total)
                *(uint4 *)(tile + c / 8 * SL_TILE + sl_swizzle(r, c % 8)) = v;
        }
    }
}

/* The first of the two heads of an item whose scores and outputs this thread holds; the second is eight further on.
 * They are the rows of the products: see sl_wgmma_* in ptx.cuh. A macro, because the kernel has no register to spare
 * and spills more when this is a function. */
#define FIRST_HEAD(lane) ((threadIdx.x & 127) / 32 * 16 + (lane) / 4)

/* ---- merging parts ---- */

/* Adds part (mc, lc) to (m, l): outputs are keep * old + take * new. */
__device__ static inline void merge_sums(float &m, float &l, float mc, float lc, float *keep, float *take)
{
    float top = fmaxf(m, mc), safe = top == -INFINITY ? 0.0f : top;

    *keep = exp2f(m - safe);
    *take = exp2f(mc - safe);
    l = __fmaf_rn(l, *keep, __fmul_rn(lc, *take));
    m = top;
}

__device__ static inline float merge(float old, float keep, float fresh, float take)
{
    return __fmaf_rn(old, keep, __fmul_rn(fresh, take));
}

__device__ static inline float inverse(float l)
{
    return l == 0.0f ? 0.0f : 1.0f / l;
}

/* ---- scores ---- */

__device__ static inline uint32_t pack_prob(float a, float b, __half)
{
    __half2 v = __floats2half2_rn(a, b);

    return *(uint32_t *)&v;
}

__device__ static inline uint32_t pack_prob(float a, float b, __nv_bfloat16)
{
    return pack(a, b, __nv_bfloat16());
}

__device__ static inline void product_scores(float (&s)[32], uint64_t a, uint64_t b, bool add, __half)
{
    sl_wgmma_n64_f16(s, a, b, add);
}

__device__ static inline void product_scores(float (&s)[32], uint64_t a, uint64_t b, bool add, __nv_bfloat16)
{
    sl_wgmma_n64_bf16(s, a, b, add);
}

struct softmax_state { /* of this thread's two heads; l is its share of the sum */
    float m[2], l[2], all_m[2], all_l[2];
};

/* Scores to probabilities of one block, in the place of its rope columns. */
template <typename E>
__device__ static inline void probabilities(float (&s)[32], softmax_state &x, uint8_t *prob, float *fix,
                                            int rows, float scale)
{
    int lane = threadIdx.x & 31, head = FIRST_HEAD(lane);

    if (rows < BLOCK) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i / 4 * 8 + (lane & 3) * 2 + i % 2 >= rows)
                s[i] = -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float best = -INFINITY;
#pragma unroll
        for (int j = 0; j < 8; j++)
            best = fmaxf(best, fmaxf(s[j * 4 + r * 2], s[j * 4 + r * 2 + 1]));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        float top = fmaxf(x.m[r], best * scale), safe = top == -INFINITY ? 0.0f : top,
              f = sl_exp2_approx(x.m[r] - safe), sum = 0, more = 0;
        x.m[r] = top;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float &a = s[j * 4 + r * 2], &b = s[j * 4 + r * 2 + 1];
            a = sl_exp2_approx(__fmaf_rn(a, scale, -safe)), b = sl_exp2_approx(__fmaf_rn(b, scale, -safe));
            sum += a, more += b;
        }
        sum += more;
        x.l[r] = __fmaf_rn(x.l[r], f, sum);
        if ((lane & 3) == 0)
            fix[head + 8 * r] = f;
    }
    sl_bar_sync(BAR_SCORES, 128); /* all warps' products have read the rope columns */
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            *(uint32_t *)(prob + sl_swizzle(head + 8 * r, j) + (lane & 3) * 4) =
                pack_prob(s[j * 4 + r * 2], s[j * 4 + r * 2 + 1], E());
}

/* A part of the list has ended: sums over its columns, and how it joins the parts before. */
__device__ static inline void end_part(attn_shared *x, softmax_state &s, int part, int slot, bool in_cluster)
{
    int lane = threadIdx.x & 31, head = FIRST_HEAD(lane);

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = s.l[r], keep = 0, take = 1;
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (part == 0)
            s.all_m[r] = s.m[r], s.all_l[r] = l;
        else
            merge_sums(s.all_m[r], s.all_l[r], s.m[r], l, &keep, &take);
        if ((lane & 3) == 0) {
            if (in_cluster)
                x->max[head + 8 * r] = s.m[r], x->sum[head + 8 * r] = l;
            x->keep[slot][head + 8 * r] = keep;
            x->take[slot][head + 8 * r] = take;
            x->inv[slot][head + 8 * r] = inverse(s.all_l[r]);
        }
        s.m[r] = -INFINITY;
        s.l[r] = 0;
    }
}

template <typename E>
__device__ static inline void score_blocks(uint8_t *smem, const attn_work &w, attn_shared *x, bool some)
{
    uint32_t kv = sl_smem_addr(smem), q = kv + SMEM_Q;
    float scale = w.p.scale * 1.4426950408889634f;
    softmax_state st = {{-INFINITY, -INFINITY}, {0, 0}, {}, {}};
    int it = 0, ended = 0, step = w.parts > 1 ? w.items : (int)gridDim.x;

    for (int item = w.parts > 1 ? blockIdx.y : blockIdx.x; item < w.items && some; item += step) {
        bool last = false;
        if (it) {
            load_queries<E, 128>(smem + SMEM_Q, w, item, threadIdx.x & 127);
            sl_fence_async();
            sl_bar_sync(BAR_SCORES, 128);
        }
        for (int part = 0; !last; part++) {
            for (int b = 0; b < SPLIT && !last; b++, it++) {
                float s[32];
                int at = it & 1;
                uint32_t rows_tile = kv + at * STAGE;
                sl_mbar_wait(&x->full[at], it >> 1 & 1);
                sl_fence_async();
                last = x->last[at];
                sl_wgmma_fence();
#pragma unroll
                for (int i = 0; i < TILES * 4; i++) {
                    uint64_t da = sl_desc_k(q + i / 4 * SL_TILE + i % 4 * 32),
                             db = sl_desc_k(rows_tile + i / 4 * SL_TILE + i % 4 * 32);
                    if (i < LORA / 16)
                        product_scores(s, da, db, i > 0, E());
                    else
                        product_scores(s, da, db, true, __nv_bfloat16());
                }
                sl_wgmma_finish();
                probabilities<E>(s, st, smem + at * STAGE + 8 * SL_TILE, x->fix[at], x->rows[at], scale);
                sl_fence_async();
                __syncwarp();
                if ((threadIdx.x & 31) == 0)
                    sl_mbar_arrive(&x->prob[at]);
            }
            end_part(x, st, part, ended & 1, w.parts > 1);
            __syncwarp();
            if ((threadIdx.x & 31) == 0)
                sl_mbar_arrive(&x->merge[ended & 1]);
            ended++;
        }
    }
}

/* ---- values ---- */

__device__ static inline void product_values(float (&o)[64], uint64_t a, uint64_t b, bool add, __half)
{
    sl_wgmma_n128_f16_mn(o, a, b, add);
}

__device__ static inline void product_values(float (&o)[64], uint64_t a, uint64_t b, bool add, __nv_bfloat16)
{
    sl_wgmma_n128_bf16_mn(o, a, b, add);
}

__device__ static inline void warp_arrive(uint64_t *b)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        sl_mbar_arrive(b);
}

/* o += probabilities times rows of a stage. With fp8 rows the stage is freed as a whole, by the caller: it is
 * waited for by who converts them. */
__device__ static inline void multiply_values(float (&o)[2][64], uint32_t rows_tile, uint64_t *, int b,
                                              __half)
{
    int wg = threadIdx.x >> 7;

    sl_wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; i++)
        product_values(o[i & 1], sl_desc_k(rows_tile + 8 * SL_TILE + i / 2 * 32),
                       sl_desc_mn(rows_tile + (wg * 4 + (i & 1) * 2) * SL_TILE + i / 2 * 2048, SL_TILE),
                       b > 0 || i > 1, __half());
    sl_wgmma_finish();
}

/* With bf16 rows all quarters but the last one are freed as they are done with. */
__device__ static inline void multiply_values(float (&o)[2][64], uint32_t rows_tile, uint64_t *empty, int b,
                                              __nv_bfloat16)
{
    uint32_t mine = rows_tile + (threadIdx.x >> 7) * 4 * SL_TILE;

    sl_wgmma_fence();
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            product_values(o[i], sl_desc_k(rows_tile + 8 * SL_TILE + q * 32),
                           sl_desc_mn(mine + i * 2 * SL_TILE + q * 2048, SL_TILE), b > 0 || q > 0,
                           __nv_bfloat16());
        sl_wgmma_commit();
    }
    sl_wgmma_wait<3>();
    warp_arrive(&empty[0]);
    sl_wgmma_wait<2>();
    warp_arrive(&empty[1]);
    sl_wgmma_wait<1>();
    warp_arrive(&empty[2]);
    sl_wgmma_wait<0>();
}

struct joint { /* of this thread's two heads: how a part joins those before, 1 / sum of all */
    float keep[2], take[2], inv[2];
};

__device__ static inline joint get_joint(const attn_shared *x, int slot)
{
    int h = FIRST_HEAD(threadIdx.x & 31);

    return {{x->keep[slot][h], x->keep[slot][h + 8]},
            {x->take[slot][h], x->take[slot][h + 8]},
            {x->inv[slot][h], x->inv[slot][h + 8]}};
}

/* Merges the part in o with the parts before, which lie in device memory in the order of this thread's
 * registers. */
__device__ static inline void merge_part(float (&o)[2][64], float *partial, const joint &x, int part,
                                         bool last)
{
    int wg = threadIdx.x >> 7;
    float4 *mine = (float4 *)partial + (int64_t)wg * 32 * 128 + (threadIdx.x & 127);

    if (part > 0) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float4 v = __ldcg(mine + i * 128);
            o[i / 16][i % 16 * 4] = merge(v.x, x.keep[0], o[i / 16][i % 16 * 4], x.take[0]);
            o[i / 16][i % 16 * 4 + 1] = merge(v.y, x.keep[0], o[i / 16][i % 16 * 4 + 1], x.take[0]);
            o[i / 16][i % 16 * 4 + 2] = merge(v.z, x.keep[1], o[i / 16][i % 16 * 4 + 2], x.take[1]);
            o[i / 16][i % 16 * 4 + 3] = merge(v.w, x.keep[1], o[i / 16][i % 16 * 4 + 3], x.take[1]);
        }
    }
    if (last)
        return;
#pragma unroll
    for (int i = 0; i < 32; i++)
        __stcg(mine + i * 128, make_float4(o[i / 16][i % 16 * 4], o[i / 16][i % 16 * 4 + 1],
                                           o[i / 16][i % 16 * 4 + 2], o[i / 16][i % 16 * 4 + 3]));
}

__device__ static inline void store_output(const float (&o)[2][64], const attn_work &w, const joint &x,
                                           int item)
{
    int lane = threadIdx.x & 31, wg = threadIdx.x >> 7, head = FIRST_HEAD(lane), h0 = item % w.groups * HEADS;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float inv = x.inv[r];
        float *out = w.p.o + ((int64_t)(item / w.groups) * w.p.heads + h0 + head + 8 * r) * LORA + wg * 256 +
                     (lane & 3) * 2;
        if (h0 + head + 8 * r < w.p.heads)
#pragma unroll
            for (int j = 0; j < 32; j++)
                *(float2 *)(out + j * 8) =
                    make_float2(o[j / 16][j % 16 * 4 + r * 2] * inv, o[j / 16][j % 16 * 4 + r * 2 + 1] * inv);
    }
}

__device__ static inline void store_tile(const float (&o)[2][64], float *tile)
{
    int lane = threadIdx.x & 31, wg = threadIdx.x >> 7, head = FIRST_HEAD(lane);

#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < 32; j++)
            *(float2 *)(tile + (head + 8 * r) * OUT_LD + wg * 256 + j * 8 + (lane & 3) * 2) =
                make_float2(o[j / 16][j % 16 * 4 + r * 2], o[j / 16][j % 16 * 4 + r * 2 + 1]);
}

template <typename E>
__device__ static inline void value_blocks(uint8_t *smem, const attn_work &w, attn_shared *x, bool some)
{
    uint32_t kv = sl_smem_addr(smem);
    int it = 0, ended = 0, step = w.parts > 1 ? w.items : (int)gridDim.x, head = FIRST_HEAD(threadIdx.x & 31);
    float o[2][64];
    joint how = {};

    for (int item = w.parts > 1 ? blockIdx.y : blockIdx.x; item < w.items && some; item += step) {
        bool last = false;
        for (int part = 0; !last; part++) {
            for (int b = 0; b < SPLIT && !last; b++, it++) {
                int at = it & 1;
                uint32_t rows_tile = kv + at * STAGE;
                sl_mbar_wait(&x->prob[at], it >> 1 & 1);
                sl_fence_async();
                last = x->last[at];
                float fix[2] = {x->fix[at][head], x->fix[at][head + 8]};
                if (b > 0 && __any_sync(0xffffffffu, fix[0] != 1.0f || fix[1] != 1.0f)) {
#pragma unroll
                    for (int i = 0; i < 128; i++)
                        o[i / 64][i % 64] *= fix[i / 2 % 2];
                }
                multiply_values(o, rows_tile, x->empty[at], b, E());
                if (last || b + 1 == SPLIT) { /* the factors' place may be used again once the stage is */
                    sl_mbar_wait(&x->merge[ended & 1], ended >> 1 & 1);
                    how = get_joint(x, ended++ & 1);
                    __syncwarp();
                }
                if ((threadIdx.x & 31) == 0)
                    sl_mbar_arrive(&x->empty[at][QUARTERS - 1]);
            }
            if (w.parts == 1)
                merge_part(o, w.partial + (int64_t)blockIdx.x * PARTIAL, how, part, last);
        }
        if (w.parts == 1)
            store_output(o, w, how, item);
    }
    if (w.parts > 1) {
        sl_bar_sync(BAR_VALUES, 256);
        if (some)
            store_tile(o, (float *)smem);
    }
}

/* ---- the cluster's merge ---- */

/* How the parts join: the same steps as end_part takes one after the other. Returns the parts that exist. */
__device__ static inline int cluster_factors(cg::cluster_group &cl, attn_shared *x, int parts)
{
    int n = 1;

    while (n < parts && *cl.map_shared_rank(&x->present, n))
        n++;
    if (threadIdx.x < HEADS) {
        int h = threadIdx.x;
        float m = *cl.map_shared_rank(&x->max[h], 0), l = *cl.map_shared_rank(&x->sum[h], 0);
        for (int c = 1; c < n; c++)
            merge_sums(m, l, *cl.map_shared_rank(&x->max[h], c), *cl.map_shared_rank(&x->sum[h], c),
                       &x->part_keep[c][h], &x->part_take[c][h]);
        x->part_inv[h] = inverse(l);
    }
    sl_bar_sync(BAR_VALUES, 256);
    return n;
}

__device__ static inline void cluster_merge(cg::cluster_group &cl, const float *tile, attn_shared *x,
                                            const attn_work &w)
{
    int parts = cluster_factors(cl, x, w.parts), item = blockIdx.y, h0 = item % w.groups * HEADS,
        heads = min(HEADS, w.p.heads - h0);
    float *out = w.p.o + ((int64_t)(item / w.groups) * w.p.heads + h0) * LORA;

    for (int base = (int)cl.block_rank() * 256 + threadIdx.x; base < heads * (LORA / 4);
         base += w.parts * 256 * 8) {
        float4 a[8];
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int i = base + u * w.parts * 256, h = i / (LORA / 4);
            a[u] = h < heads ? cl.map_shared_rank((const float4 *)tile, 0)[h * (OUT_LD / 4) + i % (LORA / 4)]
                             : make_float4(0, 0, 0, 0);
        }
        for (int c = 1; c < parts; c++) {
            float4 v[8];
#pragma unroll
            for (int u = 0; u < 8; u++) {
                int i = base + u * w.parts * 256, h = min(i / (LORA / 4), heads - 1);
                v[u] = cl.map_shared_rank((const float4 *)tile, c)[h * (OUT_LD / 4) + i % (LORA / 4)];
            }
#pragma unroll
            for (int u = 0; u < 8; u++) {
                int h = min((base + u * w.parts * 256) / (LORA / 4), heads - 1);
                float keep = x->part_keep[c][h], take = x->part_take[c][h];
                a[u].x = merge(a[u].x, keep, v[u].x, take), a[u].y = merge(a[u].y, keep, v[u].y, take);
                a[u].z = merge(a[u].z, keep, v[u].z, take), a[u].w = merge(a[u].w, keep, v[u].w, take);
            }
        }
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int i = base + u * w.parts * 256, h = i / (LORA / 4);
            if (h < heads) {
                float inv = x->part_inv[h];
                *(float4 *)(out + h * LORA + 4 * (i % (LORA / 4))) =
                    make_float4(a[u].x * inv, a[u].y * inv, a[u].z * inv, a[u].w * inv);
            }
        }
    }
}

#endif

template <typename E>
__global__ static void __launch_bounds__(THREADS, 1) mla_kernel(const __grid_constant__ attn_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t smem[];
    cg::cluster_group cl = cg::this_cluster();
    attn_shared *x = (attn_shared *)(smem + SMEM_INFO);
    int wg = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0), item = w.parts > 1 ? blockIdx.y : blockIdx.x;
    bool some = has_rows(w, (int)blockIdx.x);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            sl_mbar_init(&x->full[i], 128 + 4);
            for (int q = 0; q < QUARTERS; q++)
                sl_mbar_init(&x->empty[i][q], 8);
            sl_mbar_init(&x->prob[i], 4);
            sl_mbar_init(&x->merge[i], 4);
        }
        x->present = some;
        sl_mbar_init_fence();
    }
    __syncthreads();
    if (wg == 3) {
        sl_registers_give<FETCH_REGS>();
        if (some)
            produce(sl_smem_addr(smem), w, x, E());
        if (w.p.block_need) /* our end is the gather's end, too */
            sl_after_previous();
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else if (wg == 2) {
        sl_registers_give<SCORE_REGS>();
        load_queries<E, 384>(smem + SMEM_Q, w, item, threadIdx.x);
        sl_fence_async();
        sl_bar_sync(BAR_QUERY, 384);
        score_blocks<E>(smem, w, x, some);
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            sl_cluster_sync_by_thread();
        }
    } else {
        sl_registers_take<VALUE_REGS>();
        load_queries<E, 384>(smem + SMEM_Q, w, item, threadIdx.x);
        sl_fence_async();
        sl_bar_sync(BAR_QUERY, 384);
        value_blocks<E>(smem, w, x, some);
        if (w.parts > 1) {
            sl_cluster_sync_by_thread();
            cluster_merge(cl, (const float *)smem, x, w);
            sl_cluster_sync_by_thread(); /* a block's shared memory stays until the others have read it */
        }
    }
#endif
}

bool sl_cuda_attn_mla_fits(const sl_cuda *cu, const sl_sparse_attn_params *p)
{
    return cu->cc == 90 && p->lora == LORA && p->rope == WIDTH - LORA && p->format != SL_ROW_MLA_F32 &&
           p->rows.row_bytes % 16 == 0 &&
           ((uintptr_t)p->rows.base | (uintptr_t)p->ql | (uintptr_t)p->o) % 16 == 0;
}

/* Thread blocks of a cluster for an item, or 1: whichever needs fewer rounds of blocks. */
static int parts_for(int sms, int blocks, int items)
{
    int parts = sl_ceil_div(blocks, SPLIT), clusters;

    if (parts < 2 || parts > MAX_PARTS)
        return 1;
    clusters = parts == 2 ? sms / 2 : sms * 9 / 10 / parts; /* not every processing cluster divides evenly */
    return sl_ceil_div(items, clusters) * SPLIT < sl_ceil_div(items, sms) * blocks ? parts : 1;
}

sl_status sl_cuda_attn_mla(sl_cuda *cu, const sl_sparse_attn_params *p, sl_err *err)
{
    void (*kernel)(attn_work) = p->format == SL_ROW_MLA_FP8 ? mla_kernel<__half> : mla_kernel<__nv_bfloat16>;
    attn_work w = {*p, NULL, sl_ceil_div(p->heads, HEADS), 0, 1};
    int blocks = sl_ceil_div(p->k, BLOCK), sms = cu->sms - (p->block_need ? SL_CUDA_GATHER_SMS : 0);
    cudaLaunchAttribute at[2];
    cudaLaunchConfig_t cfg = {};
    void *mem;
    sl_status st =
        SL_CU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES), err);

    w.items = p->tokens * w.groups;
    w.parts = parts_for(sms, blocks, w.items);
    cfg.gridDim = w.parts > 1 ? dim3(w.parts, w.items) : dim3(min(w.items, sms));
    if (st == SL_OK)
        st = sl_cuda_scratch(cu, sizeof(float) * PARTIAL * (size_t)cu->sms, &mem, err);
    if (st != SL_OK)
        return st;
    w.partial = (float *)mem;
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = w.parts, at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization; /* starts when the gather's blocks have */
    at[1].val.programmaticStreamSerializationAllowed = 1;
    cfg.blockDim = dim3(THREADS), cfg.dynamicSmemBytes = SMEM_BYTES, cfg.stream = cu->stream;
    cfg.attrs = at, cfg.numAttrs = p->block_need ? 2 : 1;
    return SL_CU(cudaLaunchKernelEx(&cfg, kernel, w), err);
}
