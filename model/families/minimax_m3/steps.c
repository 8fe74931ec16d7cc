/*
 * The buffers of MiniMax-M3, the steps of its layers, and the call by which a layer asks the owner of the cache for its attention
 * (kernels/attn.h). Index queries are heads like others: projected, normalised, rotated, and never rounded to another format.
 */
#include "kernels/blocks.h"
#include "kernels/cache.h"
#include "model/families/minimax_m3/minimax_m3.h"
#include "model/steps.h"

bool sl_m3_in_sparse(const sl_model_config *c, int32_t layer)
{
    return c->layer_has_indexer[layer];
}

void sl_m3_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_m3_workspace *w = own;
    const int64_t t = o->max_tokens;
    sl_gqa_carve(c, o, k, &w->gqa);
    w->index_q = sl_carve_take(k, t, (int64_t)c->index.n_heads * c->index.head_dim, sizeof(float));
    w->index_k = sl_carve_take(k, t, c->index.head_dim, sl_dtype_size(o->act));
}

/* Norm and rotation of heads in float32, in place. */
static sl_status finish_heads(const sl_pass *p, float *q, int norm, int32_t heads, int32_t dim)
{
    sl_gqa_query_params a = {.q = q,
                             .head = {.norm = p->lw->w[norm].data,
                                      .cos_sin = p->m->cos_sin,
                                      .eps = p->c->rms_eps,
                                      .rope = p->c->attn.qk_rope_head_dim},
                             .pos = p->f->seqs->token_pos,
                             .out = q,
                             .tokens = p->tokens,
                             .heads = heads,
                             .dim = dim,
                             .act = p->act};
    return sl_pass_run(p, SL_OP_GQA_QUERY, &a);
}

/* sl_attn_call.queries, or a part of the step */
static sl_status make_queries(void *ctx, sl_err *err)
{
    const sl_pass *p = ctx;
    const sl_gqa_workspace *own = p->ws->own;
    const sl_weight *w = &p->lw->w[SL_GQA_Q];
    (void)err; /* the ops report to the pass's own */
    SL_TRY(sl_pass_linear_as(p, p->ws->h, w->in, w, own->q, w->out, SL_F32));
    return finish_heads(p, own->q, SL_GQA_Q_NORM, p->c->attn.n_heads, p->c->attn.v_head_dim);
}

static sl_linear_params projection(const sl_pass *p, int slot, void *out, sl_dtype dtype,
                                   const sl_linear_params *next)
{
    return sl_pass_chain_as(p, p->ws->h, &p->lw->w[slot], out, dtype, next);
}

static sl_status step_projections(sl_pass *p)
{
    const sl_m3_workspace *own = p->ws->own;
    sl_linear_params v = projection(p, SL_GQA_V, own->gqa.v, SL_F32, NULL),
                     k = projection(p, SL_GQA_K, own->gqa.k, SL_F32, &v);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &k));
    return sl_pass_is_late(p) ? SL_OK : make_queries(p, p->err);
}

static sl_status step_index(sl_pass *p)
{
    const sl_m3_workspace *own = p->ws->own;
    sl_linear_params k = projection(p, SL_M3_INDEX_K, own->index_k, p->act, NULL),
                     q = projection(p, SL_M3_INDEX_Q, own->index_q, SL_F32, &k);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q));
    return finish_heads(p, own->index_q, SL_M3_INDEX_Q_NORM, p->c->index.n_heads, p->c->index.head_dim);
}

static void fill_index(const sl_pass *p, sl_attn_call *call)
{
    const sl_m3_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    const sl_weight *norm = &p->lw->w[SL_M3_INDEX_K_NORM];
    call->index.key = (sl_index_append_params){.k = own->index_k,
                                               .norm_weight = norm->data,
                                               .cos_sin = p->m->cos_sin,
                                               .ld_k = c->index.head_dim,
                                               .dim = c->index.head_dim,
                                               .rope = c->attn.qk_rope_head_dim,
                                               .eps = c->rms_eps,
                                               .format = p->m->opts.index_format,
                                               .act = p->act,
                                               .norm_dtype = norm->dtype};
    call->index.q = own->index_q;
}

static sl_status step_attend(sl_pass *p)
{
    const sl_m3_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    const sl_row_format format = p->m->opts.row_format;
    sl_attn_call call = {
        .kind = SL_ATTN_GQA,
        .layer = p->layer,
        .has_indexer = c->layer_has_indexer[p->layer],
        .seqs = p->f->seqs,
        .gqa.kv = {.k = own->gqa.k,
                   .v = own->gqa.v,
                   .key = {.norm = p->lw->w[SL_GQA_K_NORM].data,
                           .cos_sin = p->m->cos_sin,
                           .eps = c->rms_eps,
                           .rope = c->attn.qk_rope_head_dim},
                   .heads = c->attn.n_kv_heads,
                   .dim = c->attn.v_head_dim,
                   .format = format,
                   .act = p->act},
        .gqa.attn = {.q = own->gqa.q,
                     .out = own->gqa.o,
                     .tokens = p->tokens,
                     .heads = c->attn.n_heads,
                     .kv_heads = c->attn.n_kv_heads,
                     .dim = c->attn.v_head_dim,
                     .scale = c->attn.softmax_scale,
                     .format = format,
                     .act = p->act},
        .index = {.heads = c->index.n_heads,
                  .dim = c->index.head_dim,
                  .topk = c->index.topk,
                  .format = p->m->opts.index_format},
    };
    if (call.has_indexer)
        fill_index(p, &call);
    if (sl_pass_is_late(p))
        call.queries = make_queries, call.queries_ctx = p;
    return p->f->seam.attend(p->f->seam.ctx, &call, p->err);
}

sl_status sl_m3_ask_attend(void *backend, const sl_attn_call *call, sl_err *err)
{
    sl_index_append_params key = call->index.key;
    sl_block_scores_params scores = {.seqs = call->seqs,
                                     .token_count = 1,
                                     .heads = call->index.heads,
                                     .dim = call->index.dim,
                                     .block_tokens = SL_PAGE_TOKENS,
                                     .ld_scores = SL_PAGE_TOKENS};
    SL_TRY(sl_gqa_ask_attend(backend, call, err));
    if (!call->has_indexer)
        return SL_OK;
    key.seqs = call->seqs;
    key.index_page_stride = sl_index_block_bytes(call->index.format, call->index.dim);
    SL_TRY(sl_be_supports(backend, SL_OP_INDEX_APPEND, &key, err));
    return sl_be_supports(backend, SL_OP_BLOCK_SCORES, &scores, err);
}

const sl_layer_step sl_m3_steps[SL_M3_N_STEPS] = {
    {"input norm", NULL, sl_step_input_norm},
    {"queries, keys and values", NULL, step_projections},
    {"index", sl_m3_in_sparse, step_index},
    {"attend", NULL, step_attend},
    {"output", NULL, sl_gqa_step_output},
    {"post norm", NULL, sl_step_post_norm},
    {"dense", sl_in_dense, sl_step_mlp},
    {"experts", sl_in_moe, sl_step_experts},
    {"shared experts", sl_in_shared, sl_step_shared},
};
