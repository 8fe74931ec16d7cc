/*
 * The ops of bounds of blocks (kernels/bounds.h). A task of the update is the tokens of one block of one sequence, in
 * their order; a task of the scores is one list of one token.
 */
#include "kernels/bounds.h"

#include <string.h>

#include "kernels/cpu/bound_codes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/formats.h"
#include "kernels/gqa.h"

#define CHUNK 64 /* blocks whose bounds are decoded at a time */

/* ---- update ---- */

static void widen_f32(const float *k, int32_t dim, bool first, float *most, float *least)
{
    for (int32_t i = 0; i < dim; i++) {
        most[i] = first || k[i] > most[i] ? k[i] : most[i];
        least[i] = first || k[i] < least[i] ? k[i] : least[i];
    }
}

static void widen_bf16(const float *k, int32_t dim, bool first, uint16_t *most, uint16_t *least)
{
    for (int32_t i = 0; i < dim; i++) {
        if (first || k[i] > sl_bf16_to_f32(most[i]))
            most[i] = sl_bf16_up(k[i]);
        if (first || k[i] < sl_bf16_to_f32(least[i]))
            least[i] = sl_bf16_down(k[i]);
    }
}

typedef struct append_ctx {
    const sl_bounds_append_params *p;
    int64_t unit; /* bytes */
} append_ctx;

/* The rows of the token, of which the first is that of head 0; NULL and a code in *bad if it has none. */
static const uint8_t *rows_of(const sl_bounds_append_params *p, int64_t t, const sl_place *at, uint32_t *bad)
{
    uint8_t *dev = NULL, *host = NULL;
    sl_row_shape shape = sl_row_shape_of(&p->rows);

    if (p->rows.base) {
        *bad = sl_place_row(p->seqs, &p->rows, &p->host_rows, t, &dev, &host);
        if (*bad)
            return NULL;
    } else if (p->host_rows.base && p->seqs->host_pages[at->entry] >= 0) {
        host = p->host_rows.base + p->seqs->host_pages[at->entry] * p->host_rows.page_stride +
               sl_block_in_page(&shape, at->pos >> p->rows.block_log2) * p->host_rows.row_stride;
    }
    *bad = dev || host ? 0 : SL_DEVERR_PAGE;
    return dev ? dev : host;
}

/* The unit of head 0 of the token's block in a page of 64 tokens. */
static uint8_t *unit_in(uint8_t *page, int64_t stride, const sl_bounds_append_params *p, int32_t pos)
{
    return page + (int64_t)(pos % SL_PAGE_TOKENS >> p->rows.block_log2) * stride;
}

/* Widens the unit of one head by the key in a slot of a row. begins: it is the first of the unit. */
static void add_key(const append_ctx *c, const uint8_t *row, int32_t slot, bool begins, uint8_t *unit,
                    float *k)
{
    const sl_bounds_append_params *p = c->p;
    void *most = unit, *least = unit + c->unit / 2;

    sl_gqa_key_decode(p->format, sl_gqa_row_slots(&p->rows, p->heads), p->dim, row, slot, k);
    if (p->dtype == SL_I8)
        sl_bound_codes_widen(k, p->dim, begins, most);
    else if (p->dtype == SL_F32)
        widen_f32(k, p->dim, begins, most, least);
    else
        widen_bf16(k, p->dim, begins, most, least);
}

/* first: of the block's tokens in this step. */
static uint32_t add_token(const append_ctx *c, int64_t t, bool first, float *k)
{
    const sl_bounds_append_params *p = c->p;
    const int32_t in_row = sl_gqa_row_heads(&p->rows, p->heads);
    const int32_t in_block = (1 << p->rows.block_log2) - 1;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);
    const uint8_t *row = bad ? NULL : rows_of(p, t, &at, &bad);

    if (bad)
        return bad;
    int32_t page = p->seqs->index_pages[at.entry];
    int32_t host_page = p->host.base ? p->seqs->host_pages[at.entry] : 0;
    if (page < 0 || host_page < 0)
        return SL_DEVERR_PAGE;
    uint8_t *unit = unit_in(p->base + page * p->page_stride, p->heads * c->unit, p, at.pos);
    for (int32_t h = 0; h < p->heads; h++) {
        const uint8_t *of_head = row + (in_row > 1 ? 0 : h) * p->rows.row_bytes;

        for (int32_t i = p->whole && first ? 0 : at.pos & in_block; i <= (at.pos & in_block); i++)
            add_key(c, of_head, i * in_row + (in_row > 1 ? h : 0), i == 0, unit + h * c->unit, k);
    }
    if (p->host.base)
        memcpy(unit_in(p->host.base + host_page * p->host.page_stride, p->host.row_stride, p, at.pos), unit,
               (size_t)(p->heads * c->unit));
    return 0;
}

