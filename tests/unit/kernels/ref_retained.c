/* Reference of the ops of pages of retained tokens, and of the metadata of what a prompt keeps (ref.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"
#include "kernels/retained.h"
#include "kernels/window.h"
#include "tests/unit/kernels/ref.h"

/* Position of retained token i: the kept ones, then all from the window on. */
static int64_t position(const sl_retained *r, int64_t seq, int64_t head, int64_t i)
{
    const int64_t n = r->prompts[2 * seq], n_kept = r->prompts[2 * seq + 1];
    int64_t window = n - r->window < 0 ? 0 : n - r->window;

    if (i < n_kept)
        return r->kept[(seq * r->kv_heads + head) * r->ld_kept + i];
    return window + (i - n_kept);
}

/* How many retained tokens are at or before the position of a token after the prompt's begin of the window. */
static int64_t count(const sl_retained *r, int64_t seq, int64_t pos)
{
    int64_t i = 0;

    while (position(r, seq, 0, i) != pos)
        i++;
    return i + 1;
}

static double key_value(const sl_seq_tables *s, const sl_retained *r, int64_t seq, int64_t pos, int64_t head,
                        int64_t ch)
{
    const uint8_t *row = r->host_rows.base +
                         ref_page_of(s->host_pages, s, seq, pos) * r->host_rows.page_stride +
                         pos % 64 * r->host_rows.row_stride + (r->rows.heads ? head * r->rows.row_bytes : 0);
    const int64_t slots = r->rows.heads ? 1 : r->kv_heads, slot = r->rows.heads ? 0 : head;
    float scale;

    if (r->format == SL_ROW_GQA_F32)
        return ref_at(row, SL_F32, slot * r->dim + ch);
    if (r->format == SL_ROW_GQA_BF16)
        return ref_at(row, SL_BF16, slot * r->dim + ch);
    memcpy(&scale, row + 2 * slots * r->dim + 4 * slot, 4);
    return ref_at(row, SL_F8_E4M3, slot * r->dim + ch) * (double)scale;
}

/* The smallest number with `bits` mantissa bits after the leading one, at least 2^least, that is not below v. */
static double round_up(double v, int bits, int least, double most)
{
    int e;

    frexp(v, &e);
    e = e - 1 < least ? least : e - 1;
    v = ceil(ldexp(v, bits - e)) * ldexp(1, e - bits);
    return v > most ? most : v < -most ? -most : v;
}

static double up(const sl_retained *r, double v)
{
    return r->type == SL_KT_E5M2 ? round_up(v, 2, -14, 57344) : round_up(v, 7, -126, 3e38);
}

/* Largest (or, negated, smallest) value of a channel over retained tokens first .. last, as it is stored. */
static double bound(const sl_seq_tables *s, const sl_retained *r, int64_t seq, int64_t head, int64_t first,
                    int64_t last, int64_t ch, bool largest)
{
    double v = -INFINITY;

    for (int64_t i = first; i <= last; i++) {
        double k = key_value(s, r, seq, position(r, seq, head, i), head, ch);

        v = fmax(v, largest ? k : -k);
    }
    return largest ? up(r, v) : -up(r, v);
}

static void put(const sl_retained *r, uint8_t *unit, int64_t at, double v)
{
    if (r->type == SL_KT_BF16) {
        ref_put(unit, SL_BF16, at, v);
        return;
    }
    int code = 0; /* the first that has the value: codes ascend with values */
    while (ldexp(code & 3, -16) != fabs(v) && code < 4)
        code++;
    for (; code >= 4 && code < 0x7b && ldexp(4 + (code & 3), (code >> 2) - 17) != fabs(v);)
        code++;
    unit[at] = (uint8_t)(v == 0 ? 0 : code | (v < 0 ? 0x80 : 0));
}

void ref_retained_append(const void *params)
{
    const sl_retained_append_params *p = params;
    const sl_retained *r = &p->r;
    const sl_seq_tables *s = p->seqs;
    const int64_t size = (int64_t)1 << r->page_log2, unit = 2 * r->dim * (r->type == SL_KT_E5M2 ? 1 : 2);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        const int64_t seq = s->token_seq[t], pos = s->token_pos[t], n = r->prompts[2 * seq];

        if (n < 1 || pos < n - 1)
            continue;
        const int64_t end = count(r, seq, pos), begin = pos == n - 1 ? 0 : end - 1;
        for (int64_t page = begin / size; (page + 1) * size <= end; page++)
            for (int64_t h = 0; h < r->kv_heads; h++)
                for (int64_t i = 0; i < 2 * r->dim; i++)
                    put(r,
                        r->base + ref_page_of(s->index_pages, s, seq, page * size) * r->page_stride +
                            (h * 64 + page * size % 64) / size * unit,
                        i, bound(s, r, seq, h, page * size, (page + 1) * size - 1, i % r->dim, i < r->dim));
    }
}

/* Whether channel `ch` is one of the top_r by the group's sum of |q|. */
static bool chosen(const sl_retained_scores_params *p, const float *q, int64_t group, int64_t ch)
{
    int64_t better = 0;

    for (int64_t i = 0; i < p->r.dim; i++) {
        float a = 0, b = 0; /* as the ops: the order of equal sums must agree */

        for (int64_t h = 0; h < group; h++) {
            a += fabsf(q[h * p->r.dim + i]);
            b += fabsf(q[h * p->r.dim + ch]);
        }
        better += a > b || (a == b && i < ch);
    }
    return better < p->top_r;
}

