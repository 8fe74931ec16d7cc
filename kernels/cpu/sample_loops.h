/* The loops over a whole row of logits in SL_OP_SAMPLE, with the vector instructions of the machine; the same bits without
 * them, because every operation is rounded by itself and sums are sums of whole numbers. */
#ifndef SL_KERNELS_CPU_SAMPLE_LOOPS_H
#define SL_KERNELS_CPU_SAMPLE_LOOPS_H

#include "base/status.h"

/* The largest of n >= 1 values; *bad: one of them is NaN or +inf. */
float sl_sample_max(const float *x, size_t n, bool *bad);
/* w[i] = sl_sample_weight(x[i], max, inv_t). */
void sl_sample_weigh(const float *x, size_t n, float max, float inv_t, float *w);
/* The sum of the masses of n weights. */
uint64_t sl_sample_total(const float *w, size_t n);
/* bin[i] = sl_sample_bin(x[i], max). */
void sl_sample_bins(const float *x, size_t n, float max, uint16_t *bin);
/* w[i] = 0 where x[i] < cut, or x[i] <= cut for i > last, or w[i] < min_p. */
void sl_sample_keep(const float *x, size_t n, float cut, size_t last, float min_p, float *w);

#endif
