/* Kimi Delta Attention: three convolutions, the recurrence with a decay for every row of the state, and a gated norm. */
#include "kernels/delta.h"
#include "model/families/glm5_next/glm5.h"
#include "model/steps.h"

typedef struct projection {
    int slot;
    void *out;
    sl_dtype type;
} projection;

/* Linear layers that read the same rows, in one chain. */
static sl_status project(const sl_pass *p, const void *x, const projection *all, int n)
{
    sl_linear_params a[3];
    for (int i = 0; i < n; i++) {
        const sl_weight *w = &p->lw->w[all[i].slot];
        a[i] = sl_pass_linear_params(p, x, w->in, w, all[i].out, w->out, all[i].type);
        a[i].next = i > 0 ? &a[i - 1] : NULL;
    }
    return sl_pass_run(p, SL_OP_LINEAR, &a[n - 1]);
}

/* The decay and the gate of the output come from the row by way of a few values. */
static sl_status project_all(const sl_pass *p)
{
    const sl_glm5_workspace *own = p->ws->own;
    const projection wide[] = {{SL_GLM5_V, own->raw[2], SL_F32},
                               {SL_GLM5_K, own->raw[1], SL_F32},
                               {SL_GLM5_Q, own->raw[0], SL_F32}},
                     narrow[] = {{SL_GLM5_BETA, own->beta, SL_F32},
                                 {SL_GLM5_DECAY_A, own->decay_low, p->act},
                                 {SL_GLM5_GATE_A, own->gate_low, p->act}},
                     decay = {SL_GLM5_DECAY_B, own->decay, SL_F32},
                     gate = {SL_GLM5_GATE_B, own->gate, SL_F32};
    SL_TRY(project(p, p->ws->h, wide, SL_COUNT(wide)));
    SL_TRY(project(p, p->ws->h, narrow, SL_COUNT(narrow)));
    SL_TRY(project(p, own->decay_low, &decay, 1));
    return project(p, own->gate_low, &gate, 1);
}

static sl_status convolve(const sl_pass *p, const sl_layer_memory *m, int part)
{
    const sl_glm5_workspace *own = p->ws->own;
    const int32_t channels = (int32_t)sl_glm5_dim_linear(p->c);
    sl_conv_params a = {.x = own->raw[part],
                        .w = p->lw->w[SL_GLM5_Q_CONV + part].data,
                        .out = own->mixed[part],
                        .seqs = p->f->seqs,
                        .state = sl_layer_part(m, SL_GLM5_PART_CONV + part),
                        .state_stride = m->state_stride,
                        .channels = channels,
                        .taps = p->c->linear.taps,
                        .dilation = 1,
                        .ld_x = channels,
                        .out_dtype = SL_F32};
    return sl_pass_run(p, SL_OP_CONV, &a);
}

static sl_status recur(const sl_pass *p, const sl_layer_memory *m)
{
    const sl_glm5_workspace *own = p->ws->own;
    const sl_linear_config *l = &p->c->linear;
    const int32_t ld = (int32_t)sl_glm5_dim_linear(p->c);
    sl_delta_params a = {.q = own->mixed[0],
                         .k = own->mixed[1],
                         .v = own->mixed[2],
                         .gate = own->decay,
                         .beta = own->beta,
                         .a_log = p->lw->w[SL_GLM5_A_LOG].data,
                         .dt_bias = p->lw->w[SL_GLM5_DT_BIAS].data,
                         .out = own->core,
                         .seqs = p->f->seqs,
                         .state = sl_layer_part(m, SL_GLM5_PART_DELTA),
                         .state_stride = m->state_stride,
                         .key_heads = l->key_heads,
                         .value_heads = l->value_heads,
                         .key_dim = l->key_dim,
                         .value_dim = l->value_dim,
                         .ld_q = ld,
                         .ld_k = ld,
                         .ld_v = ld,
                         .by_channel = true,
                         .bound = l->bound};
    return sl_pass_run(p, SL_OP_DELTA, &a);
}

sl_status sl_glm5_step_linear(sl_pass *p)
{
    const sl_glm5_workspace *own = p->ws->own;
    const sl_linear_config *l = &p->c->linear;
    sl_layer_memory m;
    sl_gated_norm_params norm = {.x = own->core,
                                 .gate = own->gate,
                                 .weight = p->lw->w[SL_GLM5_OUT_NORM].data,
                                 .out = own->core_act,
                                 .tokens = p->tokens,
                                 .heads = l->value_heads,
                                 .dim = l->value_dim,
                                 .eps = p->c->rms_eps,
                                 .form = SL_GATE_SIGMOID,
                                 .act = p->act};
    SL_TRY(sl_pass_memory(p, &m));
    SL_TRY(project_all(p));
    for (int part = 0; part < 3; part++)
        SL_TRY(convolve(p, &m, part));
    SL_TRY(recur(p, &m));
    SL_TRY(sl_pass_run(p, SL_OP_GATED_NORM, &norm));
    return sl_pass_linear(p, own->core_act, &p->lw->w[SL_GLM5_OUT], p->ws->delta);
}
