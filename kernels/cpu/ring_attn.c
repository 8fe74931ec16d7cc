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
    sl_cpu *cpu;
    const sl_ring_attn_params *p;
    int32_t groups; /* groups of heads */
    uint32_t bad;
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
    sl_dot_job j = {
        .w = s->rows, .x = s->q, .out = s->scores, .ld_w = p->dim, .ld_x = p->dim, .ld_out = BLOCK};

    j.rows = s->n;
    j.tokens = heads;
    j.n = p->dim;
    sl_vec_dots(&j);
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
        return bad & ~SL_PLACE_NONE;
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

static uint32_t attend(const ctx *c, int64_t t, int32_t h0, int32_t heads, state *s)
{
    const sl_ring_attn_params *p = c->p;
    const int64_t at = (t * p->heads + h0) * p->dim;

    sl_load_f32(p->act, p->q, at, (int64_t)heads * p->dim, s->q);
    memset(s->o, 0, sizeof(float) * (size_t)heads * (size_t)p->dim);
    s->n = 0;
    for (int32_t h = 0; h < heads; h++)
        s->max[h] = -INFINITY, s->sum[h] = 0;
    uint32_t bad = add_rows(p, t, heads, s);
    for (int32_t h = 0; s->sum[0] > 0 && h < heads; h++) {
        float sum = s->sum[h] + expf(p->sinks[h0 + h] - s->max[h]);

        for (int32_t i = 0; i < p->dim; i++)
            s->o[(int64_t)h * p->dim + i] /= sum;
    }
    sl_store_f32(p->act, s->o, (int64_t)heads * p->dim, p->out, at);
    return bad;
}

static void tasks(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *c = arg;
    const int64_t dim = c->p->dim;
    state s = {.scores = sl_cpu_own(c->cpu, worker)};

    s.rows = s.scores + HEADS * BLOCK;
    s.q = s.rows + BLOCK * dim;
    s.o = s.q + HEADS * dim;
    for (int64_t i = first; i < first + count; i++) {
        int32_t h0 = (int32_t)(i % c->groups) * HEADS, left = c->p->heads - h0;

        sl_cpu_flag(&c->bad, attend(c, i / c->groups, h0, left < HEADS ? left : HEADS, &s));
    }
}

static sl_status run_ring_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ring_attn_params *p = params;
    ctx c = {.cpu = (sl_cpu *)be, .p = p, .groups = (p->heads + HEADS - 1) / HEADS};
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 4 * (HEADS * BLOCK + (size_t)p->dim * (BLOCK + 2 * HEADS)), err));
    sl_cpu_for(c.cpu, (int64_t)p->tokens * c.groups, (int64_t)p->window * p->dim, tasks, &c);
    return sl_deverr(c.bad, "ring_attn", err);
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
