/*
 * `sluice bench transport`: bandwidth and latency of puts, gets and messages by size, between this process
 * and a child it forks (or a peer elsewhere: --serve there, --connect here). Prints CSV to stdout, the
 * machine's facts as comment lines before it. Call it before anything created a transport in this process:
 * the child is made by fork.
 */
#ifndef SL_BENCH_TRANSPORT_TRANSPORT_H
#define SL_BENCH_TRANSPORT_TRANSPORT_H

/* argv[0] is the name to print in usage. Returns a process exit code: 0, 1 (failed) or 2 (usage). */
int sl_bench_transport_main(int argc, char **argv);

#endif
