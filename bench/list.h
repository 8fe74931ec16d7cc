/* Comma-separated lists in the flags of the benchmarks: the values that a sweep runs through. */
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
 * Parses "a,b,c" into indices into names (terminated by NULL), or into whole numbers from least to 2^24 when names is
 * NULL. False when an item is neither, when text is empty, or when it has more than SL_BENCH_LIST_MAX items.
 */
bool sl_bench_list_parse(const char *text, const char *const *names, int32_t least, sl_bench_list *out);
/*
 * sl_bench_list_parse() for the value of a flag. On failure it prints what the flag takes to stderr. command: "bench x";
 * flag: without the dashes.
 */
bool sl_bench_list_flag(const char *command, const char *flag, const char *text, const char *const *names,
                        int32_t least, sl_bench_list *out);
/* The largest number of the list; 0 when none is positive. */
int32_t sl_bench_list_most(const sl_bench_list *l);

#endif
