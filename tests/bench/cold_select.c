/* Cold times of selection: index queries, index scores, top-k, and the last two together; see cold.c. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/synth.h"
#include "tests/bench/cold.h"

enum { DIM = 128, HEADS = 64, PAGE = 64 * (DIM + 4), MOST_TOKENS = 2048 };

/* Inputs that all shapes share. */
static struct select {
    int32_t pages, k;
    uint8_t *keys, *q;
    float *weights, *scores;
    size_t n_scores;
    int32_t *ids;
    void *hint;
    int32_t next_page;
} in;

static void setup_scores(cold *c)
{
    enum { SCALES = 4096 };
    float *scales = cold_host(c, sizeof(float) * SCALES * 64);

    in = (struct select){.pages = c->o.tiny ? 300 : 160000, .k = c->o.tiny ? 64 : 2048};
    in.n_scores = c->o.tiny ? 1 << 14 : (size_t)100 << 20;
    in.keys = cold_random(c, (int64_t)in.pages * PAGE, SL_F8_E4M3, 0, 200);
    for (int32_t i = 0; i < SCALES * 64 && scales; i++)
        scales[i] = cold_below(c, 2) ? 0.015625f : 0.0078125f;
    cold_stripe(c, in.keys + 64 * DIM, PAGE, in.pages, scales, 64 * sizeof(float), SCALES);
    free(scales);
    in.q = cold_random(c, (int64_t)MOST_TOKENS * HEADS * DIM, SL_F8_E4M3, 0, 200);
    in.weights = cold_random(c, (int64_t)MOST_TOKENS * HEADS, SL_F32, 0, 0.017f);
    in.scores = cold_mem(c, in.n_scores * sizeof(float));
    in.ids = cold_mem(c, sizeof(int32_t) * MOST_TOKENS * 2048);
    in.hint = cold_mem(c, sl_topk_hint_bytes(64, 131072) + sl_topk_hint_bytes(MOST_TOKENS, 32768));
}

/* Consecutive pages of a sequence are 37 pages apart; every call begins where the previous one ended. */
static const sl_seq_tables *tables(cold *c, int32_t tokens, int32_t seqs, int32_t len)
{
    int32_t ld = len / 64 + 1, *pages = cold_host(c, sizeof *pages * (size_t)seqs * (size_t)ld);
    const sl_seq_tables *t;

    for (int64_t s = 0; s < seqs && pages; s++)
        for (int64_t j = 0; j < ld; j++)
            pages[s * ld + j] = (int32_t)((in.next_page + s * ld + j * 37 % ld) % in.pages);
    in.next_page = (int32_t)((in.next_page + (int64_t)seqs * ld) % in.pages);
    t = cold_tables(c, tokens, seqs, len, ld, pages);
    free(pages);
    return t;
}

typedef struct select_shape {
    int32_t tokens, seqs, len;
    bool hint, topk;
    char text[64];
} select_shape;

static void add_call(cold *c, const select_shape *s, int32_t i)
{
    size_t each = (size_t)s->tokens * (size_t)s->len;
    const sl_seq_tables *t = tables(c, s->tokens, s->seqs, s->len);
    sl_index_scores_params p = {.q = in.q,
                                .weights = in.weights,
                                .seqs = t,
                                .index_base = in.keys,
                                .index_page_stride = PAGE,
                                .scores = in.scores + (size_t)i * each % (in.n_scores - each + 1) / 64 * 64,
                                .token_count = s->tokens,
                                .heads = HEADS,
                                .dim = DIM,
                                .ld_scores = s->len,
                                .format = SL_INDEX_OFFICIAL,
                                .hint = s->hint ? in.hint : NULL};
    sl_topk_params k = {.scores = p.scores,
                        .seqs = t,
                        .ids = in.ids,
                        .token_count = s->tokens,
                        .k = in.k,
                        .ld_scores = s->len,
                        .ld_ids = in.k,
                        .hint = p.hint};

    cold_add(c, SL_OP_INDEX_SCORES, &p, sizeof p);
    if (s->topk)
        cold_add(c, SL_OP_TOPK, &k, sizeof k);
}

