/* The main function of the `sluice` program: finds the subcommand and runs it. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "cli/cli.h"
#include "cli/config_choices.h"

static void print_commands(FILE *to)
{
    fprintf(to, "usage: sluice COMMAND [flags]\n\n");
    for (const sl_command *c = sl_commands; c->name; c++)
        fprintf(to, "  %-10s %s\n", c->name, c->help);
    fprintf(to, "\nsluice COMMAND --help explains the flags of a command.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return SL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_commands(stdout);
        return SL_EXIT_OK;
    }
    sl_limits_raise_descriptors();
    sl_config_bind(sl_cli_choices, sl_cli_parts());
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    for (const sl_command *c = sl_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c->run(argc - 1, argv + 1);
    fprintf(stderr, "sluice: unknown command \"%s\"\nTry: sluice --help\n", argv[1]);
    return SL_EXIT_USAGE;
}
