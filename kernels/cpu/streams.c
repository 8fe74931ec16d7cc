/*
 * SL_OP_STREAMS_OUT and SL_OP_STREAMS_ADD: parallel residual streams (hyper-connections), and the two small ops next to
 * them, SL_OP_SIGMOID_MUL and SL_OP_JOIN. A task is a token.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"

#include <math.h>
#include <string.h>

#include "kernels/formats.h"
#include "kernels/streams.h"

/* ---- streams_out ---- */

/* m[C][C] from its logits: a softmax of each row, then rows and columns are divided by their sums in turn. */
static void balance(const sl_streams_out_params *p, float *m)
{
    const int32_t n = p->count;

    for (int32_t i = 0; i < n; i++) {
        float top = m[i * n], sum = 0;

        for (int32_t j = 1; j < n; j++)
            top = m[i * n + j] > top ? m[i * n + j] : top;
        for (int32_t j = 0; j < n; j++)
            sum += m[i * n + j] = expf(m[i * n + j] - top);
        for (int32_t j = 0; j < n; j++)
            m[i * n + j] = m[i * n + j] / sum + p->hc_eps;
    }
    for (int32_t k = 0; k < 2 * p->iters - 1; k++) {
        const int32_t line = k % 2 ? n : 1, step = k % 2 ? 1 : n; /* a row, or a column */

        for (int32_t i = 0; i < n; i++) {
            float sum = 0;

            for (int32_t j = 0; j < n; j++)
                sum += m[i * line + j * step];
            for (int32_t j = 0; j < n; j++)
                m[i * line + j * step] /= sum + p->hc_eps;
        }
    }
}

/* What will be added to the streams: the gates of the second kind, and the matrix. m: the mix of the token, normalised. */
static void out_gates(const sl_streams_out_params *p, int64_t t, const float *m)
{
    const int32_t n = p->count;
    float *comb = p->comb ? p->comb + t * n * n : NULL;

    for (int32_t k = n; p->post && k < 2 * n; k++)
        p->post[t * n + k - n] =
            p->magnitude * sl_sigmoid(m[k] * p->scale[1] + p->base[k]) + (comb ? 0.0f : p->hc_eps);
    for (int32_t k = 0; comb && k < n * n; k++)
        comb[k] = m[2 * n + k] * p->scale[2] + p->base[2 * n + k];
    if (comb)
        balance(p, comb);
}

/* The mean of the streams of a token. */
static void mean_of(const sl_streams_out_params *p, const float *x, float *out)
{
    for (int32_t i = 0; i < p->dim; i++) {
        float sum = 0;

        for (int32_t k = 0; k < p->count; k++)
            sum += x[k * p->dim + i];
        out[i] = sum / (float)p->count;
    }
}

static uint32_t out_token(const void *arg, int64_t t, void *own)
{
    const sl_streams_out_params *p = arg;
    const int32_t all = p->count * p->dim, gates = p->comb   ? (2 + p->count) * p->count
                                                   : p->post ? 2 * p->count
                                                             : p->count;
    float *x = own, *out = x + all, m[(2 + SL_STREAMS_MAX) * SL_STREAMS_MAX];

    sl_load_f32(p->act, p->streams, t * all, all, x);
    if (!p->mix) {
        mean_of(p, x, out);
        sl_store_f32(p->act, out, p->dim, p->out, t * p->dim);
        return 0;
    }
    const float inv = sl_inverse_rms(x, all, p->eps);
    for (int32_t k = 0; k < gates; k++)
        m[k] = p->mix[t * gates + k] * inv;
    memset(out, 0, sizeof(float) * (size_t)p->dim);
    for (int32_t k = 0; k < p->count; k++) {
        float pre = sl_sigmoid(m[k] * p->scale[0] + p->base[k]) + p->hc_eps;

        for (int32_t i = 0; i < p->dim; i++)
            out[i] += pre * x[k * p->dim + i];
    }
    sl_store_f32(p->act, out, p->dim, p->out, t * p->dim);
    out_gates(p, t, m);
    return 0;
}

static sl_status run_streams_out(sl_backend *be, const void *params, sl_err *err)
{
    const sl_streams_out_params *p = params;
    const int64_t values = (int64_t)p->count * p->dim;
    return sl_cpu_run(be, "streams_out", sizeof(float) * (size_t)(values + p->dim), p->tokens, 2 * values,
                      out_token, p, err);
}

const sl_op_impl sl_cpu_streams_out = {.run = run_streams_out};

/* ---- streams_add ---- */

/* Stream k with the addition of y, from the streams `all` as they were. */
static void add_to(const sl_streams_add_params *p, int64_t t, int32_t k, const float *all, const float *y,
                   float *x)
{
    const float post = p->post[t * p->count + k], *comb = p->comb ? p->comb + t * p->count * p->count : NULL;

    for (int32_t i = 0; i < p->dim; i++)
        x[i] = comb ? post * y[i] : all[k * p->dim + i] + post * y[i];
    for (int32_t j = 0; comb && j < p->count; j++)
        for (int32_t i = 0; i < p->dim; i++)
            x[i] += comb[j * p->count + k] * all[j * p->dim + i];
}

