/*
 * SL_OP_SAMPLE: rows of every kind under parameters of every kind. Both are functions of the row's number, so a case of
 * some tens of rows mixes them; tokens, log-probabilities and lists are compared by their bytes, and the logits must be
 * unchanged afterwards.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/sample_math.h"
#include "tests/unit/kernels/cf.h"

enum {
    NORMAL,   /* a few units wide: the logits of an untrained model are flat */
    EQUAL,    /* all the same */
    STEPS,    /* few values: many ties */
    ALONE,    /* -inf but one */
    PEAKED,   /* as a trained model's */
    EXTREMES, /* up to FLT_MAX, many -inf */
    CLOSE,    /* neighbouring floats */
    RISING,
    ZEROS, /* both zeros and denormal numbers */
    BROKEN,
    HALVES, /* values of bf16 */
    KINDS,
};

enum { ENTRIES = 40 };

static float close_to(float x, int steps)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u += (uint32_t)steps;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float logit(int kind, int64_t row, int64_t i, int64_t vocab)
{
    uint64_t h = cf_hash(7, row * 1000003 + i);
    float u = cf_uniform(11, row * 1000003 + i), v = cf_uniform(12, row * 1000003 + i);

    switch (kind) {
    case EQUAL:
        return -3.5f;
    case STEPS:
        return (float)(h % 5) * 0.25f;
    case ALONE:
        return i == row * 31 % vocab ? -2.0f : -INFINITY;
    case PEAKED:
        return h % 997 == 3 ? 14 * u * u : 4 * (u + v) - 12;
    case EXTREMES:
        return h % 3 == 0 ? -INFINITY : h % 3 == 1 ? FLT_MAX * u : 80 * u;
    case CLOSE:
        return close_to(5.0f, (int)(h % 300));
    case RISING:
        return (float)i * 1e-3f;
    case ZEROS:
        return h % 3 == 0 ? 0.0f : h % 3 == 1 ? -0.0f : FLT_MIN * u;
    case HALVES:
        return close_to(0, (int)(0x3f000000u + (h % 512 << 16)));
    default:
        return 3 * (u + v);
    }
}

static void fill_row(float *x, int kind, int64_t row, int64_t vocab)
{
    static const float bad[] = {NAN, INFINITY, -NAN};

    for (int64_t i = 0; i < vocab; i++)
        x[i] = kind == BROKEN && row % 4 == 3 ? -INFINITY : logit(kind, row, i, vocab);
    if (kind == BROKEN && row % 4 < 3)
        x[(int64_t)(cf_hash(8, row) % (uint64_t)vocab)] = bad[row % 4];
}

static uint64_t of(int64_t row, uint32_t what, uint64_t n)
{
    return cf_hash(20 + what, row) % n;
}

/* Parameters of row number `row`. */
static sl_sample_row row_of(int64_t row, int64_t vocab)
{
    static const float temperature[] = {0, 1, 0.7f, 0.0001f, 0.01f, 1.5f, 100, 1};
    static const double top_p[] = {1, 1, 0.95, 0.5, 0.25, 1e-12, 0.999999, 0.1};
    static const float min_p[] = {0, 0, 0.05f, 1, 1e-30f};
    static const int32_t logprobs[] = {-1, 0, 1, 5, 20};
    static const float penalty[] = {0, 0, 0.5f, -2, 2};
    const int32_t top_k[] = {0, 0, 1, 2, 50, (int32_t)vocab - 1, (int32_t)vocab, INT32_MAX, 3, 1000};
    float t = temperature[of(row, 0, SL_COUNT(temperature))];

    return (sl_sample_row){.seed = cf_hash(6, row),
                           .top_p = (uint64_t)(top_p[of(row, 1, SL_COUNT(top_p))] * 0x1p32),
                           .position = (int32_t)of(row, 2, INT32_MAX),
                           .top_k = top_k[of(row, 3, SL_COUNT(top_k))],
                           .n_logprobs = logprobs[of(row, 4, SL_COUNT(logprobs))],
                           .inv_t = t > 0 ? 1 / t : 0,
                           .min_p = min_p[of(row, 5, SL_COUNT(min_p))],
                           .frequency = penalty[of(row, 6, SL_COUNT(penalty))],
                           .presence = penalty[of(row, 7, SL_COUNT(penalty))],
                           .repetition = of(row, 8, 3)   ? 1
                                         : of(row, 9, 2) ? 1.3f
                                                         : 0.01f,
                           .track = of(row, 10, 2)};
}

