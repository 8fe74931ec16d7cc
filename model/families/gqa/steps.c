/*
 * The buffers and steps of the families with grouped-query attention, and the call by which a layer asks the owner of
 * the cache for its attention (kernels/attn.h).
 *
 * Projections are kept in float32 until the bias has been added, so that a bias costs no second rounding. A family
 * without biases or norms has no tensors in those slots; their addresses are then NULL, which the ops skip.
 */
#include "kernels/cache.h"
#include "model/families/gqa/gqa.h"
#include "model/steps.h"

void sl_gqa_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_gqa_workspace *w = own;
    int64_t t = o->max_tokens;
    w->q = sl_carve_take(k, t, sl_gqa_dim_q(c), sizeof(float));
    w->k = sl_carve_take(k, t, sl_gqa_dim_kv(c), sizeof(float));
    w->v = sl_carve_take(k, t, sl_gqa_dim_kv(c), sizeof(float));
    w->o = sl_carve_take(k, t, sl_gqa_dim_q(c), sl_dtype_size(o->act));
}

static sl_gqa_head_params head_params(const sl_pass *p, int bias, int norm)
{
    const sl_weight *w = p->lw->w;
    return (sl_gqa_head_params){
        .bias = w[bias].data, .norm = w[norm].data, .cos_sin = p->m->cos_sin, .eps = p->c->rms_eps};
}

static sl_linear_params projection(const sl_pass *p, int slot, float *out, const sl_linear_params *next)
{
    return sl_pass_chain_as(p, p->ws->h, &p->lw->w[slot], out, SL_F32, next);
}

static sl_status step_projections(sl_pass *p)
{
    sl_gqa_workspace *own = p->ws->own;
    sl_linear_params v = projection(p, SL_GQA_V, own->v, NULL), k = projection(p, SL_GQA_K, own->k, &v),
                     q = projection(p, SL_GQA_Q, own->q, &k);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q));
    sl_gqa_query_params a = {.q = own->q,
                             .head = head_params(p, SL_GQA_Q_BIAS, SL_GQA_Q_NORM),
                             .pos = p->f->seqs->token_pos,
                             .out = own->q,
                             .tokens = p->tokens,
                             .heads = p->c->attn.n_heads,
                             .dim = p->c->attn.v_head_dim,
                             .act = p->act};
    return sl_pass_run(p, SL_OP_GQA_QUERY, &a);
}

static sl_status step_attend(sl_pass *p)
{
    const sl_gqa_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    sl_row_format format = p->m->opts.row_format;
    sl_attn_call call = {
        .kind = SL_ATTN_GQA,
        .layer = p->layer,
        .seqs = p->f->seqs,
        .gqa.kv = {.k = own->k,
                   .v = own->v,
                   .key = head_params(p, SL_GQA_K_BIAS, SL_GQA_K_NORM),
                   .v_bias = p->lw->w[SL_GQA_V_BIAS].data,
                   .heads = c->attn.n_kv_heads,
                   .dim = c->attn.v_head_dim,
                   .format = format,
                   .act = p->act},
        .gqa.attn = {.q = own->q,
                     .out = own->o,
                     .tokens = p->tokens,
                     .heads = c->attn.n_heads,
                     .kv_heads = c->attn.n_kv_heads,
                     .dim = c->attn.v_head_dim,
                     .scale = c->attn.softmax_scale,
                     .format = format,
                     .act = p->act},
    };
    return p->f->seam.attend(p->f->seam.ctx, &call, p->err);
}

sl_status sl_gqa_ask_attend(void *backend, const sl_attn_call *call, sl_err *err)
{
    sl_gqa_append_params kv = call->gqa.kv;
    sl_gqa_attn_params attn = call->gqa.attn;
    int64_t row = sl_gqa_row_bytes(kv.format, kv.heads, kv.dim);
    if (row == 0)
        return sl_fail(err, SL_ERR_INVALID,
                       "row format %s does not store keys and values by head; gqa_* formats do",
                       sl_row_format_name(kv.format));
    kv.seqs = call->seqs;
    kv.rows.row_bytes = attn.rows.row_bytes = row;
    attn.k = attn.ld_ids = SL_PAGE_TOKENS;
    SL_TRY(sl_be_supports(backend, SL_OP_GQA_APPEND, &kv, err));
    return sl_be_supports(backend, SL_OP_GQA_ATTN, &attn, err);
}

sl_status sl_gqa_step_output(sl_pass *p)
{
    const sl_gqa_workspace *own = p->ws->own;
    p->pending = true;
    return sl_pass_linear(p, own->o, &p->lw->w[SL_GQA_O], p->ws->delta);
}

const sl_layer_step sl_gqa_steps[SL_GQA_N_STEPS] = {
    {"input norm", NULL, sl_step_input_norm},
    {"queries, keys and values", NULL, step_projections},
    {"attend", NULL, step_attend},
    {"output", NULL, sl_gqa_step_output},
    {"post norm", NULL, sl_step_post_norm},
    {"mlp", NULL, sl_step_mlp},
};
