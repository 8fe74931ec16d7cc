/*
 * The AVX2 loops of kernels/cpu/vec.c. They are compiled without sanitizers, which would make the tests of whole
 * engines several times longer: vec.c tells the sanitizer which ranges each call reads and writes, and
 * test_kernels_vec runs every loop with operands that end where a page without access begins.
 *
 * Pure functions, any thread, on machines with AVX2 and FMA only; nothing outside vec.c calls them.
 */
#ifndef SL_KERNELS_CPU_VEC_AVX2_H
#define SL_KERNELS_CPU_VEC_AVX2_H

#include "kernels/cpu/dots.h"

/* Where the dot of row r and token t goes; both versions of the loops end here. */
static inline void sl_vec_put(const sl_dot_job *j, int32_t r, int32_t t, float dot)
{
    float *out = &j->out[t * j->ld_out + r];

    if (j->acc)
        *out += dot * (j->scale_x[t * j->ld_scale_x] * j->scale_w);
    else
        *out = dot;
}

void sl_vec_avx2_dots(const sl_dot_job *job);
void sl_vec_avx2_axpy(float *out, int32_t n, const float *p, const float *rows, int64_t ld, int32_t count);
/* Converts whole groups of eight; returns how many values that are. */
int64_t sl_vec_avx2_load_e4m3(const uint8_t *in, int64_t n, float *out);
int64_t sl_vec_avx2_load_bf16(const uint16_t *in, int64_t n, float *out);

#endif
