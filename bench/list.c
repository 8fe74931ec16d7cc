/* Implementation of list.h. */
#include "bench/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t index_of(const char *text, size_t len, const char *const *names)
{
    for (int32_t i = 0; names[i]; i++)
        if (strlen(names[i]) == len && strncmp(names[i], text, len) == 0)
            return i;
    return -1;
}

static int32_t number_of(const char *text, size_t len, int32_t least)
{
    char *end;
    long n = strtol(text, &end, 10);
    return len > 0 && end == text + len && n >= least && n <= 1 << 24 ? (int32_t)n : -1;
}

bool sl_bench_list_parse(const char *text, const char *const *names, int32_t least, sl_bench_list *out)
{
    *out = (sl_bench_list){0};
    while (*text && out->n < SL_BENCH_LIST_MAX) {
        size_t len = strcspn(text, ",");
        int32_t v = names ? index_of(text, len, names) : number_of(text, len, least);
        if (v < 0)
            return false;
        out->v[out->n++] = v;
        text += len + (text[len] == ',');
    }
    return out->n > 0 && !*text;
}

bool sl_bench_list_flag(const char *command, const char *flag, const char *text, const char *const *names,
                        int32_t least, sl_bench_list *out)
{
    if (sl_bench_list_parse(text, names, least, out))
        return true;
    fprintf(stderr, "sluice %s: --%s %s is not a list of at most %d ", command, flag, text,
            SL_BENCH_LIST_MAX);
    if (names)
        fprintf(stderr, "names; there are: ");
    else
        fprintf(stderr, "whole numbers from %d", least);
    for (int i = 0; names && names[i]; i++)
        fprintf(stderr, "%s%s", i ? ", " : "", names[i]);
    fprintf(stderr, "\n");
    return false;
}

int32_t sl_bench_list_most(const sl_bench_list *l)
{
    int32_t most = 0;
    for (int i = 0; i < l->n; i++)
        most = l->v[i] > most ? l->v[i] : most;
    return most;
}
