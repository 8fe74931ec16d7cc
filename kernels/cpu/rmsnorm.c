/* SL_OP_RMSNORM and SL_OP_ADD: the residual stream. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"

#include <math.h>

#include "kernels/formats.h"

typedef struct ctx {
    const sl_rmsnorm_params *p;
    const float *w;
} ctx;

static uint32_t norm_token(const void *arg, int64_t t, void *own)
{
    const ctx *c = arg;
    const sl_rmsnorm_params *p = c->p;
    const float *w = c->w + (p->groups ? t % p->groups * p->dim : 0);
    float *x = own, *y = x + p->dim;

    sl_load_f32(p->act, p->x, t * p->ld_x, p->dim, x);
    if (p->add) {
        sl_load_f32(p->act, p->add, t * p->dim, p->dim, y);
        for (int32_t i = 0; i < p->dim; i++)
            x[i] += y[i];
        sl_store_f32(p->act, x, p->dim, p->x, t * p->ld_x);
    }
    if (!p->out)
        return 0;
    const float inv = sl_inverse_rms(x, p->dim, p->eps);
    for (int32_t i = 0; i < p->dim; i++)
        x[i] = x[i] * inv * w[i];
    sl_store_f32(p->act, x, p->dim, p->out, t * p->dim);
    return 0;
}

static sl_status run_rmsnorm(sl_backend *be, const void *params, sl_err *err)
{
    const sl_rmsnorm_params *p = params;
    const int64_t weights = (int64_t)(p->groups ? p->groups : 1) * p->dim;
    void *w;
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, 4 * (size_t)weights, &w, err));
    if (p->out)
        sl_load_f32(p->weight_dtype, p->weight, 0, weights, w);
    const ctx c = {p, w};
    return sl_cpu_run(be, "rmsnorm", 8 * (size_t)p->dim, p->tokens, p->dim, norm_token, &c, err);
}

const sl_op_impl sl_cpu_rmsnorm = {.run = run_rmsnorm};

static uint32_t add_token(const void *arg, int64_t t, void *own)
{
    const sl_add_params *p = arg;
    float *x = own, *y = x + p->dim;

    sl_load_f32(p->act, p->x, t * p->dim, p->dim, x);
    sl_load_f32(p->act, p->y, t * p->dim, p->dim, y);
    for (int32_t i = 0; i < p->dim; i++)
        x[i] += y[i];
    sl_store_f32(p->act, x, p->dim, p->x, t * p->dim);
    return 0;
}

static sl_status run_add(sl_backend *be, const void *params, sl_err *err)
{
    const sl_add_params *p = params;
    return sl_cpu_run(be, "add", 8 * (size_t)p->dim, p->tokens, p->dim, add_token, p, err);
}

const sl_op_impl sl_cpu_add = {.run = run_add};
