/* Lists in the flags of the benchmarks: what a sweep goes over. */
#ifndef SL_BENCH_LIST_H
#define SL_BENCH_LIST_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_BENCH_LIST_MAX = 8 };

typedef struct sl_bench_list {
    int32_t v[SL_BENCH_LIST_MAX];
    int n;
} sl_bench_list;

/*
 * "a,b,c" -> indices of names (ends with NULL), or whole numbers from least to 2^24 when names is NULL.
 * False when text is anything else, is empty or has more than SL_BENCH_LIST_MAX items.
 */
bool sl_bench_list_parse(const char *text, const char *const *names, int32_t least, sl_bench_list *out);
/* 0 when there is none above it. */
int32_t sl_bench_list_most(const sl_bench_list *l);

#endif
