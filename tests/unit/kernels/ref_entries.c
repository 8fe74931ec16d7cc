/* The ops of windows and compressed entries, restated in double; see ref.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/entries.h"
#include "tests/unit/kernels/ref.h"

/* x = rms(x) * norm, as the op rounds it. */
static void norm_of(double *x, int64_t n, float eps, const void *norm, sl_dtype dtype, sl_dtype act)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] = ref_act(x[i] / sqrt(sum / (double)n + (double)eps) * (norm ? ref_at(norm, dtype, i) : 1), act);
}

void ref_head_rotate(const void *params)
{
    const sl_head_rotate_params *p = params;
    double *x = malloc(8 * (size_t)p->dim);
    float *angle = malloc(4 * (size_t)(p->rope ? p->rope : 1));

    for (int64_t i = 0; i < (int64_t)p->tokens * p->heads; i++) {
        const int64_t t = i / p->heads;

        for (int64_t d = 0; d < p->dim; d++)
            x[d] = ref_at(p->x, p->act, t * p->ld_x + i % p->heads * p->dim + d);
        if (p->eps > 0)
            norm_of(x, p->dim, p->eps, p->norm, p->norm_dtype, p->act);
        for (int32_t k = 0; k < p->rope; k++)
            angle[k] = p->cos_sin[(int64_t)p->pos[t] * p->rope + k] * (p->back && k % 2 ? -1.0f : 1.0f);
        ref_rope(x + p->dim - p->rope, p->rope, angle, 0, true, p->act);
        for (int64_t d = 0; d < p->dim; d++)
            ref_put(p->out, p->out_dtype, i * p->dim + d, x[d]);
    }
    free(angle);
    free(x);
}

/* The page of a token's entries, on the device or on the host, and the bytes from one entry to the next. */
static uint8_t *page_at(const sl_entries_append_params *p, bool host, int64_t seq, int64_t pos, int64_t *step)
{
    const sl_seq_tables *s = p->seqs;

    *step = host ? p->host.row_stride : p->dim * (int64_t)sl_dtype_size(p->dtype);
    return host ? p->host.base + ref_page_of(s->host_pages, s, seq, pos) * p->host.page_stride
                : p->device + ref_page_of(s->index_pages, s, seq, pos) * p->device_stride;
}

/* The value of channel c from the running sums, which a token joins. */
static double plain_value(const sl_entries_append_params *p, int64_t t, int64_t pos, int64_t c, float *open)
{
    float *top = open + c, *sum = open + p->dim + c, *all = open + 2 * p->dim + c;
    double g = (double)(p->gate[t * p->dim + c] + p->bias[pos % p->rate * p->dim + c]);
    double s = pos % p->rate ? (double)*sum : 0, v = pos % p->rate ? (double)*all : 0;
    double old = pos % p->rate ? (double)*top : g, max = fmax(old, g);

    s = s * exp(old - max) + exp(g - max);
    v = v * exp(old - max) + exp(g - max) * (double)p->kv[t * p->dim + c];
    *top = (float)max, *sum = (float)s, *all = (float)v;
    return v / s;
}

/* The value of channel c of the entry that ends with pos, from the last tokens. */
static double overlap_value(const sl_entries_append_params *p, int64_t pos, int64_t c, const float *open)
{
    double sum = 0, all = 0, top = -INFINITY;

    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = pos - 2 * p->rate + 1; j <= pos; j++) {
            const float *at = open + (j + 2 * p->rate) % (2 * p->rate) * 4 * p->dim;
            const int64_t i = j > pos - p->rate ? p->dim + c : c;
            const double g = (double)at[2 * p->dim + i];

            if (j < 0)
                continue;
            if (pass == 0)
                top = fmax(top, g);
            else
                sum += exp(g - top), all += exp(g - top) * (double)at[i];
        }
    return all / sum;
}

