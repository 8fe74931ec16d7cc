/*
 * The inner loops of the CPU backend, and the order of summation that makes results independent of batching.
 *
 * The canonical dot product of n floats: eight lanes; lane l sums a[k] * b[k] for k = l, l + 8, l + 16, …
 * with one fused multiply-add each, starting from 0; then ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)).
 * Every (row, token) pair has its own lanes, so tiles of any shape give the same bits, and so do machines
 * with and without AVX2 (the portable version calls fmaf, slowly). This is why linear does not go through a
 * BLAS: its rounding depends on the shape of the call. (OpenBLAS called with one fixed shape, 8 tokens at a
 * time, would be invariant too, and slower on the shapes of real checkpoints: tests/bench/matmul.c measures.)
 *
 * sl_vec_axpy sums in the order of rows: out[i] = fma(p[j], rows[j][i], out[i]) for j = 0, 1, …
 *
 * Pure functions, any thread. Pointers need only float alignment.
 */
#ifndef SL_KERNELS_CPU_VEC_H
#define SL_KERNELS_CPU_VEC_H

#include "kernels/cpu/dots.h"
#include "kernels/params.h"

void sl_vec_dots(const sl_dot_job *job);

/* `count` rows of floats, at a stride of ld. */
typedef struct sl_vec_rows {
    const float *at;
    int64_t ld;
    int32_t count;
} sl_vec_rows;

/* out[t * ld_out + r] = dot of row r of w and row t of x, of n values each. */
static inline void sl_vec_products(sl_vec_rows w, sl_vec_rows x, int32_t n, float *out, int64_t ld_out)
{
    sl_vec_dots(&(sl_dot_job){.w = w.at,
                              .x = x.at,
                              .out = out,
                              .ld_w = w.ld,
                              .ld_x = x.ld,
                              .ld_out = ld_out,
                              .rows = w.count,
                              .tokens = x.count,
                              .n = n});
}

/* out[i] += sum over j of p[j] * rows[j * ld + i], i < n, j ascending. */
void sl_vec_axpy(float *out, int32_t n, const float *p, const float *rows, int64_t ld, int32_t count);
/* out[i] = the value of e4m3 code in[i]; NaN codes give NaN with the code's sign. */
void sl_vec_load_e4m3(const uint8_t *in, int64_t n, float *out);
/* The same for bf16. */
void sl_vec_load_bf16(const uint16_t *in, int64_t n, float *out);
/* "avx2" or "portable": for the start log and the tests. */
const char *sl_vec_kind(void);
/* Tests: use the portable loops even where AVX2 exists. Not thread-safe; set before any op runs. */
void sl_vec_force_portable(bool on);

#endif
