/*
 * `sluice bench ttft`: time to the first token through a cluster, compared with the same engine in one process.
 * Prints CSV to stdout with the machine's facts before it. Call it before anything created a transport in
 * this process.
 */
#ifndef SL_BENCH_TTFT_TTFT_H
#define SL_BENCH_TTFT_TTFT_H

/* Returns a process exit code: 0, 1 (failed) or 2 (usage). */
int sl_bench_ttft_main(int argc, char **argv);

#endif
