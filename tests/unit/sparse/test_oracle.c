/*
 * The synthetic oracle: every GQA strategy selects from the same made-up keys (oracle_data.h), through the ops of a backend,
 * and is judged by the weights of dense attention in double.
 *
 *   test_oracle [--backend cpu|cuda] [--full]
 *
 * One line per strategy, for the question inside and outside of the observation window:
 *   mass       share of the attention weight that lies on selected tokens, mean over query heads
 *   no_ends    the same without the first 4 and the last 64 tokens
 *   top256     share of the 256 heaviest tokens that are selected
 *   needles    share of the needles that the heads of that type selected; min: that of the worst head and seed
 *   error      |o - o'| / |o| of attention over the selected tokens
 *
 * Floors, which a strategy that is not what it claims to be would miss: see judge(). On another backend than the CPU the
 * sets are also compared with those of the CPU: equal where the scores have the same bits, and with at most two exchanged
 * tokens or blocks per list, at the rank of the last one, where they differ by rounding. A strategy of which the tested
 * backend lacks an op is skipped, with the backend's reason in a line that begins with #.
 *
 * Without --full: one seed, 4,096 tokens, a budget of 512. With it: six seeds, 16,384 tokens, a budget of 1,024.
 * Exit code 0: all floors hold; 1: not; 2: usage; 77: no such backend here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/sparse/oracle_methods.h"

enum {
    HEADS = ORACLE_HEADS,
    GROUP = ORACLE_GROUP,
    DIM = ORACLE_DIM,
    RECENT = 64,
    TOP = 256,
    EXCHANGED = 2 * 16
};

typedef struct result { /* sums over seeds, except the last field */
    double mass, no_ends, top, needles, error, worst;
} result;

typedef struct options {
    const char *backend;
    bool full;
} options;

typedef struct bench {
    options o;
    sl_backend *be, *cpu;
    result of[2][ORACLE_METHODS_MAX];      /* [ask] */
    char skipped[ORACLE_METHODS_MAX][256]; /* why the tested backend cannot run it; empty: it can */
    int32_t failures;
} bench;

static void fail(bench *b, const char *what, const char *name, int ask, double got, double want)
{
    fprintf(stderr, "test_oracle: %s, question %s the window: %s is %.4f, but the limit is %.4f\n", name,
            ask ? "inside" : "outside", what, got, want);
    b->failures++;
}

/* ---- metrics ---- */

/* p[head][token] = softmax of q . k / sqrt(DIM). */
static double *weights_of(const oracle_data *d)
{
    double *p = malloc(sizeof *p * HEADS * (size_t)d->n);

    SL_CHECK(p, "out of memory");
    for (int32_t h = 0; h < HEADS; h++) {
        double *w = p + (int64_t)h * d->n, top = -INFINITY, sum = 0;

        for (int32_t t = 0; t < d->n; t++) {
            const float *k = d->k + ((int64_t)t * ORACLE_KV + h / GROUP) * DIM, *q = d->q + (int64_t)h * DIM;
            double s = 0;
            for (int32_t i = 0; i < DIM; i++)
                s += (double)q[i] * (double)k[i];
            w[t] = s / sqrt((double)DIM);
            top = fmax(top, w[t]);
        }
        for (int32_t t = 0; t < d->n; t++)
            sum += w[t] = exp(w[t] - top);
        for (int32_t t = 0; t < d->n; t++)
            w[t] /= sum;
    }
    return p;
}

/* |o - o'| / |o| of one query head. */
static double error_of(const oracle_data *d, int32_t head, const double *p, const uint8_t *in, double mass)
{
    double all[DIM] = {0}, some[DIM] = {0}, diff = 0, norm = 0;

    for (int32_t t = 0; t < d->n; t++) {
        const float *v = d->v + ((int64_t)t * ORACLE_KV + head / GROUP) * DIM;
        for (int32_t i = 0; i < DIM; i++) {
            all[i] += p[t] * (double)v[i];
            if (in[t])
                some[i] += p[t] / mass * (double)v[i];
        }
    }
    for (int32_t i = 0; i < DIM; i++) {
        diff += (all[i] - some[i]) * (all[i] - some[i]);
        norm += all[i] * all[i];
    }
    return sqrt(diff / norm);
}

