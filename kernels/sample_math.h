/*
 * The arithmetic of sampling (kernels/sample.h), once for C and for CUDA. Every result must have the same bits on every
 * machine: only + - * / and comparisons of IEEE numbers, each rounded by itself and never fused, no function of a
 * mathematical library, and sums of whole numbers. C files that include this are compiled with -ffp-contract=off.
 */
#ifndef SL_KERNELS_SAMPLE_MATH_H
#define SL_KERNELS_SAMPLE_MATH_H

#include <math.h>
#include <string.h>

#include "kernels/sample.h"

#ifdef __CUDACC__
#define SL_SAMPLE_FN __host__ __device__ static inline
#else
#define SL_SAMPLE_FN static inline __attribute__((always_inline))
#endif

#ifdef __CUDA_ARCH__
#define SM_MUL(a, b) __fmul_rn(a, b)
#define SM_ADD(a, b) __fadd_rn(a, b)
#define SM_DIV(a, b) __fdiv_rn(a, b)
#define SM_DMUL(a, b) __dmul_rn(a, b)
#define SM_DADD(a, b) __dadd_rn(a, b)
#define SM_DDIV(a, b) __ddiv_rn(a, b)
#else
#define SM_MUL(a, b) ((a) * (b))
#define SM_ADD(a, b) ((a) + (b))
#define SM_DIV(a, b) ((a) / (b))
#define SM_DMUL(a, b) ((a) * (b))
#define SM_DADD(a, b) ((a) + (b))
#define SM_DDIV(a, b) ((a) / (b))
#endif

#define SL_SAMPLE_MASS_BITS 40
#define SL_SAMPLE_MASS_ONE ((uint64_t)1 << SL_SAMPLE_MASS_BITS)
#define SL_SAMPLE_P_ONE ((uint64_t)1 << 32)

/* ---- weights ---- */

/* exp(x) for x <= 0, relative error below 2e-7; 0 below -87. exp(x) = 2^k * exp(r), |r| <= ln2/2. k is rounded to an
 * integer by adding and subtracting 1.5 * 2^23; exp(r) is its power series up to r^7. */
SL_SAMPLE_FN float sl_sample_exp(float x)
{
    const float magic = 12582912.0f;
    float clamped = x < -87.0f ? -87.0f : x;
    float t = SM_ADD(SM_MUL(clamped, 1.44269504f), magic);
    float k = SM_ADD(t, -magic);
    float r = SM_ADD(clamped, -SM_MUL(k, 0.693359375f));
    float p = 1.0f / 5040.0f, scale;
    int32_t bits;
    uint32_t scale_bits;

    r = SM_ADD(r, SM_MUL(k, 2.12194440e-4f));
    p = SM_ADD(SM_MUL(p, r), 1.0f / 720.0f);
    p = SM_ADD(SM_MUL(p, r), 1.0f / 120.0f);
    p = SM_ADD(SM_MUL(p, r), 1.0f / 24.0f);
    p = SM_ADD(SM_MUL(p, r), 1.0f / 6.0f);
    p = SM_ADD(SM_MUL(p, r), 0.5f);
    p = SM_ADD(SM_MUL(p, r), 1.0f);
    p = SM_ADD(SM_MUL(p, r), 1.0f);
    memcpy(&bits, &t, sizeof bits);
    scale_bits = ((uint32_t)(bits - 0x4B400000) + 127u) << 23;
    memcpy(&scale, &scale_bits, sizeof scale);
    return x < -87.0f ? 0.0f : SM_MUL(p, scale);
}

SL_SAMPLE_FN float sl_sample_weight(float x, float max, float inv_t)
{
    float w = sl_sample_exp(SM_MUL(SM_ADD(x, -max), inv_t));

    return w < 1.0f ? w : 1.0f; /* the series may exceed 1 by its rounding */
}

/* w * 2^40, rounded to nearest even: the sum with 2^12 has bits down to 2^-40. 0 <= w <= 1. */
SL_SAMPLE_FN uint64_t sl_sample_mass(float w)
{
    double d = SM_DADD((double)w, 4096.0);
    uint64_t u;

    memcpy(&u, &d, sizeof u);
    return u - 0x40B0000000000000u;
}

/* ---- order ---- */

/* Ascending for descending logits; -0 and +0 have the same key. */
SL_SAMPLE_FN uint32_t sl_sample_key(float x)
{
    float y = SM_ADD(x, 0.0f);
    uint32_t u;

    memcpy(&u, &y, sizeof u);
    return u & 0x80000000u ? u : 0x7FFFFFFFu - u;
}

