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
 * is also what row_dots.cu reaches. Four launches an iteration are what a group of a few hundred tokens takes: 0.6 ms
 * (docs/bench/notes-gqa.md).
 */
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/points.h"

#define BEGIN_THREADS 256
#define SETTLE_THREADS 1024 /* block_farthest() and the launch need 32 warps */
#define MEAN_THREADS 128
#define EACH 8 /* labels of a thread at a time, in the means */
#define SAME_DIRECTION 1e-6

struct kmeans_job {
    sl_points s;
    double *distance; /* [sets][n] of a point from its centroid */
    int32_t *count;   /* [sets][k] */
};

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

/* ---- clusters without points ---- */

__device__ static double distance_of(const sl_points &s, const float *a, const float *b)
{
    double dot = 0, aa = 0, bb = 0;

    if (s.metric == SL_KMEANS_L2) {
        double apart = 0;
        for (int i = 0; i < s.width; i++) {
            double d = __dsub_rn((double)a[i], (double)b[i]);
            apart = __dadd_rn(apart, __dmul_rn(d, d));
        }
        return apart;
    }
    for (int i = 0; i < s.width; i++) {
        double x = (double)a[i], y = (double)b[i];
        dot = __dadd_rn(dot, __dmul_rn(x, y));
        aa = __dadd_rn(aa, __dmul_rn(x, x));
        bb = __dadd_rn(bb, __dmul_rn(y, y));
    }
    if (!(aa > 0 && bb > 0))
        return 0;
    double d = __dsub_rn(1, __ddiv_rn(dot, sqrt(__dmul_rn(aa, bb))));
    return d < SAME_DIRECTION ? 0 : d;
}

/* The smallest label without points; k: there is none. Every thread receives it. */
__device__ static int first_empty(const int32_t *count, int k)
{
    __shared__ int least;

    __syncthreads(); /* the counts are complete, and no thread reads the result before this one any more */
    if (threadIdx.x == 0)
        least = k;
    __syncthreads();
    for (int c = threadIdx.x; c < k; c += SETTLE_THREADS)
        if (count[c] == 0) {
            atomicMin(&least, c);
            break;
        }
    __syncthreads();
    return least;
}

struct far_point {
    double d;
    int i;
};

__device__ static inline far_point farther(far_point a, far_point b)
{
    return b.d > a.d || (b.d == a.d && b.i < a.i) ? b : a;
}

__device__ static inline far_point warp_farthest(far_point a)
{
    for (int o = 16; o; o >>= 1) {
        far_point b = {__shfl_xor_sync(0xffffffffu, a.d, o), __shfl_xor_sync(0xffffffffu, a.i, o)};
        a = farther(a, b);
    }
    return a;
}

/* The point with the largest distance, of equals the first. Every thread receives it. */
__device__ static far_point block_farthest(const double *distance, int n)
{
    __shared__ far_point part[SETTLE_THREADS / 32];
    far_point best = {-1, INT32_MAX};

    for (int i = threadIdx.x; i < n; i += SETTLE_THREADS)
        best = farther(best, {distance[i], i});
    best = warp_farthest(best);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = best;
    __syncthreads();
    return warp_farthest(part[threadIdx.x & 31]);
}

/* Point `far` becomes the centroid of `empty`; points that are nearer to it get that label. */
__device__ static void move_centroid(const kmeans_job &j, int set, int empty, int far)
{
    const sl_points &s = j.s;
    const float *from = sl_point(s, set, far);
    float *to = sl_centroid(s, set, empty);
    double *distance = j.distance + (int64_t)set * s.n;
    int32_t *labels = s.labels + (int64_t)set * s.n, *count = j.count + (int64_t)set * s.k;

    for (int d = threadIdx.x; d < s.width; d += SETTLE_THREADS)
        to[d] = from[d];
    for (int i = threadIdx.x; i < s.n; i += SETTLE_THREADS) {
        double d = i == far ? 0 : distance_of(s, sl_point(s, set, i), from);
        if (!(d < distance[i]))
            continue;
        atomicSub(&count[labels[i]], 1);
        atomicAdd(&count[empty], 1);
        labels[i] = empty;
        distance[i] = d;
    }
}

