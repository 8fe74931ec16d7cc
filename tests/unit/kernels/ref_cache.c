/* Reference of the ops on the cache (ref.h): rows, index keys, selection, attention. Residency: ref_residency.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/ref.h"

static double f(double v)
{
    return (double)(float)v;
}

static double bf(double v)
{
    return ref_act(v, SL_BF16);
}

/* ---- rows ---- */

static void write_bf16(uint8_t *at, double v)
{
    uint16_t h = ref_bf16(v);

    memcpy(at, &h, 2);
}

static void write_f32(uint8_t *at, double v)
{
    float x = (float)v;

    memcpy(at, &x, 4);
}

static double read_f32(const uint8_t *at)
{
    float x;

    memcpy(&x, at, 4);
    return (double)x;
}

static double read_bf16(const uint8_t *at)
{
    uint16_t h;

    memcpy(&h, at, 2);
    return ref_bf16_value(h);
}

static void encode_row(sl_row_format format, int32_t lora, int32_t rope, const double *x, uint8_t *row)
{
    if (format == SL_ROW_MLA_F32 || format == SL_ROW_MLA_BF16) {
        for (int32_t i = 0; i < lora + rope; i++)
            if (format == SL_ROW_MLA_F32)
                write_f32(row + 4 * i, x[i]);
            else
                write_bf16(row + 2 * i, x[i]);
        return;
    }
    int32_t groups = (lora + 127) / 128;

    for (int32_t g = 0; g < groups; g++) {
        double amax = 0, s;

        for (int32_t i = g * 128; i < lora && i < g * 128 + 128; i++)
            amax = fmax(amax, fabs(x[i]));
        s = ref_pow2_ceil(fmax(f(amax * (double)(1.0f / 448.0f)), (double)1e-4f));
        for (int32_t i = g * 128; i < lora && i < g * 128 + 128; i++)
            row[i] = ref_e4m3(x[i] / s);
        write_f32(row + lora + 4 * g, s);
    }
    for (int32_t i = 0; i < rope; i++)
        write_bf16(row + lora + 4 * groups + 2 * i, x[lora + i]);
}

static double row_value(sl_row_format format, int32_t lora, const uint8_t *row, int32_t i)
{
    if (format == SL_ROW_MLA_F32)
        return read_f32(row + 4 * i);
    if (format == SL_ROW_MLA_BF16)
        return read_bf16(row + 2 * i);
    if (i < lora)
        return ref_e4m3_value(row[i]) * read_f32(row + lora + 4 * (i / 128));
    return read_bf16(row + lora + 4 * ((lora + 127) / 128) + 2 * (i - lora));
}

int32_t ref_page_of(const int32_t *table, const sl_seq_tables *s, int64_t seq, int64_t pos)
{
    return table[seq * s->ld + pos / 64];
}

void ref_store_row(const sl_seq_tables *s, const sl_row_view *rows, const sl_host_plane *host, int64_t seq,
                   int64_t pos, const uint8_t *row)
{
    int64_t at;

    if (s->hot_slot[seq] < 0)
        at = (int64_t)ref_page_of(s->row_pages, s, seq, pos) * 64 + pos % 64;
    else
        at = rows->hot_base + s->hot_slot[seq] * (int64_t)(rows->hot_rows + rows->tail_rows) +
             rows->hot_rows + pos % rows->tail_rows;
    memcpy(rows->base + at * rows->row_bytes, row, (size_t)rows->row_bytes);
    if (host->base)
        memcpy(host->base + ref_page_of(s->host_pages, s, seq, pos) * host->page_stride +
                   pos % 64 * host->row_stride,
               row, (size_t)rows->row_bytes);
}

