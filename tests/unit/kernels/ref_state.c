/* The ops of delta-rule layers, pooled index keys and n-gram embeddings, restated in double; see ref.h. Each looks up every value by the
 * position of its token: in the step if the token is there, else in the state as it was before the step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/delta.h"
#include "kernels/ngram.h"
#include "kernels/pooled.h"
#include "kernels/turns.h"
#include "kernels/streams.h"
#include "tests/unit/kernels/ref.h"

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

/* The row of the step with the token `back` places before token t; -1: it is not in the step. */
static int64_t earlier(const sl_seq_tables *s, int64_t t, int64_t back)
{
    return t >= back && s->token_seq[t - back] == s->token_seq[t] ? t - back : -1;
}

/* A copy of all states, which the caller frees. */
static uint8_t *before(const sl_seq_tables *s, const uint8_t *state, int64_t stride)
{
    uint8_t *copy = malloc((size_t)(s->n_seqs * stride));
    memcpy(copy, state, (size_t)(s->n_seqs * stride));
    return copy;
}

void ref_state_keep(const void *params)
{
    const sl_state_keep_params *p = params;

    for (int64_t t = 0; t < p->seqs->n_tokens; t++)
        for (int64_t i = 0; i < p->bytes && p->seqs->token_seq[t] >= 0; i++)
            p->to[p->seqs->token_seq[t] * p->stride + i] = p->from[p->seqs->token_seq[t] * p->stride + i];
}

void ref_conv(const void *params)
{
    const sl_conv_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t ring = (int64_t)(p->taps - 1) * p->dilation;
    uint8_t *old = before(s, p->state, p->state_stride);

    for (int64_t t = 0; t < s->n_tokens; t++)
        for (int64_t c = 0; s->token_seq[t] >= 0 && c < p->channels; c++) {
            const float *was = (const float *)(const void *)(old + s->token_seq[t] * p->state_stride);
            double sum = 0;

            for (int64_t j = 0; j < p->taps; j++) {
                int64_t back = (p->taps - 1 - j) * p->dilation, at = earlier(s, t, back),
                        pos = s->token_pos[t] - back;
                if (pos >= 0)
                    sum += (double)p->w[c * p->taps + j] *
                           (double)(at >= 0 ? p->x[at * p->ld_x + c] : was[pos % ring * p->channels + c]);
            }
            ref_put(p->out, p->out_dtype, t * p->channels + c,
                    sum * sigmoid(sum) + (p->add ? (double)p->add[t * p->channels + c] : 0));
            ((float *)(void *)(p->state +
                               s->token_seq[t] * p->state_stride))[s->token_pos[t] % ring * p->channels + c] =
                p->x[t * p->ld_x + c];
        }
    free(old);
}

static double decay(const sl_delta_params *p, double gate, double bias, double a)
{
    double z = gate + bias;

    return exp(p->bound < 0 ? (double)p->bound * sigmoid(exp(a) * z)
                            : -exp(a) * (z > 20 ? z : log1p(exp(z))));
}

