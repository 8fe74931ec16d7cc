/* What the loops for dot products are given, in every version of them (vec.c, vec_avx2.c). */
#ifndef SL_KERNELS_CPU_DOTS_H
#define SL_KERNELS_CPU_DOTS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * out[t * ld_out + r] = dot(w + r * ld_w, x + t * ld_x, n), r < rows, t < tokens. When acc is set:
 * out += dot * (scale_x[t * ld_scale_x] * scale_w) instead (block-scaled fp8; product and sum rounded
 * separately).
 */
typedef struct sl_dot_job {
    const float *w, *x;
    float *out;
    int64_t ld_w, ld_x, ld_out;
    int32_t rows, tokens, n;
    bool acc;
    const float *scale_x;
    int64_t ld_scale_x;
    float scale_w;
} sl_dot_job;

#endif
