/*
 * Command lines: the flags of a program's subcommands, their exit codes, and the message of a command that fails, so
 * that help and messages look the same in all of them. A command describes its flags as a table of sl_arg and parses
 * its arguments with sl_args_parse().
 *
 * Nothing here owns memory: texts are borrowed from argv. Help is printed to stdout, everything else to stderr. For the
 * main thread of a program.
 */
#ifndef SL_BASE_ARGS_H
#define SL_BASE_ARGS_H

#include "base/status.h"

/* Exit codes of a command. FAILED: the reason is on stderr. USAGE: the command line was wrong. */
enum { SL_EXIT_OK = 0, SL_EXIT_FAILED = 1, SL_EXIT_USAGE = 2 };

typedef enum {
    SL_ARG_FLAG,   /* bool *: --name */
    SL_ARG_TEXT,   /* const char **: borrowed from argv */
    SL_ARG_INT,    /* int32_t * within min..max */
    SL_ARG_BYTES,  /* uint64_t *: 123, 64K, 16M, 2G, 1T, and KiB, MiB… */
    SL_ARG_U64,    /* uint64_t * */
    SL_ARG_REAL,   /* double * within min..max */
    SL_ARG_CHOICE, /* const char **: one of `choices`, a pointer into that list */
    SL_ARG_AUTO,   /* as CHOICE, or "auto", which is not in the list */
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
    void *out; /* unchanged when the flag is not given, so the caller sets the default first */
    const char *meta, *help;
    double min, max;            /* INT, REAL; both 0: no bounds */
    const char *const *choices; /* CHOICE, AUTO: NULL-terminated names */
} sl_arg;

typedef enum { SL_ARGS_RUN, SL_ARGS_HELP, SL_ARGS_WRONG } sl_args_result;

/* One line that shows how the command is used; its --help prints it. Set once before the command runs; not copied. */
void sl_args_set_example(const char *example);

/*
 * If word asks for help, prints it to stdout and returns true (sl_args_parse() does it for every word):
 *   --help, -h     for people
 *   --help=man     a manual page (roff)
 *   --help=flags   lines "--NAME<TAB>META<TAB>CHOICE CHOICE...<TAB>HELP", for the completion of shells
 */
bool sl_args_document(const char *word, const char *command, const char *usage, const sl_arg *args, size_t n);

/*
 * Parses `--name value`, `--name=value` and `--flag`. HELP: --help was given and the help printed to stdout.
 * WRONG: the message and a hint were printed to stderr. No positional arguments.
 */
sl_args_result sl_args_parse(const char *usage, const sl_arg *args, size_t n, int argc, char **argv);

/*
 * sl_args_parse for the function of a command. False: the command ends at once with *exit_code, because --help was
 * given or the command line is wrong.
 */
bool sl_args_ready(const char *usage, const sl_arg *args, size_t n, int argc, char **argv, int *exit_code);

/* The actions of a command whose first argument names one. */
typedef struct sl_arg_action {
    const char *name, *help;
} sl_arg_action;

/* The help of such a command, if word asks for it: --help, --help=man, or --help=commands for the completion of shells. */
bool sl_args_actions(const char *word, const char *command, const char *usage, const sl_arg_action *actions,
                     size_t n);

/* The message when word is none of them, or NULL: there is none. what: what they are called. Returns SL_EXIT_USAGE. */
int sl_args_unknown_action(const char *command, const char *word, const char *what, const char *usage,
                           const sl_arg_action *actions, size_t n);

/* Prints "sluice COMMAND: text" to stderr; returns SL_EXIT_FAILED. */
int sl_args_fail(const char *command, sl_status st, const sl_err *err);

#endif
