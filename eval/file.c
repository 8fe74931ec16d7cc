/* See file.h: lines, the form of each, and names. */
#include "eval/file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "eval/file_forms.h"
#include "model/checkpoint.h"

enum { MOST_ITEMS = 1 << 20 };
static const size_t most_bytes = (size_t)4 << 30;

/* ---- names ---- */

/* "narrativeqa" of ".../narrativeqa.jsonl"; a folder's name where a file's says only which part of a set it is. */
static void name_of(const char *path, char out[SL_EVAL_FILE_NAME])
{
    static const char *const parts[] = {"validation", "test", "train", "dev"};
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    size_t n = strcspn(file, ".");
    bool part = false;
    for (size_t i = 0; i < SL_COUNT(parts); i++)
        part |= n == strlen(parts[i]) && strncmp(file, parts[i], n) == 0;
    if (part && slash && slash > path) {
        const char *end = slash, *at = end;
        while (at > path && at[-1] != '/')
            at--;
        file = at, n = (size_t)(end - at);
    }
    n = n < SL_EVAL_FILE_NAME - 1 ? n : SL_EVAL_FILE_NAME - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = isprint((unsigned char)file[i]) && file[i] != '"' ? file[i] : '_';
    out[n] = 0;
}

/* ---- one object ---- */

static void free_list(char **v, int32_t n)
{
    for (int32_t i = 0; v && i < n; i++)
        free(v[i]);
    free(v);
}

static void free_item(sl_eval_item *it)
{
    free(it->prompt);
    free(it->prefix);
    free_list(it->answers, it->n_answers);
    free_list(it->choices, it->n_choices);
}

static bool listed(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static void note_unread(sl_eval_file *f, const sl_eval_form_reader *form, const json_t *object)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        bool known = listed(form->fields, name);
        for (int32_t i = 0; i < f->n_unread; i++)
            known |= strcmp(f->unread[i], name) == 0;
        if (!known && f->n_unread < SL_EVAL_UNREAD && (f->unread[f->n_unread] = strdup(name)))
            f->n_unread++;
    }
}

/* Of several forms that have the fields, the most particular one: the last. */
static const sl_eval_form_reader *form_of(const json_t *object)
{
    for (int i = SL_EVAL_FORMS - 1; i >= 0; i--) {
        bool all = true;
        for (const char *const *mark = sl_eval_forms[i].marks; *mark; mark++)
            all &= json_object_get(object, *mark) != NULL;
        if (all)
            return &sl_eval_forms[i];
    }
    return NULL;
}

static sl_status grow(sl_eval_file *f, sl_err *err)
{
    if (f->n < f->cap)
        return SL_OK;
    const int32_t cap = f->cap ? 2 * f->cap : 64;
    sl_eval_item *v = f->n < MOST_ITEMS ? realloc(f->items, (size_t)cap * sizeof *v) : NULL;
    if (!v)
        return f->n < MOST_ITEMS ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory")
                                 : sl_fail(err, SL_ERR_TOO_LARGE, "more than %d questions", MOST_ITEMS);
    f->items = v, f->cap = cap;
    return SL_OK;
}

static sl_status add_object(sl_eval_file *f, const sl_eval_file_opts *o, const json_t *prompts,
                            const json_t *object, int32_t line, sl_err *err)
{
    if (!json_is_object(object))
        return sl_fail(err, SL_ERR_INVALID, "not an object");
    const sl_eval_form_reader *form = form_of(object);
    if (!form)
        return sl_fail(
            err, SL_ERR_INVALID,
            "fields are missing: a line has \"prompt\", or \"input\" with \"context\" (LongBench) or \"outputs\" "
            "(RULER), or \"question\" with \"choice_A\" (LongBench v2)");
    SL_TRY(grow(f, err));
    sl_eval_item *it = &f->items[f->n];
    *it = (sl_eval_item){.line = line};
    f->n++; /* freed with the file */
    if (f->n == 1)
        f->form = (sl_eval_form)(form - sl_eval_forms);
    sl_eval_line l = {.o = o, .object = object, .prompts = prompts, .task = f->name, .item = it};
    SL_TRY(form->read(&l, err));
    note_unread(f, form, object);
    return SL_OK;
}

/* ---- files of other kinds ---- */

/* Files that users have on disk under a name of questions, and that no line of could be explained. */
static sl_status check_kind(const char *text, size_t n, const char *path, sl_err *err)
{
    static const struct kind {
        const char *begin, *what;
    } kinds[] = {{"\x1f\x8b", "compressed with gzip: unpack it first"},
                 {"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"},
                 {"BZh", "compressed with bzip2: unpack it first"},
                 {"PK\x03\x04", "a zip archive: unpack it first"},
                 {"PAR1", "a Parquet file: write its rows as lines of JSON first"},
                 {"version https://git-lfs", "a pointer of Git LFS: fetch the file itself"},
                 {"\xff\xfe", "UTF-16: it must be UTF-8"},
                 {"\xfe\xff", "UTF-16: it must be UTF-8"}};
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (n >= strlen(kinds[i].begin) && memcmp(text, kinds[i].begin, strlen(kinds[i].begin)) == 0)
            return sl_fail(err, SL_ERR_INVALID, "%s is %s", path, kinds[i].what);
    return SL_OK;
}

