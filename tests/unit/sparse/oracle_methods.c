/* What selects; see oracle_methods.h. */
#include "tests/unit/sparse/oracle_methods.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"
#include "kernels/labels.h"
#include "kernels/synth.h"
#include "kernels/window.h"

enum { KV = ORACLE_KV, GROUP = ORACLE_GROUP, HEADS = ORACLE_HEADS, DIM = ORACLE_DIM, BLOCK_LOG2 = 4 };
enum { CHANNELS = 32, KERNEL = 5, MAX_ALLOCS = 24 };

/* ---- memory and tables of one sequence ---- */

typedef struct rig {
    const oracle_input *in;
    void *allocs[MAX_ALLOCS];
    int32_t n_allocs, n_pages;
    sl_seq_tables all, last; /* all tokens; the last one */
    sl_row_view rows;
    sl_status st; /* first failure; everything after it is skipped */
    sl_err *err;
} rig;

static void *put(rig *r, const void *host, size_t bytes)
{
    void *p = NULL;

    if (r->st != SL_OK)
        return NULL;
    SL_CHECK(r->n_allocs < MAX_ALLOCS, "more than %d buffers", MAX_ALLOCS);
    r->st = sl_be_alloc(r->in->be, SL_MEM_DEVICE, bytes, &p, r->err);
    if (r->st != SL_OK)
        return NULL;
    r->allocs[r->n_allocs++] = p;
    r->st =
        host ? sl_be_copy(r->in->be, p, host, bytes, r->err) : sl_be_fill(r->in->be, p, 0xff, bytes, r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->in->be, r->err);
    return p;
}

static void run_op(rig *r, sl_op op, const void *params)
{
    if (r->st == SL_OK)
        r->st = sl_be_run(r->in->be, op, params, r->err);
}

static sl_status done(rig *r)
{
    while (r->n_allocs > 0)
        sl_be_free(r->in->be, SL_MEM_DEVICE, r->allocs[--r->n_allocs]);
    return r->st;
}

static void make_tables(rig *r)
{
    const int32_t n = r->in->d->n, pages = r->n_pages;
    int32_t *h = calloc((size_t)(2 * n + pages + 1), sizeof *h);

    SL_CHECK(h, "out of memory");
    for (int32_t i = 0; i < n; i++)
        h[n + i] = i;
    for (int32_t i = 0; i < pages; i++)
        h[2 * n + i] = pages - 1 - i;
    h[2 * n + pages] = -1;
    const int32_t *t = put(r, h, sizeof *h * (size_t)(2 * n + pages + 1));
    free(h);
    if (r->st != SL_OK)
        return;
    r->all = (sl_seq_tables){.n_tokens = n,
                             .n_seqs = 1,
                             .ld = pages,
                             .token_seq = t,
                             .token_pos = t + n,
                             .host_pages = t + 2 * n,
                             .index_pages = t + 2 * n,
                             .row_pages = t + 2 * n,
                             .hot_slot = t + 2 * n + pages};
    r->last = r->all;
    r->last.n_tokens = 1;
    r->last.token_pos = t + 2 * n - 1;
}

/* Rows of one KV head of 1 << block_log2 tokens. */
static void make_rows(rig *r, int32_t block_log2)
{
    const oracle_data *d = r->in->d;
    const int32_t slots = 1 << block_log2, in_page = SL_PAGE_TOKENS >> block_log2;
    const int64_t row = sl_gqa_row_bytes(SL_ROW_GQA_BF16, slots, DIM),
                  rows = (int64_t)r->n_pages * in_page * KV;
    uint8_t *h = calloc((size_t)rows, (size_t)row);

    SL_CHECK(h, "out of memory");
    for (int32_t t = 0; t < d->n; t++)
        for (int32_t v = 0; v < KV; v++) {
            int64_t page = r->n_pages - 1 - t / SL_PAGE_TOKENS;
            int64_t block = page * in_page + t % SL_PAGE_TOKENS / slots, at = ((int64_t)t * KV + v) * DIM;
            sl_gqa_row_encode(SL_ROW_GQA_BF16, slots, DIM, t % slots, 1, d->k + at, d->v + at,
                              h + (block * KV + v) * row);
        }
    r->rows = (sl_row_view){.base = put(r, h, (size_t)(rows * row)),
                            .row_bytes = row,
                            .hot_base = (int32_t)rows,
                            .heads = KV,
                            .block_log2 = block_log2};
    free(h);
}

