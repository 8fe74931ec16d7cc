/*
 * The ops of labels of tokens (kernels/labels.h). A task of the update is one token; a task of the scores is one list of
 * one token, whose labels are read page by page.
 */
#include "kernels/labels.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/formats.h"
#include "kernels/gqa.h"

/* ---- update ---- */

typedef struct append_ctx {
    sl_cpu *cpu;
    const sl_labels_append_params *p;
    int64_t unit; /* bytes */
    uint32_t bad;
} append_ctx;

/* A worker's scratch: one key, then its label. */
static uint32_t append_token(const append_ctx *c, int64_t t, float *k)
{
    const sl_labels_append_params *p = c->p;
    const int32_t in_row = sl_gqa_row_heads(&p->rows, p->heads), slots = sl_gqa_row_slots(&p->rows, p->heads);
    const size_t bytes = (size_t)p->count * sl_dtype_size(p->dtype);
    float *label = k + p->dim;
    uint8_t *dev, *host;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    bad = bad ? bad : sl_place_row(p->seqs, &p->rows, &p->host_rows, t, &dev, &host);
    if (bad)
        return bad;
    const uint8_t *row = dev ? dev : host;
    int32_t page = p->seqs->index_pages[at.entry];
    int32_t host_page = p->host.base ? p->seqs->host_pages[at.entry] : 0;
    if (!row || page < 0 || host_page < 0)
        return SL_DEVERR_PAGE;
    int32_t in_page = at.pos % SL_PAGE_TOKENS, first = (at.pos & ((1 << p->rows.block_log2) - 1)) * in_row;
    for (int32_t h = 0; h < p->heads; h++) {
        const int64_t to = h * c->unit + in_page * (int64_t)bytes;

        sl_gqa_key_decode(p->format, slots, p->dim, row + (in_row > 1 ? 0 : h) * p->rows.row_bytes,
                          first + (in_row > 1 ? h : 0), k);
        for (int32_t i = 0; i < p->count; i++)
            label[i] = k[p->channels[h * p->count + i]];
        uint8_t *out = p->base + page * p->page_stride + to;
        sl_store_f32(p->dtype, label, p->count, out, 0);
        if (p->host.base)
            memcpy(p->host.base + host_page * p->host.page_stride + to, out, bytes);
    }
    return 0;
}

static void append_tasks(void *arg, int64_t first, int64_t count, int worker)
{
    append_ctx *c = arg;

    for (int64_t t = first; t < first + count; t++) {
        uint32_t bad = append_token(c, t, sl_cpu_own(c->cpu, worker));

        if (bad && bad != SL_PLACE_NONE)
            sl_cpu_flag(&c->bad, bad);
    }
}

static sl_status run_labels_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_labels_append_params *p = params;
    append_ctx c = {.cpu = (sl_cpu *)be, .p = p, .unit = sl_labels_unit_bytes(p->count, p->dtype)};
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 4 * ((size_t)p->dim + (size_t)p->count), err));
    sl_cpu_for(c.cpu, p->seqs->n_tokens, 4 * (int64_t)p->heads * p->dim, append_tasks, &c);
    return sl_deverr(c.bad, "labels_append", err);
}

const sl_op_impl sl_cpu_labels_append = {.run = run_labels_append};

/* ---- scores ---- */

typedef struct scores_ctx {
    sl_cpu *cpu;
    const sl_labels_scores_params *p;
    int64_t unit;  /* bytes */
    int32_t group; /* query heads per KV head */
    int32_t rows;  /* queries whose products are computed per KV head: group, or 1 of their mean */
    uint32_t bad;
} scores_ctx;

/* A worker's scratch: the channels of the queries, a mean query, the labels of a page, and by query the products with all
 * tokens. */
typedef struct scores_scratch {
    float *x, *mean, *labels, *each;
    uint32_t *own; /* of the reduction */
} scores_scratch;

static size_t scratch_floats(const scores_ctx *c)
{
    const sl_labels_scores_params *p = c->p;
    return (size_t)p->count * ((size_t)c->rows + SL_PAGE_TOKENS) + (size_t)p->dim +
           (size_t)c->rows * (size_t)p->ld_scores + sl_group_words(p->reduce, p->ld_scores);
}

