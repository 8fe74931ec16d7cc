/*
 * Command lines: the flags of a program's subcommands, their exit codes, and the message of a failed one, so that help
 * and messages are alike in all of them. A command describes its flags as a table of sl_arg and parses with
 * sl_args_parse().
 *
 * Nothing here owns memory: texts are borrowed from argv. Prints to stdout (help) and stderr (everything else); for
 * the main thread of a program.
 */
#ifndef SL_BASE_ARGS_H
#define SL_BASE_ARGS_H

#include "base/status.h"

/* Exit codes of a command: done; failed, the reason is on stderr; wrong usage. */
enum { SL_EXIT_OK = 0, SL_EXIT_FAILED = 1, SL_EXIT_USAGE = 2 };

typedef enum {
    SL_ARG_FLAG,   /* bool *: --name */
    SL_ARG_TEXT,   /* const char **: borrowed from argv */
    SL_ARG_INT,    /* int32_t * within min..max */
    SL_ARG_BYTES,  /* uint64_t *: 123, 64K, 16M, 2G, 1T, and KiB, MiB… */
    SL_ARG_U64,    /* uint64_t * */
    SL_ARG_REAL,   /* double * within min..max */
    SL_ARG_CHOICE, /* const char **: one of choices, as it stands there */
    SL_ARG_AUTO,   /* as CHOICE, or "auto", which the registries of the choices do not have */
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
    const char *const *choices; /* CHOICE, AUTO: NULL-terminated names */
} sl_arg;

typedef enum { SL_ARGS_RUN, SL_ARGS_HELP, SL_ARGS_WRONG } sl_args_result;

/*
 * Parses `--name value`, `--name=value` and `--flag`. HELP: --help was given and the help printed to stdout.
 * WRONG: the message and a hint were printed to stderr. No positional arguments.
 */
sl_args_result sl_args_parse(const char *usage, const sl_arg *args, size_t n, int argc, char **argv);

/* Prints "sluice COMMAND: text" to stderr; returns SL_EXIT_FAILED. */
int sl_args_fail(const char *command, sl_status st, const sl_err *err);

#endif