/* The logit of a key, with +0 for zeros. */
SL_SAMPLE_FN float sl_sample_key_logit(uint32_t key)
{
    uint32_t u = key & 0x80000000u ? key : 0x7FFFFFFFu - key;
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/*
 * The search for a cut counts tokens by digits, the best digit first, and takes the part in which the cut lies: first by
 * the distance to the largest logit in steps of 1/32, which spreads any ordinary row over many counters, then by 11, 11
 * and 10 bits of the key.
 */
enum { SL_SAMPLE_BINS = 2048, SL_SAMPLE_DIGITS = 3 };

SL_SAMPLE_FN uint32_t sl_sample_bin(float x, float max)
{
    float d = SM_MUL(SM_ADD(max, -x), 32.0f);

    return d < (float)(SL_SAMPLE_BINS - 1) ? (uint32_t)d : SL_SAMPLE_BINS - 1;
}

/* The position of digit 0, 1 or 2 of a key, and its value. */
SL_SAMPLE_FN int sl_sample_shift(int digit)
{
    return digit == 0 ? 21 : digit == 1 ? 10 : 0;
}

SL_SAMPLE_FN uint32_t sl_sample_digit(uint32_t key, int digit)
{
    return key >> sl_sample_shift(digit) & (digit == 2 ? 1023u : 2047u);
}

/* ---- whole numbers ---- */

/* floor(a * b / 2^64) */
SL_SAMPLE_FN uint64_t sl_sample_high(uint64_t a, uint64_t b)
{
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    return (uint64_t)((unsigned __int128)a * b >> 64);
#endif
}

/* The mass that is at least top_p of `total`: ceil(total * top_p / 2^32), at least 1. */
SL_SAMPLE_FN uint64_t sl_sample_enough(uint64_t total, uint64_t top_p)
{
    uint64_t low = total * top_p, up = (low & 0xFFFFFFFFu) != 0;
    uint64_t need = (sl_sample_high(total, top_p) << 32 | low >> 32) + up;

    return need ? need : 1;
}

/* Philox4x32-10: four random words from a 64-bit key and a 128-bit counter. */
SL_SAMPLE_FN void sl_sample_philox(uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t out[4])
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

/* 64 random bits of a token. */
SL_SAMPLE_FN uint64_t sl_sample_random(uint64_t seed, uint64_t position)
{
    uint32_t r[4];

    sl_sample_philox(seed, position, 0, r);
    return (uint64_t)r[0] << 32 | r[1];
}

/* ---- changes and log-probabilities ---- */

/* The logit x of the entry's token after step 1. */
SL_SAMPLE_FN float sl_sample_changed(float x, const sl_sample_entry *e, const sl_sample_row *r)
{
    uint32_t count = e->seen / SL_SAMPLE_ONCE;

    x = SM_ADD(x, e->bias);
    if ((e->seen & SL_SAMPLE_STOPS) && r->position < r->hold_until)
        x = -INFINITY;
    if ((e->seen & SL_SAMPLE_KNOWN) && r->repetition != 1.0f)
        x = x > 0 ? SM_DIV(x, r->repetition) : SM_MUL(x, r->repetition);
    if (count)
        x = SM_ADD(x, -SM_ADD(SM_MUL(r->frequency, (float)count), r->presence));
    return x;
}

/* The natural logarithm of total / 2^40, total >= 1. With total = m * 2^e, ln m is the series of 2 artanh(s) up to s^23,
 * s = (m - 1) / (m + 1), |s| < 0.172. */
SL_SAMPLE_FN double sl_sample_log(uint64_t total)
{
    double m = (double)total, f, s, z, p;
    uint64_t u;
    int e;

    memcpy(&u, &m, sizeof u);
    e = (int)(u >> 52) - 1023;
    u = (u & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) {
        m = SM_DMUL(m, 0.5);
        e++;
    }
    f = SM_DADD(m, -1.0);
    s = SM_DDIV(f, SM_DADD(m, 1.0));
    z = SM_DMUL(s, s);
    p = 1.0 / 23;
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 21);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 19);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 17);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 15);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 13);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 11);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 9);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 7);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 5);
    p = SM_DADD(SM_DMUL(p, z), 1.0 / 3);
    p = SM_DADD(SM_DMUL(p, z), 1.0);
    return SM_DADD(SM_DMUL((double)(e - SL_SAMPLE_MASS_BITS), 0.6931471805599453),
                   SM_DMUL(SM_DMUL(2.0, s), p));
}

/* The log-probability of logit x, from the largest logit and sl_sample_log() of the total mass; never -0, so that the sign of
 * a logit of 0 has no influence. */
SL_SAMPLE_FN float sl_sample_logprob(float x, float max, double log_total)
{
    return (float)SM_DADD(SM_DADD(SM_DADD((double)x, -(double)max), -log_total), 0.0);
}

#endif