static uint32_t add_token(const void *arg, int64_t t, void *own)
{
    const sl_streams_add_params *p = arg;
    const int64_t n = (int64_t)p->count * p->dim;
    float *x = own, *y = x + p->dim, *all = y + p->dim;

    sl_load_f32(p->act, p->y, t * p->dim, p->dim, y);
    if (p->post)
        sl_load_f32(p->act, p->streams, t * n, n, all);
    for (int32_t k = 0; k < p->count; k++) {
        if (p->post)
            add_to(p, t, k, all, y, x);
        sl_store_f32(p->act, p->post ? x : y, p->dim, p->streams, t * n + (int64_t)k * p->dim);
    }
    return 0;
}

static sl_status run_streams_add(sl_backend *be, const void *params, sl_err *err)
{
    const sl_streams_add_params *p = params;
    return sl_cpu_run(be, "streams_add", sizeof(float) * (size_t)p->dim * (2 + (size_t)p->count), p->tokens,
                      2 * (int64_t)p->count * p->dim, add_token, p, err);
}

const sl_op_impl sl_cpu_streams_add = {.run = run_streams_add};

/* ---- streams_mix ---- */

static uint32_t mix_token(const void *arg, int64_t t, void *own)
{
    const sl_streams_mix_params *p = arg;
    float *x = own, *out = x + p->dim;

    memset(out, 0, sizeof(float) * (size_t)p->dim);
    for (int32_t k = 0; k < p->count; k++) {
        const int64_t at = (t * p->count + k) * p->dim;

        sl_load_f32(p->act, p->normed, at, p->dim, x);
        for (int32_t i = 0; i < p->dim; i++)
            out[i] += sl_sigmoid(p->up[at + i]) * x[i];
        if (p->post)
            p->post[t * p->count + k] = 2 * sl_sigmoid(p->inject[t * p->count + k] / (float)p->count);
    }
    for (int32_t i = 0; i < p->dim; i++)
        out[i] /= (float)p->count;
    sl_store_f32(p->act, out, p->dim, p->out, t * p->dim);
    return 0;
}

static sl_status run_streams_mix(sl_backend *be, const void *params, sl_err *err)
{
    const sl_streams_mix_params *p = params;
    return sl_cpu_run(be, "streams_mix", 8 * (size_t)p->dim, p->tokens, 20 * (int64_t)p->count * p->dim,
                      mix_token, p, err);
}

const sl_op_impl sl_cpu_streams_mix = {.run = run_streams_mix};

/* ---- unary ---- */

static uint32_t unary_token(const void *arg, int64_t t, void *own)
{
    const sl_unary_params *p = arg;
    float *y = own;

    for (int32_t i = 0; i < p->dim; i++) {
        const float x = p->x[t * p->dim + i] * p->scale;

        y[i] = p->form == SL_UNARY_SILU ? x * sl_sigmoid(x) : sl_sigmoid(x);
    }
    sl_store_f32(p->out_dtype, y, p->dim, p->out, t * p->dim);
    return 0;
}

static sl_status run_unary(sl_backend *be, const void *params, sl_err *err)
{
    const sl_unary_params *p = params;
    return sl_cpu_run(be, "unary", 4 * (size_t)p->dim, p->tokens, 10 * (int64_t)p->dim, unary_token, p, err);
}

const sl_op_impl sl_cpu_unary = {.run = run_unary};

/* ---- sigmoid_mul ---- */

static uint32_t mul_token(const void *arg, int64_t t, void *own)
{
    const sl_sigmoid_mul_params *p = arg;
    float *x = own, *g = x + p->dim;

    sl_load_f32(p->act, p->x, t * p->ld_x, p->dim, x);
    sl_load_f32(p->act, p->gate, t * p->ld_gate, p->dim, g);
    for (int32_t i = 0; i < p->dim; i++)
        x[i] *= sl_sigmoid(g[i]);
    sl_store_f32(p->act, x, p->dim, p->x, t * p->ld_x);
    return 0;
}

static sl_status run_sigmoid_mul(sl_backend *be, const void *params, sl_err *err)
{
    const sl_sigmoid_mul_params *p = params;
    return sl_cpu_run(be, "sigmoid_mul", 8 * (size_t)p->dim, p->tokens, 10 * (int64_t)p->dim, mul_token, p,
                      err);
}

const sl_op_impl sl_cpu_sigmoid_mul = {.run = run_sigmoid_mul};

/* ---- join ---- */

static sl_status run_join(sl_backend *be, const void *params, sl_err *err)
{
    const sl_join_params *p = params;
    size_t size = sl_dtype_size(p->act), a = size * (size_t)p->dim_a, b = size * (size_t)p->dim_b;
    (void)be, (void)err;
    for (size_t t = 0; t < (size_t)p->tokens; t++) {
        uint8_t *out = (uint8_t *)p->out + t * (a + b);

        memcpy(out, (const uint8_t *)p->a + t * a, a);
        memcpy(out + a, (const uint8_t *)p->b + t * b, b);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_join = {.run = run_join};