/* x[i] / sqrt(sum of squares + 1e-6) */
static double unit(const float *x, int64_t n, int64_t i)
{
    double sum = 0;

    for (int64_t j = 0; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    return (double)x[i] / sqrt(sum + 1e-6);
}

static void delta_token(const sl_delta_params *p, int64_t t, int64_t h, double *s)
{
    int64_t dk = p->key_dim, dv = p->value_dim, from = h / (p->value_heads / p->key_heads) * dk,
            head = t * p->value_heads + h;
    const float *q = p->q + t * p->ld_q + from, *k = p->k + t * p->ld_k + from,
                *v = p->v + t * p->ld_v + h * dv;

    for (int64_t i = 0; i < dk; i++) {
        int64_t at = p->by_channel ? h * dk + i : h;
        double d = decay(p, (double)(p->by_channel ? p->gate[head * dk + i] : p->gate[head]),
                         (double)p->dt_bias[at], (double)p->a_log[h]);
        for (int64_t j = 0; j < dv; j++)
            s[i * dv + j] *= d;
    }
    for (int64_t j = 0; j < dv; j++) {
        double read = 0, out = 0;

        for (int64_t i = 0; i < dk; i++)
            read += s[i * dv + j] * unit(k, dk, i);
        double u = sigmoid((double)p->beta[head]) * ((double)v[j] - read);
        for (int64_t i = 0; i < dk; i++) {
            s[i * dv + j] += unit(k, dk, i) * u;
            out += s[i * dv + j] * unit(q, dk, i) / sqrt((double)dk);
        }
        p->out[head * dv + j] = (float)out;
    }
}

void ref_delta(const void *params)
{
    const sl_delta_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t n = (int64_t)p->key_dim * p->value_dim;
    double *state = malloc(8 * (size_t)n);

    for (int64_t h = 0; h < p->value_heads; h++)
        for (int64_t t = 0; t < s->n_tokens; t++) {
            if (s->token_seq[t] < 0)
                continue;
            float *at = (float *)(void *)(p->state + s->token_seq[t] * p->state_stride) + h * n;
            for (int64_t i = 0; earlier(s, t, 1) < 0 && i < n; i++)
                state[i] = (double)at[i];
            delta_token(p, t, h, state);
            for (int64_t i = 0; i < n; i++)
                at[i] = (float)state[i];
        }
    free(state);
}

void ref_gated_norm(const void *params)
{
    const sl_gated_norm_params *p = params;

    for (int64_t i = 0; i < (int64_t)p->tokens * p->heads; i++) {
        double sum = 0, mean = 0;

        for (int64_t d = 0; p->bias && d < p->dim; d++)
            mean += (double)p->x[i * p->dim + d] / p->dim;
        for (int64_t d = 0; d < p->dim; d++)
            sum += ((double)p->x[i * p->dim + d] - mean) * ((double)p->x[i * p->dim + d] - mean);
        for (int64_t d = 0; d < p->dim; d++) {
            double g = p->gate ? (double)p->gate[i * p->dim + d] : 0;
            double f = !p->gate ? 1 : sigmoid(g) * (p->form == SL_GATE_SILU ? g : 1);

            ref_put(p->out, p->act, i * p->dim + d,
                    ((double)p->x[i * p->dim + d] - mean) / sqrt(sum / p->dim + (double)p->eps) *
                            (double)p->weight[d] * f +
                        (p->bias ? (double)p->bias[d] : 0));
        }
    }
}

/* ---- pooled keys ---- */

typedef struct pool_of {
    const sl_pool_append_params *p;
    const float *was; /* the state before the step */
    int64_t t;        /* the unit's last token */
    int64_t size;
} pool_of;

/* Channel d of the raw key, or of the gate with its bias, of token j of the unit. */
static double raw(const pool_of *u, int64_t j, int64_t d, bool gate)
{
    const sl_pool_append_params *p = u->p;
    int64_t back = u->size - 1 - j, at = earlier(p->seqs, u->t, back);
    const float *from = gate ? p->gate : p->k;
    double v = (double)(at >= 0 ? from[at * p->ld + d] : u->was[((gate ? u->size : 0) + j) * p->dim + d]);

    return gate ? v + (double)p->ape[j * p->dim + d] : v;
}

static void pool_key(const pool_of *u, double *key)
{
    const sl_pool_append_params *p = u->p;
    double square = 0;

    for (int64_t d = 0; d < p->dim; d++) {
        double sum = 0, all = 0;
        for (int64_t j = 0; j < u->size; j++) {
            double w = p->gate ? exp(raw(u, j, d, true)) : 1;
            sum += w * raw(u, j, d, false), all += w;
        }
        key[d] = ref_act(sum / all, p->act);
        square += key[d] * key[d];
    }
    for (int64_t d = 0; p->norm && d < p->dim; d++)
        key[d] = ref_act(key[d] / sqrt(square / p->dim + (double)p->eps) * (double)p->norm[d], p->act);
    if (p->rope)
        ref_rope(key, p->rope, p->cos_sin, p->seqs->token_pos[u->t] - u->size + 1, false, p->act);
}

void ref_pool_append(const void *params)
{
    const sl_pool_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t size = (int64_t)1 << p->unit_log2;
    double *key = malloc(8 * (size_t)p->dim);
    uint8_t *old = before(s, p->state, p->state_stride);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t seq = s->token_seq[t], pos = s->token_pos[t], slot = pos % SL_PAGE_TOKENS / size;
        pool_of u = {p, (const float *)(const void *)(old + seq * p->state_stride), t, size};

        if (seq < 0 || (pos + 1) % size)
            continue;
        pool_key(&u, key);
        float *dev = (float *)(void *)(p->base + ref_page_of(s->index_pages, s, seq, pos) * p->page_stride) +
                     slot * p->dim;
        uint8_t *host = p->host.base
                            ? p->host.base + ref_page_of(s->host_pages, s, seq, pos) * p->host.page_stride +
                                  slot * p->host.row_stride
                            : NULL;
        for (int64_t d = 0; d < p->dim; d++)
            dev[d] = (float)key[d];
        if (host)
            memcpy(host, dev, 4 * (size_t)p->dim);
    }
    for (int64_t t = 0; t < s->n_tokens; t++) { /* the tokens of units that stay open */
        int64_t seq = s->token_seq[t], last = t;

        while (seq >= 0 && last + 1 < s->n_tokens && s->token_seq[last + 1] == seq)
            last++;
        if (seq < 0 || s->token_pos[t] / size != (s->token_pos[last] + 1) / size)
            continue;
        float *state = (float *)(void *)(p->state + seq * p->state_stride) + s->token_pos[t] % size * p->dim;
        memcpy(state, p->k + t * p->ld, 4 * (size_t)p->dim);
        if (p->gate)
            memcpy(state + size * p->dim, p->gate + t * p->ld, 4 * (size_t)p->dim);
    }
    free(old);
    free(key);
}

