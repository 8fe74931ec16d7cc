/* See work.h. */
#include "router/work.h"

#include <stddef.h>

static void add(sl_work *w, const char *name, uint64_t ns)
{
    unsigned i = 0;
    while (i < w->n && w->at[i].name != name)
        i++;
    if (i == SL_WORK_KINDS)
        i--;
    if (i == w->n) {
        w->at[w->n].name = name;
        w->at[w->n++].ns = 0;
    }
    w->at[i].ns += ns;
}

const char *sl_work_enter(sl_work *w, const char *name, uint64_t now_ns)
{
    const char *before = w->now;
    if (before && now_ns > w->since_ns)
        add(w, before, now_ns - w->since_ns);
    w->now = name;
    w->since_ns = now_ns;
    return before;
}

void sl_work_slept(sl_work *w, const char *name, uint64_t ns)
{
    for (unsigned i = 0; i < w->n; i++) {
        if (w->at[i].name == name)
            w->at[i].ns -= ns < w->at[i].ns ? ns : w->at[i].ns;
    }
}

const char *sl_work_most(const sl_work *w, uint64_t *ns)
{
    const char *name = "";
    *ns = 0;
    for (unsigned i = 0; i < w->n; i++) {
        if (w->at[i].ns > *ns) {
            *ns = w->at[i].ns;
            name = w->at[i].name;
        }
    }
    return name;
}

void sl_work_reset(sl_work *w, uint64_t now_ns)
{
    w->n = 0;
    w->since_ns = now_ns;
}
