/*
 * The benchmarks of `sluice bench NAME`: one registry. A benchmark is a folder here with a function that parses its
 * own flags, prints CSV with the machine's facts before it, and returns an exit code of base/args.h; its row is in
 * benches.c, its library in CMakeLists.txt.
 */
#ifndef SL_BENCH_BENCH_H
#define SL_BENCH_BENCH_H

typedef struct sl_bench {
    const char *name, *help;
    int (*run)(int argc, char **argv); /* argv[0]: what its messages call it */
} sl_bench;

/* Ends with an empty row. */
extern const sl_bench sl_benches[];

#endif
