/*
 * Attention over lists of keys and values on the plain path: every row format and both types of activations, float32
 * throughout, for tests and for models that the tensor cores do not fit. One thread block per token and KV head walks
 * the list in tiles of 64 tokens with a running maximum, as the CPU does; nothing in it depends on other tokens.
 *
 * A warp multiplies one key with all queries of the group, and a thread adds up some columns of the values. Keys and
 * values are read straight from memory: this path is bound by instructions, not by bandwidth.
 */
#include "kernels/cuda/any/attn/gqa_attn.cuh"

#define THREADS 256
#define COLS_MAX 2 /* dim <= THREADS * COLS_MAX */

/* Value c of slot `slot` on one side of a row (0: keys, 1: values). */
__device__ static inline float side_value(const gqa_work &w, const uint8_t *row, int side, int slot, int c)
{
    int64_t n = (int64_t)w.slots * w.p.dim, i = side * n + (int64_t)slot * w.p.dim + c;

    if (w.p.format == SL_ROW_GQA_F32)
        return ((const float *)row)[i];
    if (w.p.format == SL_ROW_GQA_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    return __fmul_rn(sl_e4m3f(row[i]), ((const float *)(row + 2 * n))[side * w.slots + slot]);
}

struct plain_shared {
    float prob[GQA_GROUP][GQA_TILE], top[GQA_GROUP], sum[GQA_GROUP], fix[GQA_GROUP];
    int64_t row[GQA_TILE];
    int32_t slot[GQA_TILE], n, skip;
    gqa_list list;
};

/* The rows and slots of the m tokens from `first` on. */
__device__ static void find_rows(const gqa_work &w, plain_shared *x, int first, int m)
{
    if ((int)threadIdx.x < m) {
        int i = first + threadIdx.x;
        int64_t row = gqa_row(w, x->list, i, gqa_entry(w, x->list, i));

        if (row < 0)
            atomicOr(w.deverr, SL_DEVERR_PAGE);
        x->row[threadIdx.x] = row < 0 ? 0 : row;
        x->slot[threadIdx.x] = gqa_slot(w, x->list, i);
    }
    __syncthreads();
}

/* prob[h][j] = scale * q[h] . k_j for the m tokens of a tile. */
__device__ static void multiply_keys(const gqa_work &w, plain_shared *x, const float *q, int m)
{
    int lane = threadIdx.x & 31, dim = w.p.dim;

    for (int j = threadIdx.x >> 5; j < m; j += THREADS / 32) {
        const uint8_t *row = w.p.rows.base + x->row[j] * w.p.rows.row_bytes;
        float dot[GQA_GROUP] = {};

        for (int c = lane; c < dim; c += 32) {
            float k = side_value(w, row, 0, x->slot[j], c);
#pragma unroll
            for (int h = 0; h < GQA_GROUP; h++)
                if (h < w.group)
                    dot[h] = fmaf(q[h * dim + c], k, dot[h]);
        }
#pragma unroll
        for (int h = 0; h < GQA_GROUP; h++)
            if (h < w.group) {
                float s = sl_warp_sum(dot[h]);
                if (lane == 0)
                    x->prob[h][j] = s * w.p.scale;
            }
    }
    __syncthreads();
}

/* Whether the tile is left out: the same for all threads. */
__device__ static bool leave_out(const gqa_work &w, plain_shared *x, int m, float below)
{
    int lane = threadIdx.x & 31;

    if (below == -INFINITY)
        return false;
    if (threadIdx.x == 0)
        x->skip = 1;
    __syncthreads();
    for (int h = threadIdx.x >> 5; h < w.group; h += THREADS / 32) {
        float best = sl_warp_max(fmaxf(lane < m ? x->prob[h][lane] : -INFINITY,
                                       lane + 32 < m ? x->prob[h][lane + 32] : -INFINITY));
        if (lane == 0 && !(best - x->top[h] < below))
            x->skip = 0;
    }
    __syncthreads();
    return x->skip;
}

/* Scores to weights, maximum and sum, a warp for each head. */
__device__ static void soften(const gqa_work &w, plain_shared *x, int m)
{
    int lane = threadIdx.x & 31;

    for (int h = threadIdx.x >> 5; h < w.group; h += THREADS / 32) {
        float a = lane < m ? x->prob[h][lane] : -INFINITY,
              b = lane + 32 < m ? x->prob[h][lane + 32] : -INFINITY;
        float best = fmaxf(x->top[h], sl_warp_max(fmaxf(a, b))), total;

        a = lane < m ? expf(a - best) : 0.0f;
        b = lane + 32 < m ? expf(b - best) : 0.0f;
        x->prob[h][lane] = a;
        x->prob[h][lane + 32] = b;
        total = sl_warp_sum(a + b);
        __syncwarp();
        if (lane == 0) {
            x->fix[h] = expf(x->top[h] - best);
            x->sum[h] = fmaf(x->sum[h], x->fix[h], total);
            x->top[h] = best;
        }
    }
    __syncthreads();
}

__device__ static void add_values(const gqa_work &w, const plain_shared *x, float (&o)[COLS_MAX][GQA_GROUP],
                                  int m)
{
#pragma unroll
    for (int u = 0; u < COLS_MAX; u++) {
        int c = threadIdx.x + u * THREADS;

        if (c >= w.p.dim)
            continue;
#pragma unroll
        for (int h = 0; h < GQA_GROUP; h++)
            if (h < w.group)
                o[u][h] *= x->fix[h];
        for (int j = 0; j < m; j++) {
            float v = side_value(w, w.p.rows.base + x->row[j] * w.p.rows.row_bytes, 1, x->slot[j], c);
#pragma unroll
            for (int h = 0; h < GQA_GROUP; h++)
                if (h < w.group)
                    o[u][h] = fmaf(x->prob[h][j], v, o[u][h]);
        }
    }
}

__global__ static void __launch_bounds__(THREADS)
    plain_kernel(const __grid_constant__ gqa_work w, int64_t first)
{
    extern __shared__ float q[];
    __shared__ plain_shared x;
    int64_t t = first + blockIdx.y, head = t * w.p.heads + (int64_t)blockIdx.x * w.group;
    float o[COLS_MAX][GQA_GROUP] = {}, below = gqa_skip_below(w, t);
    unsigned long long tiles = 0, out = 0;

    if (threadIdx.x < 32) {
        gqa_list l = gqa_list_of(w, t, blockIdx.x);
        if (threadIdx.x == 0)
            x.list = l;
    }
    if (threadIdx.x < GQA_GROUP)
        x.top[threadIdx.x] = -INFINITY, x.sum[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < w.group * w.p.dim; i += THREADS)
        q[i] = w.p.q[head * w.p.dim + i];
    __syncthreads();
    for (int at = 0; at < x.list.n; at += GQA_TILE, tiles++) {
        int m = min(GQA_TILE, x.list.n - at);

        find_rows(w, &x, at, m);
        multiply_keys(w, &x, q, m);
        if (leave_out(w, &x, m, below)) {
            out++;
        } else {
            soften(w, &x, m);
            add_values(w, &x, o, m);
        }
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < COLS_MAX; u++)
#pragma unroll
        for (int h = 0; h < GQA_GROUP; h++) {
            int c = threadIdx.x + u * THREADS;
            if (h < w.group && c < w.p.dim)
                sl_st(w.p.out, (head + h) * w.p.dim + c, x.sum[h] > 0 ? o[u][h] / x.sum[h] : 0.0f, w.p.act);
        }
    if (below > -INFINITY && threadIdx.x == 0) {
        atomicAdd((unsigned long long *)w.p.tiles, tiles);
        atomicAdd((unsigned long long *)w.p.tiles + 1, out);
    }
}

sl_status sl_cuda_gqa_plain(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err)
{
    gqa_work w = gqa_work_of(cu, p);

    if (p->dim > THREADS * COLS_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: gqa_attn: dim %d is larger than %d", p->dim,
                       THREADS * COLS_MAX);
    return sl_for_slices(p->tokens, SL_GRID_YZ, [&](int t0, int n) {
        return SL_LAUNCH(cu, plain_kernel,
                         (sl_launch{dim3(p->kv_heads, n), THREADS, (size_t)w.group * p->dim * sizeof(float)}),
                         err, w, t0);
    });
}
