/*
 * Sampler: the random generator is compared with its published vectors, the exponential with libm, and every truncation
 * with a simple sampler in double precision; the distribution is checked by chi-square; determinism. The parameters are
 * tested in test_sampler_params.c.
 */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/sample_math.h"
#include "model/sampler.h"
#include "tests/unit/run_suite.h"

static const sl_history no_history = {0};

static uint64_t rng = 88172645463325252ull;

static uint64_t next_random(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    return rng ^= rng << 17;
}

static float random_float(void)
{
    return (float)(next_random() >> 40) * 0x1p-24f;
}

static sl_sampler *make(int32_t vocab)
{
    static const int32_t eos[] = {1};
    sl_sampler *sp;
    ck_assert_int_eq(sl_sampler_create(vocab, eos, 1, &sp), SL_OK);
    return sp;
}

static sl_sampled sample(sl_sampler *sp, const float *x, const sl_sampling *s, uint64_t position)
{
    sl_sampled out;
    sl_err err = {{0}};
    ck_assert_msg(sl_sample(sp, x, s, &no_history, position, &out, &err) == SL_OK, "%s", err.text);
    return out;
}

/* ---- generator and arithmetic ---- */

START_TEST(philox_published_vectors)
{
    static const struct {
        uint64_t key, lo, hi;
        uint32_t out[4];
    } v[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822ull,
         0x85a308d3243f6a88ull,
         0x0370734413198a2eull,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < SL_COUNT(v); i++) {
        uint32_t out[4];
        sl_philox4x32(v[i].key, v[i].lo, v[i].hi, out);
        for (int k = 0; k < 4; k++)
            ck_assert_uint_eq(out[k], v[i].out[k]);
    }
}
END_TEST

START_TEST(uniform_is_uniform)
{
    enum { N = 100000, BINS = 100 };
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = sl_sampler_uniform(42, i);
        ck_assert(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
    }
    double chi = 0;
    for (int b = 0; b < BINS; b++)
        chi += (bins[b] - N / BINS) * (double)(bins[b] - N / BINS) / (N / BINS);
    /* 99 degrees of freedom: mean 99; more than 160 has a probability below 1 in 10000 */
    ck_assert_double_lt(chi, 160);
    ck_assert(sl_sampler_uniform(42, 7) != sl_sampler_uniform(43, 7));
    ck_assert(sl_sampler_uniform(42, 1ull << 33) != sl_sampler_uniform(42, 0));
}
END_TEST

START_TEST(exponential_is_close)
{
    for (float x = 0; x > -87; x -= 0.00137f) {
        double want = exp((double)x), got = (double)sl_sample_exp(x);
        ck_assert_msg(fabs(got - want) <= want * 4e-7, "exp(%g): %g, not %g", (double)x, got, want);
    }
    ck_assert_float_eq(sl_sample_exp(0), 1);
    ck_assert_float_eq(sl_sample_exp(-88), 0);
    ck_assert_float_eq(sl_sample_exp(-INFINITY), 0);
}
END_TEST

START_TEST(masses_are_rounded_to_nearest)
{
    ck_assert_uint_eq(sl_sample_mass(1.0f), SL_SAMPLE_MASS_ONE);
    ck_assert_uint_eq(sl_sample_mass(0.0f), 0);
    for (int i = 0; i < 100000; i++) {
        float w = (float)ldexp((double)random_float(), -(int)(next_random() % 48));
        ck_assert_uint_eq(sl_sample_mass(w), (uint64_t)nearbyint(ldexp((double)w, SL_SAMPLE_MASS_BITS)));
    }
}
END_TEST

START_TEST(logarithm_is_close)
{
    for (int i = 0; i < 100000; i++) {
        uint64_t total = 1 + (next_random() >> next_random() % 63);
        double want = log((double)total) - SL_SAMPLE_MASS_BITS * log(2), got = sl_sample_log(total);
        ck_assert_msg(fabs(got - want) <= 1e-14 * fmax(fabs(want), 1), "ln of %llu / 2^40: %.17g, not %.17g",
                      (unsigned long long)total, got, want);
    }
    ck_assert_double_eq(sl_sample_log(SL_SAMPLE_MASS_ONE), 0);
}
END_TEST

