/* SL_OP_LINEAR: converts x to float32, quantised if requested, and calls kernels/cpu/matmul.c. */
#include "kernels/cpu/cpu.h"

#include "kernels/formats.h"

typedef struct ctx {
    const sl_linear_params *p;
    float *x, *scale;
    int32_t groups;
} ctx;

static void load(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *c = arg;
    const sl_linear_params *p = c->p;

    (void)worker;
    for (int64_t t = first; t < first + count; t++) {
        float *x = c->x + t * p->w.in;

        sl_load_f32(p->act, p->x, t * p->ld_x, p->w.in, x);
        if (c->scale)
            sl_quant_acts(x, p->w.in, c->scale + t * c->groups);
    }
}

static sl_status run_one(sl_cpu *cpu, const sl_linear_params *p, sl_err *err)
{
    bool quant = p->fp8_acts && sl_weight_takes_e4m3(&p->w);
    ctx c = {.p = p, .groups = sl_fp8_groups(p->w.in)};
    sl_matmul m = {
        .w = &p->w, .out = p->out, .ld_out = p->ld_out, .tokens = p->tokens, .out_dtype = p->out_dtype};
    void *mem;

    SL_TRY(sl_cpu_scratch_threads(cpu, sl_matmul_scratch(&p->w, p->tokens), err));
    if (p->act == SL_F32 && !quant) {
        m.x = p->x;
        m.ld_x = p->ld_x;
        sl_matmul_run(cpu, &m);
        return SL_OK;
    }
    SL_TRY(sl_cpu_scratch(cpu, SL_SCRATCH_X, 4 * (size_t)p->tokens * ((size_t)p->w.in + (size_t)c.groups),
                          &mem, err));
    c.x = mem;
    if (quant)
        c.scale = c.x + (int64_t)p->tokens * p->w.in;
    sl_cpu_for(cpu, p->tokens, p->w.in, load, &c);
    m.x = c.x;
    m.ld_x = p->w.in;
    m.scale_x = c.scale;
    sl_matmul_run(cpu, &m);
    return SL_OK;
}

static sl_status run_linear(sl_backend *be, const void *params, sl_err *err)
{
    for (const sl_linear_params *p = params; p; p = p->next)
        SL_TRY(run_one((sl_cpu *)be, p, err));
    return SL_OK;
}

const sl_op_impl sl_cpu_linear = {.run = run_linear};