static void score_list(const sl_retained_scores_params *p, int64_t t, int64_t head, int64_t end, float *out)
{
    const sl_retained *r = &p->r;
    const int64_t seq = p->seqs->token_seq[t], group = p->heads / r->kv_heads,
                  size = (int64_t)1 << r->page_log2;
    const int64_t pages = (end + size - 1) / size;
    const float *q = p->q + (t * p->heads + head * group) * r->dim;
    double *sum = calloc((size_t)(2 * pages), 8), *x = sum + pages;

    for (int64_t h = 0; h < group; h++) {
        double top = -INFINITY, all = 0;

        for (int64_t page = 0; page < pages; page++) {
            const int64_t last = (page + 1) * size < end ? (page + 1) * size : end;

            x[page] = 0;
            for (int64_t i = 0; i < r->dim; i++) {
                double sign = 0;

                for (int64_t g = 0; g < group; g++)
                    sign += (double)q[g * r->dim + i];
                if (chosen(p, q, group, i))
                    x[page] += (double)q[h * r->dim + i] *
                               bound(p->seqs, r, seq, head, page * size, last - 1, i, sign > 0);
            }
            top = fmax(top, x[page]);
        }
        for (int64_t page = 0; page < pages; page++)
            all += exp((double)p->scale * (x[page] - top));
        for (int64_t page = 0; page < pages; page++)
            sum[page] += exp((double)p->scale * (x[page] - top)) / all;
    }
    for (int64_t page = 0; page < pages; page++)
        out[page] = (float)sum[page];
    free(sum);
}

void ref_retained_scores(const void *params)
{
    const sl_retained_scores_params *p = params;
    const sl_retained *r = &p->r;

    for (int64_t t = p->token_first; t < p->token_first + p->token_count; t++) {
        const int64_t seq = p->seqs->token_seq[t], pos = p->seqs->token_pos[t], at = t - p->token_first;

        p->place[at] = -1, p->place[p->token_count + at] = 0;
        if (pos < r->prompts[2 * seq] || pos < p->dense_below)
            continue;
        const int64_t end = count(r, seq, pos);
        p->place[at] = (int32_t)seq, p->place[p->token_count + at] = (int32_t)end - 1;
        if ((end - 1) >> r->page_log2 < p->select)
            continue;
        for (int64_t h = 0; h < r->kv_heads; h++)
            score_list(p, t, h, end, p->scores + (at * r->kv_heads + h) * p->ld_scores);
    }
}

void ref_retained_lists(const void *params)
{
    const sl_retained_lists_params *p = params;
    const sl_retained *r = &p->r;

    for (int64_t t = p->token_first; t < p->token_first + p->token_count; t++)
        for (int64_t h = 0; h < r->kv_heads; h++) {
            const int64_t seq = p->seqs->token_seq[t], pos = p->seqs->token_pos[t];
            const int64_t list = (t - p->token_first) * r->kv_heads + h;
            const bool all = pos < r->prompts[2 * seq] || pos < p->dense_below;
            int32_t *ids = p->ids + list * p->ld_ids;
            int64_t n = 0;

            for (int64_t i = 0, end = all ? pos + 1 : count(r, seq, pos); i < end; i++) {
                bool in = all;

                for (int64_t j = 0; j < p->select && !in; j++)
                    in = p->pages[list * p->select + j] == i >> r->page_log2;
                if (in)
                    ids[n++] = (int32_t)(all ? i : position(r, seq, h, i));
            }
            for (; n < p->ld_ids; n++)
                ids[n] = -1;
        }
}

/* Walks over all positions up to the last kept one. */
static void write_gaps(const int32_t *kept, int32_t n, uint8_t *out)
{
    int32_t skipped = 0;

    for (int32_t pos = 0, i = 0; i < n; pos++) {
        uint16_t entry = (uint16_t)skipped;

        if (pos != kept[i] && ++skipped < 65535)
            continue;
        if (pos == kept[i])
            i++;
        else
            entry = 65535;
        memcpy(out, &entry, 2);
        out += 2, skipped = 0;
    }
}

void ref_kept_store(const void *params)
{
    const sl_kept_store_params *p = params;

    for (int64_t t = 0; t < p->seqs->n_tokens; t++) {
        const int32_t seq = p->seqs->token_seq[t], pos = p->seqs->token_pos[t];
        if (seq == -1)
            continue;
        const int32_t *prompt = p->prompts + 2 * (int64_t)seq;
        uint8_t *page =
            p->host.base + ref_page_of(p->seqs->host_pages, p->seqs, seq, pos) * p->host.page_stride;
        if (pos % 64 == 0)
            memset(page, 0, (size_t)p->lists * (size_t)p->unit_bytes);
        for (int32_t l = 0; l < p->lists && pos == prompt[0] - 1; l++) {
            uint8_t *unit = page + (int64_t)l * p->unit_bytes;

            memset(unit, 0, (size_t)p->unit_bytes);
            memcpy(unit, prompt, 8);
            write_gaps(p->kept + ((int64_t)seq * p->lists + l) * p->ld_kept, prompt[1], unit + 8);
        }
    }
}
