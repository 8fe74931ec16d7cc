/*
 * SL_OP_MOE: the routed experts of tokens that are all here. Experts run in ascending order and add to a float32 sum
 * per token, so every token's sum has the same order whatever other tokens are in the batch.
 */
#include <string.h>

#include "kernels/cpu/experts.h"
#include "kernels/formats.h"

typedef struct tokens {
    const sl_moe_params *p;
    float *sum; /* [T][hidden] */
} tokens;

static void load_token(const void *ctx, int32_t t, float *x, float *scale)
{
    const sl_moe_params *p = ((const tokens *)ctx)->p;

    sl_load_f32(p->act, p->x, (int64_t)t * p->hidden, p->hidden, x);
    if (scale)
        sl_quant_acts(x, p->hidden, scale);
}

static void add_result(void *ctx, int32_t slot, const float *d)
{
    const tokens *c = ctx;
    float *sum = c->sum + (int64_t)(slot / c->p->top_k) * c->p->hidden, w = c->p->weights[slot];

    for (int32_t k = 0; k < c->p->hidden; k++)
        sum[k] += w * d[k];
}

static sl_status run_moe(sl_backend *be, const void *params, sl_err *err)
{
    const sl_moe_params *p = params;
    size_t bytes = sizeof(float) * (size_t)p->tokens * (size_t)p->hidden;
    tokens c = {.p = p};
    sl_cpu_experts x = {.gate = p->gate,
                        .up = p->up,
                        .down = p->down,
                        .expert_ids = p->expert_ids,
                        .rows = p->tokens,
                        .top_k = p->top_k,
                        .experts = p->experts,
                        .hidden = p->hidden,
                        .inter = p->inter,
                        .act = p->act,
                        .fp8_acts = p->fp8_acts,
                        .glu = p->glu,
                        .load = load_token,
                        .take = add_result,
                        .ctx = &c};
    void *sum;

    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_Y, bytes, &sum, err));
    c.sum = memset(sum, 0, bytes);
    SL_TRY(sl_cpu_experts_run((sl_cpu *)be, &x, p->workspace, "moe", err));
    sl_store_f32(p->act, c.sum, (int64_t)p->tokens * p->hidden, p->out, 0);
    return SL_OK;
}

const sl_op_impl sl_cpu_moe = {.run = run_moe};
