/*
 * The AVX2 + FMA versions of the inner loops (kernels/cpu/vec_avx2.h): tiles of dot products in registers, weighted sums of
 * rows, conversions. The order of additions is that of vec.h.
 */
#include "kernels/cpu/vec_avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static inline float reduce(__m256 v)
{
    __m128 s =
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); /* l0+l4 l1+l5 l2+l6 l3+l7 */

    s = _mm_add_ps(s, _mm_movehl_ps(s, s)); /* (l0+l4)+(l2+l6)  (l1+l5)+(l3+l7) */
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

AVX2 static inline __m256i tail_mask(int32_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* R weight rows by C tokens, all sums in registers. Always inlined with constant R and C. */
AVX2 static inline __attribute__((always_inline)) void tile(const sl_dot_job *j, int32_t r0, int32_t t0,
                                                            const int R, const int C)
{
    __m256 acc[12], a[4];
    const float *w[8], *x[4];
    int32_t k = 0;

    for (int i = 0; i < R * C; i++)
        acc[i] = _mm256_setzero_ps();
    for (int r = 0; r < R; r++)
        w[r] = j->w + (r0 + r) * j->ld_w;
    for (int c = 0; c < C; c++)
        x[c] = j->x + (t0 + c) * j->ld_x;
    for (; k + 8 <= j->n; k += 8) {
        for (int c = 0; c < C; c++)
            a[c] = _mm256_loadu_ps(x[c] + k);
        for (int r = 0; r < R; r++) {
            __m256 b = _mm256_loadu_ps(w[r] + k);

            for (int c = 0; c < C; c++)
                acc[r * C + c] = _mm256_fmadd_ps(b, a[c], acc[r * C + c]);
        }
    }
    if (k < j->n) {
        __m256i m = tail_mask(j->n - k);

        for (int c = 0; c < C; c++)
            a[c] = _mm256_maskload_ps(x[c] + k, m);
        for (int r = 0; r < R; r++) {
            __m256 b = _mm256_maskload_ps(w[r] + k, m);

            for (int c = 0; c < C; c++)
                acc[r * C + c] = _mm256_fmadd_ps(b, a[c], acc[r * C + c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            sl_vec_put(j, r0 + r, t0 + c, reduce(acc[r * C + c]));
}

AVX2 static void tile_4x3(const sl_dot_job *j, int32_t r, int32_t t)
{
    tile(j, r, t, 4, 3);
}

AVX2 static void tile_4x2(const sl_dot_job *j, int32_t r, int32_t t)
{
    tile(j, r, t, 4, 2);
}

AVX2 static void tile_2x4(const sl_dot_job *j, int32_t r, int32_t t)
{
    tile(j, r, t, 2, 4);
}

AVX2 static void tile_8x1(const sl_dot_job *j, int32_t r, int32_t t)
{
    tile(j, r, t, 8, 1);
}

AVX2 static void tile_1x1(const sl_dot_job *j, int32_t r, int32_t t)
{
    tile(j, r, t, 1, 1);
}

void sl_vec_avx2_dots(const sl_dot_job *j)
{
    int32_t r = 0;

    if (j->tokens == 1)
        for (; r + 8 <= j->rows; r += 8)
            tile_8x1(j, r, 0);
    for (; r + 4 <= j->rows; r += 4) {
        int32_t t = 0;

        for (; t + 3 <= j->tokens && t + 4 != j->tokens; t += 3)
            tile_4x3(j, r, t);
        for (; t + 2 <= j->tokens; t += 2)
            tile_4x2(j, r, t);
        for (; t < j->tokens; t++)
            for (int i = 0; i < 4; i++)
                tile_1x1(j, r + i, t);
    }
    for (; r < j->rows; r++) {
        int32_t t = 0;

        if (r + 2 <= j->rows)
            for (; t + 4 <= j->tokens; t += 4)
                tile_2x4(j, r, t);
        for (int32_t u = t; u < j->tokens; u++)
            tile_1x1(j, r, u);
        if (r + 2 <= j->rows) {
            for (int32_t u = t; u < j->tokens; u++)
                tile_1x1(j, r + 1, u);
            r++;
        }
    }
}

AVX2 void sl_vec_avx2_axpy(float *out, int32_t n, const float *p, const float *rows, int64_t ld,
                           int32_t count)
{
    int32_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m256 a0 = _mm256_loadu_ps(out + i), a1 = _mm256_loadu_ps(out + i + 8);
        __m256 a2 = _mm256_loadu_ps(out + i + 16), a3 = _mm256_loadu_ps(out + i + 24);

        for (int32_t j = 0; j < count; j++) {
            __m256 w = _mm256_set1_ps(p[j]);
            const float *row = rows + j * ld + i;

            a0 = _mm256_fmadd_ps(w, _mm256_loadu_ps(row), a0);
            a1 = _mm256_fmadd_ps(w, _mm256_loadu_ps(row + 8), a1);
            a2 = _mm256_fmadd_ps(w, _mm256_loadu_ps(row + 16), a2);
            a3 = _mm256_fmadd_ps(w, _mm256_loadu_ps(row + 24), a3);
        }
        _mm256_storeu_ps(out + i, a0);
        _mm256_storeu_ps(out + i + 8, a1);
        _mm256_storeu_ps(out + i + 16, a2);
        _mm256_storeu_ps(out + i + 24, a3);
    }
    for (; i < n; i += 8) {
        __m256i m = tail_mask(n - i);
        __m256 a = _mm256_maskload_ps(out + i, m);

        for (int32_t j = 0; j < count; j++)
            a = _mm256_fmadd_ps(_mm256_set1_ps(p[j]), _mm256_maskload_ps(rows + j * ld + i, m), a);
        _mm256_maskstore_ps(out + i, m, a);
    }
}

AVX2 int64_t sl_vec_avx2_load_e4m3(const uint8_t *in, int64_t n, float *out)
{
    const __m256i low = _mm256_set1_epi32(0x7f), bias = _mm256_set1_epi32(120 << 23),
                  eight = _mm256_set1_epi32(8);
    const __m256i nan = _mm256_set1_epi32(0x7fc00000);
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(in + i)));
        __m256i mag = _mm256_and_si256(code, low),
                sign = _mm256_slli_epi32(_mm256_andnot_si256(low, code), 24);
        __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(mag, 20), bias);
        __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(mag), _mm256_set1_ps(0x1p-9f));

        bits = _mm256_blendv_epi8(bits, _mm256_castps_si256(small), _mm256_cmpgt_epi32(eight, mag));
        bits = _mm256_blendv_epi8(bits, nan, _mm256_cmpeq_epi32(mag, low));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_or_si256(bits, sign)));
    }
    return i;
}

AVX2 int64_t sl_vec_avx2_load_bf16(const uint16_t *in, int64_t n, float *out)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(in + i)));

        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    return i;
}
#endif
