/*
 * Device code of row_dots.h: tokens, values of queries, tiles of rows in shared memory, and the canonical product. A tile
 * is SL_TILE rows, cut into slices of 128 bytes of each row; rows in shared memory are 16 bytes longer, so that threads
 * which read 16 bytes of different rows use different banks.
 */
#ifndef SL_KERNELS_CUDA_ROW_DOTS_CUH
#define SL_KERNELS_CUDA_ROW_DOTS_CUH

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/row_dots.h"

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

template <typename T> __device__ static inline void sl_load8(float (&v)[8], const uint8_t *p);

template <> __device__ inline void sl_load8<float>(float (&v)[8], const uint8_t *p)
{
    float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];

    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

template <> __device__ inline void sl_load8<__nv_bfloat16>(float (&v)[8], const uint8_t *p)
{
    uint4 a = *(const uint4 *)p;
    const uint32_t w[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(w[i] << 16);
        v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

template <> __device__ inline void sl_load8<uint8_t>(float (&v)[8], const uint8_t *p)
{
    uint2 a = *(const uint2 *)p;

#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = sl_e4m3f((uint8_t)((i < 4 ? a.x : a.y) >> 8 * (i % 4)));
}

/* Adds steps * 8 values of one row to the lanes of R queries. x: the first query at these values, the others ld further
 * on. */
template <typename T, int R>
__device__ static inline void sl_dots_add(float (&lane)[R][8], const uint8_t *row, const float *x, int ld,
                                          int steps)
{
    for (int s = 0; s < steps; s++) {
        float v[8];

        sl_load8<T>(v, row + s * 8 * (int)sizeof(T));
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 a = *(const float4 *)(x + r * ld + 8 * s), b = *(const float4 *)(x + r * ld + 8 * s + 4);
            lane[r][0] = fmaf(v[0], a.x, lane[r][0]);
            lane[r][1] = fmaf(v[1], a.y, lane[r][1]);
            lane[r][2] = fmaf(v[2], a.z, lane[r][2]);
            lane[r][3] = fmaf(v[3], a.w, lane[r][3]);
            lane[r][4] = fmaf(v[4], b.x, lane[r][4]);
            lane[r][5] = fmaf(v[5], b.y, lane[r][5]);
            lane[r][6] = fmaf(v[6], b.z, lane[r][6]);
            lane[r][7] = fmaf(v[7], b.w, lane[r][7]);
        }
    }
}

/* The product, from its lanes; the lanes become 0. */
__device__ static inline float sl_dots_sum(float (&l)[8])
{
    float a = __fadd_rn(__fadd_rn(l[0], l[4]), __fadd_rn(l[2], l[6]));
    float b = __fadd_rn(__fadd_rn(l[1], l[5]), __fadd_rn(l[3], l[7]));

#pragma unroll
    for (int i = 0; i < 8; i++)
        l[i] = 0;
    return __fadd_rn(a, b);
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
