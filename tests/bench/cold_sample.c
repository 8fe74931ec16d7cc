/*
 * Cold times of SL_OP_SAMPLE; see cold.c. The vocabulary is that of DeepSeek-V3.2. Flat logits are uniform over a few
 * units, peaked ones have few tokens far above the others, as a trained model's, equal ones are the worst case of a
 * search. The peer is the same choice by the operations of torch 2.11 on an H200, of a whole batch with one set of
 * parameters; flat and peaked logits take it the same time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/sample_math.h"
#include "tests/bench/cold.h"

enum { VOCAB = 129280, MOST_ROWS = 256, ENTRIES = 1000 };
enum { GREEDY, PLAIN, TOP_K, TOP_P, BOTH, BEST_5, BEST_20, PENALTIES, MODES };
enum { FLAT, PEAKED, EQUAL };

static const char *const mode_names[MODES] = {"greedy",
                                              "temperature",
                                              "top_k 50",
                                              "top_p 0.95",
                                              "top_k 1000 and top_p 0.95",
                                              "5 log-probabilities",
                                              "20 log-probabilities",
                                              "penalties"};
static const char *const kind_names[] = {"flat", "peaked", "equal"};

static int32_t vocab_of(const cold *c)
{
    return c->o.tiny ? 3000 : VOCAB;
}

/* Logits of `rows` rows. */
static float *make_logits(cold *c, int32_t rows, int32_t kind)
{
    enum { DISTINCT = 4 };
    int32_t vocab = vocab_of(c);
    int64_t n = (int64_t)rows * vocab;

    if (kind == FLAT)
        return cold_random(c, n, SL_F32, 0, 3);
    float *dev = cold_mem(c, (size_t)n * sizeof *dev),
          *host = cold_host(c, (size_t)DISTINCT * (size_t)vocab * sizeof *host);
    for (int64_t i = 0; host && i < (int64_t)DISTINCT * vocab; i++) {
        float u = (float)cold_below(c, 1 << 20) * 0x1p-20f, v = (float)cold_below(c, 1 << 20) * 0x1p-20f;
        host[i] = kind == EQUAL ? 0.25f : i % 3000 == 7 ? 12 * u : 4 * (u + v) - 14;
    }
    cold_stripe(c, (uint8_t *)dev, (int64_t)vocab * 4, rows, host, (int64_t)vocab * 4, DISTINCT);
    free(host);
    return dev;
}

/* A list of tokens that are spread over the vocabulary, half of them in the output. */
static sl_sample_list *make_list(cold *c)
{
    int32_t vocab = vocab_of(c), n = c->o.tiny ? 20 : ENTRIES;
    sl_sample_list *l = cold_host(c, sl_sample_list_bytes(n)), *dev;

    for (int32_t k = 0; l && k < n; k++)
        l->entry[k] = (sl_sample_entry){.id = (int32_t)((int64_t)k * vocab / n),
                                        .seen = SL_SAMPLE_KNOWN + (uint32_t)(k % 2) * SL_SAMPLE_ONCE};
    if (l)
        l->n = l->room = n;
    dev = cold_put(c, l, sl_sample_list_bytes(n));
    free(l);
    return dev;
}

static sl_sample_row row_of(cold *c, int32_t i, int32_t mode)
{
    sl_sample_row r = {.seed = ++c->seed, .row = i, .n_logprobs = -1, .inv_t = 1, .repetition = 1};

    r.top_p = mode == TOP_P || mode == BOTH ? (uint64_t)(0.95 * 0x1p32) : SL_SAMPLE_P_ONE;
    r.top_k = mode == TOP_K ? 50 : mode == BOTH ? 1000 : 0;
    r.inv_t = mode == GREEDY ? 0 : 1 / 0.7f;
    if (mode == BEST_5 || mode == BEST_20)
        r.n_logprobs = mode == BEST_5 ? 5 : 20, r.inv_t = 0;
    if (mode == PENALTIES) {
        r.frequency = r.presence = 0.1f, r.repetition = 1.1f;
        r.list = make_list(c);
    }
    return r;
}

/* a: rows, mode, kind of logits */
static void sample(cold *c, const cold_shape *a)
{
    int32_t n = c->o.tiny && a->a[0] > 3 ? 3 : a->a[0], vocab = vocab_of(c);
    double bytes = (double)n * vocab * 4;
    int32_t rounds = cold_rounds(c, bytes, a->a[1] == PENALTIES ? 8 : 20);
    char text[96];

    for (int32_t i = 0; i < rounds; i++) {
        sl_sample_row rows[MOST_ROWS];
        for (int32_t k = 0; k < n; k++)
            rows[k] = row_of(c, k, a->a[1]);
        sl_sample_params p = {.logits = make_logits(c, n, a->a[2]),
                              .rows = cold_put(c, rows, (size_t)n * sizeof *rows),
                              .out = cold_mem(c, (size_t)n * sizeof(sl_sampled)),
                              .n = n,
                              .n_logits = n,
                              .vocab = vocab,
                              .ld = vocab};
        cold_add(c, SL_OP_SAMPLE, &p, sizeof p);
    }
    double us = cold_time(c, rounds);
    snprintf(text, sizeof text, "%d x %d %s %s", n, vocab, mode_names[a->a[1]], kind_names[a->a[2]]);
    cold_report(c, a, "sample", text, us, bytes, 0, 1, 0);
}

static const cold_shape shapes[] = {
    {{64, GREEDY, FLAT}, 29, 40},    {{64, PLAIN, FLAT}, 141, 0},     {{64, TOP_K, FLAT}, 278, 150},
    {{64, TOP_K, PEAKED}, 278, 150}, {{64, TOP_P, FLAT}, 1180, 150},  {{64, TOP_P, PEAKED}, 1180, 150},
    {{64, TOP_P, EQUAL}, 1180, 150}, {{64, BOTH, FLAT}, 0, 0},        {{64, BEST_5, FLAT}, 245, 150},
    {{64, BEST_20, FLAT}, 0, 150},   {{64, BEST_20, PEAKED}, 0, 150}, {{64, PENALTIES, FLAT}, 0, 0},
    {{1, GREEDY, FLAT}, 28, 0},      {{1, TOP_P, FLAT}, 335, 0},      {{16, TOP_P, FLAT}, 612, 0},
    {{256, GREEDY, FLAT}, 50, 0},    {{256, PLAIN, FLAT}, 342, 0},    {{256, TOP_P, FLAT}, 3600, 0},
    {{256, BEST_5, FLAT}, 650, 0},
};

const cold_group cold_sample_groups[] = {
    {"sample", NULL, sample, shapes, SL_COUNT(shapes)},
    {0},
};
