/* The file that a benchmark's --csv names, next to the table on stdout. One thread. */
#ifndef SL_BENCH_CSV_H
#define SL_BENCH_CSV_H

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

/*
 * Creates the file; *out is NULL when path is NULL. On failure prints the reason and returns false. command: "bench x".
 */
bool sl_bench_csv_open(const char *command, const char *path, FILE **out);
/*
 * Ends the benchmark: closes csv (may be NULL), prints the failure st with err, or that the file could not be written,
 * and returns the exit code of base/args.h.
 */
int sl_bench_csv_end(const char *command, const char *path, FILE *csv, sl_status st, sl_err *err);

#endif