/* Whether token t is in the block of the token before it. */
static bool continues(const sl_bounds_append_params *p, int64_t t)
{
    const sl_seq_tables *s = p->seqs;

    return t > 0 && s->token_seq[t] >= 0 && s->token_seq[t] == s->token_seq[t - 1] &&
           s->token_pos[t] >> p->rows.block_log2 == s->token_pos[t - 1] >> p->rows.block_log2;
}

static uint32_t append_block(const void *arg, int64_t t, void *k)
{
    const append_ctx *c = arg;
    uint32_t bad = 0;

    if (continues(c->p, t))
        return 0; /* belongs to the task of the block's first token in this step */
    for (int64_t u = t; u == t || (u < c->p->seqs->n_tokens && continues(c->p, u)); u++)
        bad |= add_token(c, u, u == t, k);
    return bad;
}

static sl_status run_bounds_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_bounds_append_params *p = params;
    const append_ctx c = {p, sl_bounds_unit_bytes(p->dim, p->dtype)};
    return sl_cpu_run(be, "bounds_append", 4 * (size_t)p->dim, p->seqs->n_tokens,
                      4 * (int64_t)p->heads * p->dim, append_block, &c, err);
}

const sl_op_impl sl_cpu_bounds_append = {.run = run_bounds_append};

/* ---- scores ---- */

typedef struct scores_ctx {
    const sl_bounds_scores_params *p;
    int64_t unit;  /* bytes */
    int32_t group; /* query heads per KV head */
    int32_t rows;  /* queries whose bounds are computed per KV head: group, or 1 of their mean */
} scores_ctx;

/* A worker's scratch: queries as [max(q, 0) | min(q, 0)], the bounds of a chunk of blocks, and by query the scores of all
 * blocks. */
typedef struct scores_scratch {
    float *x, *units, *each;
    uint32_t *own; /* of the reduction */
} scores_scratch;

static size_t scratch_floats(const scores_ctx *c)
{
    const sl_bounds_scores_params *p = c->p;
    size_t both = 2 * (size_t)p->dim;
    return both * ((size_t)c->rows + CHUNK) + (size_t)c->rows * (size_t)p->ld_scores +
           sl_group_words(p->reduce, p->ld_scores);
}

static void split_query(const float *q, int32_t dim, float *x)
{
    for (int32_t i = 0; i < dim; i++) {
        x[i] = q[i] > 0 ? q[i] : 0;
        x[dim + i] = q[i] < 0 ? q[i] : 0;
    }
}

/* A query in the place of query `row` of the scratch; of int8, as its integers and at last its scale. */
static void make_query(const scores_ctx *c, const float *q, const scores_scratch *s, int32_t row)
{
    const int32_t dim = c->p->dim;
    float *x = s->x + 2 * (int64_t)row * dim;
    int16_t *whole = (int16_t *)(void *)x;

    if (c->p->dtype == SL_I8)
        x[2 * dim - 1] = sl_bound_query(q, dim, whole, whole + dim);
    else
        split_query(q, dim, x);
}

/* The queries of one KV head, whose first query head is at q. */
static void make_queries(const scores_ctx *c, const float *q, const scores_scratch *s)
{
    const int32_t dim = c->p->dim;

    if (c->p->reduce != SL_GROUP_MEAN) {
        for (int32_t h = 0; h < c->group; h++)
            make_query(c, q + (int64_t)h * dim, s, h);
        return;
    }
    float *mean = s->units; /* not in use yet */
    sl_group_mean(q, c->group, dim, mean);
    make_query(c, mean, s, 0);
}

/* The unit of a block and KV head; NULL: the page does not exist. */
static const uint8_t *unit_of(const scores_ctx *c, const int32_t *pages, int32_t head, int32_t block)
{
    const sl_bounds_scores_params *p = c->p;
    const int32_t in_page = SL_PAGE_LOG2 - p->block_log2, page = pages[block >> in_page];

    if (page < 0)
        return NULL;
    return p->base + page * p->page_stride +
           ((int64_t)(block & ((1 << in_page) - 1)) * p->kv_heads + head) * c->unit;
}

