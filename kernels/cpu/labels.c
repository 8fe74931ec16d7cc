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
    const sl_labels_append_params *p;
    int64_t unit; /* bytes */
} append_ctx;

/* A worker's scratch: one key, then its label. */
static uint32_t append_token(const void *arg, int64_t t, void *own)
{
    const append_ctx *c = arg;
    const sl_labels_append_params *p = c->p;
    const int32_t in_row = sl_gqa_row_heads(&p->rows, p->heads), slots = sl_gqa_row_slots(&p->rows, p->heads);
    const size_t bytes = (size_t)p->count * sl_dtype_size(p->dtype);
    float *k = own, *label = k + p->dim;
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

static sl_status run_labels_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_labels_append_params *p = params;
    const append_ctx c = {p, sl_labels_unit_bytes(p->count, p->dtype)};
    return sl_cpu_run(be, "labels_append", 4 * ((size_t)p->dim + (size_t)p->count), p->seqs->n_tokens,
                      4 * (int64_t)p->heads * p->dim, append_token, &c, err);
}

const sl_op_impl sl_cpu_labels_append = {.run = run_labels_append};

/* ---- scores ---- */

typedef struct scores_ctx {
    const sl_labels_scores_params *p;
    int64_t unit;  /* bytes */
    int32_t group; /* query heads per KV head */
    int32_t rows;  /* queries whose products are computed per KV head: group, or 1 of their mean */
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
        const int32_t tokens = left < SL_PAGE_TOKENS ? left : SL_PAGE_TOKENS;

        if (page < 0)
            return false;
        sl_load_f32(p->dtype, p->base + page * p->page_stride + head * c->unit, 0, (int64_t)tokens * p->count,
                    s->labels);
        sl_vec_products((sl_vec_rows){s->labels, p->count, tokens}, (sl_vec_rows){s->x, p->count, c->rows},
                        p->count, s->each + from, p->ld_scores);
    }
    return true;
}

static scores_scratch scratch_of(const scores_ctx *c, float *own)
{
    scores_scratch s = {.x = own};

    s.mean = s.x + (size_t)c->rows * (size_t)c->p->count;
    s.labels = s.mean + c->p->dim;
    s.each = s.labels + (size_t)SL_PAGE_TOKENS * (size_t)c->p->count;
    s.own = (uint32_t *)(void *)(s.each + (int64_t)c->rows * c->p->ld_scores);
    return s;
}

static uint32_t score_list(const void *arg, int64_t i, void *own)
{
    const scores_ctx *c = arg;
    const sl_labels_scores_params *p = c->p;
    const int32_t per = p->kv_heads / p->lists, list = (int32_t)(i % p->lists);
    const int64_t t = p->token_first + i / p->lists;
    const scores_scratch s = scratch_of(c, own);
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    if (at.pos < p->from_pos)
        return 0;
    if (at.pos >= p->ld_scores)
        return SL_DEVERR_POS;
    float *out = p->scores + i * p->ld_scores;
    for (int32_t h = list * per; h < (list + 1) * per; h++) {
        take_channels(c, p->q + (t * p->heads + (int64_t)h * c->group) * p->dim, h, &s);
        if (!products_of_head(c, p->seqs->index_pages + (int64_t)at.seq * p->seqs->ld, h, at.pos + 1, &s))
            return SL_DEVERR_PAGE;
        for (int32_t r = 0; r < c->rows; r++)
            sl_group_add(p->reduce, p->scale, s.each + (int64_t)r * p->ld_scores, at.pos + 1,
                         h == list * per && r == 0, s.own, out);
    }
    return 0;
}

static sl_status run_labels_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_labels_scores_params *p = params;
    const int32_t group = p->heads / p->kv_heads;
    const scores_ctx c = {p, sl_labels_unit_bytes(p->count, p->dtype), group,
                          p->reduce == SL_GROUP_MEAN ? 1 : group};
    return sl_cpu_run(be, "labels_scores", 4 * scratch_floats(&c), (int64_t)p->token_count * p->lists,
                      (int64_t)p->ld_scores * p->count * c.rows * (p->kv_heads / p->lists) / 8, score_list,
                      &c, err);
}

const sl_op_impl sl_cpu_labels_scores = {.run = run_labels_scores};
