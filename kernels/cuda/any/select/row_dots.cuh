/*
 * Device code of row_dots.h: tokens, values of queries, tiles of rows in shared memory, and the canonical product. A tile
 * is SL_TILE rows, cut into slices of 128 bytes of each row; rows in shared memory are 16 bytes longer, so that threads
 * which read 16 bytes of different rows use different banks.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_ROW_DOTS_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_ROW_DOTS_CUH

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/any/select/row_dots.h"

#define SL_TILE 128
#define SL_SLICE 128 /* bytes of a row */
#define SL_SLICE_LD (SL_SLICE + 16)
#define SL_STAGE (SL_TILE * SL_SLICE_LD)

/* What kernels need: the job, its tables by value, and what follows from both. */
struct sl_dots {
    sl_row_dots d;
    sl_seq_tables s;
    int group, rows;       /* query heads of a KV head; queries of a KV head: group, or 1 of their mean */
    int slices, row_bytes; /* of a row */
    int n_pad;             /* n as a multiple of 8 */
    int chunk_log2;        /* log2 of the 16-byte chunks in which a row's slice is copied */
    bool wide;             /* rows can be copied 16 bytes at a time */
    uint32_t *deverr;
};

/* The job without what only products need. */
static inline sl_dots sl_dots_of(const sl_cuda *cu, const sl_row_dots *d)
{
    sl_dots j = {};

    j.d = *d;
    if (d->seqs)
        j.s = *d->seqs;
    j.deverr = cu->deverr;
    return j;
}

sl_dots sl_dots_job(sl_cuda *cu, const sl_row_dots *d);

struct sl_dot_token {
    const int32_t *pages;
    int n; /* rows that it sees */
};

/* Token i of the slice; false if nothing is written for it. */
__device__ static inline bool sl_dots_token(const sl_dots &j, int i, sl_dot_token *out)
{
    const sl_row_dots &d = j.d;
    int seq, pos;

    if (d.pages) {
        *out = {d.pages, ((d.first_pos + d.token_first + i) >> d.pos_log2) + d.plus};
        return true;
    }
    if (!sl_token(&j.s, d.token_first + i, j.deverr, &seq, &pos) || pos < d.from_pos)
        return false;
    if (pos >> d.pos_log2 >= d.ld_out) {
        atomicOr(j.deverr, SL_DEVERR_POS);
        return false;
    }
    *out = {j.s.index_pages + (int64_t)seq * j.s.ld, (pos >> d.pos_log2) + d.plus};
    return true;
}

/* Value k of query r of a KV head: see sl_row_dots. 0 from n on. */
__device__ static inline float sl_dots_query(const sl_dots &j, int token, int head, int r, int k)
{
    const sl_row_dots &d = j.d;
    const float *q = d.q + ((int64_t)token * d.heads + (int64_t)head * j.group) * d.dim;
    int c = k >= d.n ? 0 : d.channels ? d.channels[(int64_t)head * d.n + k] : k < d.dim ? k : k - d.dim;
    float v = 0;

    if (k >= d.n)
        return 0;
    if (d.mean) {
        for (int h = 0; h < j.group; h++)
            v = __fadd_rn(v, q[(int64_t)h * d.dim + c]);
        v = __fdiv_rn(v, (float)j.group);
    } else {
        v = q[(int64_t)r * d.dim + c];
    }
    if (!d.split)
        return v;
    return k < d.dim ? (v > 0 ? v : 0) : (v < 0 ? v : 0);
}

/* ---- tiles ---- */

/* The rows that one thread copies of a tile, 128 >> chunk_log2 rows apart: their bytes in global memory, or NULL after the
 * last row. */
struct sl_tile_rows {
    const uint8_t *at[8];
};

__device__ static inline const uint8_t *sl_dots_row(const sl_dots &j, const int32_t *pages, int head, int row)
{
    const sl_row_dots &d = j.d;
    int page = pages[row >> d.page_log2];

    if (page < 0) {
        atomicOr(j.deverr, SL_DEVERR_PAGE);
        return NULL;
    }
    return d.base + page * d.page_stride + (row & ((1 << d.page_log2) - 1)) * d.row_stride +
           head * d.head_stride;
}

/* tid is the number of the thread among the 128 that copy the tile. */
__device__ static inline void sl_tile_find(const sl_dots &j, sl_tile_rows *t, const int32_t *pages, int head,
                                           int first, int n, int tid)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int row = first + (tid >> j.chunk_log2) + (SL_TILE >> j.chunk_log2) * i;
        t->at[i] = i < 1 << j.chunk_log2 && row < n ? sl_dots_row(j, pages, head, row) : NULL;
    }
}

/* Starts the copies of one slice of the tile to shared memory; what a row does not have is 0. 128 threads. */
__device__ static inline void sl_tile_copy(const sl_dots &j, const sl_tile_rows &t, int slice, uint8_t *to,
                                           int tid)
{
    int chunk = tid & ((1 << j.chunk_log2) - 1), at = slice * SL_SLICE + 16 * chunk;
    bool some = at < j.row_bytes;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i >= 1 << j.chunk_log2)
            break;
        int row = (tid >> j.chunk_log2) + (SL_TILE >> j.chunk_log2) * i;
        uint8_t *dst = to + row * SL_SLICE_LD + 16 * chunk;
        if (j.wide) {
            bool has = some && t.at[i];
            sl_copy16(sl_smem_addr(dst), has ? t.at[i] + at : j.d.base, has);
            continue;
        }
        /* Rows of any alignment: two bytes at a time; n is even or the elements are that large. */
        for (int b = 0; b < 16; b++)
            dst[b] = t.at[i] && at + b < j.row_bytes ? t.at[i][at + b] : 0;
    }
}