/* Counts the points of every label, fills labels without points, and decides whether the set is done. */
__global__ static void __launch_bounds__(SETTLE_THREADS) settle_kernel(kmeans_job j)
{
    const sl_points &s = j.s;
    int set = blockIdx.x;
    double *distance = j.distance + (int64_t)set * s.n;
    int32_t *labels = s.labels + (int64_t)set * s.n, *count = j.count + (int64_t)set * s.k;
    bool filled = false;

    if (s.done[set])
        return;
    for (int c = threadIdx.x; c < s.k; c += SETTLE_THREADS)
        count[c] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < s.n; i += SETTLE_THREADS)
        atomicAdd(&count[labels[i]], 1);
    int empty = first_empty(count, s.k);
    for (int i = threadIdx.x; i < s.n && empty < s.k; i += SETTLE_THREADS)
        distance[i] = distance_of(s, sl_point(s, set, i), sl_centroid(s, set, labels[i]));
    while (empty < s.k) {
        __syncthreads(); /* no thread reads the centroid that changes now */
        far_point far = block_farthest(distance, s.n);
        if (!(far.d > 0))
            break;
        filled = true;
        move_centroid(j, set, empty, far.i);
        empty = first_empty(count, s.k);
    }
    if (threadIdx.x == 0) {
        s.done[set] = !filled && !s.changed[set];
        s.changed[set] = 0;
    }
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
    mine = before = __popc(mask);
    for (int o = 1; o < 32; o <<= 1) { /* the inclusive sum of the warp */
        int other = __shfl_up_sync(0xffffffffu, before, o);
        before += (int)(threadIdx.x & 31) >= o ? other : 0;
    }
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

static size_t place(kmeans_job *j, uint8_t *base)
{
    int64_t sets = (int64_t)j->s.heads * j->s.parts;
    size_t points = sl_points_place(&j->s, base),
           distance = (8 * (size_t)(sets * j->s.n) + 255) & ~(size_t)255;

    if (base) {
        j->distance = (double *)(base + points);
        j->count = (int32_t *)(base + points + distance);
    }
    return points + distance + 4 * (size_t)(sets * j->s.k);
}

static sl_status iterate(sl_cuda *cu, const kmeans_job *j, sl_err *err)
{
    dim3 each(j->s.k, j->s.heads * j->s.parts);

    SL_TRY(sl_cuda_points_nearest(cu, &j->s, err));
    settle_kernel<<<each.y, SETTLE_THREADS, 0, cu->stream>>>(*j);
    SL_TRY(SL_CU_LAUNCHED(err));
    means_kernel<<<each, MEAN_THREADS, 8 * (size_t)j->s.width, cu->stream>>>(*j);
    SL_TRY(SL_CU_LAUNCHED(err));
    return sl_cuda_points_book(cu, &j->s, err);
}

/* The clusters of the heads of j. */
static sl_status cluster(sl_cuda *cu, const kmeans_job *j, const sl_kmeans_params *p, sl_err *err)
{
    const sl_points *s = &j->s;
    size_t sets = (size_t)s->heads * (size_t)s->parts;

    SL_TRY(sl_cuda_points_load(cu, s, err));
    SL_TRY(SL_CU(cudaMemsetAsync(s->labels, 0xff, 4 * sets * (size_t)s->n, cu->stream), err));
    begin_kernel<<<dim3(s->k, s->heads), BEGIN_THREADS, 0, cu->stream>>>(*s);
    SL_TRY(SL_CU_LAUNCHED(err));
    SL_TRY(sl_cuda_points_book(cu, s, err));
    for (int32_t i = 0; i < p->iterations; i++)
        SL_TRY(iterate(cu, j, err));
    SL_TRY(sl_cuda_points_nearest(cu, s, err)); /* of a set that is done, the labels are those already */
    if (p->labels)
        labels_kernel<<<dim3(sl_ceil_div(s->n, BEGIN_THREADS), (unsigned)sets), BEGIN_THREADS, 0,
                        cu->stream>>>(*s, *p);
    return SL_CU_LAUNCHED(err);
}

sl_status sl_cuda_kmeans(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kmeans_params *p = (const sl_kmeans_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    kmeans_job j = {};
    void *scratch;

    j.s.keys = p->keys;
    j.s.metric = p->metric;
    j.s.first = p->first, j.s.n = p->tokens;
    j.s.parts = p->parts, j.s.k = p->k;
    j.s.centroids = p->centroids, j.s.ld_centroids = p->ld_centroids;
    j.s.heads = 1;
    int32_t heads = p->keys.heads, at_once = sl_points_heads(heads, place(&j, NULL));
    j.s.heads = at_once;
    SL_TRY(sl_cuda_scratch(cu, place(&j, NULL), &scratch, err));
    for (int32_t h = 0; h < heads; h += at_once) {
        j.s.head = h, j.s.heads = heads - h < at_once ? heads - h : at_once;
        place(&j, (uint8_t *)scratch);
        SL_TRY(cluster(cu, &j, p, err));
    }
    return SL_OK;
}