/* The channels of the queries of one KV head, whose first query head is at q. */
static void take_channels(const scores_ctx *c, const float *q, int32_t head, const scores_scratch *s)
{
    const sl_labels_scores_params *p = c->p;
    const int32_t *channels = p->channels + (int64_t)head * p->count;

    if (p->reduce == SL_GROUP_MEAN) {
        sl_group_mean(q, c->group, p->dim, s->mean);
        q = s->mean;
    }
    for (int32_t r = 0; r < c->rows; r++)
        for (int32_t i = 0; i < p->count; i++)
            s->x[r * p->count + i] = q[(int64_t)r * p->dim + channels[i]];
}

/* each[row][token] of one KV head, for n tokens; false: a page does not exist. */
static bool products_of_head(const scores_ctx *c, const int32_t *pages, int32_t head, int32_t n,
                             const scores_scratch *s)
{
    const sl_labels_scores_params *p = c->p;

    for (int32_t from = 0; from < n; from += SL_PAGE_TOKENS) {
        const int32_t page = pages[from / SL_PAGE_TOKENS], left = n - from;
        sl_dot_job j = {.w = s->labels,
                        .x = s->x,
                        .out = s->each + from,
                        .ld_w = p->count,
                        .ld_x = p->count,
                        .ld_out = p->ld_scores,
                        .rows = left < SL_PAGE_TOKENS ? left : SL_PAGE_TOKENS,
                        .tokens = c->rows,
                        .n = p->count};

        if (page < 0)
            return false;
        sl_load_f32(p->dtype, p->base + page * p->page_stride + head * c->unit, 0, (int64_t)j.rows * p->count,
                    s->labels);
        sl_vec_dots(&j);
    }
    return true;
}

static uint32_t score_list(const scores_ctx *c, int64_t t, int32_t list, const scores_scratch *s)
{
    const sl_labels_scores_params *p = c->p;
    const int32_t per = p->kv_heads / p->lists;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    if (at.pos < p->from_pos)
        return 0;
    if (at.pos >= p->ld_scores)
        return SL_DEVERR_POS;
    float *out = p->scores + ((t - p->token_first) * p->lists + list) * p->ld_scores;
    for (int32_t h = list * per; h < (list + 1) * per; h++) {
        take_channels(c, p->q + (t * p->heads + (int64_t)h * c->group) * p->dim, h, s);
        if (!products_of_head(c, p->seqs->index_pages + (int64_t)at.seq * p->seqs->ld, h, at.pos + 1, s))
            return SL_DEVERR_PAGE;
        for (int32_t r = 0; r < c->rows; r++)
            sl_group_add(p->reduce, p->scale, s->each + (int64_t)r * p->ld_scores, at.pos + 1,
                         h == list * per && r == 0, s->own, out);
    }
    return 0;
}

static void scores_tasks(void *arg, int64_t first, int64_t count, int worker)
{
    scores_ctx *c = arg;
    const sl_labels_scores_params *p = c->p;
    scores_scratch s = {.x = sl_cpu_own(c->cpu, worker)};

    s.mean = s.x + (size_t)c->rows * (size_t)p->count;
    s.labels = s.mean + p->dim;
    s.each = s.labels + (size_t)SL_PAGE_TOKENS * (size_t)p->count;
    s.own = (uint32_t *)(void *)(s.each + (int64_t)c->rows * p->ld_scores);
    for (int64_t i = first; i < first + count; i++) {
        uint32_t bad = score_list(c, p->token_first + i / p->lists, (int32_t)(i % p->lists), &s);

        if (bad && bad != SL_PLACE_NONE)
            sl_cpu_flag(&c->bad, bad);
    }
}

static sl_status run_labels_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_labels_scores_params *p = params;
    scores_ctx c = {.cpu = (sl_cpu *)be,
                    .p = p,
                    .unit = sl_labels_unit_bytes(p->count, p->dtype),
                    .group = p->heads / p->kv_heads};
    c.rows = p->reduce == SL_GROUP_MEAN ? 1 : c.group;
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 4 * scratch_floats(&c), err));
    sl_cpu_for(c.cpu, (int64_t)p->token_count * p->lists,
               (int64_t)p->ld_scores * p->count * c.rows * (p->kv_heads / p->lists) / 8, scores_tasks, &c);
    return sl_deverr(c.bad, "labels_scores", err);
}

const sl_op_impl sl_cpu_labels_scores = {.run = run_labels_scores};
