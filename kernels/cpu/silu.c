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

typedef struct ctx {
    sl_cpu *cpu;
    const sl_silu_mul_params *p;
} ctx;

static void tokens(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *c = arg;
    const sl_silu_mul_params *p = c->p;
    float *g = sl_cpu_own(c->cpu, worker), *u = g + p->dim;

    for (int64_t t = first; t < first + count; t++) {
        sl_load_f32(p->act, p->gate, t * p->ld_in, p->dim, g);
        sl_load_f32(p->act, p->up, t * p->ld_in, p->dim, u);
        sl_glu_mul(&p->glu, g, u, p->dim);
        sl_store_f32(p->act, g, p->dim, p->out, t * p->ld_out);
    }
}

static sl_status run_silu_mul(sl_backend *be, const void *params, sl_err *err)
{
    ctx c = {(sl_cpu *)be, params};
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 8 * (size_t)c.p->dim, err));
    sl_cpu_for(c.cpu, c.p->tokens, 10 * (int64_t)c.p->dim, tokens, &c);
    return SL_OK;
}

const sl_op_impl sl_cpu_silu_mul = {.run = run_silu_mul};
