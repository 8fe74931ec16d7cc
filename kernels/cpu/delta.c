/*
 * The ops of delta-rule layers (kernels/delta.h). A task of the convolution is a piece of the channels of one sequence, a task of
 * the recurrence is one value head of a sequence: both go through the sequence's tokens in their order.
 */
#include "kernels/delta.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/runs.h"
#include "kernels/formats.h"

/* ---- conv ---- */

enum { PIECE = 256 }; /* channels of a task */

static int32_t pieces(const sl_conv_params *p)
{
    return (p->channels + PIECE - 1) / PIECE;
}

/* One channel of a sequence: tokens t .. end - 1, of which the first is at position pos. */
static void convolve(const sl_conv_params *p, int64_t t, int64_t end, int32_t pos, float *state, int32_t ch)
{
    const int32_t ring = (p->taps - 1) * p->dilation;
    const float *w = p->w + (int64_t)ch * p->taps;
    const int64_t first = t;

    for (; t < end; t++) {
        float sum = 0;

        for (int32_t j = 0; j < p->taps; j++) {
            const int32_t back = (p->taps - 1 - j) * p->dilation, from = pos + (int32_t)(t - first) - back;
            float x = 0;

            if (t - back >= first)
                x = p->x[(t - back) * p->ld_x + ch];
            else if (from >= 0)
                x = state[(int64_t)(from % ring) * p->channels + ch];
            sum += w[j] * x;
        }
        sum = sum * sl_sigmoid(sum);
        if (p->add)
            sum += p->add[t * p->channels + ch];
        sl_store_f32(p->out_dtype, &sum, 1, p->out, t * p->channels + ch);
    }
    for (t = end - first > ring ? end - ring : first; t < end; t++)
        state[(int64_t)((pos + (int32_t)(t - first)) % ring) * p->channels + ch] = p->x[t * p->ld_x + ch];
}

static uint32_t conv_piece(const void *arg, int64_t i, void *own)
{
    const sl_conv_params *p = arg;
    const int32_t from = (int32_t)(i % pieces(p)) * PIECE;
    const int64_t t = i / pieces(p);
    sl_place at;
    int64_t end;
    uint32_t bad = sl_run_at(p->seqs, t, &at, &end);

    (void)own;
    if (bad)
        return bad;
    float *state = (float *)(void *)(p->state + at.seq * p->state_stride);
    for (int32_t ch = from; ch < from + PIECE && ch < p->channels; ch++)
        convolve(p, t, end, at.pos, state, ch);
    return 0;
}

static sl_status run_conv(sl_backend *be, const void *params, sl_err *err)
{
    const sl_conv_params *p = params;
    return sl_cpu_run(be, "conv", 0, (int64_t)p->seqs->n_tokens * pieces(p), (int64_t)PIECE * 20, conv_piece,
                      p, err);
}

const sl_op_impl sl_cpu_conv = {.run = run_conv};

/* ---- delta ---- */

static float log_decay(const sl_delta_params *p, float gate, int64_t at, float a)
{
    const float z = gate + p->dt_bias[at];

    if (p->bound < 0)
        return p->bound * sl_sigmoid(a * z);
    return -a * (z > 20 ? z : log1pf(expf(z)));
}

/* out = x / sqrt(sum of squares + 1e-6) * by */
static void unit_length(const float *x, int32_t n, float by, float *out)
{
    float sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const float inv = 1.0f / sqrtf(sum + 1e-6f);
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * inv * by;
}

