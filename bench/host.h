/*
 * The host store of the benchmarks that run large models: an arena opened by local/open.h, filled with random valid
 * rows and keys, and registered with the backend. The sl_local owns the arena, so call sl_bench_host_close() before
 * the model is closed. One thread; filling starts more threads and joins them.
 */
#ifndef SL_BENCH_HOST_H
#define SL_BENCH_HOST_H

#include "local/open.h"

enum { SL_BENCH_SEED = 20261 };

typedef struct sl_bench_host {
    sl_arena *arena; /* owned by the sl_local */
    sl_backend *be;
    bool readable;                    /* the arena is registered with be */
    sl_row_sums *sums;                /* of its rows, once sl_bench_host_sums() was called */
    double populate_s, fill_s, pin_s; /* duration of each step in seconds */
} sl_bench_host;

/*
 * Opens the store of l with the options o, fills it with `threads` threads and registers it. sl_bench_host_close() must
 * be called after a failure, too.
 */
sl_status sl_bench_host_open(sl_bench_host *h, sl_local *l, const sl_local_opts *o, int threads, sl_err *err);
void sl_bench_host_close(sl_bench_host *h);
/* Makes checksums of all rows, h->sums, if there are none yet. */
sl_status sl_bench_host_sums(sl_bench_host *h, int threads, sl_err *err);
/*
 * Chooses the host pages of request i of n. Its last `own` pages always belong to this request alone. The pages before
 * them belong to it alone as long as the arena is large enough; otherwise, and only if `shared`, the arena holds fewer
 * sets of such pages than requests, and request i uses set i modulo *sets. pages has per_seq entries; *sets receives
 * the number of sets. SL_ERR_EXHAUSTED when the arena is too small.
 */
sl_status sl_bench_host_pages(const sl_bench_host *h, bool shared, int32_t i, int32_t n, int32_t per_seq,
                              int32_t own, int32_t *pages, int32_t *sets, sl_err *err);

#endif
