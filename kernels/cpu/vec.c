/*
 * Canonical dot products, weighted row sums and conversions (kernels/cpu/vec.h), in two versions: AVX2 + FMA
 * intrinsics (vec_avx2.c), chosen at run time, and portable C with fmaf. Both produce the same bits; a test compares
 * them. This file also tells the sanitizers what each call reads and writes, because vec_avx2.c is compiled without.
 */
#include "kernels/cpu/vec.h"

#include <math.h>
#include <string.h>

#include "base/sanitize.h"
#include "kernels/cpu/vec_avx2.h"
#include "kernels/formats.h"

#if defined(__x86_64__)
#define HAVE_AVX2 1
#endif

static bool force_portable;

void sl_vec_force_portable(bool on)
{
    force_portable = on;
}

static bool use_avx2(void)
{
#ifdef HAVE_AVX2
    return !force_portable && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

const char *sl_vec_kind(void)
{
    return use_avx2() ? "avx2" : "portable";
}

/* ---- portable ---- */

static float dot_portable(const float *a, const float *b, int32_t n)
{
    float l[8] = {0};

    for (int32_t k = 0; k < n; k++)
        l[k & 7] = fmaf(a[k], b[k], l[k & 7]);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

static void dots_portable(const sl_dot_job *j)
{
    for (int32_t r = 0; r < j->rows; r++)
        for (int32_t t = 0; t < j->tokens; t++)
            sl_vec_put(j, r, t, dot_portable(j->w + r * j->ld_w, j->x + t * j->ld_x, j->n));
}

static void axpy_portable(float *out, int32_t n, const float *p, const float *rows, int64_t ld, int32_t count)
{
    for (int32_t j = 0; j < count; j++)
        for (int32_t i = 0; i < n; i++)
            out[i] = fmaf(p[j], rows[j * ld + i], out[i]);
}

/* By arithmetic: codes below 8 are multiples of 2^-9, the others only need another exponent bias. */
static void load_e4m3_portable(const uint8_t *in, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t mag = in[i] & 0x7fu, bits = (mag << 20) + (120u << 23);
        float small = (float)(int32_t)mag * 0x1p-9f;

        if (mag < 8)
            memcpy(&bits, &small, 4);
        if (mag == 0x7f)
            bits = 0x7fc00000u;
        bits |= (in[i] & 0x80u) << 24;
        memcpy(&out[i], &bits, 4);
    }
}

/* `count` arrays of n floats, ld apart; in one piece where nothing lies between them. */
static void will_read(const float *at, int64_t count, int64_t ld, int64_t n)
{
    if (ld == n)
        sl_will_read(at, 4 * (size_t)(count * n));
    else
        for (int64_t i = 0; i < count; i++)
            sl_will_read(at + i * ld, 4 * (size_t)n);
}

void sl_vec_load_e4m3(const uint8_t *in, int64_t n, float *out)
{
    int64_t i = 0;

#ifdef HAVE_AVX2
    if (use_avx2()) {
        sl_will_read(in, (size_t)n);
        sl_will_write(out, 4 * (size_t)n);
        i = sl_vec_avx2_load_e4m3(in, n, out);
    }
#endif
    load_e4m3_portable(in + i, n - i, out + i);
}

void sl_vec_load_bf16(const uint16_t *in, int64_t n, float *out)
{
    int64_t i = 0;

#ifdef HAVE_AVX2
    if (use_avx2()) {
        sl_will_read(in, 2 * (size_t)n);
        sl_will_write(out, 4 * (size_t)n);
        i = sl_vec_avx2_load_bf16(in, n, out);
    }
#endif
    for (; i < n; i++)
        out[i] = sl_bf16_to_f32(in[i]);
}

#ifdef HAVE_AVX2
static void dots_avx2(const sl_dot_job *j)
{
    will_read(j->w, j->rows, j->ld_w, j->n);
    will_read(j->x, j->tokens, j->ld_x, j->n);
    for (int32_t t = 0; t < j->tokens; t++) {
        sl_will_write(j->out + t * j->ld_out, 4 * (size_t)j->rows);
        if (j->acc)
            sl_will_read(j->scale_x + t * j->ld_scale_x, 4);
    }
    sl_vec_avx2_dots(j);
}
#endif

void sl_vec_dots(const sl_dot_job *job)
{
#ifdef HAVE_AVX2
    if (use_avx2()) {
        dots_avx2(job);
        return;
    }
#endif
    dots_portable(job);
}

void sl_vec_axpy(float *out, int32_t n, const float *p, const float *rows, int64_t ld, int32_t count)
{
#ifdef HAVE_AVX2
    if (use_avx2()) {
        sl_will_read(p, 4 * (size_t)count);
        will_read(rows, count, ld, n);
        sl_will_write(out, 4 * (size_t)n);
        sl_vec_avx2_axpy(out, n, p, rows, ld, count);
        return;
    }
#endif
    axpy_portable(out, n, p, rows, ld, count);
}
