/*
 * `sluice bench ship`: how fast the rows of a prefilled chunk reach the store of another process, by each shipping
 * path. Call it before a transport exists in this process, because it forks.
 */
#ifndef SL_BENCH_SHIP_SHIP_H
#define SL_BENCH_SHIP_SHIP_H

/* Returns an exit code of base/args.h. Prints the machine's facts and CSV to stdout. */
int sl_bench_ship_main(int argc, char **argv);

#endif