static rig make_rig(const oracle_input *in, int32_t block_log2, sl_err *err)
{
    rig r = {.in = in, .n_pages = sl_pages_for(in->d->n), .st = SL_OK, .err = err};

    make_tables(&r);
    make_rows(&r, block_log2);
    return r;
}

/* Marks the listed blocks of each list for the query heads that share it. */
static void take(rig *r, const int32_t *ids, int32_t lists, int32_t ld, int32_t block_log2, uint8_t *out)
{
    const int32_t n = r->in->d->n, size = 1 << block_log2;
    int32_t *h = malloc(sizeof *h * (size_t)(lists * ld));

    SL_CHECK(h, "out of memory");
    if (r->st == SL_OK)
        r->st = sl_be_copy(r->in->be, h, ids, sizeof *h * (size_t)(lists * ld), r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->in->be, r->err);
    for (int32_t head = 0; head < HEADS && r->st == SL_OK; head++)
        for (int32_t i = 0; i < ld; i++) {
            int32_t id = h[head * lists / HEADS * ld + i];
            for (int32_t t = id * size; id >= 0 && t < (id + 1) * size && t < n; t++)
                out[(int64_t)head * n + t] = 1;
        }
    free(h);
}

/* ---- strategies ---- */

enum { SHARED = 16 }; /* + the reduction: one list for all KV heads */

static sl_status run_quest(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    rig r = make_rig(in, BLOCK_LOG2, err);
    const int64_t page = (SL_PAGE_TOKENS >> BLOCK_LOG2) * KV * sl_bounds_unit_bytes(DIM, SL_BF16);
    const int32_t lists = arg & SHARED ? 1 : KV, ld = sl_blocks_for(in->d->n, BLOCK_LOG2),
                  k = in->budget >> BLOCK_LOG2;
    sl_bounds_append_params a = {.seqs = &r.all,
                                 .rows = r.rows,
                                 .base = put(&r, NULL, (size_t)(r.n_pages * page)),
                                 .page_stride = page,
                                 .heads = KV,
                                 .dim = DIM,
                                 .format = SL_ROW_GQA_BF16,
                                 .dtype = SL_BF16};
    run_op(&r, SL_OP_BOUNDS_APPEND, &a);
    sl_bounds_scores_params s = {.q = put(&r, in->d->q, sizeof(float) * HEADS * DIM),
                                 .seqs = &r.last,
                                 .base = a.base,
                                 .page_stride = page,
                                 .scores = put(&r, NULL, sizeof(float) * (size_t)(lists * ld)),
                                 .token_count = 1,
                                 .heads = HEADS,
                                 .kv_heads = KV,
                                 .dim = DIM,
                                 .lists = lists,
                                 .block_log2 = BLOCK_LOG2,
                                 .ld_scores = ld,
                                 .reduce = (sl_group_reduce)(arg % SHARED),
                                 .scale = 1 / sqrtf(DIM),
                                 .dtype = SL_BF16};
    run_op(&r, SL_OP_BOUNDS_SCORES, &s);
    sl_topk_params t = {.scores = s.scores,
                        .seqs = &r.last,
                        .ids = put(&r, NULL, sizeof(int32_t) * (size_t)(lists * k)),
                        .token_count = 1,
                        .k = k,
                        .ld_scores = ld,
                        .ld_ids = k,
                        .sinks = 1,
                        .recent = 1,
                        .lists = lists,
                        .block_log2 = BLOCK_LOG2};
    run_op(&r, SL_OP_TOPK, &t);
    take(&r, t.ids, lists, k, BLOCK_LOG2, out);
    return done(&r);
}

typedef struct channel {
    double value;
    int32_t of;
} channel;

static int by_value(const void *a, const void *b)
{
    double x = ((const channel *)a)->value, y = ((const channel *)b)->value;
    return (x < y) - (x > y);
}

