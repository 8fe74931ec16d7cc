/* SL_OP_RMSNORM and SL_OP_ADD: the residual stream. */
#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/formats.h"

typedef struct ctx {
    sl_cpu *cpu;
    const sl_rmsnorm_params *p;
    const float *w;
} ctx;

static void norm_tokens(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *c = arg;
    const sl_rmsnorm_params *p = c->p;
    float *x = sl_cpu_own(c->cpu, worker), *y = x + p->dim;

    for (int64_t t = first; t < first + count; t++) {
        double sum = 0;

        sl_load_f32(p->act, p->x, t * p->ld_x, p->dim, x);
        if (p->add) {
            sl_load_f32(p->act, p->add, t * p->dim, p->dim, y);
            for (int32_t i = 0; i < p->dim; i++)
                x[i] += y[i];
            sl_store_f32(p->act, x, p->dim, p->x, t * p->ld_x);
        }
        if (!p->out)
            continue;
        for (int32_t i = 0; i < p->dim; i++)
            sum += (double)x[i] * (double)x[i];
        float inv = (float)(1.0 / sqrt(sum / p->dim + (double)p->eps));

        const float *w = c->w + (p->groups ? t % p->groups * p->dim : 0);
        for (int32_t i = 0; i < p->dim; i++)
            x[i] = x[i] * inv * w[i];
        sl_store_f32(p->act, x, p->dim, p->out, t * p->dim);
    }
}

static sl_status run_rmsnorm(sl_backend *be, const void *params, sl_err *err)
{
    const sl_rmsnorm_params *p = params;
    ctx c = {.cpu = (sl_cpu *)be, .p = p};
    void *w;
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 8 * (size_t)p->dim, err));
    const int64_t weights = (int64_t)(p->groups ? p->groups : 1) * p->dim;
    SL_TRY(sl_cpu_scratch(c.cpu, SL_SCRATCH_X, 4 * (size_t)weights, &w, err));
    if (p->out)
        sl_load_f32(p->weight_dtype, p->weight, 0, weights, w);
    c.w = w;
    sl_cpu_for(c.cpu, p->tokens, p->dim, norm_tokens, &c);
    return SL_OK;
}

const sl_op_impl sl_cpu_rmsnorm = {.run = run_rmsnorm};

typedef struct add_ctx {
    sl_cpu *cpu;
    const sl_add_params *p;
} add_ctx;

static void add_tokens(void *arg, int64_t first, int64_t count, int worker)
{
    add_ctx *c = arg;
    const sl_add_params *p = c->p;
    float *x = sl_cpu_own(c->cpu, worker), *y = x + p->dim;

    for (int64_t t = first; t < first + count; t++) {
        sl_load_f32(p->act, p->x, t * p->dim, p->dim, x);
        sl_load_f32(p->act, p->y, t * p->dim, p->dim, y);
        for (int32_t i = 0; i < p->dim; i++)
            x[i] += y[i];
        sl_store_f32(p->act, x, p->dim, p->x, t * p->dim);
    }
}

static sl_status run_add(sl_backend *be, const void *params, sl_err *err)
{
    add_ctx c = {(sl_cpu *)be, params};
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 8 * (size_t)c.p->dim, err));
    sl_cpu_for(c.cpu, c.p->tokens, c.p->dim, add_tokens, &c);
    return SL_OK;
}

const sl_op_impl sl_cpu_add = {.run = run_add};