/* ---- lines ---- */

/* jansson's reasons are for programmers where they name a flag. */
static const char *reason(const json_error_t *why)
{
    return strstr(why->text, "JSON_ALLOW_NUL")
               ? "a text has the character \\u0000, which is not possible here"
               : why->text;
}

typedef struct reader {
    const char *path;
    const sl_eval_file_opts *o;
    json_t *prompts;
    sl_eval_file *out;
} reader;

static sl_status parse_line(reader *r, const char *text, size_t n, int32_t line, sl_err *err)
{
    json_error_t why;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        return sl_fail(err, SL_ERR_INVALID, "%s:%d: not JSON at column %d: %s", r->path, line, why.column,
                       reason(&why));
    sl_status st = add_object(r->out, r->o, r->prompts, object, line, err);
    json_decref(object);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "%s:%d", r->path, line);
}

static sl_status parse_lines(reader *r, const char *text, size_t n, sl_err *err)
{
    int32_t line = 1;
    for (const char *at = text, *all = text + n; at < all; line++) {
        const char *end = memchr(at, '\n', (size_t)(all - at));
        const size_t len = (size_t)((end ? end : all) - at);
        size_t blank = 0;
        while (blank < len && isspace((unsigned char)at[blank]))
            blank++;
        if (blank < len)
            SL_TRY(parse_line(r, at, len, line, err));
        at += len + (end != NULL);
    }
    return SL_OK;
}

static sl_status parse_array(reader *r, const char *text, size_t n, sl_err *err)
{
    json_error_t why;
    json_t *all = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why), *object;
    size_t i;
    sl_status st = SL_OK;
    if (!all)
        return sl_fail(err, SL_ERR_INVALID, "%s:%d: not JSON at column %d: %s", r->path, why.line, why.column,
                       reason(&why));
    json_array_foreach(all, i, object)
    {
        if (st == SL_OK && (st = add_object(r->out, r->o, r->prompts, object, (int32_t)i + 1, err)) != SL_OK)
            (void)sl_fail_in(err, st, "%s: object %zu", r->path, i + 1);
    }
    json_decref(all);
    return st;
}

static sl_status read_prompts(reader *r, sl_err *err)
{
    json_error_t why;
    if (!r->o->prompts)
        return SL_OK;
    r->prompts = json_load_file(r->o->prompts, JSON_REJECT_DUPLICATES, &why);
    if (!r->prompts)
        return sl_fail(err, SL_ERR_INVALID, "%s:%d: %s", r->o->prompts, why.line, why.text);
    return json_is_object(r->prompts)
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "%s: not an object with a prompt for each dataset",
                         r->o->prompts);
}

sl_status sl_eval_file_parse(const char *text, size_t n, const char *path, const sl_eval_file_opts *o,
                             sl_eval_file *out, sl_err *err)
{
    reader r = {.path = path, .o = o, .out = out};
    size_t begin = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    *out = (sl_eval_file){.path = strdup(path)};
    name_of(path, out->name);
    sl_status st = out->path ? read_prompts(&r, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    size_t first = begin;
    while (first < n && isspace((unsigned char)text[first]))
        first++;
    if (st == SL_OK)
        st = check_kind(text, n, path, err);
    if (st == SL_OK)
        st = first < n && text[first] == '[' ? parse_array(&r, text + begin, n - begin, err)
                                             : parse_lines(&r, text + begin, n - begin, err);
    if (st == SL_OK && !out->n)
        st = sl_fail(err, SL_ERR_INVALID, "%s: no questions", path);
    json_decref(r.prompts);
    if (st != SL_OK)
        sl_eval_file_free(out);
    return st;
}

sl_status sl_eval_file_load(const char *path, const sl_eval_file_opts *o, sl_eval_file *out, sl_err *err)
{
    char *text = NULL;
    size_t n = 0;
    *out = (sl_eval_file){0};
    SL_TRY(sl_read_file(path, most_bytes, &text, &n, err));
    sl_status st = sl_eval_file_parse(text, n, path, o, out, err);
    free(text);
    return st;
}

void sl_eval_file_free(sl_eval_file *f)
{
    for (int32_t i = 0; i < f->n; i++)
        free_item(&f->items[i]);
    for (int32_t i = 0; i < f->n_unread; i++)
        free(f->unread[i]);
    free(f->items);
    free(f->path);
    *f = (sl_eval_file){0};
}

double sl_eval_item_score(const sl_eval_item *item, const char *text)
{
    const sl_eval_right_answers right = {.answers = (const char *const *)item->answers,
                                         .choices = (const char *const *)item->choices,
                                         .n_answers = item->n_answers,
                                         .n_choices = item->n_choices};
    if (!item->first_line)
        return sl_eval_score(item->scorer, &right, text);
    text += strspn(text, "\n");
    char *line = strndup(text, strcspn(text, "\n"));
    const double score = line ? sl_eval_score(item->scorer, &right, line) : 0;
    free(line);
    return score;
}
