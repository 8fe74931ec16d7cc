/* Reference of the ops of grouped-query attention (ref.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"
#include "tests/unit/kernels/ref.h"

static double f(double v)
{
    return (double)(float)v;
}

static double biased(const float *x, const float *bias, int64_t at, int64_t i, sl_dtype act)
{
    double v = (double)x[at + i];

    return ref_act(bias ? f(v + (double)bias[i]) : v, act);
}

/* x[at .. at + dim - 1], which is head h of a token at position pos. */
static void head(const sl_gqa_head_params *p, const float *x, int64_t at, int64_t h, int32_t dim, int64_t pos,
                 sl_dtype act, double *out)
{
    const float *bias = p->bias ? p->bias + h * dim : NULL;
    double sum = 0;

    for (int32_t i = 0; i < dim; i++)
        out[i] = biased(x, bias, at, i, act);
    for (int32_t i = 0; i < dim; i++)
        sum += out[i] * out[i];
    if (p->norm) {
        double inv = f(1 / sqrt(sum / dim + (double)p->eps));

        for (int32_t i = 0; i < dim; i++)
            out[i] = ref_act(f(f(out[i] * inv) * (double)p->norm[i]), act);
    }
    ref_rope(out, dim, p->cos_sin, pos, false, act);
}

void ref_gqa_query(const void *params)
{
    const sl_gqa_query_params *p = params;
    double *x = malloc(8 * (size_t)p->dim);

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++) {
            int64_t at = (t * p->heads + h) * p->dim;

            head(&p->head, p->q, at, h, p->dim, p->pos[t], p->act, x);
            for (int32_t i = 0; i < p->dim; i++)
                p->out[at + i] = (float)x[i];
        }
    free(x);
}

/* One side of a row, head by head; fp8 puts the scales of all heads after both sides. */
static void put_side(sl_row_format format, int32_t heads, int32_t dim, int side, const double *x,
                     uint8_t *row)
{
    int64_t n = (int64_t)heads * dim;

    for (int64_t h = 0; h < heads; h++) {
        double amax = 0, scale;
        float s;

        for (int32_t i = 0; i < dim; i++)
            amax = fmax(amax, fabs(x[h * dim + i]));
        scale = ref_pow2_ceil(fmax(f(amax * (double)(1.0f / 448.0f)), (double)1e-4f));
        s = (float)scale;
        for (int64_t i = h * dim; i < (h + 1) * dim; i++) {
            if (format == SL_ROW_GQA_F32)
                ref_put(row, SL_F32, side * n + i, x[i]);
            else if (format == SL_ROW_GQA_BF16)
                ref_put(row, SL_BF16, side * n + i, x[i]);
            else
                row[side * n + i] = ref_e4m3(x[i] / scale);
        }
        if (format == SL_ROW_GQA_FP8)
            memcpy(row + 2 * n + 4 * (side * heads + h), &s, 4);
    }
}

static double get_value(sl_row_format format, int32_t heads, int32_t dim, int side, const uint8_t *row,
                        int64_t h, int64_t i)
{
    int64_t n = (int64_t)heads * dim, at = side * n + h * dim + i;
    float s;

    if (format == SL_ROW_GQA_F32)
        return ref_at(row, SL_F32, at);
    if (format == SL_ROW_GQA_BF16)
        return ref_at(row, SL_BF16, at);
    memcpy(&s, row + 2 * n + 4 * (side * heads + h), 4);
    return f(ref_e4m3_value(row[at]) * (double)s);
}

void ref_gqa_append(const void *params)
{
    const sl_gqa_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t all = (int64_t)p->heads * p->dim;
    double *k = malloc(16 * (size_t)all), *v = k + all;
    uint8_t *row = malloc((size_t)p->rows.row_bytes);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t seq = s->token_seq[t], pos = s->token_pos[t];

        for (int64_t h = 0; h < p->heads; h++)
            head(&p->key, p->k, t * all + h * p->dim, h, p->dim, pos, p->act, k + h * p->dim);
        for (int64_t i = 0; i < all; i++)
            v[i] = biased(p->v, p->v_bias, t * all, i, p->act);
        put_side(p->format, p->heads, p->dim, 0, k, row);
        put_side(p->format, p->heads, p->dim, 1, v, row);
        ref_store_row(s, &p->rows, &p->host, seq, pos, row);
    }
    free(k);
    free(row);
}

/* One query head over n rows. */
static void attend(const sl_gqa_attn_params *p, int64_t t, int64_t h, int32_t n, double *s)
{
    int64_t kv = h / (p->heads / p->kv_heads), at = (t * p->heads + h) * p->dim;
    double top = -INFINITY, sum = 0;

    for (int32_t j = 0; j < n; j++) {
        const uint8_t *row = p->rows.base + p->phys[t * p->ld_ids + j] * p->rows.row_bytes;

        s[j] = 0;
        for (int32_t i = 0; i < p->dim; i++)
            s[j] += (double)p->q[at + i] * get_value(p->format, p->kv_heads, p->dim, 0, row, kv, i);
        s[j] *= (double)p->scale;
        top = fmax(top, s[j]);
    }
    for (int32_t j = 0; j < n; j++)
        sum += s[j] = exp(s[j] - top);
    for (int32_t i = 0; i < p->dim; i++) {
        double o = 0;

        for (int32_t j = 0; j < n; j++)
            o += s[j] / sum *
                 get_value(p->format, p->kv_heads, p->dim, 1,
                           p->rows.base + p->phys[t * p->ld_ids + j] * p->rows.row_bytes, kv, i);
        ref_put(p->out, p->act, at + i, o);
    }
}

void ref_gqa_attn(const void *params)
{
    const sl_gqa_attn_params *p = params;
    double *s = malloc(8 * (size_t)p->k);

    for (int64_t t = 0; t < p->tokens; t++) {
        int32_t n = 0;

        while (n < p->k && p->phys[t * p->ld_ids + n] >= 0)
            n++;
        for (int64_t h = 0; h < p->heads; h++)
            attend(p, t, h, n, s);
    }
    free(s);
}
