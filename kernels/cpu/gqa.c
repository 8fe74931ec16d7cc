/*
 * The ops of grouped-query attention (kernels/gqa.h): queries, new rows, attention over lists of rows. A task of
 * attention is one KV head of one token: 64 tokens at a time are decoded, once for all query heads of the group.
 */
#include "kernels/gqa.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/softmax.h"
#include "kernels/formats.h"
#include "kernels/row_codec.h"

#define BLOCK 64 /* tokens that are decoded at a time */

/* ---- queries and keys ---- */

static void add_bias(const float *x, const float *bias, int32_t dim, sl_dtype act, float *out)
{
    for (int32_t i = 0; i < dim; i++)
        out[i] = sl_round_act(bias ? x[i] + bias[i] : x[i], act);
}

/* Head h at position pos: bias, norm and RoPE. */
static void finish_head(const sl_gqa_head_params *p, const float *x, int32_t h, int32_t dim, int32_t pos,
                        sl_dtype act, float *out)
{
    add_bias(x, p->bias ? p->bias + (int64_t)h * dim : NULL, dim, act, out);
    if (p->norm) {
        const float inv = sl_inverse_rms(out, dim, p->eps);
        for (int32_t i = 0; i < dim; i++)
            out[i] = sl_round_act(out[i] * inv * p->norm[i], act);
    }
    const int32_t rope = sl_gqa_rope(p, dim);
    sl_rope(out, rope, sl_cos_sin_at(p->cos_sin, pos, rope), false, act);
}

static uint32_t query_head(const void *arg, int64_t i, void *own)
{
    const sl_gqa_query_params *p = arg;
    (void)own;
    finish_head(&p->head, p->q + i * p->dim, (int32_t)(i % p->heads), p->dim, p->pos[i / p->heads], p->act,
                p->out + i * p->dim);
    return 0;
}

static sl_status run_gqa_query(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gqa_query_params *p = params;
    return sl_cpu_run(be, "gqa_query", 0, (int64_t)p->tokens * p->heads, 4 * (int64_t)p->dim, query_head, p,
                      err);
}

const sl_op_impl sl_cpu_gqa_query = {.run = run_gqa_query};

/* ---- rows ---- */

/* Writes the token at pos, of all KV heads, into its row or its rows, of which the first is at `row`. */
static void put_token(const sl_gqa_append_params *p, int32_t pos, const float *k, const float *v,
                      uint8_t *row)
{
    int32_t heads = sl_gqa_row_heads(&p->rows, p->heads), slots = sl_gqa_row_slots(&p->rows, p->heads);
    int32_t slot = (pos & ((1 << p->rows.block_log2) - 1)) * heads;

    for (int32_t h = 0; h < p->heads; h += heads, row += p->rows.row_bytes)
        sl_gqa_row_encode(p->format, slots, p->dim, slot, heads, k + (int64_t)h * p->dim,
                          v + (int64_t)h * p->dim, row);
}

static uint32_t append_token(const void *arg, int64_t t, void *own)
{
    const sl_gqa_append_params *p = arg;
    const int64_t all = (int64_t)p->heads * p->dim;
    float *k = own, *v = k + all;
    uint8_t *dev, *host;
    uint32_t bad = sl_place_row(p->seqs, &p->rows, &p->host, t, &dev, &host);

    if (bad)
        return bad;
    for (int32_t h = 0; h < p->heads; h++) {
        int64_t at = (int64_t)h * p->dim;

        finish_head(&p->key, p->k + t * all + at, h, p->dim, p->seqs->token_pos[t], p->act, k + at);
        add_bias(p->v + t * all + at, p->v_bias ? p->v_bias + at : NULL, p->dim, p->act, v + at);
    }
    if (dev)
        put_token(p, p->seqs->token_pos[t], k, v, dev);
    if (host)
        put_token(p, p->seqs->token_pos[t], k, v, host);
    return 0;
}

static sl_status run_gqa_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gqa_append_params *p = params;
    const int64_t floats = 2 * (int64_t)p->heads * p->dim;
    return sl_cpu_run(be, "gqa_append", 4 * (size_t)floats, p->seqs->n_tokens, 4 * floats, append_token, p,
                      err);
}

const sl_op_impl sl_cpu_gqa_append = {.run = run_gqa_append};

/* ---- attention ---- */

typedef struct attn_ctx {
    const sl_gqa_attn_params *p;
    int32_t group;                /* query heads per KV head */
    int32_t lists;                /* per token */
    int32_t heads, slots, tokens; /* of a row */
} attn_ctx;