/* One token of value head h, whose q and k have unit length. u: value_dim values of scratch. */
static void step(const sl_delta_params *p, int64_t t, int32_t h, const float *q, const float *k, float *s,
                 float *u)
{
    const int32_t dk = p->key_dim, dv = p->value_dim;
    const int64_t head = t * p->value_heads + h;
    const float a = expf(p->a_log[h]), beta = sl_sigmoid(p->beta[head]),
                *v = p->v + t * p->ld_v + (int64_t)h * dv;
    float *out = p->out + head * dv, decay = 0;

    if (!p->by_channel)
        decay = expf(log_decay(p, p->gate[head], h, a));
    for (int32_t j = 0; j < dv; j++)
        u[j] = out[j] = 0;
    for (int32_t i = 0; i < dk; i++) {
        float *row = s + (int64_t)i * dv;
        const float d =
            p->by_channel ? expf(log_decay(p, p->gate[head * dk + i], (int64_t)h * dk + i, a)) : decay;

        for (int32_t j = 0; j < dv; j++) {
            row[j] *= d;
            u[j] += row[j] * k[i];
        }
    }
    for (int32_t j = 0; j < dv; j++)
        u[j] = beta * (v[j] - u[j]);
    for (int32_t i = 0; i < dk; i++) {
        float *row = s + (int64_t)i * dv;

        for (int32_t j = 0; j < dv; j++) {
            row[j] += k[i] * u[j];
            out[j] += row[j] * q[i];
        }
    }
}

static uint32_t delta_head(const void *arg, int64_t i, void *own)
{
    const sl_delta_params *p = arg;
    const int32_t dk = p->key_dim, per = p->value_heads / p->key_heads, h = (int32_t)(i % p->value_heads);
    const float scale = (float)(1.0 / sqrt((double)dk));
    float *q = own, *k = q + dk, *u = k + dk;
    sl_place at;
    int64_t t = i / p->value_heads, end;
    uint32_t bad = sl_run_at(p->seqs, t, &at, &end);

    if (bad)
        return bad;
    float *s = (float *)(void *)(p->state + at.seq * p->state_stride) + (int64_t)h * dk * p->value_dim;
    for (; t < end; t++) {
        unit_length(p->q + t * p->ld_q + (int64_t)(h / per) * dk, dk, scale, q);
        unit_length(p->k + t * p->ld_k + (int64_t)(h / per) * dk, dk, 1, k);
        step(p, t, h, q, k, s, u);
    }
    return 0;
}

static sl_status run_delta(sl_backend *be, const void *params, sl_err *err)
{
    const sl_delta_params *p = params;
    return sl_cpu_run(be, "delta", 4 * (2 * (size_t)p->key_dim + (size_t)p->value_dim),
                      (int64_t)p->seqs->n_tokens * p->value_heads, (int64_t)p->key_dim * p->value_dim,
                      delta_head, p, err);
}

const sl_op_impl sl_cpu_delta = {.run = run_delta};

/* ---- gated_norm ---- */

static uint32_t norm_head(const void *arg, int64_t i, void *own)
{
    const sl_gated_norm_params *p = arg;
    const float *x = p->x + i * p->dim, *g = p->gate ? p->gate + i * p->dim : NULL;
    float *y = own;
    double all = 0, sum = 0;

    for (int32_t d = 0; p->bias && d < p->dim; d++)
        all += (double)x[d];
    const float mean = (float)(all / p->dim);
    for (int32_t d = 0; d < p->dim; d++)
        sum += (double)(x[d] - mean) * (double)(x[d] - mean);
    const float inv = (float)(1.0 / sqrt(sum / p->dim + (double)p->eps));
    for (int32_t d = 0; d < p->dim; d++) {
        y[d] = (x[d] - mean) * inv * p->weight[d];
        if (g)
            y[d] *= p->form == SL_GATE_SILU ? g[d] * sl_sigmoid(g[d]) : sl_sigmoid(g[d]);
        if (p->bias)
            y[d] += p->bias[d];
    }
    sl_store_f32(p->act, y, p->dim, p->out, i * p->dim);
    return 0;
}

static sl_status run_gated_norm(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gated_norm_params *p = params;
    return sl_cpu_run(be, "gated_norm", 4 * (size_t)p->dim, (int64_t)p->tokens * p->heads,
                      20 * (int64_t)p->dim, norm_head, p, err);
}

const sl_op_impl sl_cpu_gated_norm = {.run = run_gated_norm};
