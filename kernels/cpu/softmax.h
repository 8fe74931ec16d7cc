/*
 * The running softmax of attention, one head at a time: blocks of rows are added in list order, and the sum so far is
 * scaled down whenever a block raises the maximum. Inline helper of the CPU backend's attention ops, which therefore
 * add in the same order. Pure.
 */
#ifndef SL_KERNELS_CPU_SOFTMAX_H
#define SL_KERNELS_CPU_SOFTMAX_H

#include <math.h>

#include "kernels/cpu/vec.h"

/*
 * Adds one block of n rows: s[n] holds the products q . k and becomes the weights; rows[n][ld] are the values, of which
 * the first `width` count; o[width] is the sum so far. Before the first block: *max = -INFINITY, *sum = 0, o = 0.
 */
static inline void sl_softmax_block(float scale, int32_t n, float *s, const float *rows, int32_t ld,
                                    int32_t width, float *max, float *sum, float *o)
{
    float top = *max, keep;

    for (int32_t j = 0; j < n; j++) {
        s[j] *= scale;
        top = s[j] > top ? s[j] : top;
    }
    keep = expf(*max - top); /* 0 for the first block: its maximum was -inf */
    if (keep != 1.0f) {
        *sum *= keep;
        for (int32_t i = 0; i < width; i++)
            o[i] *= keep;
    }
    *max = top;
    for (int32_t j = 0; j < n; j++) {
        s[j] = expf(s[j] - top);
        *sum += s[j];
    }
    sl_vec_axpy(o, width, s, rows, ld, n);
}

#endif