/* The channels of each KV head with the largest mean of |q * k|, a token with itself. */
static void calibrate(const oracle_data *d, int32_t *out)
{
    for (int32_t v = 0; v < KV; v++) {
        channel c[DIM] = {0};

        for (int32_t i = 0; i < DIM; i++)
            c[i].of = i;
        for (int32_t s = 0; s < ORACLE_SAMPLES; s++)
            for (int32_t g = 0; g < GROUP; g++)
                for (int32_t i = 0; i < DIM; i++) {
                    const float q = d->sample[((int64_t)s * HEADS + v * GROUP + g) * DIM + i];
                    c[i].value += fabs((double)(q * d->k[((int64_t)d->sample_pos[s] * KV + v) * DIM + i]));
                }
        qsort(c, DIM, sizeof *c, by_value);
        for (int32_t i = 0; i < CHANNELS; i++)
            out[v * CHANNELS + i] = c[i].of;
    }
}

static sl_status run_labels(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    rig r = make_rig(in, 0, err);
    const int64_t page = KV * sl_labels_unit_bytes(CHANNELS, SL_BF16);
    const int32_t n = in->d->n;
    int32_t channels[KV * CHANNELS];

    calibrate(in->d, channels);
    sl_labels_append_params a = {.seqs = &r.all,
                                 .rows = r.rows,
                                 .base = put(&r, NULL, (size_t)(r.n_pages * page)),
                                 .page_stride = page,
                                 .channels = put(&r, channels, sizeof channels),
                                 .heads = KV,
                                 .dim = DIM,
                                 .count = CHANNELS,
                                 .format = SL_ROW_GQA_BF16,
                                 .dtype = SL_BF16};
    run_op(&r, SL_OP_LABELS_APPEND, &a);
    sl_labels_scores_params s = {.q = put(&r, in->d->q, sizeof(float) * HEADS * DIM),
                                 .seqs = &r.last,
                                 .base = a.base,
                                 .page_stride = page,
                                 .channels = a.channels,
                                 .scores = put(&r, NULL, sizeof(float) * (size_t)(KV * n)),
                                 .token_count = 1,
                                 .heads = HEADS,
                                 .kv_heads = KV,
                                 .dim = DIM,
                                 .count = CHANNELS,
                                 .lists = KV,
                                 .ld_scores = n,
                                 .reduce = (sl_group_reduce)arg,
                                 .scale = 1 / sqrtf(DIM),
                                 .dtype = SL_BF16};
    run_op(&r, SL_OP_LABELS_SCORES, &s);
    sl_topk_params t = {.scores = s.scores,
                        .seqs = &r.last,
                        .ids = put(&r, NULL, sizeof(int32_t) * (size_t)(KV * in->budget)),
                        .token_count = 1,
                        .k = in->budget,
                        .ld_scores = n,
                        .ld_ids = in->budget,
                        .lists = KV};
    run_op(&r, SL_OP_TOPK, &t);
    take(&r, t.ids, KV, in->budget, 0, out);
    return done(&r);
}

static sl_status run_window(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    rig r = make_rig(in, 0, err);
    const int32_t prompt = in->d->n - 1, before = prompt - ORACLE_WINDOW,
                  kept = in->budget - ORACLE_WINDOW - 1;
    const int32_t last[2] = {0, before - 1}, prompts[2] = {prompt, kept};
    sl_window_votes_params v = {
        .q = put(&r, in->d->window[in->ask], sizeof(float) * ORACLE_WINDOW * HEADS * DIM),
        .row_pages = r.all.row_pages,
        .rows = r.rows,
        .votes = put(&r, NULL, sizeof(float) * (size_t)(KV * before)),
        .tokens = prompt,
        .window = ORACLE_WINDOW,
        .heads = HEADS,
        .kv_heads = KV,
        .dim = DIM,
        .ld_votes = before,
        .kernel = KERNEL,
        .pooling = (sl_pooling)arg,
        .scale = 1 / sqrtf(DIM),
        .format = SL_ROW_GQA_BF16};
    run_op(&r, SL_OP_WINDOW_VOTES, &v);
    sl_seq_tables seqs = r.last;
    seqs.token_seq = put(&r, last, sizeof last);
    seqs.token_pos = seqs.token_seq ? seqs.token_seq + 1 : NULL;
    sl_topk_params t = {.scores = v.votes,
                        .seqs = &seqs,
                        .ids = put(&r, NULL, sizeof(int32_t) * (size_t)(KV * kept)),
                        .token_count = 1,
                        .k = kept,
                        .ld_scores = before,
                        .ld_ids = kept,
                        .lists = KV};
    run_op(&r, SL_OP_TOPK, &t);
    sl_kept_lists_params l = {.seqs = &r.last,
                              .prompts = put(&r, prompts, sizeof prompts),
                              .kept = t.ids,
                              .ids = put(&r, NULL, sizeof(int32_t) * (size_t)(KV * in->budget)),
                              .token_count = 1,
                              .lists = KV,
                              .ld_kept = kept,
                              .ld_ids = in->budget,
                              .window = ORACLE_WINDOW};
    run_op(&r, SL_OP_KEPT_LISTS, &l);
    take(&r, l.ids, KV, in->budget, 0, out);
    return done(&r);
}

