/* Codes of bounds of int8; see bound_codes.h. */
#include "kernels/cpu/bound_codes.h"

#include <math.h>
#include <string.h>

#include "kernels/formats.h"

enum { GROUP = SL_BOUNDS_GROUP };

/* 2^e for -126 <= e <= 127. */
static float power(int32_t e)
{
    const uint32_t bits = (uint32_t)(e + 127) << 23;
    float v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The smallest x with |v| < 2^x, or less than -126 for subnormal values. */
static int32_t above(float v)
{
    return (int32_t)(sl_f32_bits(v) << 1 >> 24) - 126;
}

static int32_t at_least(int32_t a, int32_t least)
{
    return a > least ? a : least;
}

/* The largest of |v|; a NaN does not count. */
static float largest(const float *v, int32_t n, float most)
{
    for (int32_t i = 0; i < n; i++)
        most = fabsf(v[i]) > most ? fabsf(v[i]) : most;
    return most;
}

/* The integer v, at most `most` from 0; NaN becomes -most. */
static int32_t clamp(float v, float most)
{
    v = v > -most ? v : -most;
    return (int32_t)(v < most ? v : most);
}

static int32_t exponent_of(float most)
{
    const int32_t e = at_least(above(most) - 7, SL_BOUNDS_LEAST);
    return e + (most > SL_BOUNDS_CODE * power(e));
}

void sl_bound_codes_widen(const float *k, int32_t dim, bool first, uint8_t *unit)
{
    const int32_t groups = dim / GROUP;
    int8_t *most_at = (int8_t *)unit, *least_at = most_at + dim;
    uint8_t *exponents = unit + 2 * (int64_t)dim;

    memset(exponents + groups, 0, (size_t)(sl_bounds_unit_bytes(dim, SL_I8) - 2 * (int64_t)dim - groups));
    for (int32_t g = 0; g < groups; g++, k += GROUP, most_at += GROUP, least_at += GROUP) {
        const float old = first ? 1 : power(exponents[g] - 127);
        float most[GROUP], least[GROUP];

        for (int32_t i = 0; i < GROUP; i++) {
            most[i] = first || k[i] > most_at[i] * old ? k[i] : most_at[i] * old;
            least[i] = first || k[i] < least_at[i] * old ? k[i] : least_at[i] * old;
        }
        const int32_t e = exponent_of(largest(least, GROUP, largest(most, GROUP, 0)));
        const float inverse = power(-e);
        for (int32_t i = 0; i < GROUP; i++) {
            most_at[i] = (int8_t)clamp(ceilf(most[i] * inverse), SL_BOUNDS_CODE);
            least_at[i] = (int8_t)clamp(floorf(least[i] * inverse), SL_BOUNDS_CODE);
        }
        exponents[g] = (uint8_t)(e + 127);
    }
}

float sl_bound_query(const float *q, int32_t dim, int16_t *positive, int16_t *negative)
{
    const int32_t x = at_least(above(largest(q, dim, 0)), SL_BOUNDS_LEAST_QUERY);
    const float inverse = power(SL_BOUNDS_DIGITS - x);

    for (int32_t i = 0; i < dim; i++) {
        const int32_t v = clamp(rintf(q[i] * inverse), 1 << SL_BOUNDS_DIGITS);

        positive[i] = (int16_t)(v > 0 ? v : 0);
        negative[i] = (int16_t)(v < 0 ? v : 0);
    }
    return power(x - SL_BOUNDS_DIGITS);
}

float sl_bound_product(const int16_t *positive, const int16_t *negative, float scale, int32_t dim,
                       const uint8_t *unit)
{
    const int8_t *most = (const int8_t *)unit, *least = most + dim;
    float sum = 0;

    for (int32_t g = 0; g < dim / GROUP; g++) {
        int32_t part = 0;

        for (int32_t i = g * GROUP; i < (g + 1) * GROUP; i++)
            part += positive[i] * most[i] + negative[i] * least[i];
        sum += (float)part * power(unit[2 * (int64_t)dim + g] - 127);
    }
    return sum * scale;
}
