/* `sluice bench ship`.. */
#ifndef SL_BENCH_SHIP_SHIP_H
#define SL_BENCH_SHIP_SHIP_H

int sl_bench_ship_main(int argc, char **argv);

#endif
