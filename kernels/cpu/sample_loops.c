/* See sample_loops.h. Each loop is written once and compiled twice: for any machine, and for AVX2 without fused
 * multiply-adds. */
#include "kernels/cpu/sample_loops.h"

#include <float.h>

#include "kernels/sample_math.h"

enum { LANES = 8 };

#define LOOP static inline __attribute__((always_inline))

LOOP float max_of(const float *x, size_t n, bool *bad)
{
    float lane[LANES];
    int wrong[LANES] = {0};
    size_t i = 0;

    for (size_t k = 0; k < LANES; k++)
        lane[k] = -INFINITY;
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

LOOP void weigh(const float *restrict x, size_t n, float max, float inv_t, float *restrict w)
{
    for (size_t i = 0; i < n; i++)
        w[i] = sl_sample_weight(x[i], max, inv_t);
}

LOOP uint64_t total_of(const float *w, size_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += sl_sample_mass(w[i]);
    return sum;
}

LOOP void bins_of(const float *restrict x, size_t n, float max, uint16_t *restrict bin)
{
    for (size_t i = 0; i < n; i++) {
        float d = (max - x[i]) * 32.0f;
        float most = d < (float)(SL_SAMPLE_BINS - 1) ? d : (float)(SL_SAMPLE_BINS - 1);
        bin[i] = (uint16_t)(int32_t)most;
    }
}

LOOP void keep_at_least(const float *restrict x, size_t n, float cut, float min_p, float *restrict w)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i] >= cut ? w[i] : 0.0f;
        w[i] = w[i] >= min_p ? v : 0.0f;
    }
}

LOOP void keep_above(const float *restrict x, size_t n, float cut, float min_p, float *restrict w)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i] > cut ? w[i] : 0.0f;
        w[i] = w[i] >= min_p ? v : 0.0f;
    }
}

LOOP void keep(const float *x, size_t n, float cut, size_t last, float min_p, float *w)
{
    size_t ties = last < n ? last + 1 : n;

    keep_at_least(x, ties, cut, min_p, w);
    keep_above(x + ties, n - ties, cut, min_p, w + ties);
}

#if defined(__x86_64__)
#define TWICE(type, name, loop, declared, passed)                                                            \
    __attribute__((target("avx2"))) static type loop##_avx2 declared                                         \
    {                                                                                                        \
        return loop passed;                                                                                  \
    }                                                                                                        \
    type name declared                                                                                       \
    {                                                                                                        \
        return __builtin_cpu_supports("avx2") ? loop##_avx2 passed : loop passed;                            \
    }
#else
#define TWICE(type, name, loop, declared, passed)                                                            \
    type name declared                                                                                       \
    {                                                                                                        \
        return loop passed;                                                                                  \
    }
#endif

TWICE(float, sl_sample_max, max_of, (const float *x, size_t n, bool *bad), (x, n, bad))
TWICE(void, sl_sample_weigh, weigh, (const float *x, size_t n, float max, float inv_t, float *w),
      (x, n, max, inv_t, w))
TWICE(uint64_t, sl_sample_total, total_of, (const float *w, size_t n), (w, n))
TWICE(void, sl_sample_bins, bins_of, (const float *x, size_t n, float max, uint16_t *bin), (x, n, max, bin))
TWICE(void, sl_sample_keep, keep, (const float *x, size_t n, float cut, size_t last, float min_p, float *w),
      (x, n, cut, last, min_p, w))
