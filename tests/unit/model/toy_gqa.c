/* See toy_gqa.h. */
#include "toy_gqa.h"

#include "model/config_read.h"
#include "model/steps.h"

static const sl_cfg_int_key keys[] = {
    {"num_key_value_heads", SL_CFG_FIELD(attn.n_kv_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"head_dim", SL_CFG_FIELD(attn.qk_rope_head_dim), 2, 1 << 12, SL_CFG_REQUIRED},
};

static sl_status read_config(sl_config_reader *x, const sl_family *f)
{
    sl_model_config *c = x->c;
    (void)f;
    SL_TRY(sl_cfg_ints(x, keys, SL_COUNT(keys)));
    if (c->attn.n_heads % c->attn.n_kv_heads)
        return sl_cfg_bad(x, "num_key_value_heads: %d does not divide num_attention_heads %d",
                          c->attn.n_kv_heads, c->attn.n_heads);
    c->attn.v_head_dim = c->attn.qk_rope_head_dim;
    return sl_cfg_rope(x);
}

static int64_t dim_q(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * c->attn.v_head_dim;
}

static int64_t dim_kv(const sl_model_config *c)
{
    return (int64_t)c->attn.n_kv_heads * c->attn.v_head_dim;
}

static int64_t dim_head(const sl_model_config *c)
{
    return c->attn.v_head_dim;
}

static void cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    out->kv_heads = c->attn.n_kv_heads;
    out->head_dim = c->attn.v_head_dim;
}

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, 0},
};

static const sl_tensor_spec layer_tensors[] = {
    {"input_layernorm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one,
     SL_SPEC_GAIN},
    {"self_attn.q_proj.weight", TOY_Q, SL_K_LINEAR, NULL, dim_q, sl_dim_hidden, 0},
    {"self_attn.k_proj.weight", TOY_K, SL_K_LINEAR, NULL, dim_kv, sl_dim_hidden, 0},
    {"self_attn.v_proj.weight", TOY_V, SL_K_LINEAR, NULL, dim_kv, sl_dim_hidden, 0},
    {"self_attn.o_proj.weight", TOY_O, SL_K_LINEAR, NULL, sl_dim_hidden, dim_q, 0},
    {"self_attn.q_norm.weight", TOY_Q_NORM, SL_K_VECTOR, NULL, dim_head, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.k_norm.weight", TOY_K_NORM, SL_K_VECTOR, NULL, dim_head, sl_dim_one, SL_SPEC_GAIN},
    {"mlp.gate_proj.weight", SL_T_GATE, SL_K_LINEAR, NULL, sl_dim_dense, sl_dim_hidden, 0},
    {"mlp.up_proj.weight", SL_T_UP, SL_K_LINEAR, NULL, sl_dim_dense, sl_dim_hidden, 0},
    {"mlp.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dim_dense, 0},
};

static void carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    toy_workspace *w = own;
    int64_t t = o->max_tokens;
    w->q = sl_carve_take(k, t, dim_q(c), sizeof(float));
    w->k = sl_carve_take(k, t, dim_kv(c), sizeof(float));
    w->v = sl_carve_take(k, t, dim_kv(c), sizeof(float));
    w->qn = sl_carve_take(k, t, dim_q(c), sizeof(float));
    w->kn = sl_carve_take(k, t, dim_kv(c), sizeof(float));
    w->o = sl_carve_take(k, t, dim_q(c), sizeof(float));
}

static sl_status step_qkv(sl_pass *p)
{
    const sl_weight *w = p->lw->w;
    const sl_model_config *c = p->c;
    toy_workspace *own = p->ws->own;
    sl_linear_params v = sl_pass_chain(p, p->ws->h, &w[TOY_V], own->v, NULL),
                     k = sl_pass_chain(p, p->ws->h, &w[TOY_K], own->k, &v),
                     q = sl_pass_chain(p, p->ws->h, &w[TOY_Q], own->q, &k);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q));
    SL_TRY(sl_pass_norm(p, own->q, NULL, &w[TOY_Q_NORM], c->rms_eps, p->tokens * c->attn.n_heads, own->qn));
    return sl_pass_norm(p, own->k, NULL, &w[TOY_K_NORM], c->rms_eps, p->tokens * c->attn.n_kv_heads, own->kn);
}

static sl_status step_attend(sl_pass *p)
{
    sl_attn_call call = {.layer = p->layer, .seqs = p->f->seqs};
    return p->f->seam.attend(p->f->seam.ctx, &call, p->err);
}

static sl_status step_output(sl_pass *p)
{
    toy_workspace *own = p->ws->own;
    p->pending = true;
    return sl_pass_linear(p, own->o, &p->lw->w[TOY_O], p->ws->delta);
}

static const sl_layer_step steps[] = {
    {"input norm", NULL, sl_step_input_norm},
    {"queries, keys and values", NULL, step_qkv},
    {"attend", NULL, step_attend},
    {"output", NULL, step_output},
    {"post norm", NULL, sl_step_post_norm},
    {"mlp", NULL, sl_step_mlp},
};

static sl_status ask_attend(void *backend, const sl_attn_call *call, sl_err *err)
{
    (void)backend, (void)call, (void)err;
    return SL_OK;
}

const sl_family toy_gqa = {
    .model_type = "toy_gqa",
    .architecture = "ToyGqaForCausalLM",
    .read_config = read_config,
    .cache_dims = cache_dims,
    .model_tensors = model_tensors,
    .layer_tensors = layer_tensors,
    .n_model_tensors = SL_COUNT(model_tensors),
    .n_layer_tensors = SL_COUNT(layer_tensors),
    .workspace_size = sizeof(toy_workspace),
    .workspace = carve,
    .steps = steps,
    .n_steps = SL_COUNT(steps),
    .ask_attend = ask_attend,
};
