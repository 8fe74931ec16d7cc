/*
 * The help of a command, in three forms that are made from one table of flags: for people, as a manual page, and as lines
 * for the completion of shells. See args.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/version.h"

/* The texts of the help begin at column HELP_INDENT; lines have at most HELP_WIDTH columns. */
enum { HELP_INDENT = 33, HELP_WIDTH = 110, HELP_BYTES = 1024 };

static const char *example; /* set once, before a command runs */

void sl_args_set_example(const char *text)
{
    example = text;
}

static void print_wrapped(const char *text)
{
    int column = HELP_INDENT;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (column > HELP_INDENT && column + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        }
        column += printf("%s%.*s", column > HELP_INDENT ? " " : "", n, p);
        p += n + (p[n] == ' ');
    }
    printf("\n");
}

/* The help of a flag, with the names of a choice. */
static const char *whole_help(const sl_arg *a, char out[HELP_BYTES])
{
    size_t n =
        (size_t)snprintf(out, HELP_BYTES, "%s%s", a->help, a->kind == SL_ARG_AUTO ? " One of auto" : "");
    for (int k = 0; a->choices && a->choices[k] && n < HELP_BYTES; k++)
        n += (size_t)snprintf(out + n, HELP_BYTES - n, "%s%s%s",
                              k || a->kind == SL_ARG_AUTO ? ", " : " One of ", a->choices[k],
                              a->choices[k + 1] ? "" : ".");
    return out;
}

static void print_flag(const sl_arg *a)
{
    char left[64], help[HELP_BYTES];
    snprintf(left, sizeof left, "--%s%s%s", a->name, a->meta ? " " : "", a->meta ? a->meta : "");
    printf("  %-30s ", left);
    print_wrapped(whole_help(a, help));
}

static void print_help(const char *command, const char *usage, const sl_arg *args, size_t n)
{
    printf("usage: sluice %s%s%s\n\n", command, usage[0] ? " " : "", usage);
    for (size_t i = 0; i < n; i++)
        print_flag(&args[i]);
    if (example)
        printf("%sexample:\n  %s\n", n ? "\n" : "", example);
}

/* Text of a manual page: backslashes and dashes are written, and a line does not begin as a request does. */
static void print_roff(const char *text)
{
    if (*text == '.' || *text == '\'')
        printf("\\&");
    for (; *text; text++)
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
}

static void begin_page(const char *command, const char *usage)
{
    char name[64];
    snprintf(name, sizeof name, "sluice-%s", command);
    for (char *p = name; *p; p++)
        *p = *p == ' ' ? '-' : *p;
    printf(".TH %s 1 \"\" \"sluice %s\" \"Sluice\"\n.SH NAME\n", name, SL_VERSION);
    print_roff(name);
    printf(" \\- the command ");
    print_roff(command);
    printf(" of sluice\n.SH SYNOPSIS\n.B sluice ");
    print_roff(command);
    printf("\n");
    print_roff(usage);
    printf("\n");
}

static void end_page(void)
{
    if (example) {
        printf(".SH EXAMPLE\n.nf\n");
        print_roff(example);
        printf("\n.fi\n");
    }
    printf(
        ".SH EXIT STATUS\n0: done; 1: failed, the reason is on standard error; 2: the command line is wrong.\n"
        ".SH SEE ALSO\n.BR sluice (1)\n");
}

static void print_man(const char *command, const char *usage, const sl_arg *args, size_t n)
{
    char help[HELP_BYTES];
    begin_page(command, usage);
    printf("%s", n ? ".SH OPTIONS\n" : "");
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n\\fB\\-\\-");
        print_roff(args[i].name);
        printf("\\fR %s\n", args[i].meta ? args[i].meta : "");
        print_roff(whole_help(&args[i], help));
        printf("\n");
    }
    end_page();
}

bool sl_args_actions(const char *word, const char *command, const char *usage, const sl_arg_action *actions,
                     size_t n)
{
    const bool page = strcmp(word, "--help=man") == 0, words = strcmp(word, "--help=commands") == 0;
    if (!page && !words && strcmp(word, "--help") != 0 && strcmp(word, "-h") != 0)
        return false;
    if (page) {
        begin_page(command, usage);
        printf(".SH ACTIONS\n");
    } else if (!words) {
        printf("usage: sluice %s %s\n", command, usage);
    }
    for (size_t i = 0; i < n; i++)
        if (page) {
            printf(".TP\n.B %s\n", actions[i].name);
            print_roff(actions[i].help);
            printf("\n");
        } else {
            printf(words ? "%s\t%s\n" : "  %-10s %s\n", actions[i].name, actions[i].help);
        }
    if (page)
        end_page();
    else if (!words && example)
        printf("\nexample:\n  %s\n", example);
    return true;
}

static void print_flags(const sl_arg *args, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("--%s\t%s\t%s", args[i].name, args[i].meta ? args[i].meta : "",
               args[i].kind == SL_ARG_AUTO ? "auto " : "");
        for (int k = 0; args[i].choices && args[i].choices[k]; k++)
            printf("%s%s", k ? " " : "", args[i].choices[k]);
        printf("\t%s\n", args[i].help);
    }
}

bool sl_args_document(const char *word, const char *command, const char *usage, const sl_arg *args, size_t n)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        print_help(command, usage, args, n);
    else if (strcmp(word, "--help=man") == 0)
        print_man(command, usage, args, n);
    else if (strcmp(word, "--help=flags") == 0)
        print_flags(args, n);
    else
        return false;
    return true;
}