/* Token t: it joins the open entry. x: the entry's values if it ends there. */
static void append_token(const sl_entries_append_params *p, int64_t t, int64_t seq, int64_t pos, double *x)
{
    float *open = (float *)(void *)(p->open + seq * p->open_stride);
    const int64_t n = 2 * (int64_t)p->dim;

    for (int64_t c = 0; p->overlap && c < n; c++) {
        open[pos % (2 * p->rate) * 2 * n + c] = p->kv[t * n + c];
        open[pos % (2 * p->rate) * 2 * n + n + c] = p->gate[t * n + c] + p->bias[pos % p->rate * n + c];
    }
    for (int64_t c = 0; c < p->dim; c++)
        x[c] = p->overlap ? overlap_value(p, pos, c, open) : plain_value(p, t, pos, c, open);
}

/* The row of the entry that ends with pos: later entries of the step take the place of earlier ones in the tail. */
static uint8_t *row_at(const sl_entries_append_params *p, int64_t seq, int64_t pos)
{
    const sl_row_view *v = &p->rows;
    const int64_t w = pos / p->rate, slot = p->seqs->hot_slot[seq];
    const int64_t row =
        slot < 0 ? ref_page_of(p->seqs->row_pages, p->seqs, seq, pos) * (SL_PAGE_TOKENS / p->rate) +
                       w % (SL_PAGE_TOKENS / p->rate)
                 : v->hot_base + slot * (v->hot_rows + v->tail_rows) + v->hot_rows + w % v->tail_rows;
    return v->base + row * v->row_bytes;
}

void ref_entries_append(const void *params)
{
    const sl_entries_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    const size_t bytes = (size_t)p->dim * sl_dtype_size(p->dtype);
    double *x = malloc(8 * (size_t)p->dim);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        const int64_t seq = s->token_seq[t], pos = s->token_pos[t], page = pos / SL_PAGE_TOKENS;
        int64_t before = 0, most = 0, step;

        if (seq < 0)
            continue;
        for (int64_t j = page * SL_PAGE_TOKENS; j < pos; j++)
            before += (j + 1) % p->rate == 0;
        for (int64_t first = 0; first < p->rate; first++) { /* the most that any page can hold */
            int64_t here = 0;
            for (int64_t j = first; j < first + SL_PAGE_TOKENS; j++)
                here += (j + 1) % p->rate == 0;
            most = here > most ? here : most;
        }
        if (p->rate % SL_PAGE_TOKENS == 0)
            most = 1;
        for (int host = p->rows.base != NULL; host < 2 && pos % SL_PAGE_TOKENS == 0; host++) {
            uint8_t *at = page_at(p, host, seq, pos, &step);
            for (int64_t i = 0; i < most; i++)
                memset(at + i * step, 0, bytes);
        }
        append_token(p, t, seq, pos, x);
        if ((pos + 1) % p->rate)
            continue;
        norm_of(x, p->dim, p->eps, p->norm, p->norm_dtype, SL_F32);
        ref_rope(x + p->dim - p->rope, p->rope, p->cos_sin, pos + 1 - p->rate, true, SL_F32);
        for (int host = p->rows.base != NULL; host < 2; host++) {
            uint8_t *at = page_at(p, host, seq, pos, &step);
            for (int64_t c = 0; c < p->dim; c++)
                ref_put(at + before * step, p->dtype, c, x[c]);
        }
        for (int64_t c = 0; p->rows.base && c < p->dim; c++)
            ref_put(row_at(p, seq, pos), p->dtype, c, x[c]);
    }
    free(x);
}

/* Value c of entry w of a sequence. */
static double entry_at(const sl_entries_view *e, const sl_seq_tables *s, int64_t seq, int64_t w, int64_t c)
{
    const int64_t last = (w + 1) * e->rate - 1;
    int64_t before = 0;

    for (int64_t j = last / SL_PAGE_TOKENS * SL_PAGE_TOKENS; j < last; j++)
        before += (j + 1) % e->rate == 0;
    return ref_at(e->base + ref_page_of(s->index_pages, s, seq, last) * e->page_stride, e->dtype,
                  before * e->dim + c);
}

