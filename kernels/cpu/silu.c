/* SL_OP_SILU_MUL, and the activation of routed experts. */
#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/formats.h"

/* The variants: comparisons that leave NaN as it is. */
static void variant(const sl_glu *glu, float *g, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float u = up[i];

        if (glu->limit > 0) {
            g[i] = g[i] > glu->limit ? glu->limit : g[i];
            u = u > glu->limit ? glu->limit : u < -glu->limit ? -glu->limit : u;
        }
        float steep = glu->alpha > 0 ? glu->alpha * g[i] : g[i];
        g[i] = g[i] / (1.0f + expf(-steep)) * (glu->offset != 0 ? u + glu->offset : u);
    }
}

void sl_glu_mul(const sl_glu *glu, float *g, const float *u, int64_t n)
{
    if (glu->limit > 0 || glu->alpha > 0 || glu->offset != 0)
        variant(glu, g, u, n);
    else /* of most models: not a comparison for each value */
        for (int64_t i = 0; i < n; i++)
            g[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
}

static uint32_t token(const void *arg, int64_t t, void *own)
{
    const sl_silu_mul_params *p = arg;
    float *g = own, *u = g + p->dim;

    sl_load_f32(p->act, p->gate, t * p->ld_in, p->dim, g);
    sl_load_f32(p->act, p->up, t * p->ld_in, p->dim, u);
    sl_glu_mul(&p->glu, g, u, p->dim);
    sl_store_f32(p->act, g, p->dim, p->out, t * p->ld_out);
    return 0;
}

static sl_status run_silu_mul(sl_backend *be, const void *params, sl_err *err)
{
    const sl_silu_mul_params *p = params;
    return sl_cpu_run(be, "silu_mul", 8 * (size_t)p->dim, p->tokens, 10 * (int64_t)p->dim, token, p, err);
}

const sl_op_impl sl_cpu_silu_mul = {.run = run_silu_mul};
