/*
 * The ops of windows and compressed entries (kernels/entries.h), except attention. A task of SL_OP_ENTRIES_APPEND is all tokens of
 * one sequence, whose open state it changes token by token; a task of the others is a token.
 */
#include "kernels/entries.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

/* ---- head_rotate ---- */

/* x *= rsqrt(mean(x^2) + eps) * norm. */
static void norm_of(float *x, int32_t n, float eps, const void *norm, sl_dtype dtype, sl_dtype act)
{
    float inv = sl_inverse_rms(x, n, eps), w = 1;

    for (int32_t i = 0; i < n; i++) {
        if (norm)
            sl_load_f32(dtype, norm, i, 1, &w);
        x[i] = sl_round_act(x[i] * inv * w, act);
    }
}

static uint32_t rotate_head(const void *arg, int64_t i, void *own)
{
    const sl_head_rotate_params *p = arg;
    const int64_t t = i / p->heads, h = i % p->heads;
    const float *cs = sl_cos_sin_at(p->cos_sin, p->pos[t], p->rope);
    float *x = own, *angle = x + p->dim;

    sl_load_f32(p->act, p->x, t * p->ld_x + h * p->dim, p->dim, x);
    if (p->eps > 0)
        norm_of(x, p->dim, p->eps, p->norm, p->norm_dtype, p->act);
    for (int32_t k = 0; k < p->rope; k += 2) {
        angle[k] = cs[k];
        angle[k + 1] = p->back ? -cs[k + 1] : cs[k + 1];
    }
    sl_rope(x + p->dim - p->rope, p->rope, angle, true, p->act);
    sl_store_f32(p->out_dtype, x, p->dim, p->out, i * p->dim);
    return 0;
}

static sl_status run_head_rotate(sl_backend *be, const void *params, sl_err *err)
{
    const sl_head_rotate_params *p = params;
    return sl_cpu_run(be, "head_rotate", sizeof(float) * ((size_t)p->dim + (size_t)p->rope),
                      (int64_t)p->tokens * p->heads, 4 * (int64_t)p->dim, rotate_head, p, err);
}

const sl_op_impl sl_cpu_head_rotate = {.run = run_head_rotate};

/* ---- entries_append ---- */

/* The entry's values, from the open state, which has all its tokens: without overlap maximum, sum and products. */
static void close_plain(const sl_entries_append_params *p, const float *open, float *out)
{
    for (int32_t c = 0; c < p->dim; c++)
        out[c] = open[2 * p->dim + c] / open[p->dim + c];
}

/* A token joins the open entry. */
static void add_plain(const sl_entries_append_params *p, int64_t t, int32_t pos, float *open)
{
    const float *kv = p->kv + t * p->dim, *gate = p->gate + t * p->dim;
    const float *bias = p->bias + (int64_t)(pos % p->rate) * p->dim;
    float *top = open, *sum = open + p->dim, *all = sum + p->dim;

    for (int32_t c = 0; c < p->dim; c++) {
        float g = gate[c] + bias[c], max = pos % p->rate == 0 || g > top[c] ? g : top[c];
        float keep = pos % p->rate == 0 ? 0 : expf(top[c] - max), w = expf(g - max);

        sum[c] = (keep == 0 ? 0 : sum[c] * keep) + w;
        all[c] = (keep == 0 ? 0 : all[c] * keep) + w * kv[c];
        top[c] = max;
    }
}

/* The place of a token with overlap: kv, then gate with bias, of 2 * dim values each. */
static float *open_place(const sl_entries_append_params *p, float *open, int32_t pos)
{
    return open + (int64_t)(pos % (2 * p->rate)) * 4 * p->dim;
}

static void add_overlap(const sl_entries_append_params *p, int64_t t, int32_t pos, float *open)
{
    const int64_t n = 2 * (int64_t)p->dim;
    const float *kv = p->kv + t * n, *gate = p->gate + t * n;
    const float *bias = p->bias + (pos % p->rate) * n;
    float *to = open_place(p, open, pos);

    for (int64_t c = 0; c < n; c++) {
        to[c] = kv[c];
        to[n + c] = gate[c] + bias[c];
    }
}