/* a: tokens, sequences, length, with hint, with top-k */
static void scores(cold *c, const cold_shape *a)
{
    select_shape s = {.tokens = a->a[0], .seqs = a->a[1], .len = a->a[2], .hint = a->a[3], .topk = a->a[4]};
    double keys, out, ops, us;
    int32_t rounds;

    if (c->o.tiny) {
        s.seqs = s.seqs > 2 ? 2 : s.seqs;
        s.tokens = s.tokens > s.seqs ? 2 * s.seqs : s.seqs;
        s.len = 192;
    }
    keys = (double)s.seqs * s.len * (DIM + 4);
    out = (double)s.tokens * s.len * sizeof(float);
    ops = 2.0 * s.tokens * s.len * HEADS * DIM;
    rounds = s.tokens > 256 ? 3 : cold_rounds(c, keys, 40);
    for (int32_t i = 0; i < rounds; i++)
        add_call(c, &s, i);
    us = cold_time(c, rounds);
    snprintf(s.text, sizeof s.text, "%d x %dK%s%s", s.tokens, s.len / 1024,
             s.seqs < s.tokens ? s.seqs == 1 ? " one sequence" : " two or four a sequence" : "",
             s.hint ? "" : " no hint");
    cold_report(c, a, s.topk ? "scores_topk" : "scores", s.text, us,
                keys + out + (s.topk ? 4.0 * in.k * s.tokens : 0), ops, COLD_FP8, 0);
}

/* ---- top-k alone, of N(0, 1) ---- */

enum { MADE = 8 << 20 }; /* scores that are generated; the others repeat them at other places */