/* The order of keys is that of logits, and a key gives its logit back. */
START_TEST(keys_order_logits)
{
    for (int i = 0; i < 100000; i++) {
        uint32_t bits[2] = {(uint32_t)next_random(), (uint32_t)next_random()};
        float x[2];
        memcpy(x, bits, sizeof x);
        if (isnan(x[0]) || isnan(x[1]))
            continue;
        uint32_t a = sl_sample_key(x[0]), b = sl_sample_key(x[1]);
        ck_assert(x[0] > x[1] ? a < b : x[0] < x[1] ? a > b : a == b);
        ck_assert(sl_sample_key_logit(a) == x[0]);
    }
    ck_assert_uint_eq(sl_sample_key(-0.0f), sl_sample_key(0.0f));
}
END_TEST

/* ---- a plain sampler to compare with: full sort, double precision ---- */

typedef struct ref {
    double p;
    float x;
    int32_t id;
} ref;

static int by_logit(const void *a, const void *b)
{
    const ref *x = a, *y = b;
    if (x->x != y->x)
        return x->x < y->x ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* The candidates that the truncations keep, best first, with their final probabilities; returns their number. */
static size_t reference(const float *x, size_t n, const sl_sampling *s, ref *r)
{
    double sum = 0, cut = 0, kept = 0;
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++)
        r[i] = (ref){exp(((double)x[i] - (double)max) / (double)s->temperature), x[i], (int32_t)i};
    qsort(r, n, sizeof *r, by_logit);
    size_t keep = s->top_k > 0 && (size_t)s->top_k < n ? (size_t)s->top_k : n;
    for (size_t i = 0; i < keep; i++)
        sum += r[i].p;
    if (s->top_p < 1) {
        size_t k = 0;
        for (; k < keep && cut < (double)s->top_p * sum; k++)
            cut += r[k].p;
        keep = k;
    }
    while (keep > 1 && r[keep - 1].p < (double)s->min_p)
        keep--;
    for (size_t i = 0; i < keep; i++)
        kept += r[i].p;
    for (size_t i = 0; i < keep; i++)
        r[i].p /= kept;
    return keep;
}

static void random_logits(float *x, size_t n, float spread)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (random_float() + random_float() + random_float() - 1.5f) * spread;
    x[next_random() % n] = x[next_random() % n]; /* a tie */
}

static const struct {
    float temperature, top_p, min_p;
    int32_t top_k;
} shapes[] = {
    {1, 1, 0, 0},         {0.7f, 1, 0, 0},       {1, 0.9f, 0, 0},         {1, 1, 0, 40},
    {0.6f, 0.95f, 0, 20}, {1, 1, 0.05f, 0},      {1.5f, 0.8f, 0.02f, 50}, {2, 0.999f, 0, 0},
    {0.05f, 0.95f, 0, 0}, {100, 0.5f, 0, 0},     {1, 1e-6f, 0, 0},        {1, 1, 1, 0},
    {1, 1, 0, 1},         {1, 0.5f, 0.3f, 5000},
};

/* The token must be one of the kept candidates: that in whose part of the cumulated distribution the number lies. */
START_TEST(truncations_match_reference)
{
    enum { N = 3001 };
    static float x[N];
    static ref r[N];
    sl_sampler *sp = make(N);
    for (int round = 0; round < 60; round++) {
        sl_sampling s;
        sl_sampling_default(&s);
        s.temperature = shapes[_i].temperature;
        s.top_p = shapes[_i].top_p;
        s.min_p = shapes[_i].min_p;
        s.top_k = shapes[_i].top_k;
        s.seed = next_random();
        random_logits(x, N, round % 3 == 0 ? 0.5f : round % 3 == 1 ? 8.0f : 60.0f);
        size_t keep = reference(x, N, &s, r);
        double before = 0, p = 0;
        int32_t id = sample(sp, x, &s, (uint64_t)round).id;
        double u = sl_sampler_uniform(s.seed, (uint64_t)round);
        bool found = false;
        for (size_t i = 0; i < keep; i++) {
            bool is = r[i].id == id, ahead = r[i].id < id;
            found |= is;
            p = is ? r[i].p : p;
            before += ahead && !is ? r[i].p : 0;
        }
        ck_assert_msg(found, "token %d is not among the %zu kept", id, keep);
        ck_assert_msg(u > before - 1e-5 && u < before + p + 1e-5, "u = %.9f, token %d covers %.9f .. %.9f", u,
                      id, before, before + p);
    }
    sl_sampler_destroy(sp);
}
END_TEST

