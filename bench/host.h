/*
 * The host store of the benchmarks of large models: an arena opened by local/open, filled with random valid rows and
 * keys, and registered with the backend. The sl_local owns the arena; sl_bench_host_close() comes before it. One thread
 * (filling starts threads of its own and joins them).
 */
#ifndef SL_BENCH_HOST_H
#define SL_BENCH_HOST_H

#include "local/open.h"

enum { SL_BENCH_SEED = 20261 };

typedef struct sl_bench_host {
    sl_arena *arena; /* the local's */
    sl_backend *be;
    bool readable;                    /* registered with be */
    double populate_s, fill_s, pin_s; /* seconds of each step */
} sl_bench_host;

/* Opens l's store with o, fills it by `threads` threads and registers it. After a failure, close as well. */
sl_status sl_bench_host_open(sl_bench_host *h, sl_local *l, const sl_local_opts *o, int threads, sl_err *err);
void sl_bench_host_close(sl_bench_host *h);
/*
 * Host pages of request i of n: `own` of its last pages are its own; those before belong to it alone while
 * the arena has enough, else (shared) requests take turns at as many sets of pages as there are. pages has
 * per_seq entries. *sets: how many. SL_ERR_EXHAUSTED when the arena is too small.
 */
sl_status sl_bench_host_pages(const sl_bench_host *h, bool shared, int32_t i, int32_t n, int32_t per_seq,
                              int32_t own, int32_t *pages, int32_t *sets, sl_err *err);

#endif
