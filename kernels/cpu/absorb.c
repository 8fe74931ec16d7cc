/*
 * SL_OP_Q_ABSORB and SL_OP_V_UP: they project queries to latent space, and results of attention from it. One task
 * per head: the head's part of kv_b is converted to float32 once and used for every token.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

/* Rows of kv_b from `first` on as float32: in place if it is float32, otherwise converted into buf. */
static const float *head_weight(const sl_weight *w, int64_t first, int32_t rows, sl_dtype act, float *buf)
{
    if (w->dtype == SL_F32)
        return (const float *)w->data + first * w->in;
    for (int32_t r = 0; r < rows; r++)
        sl_weight_load_row(w, first + r, act, buf + (int64_t)r * w->in);
    return buf;
}

static uint32_t q_head(const void *arg, int64_t h, void *own)
{
    const sl_q_absorb_params *p = arg;
    const int32_t q_dim = p->nope + p->rope, l_dim = p->lora + p->rope;
    float *q = own, *buf = q + q_dim;
    const float *w = head_weight(&p->kv_b, h * ((int64_t)p->nope + p->v), p->nope, p->act, buf);
    uint32_t bad = 0;

    for (int64_t t = 0; t < p->tokens; t++) {
        float *out = (float *)p->ql + (t * p->heads + h) * l_dim;

        sl_load_f32(p->act, p->q, (t * p->heads + h) * q_dim, q_dim, q);
        if (p->rope && p->pos[t] < 0) {
            bad = SL_DEVERR_POS;
            continue;
        }
        if (p->rope)
            sl_rope(q + p->nope, p->rope, p->cos_sin + (int64_t)p->pos[t] * p->rope, true, p->act);
        memset(out, 0, 4 * (size_t)p->lora);
        sl_vec_axpy(out, p->lora, q, w, p->lora, p->nope);
        memcpy(out + p->lora, q + p->nope, 4 * (size_t)p->rope);
    }
    return bad;
}

static sl_status run_q_absorb(sl_backend *be, const void *params, sl_err *err)
{
    const sl_q_absorb_params *p = params;
    const size_t floats = (size_t)p->nope * (size_t)p->lora + (size_t)p->nope + (size_t)p->rope;
    return sl_cpu_run(be, "q_absorb", 4 * floats, p->heads, (int64_t)p->nope * p->lora * (1 + p->tokens) / 8,
                      q_head, p, err);
}

const sl_op_impl sl_cpu_q_absorb = {.run = run_q_absorb};

static uint32_t v_head(const void *arg, int64_t h, void *own)
{
    const sl_v_up_params *p = arg;
    float *tile = own, *buf = tile + (int64_t)p->tokens * p->v;
    const float *w = head_weight(&p->kv_b, h * ((int64_t)p->nope + p->v) + p->nope, p->v, p->act, buf);

    sl_vec_products((sl_vec_rows){w, p->lora, p->v},
                    (sl_vec_rows){p->o + h * p->lora, (int64_t)p->heads * p->lora, p->tokens}, p->lora, tile,
                    p->v);
    for (int64_t t = 0; t < p->tokens; t++)
        sl_store_f32(p->act, tile + t * p->v, p->v, p->out, (t * p->heads + h) * p->v);
    return 0;
}

static sl_status run_v_up(sl_backend *be, const void *params, sl_err *err)
{
    const sl_v_up_params *p = params;
    const size_t floats = (size_t)p->v * ((size_t)p->lora + (size_t)p->tokens);
    return sl_cpu_run(be, "v_up", 4 * floats, p->heads, (int64_t)p->v * p->lora * (1 + p->tokens) / 8, v_head,
                      p, err);
}

const sl_op_impl sl_cpu_v_up = {.run = run_v_up};
