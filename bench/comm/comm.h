/*
 * Benchmark of the collectives of a group (collectives/comm.h), with the shapes of expert parallelism. It forks one process
 * per rank; on GPUs rank r takes device r. CSV to stdout, one line per collective and number of tokens:
 *
 *   what,way,ranks,tokens,row_bytes,cap,rows_out,bytes_out,us,GB/s,limit_us,ratio
 *
 *   way           shared memory, then sockets over the loopback interface; on GPUs the group's own choice (windows, where
 *                 every rank can map the others'), then NCCL alone
 *
 * The collectives (column `what`):
 *
 *   dispatch      all-to-all: a token's quantised row (values and scales) goes once to every rank that has one of its
 *                 experts, which are drawn at random; cap = tokens
 *   combine       all-to-all: one bf16 row comes back for every row of the dispatch; cap = tokens
 *   combine_each  all-to-all: one bf16 row comes back for every expert of a token, because the token's own rank adds
 *                 them in the order of experts; cap = tokens * min(top_k, experts)
 *   all_gather    one quantised row per token goes to every rank
 *   barrier
 *   agree         sl_comm_agree() of 8 bytes, as the ranks do it at the beginning of a step; never in a graph. Goal: under
 *                 20 us
 *
 * Shapes whose buffers exceed --most-bytes on a rank are left out.
 *
 * rows_out and bytes_out: what rank 0 sends to others. us: median time of one collective on rank 0, in a graph of
 * --inner of them where the backend has graphs. limit_us = bytes_out over the link's rate (--link-gbs; the H200's
 * default is what a copy kernel reaches over NVLink, the CPU's is measured: one memcpy). ratio = us / limit_us.
 */
#ifndef SL_BENCH_COMM_COMM_H
#define SL_BENCH_COMM_COMM_H

/* Returns an exit code: 0; 1 for a failure; 2 for wrong usage; 77 if this machine or build lacks the backend or has too
 * few devices. */
int sl_bench_comm_main(int argc, char **argv);

#endif
