/* The main function of the `sluice` program: finds the subcommand and runs it. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/near.h"
#include "cli/cli.h"
#include "cli/config_choices.h"
#include "cli/version.h"
#include "sparse/plugin.h"

static void print_commands(FILE *to)
{
    fprintf(to, "usage: sluice COMMAND [flags]\n\n");
    for (const sl_command *c = sl_commands; c->name; c++)
        fprintf(to, "  %-10s %s\n", c->name, c->help);
    fprintf(to, "\nsluice COMMAND --help explains the flags of a command.\n"
                "\nexample:\n  sluice generate --model models/tiny-v32 --prompt 'The cache lives'\n");
}

/* The manual page of the program, in roff. */
static void print_man(void)
{
    printf(".TH sluice 1 \"\" \"sluice %s\" \"Sluice\"\n.SH NAME\n"
           "sluice \\- serves sparse\\-attention language models whose KV cache is in host memory\n"
           ".SH SYNOPSIS\n.B sluice\n.I COMMAND\n[flags]\n.SH COMMANDS\n",
           SL_VERSION);
    for (const sl_command *c = sl_commands; c->name; c++)
        printf(".TP\n.B %s\n%s. See\n.BR sluice-%s (1).\n", c->name, c->help, c->name);
    printf(".SH FILES\n.TP\n.I /etc/sluice/sluice.yaml\nThe configuration that the units of systemd use.\n");
}

static int unknown_command(const char *name)
{
    sl_near near = sl_near_begin(name);
    for (const sl_command *c = sl_commands; c->name; c++)
        sl_near_try(&near, c->name);
    fprintf(stderr, "sluice: unknown command \"%s\"%s%s%s\nTry: sluice --help\n", name,
            near.best ? "; did you mean " : "", near.best ? near.best : "", near.best ? "?" : "");
    return SL_EXIT_USAGE;
}

/* True: the help of the program was asked for and printed. */
static bool document(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0)
        print_commands(stdout);
    else if (strcmp(word, "--help=man") == 0)
        print_man();
    else if (strcmp(word, "--help=commands") == 0)
        for (const sl_command *c = sl_commands; c->name; c++)
            printf("%s\t%s\n", c->name, c->help);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return SL_EXIT_USAGE;
    }
    if (document(argv[1]))
        return SL_EXIT_OK;
    sl_process_raise_descriptors();
    sl_config_bind(sl_cli_choices, sl_cli_parts());
    sl_config_bind_plugin(sl_plugin_load);
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    for (const sl_command *c = sl_commands; c->name; c++)
        if (strcmp(c->name, name) == 0) {
            sl_args_set_example(c->example);
            return c->run(argc - 1, argv + 1);
        }
    return unknown_command(argv[1]);
}
