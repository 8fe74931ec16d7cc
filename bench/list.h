/* Lists in the flags of the benchmarks: what a sweep goes over. */
#ifndef SL_BENCH_LIST_H
#define SL_BENCH_LIST_H

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_LIST = 8 };

typedef struct bench_list {
    int32_t v[BENCH_LIST];
    int n;
} bench_list;

/* Row formats in the order of sl_row_format, NULL behind the last. */
extern const char *const bench_row_names[];

/*
 * "a,b,c" -> indices of names (NULL behind the last), or whole numbers from least to 2^24 when names is NULL.
 * False when text is anything else, is empty or has more than BENCH_LIST items.
 */
bool bench_list_parse(const char *text, const char *const *names, int32_t least, bench_list *out);
/* 0 when there is none above it. */
int32_t bench_list_most(const bench_list *l);

#endif