START_TEST(distribution_is_softmax)
{
    enum { N = 50, DRAWS = 200000 };
    float x[N];
    ref r[N];
    int seen[N] = {0};
    random_logits(x, N, 3);
    sl_sampler *sp = make(N);
    sl_sampling s;
    sl_sampling_default(&s);
    s.temperature = 0.8f;
    s.top_p = _i ? 0.97f : 1.0f;
    s.seed = 12345;
    size_t keep = reference(x, N, &s, r);
    for (uint64_t i = 0; i < DRAWS; i++)
        seen[sample(sp, x, &s, i).id]++;
    double chi = 0;
    int total = 0;
    for (size_t i = 0; i < keep; i++) {
        double want = r[i].p * DRAWS;
        chi += (seen[r[i].id] - want) * (seen[r[i].id] - want) / want;
        total += seen[r[i].id];
    }
    ck_assert_int_eq(total, DRAWS); /* nothing outside what was kept */
    ck_assert_msg(chi < (double)keep + 5 * sqrt(2.0 * (double)keep), "chi-square %g for %zu tokens", chi,
                  keep);
    sl_sampler_destroy(sp);
}
END_TEST

/* top_p that is reached exactly takes no token more. */
START_TEST(top_p_is_the_smallest_prefix)
{
    float x[8];
    for (int i = 0; i < 8; i++)
        x[i] = i < 4 ? 2.0f : -200.0f;
    sl_sampler *sp = make(8);
    sl_sampling s;
    sl_sampling_default(&s);
    for (int quarter = 1; quarter <= 4; quarter++) {
        int32_t most = -1;
        s.top_p = 0.25f * (float)quarter;
        for (uint64_t i = 0; i < 300; i++) {
            int32_t id = sample(sp, x, &s, i).id;
            most = id > most ? id : most;
        }
        ck_assert_int_eq(most, quarter - 1);
    }
    sl_sampler_destroy(sp);
}
END_TEST

/* ---- ties, penalties, masks ---- */

START_TEST(ties_go_to_the_smaller_id)
{
    float x[100];
    for (int i = 0; i < 100; i++)
        x[i] = -1;
    x[70] = x[30] = x[31] = 5;
    sl_sampler *sp = make(100);
    sl_sampling s;
    sl_sampling_default(&s);
    s.temperature = 0;
    s.n_logprobs = 5;
    sl_sampled got = sample(sp, x, &s, 0);
    ck_assert_int_eq(got.id, 30);
    static const int32_t order[] = {30, 31, 70, 0, 1};
    ck_assert_uint_eq(got.n_top, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(got.top[i].id, order[i]);
    s.temperature = 1;
    s.top_k = 2;
    for (uint64_t i = 0; i < 200; i++) {
        int32_t id = sample(sp, x, &s, i).id;
        ck_assert(id == 30 || id == 31);
    }
    sl_sampler_destroy(sp);
}
END_TEST

START_TEST(penalties_follow_the_formulas)
{
    float x[6] = {4.0f, 3.9f, -1.0f, 3.8f, 2.0f, 3.0f};
    static const int32_t prompt[] = {0, 2, 99}, output[] = {1, 1, 3, -5};
    sl_history h = {prompt, 3, output, 4};
    sl_sampler *sp = make(6);
    sl_sampling s;
    sl_sampled out;
    sl_sampling_default(&s);
    s.temperature = 0;
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 0);
    s.repetition_penalty = 1.2f; /* 0: 3.33, 1: 3.25, 3: 3.17; 5: 3.0 */
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 0);
    s.repetition_penalty = 1.4f; /* 0: 2.86 */
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 5);
    s.repetition_penalty = 1;
    s.presence_penalty = -0.15f; /* 1: 4.05, 3: 3.95 */
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 1);
    s.frequency_penalty = 0.2f; /* 1: 4.05 - 0.4 = 3.65, 3: 3.75 */
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 0);
    static const sl_logit_bias bias[] = {{0, -100}};
    ck_assert_int_eq(sl_sampling_set_bias(&s, bias, 1), SL_OK); /* 3: 3.75 is best now */
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 3);
    static const sl_logit_bias two[] = {{0, -100}, {3, -100}};
    ck_assert_int_eq(sl_sampling_set_bias(&s, two, 2), SL_OK);
    s.presence_penalty = 0;
    s.frequency_penalty = 0.3f; /* 1: 3.9 - 2 * 0.3 = 3.3, still before 5: 3.0 */
    ck_assert_int_eq(sl_sample(sp, x, &s, &h, 0, &out, NULL), SL_OK);
    ck_assert_int_eq(out.id, 1);
    ck_assert_float_eq(x[0], 4.0f); /* the caller's row is unchanged */
    sl_sampling_free(&s);
    sl_sampler_destroy(sp);
}
END_TEST