void ref_pool_scores(const void *params)
{
    const sl_pool_scores_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t size = (int64_t)1 << p->unit_log2;

    for (int64_t i = 0; i < p->token_count; i++) {
        int64_t t = p->token_first + i, seq = s->token_seq[t], units = (s->token_pos[t] + 1) / size;

        p->unit_seq[i] = seq >= 0 && units > 0 ? (int32_t)seq : -1;
        p->unit_pos[i] = seq >= 0 && units > 0 ? (int32_t)(units * size - 1) : 0;
        for (int64_t u = 0; seq >= 0 && u < units; u++) {
            const float *key =
                (const float *)(const void *)(p->base + ref_page_of(s->index_pages, s, seq, u * size) *
                                                            p->page_stride) +
                u * size % SL_PAGE_TOKENS / size * p->dim;
            double score = 0;

            for (int64_t h = 0; h < p->heads; h++) {
                double dot = 0;
                for (int64_t d = 0; d < p->dim; d++)
                    dot += (double)p->q[(t * p->heads + h) * p->dim + d] * (double)key[d];
                score += fmax(dot, 0) * (p->weights ? (double)p->weights[t * p->heads + h] : 1);
            }
            p->scores[i * p->ld_scores + u] = (float)(score * (double)p->scale);
        }
    }
}

/* The tokens of the units of a list take its place. */
static void unit_tokens(const sl_open_units_params *p, int32_t *list, int64_t pos, int64_t size)
{
    int32_t *units = malloc(4 * (size_t)p->ld_ids), n = 0;

    memcpy(units, list, 4 * (size_t)p->ld_ids);
    for (int32_t u = 0; u < p->ld_ids && units[u] >= 0; u++)
        for (int64_t at = units[u] * size; at < (units[u] + 1) * size && at <= pos; at++)
            list[n++] = (int32_t)at;
    free(units);
}

void ref_open_units(const void *params)
{
    const sl_open_units_params *p = params;
    int64_t size = (int64_t)1 << p->unit_log2;

    for (int64_t t = 0; t < p->seqs->n_tokens; t++) {
        int32_t *list = p->ids + t * p->ld_ids, open = (int32_t)(p->seqs->token_pos[t] / size), n = 0;

        if (p->seqs->token_seq[t] < 0)
            continue;
        while (n < p->ld_ids && list[n] >= 0 && list[n] != open)
            n++;
        if ((p->seqs->token_pos[t] + 1) % size)
            list[n] = open;
        if (p->by_token)
            unit_tokens(p, list, p->seqs->token_pos[t], size);
    }
}

/* ---- n-grams ---- */

