/*
 * Micro-benchmark of the swap-in: how fast misses of the hot buffers are found and fetched, compared
 * with what copying alone costs.
 *
 * One run simulates decode steps of a batch of hierarchical requests in one layer. Each step selects k tokens
 * per request, of which a given share is new since the last step, runs SL_OP_RESOLVE and SL_OP_GATHER, and
 * afterwards fetches the very same rows without any residency: by memcpy row by row in list order on one
 * thread (unified backends), or as one contiguous copy from host memory of as many bytes (others: the link's
 * limit). The caches are swept before either. CSV to stdout or a file, one line per policy:
 *
 *   backend,policy,requests,tokens,k,hot_rows,row_bytes,misses_per_step,resolve_us,gather_us,copy_us,rows_per_s,ratio
 *
 * ratio = (resolve + gather) / copy; rows_per_s counts missed rows over resolve + gather. Every gathered row
 * is checked against its source once at the end; a difference is an error.
 */
#ifndef SL_BENCH_SWAPIN_SWAPIN_H
#define SL_BENCH_SWAPIN_SWAPIN_H

/* Program entry: options [--backend cpu] [--threads N] [--requests N] [--tokens N] [--k N] [--hot-rows N]
 * [--row-bytes N]
 * [--fresh PERCENT] [--steps N] [--csv FILE]. Returns an exit code: 0, 1 failure, 2 usage, 77 no such backend
 * here. */
int sl_bench_swapin_main(int argc, char **argv);

#endif
