/* See eval_lists.h. */
#include "cli/eval_lists.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static sl_status add_source(sl_eval_source source, sl_cli_eval_lists *out, sl_err *err)
{
    for (int32_t i = 0; i < out->n_sources; i++)
        if (strcmp(out->source[i].name, source.name) == 0)
            return sl_fail(err, SL_ERR_INVALID, "--tasks: %s is there twice", source.name);
    if (out->n_sources == SL_EVAL_ITEMS)
        return sl_fail(err, SL_ERR_TOO_LARGE, "--tasks: more than %d", SL_EVAL_ITEMS);
    out->source[out->n_sources++] = source;
    return SL_OK;
}

static sl_status add_made(const char *name, sl_cli_eval_lists *out, sl_err *err)
{
    const sl_eval_task *t = sl_eval_task_find(name);
    if (!t)
        return sl_fail_unknown(err, "--tasks: task", name, sl_eval_task_names());
    return add_source((sl_eval_source){.name = t->name, .made = t}, out, err);
}

/* ---- files ---- */

static void tell_unread(const sl_eval_file *f)
{
    if (f->n_unread)
        fprintf(stderr, "sluice eval: %s: fields that are not read:", f->path);
    for (int32_t i = 0; i < f->n_unread; i++)
        fprintf(stderr, " %s%s", f->unread[i], i + 1 == f->n_unread ? "\n" : ",");
}

static sl_status add_file(const sl_cli_eval_flags *f, const char *path, sl_cli_eval_lists *out, sl_err *err)
{
    if (out->n_files == SL_EVAL_ITEMS)
        return sl_fail(err, SL_ERR_TOO_LARGE, "--tasks: more than %d files", SL_EVAL_ITEMS);
    sl_eval_file *file = &out->file[out->n_files];
    sl_status st = sl_eval_file_load(path, &f->files, file, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "--tasks");
    out->n_files++;
    tell_unread(file);
    return add_source((sl_eval_source){.name = file->name, .file = file}, out, err);
}

static sl_status add_files(const sl_cli_eval_flags *f, const char *pattern, const char *folder,
                           sl_cli_eval_lists *out, int32_t *n, sl_err *err)
{
    glob_t found;
    char *where = NULL;
    sl_status st = SL_OK;
    if (asprintf(&where, pattern, folder) < 0)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (glob(where, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && st == SL_OK; i++)
            st = add_file(f, found.gl_pathv[i], out, err);
        *n += (int32_t)found.gl_pathc;
        globfree(&found);
    }
    free(where);
    return st;
}

static sl_status add_path(const sl_cli_eval_flags *f, const char *path, sl_cli_eval_lists *out, sl_err *err)
{
    struct stat s;
    int32_t n = 0;
    if (stat(path, &s) != 0)
        return sl_fail(err, SL_ERR_NOT_FOUND, "--tasks: %s: %s", path, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return add_file(f, path, out, err);
    SL_TRY(add_files(f, "%s/*.jsonl", path, out, &n, err));
    SL_TRY(add_files(f, "%s/*/validation.jsonl", path, out, &n, err));
    return n ? SL_OK
             : sl_fail(err, SL_ERR_NOT_FOUND, "--tasks: %s has no *.jsonl and no */validation.jsonl", path);
}

static sl_status add_item(const sl_cli_eval_flags *f, const char *item, sl_cli_eval_lists *out, sl_err *err)
{
    struct stat s;
    const bool folder = !sl_eval_task_find(item) && stat(item, &s) == 0 && S_ISDIR(s.st_mode);
    return folder || strpbrk(item, "./") ? add_path(f, item, out, err) : add_made(item, out, err);
}

static sl_status read_tasks(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err)
{
    sl_cli_eval_items items = {0};
    sl_status st = split_all("tasks", &f->tasks, &items, err);
    if (st == SL_OK && f->texts.n && items.n)
        st = sl_fail(err, SL_ERR_INVALID, "--text: a text has no questions; give either --text or --tasks");
    for (int32_t i = 0; st == SL_OK && i < items.n; i++)
        st = add_item(f, items.v[i], out, err);
    for (const char *const *name = sl_eval_task_names(); st == SL_OK && !f->tasks.n && !f->texts.n && *name;
         name++)
        st = add_made(*name, out, err);
    if (st == SL_OK && out->n_files && out->n_files < out->n_sources)
        st = sl_fail(err, SL_ERR_INVALID,
                     "--tasks: files and tasks that are made here are not evaluated together");
    free_items(&items);
    return st;
}

sl_status sl_cli_eval_lists_load_texts(const sl_cli_eval_flags *f, const sl_tokenizer *tok,
                                       sl_cli_eval_lists *out, sl_err *err)
{
    for (int i = 0; i < f->texts.n && i < SL_EVAL_ITEMS; i++) {
        sl_status st = sl_eval_text_load(f->texts.v[i], tok, &out->text[i], err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "--text");
        out->n_texts++;
        SL_TRY(add_source((sl_eval_source){.name = out->text[i].name, .text = &out->text[i]}, out, err));
    }
    return SL_OK;
}

/* ---- all ---- */

static sl_status read_lengths(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err)
{
    if (out->n_files && !f->lengths.n)
        return SL_OK;
    SL_TRY(read_numbers("lengths", &f->lengths, "1024", out->length, &out->n_lengths, err));
    if (out->n_files && out->n_lengths > 1)
        return sl_fail(err, SL_ERR_INVALID, "--lengths: questions of files have one length at most");
    return SL_OK;
}

sl_status sl_cli_eval_lists_read(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    SL_TRY(read_tasks(f, out, err));
    SL_TRY(read_lengths(f, out, err));
    SL_TRY(read_numbers("budgets", &f->budgets, "64,128,256,512", out->budget, &out->n_budgets, err));
    if (out->n_lengths)
        SL_TRY(sl_cli_eval_lists_bound(f, out, err));
    return split_all("algorithms", &f->algorithms, &out->algorithms, err);
}

sl_status sl_cli_eval_lists_bound(const sl_cli_eval_flags *f, sl_cli_eval_lists *l, sl_err *err)
{
    const int32_t longest = l->length[l->n_lengths - 1];
    while (l->n_budgets && l->budget[l->n_budgets - 1] >= longest) {
        if (f->budgets.n)
            return sl_fail(err, SL_ERR_INVALID,
                           "--budgets: %d tokens hold the whole of the largest length, %d, as dense does",
                           l->budget[l->n_budgets - 1], longest);
        l->n_budgets--;
    }
    return SL_OK;
}

void sl_cli_eval_lists_free(sl_cli_eval_lists *l)
{
    for (int32_t i = 0; i < l->n_files; i++)
        sl_eval_file_free(&l->file[i]);
    for (int32_t i = 0; i < l->n_texts; i++)
        sl_eval_text_free(&l->text[i]);
    free_items(&l->algorithms);
}
