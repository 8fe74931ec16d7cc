/*
 * k-means over keys (kernels/clusters.h). A task is one part of one KV head, with all of its points in the worker's
 * scratch: the order of every sum is then that of the tokens, whatever the number of threads is.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/keys.h"

enum { CHUNK = 64 }; /* points whose products are computed at a time */
#define SAME_DIRECTION 1e-6

typedef struct kmeans_ctx {
    const sl_kmeans_params *p;
    int32_t width; /* channels of a point */
} kmeans_ctx;

/* One part of one head; in a worker's scratch. */
typedef struct task {
    const sl_kmeans_params *p;
    int32_t n, width;
    sl_book book;
    double *sums;      /* [k][width] */
    double *distance;  /* [n] of a point from its centroid */
    float *points;     /* [n][width] */
    float *dots, *key; /* [CHUNK][k]; [dim] */
    float *centroids;  /* of the output, with the stride ld */
    int64_t ld;
    int32_t *labels, *count; /* [n]; [k] */
} task;

static size_t scratch_bytes(const kmeans_ctx *c)
{
    const size_t n = (size_t)c->p->tokens, k = (size_t)c->p->k, width = (size_t)c->width;
    return 8 * (k * width + n) + 4 * (n * width + CHUNK * k + (size_t)c->p->keys.dim + k * width + k + n + k);
}

static task task_make(const kmeans_ctx *c, int64_t i, void *own)
{
    const sl_kmeans_params *p = c->p;
    const int64_t head = i / p->parts, part = i % p->parts, k = p->k;
    task t = {.p = p, .n = p->tokens, .width = c->width, .sums = own, .ld = p->keys.dim};

    t.distance = t.sums + k * c->width;
    t.points = (float *)(t.distance + t.n);
    t.dots = t.points + (int64_t)t.n * c->width;
    t.key = t.dots + CHUNK * k;
    t.book = (sl_book){.metric = p->metric, .k = p->k, .dim = c->width, .rows = t.key + p->keys.dim};
    t.book.half = t.book.rows + k * c->width;
    t.labels = (int32_t *)(t.book.half + k);
    t.count = t.labels + t.n;
    t.centroids = p->centroids + head * p->ld_centroids * t.ld + part * c->width;
    return t;
}

static bool load_points(const task *t, int32_t head, int32_t part)
{
    for (int32_t i = 0; i < t->n; i++)
        if (!sl_keys_part(&t->p->keys, head, t->p->first + i, part * t->width, t->width, t->key,
                          t->points + (int64_t)i * t->width))
            return false;
    return true;
}

static void begin(const task *t)
{
    for (int32_t c = 0; c < t->p->k; c++) {
        int64_t i = t->p->k < t->n ? (int64_t)c * t->n / t->p->k : c < t->n ? c : t->n - 1;
        memcpy(t->centroids + c * t->ld, t->points + i * t->width, (size_t)t->width * sizeof(float));
    }
}

/* Labels of all points; whether any changed. */
static bool assign(task *t)
{
    int32_t labels[CHUNK];
    bool changed = false;

    sl_book_set(&t->book, t->centroids, t->ld);
    for (int32_t at = 0; at < t->n; at += CHUNK) {
        const int32_t n = t->n - at < CHUNK ? t->n - at : CHUNK;

        sl_nearest(&t->book, t->points + (int64_t)at * t->width, n, t->dots, labels);
        changed |= memcmp(t->labels + at, labels, (size_t)n * sizeof *labels) != 0;
        memcpy(t->labels + at, labels, (size_t)n * sizeof *labels);
    }
    return changed;
}

static double distance(const task *t, const float *a, const float *b)
{
    double dot = 0, aa = 0, bb = 0, apart = 0;

    for (int32_t i = 0; i < t->width; i++) {
        const double x = (double)a[i], y = (double)b[i];

        dot += x * y, aa += x * x, bb += y * y, apart += (x - y) * (x - y);
    }
    if (t->p->metric == SL_KMEANS_L2)
        return apart;
    const double d = aa > 0 && bb > 0 ? 1 - dot / sqrt(aa * bb) : 0;
    return d < SAME_DIRECTION ? 0 : d;
}