void ref_entry_scores(const void *params)
{
    const sl_entry_scores_params *p = params;
    const sl_seq_tables *s = p->seqs;

    for (int64_t i = 0; i < p->token_count; i++) {
        const int64_t t = p->token_first + i, seq = s->token_seq[t],
                      n = seq < 0 ? 0 : (s->token_pos[t] + 1) / p->entries.rate;

        p->seen_seq[t] = n ? (int32_t)seq : -1;
        p->seen_pos[t] = n ? (int32_t)n - 1 : 0;
        for (int64_t w = 0; w < n; w++) {
            double sum = 0;

            for (int64_t h = 0; h < p->heads; h++) {
                double dot = 0;
                for (int64_t c = 0; c < p->entries.dim; c++)
                    dot += (double)p->q[(t * p->heads + h) * p->entries.dim + c] *
                           entry_at(&p->entries, s, seq, w, c);
                sum += fmax(dot, 0) * (double)p->weights[t * p->heads + h];
            }
            p->scores[i * p->ld_scores + w] = (float)sum;
        }
    }
}

/* Value c of the window row of a position. */
static double window_at(const sl_ring_attn_params *p, int64_t t, int64_t seq, int64_t back, int64_t c)
{
    const int64_t pos = p->seqs->token_pos[t] - back;

    if (t - back >= 0 && p->seqs->token_seq[t - back] == seq)
        return ref_at(p->kv, p->entries.dtype, (t - back) * p->dim + c);
    return ref_at(p->ring + seq * p->ring_stride, p->entries.dtype, pos % p->window * p->dim + c);
}

void ref_ring_attn(const void *params)
{
    const sl_ring_attn_params *p = params;
    const sl_seq_tables *s = p->seqs;

    for (int64_t t = 0; t < p->tokens; t++) {
        const int64_t seq = s->token_seq[t], pos = s->token_pos[t],
                      near = pos < p->window ? pos + 1 : p->window;
        int64_t n = seq >= 0 && p->entries.rate ? (pos + 1) / p->entries.rate : 0, chosen = 0;

        while (p->ids && chosen < p->k && p->ids[t * p->ld_ids + chosen] >= 0)
            chosen++;
        n = p->ids ? chosen : n;
        const int64_t rows = seq < 0 ? 0 : near + n;
        double *x = malloc(8 * (size_t)(rows * p->dim + 1)), *z = malloc(8 * (size_t)(rows + 1));
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < p->dim; c++)
                x[i * p->dim + c] =
                    p->phys && i >= near
                        ? ref_at(p->rows, p->entries.dtype, p->phys[t * p->ld_ids + i - near] * p->dim + c)
                    : i < near ? window_at(p, t, seq, near - 1 - i, c)
                               : entry_at(&p->entries, s, seq,
                                          p->ids ? p->ids[t * p->ld_ids + i - near] : i - near, c);
        for (int64_t h = 0; h < p->heads; h++) {
            double top = (double)p->sinks[h], sum;

            for (int64_t i = 0; i < rows; i++) {
                z[i] = 0;
                for (int64_t c = 0; c < p->dim; c++)
                    z[i] += ref_at(p->q, p->act, (t * p->heads + h) * p->dim + c) * x[i * p->dim + c];
                z[i] *= (double)p->scale;
                top = fmax(top, z[i]);
            }
            sum = exp((double)p->sinks[h] - top);
            for (int64_t i = 0; i < rows; i++)
                sum += z[i] = exp(z[i] - top);
            for (int64_t c = 0; c < p->dim; c++) {
                double v = 0;
                for (int64_t i = 0; i < rows; i++)
                    v += z[i] * x[i * p->dim + c];
                ref_put(p->out, p->act, (t * p->heads + h) * p->dim + c, v / sum);
            }
        }
        free(z);
        free(x);
    }
}

void ref_ring_store(const void *params)
{
    const sl_ring_store_params *p = params;
    const size_t row = (size_t)p->dim * sl_dtype_size(p->dtype);

    for (int64_t t = 0; t < p->seqs->n_tokens; t++) /* in order, so that the later one remains */
        if (p->seqs->token_seq[t] >= 0)
            memcpy(p->ring + p->seqs->token_seq[t] * p->ring_stride +
                       (size_t)(p->seqs->token_pos[t] % p->window) * row,
                   (const uint8_t *)p->kv + (size_t)t * row, row);
}
