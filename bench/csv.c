/* Implementation of csv.h. */
#include "bench/csv.h"

#include "base/args.h"

bool sl_bench_csv_open(const char *command, const char *path, FILE **out)
{
    *out = path ? fopen(path, "w") : NULL;
    if (!path || *out)
        return true;
    fprintf(stderr, "sluice %s: cannot write %s\n", command, path);
    return false;
}

int sl_bench_csv_end(const char *command, const char *path, FILE *csv, sl_status st, sl_err *err)
{
    if (csv && fclose(csv) != 0 && st == SL_OK)
        st = sl_fail(err, SL_ERR_INTERNAL, "cannot write %s", path);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail(command, st, err);
}
