/*
 * The ranks of a real group as processes of a benchmark: each is forked, opens its backend on the device of its number,
 * enters the group and runs the benchmark, all of them the same steps.
 */
#ifndef SL_BENCH_RANKS_H
#define SL_BENCH_RANKS_H

#include "local/open.h"

typedef struct sl_bench_ranks {
    const char *name, *backend; /* name of the benchmark, for messages */
    int32_t n, threads;
    size_t window_bytes; /* sl_comm_opts.window_bytes */
    /* What a rank runs; c is formed, and the backend is l's. `opts` is the caller's. */
    sl_status (*run)(const void *opts, int32_t rank, sl_local *l, sl_comm *c, sl_err *err);
    const void *opts;
} sl_bench_ranks;

/* Exit code: 0, or SL_EXIT_FAILED if a rank failed, which has written why. No backend may be open. */
int sl_bench_ranks_run(const sl_bench_ranks *r);

#endif
