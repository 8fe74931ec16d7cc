/* `sluice bench ship`. Internal to cli/. */
#ifndef SL_CLI_BENCH_SHIP_H
#define SL_CLI_BENCH_SHIP_H

int sl_bench_ship_main(int argc, char **argv);

#endif