void ref_kv_append(const void *params)
{
    const sl_kv_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    double *x = malloc(8 * (size_t)(p->lora + p->rope));
    uint8_t *row = malloc((size_t)p->rows.row_bytes);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t seq = s->token_seq[t], pos = s->token_pos[t];
        double sum = 0, inv;

        for (int32_t i = 0; i < p->lora + p->rope; i++)
            x[i] = ref_at(p->kv, p->act, t * p->ld_kv + i);
        for (int32_t i = 0; i < p->lora; i++)
            sum += x[i] * x[i];
        inv = f(1 / sqrt(sum / p->lora + (double)p->eps));
        for (int32_t i = 0; i < p->lora; i++)
            x[i] = ref_act(f(f(x[i] * inv) * ref_at(p->norm, p->norm_dtype, i)), p->act);
        if (p->rope)
            ref_rope(x + p->lora, p->rope, p->cos_sin, pos, true, p->act);
        encode_row(p->format, p->lora, p->rope, x, row);
        ref_store_row(s, &p->rows, &p->host, seq, pos, row);
    }
    free(x);
    free(row);
}

/* ---- index ---- */

/* Matrix form of the Sylvester-Hadamard transform, in float32 butterflies of ascending stride. */
static void hadamard(double *x, int32_t n)
{
    for (int32_t h = 1; h < n; h *= 2)
        for (int32_t i = 0; i < n; i++)
            if (!(i & h)) {
                double a = x[i], b = x[i | h];

                x[i] = f(a + b);
                x[i | h] = f(a - b);
            }
    for (int32_t i = 0; i < n; i++)
        x[i] = f(x[i] * (double)(float)(1 / sqrt(n)));
}

static double act_scale(const double *x, int32_t n)
{
    double amax = (double)1e-4f;

    for (int32_t i = 0; i < n; i++)
        amax = fmax(amax, fabs(x[i]));
    return ref_pow2_ceil(f(amax * (double)(1.0f / 448.0f)));
}

static void write_key(sl_index_format format, int32_t dim, const double *x, uint8_t *block, int64_t i)
{
    double s = act_scale(x, dim);

    for (int32_t d = 0; d < dim; d++)
        if (format == SL_INDEX_PLAIN)
            write_f32(block + (i * dim + d) * 4, x[d]);
        else
            block[i * dim + d] = ref_e4m3(x[d] / s);
    if (format == SL_INDEX_OFFICIAL)
        write_f32(block + 64 * (int64_t)dim + 4 * i, s);
}

void ref_index_append(const void *params)
{
    const sl_index_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    bool official = p->format == SL_INDEX_OFFICIAL;
    sl_dtype point = official ? SL_BF16 : p->act;
    double *x = malloc(8 * (size_t)p->dim);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t seq = s->token_seq[t], pos = s->token_pos[t];
        double mean = 0, var = 0, inv;

        for (int32_t i = 0; i < p->dim; i++) {
            x[i] = ref_at(p->k, p->act, t * p->ld_k + i);
            if (official)
                x[i] = bf(x[i]);
            mean += p->norm_bias ? x[i] / p->dim : 0;
        }
        for (int32_t i = 0; i < p->dim; i++)
            var += (x[i] - mean) * (x[i] - mean) / p->dim;
        inv = f(1 / sqrt(var + (double)p->eps));
        for (int32_t i = 0; i < p->dim; i++)
            x[i] = ref_act(f(f(f(f(x[i] - f(mean)) * inv) * ref_at(p->norm_weight, p->norm_dtype, i)) +
                             (p->norm_bias ? ref_at(p->norm_bias, p->norm_dtype, i) : 0)),
                           point);
        if (p->rope)
            ref_rope(x, p->rope, p->cos_sin, pos, p->interleaved, point);
        if (official) {
            hadamard(x, p->dim);
            for (int32_t i = 0; i < p->dim; i++)
                x[i] = bf(x[i]);
        }
        write_key(p->format, p->dim, x,
                  p->index_base + ref_page_of(s->index_pages, s, seq, pos) * p->index_page_stride, pos % 64);
        if (p->host.base)
            write_key(p->format, p->dim, x,
                      p->host.base + ref_page_of(s->host_pages, s, seq, pos) * p->host.page_stride, pos % 64);
    }
    free(x);
}

