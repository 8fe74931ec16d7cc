/*
 * Micro-benchmark of the swap-in: how fast the misses of the hot buffers are found and fetched, compared with the time
 * of copying the same rows.
 *
 * One run simulates the decode steps of a batch of hierarchical requests in one layer. Each step selects k tokens per
 * request, of which a given share was not selected in the step before, and runs SL_OP_RESOLVE and SL_OP_GATHER. Then it
 * fetches the same rows again without resolving: on unified backends with one memcpy per row, in the order of the list,
 * on one thread; on the others with one contiguous copy of the same number of bytes from host memory, which is the
 * limit of the link. The CPU caches are overwritten before each of the two. Prints CSV to stdout or a file, one line
 * per policy:
 *
 *   backend,policy,requests,tokens,k,hot_rows,row_bytes,misses_per_step,resolve_us,gather_us,checked_us,copy_us,rows_per_s,ratio
 *
 * checked_us is the gather of the same rows once more, each of which is compared with its checksum (kvstore.verify
 * rows). ratio = (resolve + gather) / copy; rows_per_s = missed rows / (resolve + gather). The rows that the last step
 * gathered are compared with their source; a difference is an error.
 */
#ifndef SL_BENCH_SWAPIN_SWAPIN_H
#define SL_BENCH_SWAPIN_SWAPIN_H

/* Returns an exit code: 0; 1 for a failure; 2 for wrong usage; 77 if this machine or build lacks the backend. */
int sl_bench_swapin_main(int argc, char **argv);

#endif
