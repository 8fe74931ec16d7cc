/*
 * What every parser costs that has a fuzzer: an input that is eight times as long takes at most 24 times the processor time, where the
 * square is 64 times. The list is that of the fuzzers (tests/fuzz/CMakeLists.txt), so no parser with a fuzzer is left out; one that
 * is not measured says why.
 *
 * Inputs are made, not listed: a part of a seed, of the parser's own corpus or of a few texts that open and close brackets, is repeated
 * in its place until the input has 8 and 64 KiB. Which part, is drawn by a generator with a fixed start, as many as CPU_S allows.
 * Each parser also judges what it is given as in its fuzzer.
 */
#include <check.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "tests/unit/run_suite.h"

enum { TIMES = 8, MOST = 24, SMALL = 8 << 10, SEEDS = 64, SEED_BYTES = 4096, CASES = 400, CASES_MIN = 12 };
#define CPU_S 0.4          /* of a parser; a case that has begun ends */
#define MEASURABLE_S 0.004 /* below this the larger input is free, whatever the smaller one took */

#define MEASURED(name) int fuzz_##name(const uint8_t *data, size_t size);
#define NOT_MEASURED(name, why)
#include "parsers.inc"
#undef MEASURED
#undef NOT_MEASURED

static const struct parser {
    const char *name;
    int (*run)(const uint8_t *data, size_t size);
    const char *why; /* it is not measured */
} parsers[] = {
#define MEASURED(name) {#name, fuzz_##name, NULL},
#define NOT_MEASURED(name, why) {#name, NULL, why},
#include "parsers.inc"
};

typedef struct seed {
    uint8_t bytes[SEED_BYTES];
    size_t n;
} seed;

static seed seeds[SEEDS];
static size_t n_seeds;

static void add_seed(const void *bytes, size_t n)
{
    if (n_seeds == SEEDS || !n || n > SEED_BYTES)
        return;
    memcpy(seeds[n_seeds].bytes, bytes, n);
    seeds[n_seeds++].n = n;
}

static void read_seed(const char *path)
{
    static uint8_t bytes[SEED_BYTES + 1];
    FILE *f = fopen(path, "rb");
    if (f)
        add_seed(bytes, fread(bytes, 1, sizeof bytes, f));
    if (f)
        fclose(f);
}

static void read_seeds(const char *parser)
{
    static const char *const texts[] = {"a",
                                        " ",
                                        "\n",
                                        "[",
                                        "{\"a\":",
                                        "[1,",
                                        "\"\\\"",
                                        "<a>",
                                        "a: b\n",
                                        "- a\n",
                                        "1e9,",
                                        "\xcc\x81"
                                        "e",
                                        "\xff\x01",
                                        "#a\n",
                                        "a=1&",
                                        "\r\n"};
    char dir[256], path[600];
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        add_seed(texts[i], strlen(texts[i]));
    add_seed("\0\0\0", 3);
    snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", parser);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.')
            read_seed(path);
    }
    if (d)
        closedir(d);
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t rng = 88172645463325252ull;

static size_t below(size_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (size_t)((rng >> 16) % n);
}

/* The seed with its bytes [at, at + part) repeated to about n bytes; *len: its bytes. */
static uint8_t *lengthened(const seed *s, size_t at, size_t part, size_t n, size_t *len)
{
    size_t copies = s->n < n ? (n - s->n) / part + 1 : 1, k = 0;
    uint8_t *out = malloc(s->n + copies * part);
    memcpy(out, s->bytes, at);
    k = at;
    for (size_t i = 0; i < copies; i++, k += part)
        memcpy(out + k, s->bytes + at, part);
    memcpy(out + k, s->bytes + at + part, s->n - at - part);
    *len = k + s->n - at - part;
    return out;
}

static double cost(const struct parser *p, const seed *s, size_t at, size_t part, size_t n, int rounds)
{
    size_t len;
    double best = 1e9;
    uint8_t *in = lengthened(s, at, part, n, &len);
    for (int i = 0; i < rounds; i++) {
        double begin = cpu_s();
        p->run(in, len);
        double took = cpu_s() - begin;
        best = took < best ? took : best;
    }
    free(in);
    return best;
}

static void check_case(const struct parser *p, size_t which, size_t at, size_t part)
{
    const seed *s = &seeds[which];
    double many = cost(p, s, at, part, TIMES * SMALL, 1);
    if (many <= MEASURABLE_S)
        return;
    double few = cost(p, s, at, part, SMALL, 3);
    if (many > MOST * few) /* once more, in case something else delayed it */
        many = cost(p, s, at, part, TIMES * SMALL, 3);
    ck_assert_msg(many <= MEASURABLE_S || many <= MOST * few,
                  "%s, seed %zu (%.40s), bytes %zu to %zu repeated: 8 KiB take %.2f ms, 64 KiB %.2f ms",
                  p->name, which, (const char *)s->bytes, at, at + part, few * 1e3, many * 1e3);
}

START_TEST(costs)
{
    const struct parser *p = &parsers[_i];
    if (!p->run) {
        printf("%s is not measured here; %s\n", p->name, p->why);
        return;
    }
    read_seeds(p->name);
    for (size_t i = 0; i < n_seeds; i++) /* what is made once is made */
        p->run(seeds[i].bytes, seeds[i].n);
    double begin = cpu_s();
    int n = 0;
    for (; n < CASES && (n < CASES_MIN || cpu_s() - begin < CPU_S); n++) {
        size_t which = (size_t)n < n_seeds ? n_seeds - 1 - (size_t)n : below(n_seeds);
        const seed *s = &seeds[which];
        size_t most = s->n < 200 ? s->n : 200, part = 1 + below(below(2) ? most : most < 12 ? most : 12);
        check_case(p, which, below(s->n - part + 1), part);
    }
    if (getenv("SL_TEST_LOG"))
        printf("%s: %d inputs, %.2f s\n", p->name, n, cpu_s() - begin);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parser cost");
    TCase *t = tcase_create("parsers");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, costs, 0, (int)SL_COUNT(parsers));
    suite_add_tcase(s, t);
    return run_suite(s);
}
