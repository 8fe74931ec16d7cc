/* `sluice bench NAME …`: finds the benchmark in the registry of bench/ and runs it. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"

int sl_cmd_bench(int argc, char **argv)
{
    for (const sl_bench *b = sl_benches; argc > 1 && b->name; b++)
        if (strcmp(argv[1], b->name) == 0) {
            char name[32]; /* its messages begin with "sluice " and this name */
            snprintf(name, sizeof name, "bench %s", b->name);
            argv[1] = name;
            return b->run(argc - 1, argv + 1);
        }
    FILE *out = argc > 1 && strcmp(argv[1], "--help") == 0 ? stdout : stderr;
    if (out == stderr && argc > 1)
        fprintf(out, "sluice bench: unknown benchmark '%s'\n", argv[1]);
    fprintf(out, "usage: sluice bench NAME [flags]   (sluice bench NAME --help explains the flags)\n");
    for (const sl_bench *b = sl_benches; b->name; b++)
        fprintf(out, "  %-10s %s\n", b->name, b->help);
    return out == stdout ? SL_EXIT_OK : SL_EXIT_USAGE;
}
