/*
 * SL_OP_KV_APPEND: norm, RoPE and encoding of new latent rows, written to the device row (pool page or tail)
 * and to the host arena. The row is encoded once and copied, so both are the same bytes.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/place.h"
#include "kernels/formats.h"

typedef struct ctx {
    const sl_kv_append_params *p;
    const float *norm;
} ctx;

static uint32_t append(const void *arg, int64_t t, void *own)
{
    const ctx *c = arg;
    const sl_kv_append_params *p = c->p;
    float *x = own;
    uint8_t *row = (uint8_t *)(x + p->lora + p->rope), *dev, *host;
    uint32_t bad = sl_place_row(p->seqs, &p->rows, &p->host, t, &dev, &host);

    if (bad)
        return bad;
    sl_load_f32(p->act, p->kv, t * p->ld_kv, p->lora + p->rope, x);
    const float inv = sl_inverse_rms(x, p->lora, p->eps);
    for (int32_t i = 0; i < p->lora; i++)
        x[i] = sl_round_act(x[i] * inv * c->norm[i], p->act);
    if (p->rope)
        sl_rope(x + p->lora, p->rope, p->cos_sin + (int64_t)p->seqs->token_pos[t] * p->rope, true, p->act);
    sl_row_encode(p->format, p->lora, p->rope, x, row);
    if (dev)
        memcpy(dev, row, (size_t)p->rows.row_bytes);
    if (host)
        memcpy(host, row, (size_t)p->rows.row_bytes);
    return 0;
}

static sl_status run_kv_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kv_append_params *p = params;
    const size_t floats = (size_t)p->lora + (size_t)p->rope;
    void *norm;
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, 4 * (size_t)p->lora, &norm, err));
    sl_load_f32(p->norm_dtype, p->norm, 0, p->lora, norm);
    const ctx c = {p, norm};
    return sl_cpu_run(be, "kv_append", 4 * floats + (size_t)p->rows.row_bytes, p->seqs->n_tokens,
                      4 * (int64_t)floats, append, &c, err);
}

const sl_op_impl sl_cpu_kv_append = {.run = run_kv_append};
