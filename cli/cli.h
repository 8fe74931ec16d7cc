/*
 * The `sluice` program: one executable, a table of subcommands (cli/commands.c), one file per command
 * (cli/cmd_*.c).
 *
 * To add a command: write `int sl_cmd_name(int argc, char **argv)` in cli/cmd_name.c, declare it here, add
 * its row to cli/commands.c and its file to cli/CMakeLists.txt. argv[0] is the command's name. It returns the
 * exit status: 0 done, 1 failed (the reason on stderr), 2 wrong usage. Commands parse their flags with
 * sl_args_parse(), so that help and messages are alike.
 */
#ifndef SL_CLI_CLI_H
#define SL_CLI_CLI_H

#include "base/args.h"

typedef struct sl_command {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} sl_command;

/* Ends with an empty row. */
extern const sl_command sl_commands[];

int sl_cmd_serve(int argc, char **argv);
int sl_cmd_router(int argc, char **argv);
int sl_cmd_prefill(int argc, char **argv);
int sl_cmd_decode(int argc, char **argv);
int sl_cmd_bench(int argc, char **argv);
int sl_cmd_generate(int argc, char **argv);
int sl_cmd_plan(int argc, char **argv);
int sl_cmd_config(int argc, char **argv);
int sl_cmd_inspect(int argc, char **argv);
int sl_cmd_verify(int argc, char **argv);
int sl_cmd_version(int argc, char **argv);

#endif
