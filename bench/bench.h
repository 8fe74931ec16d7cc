/*
 * The registry of the benchmarks that `sluice bench NAME` runs. A benchmark is a folder of this room with a function
 * that parses its own flags, prints the machine's facts and then CSV, and returns an exit code of base/args.h. Its row
 * is in benches.c, its library in CMakeLists.txt.
 */
#ifndef SL_BENCH_BENCH_H
#define SL_BENCH_BENCH_H

typedef struct sl_bench {
    const char *name, *help, *example;
    int (*run)(int argc, char **argv); /* argv[0]: the name that its messages begin with */
} sl_bench;

/* Ends with an empty row. */
extern const sl_bench sl_benches[];

#endif