/* A list of distinct tokens; false: the row has none. In one row of four it is full. */
static bool list_of(int64_t row, int64_t vocab, sl_sample_list *l, sl_sample_row *r)
{
    static const float bias[] = {0, 100, -100, 0.5f, -1};
    int64_t most = vocab + 4 < ENTRIES ? vocab + 4 : ENTRIES, first = (int64_t)of(row, 11, (uint64_t)vocab);

    if (of(row, 12, 2))
        return false;
    l->room = ENTRIES + 1;
    l->n = (int32_t)of(row, 13, (uint64_t)most);
    if (of(row, 14, 4) == 0)
        l->room = l->n;
    for (int32_t k = 0; k < l->n; k++) {
        uint64_t h = cf_hash(9, row * 1000 + k);
        int64_t id = (first + k) % (vocab + 4) - 2; /* some are outside the vocabulary */
        l->entry[k] = (sl_sample_entry){.id = (int32_t)id,
                                        .bias = bias[h % SL_COUNT(bias)],
                                        .seen = (h >> 8 & 3) + (uint32_t)(h >> 16 & 3) * SL_SAMPLE_ONCE};
    }
    r->hold_until = r->position + (int32_t)of(row, 15, 3) - 1;
    return true;
}

/* The mask of a row: of one row in eight it allows nothing, of others one token, few, or most. */
static bool mask_of(int64_t row, int64_t vocab, uint32_t *mask)
{
    uint64_t kind = of(row, 16, 8), only = of(row, 17, (uint64_t)vocab);

    if (of(row, 18, 3) == 0)
        return false;
    for (int64_t i = 0; i < vocab; i++) {
        uint64_t h = cf_hash(41, row * 1000003 + i) % 64;
        bool allowed = kind == 0 ? false : kind < 3 ? i == (int64_t)only : kind < 5 ? h == 0 : h != 0;
        mask[i / 32] |= (uint32_t)allowed << i % 32;
    }
    return true;
}

/* Private fields of the lists are not compared. */
static void show_lists(cf_run *r, uint8_t *dev, size_t bytes)
{
    size_t all = (size_t)r->n * bytes;
    uint8_t *host = cf_temp(r, all), *shown;

    cf_get(r, host, dev, all);
    for (int64_t i = 0; i < r->n; i++) {
        sl_sample_list *l = (sl_sample_list *)(void *)(host + (size_t)i * bytes);
        for (int32_t k = 0; k < ENTRIES + 1; k++)
            l->entry[k].logit = 0;
    }
    shown = cf_mem(r, host, all);
    cf_out_tokens(r, "lists", shown, bytes, CF_BYTES, 0);
}

/* rows, vocab, kind (-1: by row), 1: rows of the logits in another order, 1: masks */
static void sample(cf_run *r, const int64_t *a)
{
    int64_t vocab = a[1], ld = vocab + a[1] % 3;
    size_t n = (size_t)r->n, list_bytes = sl_sample_list_bytes(ENTRIES + 1);
    sl_sample_row *rows = cf_temp(r, n * sizeof *rows);
    uint8_t *lists = cf_temp(r, n * list_bytes), *dev;
    float *logits = cf_temp(r, n * (size_t)ld * sizeof *logits);
    sl_sample_params p = {
        .n = (int32_t)r->n, .n_logits = (int32_t)r->n, .vocab = (int32_t)vocab, .ld = (int32_t)ld};
    size_t *offsets = cf_temp(r, n * sizeof *offsets);
    size_t words = sl_sample_mask_words((int32_t)vocab);
    uint32_t *masks = cf_temp(r, n * words * sizeof *masks), *dev_masks;
    bool listed[4096], masked[4096];

    for (int64_t i = 0; i < r->n; i++) {
        int64_t row = r->first + i, at = a[3] ? r->n - 1 - i : i;
        fill_row(logits + at * ld, a[2] < 0 ? (int)(row % KINDS) : (int)a[2], row, vocab);
        rows[i] = row_of(row, vocab);
        rows[i].row = (int32_t)at;
        offsets[i] = (size_t)(at * ld) * sizeof *logits;
        listed[i] = list_of(row, vocab, (sl_sample_list *)(void *)(lists + (size_t)i * list_bytes), &rows[i]);
        masked[i] = a[4] && mask_of(row, vocab, masks + (size_t)i * words);
    }
    dev = cf_mem(r, lists, n * list_bytes);
    dev_masks = a[4] ? cf_mem(r, masks, n * words * sizeof *masks) : NULL;
    for (int64_t i = 0; i < r->n; i++) {
        rows[i].list = listed[i] ? (sl_sample_list *)(void *)(dev + (size_t)i * list_bytes) : NULL;
        rows[i].mask = masked[i] ? dev_masks + (size_t)i * words : NULL;
    }
    p.rows = cf_mem(r, rows, n * sizeof *rows);
    p.logits = cf_mem(r, logits, n * (size_t)ld * sizeof *logits);
    p.out = cf_mem(r, NULL, n * sizeof *p.out);
    p.next = cf_mem(r, NULL, n * sizeof *p.next);
    cf_op(r, SL_OP_SAMPLE, &p);
    cf_work(r, (double)r->n * (double)vocab * 4, 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, sizeof *p.out, CF_BYTES, 0);
    cf_out_tokens(r, "next", p.next, sizeof *p.next, CF_BYTES, 0);
    cf_out_at(r, "logits", p.logits, offsets, (size_t)vocab * sizeof *logits, CF_BYTES, 0);
    show_lists(r, dev, list_bytes);
}