/* ---- what they are compared with ---- */

static void take_best(const double *p, int32_t n, int32_t budget, uint8_t *out)
{
    channel *c = malloc(sizeof *c * (size_t)n);

    SL_CHECK(c, "out of memory");
    for (int32_t t = 0; t < n; t++)
        c[t] = (channel){p[t], t};
    qsort(c, (size_t)n, sizeof *c, by_value);
    for (int32_t i = 0; i < budget; i++)
        out[c[i].of] = 1;
    free(c);
}

static sl_status run_best(const oracle_input *in, int32_t per_kv, uint8_t *out, sl_err *err)
{
    const int32_t n = in->d->n;
    double *sum = calloc((size_t)n, sizeof *sum);
    (void)err;

    SL_CHECK(sum, "out of memory");
    for (int32_t h = 0; h < HEADS; h++) {
        if (!per_kv) {
            take_best(in->p + (int64_t)h * n, n, in->budget, out + (int64_t)h * n);
            continue;
        }
        for (int32_t t = 0; t < n; t++)
            sum[t] = (h % GROUP ? sum[t] : 0) + in->p[(int64_t)h * n + t];
        for (int32_t g = 0; h % GROUP == GROUP - 1 && g < GROUP; g++)
            take_best(sum, n, in->budget, out + (int64_t)(h - g) * n);
    }
    free(sum);
    return SL_OK;
}

static sl_status run_streaming(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    const int32_t n = in->d->n;
    (void)arg;
    (void)err;

    for (int32_t h = 0; h < HEADS; h++)
        for (int32_t t = 0; t < n; t++)
            out[(int64_t)h * n + t] = t < ORACLE_SINKS || t >= n - in->budget + ORACLE_SINKS;
    return SL_OK;
}

static sl_status run_random(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    const int32_t n = in->d->n;
    (void)arg;
    (void)err;

    for (int32_t h = 0; h < HEADS; h++)
        for (int32_t i = 0, left = in->budget; left > 0; i++) {
            uint8_t *at =
                out + (int64_t)h * n + sl_synth_hash(in->seed, (uint64_t)h << 32 | (uint64_t)i) % (uint32_t)n;
            left -= !*at;
            *at = 1;
        }
    return SL_OK;
}

const oracle_method oracle_methods[] = {
    {.name = "oracle per query head", .run = run_best},
    {.name = "oracle per KV head", .run = run_best, .arg = true},
    {.name = "streaming_llm", .run = run_streaming},
    {.name = "random", .run = run_random},
#define QUEST .run = run_quest, .ops = true, .newest = true
    {.name = "quest max", QUEST, .arg = SL_GROUP_MAX, .exact = true, .mass = 0.9, .needles = 0.9},
    {.name = "quest mean", QUEST, .arg = SL_GROUP_MEAN, .exact = true, .mass = 0.9, .needles = 0.9},
    {.name = "quest softmax", QUEST, .arg = SL_GROUP_SOFTMAX, .mass = 0.9, .needles = 0.9},
    {.name = "quest mean, shared list", QUEST, .arg = SL_GROUP_MEAN + SHARED, .exact = true, .needles = 0.8},
#define LABELS .run = run_labels, .ops = true, .mass = 0.9, .needles = 0.9
    {.name = "double_sparsity max", LABELS, .arg = SL_GROUP_MAX, .exact = true},
    {.name = "double_sparsity softmax", LABELS, .arg = SL_GROUP_SOFTMAX},
#define WINDOW .run = run_window, .ops = true, .window = true, .needles = 0.9
    {.name = "snapkv avgpool 5", WINDOW, .arg = SL_POOLING_AVG},
    {.name = "snapkv maxpool 5", WINDOW, .arg = SL_POOLING_MAX},
    {0},
};
