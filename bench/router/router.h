/*
 * `sluice bench router`: the latency that the router adds and the requests per second that it handles. A real router
 * and mock workers run in one process; a client on its own thread sends requests by HTTP or gRPC over loopback TCP.
 *
 * The mock workers answer after a given time, so "added" is the measured time less this time. No model runs.
 */
#ifndef SL_BENCH_ROUTER_ROUTER_H
#define SL_BENCH_ROUTER_ROUTER_H

/* Writes the machine's facts and CSV to stdout or to the file of --out, progress to stderr. Returns an exit code. */
int sl_bench_router_main(int argc, char **argv);

#endif
