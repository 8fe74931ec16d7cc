/* See eval_lists.h. */
#include "cli/eval_lists.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 24 };

static void free_items(sl_cli_eval_items *list)
{
    while (list->n)
        free(list->v[--list->n]);
}

/* Adds the items of one text. */
static sl_status split(const char *flag, const char *text, sl_cli_eval_items *out, sl_err *err)
{
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (!n)
            return sl_fail(err, SL_ERR_INVALID, "--%s: an empty item in \"%s\"", flag, text);
        if (out->n == SL_EVAL_ITEMS)
            return sl_fail(err, SL_ERR_TOO_LARGE, "--%s: more than %d items", flag, SL_EVAL_ITEMS);
        out->v[out->n] = strndup(at, n);
        if (!out->v[out->n])
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        out->n++;
        at += n;
        if (!*at)
            return SL_OK;
    }
}

static sl_status split_all(const char *flag, const sl_arg_list *list, sl_cli_eval_items *out, sl_err *err)
{
    for (int i = 0; i < list->n; i++)
        SL_TRY(split(flag, list->v[i], out, err));
    return SL_OK;
}

/* ---- numbers ---- */

static int by_value(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static sl_status parse_numbers(const char *flag, const sl_cli_eval_items *list, int32_t *out, sl_err *err)
{
    for (int32_t i = 0; i < list->n; i++) {
        char *end;
        errno = 0;
        const long v = strtol(list->v[i], &end, 10);
        if (errno || *end || v < 1 || v > TOKENS_MAX)
            return sl_fail(err, SL_ERR_INVALID, "--%s: \"%s\" is not a number of tokens from 1 to %d", flag,
                           list->v[i], TOKENS_MAX);
        out[i] = (int32_t)v;
    }
    qsort(out, (size_t)list->n, sizeof *out, by_value);
    for (int32_t i = 1; i < list->n; i++)
        if (out[i] == out[i - 1])
            return sl_fail(err, SL_ERR_INVALID, "--%s: %d is there twice", flag, out[i]);
    return SL_OK;
}

/* usual: what a flag without items stands for. */
static sl_status read_numbers(const char *flag, const sl_arg_list *list, const char *usual, int32_t *out,
                              int32_t *n, sl_err *err)
{
    sl_cli_eval_items items = {0};
    sl_status st = list->n ? split_all(flag, list, &items, err) : split(flag, usual, &items, err);
    if (st == SL_OK)
        st = parse_numbers(flag, &items, out, err);
    *n = items.n;
    free_items(&items);
    return st;
}

/* ---- the lists ---- */

static sl_status add_task(const char *name, sl_cli_eval_lists *out, sl_err *err)
{
    const sl_eval_task *t = sl_eval_task_find(name);
    if (!t)
        return sl_fail_unknown(err, "--tasks: task", name, sl_eval_task_names());
    for (int32_t i = 0; i < out->n_tasks; i++)
        if (out->task[i] == t)
            return sl_fail(err, SL_ERR_INVALID, "--tasks: %s is there twice", name);
    out->task[out->n_tasks++] = t;
    return SL_OK;
}

static sl_status read_tasks(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err)
{
    sl_cli_eval_items items = {0};
    sl_status st = split_all("tasks", &f->tasks, &items, err);
    for (int32_t i = 0; st == SL_OK && i < items.n; i++)
        st = add_task(items.v[i], out, err);
    for (const char *const *name = sl_eval_task_names(); st == SL_OK && !f->tasks.n && *name; name++)
        st = add_task(*name, out, err);
    free_items(&items);
    return st;
}

sl_status sl_cli_eval_lists_read(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err)
{
    *out = (sl_cli_eval_lists){0};
    SL_TRY(read_tasks(f, out, err));
    SL_TRY(read_numbers("lengths", &f->lengths, "1024", out->length, &out->n_lengths, err));
    SL_TRY(read_numbers("budgets", &f->budgets, "64,128,256,512", out->budget, &out->n_budgets, err));
    const int32_t longest = out->length[out->n_lengths - 1];
    while (out->n_budgets && out->budget[out->n_budgets - 1] >= longest) {
        if (f->budgets.n)
            return sl_fail(
                err, SL_ERR_INVALID,
                "--budgets: %d tokens hold the whole of the largest of --lengths, %d, as dense does",
                out->budget[out->n_budgets - 1], longest);
        out->n_budgets--;
    }
    return split_all("algorithms", &f->algorithms, &out->algorithms, err);
}

void sl_cli_eval_lists_free(sl_cli_eval_lists *l)
{
    free_items(&l->algorithms);
}