/* Entry `at` of a list: the row, and the block that it holds (0 for rows of one token). False: the list has ended. */
static bool listed(const sl_gqa_attn_params *p, int64_t list, int32_t at, int64_t *row, int64_t *block)
{
    int64_t i = list * p->ld_ids + at;

    if (at >= p->k || p->phys[i] < 0)
        return false;
    *row = p->phys[i];
    *block = p->rows.block_log2 ? p->ids[i] : 0;
    return true;
}

/* Block number `at` of those that a token at pos attends to; -1: the token has fewer. */
static int32_t seen_block(const sl_gqa_attn_params *p, int64_t t, int32_t kv_head, int32_t at, int32_t pos)
{
    const int32_t in_page = SL_PAGE_LOG2 - p->rows.block_log2, list = p->prompt.of ? p->prompt.of[t] : -1;

    if (list < 0)
        return at;
    if (at >> in_page >= p->prompt.ld)
        return -1;
    const int32_t page =
        p->prompt.pages[((int64_t)list * p->kv_heads + kv_head) * p->prompt.ld + (at >> in_page)];
    if (page < 0)
        return -1;
    const int32_t block = (page << in_page) + (at & ((1 << in_page) - 1));
    return block > pos >> p->rows.block_log2 ? -1 : block;
}

/* The same for a token that attends to everything before it, or to its pages of these. */
static bool before(const attn_ctx *c, int64_t t, int32_t kv_head, int32_t at, int64_t *row, int64_t *block,
                   uint32_t *found)
{
    const sl_gqa_attn_params *p = c->p;
    sl_row_shape shape = sl_row_shape_of(&p->rows);
    sl_place place;
    uint32_t bad = sl_place_of(p->seqs, t, &place);

    if (!bad)
        at = seen_block(p, t, kv_head, at, place.pos);
    if (bad == SL_PLACE_NONE || (!bad && (at < 0 || at >= p->k || at > place.pos >> p->rows.block_log2)))
        return false;
    if (!bad) {
        int32_t page = p->seqs->row_pages[(int64_t)place.seq * p->seqs->ld + sl_block_page(&shape, at)];

        *row = sl_pool_row(&shape, page, at, c->lists > 1 ? kv_head : 0);
        *block = at;
        bad = *row < 0 ? SL_DEVERR_PAGE : 0;
    }
    *found |= bad;
    return bad == 0;
}

/* The scratch of a worker: a block of keys, one of values, and by query head of the group the scores of the block, the
 * sum of values, the maximum and the sum of weights. */
typedef struct attn_scratch {
    float *k, *v, *scores, *o, *max, *sum;
    uint32_t bad;
} attn_scratch;

static size_t scratch_floats(const sl_gqa_attn_params *p, int32_t group)
{
    return 2 * BLOCK * (size_t)p->dim + (size_t)group * (BLOCK + (size_t)p->dim + 2);
}

static attn_scratch scratch_of(const attn_ctx *c, float *own)
{
    size_t dim = (size_t)c->p->dim, g = (size_t)c->group;
    attn_scratch s = {.k = own};
    s.v = s.k + BLOCK * dim;
    s.scores = s.v + BLOCK * dim;
    s.o = s.scores + g * BLOCK;
    s.max = s.o + g * dim;
    s.sum = s.max + g;
    return s;
}

static int32_t position(const sl_gqa_attn_params *p, int64_t t)
{
    return p->seqs ? p->seqs->token_pos[t] : p->pos[t];
}

/* Decodes the keys or the values of the next rows of a token's list for one KV head: as many as hold BLOCK tokens, from
 * entry *at on. Returns the number of tokens, and moves *at. */
static int32_t load_rows(const attn_ctx *c, int64_t t, int32_t kv_head, int32_t *at, bool values, float *out,
                         uint32_t *bad)
{
    const sl_gqa_attn_params *p = c->p;
    const int32_t dim = p->dim, first = c->heads > 1 ? kv_head : 0;
    const sl_gqa_slots of_head = sl_gqa_slots_of(p->format, c->slots, dim, values, first, c->heads);
    const int64_t list = t * c->lists + (c->lists > 1 ? kv_head : 0);
    int64_t number = 0, block = 0;
    int32_t n = 0;

    for (; n + c->tokens <= BLOCK && (p->seqs ? before(c, t, kv_head, *at, &number, &block, bad)
                                              : listed(p, list, *at, &number, &block));
         ++*at) {
        const uint8_t *row = p->rows.base + number * p->rows.row_bytes;
        int32_t seen = c->tokens;

        if (c->tokens > 1) { /* the tokens of the newest block that are not after pos */
            int64_t left = position(p, t) + 1 - block * c->tokens;

            seen = left < seen ? (int32_t)left : seen;
        }
        if (seen > 0)
            sl_gqa_slots_decode(&of_head, row, seen, out + (int64_t)n * dim);
        n += seen > 0 ? seen : 0;
    }
    return n;
}