/* ---- products ---- */

/*
 * A thread has two of the eight lanes of four rows and R queries, so that a value from shared memory serves R
 * multiply-adds, and one of a query four. Thread c of four neighbours has lanes 2 c and 2 c + 1; its rows are 8 apart.
 */
#define SL_UNITS 4
template <int R> struct sl_lanes {
    float at[R][SL_UNITS][2];
};

/* Values 2 c and 2 c + 1 of 8. */
__device__ static inline float2 sl_load_two(const float *p, int c)
{
    return ((const float2 *)p)[c];
}

__device__ static inline float2 sl_load_two(const __nv_bfloat16 *p, int c)
{
    uint32_t w = ((const uint32_t *)p)[c];

    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}

__device__ static inline float2 sl_load_two(const uint8_t *p, int c)
{
    return make_float2(sl_e4m3f(p[2 * c]), sl_e4m3f(p[2 * c + 1]));
}

/* The row of the tile whose products sl_dots_sum() gives to this thread; 4 warps have a tile. */
__device__ static inline int sl_dots_my_row(void)
{
    return threadIdx.x % SL_TILE / 32 * 32 + (threadIdx.x & 31) / 4 + 8 * (threadIdx.x & 3);
}

/* Adds steps * 8 values of four rows to the lanes of R queries. slice: of the tile. x: the first query at these values, the
 * others ld further on. */
template <typename T, int R>
__device__ static inline void sl_dots_add(sl_lanes<R> &lanes, const uint8_t *slice, const float *x, int ld,
                                          int steps)
{
    int c = threadIdx.x & 3, row = threadIdx.x % SL_TILE / 32 * 32 + (threadIdx.x & 31) / 4;
    const uint8_t *at = slice + row * SL_SLICE_LD;

#pragma unroll 2
    for (int s = 0; s < steps; s++) {
        float2 v[SL_UNITS];

#pragma unroll
        for (int u = 0; u < SL_UNITS; u++)
            v[u] = sl_load_two((const T *)(at + 8 * u * SL_SLICE_LD) + 8 * s, c);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float2 q = *(const float2 *)(x + r * ld + 8 * s + 2 * c);
#pragma unroll
            for (int u = 0; u < SL_UNITS; u++) {
                lanes.at[r][u][0] = fmaf(v[u].x, q.x, lanes.at[r][u][0]);
                lanes.at[r][u][1] = fmaf(v[u].y, q.y, lanes.at[r][u][1]);
            }
        }
    }
}

/* a + b of two threads that are `far` apart, of which the upper one keeps b's sum. */
__device__ static inline float sl_swap_add(float a, float b, bool upper, int far)
{
    return __fadd_rn(upper ? b : a, __shfl_xor_sync(0xffffffffu, upper ? a : b, far));
}

/* The product of one query with this thread's row, from the lanes of four threads, in the canonical order; the lanes become
 * 0. Whole warps call it. */
__device__ static inline float sl_dots_sum(float (&l)[SL_UNITS][2])
{
    bool hi = threadIdx.x & 2, lo = threadIdx.x & 1;
    float w[2][2], v[2];

#pragma unroll
    for (int e = 0; e < 2; e++) {
        w[0][e] = sl_swap_add(l[0][e], l[2][e], hi, 2); /* lanes e + 4 and e, or e + 6 and e + 2 */
        w[1][e] = sl_swap_add(l[1][e], l[3][e], hi, 2);
        v[e] = sl_swap_add(w[0][e], w[1][e], lo, 1);
#pragma unroll
        for (int u = 0; u < SL_UNITS; u++)
            l[u][e] = 0;
    }
    return __fadd_rn(v[0], v[1]);
}

/* Steps of 8 values in a slice. */
template <typename T> __device__ static inline int sl_slice_steps(const sl_dots &j, int slice)
{
    const int most = SL_SLICE / (8 * (int)sizeof(T));
    int left = j.n_pad / 8 - slice * most;

    return left < most ? left : most;
}

/* The scale of a row of e4m3 values; 1 for other types. */
template <typename T> __device__ static inline float sl_dots_scale(const sl_dots &, const int32_t *, int, int)
{
    return 1;
}

template <>
__device__ inline float sl_dots_scale<uint8_t>(const sl_dots &j, const int32_t *pages, int head, int row)
{
    const uint8_t *at = sl_dots_row(j, pages, 0, row);

    return at ? *(const float *)(at + j.d.scale_at + head * j.d.scale_stride) : 0;
}

/* ---- results ---- */

/* Joins the product of a further query to the score of a list. */
__device__ static inline float sl_dots_join(const sl_dots &j, float score, float v)
{
    return j.d.mean ? __fadd_rn(score, v) : v > score ? v : score;
}

/* Stores the product of query r of a head, or joins it to what earlier queries of the list have stored. */
__device__ static inline void sl_dots_put(const sl_dots &j, int i, int list, int head, int r, int row,
                                          float v)
{
    const sl_row_dots &d = j.d;

    if (d.raw) {
        d.out[((int64_t)i * d.heads + (int64_t)head * j.group + r) * d.ld_out + row] = v;
        return;
    }
    float *out = d.out + ((int64_t)i * d.lists + list) * d.ld_out + row;
    *out = head % (d.kv_heads / d.lists) == 0 && r == 0 ? v : sl_dots_join(j, *out, v);
}

#endif
