/*
 * How long masks of constrained answers take: `masks DIR IDS [STREAMS [TOKENS]]`, with the tokenizer of DIR (tests/gpu/served makes
 * one of 129,280 ids: --tokenizer DIR) and the library that $SL_LLGUIDANCE names. Each stream follows the expression of `sluice bench
 * serve --modes constrained` and takes a random one of the ids that its mask allows. One thread; times are its processor time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "model/grammar.h"

static const char FIELDS[] = "(name: [a-z]{1,12}, number: [0-9]{1,6}; )+";

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint64_t seed = 1;

static uint32_t pick(uint32_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % n;
}

static int32_t pick_allowed(const uint32_t *bits, size_t words)
{
    uint32_t n = 0, at;
    for (size_t w = 0; w < words; w++)
        n += (uint32_t)__builtin_popcount(bits[w]);
    at = pick(n);
    for (size_t w = 0; w < words; w++)
        for (int b = 0; b < 32; b++)
            if (bits[w] >> b & 1 && at-- == 0)
                return (int32_t)(w * 32) + b;
    return -1;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void row(const char *what, double *us, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += us[i];
    qsort(us, (size_t)n, sizeof *us, by_value);
    printf("%s,%d,%.1f,%.1f,%.1f,%.1f\n", what, n, sum / n, us[n / 2], us[(n * 99 - 1) / 100], us[n - 1]);
}

static int measure(sl_grammars *g, int streams, int tokens)
{
    const size_t words = sl_grammar_mask_words(g);
    uint32_t *bits = calloc(words, sizeof *bits);
    double *us = calloc((size_t)(streams * tokens), sizeof *us);
    sl_grammar **c = calloc((size_t)streams, sizeof *c);
    int32_t *next = calloc((size_t)streams, sizeof *next);
    sl_err err = {{0}};
    char what[32];
    if (!bits || !us || !c || !next)
        return 1;
    for (int i = 0; i < streams; i++) {
        const double t0 = now_us();
        if (sl_grammar_open(g, SL_GRAMMAR_REGEX, FIELDS, strlen(FIELDS), &c[i], &err) != SL_OK)
            return fprintf(stderr, "%s\n", err.text), 1;
        us[i] = now_us() - t0;
    }
    printf("what,n,mean_us,p50_us,p99_us,most_us\n");
    row("open", us, streams);
    for (int k = 0, n = 0; k < tokens; k++) {
        for (int i = 0; i < streams; i++) {
            const double t0 = now_us();
            sl_status st = k ? sl_grammar_take(c[i], &next[i], 1, &err) : SL_OK;
            if (st != SL_OK || sl_grammar_mask(c[i], bits, &err) != SL_OK)
                return fprintf(stderr, "%s\n", err.text), 1;
            us[n++] = now_us() - t0;
            do
                next[i] = pick_allowed(bits, words);
            while (next[i] >= (int32_t)(words * 32) - 300); /* not the end */
        }
        if (k == 0 || k == 3 || k == 15 || k == tokens - 1) {
            snprintf(what, sizeof what, "masks to %d", k + 1);
            row(what, us, n);
            n = 0;
        }
    }
    for (int i = 0; i < streams; i++)
        sl_grammar_close(c[i]);
    free(bits);
    free(us);
    free(c);
    free(next);
    return 0;
}

int main(int argc, char **argv)
{
    sl_grammars *g;
    sl_err err = {{0}};
    if (argc < 3) {
        fprintf(stderr, "masks DIR IDS [STREAMS [TOKENS]]\n");
        return 2;
    }
    const int32_t ids = (int)strtol(argv[2], NULL, 10), eos = ids - 1;
    sl_grammars_opts o = {.dir = argv[1], .vocab = ids, .eos = &eos, .n_eos = 1};
    if (sl_grammars_open(&o, &g, &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.text), 1;
    const int rc = measure(g, argc > 3 ? (int)strtol(argv[3], NULL, 10) : 64,
                           argc > 4 ? (int)strtol(argv[4], NULL, 10) : 200);
    sl_grammars_close(g);
    return rc;
}