/* ln of the share of the largest weight below which a tile is left out; -INFINITY: none is. */
static float skip_below(const sl_gqa_attn_params *p, int64_t t)
{
    if (p->skip_factor <= 0 || position(p, t) < p->skip_from || (float)position(p, t) + 1 <= p->skip_factor)
        return -INFINITY;
    return logf(p->skip_factor / ((float)position(p, t) + 1));
}

/* Whether the tile of n products is left out. The maximum before the first tile is -INFINITY, so it never is. */
static bool skippable(const attn_ctx *c, int32_t n, float below, const attn_scratch *s)
{
    for (int32_t h = 0; h < c->group; h++) {
        const float *x = s->scores + h * BLOCK;
        float top = x[0];

        for (int32_t i = 1; i < n; i++)
            top = x[i] > top ? x[i] : top;
        if (!(top * c->p->scale - s->max[h] < below)) /* also if it is NaN */
            return false;
    }
    return true;
}

static void attend(const attn_ctx *c, int64_t t, int32_t kv_head, attn_scratch *s)
{
    const float below = skip_below(c->p, t);
    uint64_t tiles = 0, skipped = 0;
    const sl_gqa_attn_params *p = c->p;
    const int32_t dim = p->dim, g = c->group;
    int64_t head = t * p->heads + (int64_t)kv_head * g;

    memset(s->o, 0, 4 * (size_t)g * (size_t)dim);
    for (int32_t h = 0; h < g; h++) {
        s->max[h] = -INFINITY;
        s->sum[h] = 0;
    }
    for (int32_t at = 0, n = BLOCK; n == BLOCK;) {
        int32_t from = at;

        n = load_rows(c, t, kv_head, &at, false, s->k, &s->bad);
        if (n == 0)
            break;
        sl_vec_products((sl_vec_rows){s->k, dim, n}, (sl_vec_rows){p->q + head * dim, dim, g}, dim, s->scores,
                        BLOCK);
        tiles++;
        if (below > -INFINITY && skippable(c, n, below, s)) {
            skipped++;
            continue;
        }
        load_rows(c, t, kv_head, &from, true, s->v, &s->bad);
        for (int32_t h = 0; h < g; h++)
            sl_softmax_block(p->scale, n, s->scores + h * BLOCK, s->v, dim, dim, &s->max[h], &s->sum[h],
                             s->o + (int64_t)h * dim);
    }
    for (int32_t h = 0; h < g; h++) {
        float *o = s->o + (int64_t)h * dim;

        for (int32_t i = 0; s->sum[h] > 0 && i < dim; i++)
            o[i] /= s->sum[h];
        sl_store_f32(p->act, o, dim, p->out, (head + h) * dim);
    }
    if (below > -INFINITY) {
        __atomic_fetch_add(&p->tiles[0], tiles, __ATOMIC_RELAXED);
        __atomic_fetch_add(&p->tiles[1], skipped, __ATOMIC_RELAXED);
    }
}

static uint32_t attend_head(const void *arg, int64_t i, void *own)
{
    const attn_ctx *c = arg;
    attn_scratch s = scratch_of(c, own);

    attend(c, i / c->p->kv_heads, (int32_t)(i % c->p->kv_heads), &s);
    return s.bad;
}

static sl_status run_gqa_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gqa_attn_params *p = params;
    attn_ctx c = {.p = p,
                  .group = p->heads / p->kv_heads,
                  .lists = sl_row_lists(&p->rows),
                  .heads = sl_gqa_row_heads(&p->rows, p->kv_heads),
                  .slots = sl_gqa_row_slots(&p->rows, p->kv_heads),
                  .tokens = 1 << p->rows.block_log2};
    return sl_cpu_run(be, "gqa_attn", 4 * scratch_floats(p, c.group), (int64_t)p->tokens * p->kv_heads,
                      (int64_t)p->k * c.tokens * p->dim * c.group / 4, attend_head, &c, err);
}

const sl_op_impl sl_cpu_gqa_attn = {.run = run_gqa_attn};
