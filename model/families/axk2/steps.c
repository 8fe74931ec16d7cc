/* The buffers of A.X-K2 and the steps of its layers. */
#include "kernels/streams.h"
#include "model/families/axk2/axk2.h"
#include "model/steps.h"

void sl_axk2_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_axk2_workspace *w = own;
    int64_t t = o->max_tokens;
    size_t act = sl_dtype_size(o->act);
    sl_dsa_carve(c, o, k, &w->dsa);
    w->dsa.q_in = w->joined = sl_carve_take(k, t, 2 * (int64_t)c->attn.q_lora_rank, act);
    w->gate = sl_carve_take(k, t, sl_dsa_dim_o(c), act);
    w->low = sl_carve_take(k, t, c->norm_gate_rank, act);
}

/* x *= sigmoid(gate), rows of dim values. */
static sl_status times_sigmoid(sl_pass *p, void *x, const void *gate, int32_t dim)
{
    sl_sigmoid_mul_params a = {
        .x = x, .gate = gate, .tokens = p->tokens, .dim = dim, .ld_x = dim, .ld_gate = dim, .act = p->act};
    return sl_pass_run(p, SL_OP_SIGMOID_MUL, &a);
}

/* h, which a norm has made, times the sigmoid of a small MLP of itself. */
static sl_status gate_norm(sl_pass *p, const sl_weight *down, const sl_weight *up)
{
    const sl_axk2_workspace *own = p->ws->own;
    SL_TRY(sl_pass_linear(p, p->ws->h, down, own->low));
    SL_TRY(times_sigmoid(p, own->low, own->low, down->out)); /* silu */
    SL_TRY(sl_pass_linear(p, own->low, up, p->ws->extra));
    return times_sigmoid(p, p->ws->h, p->ws->extra, up->out);
}

static sl_status step_gate_input(sl_pass *p)
{
    return gate_norm(p, &p->lw->w[SL_AXK2_INPUT_DOWN], &p->lw->w[SL_AXK2_INPUT_UP]);
}

static sl_status step_gate_post(sl_pass *p)
{
    return gate_norm(p, &p->lw->w[SL_AXK2_POST_DOWN], &p->lw->w[SL_AXK2_POST_UP]);
}

static sl_status step_queries(sl_pass *p)
{
    const sl_axk2_workspace *own = p->ws->own;
    sl_join_params a = {.a = own->dsa.q_r,
                        .b = own->dsa.q_a,
                        .out = own->joined,
                        .tokens = p->tokens,
                        .dim_a = p->c->attn.q_lora_rank,
                        .dim_b = p->c->attn.q_lora_rank,
                        .act = p->act};
    SL_TRY(sl_pass_run(p, SL_OP_JOIN, &a));
    return sl_dsa_step_heads(p);
}

static sl_status step_gate(sl_pass *p)
{
    const sl_axk2_workspace *own = p->ws->own;
    SL_TRY(sl_pass_linear(p, own->joined, &p->lw->w[SL_AXK2_GATE], own->gate));
    return times_sigmoid(p, own->dsa.attn, own->gate, (int32_t)sl_dsa_dim_o(p->c));
}

const sl_layer_step sl_axk2_steps[SL_AXK2_N_STEPS] = {
    {"input norm", NULL, sl_step_input_norm},
    {"gate of the input norm", NULL, step_gate_input},
    {"latents and index keys", NULL, sl_dsa_step_latents},
    {"queries", NULL, step_queries},
    {"index", sl_dsa_in_indexer, sl_dsa_step_index},
    {"attend", NULL, sl_dsa_step_attend},
    {"values", NULL, sl_dsa_step_values},
    {"output gate", NULL, step_gate},
    {"output", NULL, sl_dsa_step_output},
    {"post norm", NULL, sl_step_post_norm},
    {"gate of the post norm", sl_in_moe, step_gate_post},
    {"dense", sl_in_dense, sl_step_mlp},
    {"experts", sl_in_moe, sl_step_experts},
    {"shared experts", sl_in_shared, sl_step_shared},
};
