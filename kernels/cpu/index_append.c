/*
 * SL_OP_INDEX_APPEND and SL_OP_INDEX_QUERY: the two inputs of the indexer. Rounding points are those of
 * kernels/params.h: plain rounds to act, official to bf16 at its fixed places whatever act is.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/place.h"
#include "kernels/formats.h"

/* RoPE, and the Hadamard transform of the official convention, of one head in place. */
static void rotate(float *x, int32_t dim, int32_t rope, const float *cs, bool interleaved,
                   sl_index_format format, sl_dtype act)
{
    sl_dtype point = format == SL_INDEX_OFFICIAL ? SL_BF16 : act;

    if (rope)
        sl_rope(x, rope, cs, interleaved, point);
    if (format != SL_INDEX_OFFICIAL)
        return;
    sl_hadamard(x, dim);
    for (int32_t i = 0; i < dim; i++)
        x[i] = sl_round_bf16(x[i]);
}

static void load(const void *src, sl_dtype act, int64_t first, int32_t n, sl_index_format format, float *out)
{
    sl_load_f32(act, src, first, n, out);
    if (format == SL_INDEX_OFFICIAL && act != SL_BF16)
        for (int32_t i = 0; i < n; i++)
            out[i] = sl_round_bf16(out[i]);
}

/* ---- keys ---- */

typedef struct k_ctx {
    const sl_index_append_params *p;
    const float *w, *b; /* b NULL: RMS norm */
} k_ctx;

static void rms_norm(const sl_index_append_params *p, const float *w, sl_dtype point, float *x)
{
    const float inv = sl_inverse_rms(x, p->dim, p->eps);

    for (int32_t i = 0; i < p->dim; i++)
        x[i] = sl_round_act(x[i] * inv * w[i], point);
}

static void norm(const sl_index_append_params *p, const float *w, const float *b, float *x)
{
    sl_dtype point = p->format == SL_INDEX_OFFICIAL ? SL_BF16 : p->act;
    double mean = 0, var = 0;

    if (!b) {
        rms_norm(p, w, point, x);
        return;
    }

    for (int32_t i = 0; i < p->dim; i++)
        mean += (double)x[i];
    mean /= p->dim;
    for (int32_t i = 0; i < p->dim; i++)
        var += ((double)x[i] - mean) * ((double)x[i] - mean);
    float m = (float)mean, inv = (float)(1.0 / sqrt(var / p->dim + (double)p->eps));

    for (int32_t i = 0; i < p->dim; i++)
        x[i] = sl_round_act((x[i] - m) * inv * w[i] + b[i], point);
}

static uint32_t find(const sl_index_append_params *p, int64_t t, uint8_t **dev, uint8_t **host,
                     int32_t *in_block)
{
    const sl_seq_tables *s = p->seqs;
    sl_place at;
    uint32_t bad = sl_place_of(s, t, &at);

    if (bad)
        return bad;
    if (s->index_pages[at.entry] < 0 || (p->host.base && s->host_pages[at.entry] < 0))
        return SL_DEVERR_PAGE;
    *dev = p->index_base + s->index_pages[at.entry] * p->index_page_stride;
    *host = p->host.base ? p->host.base + s->host_pages[at.entry] * p->host.page_stride : NULL;
    *in_block = at.pos % SL_PAGE_TOKENS;
    return 0;
}

static uint32_t key(const void *arg, int64_t t, void *own)
{
    const k_ctx *c = arg;
    const sl_index_append_params *p = c->p;
    float *x = own;
    uint8_t *dev, *host;
    int32_t i;
    uint32_t bad = find(p, t, &dev, &host, &i);

    if (bad)
        return bad;
    load(p->k, p->act, t * p->ld_k, p->dim, p->format, x);
    norm(p, c->w, c->b, x);
    rotate(x, p->dim, p->rope, sl_cos_sin_at(p->cos_sin, p->seqs->token_pos[t], p->rope), p->interleaved,
           p->format, p->act);
    sl_index_key_encode(p->format, p->dim, x, dev, i);
    if (host)
        sl_index_key_encode(p->format, p->dim, x, host, i);
    return 0;
}

static sl_status run_index_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_index_append_params *p = params;
    void *mem;
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, 8 * (size_t)p->dim, &mem, err));
    float *w = mem, *b = p->norm_bias ? w + p->dim : NULL;
    sl_load_f32(p->norm_dtype, p->norm_weight, 0, p->dim, w);
    if (b)
        sl_load_f32(p->norm_dtype, p->norm_bias, 0, p->dim, b);
    const k_ctx c = {p, w, b};
    return sl_cpu_run(be, "index_append", 4 * (size_t)p->dim, p->seqs->n_tokens, 10 * (int64_t)p->dim, key,
                      &c, err);
}

const sl_op_impl sl_cpu_index_append = {.run = run_index_append};

/* ---- queries ---- */

/* i = token * heads + head */
static uint32_t query(const void *arg, int64_t i, void *own)
{
    const sl_index_query_params *p = arg;
    const float by_heads = (float)(1.0 / sqrt((double)p->heads)),
                by_dim = (float)(1.0 / sqrt((double)p->dim));
    const int32_t pos = p->rope ? p->pos[i / p->heads] : 0;
    float *x = own, w = p->wproj[i] * by_heads;

    if (pos < 0)
        return SL_DEVERR_POS;
    load(p->q, p->act, i * p->dim, p->dim, p->format, x);
    rotate(x, p->dim, p->rope, sl_cos_sin_at(p->cos_sin, pos, p->rope), p->interleaved, p->format, p->act);
    if (p->format == SL_INDEX_OFFICIAL) {
        float s = sl_scale_act(sl_amax(x, p->dim));

        sl_quant_e4m3(x, p->dim, s, (uint8_t *)p->q_out + i * p->dim);
        w *= s;
    } else {
        memcpy((float *)p->q_out + i * p->dim, x, 4 * (size_t)p->dim);
    }
    p->weights[i] = w * by_dim;
    return 0;
}

static sl_status run_index_query(sl_backend *be, const void *params, sl_err *err)
{
    const sl_index_query_params *p = params;
    return sl_cpu_run(be, "index_query", 4 * (size_t)p->dim, (int64_t)p->tokens * p->heads,
                      10 * (int64_t)p->dim, query, p, err);
}

const sl_op_impl sl_cpu_index_query = {.run = run_index_query};
