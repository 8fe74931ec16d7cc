/*
 * k-means over keys (kernels/clusters.h): labels of all points by points.cu, then one thread block per set fills clusters
 * without points, then the means. Whether a set has converged is decided on the device: its later iterations end at once.
 *
 * The same bits as on the CPU: labels are (points.h); the sum of a mean is taken by one thread per channel in double in the
 * order of tokens; distances are double, in the order of channels, with products and sums rounded separately.
 *
 * Limit: that of the labels (points.cu), (iterations + 1) times; at the end of a prompt of 32K tokens with 8 KV heads, d 128,
 * 410 clusters and 20 iterations 290e9 multiply-adds per layer, 9.8 ms at 29.6e12 per second. The means read every label
 * once per cluster: 0.1e9 labels per iteration of these. Measured on an H200: 43 ms, a rate of a quarter of that limit, which
 * is also what row_dots.cu reaches. A group of a few hundred tokens, for which four launches an iteration would be nearly all of the
 * time, is done by kmeans_small.cu.
 */
#include "kernels/cuda/any/select/kmeans.cuh"

#define BEGIN_THREADS 256
#define MEAN_THREADS 128
#define EACH 8 /* labels of a thread at a time, in the means */

/* ---- the first centroids ---- */

__global__ static void __launch_bounds__(BEGIN_THREADS) begin_kernel(sl_points s)
{
    int c = blockIdx.x, head = blockIdx.y;
    int64_t i = s.k < s.n ? (int64_t)c * s.n / s.k : c < s.n ? c : s.n - 1;
    const float *from = s.values + ((int64_t)head * s.n + i) * s.keys.dim;
    float *to = s.centroids + ((s.head + head) * s.ld_centroids + c) * s.keys.dim;

    for (int d = threadIdx.x; d < s.keys.dim; d += BEGIN_THREADS)
        to[d] = from[d];
}

__global__ static void __launch_bounds__(SETTLE_THREADS) settle_kernel(kmeans_job j)
{
    settle(j, blockIdx.x);
}

/* ---- means ---- */

/*
 * The points of label c among EACH * MEAN_THREADS labels from `base` on, ascending, in list; returns their number. The
 * threads read the list before they call this again.
 */
__device__ static inline int members(const int32_t *labels, int base, int n, int c, int32_t *list)
{
    __shared__ int totals[MEAN_THREADS / 32];
    int first = base + EACH * threadIdx.x, mine = 0, before, all = 0;
    uint32_t mask = 0;

#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (first + e < n && labels[first + e] == c)
            mask |= 1u << e;
    mine = __popc(mask);
    before = sl_warp_prefix(mine);
    if ((threadIdx.x & 31) == 31)
        totals[threadIdx.x >> 5] = before;
    __syncthreads();
    before -= mine;
    for (int w = 0; w < MEAN_THREADS / 32; w++) {
        before += w < (int)(threadIdx.x >> 5) ? totals[w] : 0;
        all += totals[w];
    }
    for (; mask; mask &= mask - 1)
        list[before++] = first + __ffs((int)mask) - 1;
    __syncthreads();
    return all;
}

__global__ static void __launch_bounds__(MEAN_THREADS) means_kernel(kmeans_job j)
{
    extern __shared__ double sums[]; /* [width]; a channel belongs to one thread */
    __shared__ int32_t list[EACH * MEAN_THREADS];
    const sl_points &s = j.s;
    int c = blockIdx.x, set = blockIdx.y, count = j.count[(int64_t)set * s.k + c];
    const int32_t *labels = s.labels + (int64_t)set * s.n;

    if (s.done[set] || count == 0)
        return;
    for (int d = threadIdx.x; d < s.width; d += MEAN_THREADS)
        sums[d] = 0;
    for (int base = 0; base < s.n; base += EACH * MEAN_THREADS) {
        int all = members(labels, base, s.n, c, list);
        for (int d = threadIdx.x; d < s.width; d += MEAN_THREADS) {
            double sum = sums[d];
            for (int e = 0; e < all; e++)
                sum = __dadd_rn(sum, (double)sl_point(s, set, list[e])[d]);
            sums[d] = sum;
        }
    }
    for (int d = threadIdx.x; d < s.width; d += MEAN_THREADS)
        sl_centroid(s, set, c)[d] = (float)(sums[d] / (double)count);
}

