/*
 * The buffers of the DSA families and the steps of their layers. Attention itself is not here: the step `attend`
 * (attend.c) gives queries, rows and index keys to the owner of the cache, which writes its result to o.
 */
#include "model/families/dsa/dsa.h"
#include "model/steps.h"

void sl_dsa_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_dsa_workspace *w = own;
    int64_t t = o->max_tokens;
    size_t act = sl_dtype_size(o->act), f32 = sizeof(float);
    w->q_a = sl_carve_take(k, t, c->attn.q_lora_rank, act);
    w->q_in = w->q_r = sl_carve_take(k, t, c->attn.q_lora_rank, act);
    w->q = sl_carve_take(k, t, sl_dsa_dim_q(c), act);
    w->kv = sl_carve_take(k, t, sl_dsa_dim_kv_a(c), act);
    w->ql = sl_carve_take(k, t, c->attn.n_heads * sl_dsa_dim_kv_a(c), f32);
    w->o = sl_carve_take(k, t, (int64_t)c->attn.n_heads * c->attn.kv_lora_rank, f32);
    w->attn = sl_carve_take(k, t, sl_dsa_dim_o(c), act);
    w->index_k = sl_carve_take(k, t, c->index.head_dim, act);
    w->index_q = sl_carve_take(k, t, sl_dsa_dim_index_q(c), act);
    w->index_q_out =
        sl_carve_take(k, t, sl_dsa_dim_index_q(c), o->index_format == SL_INDEX_OFFICIAL ? 1 : f32);
    w->index_proj = sl_carve_take(k, t, c->index.n_heads, f32);
    w->index_weights = sl_carve_take(k, t, c->index.n_heads, f32);
}

sl_status sl_dsa_absorb(const sl_pass *p)
{
    const sl_model_config *c = p->c;
    const sl_dsa_workspace *own = p->ws->own;
    sl_q_absorb_params a = {.q = own->q,
                            .kv_b = p->lw->w[SL_DSA_KV_B],
                            .pos = p->f->seqs->token_pos,
                            .cos_sin = p->m->cos_sin,
                            .ql = own->ql,
                            .tokens = p->tokens,
                            .heads = c->attn.n_heads,
                            .nope = c->attn.qk_nope_head_dim,
                            .rope = c->attn.qk_rope_head_dim,
                            .v = c->attn.v_head_dim,
                            .lora = c->attn.kv_lora_rank,
                            .act = p->act};
    return sl_pass_run(p, SL_OP_Q_ABSORB, &a);
}

/* The linear layers that read h, in one chain. Without index_weights, which is float32. */
sl_status sl_dsa_step_latents(sl_pass *p)
{
    const sl_model_config *c = p->c;
    sl_dsa_workspace *own = p->ws->own;
    const sl_weight *w = p->lw->w;
    bool index = sl_pass_indexes(p);
    sl_linear_params k = sl_pass_chain(p, p->ws->h, &w[SL_DSA_INDEX_K], own->index_k, NULL),
                     kv = sl_pass_chain(p, p->ws->h, &w[SL_DSA_KV_A], own->kv, index ? &k : NULL),
                     q_a = sl_pass_chain(p, p->ws->h, &w[SL_DSA_Q_A], own->q_a, &kv);
    if (p->rows_only)
        return sl_pass_run(p, SL_OP_LINEAR, &kv);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q_a));
    return sl_pass_norm(p, own->q_a, NULL, &w[SL_DSA_Q_A_NORM], c->attn.lora_eps, p->tokens, own->q_r);
}

/* Those that read the low-rank query, in one chain if both read the same. */
sl_status sl_dsa_step_heads(sl_pass *p)
{
    sl_dsa_workspace *own = p->ws->own;
    const sl_weight *w = p->lw->w;
    bool index = sl_pass_indexes(p), late = sl_pass_is_late(p), chain = own->q_in == own->q_r;
    sl_linear_params iq = sl_pass_chain(p, own->q_r, &w[SL_DSA_INDEX_Q], own->index_q, NULL),
                     q_b = sl_pass_chain(p, own->q_in, &w[SL_DSA_Q_B], own->q, index && chain ? &iq : NULL);
    if (index && (late || !chain))
        SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &iq));
    if (late)
        return SL_OK;
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q_b));
    return sl_dsa_absorb(p);
}

sl_status sl_dsa_step_queries(sl_pass *p)
{
    SL_TRY(sl_dsa_step_latents(p));
    return p->rows_only ? SL_OK : sl_dsa_step_heads(p);
}

sl_status sl_dsa_step_index(sl_pass *p)
{
    const sl_model_config *c = p->c;
    sl_dsa_workspace *own = p->ws->own;
    const sl_weight *w = p->lw->w;
    if (!sl_pass_indexes(p))
        return SL_OK;
    SL_TRY(sl_pass_linear_as(p, p->ws->h, c->hidden_size, &w[SL_DSA_INDEX_WEIGHTS], own->index_proj,
                             c->index.n_heads, SL_F32));
    sl_index_query_params a = {.q = own->index_q,
                               .wproj = own->index_proj,
                               .pos = p->f->seqs->token_pos,
                               .cos_sin = p->m->cos_sin,
                               .q_out = own->index_q_out,
                               .weights = own->index_weights,
                               .tokens = p->tokens,
                               .heads = c->index.n_heads,
                               .dim = c->index.head_dim,
                               .rope = c->attn.qk_rope_head_dim,
                               .interleaved = c->index.rope_interleaved,
                               .format = p->m->opts.index_format,
                               .act = p->act};
    return sl_pass_run(p, SL_OP_INDEX_QUERY, &a);
}

sl_status sl_dsa_step_values(sl_pass *p)
{
    const sl_model_config *c = p->c;
    sl_dsa_workspace *own = p->ws->own;
    sl_v_up_params a = {.o = own->o,
                        .kv_b = p->lw->w[SL_DSA_KV_B],
                        .out = own->attn,
                        .tokens = p->tokens,
                        .heads = c->attn.n_heads,
                        .nope = c->attn.qk_nope_head_dim,
                        .v = c->attn.v_head_dim,
                        .lora = c->attn.kv_lora_rank,
                        .act = p->act};
    return sl_pass_run(p, SL_OP_V_UP, &a);
}

sl_status sl_dsa_step_output(sl_pass *p)
{
    const sl_dsa_workspace *own = p->ws->own;
    p->pending = true;
    return sl_pass_linear(p, own->attn, &p->lw->w[SL_DSA_O], p->ws->delta);
}

const sl_layer_step sl_dsa_steps[SL_DSA_N_STEPS] = {
    {"input norm", NULL, sl_step_input_norm},
    {"queries, latents and index keys", NULL, sl_dsa_step_queries},
    {"index", sl_dsa_in_indexer, sl_dsa_step_index},
    {"attend", NULL, sl_dsa_step_attend},
    {"values", NULL, sl_dsa_step_values},
    {"output", NULL, sl_dsa_step_output},
    {"post norm", NULL, sl_step_post_norm},
    {"dense", sl_in_dense, sl_step_mlp},
    {"experts", sl_in_moe, sl_step_experts},
    {"shared experts", sl_in_shared, sl_step_shared},
};

const sl_layer_step sl_dsa_row_steps[SL_DSA_N_ROW_STEPS] = {
    {"input norm", NULL, sl_step_input_norm},
    {"latents and index keys", NULL, sl_dsa_step_queries},
    {"append", NULL, sl_dsa_step_attend},
};