/* each[row][block] of one KV head, for n blocks of int8. */
static bool codes_of_head(const scores_ctx *c, const int32_t *pages, int32_t head, int32_t n,
                          const scores_scratch *s)
{
    const int32_t dim = c->p->dim;

    for (int32_t b = 0; b < n; b++) {
        const uint8_t *unit = unit_of(c, pages, head, b);

        if (!unit)
            return false;
        for (int32_t r = 0; r < c->rows; r++) {
            const float *x = s->x + 2 * (int64_t)r * dim;
            const int16_t *whole = (const int16_t *)(const void *)x;

            s->each[(int64_t)r * c->p->ld_scores + b] =
                sl_bound_product(whole, whole + dim, x[2 * dim - 1], dim, unit);
        }
    }
    return true;
}

/* The bounds of blocks first .. first + n - 1 of one KV head, all in one page; false: the page does not exist. */
static bool load_units(const scores_ctx *c, const int32_t *pages, int32_t head, int32_t first, int32_t n,
                       float *out)
{
    const sl_bounds_scores_params *p = c->p;
    const uint8_t *unit = unit_of(c, pages, head, first);

    if (!unit)
        return false;
    for (int32_t i = 0; i < n; i++)
        sl_load_f32(p->dtype, unit + i * p->kv_heads * c->unit, 0, 2 * (int64_t)p->dim,
                    out + 2 * (int64_t)i * p->dim);
    return true;
}

/* each[row][block] of one KV head, for n blocks. */
static bool bounds_of_head(const scores_ctx *c, const int32_t *pages, int32_t head, int32_t n,
                           const scores_scratch *s)
{
    const sl_bounds_scores_params *p = c->p;
    const int32_t both = 2 * p->dim, in_page = SL_PAGE_TOKENS >> p->block_log2;

    if (p->dtype == SL_I8)
        return codes_of_head(c, pages, head, n, s);
    for (int32_t b = 0; b < n;) {
        int32_t have = 0;

        for (; have + in_page <= CHUNK && b + have < n; have += in_page) {
            int32_t left = n - b - have;

            if (!load_units(c, pages, head, b + have, left < in_page ? left : in_page,
                            s->units + (int64_t)have * both))
                return false;
        }
        have = have < n - b ? have : n - b;
        sl_vec_products((sl_vec_rows){s->units, both, have}, (sl_vec_rows){s->x, both, c->rows}, both,
                        s->each + b, p->ld_scores);
        b += have;
    }
    return true;
}

static scores_scratch scratch_of(const scores_ctx *c, float *own)
{
    scores_scratch s = {.x = own};

    s.units = s.x + 2 * (int64_t)c->p->dim * c->rows;
    s.each = s.units + 2 * (int64_t)c->p->dim * CHUNK;
    s.own = (uint32_t *)(void *)(s.each + (int64_t)c->rows * c->p->ld_scores);
    return s;
}

static uint32_t score_list(const void *arg, int64_t i, void *own)
{
    const scores_ctx *c = arg;
    const sl_bounds_scores_params *p = c->p;
    const int32_t per = p->kv_heads / p->lists, list = (int32_t)(i % p->lists);
    const int64_t t = p->token_first + i / p->lists;
    const scores_scratch s = scratch_of(c, own);
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    if (at.pos < p->from_pos)
        return 0;
    int32_t n = at.pos >> p->block_log2;
    if (n >= p->ld_scores)
        return SL_DEVERR_POS;
    float *out = p->scores + i * p->ld_scores;
    out[n] = 0;
    for (int32_t h = list * per; n > 0 && h < (list + 1) * per; h++) {
        make_queries(c, p->q + (t * p->heads + (int64_t)h * c->group) * p->dim, &s);
        if (!bounds_of_head(c, p->seqs->index_pages + (int64_t)at.seq * p->seqs->ld, h, n, &s))
            return SL_DEVERR_PAGE;
        for (int32_t r = 0; r < c->rows; r++)
            sl_group_add(p->reduce, p->scale, s.each + (int64_t)r * p->ld_scores, n,
                         h == list * per && r == 0, s.own, out);
    }
    return 0;
}

static sl_status run_bounds_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_bounds_scores_params *p = params;
    const int32_t group = p->heads / p->kv_heads;
    const scores_ctx c = {p, sl_bounds_unit_bytes(p->dim, p->dtype), group,
                          p->reduce == SL_GROUP_MEAN ? 1 : group};
    return sl_cpu_run(be, "bounds_scores", 4 * scratch_floats(&c), (int64_t)p->token_count * p->lists,
                      (int64_t)p->ld_scores * p->dim * c.rows * (p->kv_heads / p->lists), score_list, &c,
                      err);
}

const sl_op_impl sl_cpu_bounds_scores = {.run = run_bounds_scores};
