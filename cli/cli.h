/*
 * The `sluice` program: one executable with a table of subcommands (cli/commands.c) and one file for each command
 * (cli/cmd_*.c).
 *
 * To add a command: write `int sl_cmd_NAME(int argc, char **argv)` in cli/cmd_NAME.c, declare it here, add its row to
 * cli/commands.c and its file to cli/CMakeLists.txt. argv[0] is the name of the command. The function returns an exit
 * code of base/args.h and parses its flags with sl_args_parse(), so that help and messages have the same form in all
 * commands.
 */
#ifndef SL_CLI_CLI_H
#define SL_CLI_CLI_H

#include "base/args.h"

typedef struct sl_command {
    const char *name, *help;
    const char *example; /* one line that its --help and its manual page show */
    int (*run)(int argc, char **argv);
} sl_command;

/* Ends with an empty row. */
extern const sl_command sl_commands[];

int sl_cmd_serve(int argc, char **argv);
int sl_cmd_router(int argc, char **argv);
int sl_cmd_prefill(int argc, char **argv);
int sl_cmd_decode(int argc, char **argv);
int sl_cmd_doctor(int argc, char **argv);
int sl_cmd_both(int argc, char **argv);
int sl_cmd_bench(int argc, char **argv);
int sl_cmd_calibrate(int argc, char **argv);
int sl_cmd_generate(int argc, char **argv);
int sl_cmd_plan(int argc, char **argv);
int sl_cmd_cache(int argc, char **argv);
int sl_cmd_simulate(int argc, char **argv);
int sl_cmd_top(int argc, char **argv);
int sl_cmd_trace(int argc, char **argv);
int sl_cmd_config(int argc, char **argv);
int sl_cmd_inspect(int argc, char **argv);
int sl_cmd_verify(int argc, char **argv);
int sl_cmd_eval(int argc, char **argv);
int sl_cmd_version(int argc, char **argv);

#endif