static void setup_topk(cold *c)
{
    int32_t made = c->o.tiny ? 1 << 12 : MADE;
    float *h = cold_host(c, sizeof *h * (size_t)made);

    in = (struct select){.k = c->o.tiny ? 64 : 2048, .n_scores = (size_t)made * 8};
    for (int32_t i = 0; i < made && h; i++) {
        float s = 0;
        for (uint64_t j = 0; j < 4; j++) /* the sum of four uniform values is nearly normal */
            s += sl_synth_uniform(11, 4 * (uint64_t)i + j);
        h[i] = s * 0.8660254f;
    }
    in.scores = cold_mem(c, in.n_scores * sizeof(float));
    for (size_t i = 0; i < 8 && c->st == SL_OK; i++)
        c->st = sl_be_copy(c->be, in.scores + i * (size_t)made, h, sizeof *h * (size_t)made, &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    free(h);
    in.ids = cold_mem(c, sizeof(int32_t) * 64 * 2048);
}

/* a: rows, length */
static void topk(cold *c, const cold_shape *a)
{
    int32_t rows = c->o.tiny ? 2 : a->a[0], len = c->o.tiny ? 512 : a->a[1], rounds;
    size_t each = (size_t)rows * (size_t)len;
    const sl_seq_tables *t = cold_tables(c, rows, rows, len, len / 64, NULL);
    char text[32];

    rounds = cold_rounds(c, (double)each * 4, 40);
    for (int32_t i = 0; i < rounds; i++) {
        sl_topk_params p = {.scores = in.scores + (size_t)i * (each + 1024) % (in.n_scores - each) / 64 * 64,
                            .seqs = t,
                            .ids = in.ids,
                            .token_count = rows,
                            .k = in.k,
                            .ld_scores = len,
                            .ld_ids = in.k};
        cold_add(c, SL_OP_TOPK, &p, sizeof p);
    }
    snprintf(text, sizeof text, "%d x %dK", rows, len / 1024);
    cold_report(c, a, "topk", text, cold_time(c, rounds), (double)each * 4 + 4.0 * in.k * rows, 0, 1, 0);
}

/* ---- index queries ---- */

enum { ROPE = 64, QUERY_TOKENS = 16384 };

/* a: tokens */
static void query(cold *c, const cold_shape *a)
{
    int32_t tokens = c->o.tiny ? 4 : a->a[0], pool = c->o.tiny ? 16 : QUERY_TOKENS;
    double bytes = (double)tokens * HEADS * (DIM * 3 + 2 * sizeof(float));
    int32_t rounds = cold_rounds(c, bytes, 40), *pos = cold_host(c, sizeof *pos * (size_t)pool);
    void *q = cold_random(c, (int64_t)pool * HEADS * DIM, SL_BF16, 0, 3), *at = NULL, *out, *weights;
    void *w = cold_random(c, (int64_t)pool * HEADS, SL_F32, 0, 1), *cs;
    char text[32];

    for (int32_t i = 0; i < pool && pos; i++)
        pos[i] = i % 4096;
    at = cold_put(c, pos, sizeof *pos * (size_t)pool);
    free(pos);
    cs = cold_random(c, 4096 * ROPE, SL_F32, 0, 1);
    out = cold_mem(c, (size_t)pool * HEADS * DIM);
    weights = cold_mem(c, sizeof(float) * (size_t)pool * HEADS);
    for (int32_t i = 0; i < rounds && c->st == SL_OK; i++) {
        int64_t first = (int64_t)i * tokens % (pool - tokens + 1);
        sl_index_query_params p = {.q = (const uint8_t *)q + first * HEADS * DIM * 2,
                                   .wproj = (const float *)w + first * HEADS,
                                   .pos = (const int32_t *)at + first,
                                   .cos_sin = cs,
                                   .q_out = (uint8_t *)out + first * HEADS * DIM,
                                   .weights = (float *)weights + first * HEADS,
                                   .tokens = tokens,
                                   .heads = HEADS,
                                   .dim = DIM,
                                   .rope = ROPE,
                                   .format = SL_INDEX_OFFICIAL,
                                   .act = SL_BF16};
        cold_add(c, SL_OP_INDEX_QUERY, &p, sizeof p);
    }
    snprintf(text, sizeof text, "%d tokens", tokens);
    cold_report(c, a, "index_query", text, cold_time(c, rounds), bytes, 0, 1, 0);
}

#define K 1024
static const cold_shape query_shapes[] = {{{1}, 0, 0}, {{64}, 0, 0}, {{4096}, 0, 0}};
static const cold_shape scores_shapes[] = {
    {{1, 1, 16 * K, 1, 0}, 3.6, 0},        {{1, 1, 64 * K, 1, 0}, 5.5, 0},
    {{1, 1, 128 * K, 1, 0}, 8.0, 6},       {{1, 1, 128 * K, 0, 0}, 8.0, 0},
    {{4, 4, 128 * K, 1, 0}, 22.3, 0},      {{20, 20, 64 * K, 1, 0}, 48.5, 44},
    {{20, 20, 64 * K, 0, 0}, 48.5, 0},     {{32, 32, 128 * K, 1, 0}, 142.9, 0},
    {{64, 64, 128 * K, 1, 0}, 279.6, 265}, {{64, 64, 128 * K, 0, 0}, 279.6, 0},
    {{32, 16, 128 * K, 1, 0}, 78.5, 0},    {{64, 16, 128 * K, 1, 0}, 0, 0},
    {{2048, 1, 32 * K, 1, 0}, 0, 0},
};
static const cold_shape both_shapes[] = {
    {{1, 1, 16 * K, 1, 1}, 14.4, 0},       {{1, 1, 64 * K, 1, 1}, 17.5, 0},
    {{1, 1, 128 * K, 1, 1}, 22.8, 13},     {{4, 4, 128 * K, 1, 1}, 37.7, 0},
    {{16, 16, 64 * K, 1, 1}, 56.3, 0},     {{20, 20, 32 * K, 1, 1}, 39.1, 0},
    {{20, 20, 64 * K, 1, 1}, 64.2, 52},    {{32, 32, 64 * K, 1, 1}, 96.5, 0},
    {{32, 32, 128 * K, 1, 1}, 176.1, 150}, {{64, 64, 128 * K, 1, 1}, 326.4, 0},
};
static const cold_shape topk_shapes[] = {
    {{1, 16 * K}, 10.1, 10.1},   {{1, 32 * K}, 10.8, 10.8},   {{1, 64 * K}, 12.5, 12.5},
    {{1, 128 * K}, 14.3, 14.3},  {{4, 16 * K}, 10.1, 10.1},   {{4, 32 * K}, 11.1, 11.1},
    {{4, 64 * K}, 12.9, 12.9},   {{4, 128 * K}, 14.5, 14.5},  {{16, 16 * K}, 10.6, 10.6},
    {{16, 32 * K}, 12.6, 12.6},  {{16, 64 * K}, 16.3, 16.3},  {{16, 128 * K}, 19.2, 19.2},
    {{20, 16 * K}, 10.7, 10.7},  {{20, 32 * K}, 12.6, 12.6},  {{20, 64 * K}, 16.4, 16.4},
    {{20, 128 * K}, 19.4, 19.4}, {{32, 16 * K}, 12.7, 12.7},  {{32, 32 * K}, 16.7, 16.7},
    {{32, 64 * K}, 23.3, 23.3},  {{32, 128 * K}, 26.6, 26.6}, {{64, 16 * K}, 13.1, 13.1},
    {{64, 32 * K}, 17.2, 17.2},  {{64, 64 * K}, 25.8, 25.8},  {{64, 128 * K}, 31.7, 31.7},
};

const cold_group cold_select_groups[] = {
    {"index_query", NULL, query, query_shapes, SL_COUNT(query_shapes)},
    {"scores", setup_scores, scores, scores_shapes, SL_COUNT(scores_shapes)},
    {"scores_topk", setup_scores, scores, both_shapes, SL_COUNT(both_shapes)},
    {"topk", setup_topk, topk, topk_shapes, SL_COUNT(topk_shapes)},
    {0},
};
