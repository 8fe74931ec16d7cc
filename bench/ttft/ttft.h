/*
 * `sluice bench ttft`: the time to the first token (TTFT) of a cluster, compared with that of the same engine in one
 * process. Prints the machine's facts and CSV to stdout. Call it before a transport exists in this process, because it
 * forks.
 */
#ifndef SL_BENCH_TTFT_TTFT_H
#define SL_BENCH_TTFT_TTFT_H

/* Returns a process exit code: 0, 1 (failed) or 2 (usage). */
int sl_bench_ttft_main(int argc, char **argv);

#endif