START_TEST(min_tokens_suppresses_the_end)
{
    float x[5] = {0, 9, 8, 7, 1}; /* 1 is eos, 2 a stop id */
    static const int32_t stop[] = {2}, output[] = {4, 4, 4};
    sl_sampler *sp = make(5);
    sl_sampling s;
    sl_sampled out;
    sl_sampling_default(&s);
    s.temperature = 0;
    s.min_tokens = 3;
    ck_assert_int_eq(sl_sampling_set_stop_ids(&s, stop, 1), SL_OK);
    for (size_t n = 0; n <= 3; n++) {
        sl_history h = {NULL, 0, output, n};
        ck_assert_int_eq(sl_sample(sp, x, &s, &h, n, &out, NULL), SL_OK);
        ck_assert_int_eq(out.id, n < 3 ? 3 : 1);
    }
    s.ignore_eos = true;
    ck_assert_int_eq(sample(sp, x, &s, 0).id, 1); /* with ignore_eos it is an ordinary token */
    ck_assert(sl_sampling_is_stop(&s, sp, 2) && !sl_sampling_is_stop(&s, sp, 1) &&
              !sl_sampling_is_stop(&s, sp, 3));
    s.ignore_eos = false;
    ck_assert(sl_sampling_is_stop(&s, sp, 1));
    sl_sampling_free(&s);
    sl_sampler_destroy(sp);
}
END_TEST

START_TEST(logprobs_are_those_of_the_raw_logits)
{
    enum { N = 777 };
    float x[N];
    random_logits(x, N, 6);
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += exp((double)x[i]);
    sl_sampler *sp = make(N);
    sl_sampling s;
    sl_sampling_default(&s);
    static const sl_logit_bias bias[] = {{5, 50}};
    ck_assert_int_eq(sl_sampling_set_bias(&s, bias, 1), SL_OK);
    s.temperature = 0.3f;
    s.n_logprobs = SL_LOGPROBS_MAX;
    sl_sampled got = sample(sp, x, &s, 3);
    ck_assert_int_eq(got.id, 5);
    ck_assert_float_eq_tol(got.logprob, (float)((double)x[5] - log(sum)), 1e-5f);
    ck_assert_uint_eq(got.n_top, SL_LOGPROBS_MAX);
    for (uint32_t i = 0; i < got.n_top; i++) {
        ck_assert_float_eq_tol(got.top[i].logprob, (float)((double)x[got.top[i].id] - log(sum)), 1e-5f);
        ck_assert(i == 0 || got.top[i].logprob <= got.top[i - 1].logprob);
    }
    s.n_logprobs = 0;
    ck_assert_uint_eq(sample(sp, x, &s, 3).n_top, 0);
    sl_sampling_free(&s);
    sl_sampler_destroy(sp);
}
END_TEST

/* ---- bad rows, determinism ---- */