/* ---- the op ---- */

__global__ static void __launch_bounds__(BEGIN_THREADS) labels_kernel(sl_points s, sl_kmeans_params p)
{
    int i = blockIdx.x * BEGIN_THREADS + threadIdx.x, set = blockIdx.y;

    if (i < s.n)
        p.labels[((int64_t)s.head * s.parts + set) * p.ld_labels + i] =
            (uint16_t)(p.label_base + s.labels[(int64_t)set * s.n + i]);
}

static sl_status iterate(sl_cuda *cu, const kmeans_job *j, sl_err *err)
{
    dim3 each(j->s.k, j->s.heads * j->s.parts);

    SL_TRY(sl_cuda_points_nearest(cu, &j->s, err));
    SL_TRY(SL_LAUNCH(cu, settle_kernel, (sl_launch{dim3(each.y), SETTLE_THREADS}), err, *j));
    SL_TRY(SL_LAUNCH(cu, means_kernel, (sl_launch{each, MEAN_THREADS, 8 * (size_t)j->s.width}), err, *j));
    return sl_cuda_points_book(cu, &j->s, err);
}

/* The clusters of the heads of j. */
static sl_status cluster(sl_cuda *cu, const kmeans_job *j, const sl_kmeans_params *p, sl_err *err)
{
    const sl_points *s = &j->s;
    size_t sets = (size_t)s->heads * (size_t)s->parts;

    SL_TRY(sl_cuda_points_load(cu, s, err));
    SL_TRY(SL_CU(cudaMemsetAsync(s->labels, 0xff, 4 * sets * (size_t)s->n, cu->stream), err));
    SL_TRY(SL_LAUNCH(cu, begin_kernel, (sl_launch{dim3(s->k, s->heads), BEGIN_THREADS}), err, *s));
    SL_TRY(sl_cuda_points_book(cu, s, err));
    for (int32_t i = 0; i < p->iterations; i++)
        SL_TRY(iterate(cu, j, err));
    SL_TRY(sl_cuda_points_nearest(cu, s, err)); /* of a set that is done, the labels are those already */
    if (p->labels)
        SL_TRY(SL_LAUNCH(cu, labels_kernel,
                         (sl_launch{dim3(sl_ceil_div(s->n, BEGIN_THREADS), (unsigned)sets), BEGIN_THREADS}),
                         err, *s, *p));
    return SL_OK;
}

static sl_status run_kmeans(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kmeans_params *p = (const sl_kmeans_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    kmeans_job j = {};
    sl_points_space space;

    if (sl_cuda_kmeans_fits(cu, p))
        return sl_cuda_kmeans_small(cu, p, err);
    j.s.keys = p->keys;
    j.s.metric = p->metric;
    j.s.first = p->first, j.s.n = p->tokens;
    j.s.parts = p->parts, j.s.k = p->k;
    j.s.centroids = p->centroids, j.s.ld_centroids = p->ld_centroids;
    SL_TRY(sl_points_place(cu, &j.s, &space, err));
    j.distance = (double *)((uint8_t *)j.s.values + space.distance);
    j.count = (int32_t *)((uint8_t *)j.s.values + space.count);
    const int32_t heads = p->keys.heads, at_once = j.s.heads;
    for (int32_t h = 0; h < heads; h += at_once) {
        j.s.head = h, j.s.heads = heads - h < at_once ? heads - h : at_once;
        SL_TRY(cluster(cu, &j, p, err));
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_kmeans = {.run = run_kmeans};
