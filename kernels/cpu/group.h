/*
 * Bounds that are rounded outward, and their reduction: the scores that the query heads sharing a list give become one score per block or token (sl_group_reduce). Inline
 * helpers of the CPU backend's scoring ops. Pure.
 */
#ifndef SL_KERNELS_CPU_GROUP_H
#define SL_KERNELS_CPU_GROUP_H

#include <math.h>
#include <stddef.h>

#include "kernels/bounds.h"
#include "kernels/formats.h"

/* The smallest bf16 value that is not below f, and the largest that is not above it. */
static inline uint16_t sl_bf16_up(float f)
{
    uint32_t u = sl_f32_bits(f), cut = u >> 16;

    return (uint16_t)(cut + (u >> 31 == 0 && (u & 0xffff) != 0));
}

static inline uint16_t sl_bf16_down(float f)
{
    uint32_t u = sl_f32_bits(f), cut = u >> 16;

    return (uint16_t)(cut + (u >> 31 == 1 && (u & 0xffff) != 0));
}

/* x = softmax of scale * x. */
static inline void sl_group_softmax(float *x, int32_t n, float scale)
{
    float top = -INFINITY;
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int32_t i = 0; i < n; i++) {
        x[i] = expf(scale * (x[i] - top));
        sum += (double)x[i];
    }
    for (int32_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / sum);
}

/* The order of scores as unsigned keys: larger score, larger key; NaN is 0, below -inf; -0.0 is 0.0. */
static inline uint32_t sl_score_key(float score)
{
    uint32_t u = sl_f32_bits(score);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    if (u == 0x80000000u)
        u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Words of scratch that sl_group_add needs for n scores; 0: none. */
static inline size_t sl_group_words(sl_group_reduce how, int32_t n)
{
    return how == SL_GROUP_UNION ? 4 * (size_t)n : 0;
}

/* x = minus the place of x among the n scores, by the order of SL_GROUP_UNION. own: 4 * n words. In group.c. */
void sl_group_places(float *x, int32_t n, uint32_t *own);

/* Adds the scores of one query to those of the list, and changes `each`; first: the list has no scores yet. own:
 * sl_group_words() of scratch. */
static inline void sl_group_add(sl_group_reduce how, float scale, float *each, int32_t n, bool first,
                                uint32_t *own, float *out)
{
    if (how == SL_GROUP_SOFTMAX)
        sl_group_softmax(each, n, scale);
    if (how == SL_GROUP_UNION)
        sl_group_places(each, n, own);
    for (int32_t i = 0; i < n; i++) {
        if (first)
            out[i] = each[i];
        else if (how == SL_GROUP_MAX || how == SL_GROUP_UNION)
            out[i] = each[i] > out[i] ? each[i] : out[i];
        else
            out[i] += each[i];
    }
}

/* The mean of the queries of a group: out[i] = mean over h of q[h * dim + i]. */
static inline void sl_group_mean(const float *q, int32_t group, int32_t dim, float *out)
{
    for (int32_t i = 0; i < dim; i++) {
        float sum = 0;

        for (int32_t h = 0; h < group; h++)
            sum += q[(int64_t)h * dim + i];
        out[i] = sum / (float)group;
    }
}

#endif
