/*
 * Cold times of what the GQA strategies select by: scores of blocks (Quest), scores of tokens (Double Sparsity), votes of
 * an observation window (SnapKV); see cold.c. The shapes are those of Llama-3.1-8B: 32 query heads, 8 KV heads, d 128,
 * bf16. The bytes are those of the metadata and of the scores; the operations are multiplications and additions in
 * float32 outside of the tensor cores (row_dots.h).
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gqa.h"
#include "kernels/labels.h"
#include "kernels/window.h"
#include "tests/bench/cold.h"

enum { HEADS = 32, KV_HEADS = 8, DIM = 128, CHANNELS = 32, BLOCK_LOG2 = 4, MOST_TOKENS = 4096, WINDOW = 32 };
enum { PAGE_BLOCKS = (64 >> BLOCK_LOG2) * KV_HEADS, BOUNDS_PAGE = PAGE_BLOCKS * DIM * 4 };
enum { LABELS_PAGE = 64 * KV_HEADS * CHANNELS * 2 };
enum { ROW = 2 * DIM * 2 }; /* bytes of K and V of one token and KV head */

#define INT8_OPS 1.98e9 /* per microsecond, of the tensor cores; a query has two digits */
#define F32_OPS 59.2e6  /* per microsecond: 132 multiprocessors, 128 multiply-adds a clock, 1.755 GHz */

/* Inputs that all shapes share. */
static struct select {
    int32_t pages, next_page;
    uint8_t *plane;
    float *q, *scores;
    size_t n_scores;
    int32_t *channels;
} in;

static void setup(cold *c, int32_t page_bytes)
{
    int32_t of[KV_HEADS * CHANNELS];

    in = (struct select){.pages = c->o.tiny ? 64 : 120000};
    in.n_scores = c->o.tiny ? 1 << 16 : (size_t)1 << 28;
    in.plane = cold_random(c, (int64_t)in.pages * page_bytes / 2, SL_BF16, 0, 1);
    in.q = cold_random(c, (int64_t)MOST_TOKENS * HEADS * DIM, SL_F32, 0, 1);
    in.scores = cold_mem(c, in.n_scores * sizeof(float));
    for (int32_t i = 0; i < KV_HEADS * CHANNELS; i++)
        of[i] = i % CHANNELS * 4 + i / CHANNELS % 4;
    in.channels = cold_put(c, of, sizeof of);
}

static void setup_bounds(cold *c)
{
    setup(c, BOUNDS_PAGE);
}

