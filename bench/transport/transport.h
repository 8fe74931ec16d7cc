/*
 * `sluice bench transport`: bandwidth and latency of puts, gets and messages by size, between this process and a child
 * that it forks, or a peer on another machine, which is started with --serve. Prints the machine's facts and CSV to
 * stdout. Call it before a transport exists in this process, because it forks.
 */
#ifndef SL_BENCH_TRANSPORT_TRANSPORT_H
#define SL_BENCH_TRANSPORT_TRANSPORT_H

/* argv[0]: the name in the help. Returns a process exit code: 0, 1 (failed) or 2 (usage). */
int sl_bench_transport_main(int argc, char **argv);

#endif
