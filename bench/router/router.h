/*
 * `sluice bench router`: what the router adds. A real router and mock workers in one process, a client on its
 * own thread that speaks HTTP or gRPC over loopback TCP, and a CSV with the machine's facts in front.
 *
 * The mocks answer after the times they are given, so "added" is the measured time less those. It does not
 * measure a model.
 */
#ifndef SL_BENCH_ROUTER_ROUTER_H
#define SL_BENCH_ROUTER_ROUTER_H

/*
 * Arguments (argv[0] is ignored): --requests N, --streams N, --tokens N, --step-us N, --prompt-tokens N,
 * --transport loopback|ucx, --out FILE. Writes the CSV to stdout or FILE, progress to stderr. Returns an exit
 * code.
 */
int sl_bench_router_main(int argc, char **argv);

#endif