static void measure(const oracle_data *d, const double *p, const uint8_t *best, const uint8_t *in, result *r)
{
    for (int32_t h = 0; h < HEADS; h++) {
        const double *w = p + (int64_t)h * d->n;
        const uint8_t *s = in + (int64_t)h * d->n, *top = best + (int64_t)h * d->n;
        double mass = 0, middle = 0, taken = 0, hits = 0, found = 0;

        for (int32_t t = 0; t < d->n; t++) {
            const bool ends = t < ORACLE_SINKS || t >= d->n - RECENT;
            mass += s[t] ? w[t] : 0;
            middle += ends ? 0 : w[t];
            taken += !ends && s[t] ? w[t] : 0;
            hits += s[t] && top[t];
        }
        r->mass += mass / HEADS;
        r->no_ends += taken / middle / HEADS;
        r->top += hits / TOP / HEADS;
        r->error += error_of(d, h, w, s, mass) / HEADS;
        if (h / GROUP != ORACLE_NEEDLE)
            continue;
        for (int32_t i = 0; i < ORACLE_NEEDLES; i++)
            found += s[d->needle[i]];
        r->needles += found / ORACLE_NEEDLES / GROUP;
        r->worst = fmin(r->worst, found / ORACLE_NEEDLES);
    }
}

/* ---- runs ---- */

/* Compares the sets of the tested backend with those of the CPU. */
static void compare(bench *b, const oracle_method *m, const oracle_input *in, const uint8_t *got,
                    uint8_t *want)
{
    oracle_input cpu = *in;
    sl_err err = {0};

    cpu.be = b->cpu;
    if (m->run(&cpu, m->arg, want, &err) != SL_OK) {
        fprintf(stderr, "test_oracle: %s on the CPU: %s\n", m->name, err.text);
        b->failures++;
        return;
    }
    int32_t most = 0;
    for (int32_t h = 0; h < HEADS; h++) {
        int32_t other = 0;
        for (int64_t t = (int64_t)h * in->d->n; t < ((int64_t)h + 1) * in->d->n; t++)
            other += got[t] != want[t];
        most = other > most ? other : most;
    }
    if (most > (m->exact ? 0 : 2 * EXCHANGED))
        fail(b, "tokens that differ from the CPU", m->name, in->ask, most, m->exact ? 0 : 2 * EXCHANGED);
    else if (most > 0)
        printf("# %s, seed %d: a list differs from the CPU in %d tokens, within rounding\n", m->name,
               (int)in->seed, most);
}

static void run_seed(bench *b, uint64_t seed, int32_t n, int32_t budget)
{
    const size_t bytes = HEADS * (size_t)n;
    uint8_t *out = malloc(bytes), *want = malloc(bytes), *best = calloc(bytes, 1);
    oracle_data d;

    SL_CHECK(out && want && best, "out of memory");
    oracle_make(&d, n, seed);
    double *p = weights_of(&d);
    oracle_input in = {
        .d = &d, .be = b->be, .cpu = b->cpu ? b->cpu : b->be, .budget = TOP, .p = p, .seed = seed};
    sl_err err = {0};
    oracle_methods[ORACLE_PER_HEAD].run(&in, 0, best, &err);
    in.budget = budget;
    for (in.ask = 0; in.ask < 2; in.ask++)
        for (int32_t i = 0; oracle_methods[i].name; i++) {
            const oracle_method *m = &oracle_methods[i];

            if (in.ask && !m->window) {
                b->of[1][i] = b->of[0][i]; /* selects without the window */
                continue;
            }
            memset(out, 0, bytes);
            memset(want, 0, bytes);
            sl_status st = m->run(&in, m->arg, out, &err);
            if (st == SL_ERR_UNSUPPORTED && b->cpu) { /* the tested backend lacks one of its ops */
                snprintf(b->skipped[i], sizeof b->skipped[i], "%.250s", err.text);
                continue;
            }
            if (st != SL_OK) {
                fprintf(stderr, "test_oracle: %s: %s\n", m->name, err.text);
                b->failures++;
                continue;
            }
            measure(&d, p, best, out, &b->of[in.ask][i]);
            if (b->cpu && m->ops)
                compare(b, m, &in, out, want);
        }
    oracle_free(&d);
    free(p);
    free(best);
    free(want);
    free(out);
}

