/*
 * Points: keys of one request, cut into parts, and their nearest centroids; what k-means (kmeans.cu) and codes of cached
 * tokens (codes.cu) have in common. A set is one part of one KV head. Keys are decoded to float32 once, in scratch memory.
 *
 * Products have the canonical order of kernels/cpu/vec.h, and lengths are sums in double in the order of channels. The label
 * of a point therefore is that of the CPU backend, ties included. This is why the tensor cores are not used.
 *
 * Host code of kernels/cuda only. Pointers are device addresses, except where a field says "host".
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_POINTS_H
#define SL_KERNELS_CUDA_ANY_SELECT_POINTS_H

#include "kernels/cuda/instance.h"

typedef struct sl_points {
    sl_key_source keys;
    sl_kmeans_metric metric;
    int32_t first, n;     /* tokens first .. first + n - 1 */
    int32_t head, heads;  /* of these KV heads: head .. head + heads - 1 */
    int32_t parts, width; /* channels of a point */
    int32_t pad;          /* width as a multiple of 8 */
    int32_t k;
    float *centroids; /* [all KV heads][ld_centroids][dim]; sl_cuda_points_nearest() only reads them */
    int64_t ld_centroids;
    /* Scratch memory; set = (head - first head) * parts + part. */
    float *values;    /* [heads][n][dim] */
    float *rows;      /* [sets][k][pad]: centroids, of length 1 with the cosine */
    float *half;      /* [sets][k]: half of the squared length, 0 with the cosine */
    int32_t *labels;  /* [sets][n] */
    int32_t *changed; /* [sets]: a label has changed; never cleared by the functions below */
    int32_t *done;    /* [sets]: not 0: the functions below leave the set as it is */
} sl_points;

/* Sets width and pad, heads to those that are worked on at a time, and the pointers to scratch memory, of which `space` has the
 * parts. */
sl_status sl_points_place(sl_cuda *cu, sl_points *s, sl_points_space *space, sl_err *err);
/* Decodes the keys, and clears changed and done. SL_DEVERR_PAGE: a page does not exist. */
sl_status sl_cuda_points_load(sl_cuda *cu, const sl_points *s, sl_err *err);
/* rows and half from the centroids. */
sl_status sl_cuda_points_book(sl_cuda *cu, const sl_points *s, sl_err *err);
/* The label of every point, by rows and half; ties go to the smaller one. SL_ERR_UNSUPPORTED: points too long for the
 * shared memory. */
sl_status sl_cuda_points_nearest(sl_cuda *cu, const sl_points *s, sl_err *err);

#ifdef __CUDACC__
/* Point i of a set, and its centroid c; both have `width` channels next to each other. */
__device__ static inline const float *sl_point(const sl_points &s, int set, int64_t i)
{
    return s.values + (set / s.parts * (int64_t)s.n + i) * s.keys.dim + set % s.parts * s.width;
}

__device__ static inline float *sl_centroid(const sl_points &s, int set, int64_t c)
{
    return s.centroids + ((s.head + set / s.parts) * s.ld_centroids + c) * s.keys.dim +
           set % s.parts * s.width;
}
#endif

#endif
