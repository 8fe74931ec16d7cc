/*
 * Points and their nearest centroids; see points.h. In the search a thread block has 128 points of one set, which stay in
 * shared memory while the centroids pass, 32 at a time; the products are those of row_dots.cuh, of four points with eight
 * centroids per thread.
 *
 * Limit: n * k * width multiply-adds for each set. 32K tokens of 8 KV heads, d 128, in 410 clusters are 13.8e9, 0.46 ms at
 * 29.6e12 per second. Not measured; row_dots.cu reaches a quarter of the rate with the same products.
 */
#include "kernels/cuda/any/select/points.h"

#include "kernels/cuda/any/select/points.cuh"
#include "kernels/cuda/any/select/row_dots.cuh"

#define LOAD_THREADS 256
#define BOOK_THREADS 128
#define BATCH 32 /* centroids in shared memory */
#define QUERIES 8

sl_status sl_points_place(sl_cuda *cu, sl_points *s, sl_points_space *space, sl_err *err)
{
    const int dim = s->keys.dim;
    uint8_t *base;

    s->heads = sl_points_heads(s->keys.heads, s->n, dim, s->parts, s->k);
    *space = sl_points_space_of(s->heads, s->n, dim, s->parts, s->k);
    SL_TRY(sl_cuda_scratch(cu, space->bytes, (void **)&base, err));
    s->width = dim / s->parts;
    s->pad = (s->width + 7) / 8 * 8;
    s->values = (float *)base;
    s->rows = (float *)(base + space->rows);
    s->half = (float *)(base + space->half);
    s->labels = (int32_t *)(base + space->labels);
    s->changed = (int32_t *)(base + space->changed);
    s->done = (int32_t *)(base + space->done);
    return SL_OK;
}

/* ---- keys ---- */

__global__ static void __launch_bounds__(LOAD_THREADS)
    load_kernel(sl_points s, sl_key_rows keys, uint32_t *deverr)
{
    int64_t e = (int64_t)blockIdx.x * LOAD_THREADS + threadIdx.x;
    int i = (int)(e % s.keys.dim), head = s.head + blockIdx.y;
    int64_t point = e / s.keys.dim;

    if (point >= s.n)
        return;
    s.values[(int64_t)blockIdx.y * s.n * s.keys.dim + e] =
        sl_point_value(s, keys, (int)point, head, i, deverr);
}

sl_status sl_cuda_points_load(sl_cuda *cu, const sl_points *s, sl_err *err)
{
    const sl_key_source *k = &s->keys;
    dim3 grid(sl_ceil_div((int64_t)s->n * k->dim, LOAD_THREADS), s->heads);
    size_t flags = 4 * (size_t)s->heads * (size_t)s->parts;

    SL_TRY(SL_CU(cudaMemsetAsync(s->changed, 0, flags, cu->stream), err));
    SL_TRY(SL_CU(cudaMemsetAsync(s->done, 0, flags, cu->stream), err));
    return SL_LAUNCH(cu, load_kernel, (sl_launch{grid, LOAD_THREADS}), err, *s,
                     sl_key_rows_of(&k->rows, &k->host, k->heads, k->dim, k->format), cu->deverr);
}

/* ---- centroids ---- */

__global__ static void __launch_bounds__(BOOK_THREADS) book_kernel(sl_points s)
{
    __shared__ double length;
    int c = blockIdx.x, set = blockIdx.y;
    const float *from = sl_centroid(s, set, c);
    float *row = s.rows + ((int64_t)set * s.k + c) * s.pad;

    if (s.done[set])
        return;
    if (threadIdx.x == 0) { /* in the order of channels, as on the CPU */
        double square = 0;
        for (int i = 0; i < s.width; i++)
            square = __dadd_rn(square, __dmul_rn((double)from[i], (double)from[i]));
        length = s.metric == SL_KMEANS_COSINE && square > 0 ? sqrt(square) : 1;
        s.half[(int64_t)set * s.k + c] = s.metric == SL_KMEANS_L2 ? (float)(square / 2) : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.pad; i += BOOK_THREADS)
        row[i] = i < s.width ? (float)((double)from[i] / length) : 0;
}