void ref_index_query(const void *params)
{
    const sl_index_query_params *p = params;
    bool official = p->format == SL_INDEX_OFFICIAL;
    double *x = malloc(8 * (size_t)p->dim);

    for (int64_t i = 0; i < (int64_t)p->tokens * p->heads; i++) {
        double w = f((double)p->wproj[i] * (double)(float)(1 / sqrt(p->heads))), s = 1;

        for (int32_t d = 0; d < p->dim; d++) {
            x[d] = ref_at(p->q, p->act, i * p->dim + d);
            if (official)
                x[d] = bf(x[d]);
        }
        if (p->rope)
            ref_rope(x, p->rope, p->cos_sin, p->pos[i / p->heads], p->interleaved,
                     official ? SL_BF16 : p->act);
        if (official) {
            hadamard(x, p->dim);
            for (int32_t d = 0; d < p->dim; d++)
                x[d] = bf(x[d]);
            s = act_scale(x, p->dim);
        }
        for (int32_t d = 0; d < p->dim; d++)
            if (official)
                ((uint8_t *)p->q_out)[i * p->dim + d] = ref_e4m3(x[d] / s);
            else
                ((float *)p->q_out)[i * p->dim + d] = (float)x[d];
        p->weights[i] = (float)(f(w * s) * (double)(float)(1 / sqrt(p->dim)));
    }
    free(x);
}

void ref_index_scores(const void *params)
{
    const sl_index_scores_params *p = params;
    const sl_seq_tables *s = p->seqs;
    bool official = p->format == SL_INDEX_OFFICIAL;

    for (int64_t t = p->token_first; t < (int64_t)p->token_first + p->token_count; t++)
        for (int64_t j = 0; j <= s->token_pos[t]; j++) {
            const uint8_t *block =
                p->index_base + ref_page_of(s->index_pages, s, s->token_seq[t], j) * p->index_page_stride;
            double score = 0, scale = official ? read_f32(block + 64 * (int64_t)p->dim + j % 64 * 4) : 1;

            for (int64_t h = 0; h < p->heads; h++) {
                double dot = 0;

                for (int64_t d = 0; d < p->dim; d++)
                    dot += ref_at(p->q, official ? SL_F8_E4M3 : SL_F32, (t * p->heads + h) * p->dim + d) *
                           (official ? ref_e4m3_value(block[j % 64 * p->dim + d])
                                     : read_f32(block + (j % 64 * p->dim + d) * 4));
                score += (dot > 0 ? dot : 0) * (double)p->weights[t * p->heads + h];
            }
            p->scores[(t - p->token_first) * p->ld_scores + j] = (float)(score * scale);
        }
}

typedef struct scored {
    float score;
    int32_t id;
    bool first; /* a sink or recent token: before all scores */
} scored;