/* The entry that ends with token pos. */
static void close_overlap(const sl_entries_append_params *p, float *open, int32_t pos, float *out)
{
    const int32_t first = pos + 1 - 2 * p->rate, n = 2 * p->dim;

    for (int32_t c = 0; c < p->dim; c++) {
        float top = -INFINITY, sum = 0, all = 0;

        for (int32_t j = first < 0 ? 0 : first; j <= pos; j++) {
            float g = open_place(p, open, j)[n + (j > pos - p->rate ? p->dim : 0) + c];
            top = g > top ? g : top;
        }
        for (int32_t j = first < 0 ? 0 : first; j <= pos; j++) {
            const float *at = open_place(p, open, j) + (j > pos - p->rate ? p->dim : 0) + c;
            float w = expf(at[n] - top);
            sum += w;
            all += w * at[0];
        }
        out[c] = all / sum;
    }
}

/* The device address of the entry that ends with token t; NULL: it is on the host alone. */
static uint32_t device_of(const sl_entries_append_params *p, int64_t t, const sl_place *at, int32_t place,
                          uint8_t **out)
{
    const int64_t bytes = p->dim * (int64_t)sl_dtype_size(p->dtype);
    uint8_t *host;

    if (p->rows.base)
        return sl_place_row(p->seqs, &p->rows, &p->host, t, out, &host);
    *out = p->device + p->seqs->index_pages[at->entry] * p->device_stride + place * bytes;
    return 0;
}

/* The entry that ends with token t, into its page. */
static uint32_t write_entry(const sl_entries_append_params *p, int64_t t, const sl_place *at, float *x)
{
    const sl_seq_tables *s = p->seqs;
    const int64_t bytes = p->dim * (int64_t)sl_dtype_size(p->dtype);
    const int32_t w = at->pos / p->rate;
    int32_t place;

    (void)sl_entry_page(w, p->rate, &place);
    norm_of(x, p->dim, p->eps, p->norm, p->norm_dtype, SL_F32);
    sl_rope(x + p->dim - p->rope, p->rope, sl_cos_sin_at(p->cos_sin, w * p->rate, p->rope), true, SL_F32);
    uint8_t *host =
                p->host.base + s->host_pages[at->entry] * p->host.page_stride + place * p->host.row_stride,
            *to = NULL;
    uint32_t bad = device_of(p, t, at, place, &to);
    if (bad)
        return bad;
    sl_store_f32(p->dtype, x, p->dim, host, 0);
    if (to)
        memcpy(to, host, (size_t)bytes);
    return 0;
}

static void clear_page(const sl_entries_append_params *p, const sl_place *at)
{
    const int64_t bytes = p->dim * (int64_t)sl_dtype_size(p->dtype);

    for (int32_t i = 0; i < sl_entries_per_page(p->rate); i++) {
        if (!p->rows.base)
            memset(p->device + p->seqs->index_pages[at->entry] * p->device_stride + i * bytes, 0,
                   (size_t)bytes);
        memset(p->host.base + p->seqs->host_pages[at->entry] * p->host.page_stride + i * p->host.row_stride,
               0, (size_t)bytes);
    }
}

static uint32_t append_token(const sl_entries_append_params *p, int64_t t, float *x)
{
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    if ((!p->rows.base && p->seqs->index_pages[at.entry] < 0) || p->seqs->host_pages[at.entry] < 0)
        return SL_DEVERR_PAGE;
    float *open = (float *)(void *)(p->open + at.seq * p->open_stride);
    bool last = (at.pos + 1) % p->rate == 0;
    if (at.pos % SL_PAGE_TOKENS == 0)
        clear_page(p, &at);
    if (p->overlap) {
        add_overlap(p, t, at.pos, open);
        if (last)
            close_overlap(p, open, at.pos, x);
    } else {
        add_plain(p, t, at.pos, open);
        if (last)
            close_plain(p, open, x);
    }
    return last ? write_entry(p, t, &at, x) : 0;
}

