/* Reference of the ops of labels of tokens (ref.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"
#include "kernels/labels.h"
#include "tests/unit/kernels/ref.h"

static int64_t value_bytes(sl_dtype dtype)
{
    return dtype == SL_F32 ? 4 : 2;
}

/* The host row of head h's key: every row is there, byte for byte as on the device. */
static double key_value(const sl_labels_append_params *p, int64_t t, int64_t head, int64_t i)
{
    const sl_seq_tables *s = p->seqs;
    const int64_t size = (int64_t)1 << p->rows.block_log2, pos = s->token_pos[t];
    const int64_t slots = p->rows.heads ? size : size * p->heads;
    const int64_t slot = p->rows.heads ? pos % size : pos % size * p->heads + head;
    const uint8_t *row =
        p->host_rows.base + ref_page_of(s->host_pages, s, s->token_seq[t], pos) * p->host_rows.page_stride +
        pos % 64 / size * p->host_rows.row_stride + (p->rows.heads ? head * p->rows.row_bytes : 0);
    float scale;

    if (p->format == SL_ROW_GQA_F32)
        return ref_at(row, SL_F32, slot * p->dim + i);
    if (p->format == SL_ROW_GQA_BF16)
        return ref_at(row, SL_BF16, slot * p->dim + i);
    memcpy(&scale, row + 2 * slots * p->dim + 4 * slot, 4);
    return ref_at(row, SL_F8_E4M3, slot * p->dim + i) * (double)scale;
}

void ref_labels_append(const void *params)
{
    const sl_labels_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    const int64_t unit = 64 * (int64_t)p->count * value_bytes(p->dtype);

    for (int64_t t = 0; t < s->n_tokens; t++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->count; i++) {
                int64_t seq = s->token_seq[t], pos = s->token_pos[t], at = pos % 64 * p->count + i;
                double v = key_value(p, t, h, p->channels[h * p->count + i]);

                ref_put(p->base + ref_page_of(s->index_pages, s, seq, pos) * p->page_stride + h * unit,
                        p->dtype, at, v);
                if (p->host.base)
                    ref_put(p->host.base + ref_page_of(s->host_pages, s, seq, pos) * p->host.page_stride +
                                h * unit,
                            p->dtype, at, v);
            }
}

/* The product over the channels of query head `head`, or of the mean of its group, with the label of token `pos`. */
static double product(const sl_labels_scores_params *p, int64_t t, int64_t pos, int64_t head, bool mean)
{
    const sl_seq_tables *s = p->seqs;
    const int64_t group = p->heads / p->kv_heads, kv = head / group;
    const uint8_t *unit = p->base + ref_page_of(s->index_pages, s, s->token_seq[t], pos) * p->page_stride +
                          kv * 64 * p->count * value_bytes(p->dtype);
    double sum = 0;

    for (int64_t i = 0; i < p->count; i++) {
        int64_t ch = p->channels[kv * p->count + i];
        double q = 0;

        for (int64_t h = mean ? kv * group : head; h < (mean ? (kv + 1) * group : head + 1); h++)
            q += (double)p->q[(t * p->heads + h) * p->dim + ch];
        sum += q / (mean ? (double)group : 1) * ref_at(unit, p->dtype, pos % 64 * p->count + i);
    }
    return sum;
}

void ref_places(const double *x, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int64_t j = 0; j < n; j++)
            out[i] -= x[j] > x[i] || (x[j] == x[i] && j < i);
    }
}

void ref_labels_scores(const void *params)
{
    const sl_labels_scores_params *p = params;
    const int64_t group = p->heads / p->kv_heads, per = p->heads / p->lists;
    const bool mean = p->reduce == SL_GROUP_MEAN;
    double *x = malloc(8 * (size_t)p->ld_scores), *place = malloc(8 * (size_t)p->ld_scores);

    for (int64_t t = p->token_first; t < p->token_first + p->token_count; t++)
        for (int64_t l = 0; l < p->lists && p->seqs->token_pos[t] >= p->from_pos; l++) {
            int64_t n = p->seqs->token_pos[t] + 1;
            float *out = p->scores + ((t - p->token_first) * p->lists + l) * p->ld_scores;
            double *sum = calloc((size_t)n, 8);

            for (int64_t h = l * per; h < (l + 1) * per; h += mean ? group : 1) {
                double top = -INFINITY, all = 0;

                for (int64_t i = 0; i < n; i++) {
                    x[i] = product(p, t, i, h, mean);
                    top = fmax(top, x[i]);
                }
                for (int64_t i = 0; i < n; i++)
                    all += exp((double)p->scale * (x[i] - top));
                ref_places(x, p->reduce == SL_GROUP_UNION ? n : 0, place);
                for (int64_t i = 0; i < n; i++)
                    if (p->reduce == SL_GROUP_UNION)
                        sum[i] = h == l * per ? place[i] : fmax(sum[i], place[i]);
                    else if (p->reduce == SL_GROUP_MAX)
                        sum[i] = h == l * per ? x[i] : fmax(sum[i], x[i]);
                    else
                        sum[i] += mean ? x[i] : exp((double)p->scale * (x[i] - top)) / all;
            }
            for (int64_t i = 0; i < n; i++)
                out[i] = (float)sum[i];
            free(sum);
        }
    free(x), free(place);
}
