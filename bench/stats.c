/* Implementation of stats.h. */
#include "bench/stats.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sl_bench_sort(double *v, size_t n)
{
    if (n > 0)
        qsort(v, n, sizeof *v, by_value);
}

double sl_bench_median(double *v, size_t n)
{
    sl_bench_sort(v, n);
    if (n == 0)
        return 0;
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
