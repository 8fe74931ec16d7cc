/*
 * k-means of a group of new tokens, whose keys fit into the shared memory of a multiprocessor: one launch, in which a thread
 * block has one KV head and does all iterations. The same bits as kmeans.cu and the CPU: eight threads have the eight
 * lanes of a product (kernels/cpu/vec.h), lengths and means are sums in double in the order of channels and of tokens.
 *
 * Limit: 320 keys of d 128 and 8 clusters are 0.33e6 multiply-adds for an iteration of one head, 1.5 us of one multiprocessor at
 * its rate. Predicted are 5 us, because values come from shared memory with 11 loads for 24 multiply-adds, the length of
 * a centroid is a chain of 128 additions, and there are eight barriers: 50 to 100 us for all iterations. Measured: 159 us,
 * where kmeans.cu takes 616 us with four launches for each.
 */
#include "kernels/cuda/any/select/kmeans.cuh"
#include "kernels/cuda/any/select/points.cuh"

#define THREADS SETTLE_THREADS
#define LANES 8
#define SLOTS (THREADS / LANES) /* points at once, of each of POINTS rounds */
#define POINTS 3
#define CENTROIDS 8 /* at once */
#define MOST_CLUSTERS 32
#define SKEW 8 /* floats after a row: points next to each other use different banks */

/* Where everything is in shared memory, in bytes. */
struct small_layout {
    size_t distance, values, centroids, rows, half, labels, members, count, bytes;
};

__host__ __device__ static inline small_layout layout_of(int n, int k, int width)
{
    int ld = (width + 7) / 8 * 8 + SKEW;
    small_layout l;

    l.distance = 0;
    l.values = l.distance + 8 * (size_t)n;
    l.centroids = l.values + 4 * (size_t)n * ld;
    l.rows = l.centroids + 4 * (size_t)k * ld;
    l.half = l.rows + 4 * (size_t)k * ld;
    l.labels = l.half + 4 * (size_t)k;
    l.members = l.labels + 4 * (size_t)n;
    l.count = l.members + 4 * (size_t)n;
    l.bytes = l.count + 4 * (size_t)k;
    return l;
}

/* rows and half from the centroids: as book_kernel of points.cu. */
__device__ static void make_rows(const sl_points &s)
{
    __shared__ double lengths[MOST_CLUSTERS];

    __syncthreads(); /* the centroids are complete, and no thread reads the rows before these any more */
    if ((threadIdx.x & 31) == 0)
        for (int c = threadIdx.x >> 5; c < s.k; c += THREADS / 32) {
            const float *from = sl_centroid(s, 0, c);
            double square = 0;
#pragma unroll 8
            for (int i = 0; i < s.width; i++)
                square = __dadd_rn(square, __dmul_rn((double)from[i], (double)from[i]));
            lengths[c] = s.metric == SL_KMEANS_COSINE && square > 0 ? sqrt(square) : 1;
            s.half[c] = s.metric == SL_KMEANS_L2 ? (float)(square / 2) : 0;
        }
    __syncthreads();
    for (int e = threadIdx.x; e < s.k * s.pad; e += THREADS) {
        int c = e / s.pad, i = e % s.pad;
        s.rows[c * s.keys.dim + i] = i < s.width ? (float)((double)sl_centroid(s, 0, c)[i] / lengths[c]) : 0;
    }
    __syncthreads();
}

/* The best of up to CENTROIDS centroids from c on, for POINTS points: this thread's lane of the products. */
__device__ static inline void compare(const sl_points &s, const float *const (&point)[POINTS], int c,
                                      float (&best)[POINTS], int (&label)[POINTS])
{
    float lanes[POINTS][CENTROIDS] = {};
    const float *rows = s.rows + (int64_t)c * s.keys.dim + threadIdx.x % LANES;
    int count = min(CENTROIDS, s.k - c);

    for (int i = 0; i < s.pad; i += LANES) {
        float v[POINTS];
#pragma unroll
        for (int p = 0; p < POINTS; p++)
            v[p] = point[p][i];
#pragma unroll
        for (int r = 0; r < CENTROIDS; r++) {
            float x = rows[min(r, count - 1) * s.keys.dim + i];
#pragma unroll
            for (int p = 0; p < POINTS; p++)
                lanes[p][r] = fmaf(v[p], x, lanes[p][r]);
        }
    }
#pragma unroll
    for (int p = 0; p < POINTS; p++)
#pragma unroll
        for (int r = 0; r < CENTROIDS; r++) {
            float sum = lanes[p][r];
            for (int far = LANES / 2; far; far /= 2)
                sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, far));
            float score = __fsub_rn(sum, s.half[c + min(r, count - 1)]);
            if (r < count && (c + r == 0 || score > best[p]))
                best[p] = score, label[p] = c + r;
        }
}

/* The label of every point; ties go to the smaller one. */
__device__ static void nearest(const sl_points &s)
{
    for (int first = 0; first < s.n; first += POINTS * SLOTS) {
        const float *point[POINTS];
        float best[POINTS] = {};
        int label[POINTS] = {};
        int at = first + threadIdx.x / LANES;

#pragma unroll
        for (int p = 0; p < POINTS; p++)
            point[p] = sl_point(s, 0, min(at + p * SLOTS, s.n - 1)) + threadIdx.x % LANES;
        for (int c = 0; c < s.k; c += CENTROIDS)
            compare(s, point, c, best, label);
#pragma unroll
        for (int p = 0; p < POINTS; p++)
            if (threadIdx.x % LANES == 0 && at + p * SLOTS < s.n && s.labels[at + p * SLOTS] != label[p]) {
                s.labels[at + p * SLOTS] = label[p];
                *s.changed = 1;
            }
    }
    __syncthreads();
}

