/* Order statistics of samples, for every benchmark. Plain functions; any thread. */
#ifndef SL_BENCH_STATS_H
#define SL_BENCH_STATS_H

#include <stddef.h>

/* Sorts v[0..n) in ascending order; n may be 0, v may then be NULL. */
void sl_bench_sort(double *v, size_t n);
/* The median of n samples (of an even number: the mean of the middle two; of none: 0). Sorts v. */
double sl_bench_median(double *v, size_t n);

#endif
