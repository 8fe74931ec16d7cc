/* `sluice bench NAME …`: finds the benchmark in the registry of bench/ and runs it. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"

enum { BENCHES_MAX = 64 };

int sl_cmd_bench(int argc, char **argv)
{
    static const char usage[] = "NAME [flags]   (sluice bench NAME --help explains the flags)";
    sl_arg_action names[BENCHES_MAX];
    size_t n = 0;
    for (const sl_bench *b = sl_benches; b->name && n < BENCHES_MAX; b++)
        names[n++] = (sl_arg_action){b->name, b->help};
    for (const sl_bench *b = sl_benches; argc > 1 && b->name; b++)
        if (strcmp(argv[1], b->name) == 0) {
            char name[32]; /* its messages begin with "sluice " and this name */
            snprintf(name, sizeof name, "bench %s", b->name);
            argv[1] = name;
            sl_args_set_example(b->example);
            return b->run(argc - 1, argv + 1);
        }
    if (argc > 1 && sl_args_actions(argv[1], "bench", usage, names, n))
        return SL_EXIT_OK;
    return sl_args_unknown_action("bench", argc > 1 ? argv[1] : NULL, "benchmark", usage, names, n);
}