static void setup_labels(cold *c)
{
    setup(c, LABELS_PAGE);
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

static sl_bounds_scores_params bounds_call(const cold_shape *s, int32_t ld)
{
    const sl_dtype dtype = s->a[4] ? SL_I8 : SL_BF16;

    return (sl_bounds_scores_params){.base = in.plane,
                                     .page_stride = PAGE_BLOCKS * sl_bounds_unit_bytes(DIM, dtype),
                                     .heads = HEADS,
                                     .kv_heads = KV_HEADS,
                                     .dim = DIM,
                                     .lists = KV_HEADS,
                                     .block_log2 = BLOCK_LOG2,
                                     .ld_scores = ld,
                                     .reduce = (sl_group_reduce)s->a[3],
                                     .scale = 0.088f,
                                     .dtype = dtype};
}

static sl_labels_scores_params labels_call(const cold_shape *s, int32_t ld)
{
    return (sl_labels_scores_params){.base = in.plane,
                                     .page_stride = LABELS_PAGE,
                                     .channels = in.channels,
                                     .heads = HEADS,
                                     .kv_heads = KV_HEADS,
                                     .dim = DIM,
                                     .count = CHANNELS,
                                     .lists = KV_HEADS,
                                     .ld_scores = ld,
                                     .reduce = (sl_group_reduce)s->a[3],
                                     .scale = 0.088f,
                                     .dtype = SL_BF16};
}

/* a: tokens, sequences, length, reduction, whether bounds are of int8 (random bytes, also as exponents) */
static void scores(cold *c, const cold_shape *s, bool labels)
{
    int32_t tokens = s->a[0], seqs = s->a[1], len = s->a[2];
    char text[64];

    if (c->o.tiny)
        seqs = seqs > 2 ? 2 : seqs, tokens = tokens > seqs ? 2 * seqs : seqs, len = 192;
    const int32_t rows = labels ? len : len >> BLOCK_LOG2, n = labels ? CHANNELS : 2 * DIM;
    const double unit = s->a[4] ? (double)sl_bounds_unit_bytes(DIM, SL_I8) : 2.0 * n;
    const double out = 4.0 * tokens * KV_HEADS * rows, bytes = unit * seqs * rows * KV_HEADS + out;
    const int32_t rounds = tokens > 256 ? 3 : cold_rounds(c, bytes, 40);
    const size_t each = (size_t)tokens * KV_HEADS * (size_t)(rows + 1);
    for (int32_t i = 0; i < rounds; i++) {
        const sl_seq_tables *t = tables(c, tokens, seqs, len);
        float *to = in.scores + (size_t)i * each % (in.n_scores - each + 1) / 64 * 64;
        sl_bounds_scores_params b = bounds_call(s, rows + 1);
        sl_labels_scores_params l = labels_call(s, rows + 1);

        b.seqs = l.seqs = t;
        b.q = l.q = in.q;
        b.scores = l.scores = to;
        b.token_count = l.token_count = tokens;
        if (labels)
            cold_add(c, SL_OP_LABELS_SCORES, &l, sizeof l);
        else
            cold_add(c, SL_OP_BOUNDS_SCORES, &b, sizeof b);
    }
    snprintf(text, sizeof text, "%d x %dK %s%s%s", tokens, len / 1024, sl_group_reduce_names()[s->a[3]],
             s->a[4] ? " int8" : "", seqs < tokens ? " one sequence" : "");
    cold_report(c, s, labels ? "labels_scores" : "bounds_scores", text, cold_time(c, rounds), bytes,
                2.0 * tokens * HEADS * rows * n * (s->a[4] ? 2 : 1) /
                    (s->a[3] == SL_GROUP_MEAN ? HEADS / KV_HEADS : 1),
                s->a[4] ? INT8_OPS : F32_OPS, 0);
}

static void bounds(cold *c, const cold_shape *s)
{
    scores(c, s, false);
}

static void labels(cold *c, const cold_shape *s)
{
    scores(c, s, true);
}

/* a: tokens of the prompt */
static void votes(cold *c, const cold_shape *s)
{
    int32_t len = c->o.tiny ? 192 : s->a[0], n = len / 64, pool = 4 * n,
            *pages = cold_host(c, 4 * (size_t)pool);
    uint8_t *rows = cold_random(c, (int64_t)pool * 64 * KV_HEADS * ROW / 2, SL_BF16, 0, 1);
    float *q = cold_random(c, WINDOW * HEADS * DIM, SL_F32, 0, 1),
          *out = cold_mem(c, sizeof *out * KV_HEADS * (size_t)len);
    const double ops = 2.0 * WINDOW * HEADS * DIM * len;
    char text[32];

    for (int32_t i = 0; i < pool && pages; i++)
        pages[i] = i / n * n + i * 37 % n;
    const int32_t *at = cold_put(c, pages, 4 * (size_t)pool);
    free(pages);
    for (int32_t i = 0; i < 4; i++) {
        sl_window_votes_params p = {.q = q,
                                    .row_pages = at + i * n,
                                    .rows = {.base = rows, .row_bytes = ROW, .heads = KV_HEADS},
                                    .votes = out,
                                    .tokens = len,
                                    .window = WINDOW,
                                    .heads = HEADS,
                                    .kv_heads = KV_HEADS,
                                    .dim = DIM,
                                    .ld_votes = len,
                                    .kernel = 5,
                                    .pooling = SL_POOLING_AVG,
                                    .scale = 0.088f,
                                    .format = SL_ROW_GQA_BF16};
        cold_add(c, SL_OP_WINDOW_VOTES, &p, sizeof p);
    }
    snprintf(text, sizeof text, "%d of %dK", WINDOW, len / 1024);
    cold_report(c, s, "window_votes", text, cold_time(c, 4), 2.0 * len * KV_HEADS * DIM, ops, F32_OPS, 0);
}

#define K 1024
#define MAX SL_GROUP_MAX
static const cold_shape bounds_shapes[] = {
    {{1, 1, 64 * K, MAX}, 0, 0},
    {{4, 4, 64 * K, MAX}, 0, 0},
    {{16, 16, 64 * K, MAX}, 0, 0},
    {{64, 64, 32 * K, MAX}, 0, 0},
    {{64, 64, 64 * K, MAX}, 0, 0},
    {{64, 64, 64 * K, SL_GROUP_MEAN}, 0, 0},
    {{64, 64, 64 * K, SL_GROUP_SOFTMAX}, 0, 0},
    {{512, 1, 64 * K, MAX}, 0, 0},
    {{2048, 1, 64 * K, MAX}, 0, 0},
    {{2048, 1, 64 * K, SL_GROUP_MEAN}, 0, 0},
    {{4096, 1, 32 * K, MAX}, 0, 0},
    {{1, 1, 64 * K, MAX, 1}, 0, 0},
    {{16, 16, 64 * K, MAX, 1}, 0, 0},
    {{64, 64, 64 * K, MAX, 1}, 0, 0},
    {{120, 120, 64 * K, MAX, 1}, 0, 0},
    {{64, 64, 64 * K, SL_GROUP_MEAN, 1}, 0, 0},
    {{64, 64, 64 * K, SL_GROUP_SOFTMAX, 1}, 0, 0},
    {{512, 1, 64 * K, MAX, 1}, 0, 0},
    {{2048, 1, 64 * K, MAX, 1}, 0, 0},
    {{2048, 1, 64 * K, SL_GROUP_MEAN, 1}, 0, 0},
};
static const cold_shape labels_shapes[] = {
    {{1, 1, 64 * K, MAX}, 0, 0},   {{16, 16, 64 * K, MAX}, 0, 0},
    {{32, 32, 64 * K, MAX}, 0, 0}, {{32, 32, 64 * K, SL_GROUP_SOFTMAX}, 0, 0},
    {{512, 1, 32 * K, MAX}, 0, 0},
};
static const cold_shape votes_shapes[] = {{{8 * K}, 0, 0}, {{32 * K}, 0, 0}, {{64 * K}, 0, 0}};

const cold_group cold_gqa_select_groups[] = {
    {"bounds_scores", setup_bounds, bounds, bounds_shapes, SL_COUNT(bounds_shapes)},
    {"labels_scores", setup_labels, labels, labels_shapes, SL_COUNT(labels_shapes)},
    {"window_votes", NULL, votes, votes_shapes, SL_COUNT(votes_shapes)},
    {0},
};
