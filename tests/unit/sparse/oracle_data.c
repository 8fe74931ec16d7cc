/* Synthetic keys, values and queries; see oracle_data.h. */
#include "tests/unit/sparse/oracle_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "kernels/formats.h"

enum { DIM = ORACLE_DIM, HALF = DIM / 2, TOPICS = 96, TOPIC_TOKENS = 48, FAST = 24, SLOW = HALF - 12 };

typedef struct model { /* of one KV head, before RoPE */
    float mean[DIM], sink[DIM], needle[DIM], scale[DIM];
    float topic[TOPICS][DIM];
    float value_mean[DIM], value_topic[TOPICS][DIM];
} model;

typedef struct maker {
    uint64_t seed;
    double freq[HALF];
    int32_t *topics; /* [n] */
    model *of;       /* [ORACLE_KV] */
} maker;

/* ---- numbers ---- */

static double uniform(maker *m)
{
    uint64_t x = m->seed += 0x9e3779b97f4a7c15ull;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static float normal(maker *m)
{
    double r = sqrt(-2 * log(uniform(m)));
    return (float)(r * cos(6.283185307179586 * uniform(m)));
}

static void make_frequencies(double *f)
{
    const double theta = 5e5, factor = 8, old = 8192, low = 1, high = 4, pi = 3.141592653589793;

    for (int32_t i = 0; i < HALF; i++) {
        double w = pow(theta, -2.0 * i / DIM), length = 2 * pi / w;
        double s = (old / length - low) / (high - low);
        f[i] = length > old / low ? w / factor : length < old / high ? w : (1 - s) * w / factor + s * w;
    }
}

/* x = rope(x) at pos, rounded to bf16. */
static void place(const maker *m, int32_t pos, float *x)
{
    for (int32_t i = 0; i < HALF; i++) {
        double c = cos(pos * m->freq[i]), s = sin(pos * m->freq[i]);
        double a = (double)x[i], b = (double)x[i + HALF];
        x[i] = sl_round_bf16((float)(a * c - b * s));
        x[i + HALF] = sl_round_bf16((float)(a * s + b * c));
    }
}

/* ---- heads ---- */

/* A unit vector over pairs first .. end - 1. */
static void direction(maker *m, int32_t first, int32_t end, float *out)
{
    double sum = 0;

    memset(out, 0, sizeof *out * DIM);
    for (int32_t i = first; i < end; i++) {
        out[i] = normal(m), out[i + HALF] = normal(m);
        sum += (double)(out[i] * out[i] + out[i + HALF] * out[i + HALF]);
    }
    for (int32_t i = 0; i < DIM; i++)
        out[i] *= (float)(1 / sqrt(sum));
}

static void add(float *x, float gain, const float *y)
{
    for (int32_t i = 0; i < DIM; i++)
        x[i] += gain * y[i];
}

static void make_model(maker *m, model *o)
{
    float fast[DIM];

    memset(o->mean, 0, sizeof o->mean);
    for (int32_t i = HALF - 4; i < HALF; i++) /* outliers */
        o->mean[i] = 5 * normal(m);
    for (int32_t i = 0; i < FAST; i++) {
        fast[i] = 1, fast[i + HALF] = 0;
        o->mean[i] += fast[i];
    }
    direction(m, SLOW, HALF - 4, o->sink);
    direction(m, FAST, HALF - 4, o->needle);
    for (int32_t i = 0; i < DIM; i++)
        o->scale[i] = expf(0.5f * normal(m)), o->value_mean[i] = 0.3f * normal(m);
    for (int32_t t = 0; t < TOPICS; t++) {
        direction(m, FAST, HALF - 4, o->topic[t]);
        for (int32_t i = 0; i < DIM; i++)
            o->topic[t][i] *= o->scale[i], o->value_topic[t][i] = normal(m);
    }
}

static bool is_needle(const oracle_data *d, int32_t t)
{
    for (int32_t i = 0; i < ORACLE_NEEDLES; i++)
        if (d->needle[i] == t)
            return true;
    return false;
}

static void make_token(oracle_data *d, maker *m, int32_t t, int32_t head)
{
    const model *o = &m->of[head];
    float *k = d->k + ((int64_t)t * ORACLE_KV + head) * DIM,
          *v = d->v + ((int64_t)t * ORACLE_KV + head) * DIM;

    for (int32_t i = 0; i < DIM; i++) {
        k[i] = o->mean[i] + 0.7f * normal(m);
        v[i] = sl_round_bf16(o->value_mean[i] + o->value_topic[m->topics[t]][i] + normal(m));
    }
    add(k, 6, o->topic[m->topics[t]]);
    if (t < ORACLE_SINKS)
        add(k, 14, o->sink);
    if (is_needle(d, t))
        add(k, 16, o->needle);
    place(m, t, k);
}

/* The queries of all heads at pos, while the question is asked or not. */
static void make_queries(maker *m, int32_t pos, bool ask, float *q)
{
    for (int32_t h = 0; h < ORACLE_HEADS; h++, q += DIM) {
        const int32_t type = h / ORACLE_GROUP;
        const model *o = &m->of[type];
        const float vary = 0.85f + 0.1f * (float)(h % ORACLE_GROUP);

        for (int32_t i = 0; i < DIM; i++)
            q[i] = 0.4f * normal(m);
        add(q, 7.5f, o->sink);
        for (int32_t i = 0; i < FAST; i++)
            q[i] += vary * (type == ORACLE_LOCAL ? 3.0f : 0.8f);
        if (type == ORACLE_TOPIC)
            add(q, 9 * vary, o->topic[m->topics[pos]]);
        if (type == ORACLE_NEEDLE && ask)
            add(q, 13 * vary, o->needle);
        place(m, pos, q);
    }
}

void oracle_make(oracle_data *d, int32_t n, uint64_t seed)
{
    const int64_t keys = (int64_t)n * ORACLE_KV * DIM, queries = (int64_t)ORACLE_HEADS * DIM;
    maker m = {.seed = seed * 1000003 + 17};

    *d = (oracle_data){.n = n};
    d->k = malloc(sizeof(float) * (size_t)keys);
    d->v = malloc(sizeof(float) * (size_t)keys);
    d->q = malloc(sizeof(float) * (size_t)queries);
    for (int ask = 0; ask < 2; ask++)
        d->window[ask] = malloc(sizeof(float) * (size_t)queries * ORACLE_WINDOW);
    d->sample = malloc(sizeof(float) * (size_t)queries * ORACLE_SAMPLES);
    m.topics = malloc(sizeof *m.topics * (size_t)n);
    m.of = malloc(sizeof *m.of * ORACLE_KV);
    SL_CHECK(d->k && d->v && d->q && d->window[0] && d->window[1] && d->sample && m.topics && m.of,
             "out of memory");
    make_frequencies(m.freq);
    for (int32_t t = 0; t < n; t++)
        m.topics[t] =
            t == 0 || uniform(&m) < 1.0 / TOPIC_TOKENS ? (int32_t)(uniform(&m) * TOPICS) : m.topics[t - 1];
    for (int32_t i = 0; i < ORACLE_NEEDLES; i++)
        d->needle[i] = (int32_t)(((double)i + 0.2 + 0.6 * uniform(&m)) / ORACLE_NEEDLES * 0.9 * n) + 16;
    for (int32_t h = 0; h < ORACLE_KV; h++)
        make_model(&m, &m.of[h]);
    for (int32_t t = 0; t < n; t++)
        for (int32_t h = 0; h < ORACLE_KV; h++)
            make_token(d, &m, t, h);
    make_queries(&m, n - 1, true, d->q);
    for (int32_t i = 0; i < ORACLE_SAMPLES; i++) {
        d->sample_pos[i] = (int32_t)((int64_t)(i + 1) * n / (ORACLE_SAMPLES + 2));
        make_queries(&m, d->sample_pos[i], i % 2, d->sample + i * queries);
    }
    for (int ask = 0; ask < 2; ask++)
        for (int32_t i = 0; i < ORACLE_WINDOW; i++)
            make_queries(&m, n - 1 - ORACLE_WINDOW + i, ask, d->window[ask] + i * queries);
    free(m.of);
    free(m.topics);
}

void oracle_free(oracle_data *d)
{
    free(d->k);
    free(d->v);
    free(d->q);
    free(d->window[0]);
    free(d->window[1]);
    free(d->sample);
    *d = (oracle_data){0};
}
