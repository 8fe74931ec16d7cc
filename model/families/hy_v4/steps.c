/*
 * The buffers of Hy4 and the steps of its layers. Each block reads one row that is made of the streams, in ws->x, and what it
 * leaves in ws->delta is added to every stream. Before the first layer the streams are copies of the embedding; after the
 * last one they become one row again, which the head of the model reads.
 */
#include "kernels/streams.h"
#include "model/families/hy_v4/hy_v4.h"
#include "model/steps.h"

void sl_hy4_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_hy4_workspace *w = own;
    int64_t t = o->max_tokens, count = c->streams.count;
    size_t act = sl_dtype_size(o->act);
    sl_dsa_carve(c, o, k, &w->dsa);
    w->gate = sl_carve_take(k, t, sl_dsa_dim_o(c), act);
    w->streams = sl_carve_take(k, t, count * c->hidden_size, act);
    w->mix = sl_carve_take(k, t, 2 * count, sizeof(float));
    w->post = sl_carve_take(k, t, count, sizeof(float));
}

/* ws->x from the streams, and for a block the gates of what it will add. */
static sl_status collapse(sl_pass *p, const sl_weight *fn, float *post)
{
    const sl_hy4_workspace *own = p->ws->own;
    return sl_pass_streams_out(p, own->streams, fn, own->mix, post, NULL);
}

static sl_status add(sl_pass *p, const void *y, const float *post)
{
    const sl_hy4_workspace *own = p->ws->own;
    return sl_pass_streams_add(p, own->streams, y, post, NULL);
}

static sl_status step_begin(sl_pass *p)
{
    return add(p, p->ws->x, NULL);
}

static sl_status step_attn_row(sl_pass *p)
{
    const sl_hy4_workspace *own = p->ws->own;
    return collapse(p, &p->lw->w[SL_HY4_ATTN_FN], own->post);
}

static sl_status step_mlp_row(sl_pass *p)
{
    const sl_hy4_workspace *own = p->ws->own;
    return collapse(p, &p->lw->w[SL_HY4_MLP_FN], own->post);
}

static sl_status step_add(sl_pass *p)
{
    const sl_hy4_workspace *own = p->ws->own;
    return add(p, p->ws->delta, own->post);
}

static sl_status step_end(sl_pass *p)
{
    return collapse(p, &p->m->weights.w[SL_HY4_HEAD_FN], NULL);
}

/* The values of the heads, times the sigmoid of a gate that reads what the block reads. */
static sl_status step_gate(sl_pass *p)
{
    const sl_hy4_workspace *own = p->ws->own;
    int32_t dim = (int32_t)sl_dsa_dim_o(p->c);
    sl_sigmoid_mul_params a = {.x = own->dsa.attn,
                               .gate = own->gate,
                               .tokens = p->tokens,
                               .dim = dim,
                               .ld_x = dim,
                               .ld_gate = dim,
                               .act = p->act};
    SL_TRY(sl_pass_linear(p, p->ws->h, &p->lw->w[SL_HY4_GATE], own->gate));
    return sl_pass_run(p, SL_OP_SIGMOID_MUL, &a);
}

const sl_layer_step sl_hy4_steps[SL_HY4_N_STEPS] = {
    {"streams", sl_in_first, step_begin},
    {"row for attention", NULL, step_attn_row},
    {"input norm", NULL, sl_step_input_norm},
    {"queries, latents and index keys", NULL, sl_dsa_step_queries},
    {"index", sl_dsa_in_indexer, sl_dsa_step_index},
    {"attend", NULL, sl_dsa_step_attend},
    {"values", NULL, sl_dsa_step_values},
    {"output gate", NULL, step_gate},
    {"output", NULL, sl_dsa_step_output},
    {"attention to the streams", NULL, step_add},
    {"row for the MLP", NULL, step_mlp_row},
    {"post norm", NULL, sl_step_post_norm},
    {"dense", sl_in_dense, sl_step_mlp},
    {"experts", sl_in_moe, sl_step_experts},
    {"shared experts", sl_in_shared, sl_step_shared},
    {"MLP to the streams", NULL, step_add},
    {"row for the head", sl_in_last, step_end},
};
