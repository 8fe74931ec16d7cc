/*
 * Internal to k-means: what its kernels do between labels and means. The SETTLE_THREADS threads of a block call these functions
 * together. Labels, counts and distances may be in global or in shared memory.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_KMEANS_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_KMEANS_CUH

#include "kernels/cuda/any/select/codes_step.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/any/select/points.h"

#define SETTLE_THREADS 1024 /* block_farthest() and the launch need 32 warps */
#define SAME_DIRECTION 1e-6

struct kmeans_job {
    sl_points s;
    double *distance; /* [sets][n] of a point from its centroid */
    int32_t *count;   /* [sets][k] */
};

/* Groups of new tokens, whose points fit into shared memory: one thread block for each KV head does everything. */
bool sl_cuda_kmeans_fits(const sl_cuda *cu, const sl_kmeans_params *p);
sl_status sl_cuda_kmeans_small(sl_cuda *cu, const sl_kmeans_params *p, sl_err *err);

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
__device__ static inline void settle(const kmeans_job &j, int set)
{
    const sl_points &s = j.s;
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

#endif