/* Each centroid becomes the mean of its points; members: the points by label, ascending. */
__device__ static void means(const kmeans_job &j, int32_t *members)
{
    const sl_points &s = j.s;
    int lane = threadIdx.x & 31;

    for (int c = threadIdx.x >> 5; c < s.k; c += THREADS / 32) {
        int to = 0;
        for (int b = 0; b < c; b++)
            to += j.count[b];
        for (int i = lane; i - lane < s.n; i += 32) {
            bool in = i < s.n && s.labels[i] == c;
            uint32_t all = __ballot_sync(0xffffffffu, in);
            if (in)
                members[to + __popc(all & ((1u << lane) - 1))] = i;
            to += __popc(all);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < s.k * s.width; e += THREADS) {
        int c = e / s.width, d = e % s.width, from = 0, count = j.count[c];
        double sum = 0;
        for (int b = 0; b < c; b++)
            from += j.count[b];
#pragma unroll 4
        for (int i = 0; i < count; i++)
            sum = __dadd_rn(sum, (double)sl_point(s, 0, members[from + i])[d]);
        if (count > 0)
            sl_centroid(s, 0, c)[d] = (float)(sum / (double)count);
    }
}

/* The keys of a head, with zeros after their channels, and the first centroids. */
__device__ static void begin(const sl_points &s, const sl_key_rows &keys, int head, uint32_t *deverr)
{
    for (int e = threadIdx.x; e < s.n * s.pad; e += THREADS) {
        int point = e / s.pad, i = e % s.pad;
        s.values[point * s.keys.dim + i] = i < s.width ? sl_point_value(s, keys, point, head, i, deverr) : 0;
    }
    for (int i = threadIdx.x; i < s.n; i += THREADS)
        s.labels[i] = -1;
    __syncthreads();
    for (int e = threadIdx.x; e < s.k * s.width; e += THREADS) {
        int c = e / s.width;
        int64_t i = s.k < s.n ? (int64_t)c * s.n / s.k : c < s.n ? c : s.n - 1;
        sl_centroid(s, 0, c)[e % s.width] = sl_point(s, 0, i)[e % s.width];
    }
}

__global__ static void __launch_bounds__(THREADS)
    small_kernel(sl_kmeans_params p, sl_key_rows keys, uint32_t *deverr)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ int32_t changed, done;
    const int width = p.keys.dim, head = blockIdx.x;
    const small_layout l = layout_of(p.tokens, p.k, width);
    kmeans_job j = {};
    sl_points &s = j.s;

    s.keys = p.keys, s.metric = p.metric;
    s.first = p.first, s.n = p.tokens, s.k = p.k;
    s.heads = s.parts = 1;
    s.width = width, s.pad = (width + 7) / 8 * 8;
    s.keys.dim = s.pad + SKEW; /* of a row here */
    s.ld_centroids = p.k;
    s.values = (float *)(smem + l.values), s.centroids = (float *)(smem + l.centroids);
    s.rows = (float *)(smem + l.rows), s.half = (float *)(smem + l.half);
    s.labels = (int32_t *)(smem + l.labels), s.changed = &changed, s.done = &done;
    j.distance = (double *)(smem + l.distance), j.count = (int32_t *)(smem + l.count);
    if (threadIdx.x == 0)
        changed = done = 0;
    begin(s, keys, head, deverr);
    make_rows(s);
    for (int i = 0; i < p.iterations; i++) {
        nearest(s);
        settle(j, 0);
        __syncthreads();
        if (done)
            break;
        means(j, (int32_t *)(smem + l.members));
        make_rows(s);
    }
    if (!done) /* of a set that is done, the labels are those already */
        nearest(s);
    for (int e = threadIdx.x; e < s.k * width; e += THREADS)
        p.centroids[((int64_t)head * p.ld_centroids + e / width) * width + e % width] =
            sl_centroid(s, 0, e / width)[e % width];
    for (int i = threadIdx.x; p.labels && i < s.n; i += THREADS)
        p.labels[(int64_t)head * p.ld_labels + i] = (uint16_t)(p.label_base + s.labels[i]);
}

bool sl_cuda_kmeans_fits(const sl_cuda *cu, const sl_kmeans_params *p)
{
    return p->parts == 1 && p->k <= MOST_CLUSTERS &&
           layout_of(p->tokens, p->k, p->keys.dim).bytes + 2048 <= cu->gpu.smem;
}

sl_status sl_cuda_kmeans_small(sl_cuda *cu, const sl_kmeans_params *p, sl_err *err)
{
    const sl_key_source *k = &p->keys;
    size_t smem = layout_of(p->tokens, p->k, k->dim).bytes;

    return SL_LAUNCH(cu, small_kernel, (sl_launch{dim3(k->heads), THREADS, smem}), err, *p,
                     sl_key_rows_of(&k->rows, &k->host, k->heads, k->dim, k->format), cu->deverr);
}
