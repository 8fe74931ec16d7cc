/*
 * Codes of cached keys (kernels/codes.h): the labels of points.cu by the centroids of a codebook, as bytes. It runs once per
 * request and layer, after k-means; codes of later tokens are codes_step.cu.
 *
 * Limit: one search of points.cu, with 64 codes and d 128 a sixth of that of one iteration of 410 clusters.
 */
#include "kernels/cuda/any/select/codes_step.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/any/select/points.h"

#define THREADS 256

__global__ static void __launch_bounds__(THREADS) codes_kernel(sl_points s, sl_codes_params p)
{
    int i = blockIdx.x * THREADS + threadIdx.x, set = blockIdx.y;
    int head = s.head + set / s.parts, part = set % s.parts;

    if (i < s.n)
        p.codes[((int64_t)head * p.ld_codes + p.first + i) * s.parts + part] =
            (uint8_t)s.labels[(int64_t)set * s.n + i];
}

static sl_status write_codes(sl_cuda *cu, const sl_points *s, const sl_codes_params *p, sl_err *err)
{
    dim3 grid(sl_ceil_div(s->n, THREADS), s->heads * s->parts);

    SL_TRY(sl_cuda_points_load(cu, s, err));
    SL_TRY(sl_cuda_points_book(cu, s, err));
    SL_TRY(sl_cuda_points_nearest(cu, s, err));
    return SL_LAUNCH(cu, codes_kernel, (sl_launch{grid, THREADS}), err, *s, *p);
}

static sl_status run_codes(sl_backend *be, const void *params, sl_err *err)
{
    const sl_codes_params *p = (const sl_codes_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_points s = {};
    sl_points_space space;

    if (p->step)
        return sl_cuda_codes_step(cu, p, err);
    s.keys = p->keys;
    s.metric = SL_KMEANS_L2;
    s.first = p->first, s.n = p->tokens;
    s.parts = p->parts, s.k = p->k;
    s.centroids = (float *)p->centroids, s.ld_centroids = p->k; /* only read */
    SL_TRY(sl_points_place(cu, &s, &space, err));
    const int32_t heads = p->keys.heads, at_once = s.heads;
    for (int32_t h = 0; h < heads; h += at_once) {
        s.head = h, s.heads = heads - h < at_once ? heads - h : at_once;
        SL_TRY(write_codes(cu, &s, p, err));
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_codes = {.run = run_codes};