static int by_rank(const void *va, const void *vb)
{
    const scored *a = va, *b = vb;
    bool an = isnan(a->score), bn = isnan(b->score);

    if (a->first != b->first)
        return a->first ? -1 : 1;
    if (a->first)
        return a->id < b->id ? -1 : 1;
    if (an != bn)
        return an ? 1 : -1;
    if (!an && a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

/* What counts of a score; next to an infinite one, the others count as nothing. */
static double weight_of(float score, float top)
{
    return !(score > 0) ? 0 : isinf(top) ? isinf(score) : (double)score;
}

/* How many of the first `take` a list has that is cut by its mass, or to `most` entries. */
static int64_t enough(const sl_topk_params *p, const float *scores, int64_t n, const scored *all,
                      int64_t most, int64_t take)
{
    double sum = 0, have = 0;
    float top = 0;
    int64_t m = 0;

    for (int64_t j = 0; j < n; j++)
        top = fmaxf(top, scores[j]);
    for (int64_t j = 0; j < n; j++)
        sum += weight_of(scores[j], top);
    for (;
         m < take && (m == 0 || all[m].first || ((p->mass <= 0 || have < sum * (double)p->mass) && m < most));
         m++)
        have += weight_of(scores[all[m].id], top);
    return m;
}

void ref_topk(const void *params)
{
    const sl_topk_params *p = params;

    int64_t lists = p->lists ? p->lists : 1, block = (int64_t)1 << p->block_log2;

    for (int64_t i = 0; i < p->token_count * lists; i++) {
        int64_t tokens = p->seqs->token_pos[p->token_first + i / lists] + 1, n = (tokens + block - 1) / block;
        int32_t *ids = p->ids + (p->token_first * lists + i) * p->ld_ids;
        int64_t take = n <= p->k || tokens <= p->dense_below ? n : p->k;
        const bool weighed = (p->mass > 0 || p->k_of) && tokens > p->dense_below;
        scored *all = malloc(sizeof(scored) * (size_t)n);

        for (int64_t j = 0; j < n; j++)
            all[j] =
                (scored){take == n && !weighed ? 0 : p->scores[i * p->ld_scores + j], (int32_t)j,
                         j * block < p->sinks || (p->recent > 0 && (j + 1) * block > tokens - p->recent)};
        qsort(all, (size_t)n, sizeof(scored), by_rank);
        if (weighed)
            take = enough(p, p->scores + i * p->ld_scores, n, all, p->k_of ? p->k_of[i % lists] : n, take);
        for (int64_t j = 0; j < p->ld_ids; j++)
            ids[j] = j < take ? all[j].id : -1;
        qsort(ids, (size_t)take, sizeof(int32_t), by_id);
        free(all);
    }
}

/* ---- attention ---- */

/* Values that a formula uses repeatedly are computed once: the results are the same doubles, in less time. */
static int32_t attended_rows(const sl_sparse_attn_params *p, int64_t t, double *rows)
{
    int32_t dim = p->lora + p->rope, n = 0;

    for (; n < p->k && p->phys[t * p->ld_ids + n] >= 0; n++)
        for (int32_t i = 0; i < dim; i++)
            rows[(int64_t)n * dim + i] = row_value(
                p->format, p->lora, p->rows.base + p->phys[t * p->ld_ids + n] * p->rows.row_bytes, i);
    return n;
}

/* Eight heads at a time, from h on; the sums of each are in order. q [dim], s [k] and o [lora] are scratch memory. */
static void attend(const sl_sparse_attn_params *p, int64_t t, int64_t h, const double *rows, int32_t n,
                   ref_lanes *q, ref_lanes *s, ref_lanes *o)
{
    int32_t dim = p->lora + p->rope, heads = p->heads - h < 8 ? (int32_t)(p->heads - h) : 8;
    ref_lanes top, sum = {0};

    for (int l = 0; l < 8; l++) {
        top[l] = -INFINITY;
        for (int32_t i = 0; i < dim; i++)
            q[i][l] = l < heads ? (double)p->ql[(t * p->heads + h + l) * dim + i] : 0;
    }
    for (int32_t j = 0; j < n; j++) {
        ref_lanes dot = {0};

        for (int32_t i = 0; i < dim; i++)
            dot += q[i] * rows[(int64_t)j * dim + i];
        s[j] = dot * (double)p->scale;
        for (int l = 0; l < 8; l++)
            top[l] = fmax(top[l], s[j][l]);
    }
    for (int32_t j = 0; j < n; j++)
        for (int l = 0; l < heads; l++)
            sum[l] += s[j][l] = exp(s[j][l] - top[l]);
    for (int l = 0; p->sinks && l < heads; l++)
        sum[l] += exp((double)p->sinks[h + l] - top[l]);
    memset(o, 0, sizeof(*o) * (size_t)p->lora);
    for (int32_t j = 0; j < n; j++) {
        ref_lanes w = s[j] / sum;

        for (int32_t i = 0; i < p->lora; i++)
            o[i] += w * rows[(int64_t)j * dim + i];
    }
    for (int l = 0; l < heads; l++)
        for (int32_t i = 0; i < p->lora; i++)
            p->o[(t * p->heads + h + l) * p->lora + i] = (float)o[i][l];
}

void ref_sparse_attn(const void *params)
{
    const sl_sparse_attn_params *p = params;
    int32_t dim = p->lora + p->rope;
    double *rows = malloc(8 * (size_t)p->k * (size_t)dim);
    ref_lanes *q = ref_lanes_alloc((size_t)dim), *s = ref_lanes_alloc((size_t)p->k),
              *o = ref_lanes_alloc((size_t)p->lora);

    for (int64_t t = 0; t < p->tokens; t++) {
        int32_t n = attended_rows(p, t, rows);

        for (int64_t h = 0; h < p->heads; h += 8)
            attend(p, t, h, rows, n, q, s, o);
    }
    free(rows);
    free(q);
    free(s);
    free(o);
}