/* The tokens from the i-th on that belong to the same sequence, if the i-th is the first of them. */
static uint32_t append_run(const void *arg, int64_t i, void *own)
{
    const sl_entries_append_params *p = arg;
    const int32_t *seq = p->seqs->token_seq;
    uint32_t bad = 0;

    for (int64_t t = i; (i == 0 || seq[i - 1] != seq[i]) && t < p->seqs->n_tokens && seq[t] == seq[i]; t++)
        bad |= append_token(p, t, own);
    return bad;
}

static sl_status run_entries_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_entries_append_params *p = params;
    return sl_cpu_run(be, "entries_append", sizeof(float) * (size_t)p->dim, p->seqs->n_tokens,
                      60 * (int64_t)p->dim, append_run, p, err);
}

const sl_op_impl sl_cpu_entries_append = {.run = run_entries_append};

/* ---- entry_scores ---- */

/* Scores of the n entries from w on, which are in one page. */
static void score_page(const sl_entry_scores_params *p, int64_t t, const uint8_t *page, int32_t n,
                       float *keys, float *dots, float *out)
{
    const int32_t dim = p->entries.dim;
    const float *weights = p->weights + t * p->heads;

    sl_load_f32(p->entries.dtype, page, 0, (int64_t)n * dim, keys);
    sl_vec_products((sl_vec_rows){keys, dim, n}, (sl_vec_rows){p->q + t * p->heads * dim, dim, p->heads}, dim,
                    dots, n);
    memset(out, 0, sizeof(float) * (size_t)n);
    for (int32_t h = 0; h < p->heads; h++)
        for (int32_t i = 0; i < n; i++) {
            float d = dots[h * n + i];

            out[i] += (d < 0 ? 0.0f : d) * weights[h]; /* NaN stays NaN */
        }
}

static uint32_t score_token(const void *arg, int64_t i, void *own)
{
    const sl_entry_scores_params *p = arg;
    const sl_entries_view *e = &p->entries;
    const int64_t t = p->token_first + i;
    float *keys = own, *dots = keys + (int64_t)sl_entries_per_page(e->rate) * e->dim;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    p->seen_seq[t] = -1, p->seen_pos[t] = 0;
    if (bad)
        return bad;
    const int32_t n = (at.pos + 1) / e->rate, *pages = p->seqs->index_pages + (int64_t)at.seq * p->seqs->ld;
    if (n > p->ld_scores)
        return SL_DEVERR_POS;
    for (int32_t w = 0, place, here; w < n; w += here) {
        const int32_t page = sl_entry_page(w, e->rate, &place);

        here = (int32_t)(((int64_t)page + 1) * SL_PAGE_TOKENS / e->rate) - w;
        here = here < n - w ? here : n - w;
        if (pages[page] < 0)
            return SL_DEVERR_PAGE;
        score_page(p, t,
                   e->base + pages[page] * e->page_stride +
                       place * (int64_t)e->dim * (int64_t)sl_dtype_size(e->dtype),
                   here, keys, dots, p->scores + i * p->ld_scores + w);
    }
    if (n > 0)
        p->seen_seq[t] = at.seq, p->seen_pos[t] = n - 1;
    return 0;
}

static sl_status run_entry_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_entry_scores_params *p = params;
    const size_t per = (size_t)sl_entries_per_page(p->entries.rate);
    return sl_cpu_run(be, "entry_scores", sizeof(float) * per * ((size_t)p->entries.dim + (size_t)p->heads),
                      p->token_count, 1000 * (int64_t)p->heads, score_token, p, err);
}

const sl_op_impl sl_cpu_entry_scores = {.run = run_entry_scores};