/* The smallest label without points; -1: there is none. */
static int32_t without_points(const task *t)
{
    for (int32_t c = 0; c < t->p->k; c++)
        if (t->count[c] == 0)
            return c;
    return -1;
}

/* The farthest points become the centroids of labels without points; whether any did. */
static bool fill(const task *t)
{
    bool filled = false;

    memset(t->count, 0, (size_t)t->p->k * sizeof *t->count);
    for (int32_t i = 0; i < t->n; i++)
        t->count[t->labels[i]]++;
    int32_t empty = without_points(t);
    for (int32_t i = 0; i < t->n && empty >= 0; i++)
        t->distance[i] = distance(t, t->points + (int64_t)i * t->width, t->centroids + t->labels[i] * t->ld);
    for (; empty >= 0; empty = without_points(t)) {
        float *to = t->centroids + empty * t->ld;
        int32_t far = 0;

        for (int32_t i = 1; i < t->n; i++)
            far = t->distance[i] > t->distance[far] ? i : far;
        if (!(t->distance[far] > 0))
            break;
        filled = true;
        memcpy(to, t->points + (int64_t)far * t->width, (size_t)t->width * sizeof *to);
        for (int32_t i = 0; i < t->n; i++) {
            double d = distance(t, t->points + (int64_t)i * t->width, to);

            d = i == far ? 0 : d;
            if (!(d < t->distance[i]))
                continue;
            t->count[t->labels[i]]--, t->count[empty]++;
            t->labels[i] = empty, t->distance[i] = d;
        }
    }
    return filled;
}

/* The sums and counts of the points of each label; then their means. */
static void update(const task *t)
{
    memset(t->sums, 0, (size_t)t->p->k * (size_t)t->width * sizeof *t->sums);
    for (int32_t i = 0; i < t->n; i++) {
        double *sum = t->sums + (int64_t)t->labels[i] * t->width;

        for (int32_t d = 0; d < t->width; d++)
            sum[d] += (double)t->points[(int64_t)i * t->width + d];
    }
    for (int32_t c = 0; c < t->p->k; c++)
        for (int32_t d = 0; d < t->width && t->count[c] > 0; d++)
            t->centroids[c * t->ld + d] = (float)(t->sums[(int64_t)c * t->width + d] / t->count[c]);
}

static void cluster(task *t)
{
    begin(t);
    memset(t->labels, 0xff, (size_t)t->n * sizeof *t->labels);
    for (int32_t i = 0; i < t->p->iterations; i++) {
        bool changed = assign(t);

        if (!fill(t) && !changed)
            break;
        update(t);
    }
    assign(t);
}

static uint32_t cluster_part(const void *arg, int64_t i, void *own)
{
    const kmeans_ctx *c = arg;
    const sl_kmeans_params *p = c->p;
    task t = task_make(c, i, own);

    if (!load_points(&t, (int32_t)(i / p->parts), (int32_t)(i % p->parts)))
        return SL_DEVERR_PAGE;
    cluster(&t);
    for (int32_t j = 0; j < t.n && p->labels; j++)
        p->labels[i * p->ld_labels + j] = (uint16_t)(p->label_base + t.labels[j]);
    return 0;
}

static sl_status run_kmeans(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kmeans_params *p = params;
    const kmeans_ctx c = {p, p->keys.dim / p->parts};
    const int64_t cost = (int64_t)p->tokens * p->k * (p->iterations + 1);
    return sl_cpu_run(be, "kmeans", scratch_bytes(&c), (int64_t)p->keys.heads * p->parts,
                      cost * c.width / 16 + 1, cluster_part, &c, err);
}

const sl_op_impl sl_cpu_kmeans = {.run = run_kmeans};