START_TEST(broken_logits_are_refused)
{
    float x[20] = {0};
    sl_sampler *sp = make(20);
    sl_sampling s;
    sl_sampled out = {.id = -7};
    sl_err err = {{0}};
    sl_sampling_default(&s);
    static const float bad[] = {NAN, INFINITY};
    for (int at = 0; at < 20; at++) {
        for (int k = 0; k < 2; k++) {
            x[at] = bad[k];
            ck_assert_int_eq(sl_sample(sp, x, &s, &no_history, 9, &out, &err), SL_ERR_CORRUPT);
            ck_assert_ptr_nonnull(strstr(err.text, "position 9"));
            x[at] = 0;
        }
    }
    for (int i = 0; i < 20; i++)
        x[i] = -INFINITY;
    ck_assert_int_eq(sl_sample(sp, x, &s, &no_history, 0, &out, &err), SL_ERR_CORRUPT);
    x[1] = 0; /* only eos is possible, but min_tokens forbids it */
    s.min_tokens = 1;
    ck_assert_int_eq(sl_sample(sp, x, &s, &no_history, 0, &out, &err), SL_ERR_INVALID);
    ck_assert_int_eq(out.id, -7);
    s.min_tokens = 0;
    for (uint64_t i = 0; i < 50; i++)
        ck_assert_int_eq(sample(sp, x, &s, i).id, 1);
    sl_sampler_destroy(sp);
}
END_TEST

/* A resumed stream: another sampler object, with other calls before, draws the same numbers. */
START_TEST(resumed_stream_is_the_same)
{
    enum { N = 1280, STEPS = 300 };
    static float rows[STEPS][N];
    int32_t ids[STEPS];
    sl_sampling s;
    sl_sampling_default(&s);
    s.seed = 0xFEEDFACECAFEull;
    s.top_p = 0.95f;
    s.frequency_penalty = 0.1f;
    s.repetition_penalty = 1.1f;
    for (int i = 0; i < STEPS; i++)
        random_logits(rows[i], N, 5);
    sl_sampler *a = make(N), *b = make(N);
    for (size_t i = 0; i < STEPS; i++) {
        sl_history h = {ids, 10, ids + 10, i > 10 ? i - 10 : 0};
        sl_sampled out;
        h.n_prompt = i < 10 ? i : 10;
        ck_assert_int_eq(sl_sample(a, rows[i], &s, &h, i, &out, NULL), SL_OK);
        ids[i] = out.id;
    }
    for (size_t i = 150; i < STEPS; i++) {
        sl_history h = {ids, 10, ids + 10, i - 10};
        sl_sampled out;
        ck_assert_int_eq(sl_sample(b, rows[i], &s, &h, i, &out, NULL), SL_OK);
        ck_assert_int_eq(out.id, ids[i]);
    }
    sl_sampler_destroy(a);
    sl_sampler_destroy(b);
}
END_TEST

/* Fixed answers: a change of compiler, flags or machine must not change them. */
START_TEST(answers_are_portable)
{
    enum { N = 997 };
    float x[N];
    uint32_t v = 12345;
    for (int i = 0; i < N; i++) {
        v = v * 1664525u + 1013904223u;
        x[i] = (float)(v >> 8) * 0x1p-24f * 12.0f - 6.0f;
    }
    static const int32_t want[3][8] = {
        {451, 975, 697, 745, 621, 340, 991, 800},
        {462, 975, 705, 745, 642, 347, 996, 800},
        {470, 996, 745, 791, 676, 384, 996, 800},
    };
    sl_sampler *sp = make(N);
    for (int k = 0; k < 3; k++) {
        sl_sampling s;
        sl_sampling_default(&s);
        s.seed = 2026;
        s.top_p = k == 1 ? 0.9f : 1.0f;
        s.top_k = k == 2 ? 50 : 0;
        for (uint64_t i = 0; i < 8; i++)
            ck_assert_int_eq(sample(sp, x, &s, i).id, want[k][i]);
    }
    sl_sampler_destroy(sp);
}
END_TEST

/* ---- time ---- */

enum { LARGE = 129280 };

static void flat_row(float *x)
{
    for (size_t i = 0; i < LARGE; i++)
        x[i] = (random_float() + random_float() + random_float() - 1.5f) * 2;
}

