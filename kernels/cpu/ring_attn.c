/*
 * SL_OP_RING_ATTN and SL_OP_RING_STORE (kernels/entries.h). A task of attention is a group of heads of one token, as in
 * sparse_attn.c: 64 rows at a time are decoded, once for all its heads.
 */
#include "kernels/entries.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/softmax.h"
#include "kernels/formats.h"

enum { BLOCK = 64, HEADS = 16 };

typedef struct ctx {
    const sl_ring_attn_params *p;
    int32_t groups; /* groups of heads */
} ctx;

typedef struct state {
    float max[HEADS], sum[HEADS];
    float *rows, *scores, *q, *o;
    int32_t n; /* rows of the block so far */
} state;

/* The row of a window position: of the step, or of the ring. */
static void load_window(const sl_ring_attn_params *p, int64_t t, const sl_place *at, int32_t pos, float *out)
{
    const int64_t in_step = t - (at->pos - pos);
    const uint8_t *ring = p->ring + at->seq * p->ring_stride;

    if (in_step >= 0 && p->seqs->token_seq[in_step] == at->seq)
        sl_load_f32(p->entries.dtype, p->kv, in_step * p->dim, p->dim, out);
    else
        sl_load_f32(p->entries.dtype, ring, (int64_t)(pos % p->window) * p->dim, p->dim, out);
}

static uint32_t load_entry(const sl_ring_attn_params *p, const sl_place *at, int32_t w, float *out)
{
    const sl_entries_view *e = &p->entries;
    int32_t place, page;

    if (w >= (at->pos + 1) / e->rate)
        return SL_DEVERR_SELECTION;
    page = p->seqs->index_pages[(int64_t)at->seq * p->seqs->ld + sl_entry_page(w, e->rate, &place)];
    if (page < 0)
        return SL_DEVERR_PAGE;
    sl_load_f32(e->dtype, e->base + page * e->page_stride, (int64_t)place * p->dim, p->dim, out);
    return 0;
}

static uint32_t load_phys(const sl_ring_attn_params *p, int32_t row, float *out)
{
    if (row < 0)
        return SL_DEVERR_SELECTION;
    sl_load_f32(p->entries.dtype, p->rows, (int64_t)row * p->dim, p->dim, out);
    return 0;
}

static void end_block(const sl_ring_attn_params *p, int32_t heads, state *s)
{
    sl_vec_products((sl_vec_rows){s->rows, p->dim, s->n}, (sl_vec_rows){s->q, p->dim, heads}, p->dim,
                    s->scores, BLOCK);
    for (int32_t h = 0; h < heads; h++)
        sl_softmax_block(p->scale, s->n, s->scores + h * BLOCK, s->rows, p->dim, p->dim, &s->max[h],
                         &s->sum[h], s->o + (int64_t)h * p->dim);
    s->n = 0;
}

/* The next place of the block; a full block is added first. */
static float *next_row(const sl_ring_attn_params *p, int32_t heads, state *s)
{
    if (s->n == BLOCK)
        end_block(p, heads, s);
    return s->rows + (int64_t)s->n++ * p->dim;
}

static uint32_t add_rows(const sl_ring_attn_params *p, int64_t t, int32_t heads, state *s)
{
    const int32_t *ids = p->ids ? p->ids + t * p->ld_ids : NULL;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    for (int32_t pos = at.pos < p->window ? 0 : at.pos - p->window + 1; pos <= at.pos; pos++)
        load_window(p, t, &at, pos, next_row(p, heads, s));
    const int32_t all = p->entries.rate ? (at.pos + 1) / p->entries.rate : 0, n = ids ? p->k : all;
    for (int32_t i = 0; i < n && all > 0 && (!ids || ids[i] >= 0) && !bad; i++)
        bad = p->phys ? load_phys(p, p->phys[t * p->ld_ids + i], next_row(p, heads, s))
                      : load_entry(p, &at, ids ? ids[i] : i, next_row(p, heads, s));
    if (!bad)
        end_block(p, heads, s);
    return bad;
}

static uint32_t attend(const void *arg, int64_t item, void *own)
{
    const ctx *c = arg;
    const sl_ring_attn_params *p = c->p;
    const int64_t t = item / c->groups, dim = p->dim;
    const int32_t h0 = (int32_t)(item % c->groups) * HEADS,
                  heads = p->heads - h0 < HEADS ? p->heads - h0 : HEADS;
    const int64_t at = (t * p->heads + h0) * dim;
    state s = {.scores = own};

    s.rows = s.scores + HEADS * BLOCK;
    s.q = s.rows + BLOCK * dim;
    s.o = s.q + HEADS * dim;
    sl_load_f32(p->act, p->q, at, heads * dim, s.q);
    memset(s.o, 0, sizeof(float) * (size_t)heads * (size_t)dim);
    for (int32_t h = 0; h < heads; h++)
        s.max[h] = -INFINITY, s.sum[h] = 0;
    uint32_t bad = add_rows(p, t, heads, &s);
    for (int32_t h = 0; s.sum[0] > 0 && h < heads; h++) {
        float sum = s.sum[h] + expf(p->sinks[h0 + h] - s.max[h]);

        for (int32_t i = 0; i < p->dim; i++)
            s.o[h * dim + i] /= sum;
    }
    sl_store_f32(p->act, s.o, heads * dim, p->out, at);
    return bad;
}

static sl_status run_ring_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ring_attn_params *p = params;
    const ctx c = {p, (p->heads + HEADS - 1) / HEADS};
    return sl_cpu_run(be, "ring_attn", 4 * (HEADS * BLOCK + (size_t)p->dim * (BLOCK + 2 * HEADS)),
                      (int64_t)p->tokens * c.groups, (int64_t)p->window * p->dim, attend, &c, err);
}

const sl_op_impl sl_cpu_ring_attn = {.run = run_ring_attn};

/* ---- ring_store ---- */

static sl_status run_ring_store(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ring_store_params *p = params;
    const sl_seq_tables *s = p->seqs;
    const size_t row = (size_t)p->dim * sl_dtype_size(p->dtype);
    (void)be;
    for (int64_t t = 0; t < s->n_tokens; t++) {
        const int64_t later = t + p->window;
        sl_place at;
        uint32_t bad = sl_place_of(s, t, &at);

        if (bad == SL_PLACE_NONE)
            continue;
        if (bad)
            return sl_deverr(bad, "ring_store", err);
        if (later < s->n_tokens && s->token_seq[later] == at.seq)
            continue;
        memcpy(p->ring + at.seq * p->ring_stride + (size_t)(at.pos % p->window) * row,
               (const uint8_t *)p->kv + (size_t)t * row, row);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_ring_store = {.run = run_ring_store};
