/* Parses the flags of subcommands and prints their help; see args.h. */
#include "base/args.h"
#include "base/near.h"
#include "base/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_int(const sl_arg *a, const char *text)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < INT32_MIN || v > INT32_MAX)
        return false;
    if ((a->min != 0 || a->max != 0) && ((double)v < a->min || (double)v > a->max))
        return false;
    *(int32_t *)a->out = (int32_t)v;
    return true;
}

static bool parse_real(const sl_arg *a, const char *text)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno || end == text || *end || v != v)
        return false;
    if ((a->min != 0 || a->max != 0) && (v < a->min || v > a->max))
        return false;
    *(double *)a->out = v;
    return true;
}

static bool parse_u64(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || *text == '+')
        return false;
    *out = v;
    return true;
}

static bool parse_choice(const sl_arg *a, const char *text)
{
    const char *found = a->kind == SL_ARG_AUTO && strcmp(text, "auto") == 0 ? "auto" : NULL;
    for (int i = 0; a->choices[i] && !found; i++)
        if (strcmp(a->choices[i], text) == 0)
            found = a->choices[i];
    if (found)
        *(const char **)a->out = found;
    return found;
}

static bool parse_value(const sl_arg *a, const char *text)
{
    sl_arg_list *list = a->out;
    switch (a->kind) {
    case SL_ARG_FLAG:
        return false;
    case SL_ARG_TEXT:
        *(const char **)a->out = text;
        return true;
    case SL_ARG_INT:
        return parse_int(a, text);
    case SL_ARG_BYTES:
        return sl_parse_bytes(text, a->out);
    case SL_ARG_U64:
        return parse_u64(text, a->out);
    case SL_ARG_REAL:
        return parse_real(a, text);
    case SL_ARG_CHOICE:
    case SL_ARG_AUTO:
        return parse_choice(a, text);
    case SL_ARG_LIST:
        if (list->n == SL_ARG_LIST_MAX)
            return false;
        list->v[list->n++] = text;
        return true;
    }
    return false;
}

/* Prints which values a flag accepts, as a part of an error message. */
static void print_expectation(const sl_arg *a)
{
    switch (a->kind) {
    case SL_ARG_INT:
    case SL_ARG_REAL:
        fprintf(stderr, "must be %s", a->kind == SL_ARG_INT ? "an integer" : "a number");
        if (a->min != 0 || a->max != 0)
            fprintf(stderr, " from %.10g to %.10g", a->min, a->max);
        break;
    case SL_ARG_BYTES:
        fprintf(stderr, "must be a size such as 4096, 512M or 16G");
        break;
    case SL_ARG_U64:
        fprintf(stderr, "must be a whole number, not negative");
        break;
    case SL_ARG_CHOICE:
    case SL_ARG_AUTO:
        fprintf(stderr, "must be one of%s", a->kind == SL_ARG_AUTO ? " auto," : "");
        for (int k = 0; a->choices[k]; k++)
            fprintf(stderr, "%s %s", k ? "," : "", a->choices[k]);
        break;
    case SL_ARG_LIST:
        fprintf(stderr, "is given more than %d times", SL_ARG_LIST_MAX);
        break;
    default:
        fprintf(stderr, "is wrong");
    }
}

static sl_args_result wrong(const char *command, const char *text, const char *what)
{
    fprintf(stderr, "sluice %s: %s %s\nTry: sluice %s --help\n", command, what, text, command);
    return SL_ARGS_WRONG;
}

/* word: with its dashes, and perhaps `=` and a value. */
static sl_args_result unknown_flag(const char *command, const char *word, const sl_arg *args, size_t n)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    sl_near near = sl_near_begin(name);
    for (size_t i = 0; i < n; i++)
        sl_near_try(&near, args[i].name);
    if (!near.best)
        return wrong(command, word, "unknown flag");
    fprintf(stderr, "sluice %s: unknown flag %s; did you mean --%s?\nTry: sluice %s --help\n", command, word,
            near.best, command);
    return SL_ARGS_WRONG;
}

static const sl_arg *find(const sl_arg *args, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(args[i].name) == len && memcmp(args[i].name, name, len) == 0)
            return &args[i];
    return NULL;
}

sl_args_result sl_args_parse(const char *usage, const sl_arg *args, size_t n, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = NULL;
        if (sl_args_document(word, argv[0], usage, args, n))
            return SL_ARGS_HELP;
        if (strncmp(word, "--", 2) != 0)
            return wrong(argv[0], word, "unexpected argument");
        const char *eq = strchr(word, '=');
        const sl_arg *a = find(args, n, word + 2, eq ? (size_t)(eq - word) - 2 : strlen(word + 2));
        if (!a)
            return unknown_flag(argv[0], word, args, n);
        if (a->kind == SL_ARG_FLAG) {
            if (eq)
                return wrong(argv[0], word, "this flag takes no value:");
            *(bool *)a->out = true;
            continue;
        }
        value = eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            return wrong(argv[0], word, "missing value of");
        if (!parse_value(a, value)) {
            fprintf(stderr, "sluice %s: --%s \"%s\" ", argv[0], a->name, value);
            print_expectation(a);
            fprintf(stderr, "\n");
            return SL_ARGS_WRONG;
        }
    }
    return SL_ARGS_RUN;
}

bool sl_args_ready(const char *usage, const sl_arg *args, size_t n, int argc, char **argv, int *exit_code)
{
    sl_args_result result = sl_args_parse(usage, args, n, argc, argv);
    *exit_code = result == SL_ARGS_WRONG ? SL_EXIT_USAGE : SL_EXIT_OK;
    return result == SL_ARGS_RUN;
}

int sl_args_unknown_action(const char *command, const char *word, const char *what, const char *usage,
                           const sl_arg_action *actions, size_t n)
{
    sl_near near = sl_near_begin(word ? word : "");
    for (size_t i = 0; i < n; i++)
        sl_near_try(&near, actions[i].name);
    if (word)
        fprintf(stderr, "sluice %s: unknown %s '%s'%s%s%s\n", command, what, word,
                near.best ? "; did you mean " : "", near.best ? near.best : "", near.best ? "?" : "");
    fprintf(stderr, "usage: sluice %s %s\n", command, usage);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "  %-10s %s\n", actions[i].name, actions[i].help);
    return SL_EXIT_USAGE;
}

int sl_args_fail(const char *command, sl_status st, const sl_err *err)
{
    const char *text = err && err->text[0] ? err->text : "failed";
    fprintf(stderr, "sluice %s: %s (%s)\n", command, text, sl_status_name(st));
    return SL_EXIT_FAILED;
}
