/* See selection.h. */
#include "local/selection.h"

#include <stdio.h>
#include <string.h>

static int index_of(const sl_local_selection *s, const char *option)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->option[i]->name, option))
            return i;
    return -1;
}

/* "quest, pq_cache: " of the algorithms from a on that have this option. */
static size_t put_readers(const sl_algo_desc *const *a, const char *option, char *out, size_t cap)
{
    size_t len = 0;
    for (; *a && len < cap; a++)
        if ((*a)->options && sl_options_find((*a)->options, option))
            len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? ", " : "", (*a)->name);
    return len < cap ? len : cap - 1;
}

static void add_flag(sl_local_selection *s, const sl_algo_desc *const *a, const sl_option *o)
{
    char want[320], *help = s->help[s->n], *name = s->name[s->n];
    const size_t cap = sizeof s->help[0];
    SL_CHECK(s->n < SL_LOCAL_FLAGS, "more than %d flags", SL_LOCAL_FLAGS);
    snprintf(name, sizeof s->name[0], "%s", o->name);
    for (char *p = name; *p; p++)
        *p = *p == '_' ? '-' : *p;
    size_t n = put_readers(a, o->name, help, cap);
    snprintf(help + n, cap - n, ": %s Default %s; %s.", o->doc, o->dflt[0] ? o->dflt : "none",
             sl_option_describe(o, want, sizeof want));
    s->option[s->n++] = o;
}

void sl_local_selection_init(sl_local_selection *s)
{
    memset(s, 0, sizeof *s);
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++)
        for (size_t i = 0; (*a)->options && i < (*a)->options->n; i++)
            if (index_of(s, (*a)->options->rows[i].name) < 0)
                add_flag(s, a, &(*a)->options->rows[i]);
}

/* The option of a plug-in may have the name of a flag that the command has: its flag begins with the name of its algorithm. */
static void name_apart(sl_local_selection *s, int flag, const sl_arg *args, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(args[i].name, s->name[flag])) {
            char own[sizeof s->name[0]];
            snprintf(own, sizeof own, "%.*s-%s", (int)strcspn(s->help[flag], ":,"), s->help[flag],
                     args[i].name);
            for (char *p = own; *p; p++)
                *p = *p == '_' ? '-' : *p;
            memcpy(s->name[flag], own, sizeof own);
            return;
        }
}

size_t sl_local_selection_args(sl_local_selection *s, const sl_arg *args, size_t n, sl_arg *all)
{
    memcpy(all, args, n * sizeof *all);
    for (int i = 0; i < s->n; i++) {
        name_apart(s, i, args, n);
        all[n + (size_t)i] = (sl_arg){.name = s->name[i],
                                      .kind = SL_ARG_TEXT,
                                      .out = &s->text[i],
                                      .meta = sl_option_names(s->option[i]) ? "NAME" : "X",
                                      .help = s->help[i]};
    }
    return n + (size_t)s->n;
}

bool sl_local_selection_given(const sl_local_selection *s, const char *option)
{
    int i = index_of(s, option);
    return i >= 0 && s->text[i];
}

sl_status sl_local_selection_options(const sl_local_selection *s, const sl_algo_desc *algorithm, bool strict,
                                     void *values, sl_err *err)
{
    const sl_options *t = algorithm->options;
    if (t)
        sl_options_default(t, values);
    for (int i = 0; i < s->n; i++) {
        const sl_option *o = t ? sl_options_find(t, s->option[i]->name) : NULL;
        if (!s->text[i] || (!o && !strict))
            continue;
        if (!o)
            return sl_fail(err, SL_ERR_INVALID, "--%s: algorithm %s does not read it (%.60s)", s->name[i],
                           algorithm->name, s->help[i]);
        sl_status st = sl_option_set(values, o, s->text[i], err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "--%s", s->name[i]);
    }
    return SL_OK;
}