void ref_ngram(const void *params)
{
    const sl_ngram_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t keep = p->order - 1;
    uint8_t *old = before(s, p->state, p->state_stride);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        const int32_t *was = (const int32_t *)(const void *)(old + s->token_seq[t] * p->state_stride);
        int64_t id[SL_NGRAM_MAX], out = t * keep * p->heads * p->dim;

        if (s->token_seq[t] < 0)
            continue;
        for (int64_t n = 0; n < p->order; n++) {
            int64_t at = earlier(s, t, n), pos = s->token_pos[t] - n;
            id[n] = pos < 0 ? p->eos : at >= 0 ? p->ids[at] : was[pos % keep] - 1;
            for (int64_t between = 1; between < n; between++)
                id[n] = id[between] == p->eos ? p->eos : id[n];
        }
        for (int64_t n = 2; n <= p->order; n++)
            for (int64_t h = 0; h < p->heads; h++, out += p->dim) {
                uint64_t x = 0;
                for (int64_t i = 0; i < n; i++)
                    x ^= (uint64_t)id[i] * (uint64_t)p->multipliers[i];
                int64_t at = (n - 2) * p->heads + h, size = p->sizes[at],
                        rest = ((int64_t)x % size + size) % size;
                int64_t row = p->offsets[at] + rest, shard = 0;
                while (row >= p->shard_rows[shard])
                    shard++;
                row -= shard ? p->shard_rows[shard - 1] : 0;
                for (int64_t d = 0; d < p->dim; d++)
                    ref_put(p->out, p->act, out + d,
                            ref_at(p->shards[shard], p->table_dtype, row * p->dim + d));
            }
        ((int32_t *)(void *)(p->state + s->token_seq[t] * p->state_stride))[s->token_pos[t] % keep] =
            p->ids[t] + 1;
    }
    free(old);
}

void ref_ngram_mix(const void *params)
{
    const sl_ngram_mix_params *p = params;
    int64_t n = p->dim;

    for (int64_t i = 0; i < (int64_t)p->tokens * p->count; i++) {
        double kk = 0, xx = 0, dot = 0, oo = 0;
        int64_t gain = i % p->count * n;

        for (int64_t d = 0; d < n; d++) {
            double k = (double)p->key[i * n + d], x = ref_at(p->streams, p->act, i * n + d);
            kk += k * k, xx += x * x;
            dot += k * (double)p->key_gain[gain + d] * x * (double)p->stream_gain[gain + d];
        }
        dot /=
            sqrt(kk / (double)n + (double)p->eps) * sqrt(xx / (double)n + (double)p->eps) * sqrt((double)n);
        dot = (dot > 0 ? 1 : dot < 0 ? -1 : 0) * sqrt(fmax(fabs(dot), 1e-6));
        for (int64_t d = 0; d < n; d++) {
            double out = sigmoid(dot) * (double)p->value[i / p->count * n + d];
            p->out[i * n + d] = (float)out;
            oo += out * out;
        }
        for (int64_t d = 0; d < n; d++)
            p->normed[i * n + d] =
                (float)(sigmoid(dot) * (double)p->value[i / p->count * n + d] /
                        sqrt(oo / (double)n + (double)p->eps) * (double)p->out_gain[gain + d]);
    }
}

/* ---- gated residual ---- */

void ref_streams_mix(const void *params)
{
    const sl_streams_mix_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++) {
        for (int64_t i = 0; i < p->dim; i++) {
            double sum = 0;
            for (int64_t c = 0; c < p->count; c++) {
                int64_t at = (t * p->count + c) * p->dim + i;
                sum += sigmoid((double)p->up[at]) * ref_at(p->normed, p->act, at);
            }
            ref_put(p->out, p->act, t * p->dim + i, sum / p->count);
        }
        for (int64_t c = 0; p->post && c < p->count; c++)
            p->post[t * p->count + c] = (float)(2 * sigmoid((double)p->inject[t * p->count + c] / p->count));
    }
}

void ref_unary(const void *params)
{
    const sl_unary_params *p = params;

    for (int64_t i = 0; i < (int64_t)p->tokens * p->dim; i++) {
        double x = (double)p->x[i] * (double)p->scale;
        ref_put(p->out, p->out_dtype, i, p->form == SL_UNARY_SILU ? x * sigmoid(x) : sigmoid(x));
    }
}
