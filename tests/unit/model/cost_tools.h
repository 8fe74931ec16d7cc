/*
 * Texts of parts that repeat, and the measure of test_cost.c: what work on a text costs next to work on one that is eight times as long.
 */
#ifndef TESTS_MODEL_COST_TOOLS_H
#define TESTS_MODEL_COST_TOOLS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"

enum { TIMES = 8, MOST = 24, SMALL = 8 << 10, ROUNDS = 3 };
#define MEASURABLE_S 0.004 /* below this the larger input is free, whatever the smaller one took */

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- texts ---- */

typedef struct text {
    char *p;
    size_t n;
} text;

/* Repeats parts in turn, with what surrounds them, to about n bytes. */
static text repeated(const char *begin, const char *const *parts, size_t n_parts, const char *end, size_t n)
{
    size_t e = strlen(end);
    text t = {malloc(n + strlen(begin) + e + 512), 0};
    t.n = strlen(begin);
    memcpy(t.p, begin, t.n);
    for (size_t i = 0; t.n < n; i++) {
        const char *part = parts[i % n_parts];
        size_t k = strlen(part);
        memcpy(t.p + t.n, part, k);
        t.n += k;
    }
    memcpy(t.p + t.n, end, e + 1);
    t.n += e;
    return t;
}

typedef struct kind {
    const char *name, *begin;
    const char *parts[8];
    const char *end;
} kind;

static text make(const kind *k, size_t n)
{
    size_t parts = 0;
    while (parts < SL_COUNT(k->parts) && k->parts[parts])
        parts++;
    return repeated(k->begin ? k->begin : "", k->parts, parts, k->end ? k->end : "", n);
}

/* ---- measuring ---- */

typedef void job(const void *arg, const text *t);

static double cost(job *run, const void *arg, const text *t, int rounds)
{
    double best = 1e9;
    for (int i = 0; i < rounds; i++) {
        double begin = cpu_s();
        run(arg, t);
        double took = cpu_s() - begin;
        best = took < best ? took : best;
    }
    return best;
}

/* Whether the longer text takes too much more time than the short one; took: both times. */
static bool steep(const text *few, const text *many, job *run, const void *arg, double took[2])
{
    took[0] = cost(run, arg, few, ROUNDS);
    took[1] = cost(run, arg, many, 1);
    if (took[1] > MEASURABLE_S && took[1] > MOST * took[0]) /* once more, in case something else delayed it */
        took[1] = cost(run, arg, many, ROUNDS);
    return took[1] > MEASURABLE_S && took[1] > MOST * took[0];
}

#endif