/* ---- floors ---- */

static void need(bench *b, bool more, const char *what, int32_t i, int ask, double got, double limit)
{
    if (more ? !(got >= limit) : !(got <= limit))
        fail(b, what, oracle_methods[i].name, ask, got, limit);
}

/* Nothing is better than the oracle per query head, and everything is better than random. What has the first and the
 * newest tokens and something else is better than those alone. Strategies keep their share of the mass, and find the
 * needles; those of an observation window only if the question was asked in it. */
static void judge(bench *b, int32_t i, int ask)
{
    const oracle_method *m = &oracle_methods[i];
    const result *r = &b->of[ask][i], *all = b->of[ask];

    need(b, false, "mass", i, ask, r->mass, all[ORACLE_PER_HEAD].mass + 1e-12);
    if (!m->ops)
        return;
    need(b, true, "mass", i, ask, r->mass, all[ORACLE_RANDOM].mass);
    need(b, true, "top256", i, ask, r->top, all[ORACLE_RANDOM].top);
    if (!m->window || ask) {
        need(b, true, "mass", i, ask, r->mass, m->mass * all[ORACLE_PER_KV].mass);
        need(b, true, "top256", i, ask, r->top, m->top);
    }
    if (m->newest || (m->window && ask))
        need(b, true, "mass", i, ask, r->mass, all[ORACLE_STREAMING].mass);
    if (m->window && !ask)
        need(b, false, "needles", i, ask, r->needles, 0.3);
    else
        need(b, true, "needles", i, ask, r->needles, m->needles);
}

static void report(bench *b, int32_t seeds)
{
    printf("method,question,mass,no_ends,top256,needles,needles_min,error\n");
    for (int ask = 1; ask >= 0; ask--)
        for (int32_t i = 0; oracle_methods[i].name; i++) {
            result *r = &b->of[ask][i];
            const double k = 1.0 / seeds;

            if (b->skipped[i][0]) {
                printf("# %s: skipped: %s\n", oracle_methods[i].name, b->skipped[i]);
                continue;
            }
            *r = (result){r->mass * k, r->no_ends * k, r->top * k, r->needles * k, r->error * k, r->worst};
            printf("\"%s\",%s,%.3f,%.3f,%.3f,%.2f,%.2f,%.3f\n", oracle_methods[i].name,
                   ask ? "inside" : "outside", r->mass, r->no_ends, r->top, r->needles, r->worst, r->error);
        }
    for (int ask = 0; ask < 2; ask++)
        for (int32_t i = 0; oracle_methods[i].name; i++)
            if (!b->skipped[i][0])
                judge(b, i, ask);
}

static bool parse(options *o, int argc, char **argv)
{
    *o = (options){.backend = "cpu"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--full") == 0)
            o->full = true;
        else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc)
            o->backend = argv[++i];
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    bench b = {0};
    sl_backend_opts opts = {0};
    sl_err err = {0};

    if (!parse(&b.o, argc, argv)) {
        fprintf(stderr, "usage: test_oracle [--backend cpu|cuda] [--full]\n");
        return 2;
    }
    sl_status st = sl_backend_create(b.o.backend, &opts, &b.be, &err);
    if (st == SL_OK && strcmp(b.o.backend, "cpu") != 0)
        st = sl_backend_create("cpu", &opts, &b.cpu, &err);
    if (st != SL_OK) {
        fprintf(stderr, "test_oracle: %s\n", err.text);
        sl_backend_destroy(b.be);
        return st == SL_ERR_UNSUPPORTED ? 77 : 1;
    }
    for (int ask = 0; ask < 2; ask++)
        for (int32_t i = 0; i < ORACLE_METHODS_MAX; i++)
            b.of[ask][i].worst = 1;
    const int32_t seeds = b.o.full ? 6 : 1;
    for (int32_t s = 1; s <= seeds; s++)
        run_seed(&b, (uint64_t)s, b.o.full ? 16384 : 4096, b.o.full ? 1024 : 512);
    report(&b, seeds);
    sl_backend_destroy(b.cpu);
    sl_backend_destroy(b.be);
    return b.failures ? 1 : 0;
}
