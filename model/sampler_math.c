/*
 * See sampler_math.h. Loops have a fixed number of lanes, so that vectorising them does not change the order of
 * additions.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "model/sampler.h"
#include "model/sampler_math.h"

enum { LANES = 8 };

/* exp(x) = 2^k * exp(r), |r| <= ln2/2. k is rounded to an integer by adding and subtracting 1.5 * 2^23; exp(r) is its
 * power series up to r^7. */
static inline __attribute__((always_inline)) float exp_neg(float x)
{
    const float magic = 12582912.0f;
    float clamped = x < -87.0f ? -87.0f : x;
    float t = clamped * 1.44269504f + magic;
    float k = t - magic;
    float r = clamped - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits;
    memcpy(&bits, &t, sizeof bits);
    uint32_t scale_bits = ((uint32_t)(bits - 0x4B400000) + 127u) << 23;
    float scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

float sm_exp(float x)
{
    return exp_neg(x);
}

static double join_lanes(const double *l)
{
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

double sm_sum(const float *w, size_t n)
{
    double lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++)
            lane[k] += (double)w[i + k];
    }
    for (size_t k = 0; i < n; i++, k++)
        lane[k] += (double)w[i];
    return join_lanes(lane);
}

static inline __attribute__((always_inline)) void weigh(const float *restrict x, size_t n, float max,
                                                        float inv_t, float *restrict w)
{
    for (size_t i = 0; i < n; i++)
        w[i] = exp_neg((x[i] - max) * inv_t);
}

#if defined(__x86_64__)
/* The same operations on eight values at a time. AVX2 without FMA has no fused multiply-add, so the bits are equal. */
__attribute__((target("avx2"))) static void weigh_avx2(const float *x, size_t n, float max, float inv_t,
                                                       float *w)
{
    weigh(x, n, max, inv_t, w);
}
#endif

double sm_weights(const float *x, size_t n, float max, float inv_t, float *w)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        weigh_avx2(x, n, max, inv_t, w);
    else
#endif
        weigh(x, n, max, inv_t, w);
    return sm_sum(w, n);
}

float sm_max(const float *x, size_t n, bool *bad)
{
    float lane[LANES];
    int wrong[LANES] = {0};
    for (size_t k = 0; k < LANES; k++)
        lane[k] = -INFINITY;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
            wrong[k] |= !(x[i + k] <= FLT_MAX);
        }
    }
    for (size_t k = 0; i < n; i++, k++) {
        lane[k] = x[i] > lane[k] ? x[i] : lane[k];
        wrong[k] |= !(x[i] <= FLT_MAX);
    }
    float max = lane[0];
    int any = wrong[0];
    for (size_t k = 1; k < LANES; k++) {
        max = lane[k] > max ? lane[k] : max;
        any |= wrong[k];
    }
    *bad = any;
    return max;
}

/* ---- order ---- */

/* An unsigned key whose ascending order is the descending order of the floats; -0 and +0 have the same key. */
static inline uint32_t order_key(float f)
{
    uint32_t u;
    f = f + 0.0f;
    memcpy(&u, &f, sizeof u);
    return u & 0x80000000u ? u : 0x7FFFFFFFu - u;
}

static void insertion_sort(sm_cand *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        sm_cand c = v[i];
        size_t at = i;
        for (; at > 0 && v[at - 1].logit < c.logit; at--)
            v[at] = v[at - 1];
        v[at] = c;
    }
}

void sm_sort(sm_cand *v, size_t n, sm_cand *tmp)
{
    if (n < 48) {
        insertion_sort(v, n);
        return;
    }
    sm_cand *from = v, *to = tmp;
    for (unsigned shift = 0; shift < 32; shift += 8) {
        size_t start[256] = {0}, at = 0;
        for (size_t i = 0; i < n; i++)
            start[order_key(from[i].logit) >> shift & 0xFF]++;
        for (size_t b = 0; b < 256; b++) {
            size_t count = start[b];
            start[b] = at;
            at += count;
        }
        for (size_t i = 0; i < n; i++)
            to[start[order_key(from[i].logit) >> shift & 0xFF]++] = from[i];
        sm_cand *swap = from;
        from = to;
        to = swap;
    }
}

/* ---- generator ---- */

void sl_philox4x32(uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)ctr_lo, c1 = (uint32_t)(ctr_lo >> 32), c2 = (uint32_t)ctr_hi,
             c3 = (uint32_t)(ctr_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double sl_sample_uniform(uint64_t seed, uint64_t position)
{
    uint32_t r[4];
    sl_philox4x32(seed, position, 0, r);
    return (double)(((uint64_t)r[0] << 32 | r[1]) >> 11) * 0x1p-53;
}