static void equal_row(float *x)
{
    for (size_t i = 0; i < LARGE; i++)
        x[i] = 0.25f;
}

/* As a trained model's: few tokens far above the others. */
static void peaked_row(float *x)
{
    for (size_t i = 0; i < LARGE; i++)
        x[i] = (random_float() + random_float() - 1) * 4 - 12 + (i % 3000 == 7) * 12 * random_float();
}

static const struct {
    const char *name;
    float t, p, min_p;
    int32_t k, logprobs;
} modes[] = {{"greedy", 0, 1, 0, 0, -1},
             {"all", 1, 1, 0, 0, -1},
             {"top_p", 1, 0.95f, 0, 0, -1},
             {"top_k 50", 1, 1, 0, 50, -1},
             {"min_p", 1, 1, 0.05f, 0, -1},
             {"20 logprobs", 1, 1, 0, 0, 20},
             {"top_k + top_p", 1, 0.95f, 0, 1000, -1}};

/* The fastest of some calls, in microseconds. */
static double time_of(sl_sampler *sp, const float *x, size_t mode)
{
    double best = 1e9;
    sl_sampling s;
    sl_sampling_default(&s);
    s.temperature = modes[mode].t, s.top_p = modes[mode].p, s.min_p = modes[mode].min_p;
    s.top_k = modes[mode].k, s.n_logprobs = modes[mode].logprobs;
    for (uint64_t i = 0; i < 9; i++) {
        uint64_t start = sl_now_ns();
        sample(sp, x, &s, i);
        double us = (double)(sl_now_ns() - start) * 1e-3;
        best = us < best ? us : best;
    }
    return best;
}

/* Prints the times of flat and peaked rows in one run. The bounds are wide, for sanitizers and busy machines: they catch
 * what grows faster than the vocabulary. */
START_TEST(large_vocabulary_is_quick)
{
    float *flat = malloc(LARGE * sizeof *flat), *equal = malloc(LARGE * sizeof *equal),
          *peaked = malloc(LARGE * sizeof *peaked);
    sl_sampler *sp = make(LARGE);
    flat_row(flat), equal_row(equal), peaked_row(peaked);
    printf("us a token of %d logits: peaked, flat, all equal, worst / peaked\n", LARGE);
    for (size_t m = 0; m < SL_COUNT(modes); m++) {
        double p = time_of(sp, peaked, m), f = time_of(sp, flat, m), e = time_of(sp, equal, m),
               worst = f > e ? f : e;
        printf("%-14s %5.0f %5.0f %5.0f %5.2f\n", modes[m].name, p, f, e, worst / p);
        ck_assert_double_lt(worst, 50000);
        ck_assert_msg(worst < 6 * p + 500, "%s: %.0f us where a peaked row takes %.0f", modes[m].name, worst,
                      p);
    }
    sl_sampler_destroy(sp);
    free(flat), free(equal), free(peaked);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sampler");
    TCase *c = tcase_create("arithmetic");
    tcase_add_test(c, philox_published_vectors);
    tcase_add_test(c, uniform_is_uniform);
    tcase_add_test(c, exponential_is_close);
    tcase_add_test(c, masses_are_rounded_to_nearest);
    tcase_add_test(c, logarithm_is_close);
    tcase_add_test(c, keys_order_logits);
    suite_add_tcase(s, c);
    c = tcase_create("choice");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, truncations_match_reference, 0, (int)SL_COUNT(shapes));
    tcase_add_loop_test(c, distribution_is_softmax, 0, 2);
    tcase_add_test(c, top_p_is_the_smallest_prefix);
    tcase_add_test(c, ties_go_to_the_smaller_id);
    tcase_add_test(c, penalties_follow_the_formulas);
    tcase_add_test(c, min_tokens_suppresses_the_end);
    tcase_add_test(c, logprobs_are_those_of_the_raw_logits);
    tcase_add_test(c, broken_logits_are_refused);
    tcase_add_test(c, resumed_stream_is_the_same);
    tcase_add_test(c, answers_are_portable);
    tcase_add_test(c, large_vocabulary_is_quick);
    suite_add_tcase(s, c);
    return run_suite(s);
}
