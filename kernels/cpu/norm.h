/* Small functions of float32 that several ops of the CPU backend share: the inverse of a root mean square, and the sigmoid. Pure. */
#ifndef SL_KERNELS_CPU_NORM_H
#define SL_KERNELS_CPU_NORM_H

#include <math.h>
#include <stdint.h>

/* 1 / sqrt(mean(x^2) + eps); the squares are summed in double, in their order. */
static inline float sl_inverse_rms(const float *x, int32_t n, float eps)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(sum / n + (double)eps));
}

static inline float sl_sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

#endif
