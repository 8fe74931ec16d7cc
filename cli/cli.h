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

#include "base/status.h"

enum { SL_EXIT_OK = 0, SL_EXIT_FAILED = 1, SL_EXIT_USAGE = 2 };

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

/* ---- flags ---- */

typedef enum {
    SL_ARG_FLAG,   /* bool *: --name */
    SL_ARG_TEXT,   /* const char **: borrowed from argv */
    SL_ARG_INT,    /* int32_t * within min..max */
    SL_ARG_BYTES,  /* uint64_t *: 123, 64K, 16M, 2G, 1T, and KiB, MiB… */
    SL_ARG_U64,    /* uint64_t * */
    SL_ARG_REAL,   /* double * within min..max */
    SL_ARG_CHOICE, /* int *: index into choices */
    SL_ARG_LIST,   /* sl_arg_list *: every value given, in order */
} sl_arg_kind;

#define SL_ARG_LIST_MAX 64
typedef struct sl_arg_list {
    const char *v[SL_ARG_LIST_MAX];
    int n;
} sl_arg_list;

typedef struct sl_arg {
    const char *name; /* without the dashes */
    sl_arg_kind kind;
    void *out; /* keeps its value when the flag is not given: set the default before */
    const char *meta, *help;
    double min, max;            /* INT, REAL; both 0: no bounds */
    const char *const *choices; /* CHOICE: NULL-terminated */
} sl_arg;

typedef enum { SL_ARGS_RUN, SL_ARGS_HELP, SL_ARGS_WRONG } sl_args_result;

/*
 * Parses `--name value`, `--name=value` and `--flag`. HELP: --help was given and the help printed to stdout.
 * WRONG: the message and a hint were printed to stderr. No positional arguments.
 */
sl_args_result sl_args_parse(const char *usage, const sl_arg *args, size_t n, int argc, char **argv);

/* Prints "sluice COMMAND: text" to stderr; returns SL_EXIT_FAILED. */
int sl_cli_fail(const char *command, sl_status st, const sl_err *err);

/* ---- progress ---- */

/* A line on stderr about work that has taken more than two seconds: rewritten on a terminal, else one line
 * per 10 s. */
typedef struct sl_progress {
    const char *what;
    uint64_t start_ns, last_ns;
    bool shown;
} sl_progress;

void sl_progress_begin(sl_progress *p, const char *what);
void sl_progress_update(sl_progress *p, uint64_t done, uint64_t total, const char *unit);
void sl_progress_end(sl_progress *p);

#endif