sl_status sl_cuda_points_book(sl_cuda *cu, const sl_points *s, sl_err *err)
{
    return SL_LAUNCH(cu, book_kernel, (sl_launch{dim3(s->k, s->heads * s->parts), BOOK_THREADS}), err, *s);
}

/* ---- labels ---- */

/* Slices of 128 bytes of a point. */
__host__ __device__ static inline int slices_of(const sl_points &s)
{
    return (s.pad * 4 + SL_SLICE - 1) / SL_SLICE;
}

/* The points of a tile in the layout of row_dots.cuh; what a point does not have is 0. */
__device__ static inline void load_tile(const sl_points &s, int set, int first, uint8_t *tile)
{
    const int in_slice = SL_SLICE / 4;
    int cols = slices_of(s) * in_slice;

    for (int e = threadIdx.x; e < SL_TILE * cols; e += SL_TILE) {
        int row = e / cols, col = e % cols;
        bool has = first + row < s.n && col < s.width;
        float v = has ? sl_point(s, set, first + row)[col] : 0;
        *(float *)(tile + col / in_slice * SL_STAGE + row * SL_SLICE_LD + 4 * (col % in_slice)) = v;
    }
}

struct nearest_of { /* the best centroid so far */
    float score;
    int label;
};

/* Compares the tile's points with QUERIES centroids, the first of which is number c and lies at x. */
__device__ static inline void compare(const sl_points &s, const uint8_t *tile, const float *x,
                                      const float *half, int c, nearest_of *best)
{
    sl_lanes<QUERIES> lanes = {};

    for (int i = 0, slices = slices_of(s); i < slices; i++) {
        int left = s.pad / 8 - 4 * i;
        sl_dots_add<float, QUERIES>(lanes, tile + i * SL_STAGE, x + i * (SL_SLICE / 4), s.pad,
                                    left < 4 ? left : 4);
    }
#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
        float score = __fsub_rn(sl_dots_sum(lanes.at[r]), half[r]);
        if (c + r < s.k && (c + r == 0 || score > best->score))
            *best = {score, c + r};
    }
}

__global__ static void __launch_bounds__(SL_TILE) nearest_kernel(sl_points s)
{
    extern __shared__ __align__(16) uint8_t smem[];
    float *x = (float *)(smem + slices_of(s) * SL_STAGE), *half = x + BATCH * s.pad;
    int set = blockIdx.y, first = blockIdx.x * SL_TILE, i = first + sl_dots_my_row();
    const float *rows = s.rows + (int64_t)set * s.k * s.pad;
    nearest_of best = {0, 0};

    if (s.done[set])
        return;
    load_tile(s, set, first, smem);
    for (int c = 0; c < s.k; c += BATCH) {
        __syncthreads(); /* no thread reads the centroids before these any more */
        for (int e = threadIdx.x; e < BATCH * s.pad; e += SL_TILE)
            x[e] = c + e / s.pad < s.k ? rows[(int64_t)c * s.pad + e] : 0;
        if (threadIdx.x < BATCH)
            half[threadIdx.x] = c + threadIdx.x < s.k ? s.half[(int64_t)set * s.k + c + threadIdx.x] : 0;
        __syncthreads();
        for (int r = 0; r < BATCH && c + r < s.k; r += QUERIES)
            compare(s, smem, x + r * s.pad, half + r, c + r, &best);
    }
    int *label = s.labels + (int64_t)set * s.n + i;
    bool changed = i < s.n && *label != best.label;
    if (changed)
        *label = best.label;
    if (__syncthreads_or(changed) && threadIdx.x == 0)
        s.changed[set] = 1;
}

sl_status sl_cuda_points_nearest(sl_cuda *cu, const sl_points *s, sl_err *err)
{
    size_t smem = (size_t)slices_of(*s) * SL_STAGE + 4 * (size_t)BATCH * ((size_t)s->pad + 1);
    dim3 grid(sl_ceil_div(s->n, SL_TILE), s->heads * s->parts);

    if (smem > cu->gpu.smem)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: points of %d channels exceed the shared memory",
                       s->width);
    return SL_LAUNCH(cu, nearest_kernel, (sl_launch{grid, SL_TILE, smem}), err, *s);
}