static void refused(cf_run *r, const int64_t *a)
{
    sl_sample_row row = {.row = (int32_t)a[1], .top_p = 1, .inv_t = 1, .repetition = 1};
    sl_sample_params good = {.n = 1, .n_logits = 2, .vocab = 8, .ld = 8}, p;

    good.logits = cf_matrix(r, 1, 0, 2, 8, 8, SL_F32, 1);
    good.rows = cf_mem(r, &row, sizeof row);
    good.out = cf_mem(r, NULL, sizeof *good.out);
    p = good, p.vocab = 9;
    cf_refused(r, SL_OP_SAMPLE, &p, SL_ERR_INVALID, "ld");
    p = good, p.vocab = 0;
    cf_refused(r, SL_OP_SAMPLE, &p, SL_ERR_INVALID, "vocab");
    p = good, p.n = 3;
    cf_refused(r, SL_OP_SAMPLE, &p, SL_ERR_INVALID, "n_logits");
    p = good, p.out = NULL;
    cf_refused(r, SL_OP_SAMPLE, &p, SL_ERR_INVALID, "out");
    cf_refused(r, SL_OP_SAMPLE, &good, SL_ERR_INVALID, "id");
    cf_out(r, "logits", good.logits, 1, 64, 64, CF_BYTES, 0);
}

#define FEW (CF_SPLIT | CF_FEW)
static const cf_case cases[] = {
    {SL_OP_SAMPLE, "64 rows of 1", sample, {64, 1, -1}, FEW},
    {SL_OP_SAMPLE, "64 rows of 2", sample, {64, 2, -1}, FEW},
    {SL_OP_SAMPLE, "400 rows of 7", sample, {400, 7, -1}, FEW},
    {SL_OP_SAMPLE, "100 rows of 31", sample, {100, 31, -1}, FEW},
    {SL_OP_SAMPLE, "100 rows of 33, in another order", sample, {100, 33, -1, 1}, FEW},
    {SL_OP_SAMPLE, "1000 rows of 257", sample, {1000, 257, -1}, FEW},
    {SL_OP_SAMPLE, "200 rows of 1023", sample, {200, 1023, -1}, FEW},
    {SL_OP_SAMPLE, "200 rows of 1025, in another order", sample, {200, 1025, -1, 1}, FEW},
    {SL_OP_SAMPLE, "66 rows of 8191", sample, {66, 8191, -1}, FEW},
    {SL_OP_SAMPLE, "33 rows of 32000", sample, {33, 32000, -1}, CF_FEW},
    {SL_OP_SAMPLE, "normal: 40 rows of 5000", sample, {40, 5000, NORMAL}, FEW},
    {SL_OP_SAMPLE, "equal: 40 rows of 5000", sample, {40, 5000, EQUAL}, FEW},
    {SL_OP_SAMPLE, "few values: 40 rows of 5000", sample, {40, 5000, STEPS}, FEW},
    {SL_OP_SAMPLE, "peaked: 40 rows of 5000", sample, {40, 5000, PEAKED}, FEW},
    {SL_OP_SAMPLE, "neighbours: 40 rows of 5000", sample, {40, 5000, CLOSE}, FEW},
    {SL_OP_SAMPLE, "bf16: 40 rows of 5000", sample, {40, 5000, HALVES}, FEW},
    {SL_OP_SAMPLE, "masks: 100 rows of 31", sample, {100, 31, -1, 0, 1}, FEW},
    {SL_OP_SAMPLE, "masks: 400 rows of 257, in another order", sample, {400, 257, -1, 1, 1}, FEW},
    {SL_OP_SAMPLE, "masks: 66 rows of 8191", sample, {66, 8191, -1, 0, 1}, FEW},
    {SL_OP_SAMPLE, "masks: 12 rows of 129280", sample, {12, 129280, -1, 0, 1}, 0},
    {SL_OP_SAMPLE, "11 rows of 129280", sample, {11, 129280, -1}, 0},
    {SL_OP_SAMPLE, "1 row of 200003", sample, {1, 200003, NORMAL}, 0},
    {SL_OP_SAMPLE, "66 rows of 129280", sample, {66, 129280, -1}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_SAMPLE, "300 rows of 20001", sample, {300, 20001, -1, 1}, CF_FEW | CF_LARGE},
    {SL_OP_SAMPLE, "refuses bad shapes and rows", refused, {1, 2}, 0},
    {SL_OP_SAMPLE, "refuses a negative row", refused, {1, -1}, 0},
};

const cf_table cf_sample_cases = {cases, SL_COUNT(cases)};
