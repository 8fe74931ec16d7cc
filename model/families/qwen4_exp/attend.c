/* A layer of Qwen 4 with rows of tokens: queries, keys and values by head, and the indexer's queries and raw keys. */
#include <math.h>

#include "kernels/cache.h"
#include "kernels/streams.h"
#include "model/families/qwen4_exp/qwen4.h"
#include "model/steps.h"

static sl_gqa_head_params head_params(const sl_pass *p, int norm)
{
    return (sl_gqa_head_params){.norm = p->lw->w[norm].data,
                                .cos_sin = p->m->cos_sin,
                                .eps = p->c->rms_eps,
                                .rope = p->c->attn.qk_rope_head_dim};
}

static sl_linear_params projection(const sl_pass *p, int slot, void *out, sl_dtype type,
                                   const sl_linear_params *next)
{
    return sl_pass_chain_as(p, p->ws->h, &p->lw->w[slot], out, type, next);
}

static sl_status project(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    sl_linear_params v = projection(p, SL_QWEN4_V, own->v, SL_F32, NULL),
                     k = projection(p, SL_QWEN4_K, own->k, SL_F32, &v),
                     q = projection(p, SL_QWEN4_Q, own->q, SL_F32, &k);
    sl_linear_params key = projection(p, SL_QWEN4_INDEX_K, own->index_k, SL_F32, NULL),
                     query = projection(p, SL_QWEN4_INDEX_Q, own->index_q, SL_F32, &key),
                     gate = projection(p, SL_QWEN4_GATE, own->gate, p->act, &query);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q));
    return sl_pass_run(p, SL_OP_LINEAR, &gate);
}

static sl_status finish_queries(sl_pass *p, float *q, int norm, int32_t heads, int32_t dim)
{
    sl_gqa_query_params a = {.q = q,
                             .head = head_params(p, norm),
                             .pos = p->f->seqs->token_pos,
                             .out = q,
                             .tokens = p->tokens,
                             .heads = heads,
                             .dim = dim,
                             .act = p->act};
    return sl_pass_run(p, SL_OP_GQA_QUERY, &a);
}

static void fill_index(const sl_pass *p, const sl_layer_memory *m, sl_attn_index *x)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    int32_t log2 = 0;
    while (1 << log2 < c->index.unit)
        log2++;
    *x = (sl_attn_index){.q = own->index_q,
                         .heads = c->index.n_heads,
                         .dim = c->index.head_dim,
                         .topk = c->index.topk,
                         .unit = c->index.unit,
                         .scale = (float)(1.0 / sqrt((double)c->index.head_dim)),
                         .pool = {.k = own->index_k,
                                  .norm = p->lw->w[SL_QWEN4_INDEX_K_NORM].data,
                                  .cos_sin = p->m->cos_sin,
                                  .state = m->state,
                                  .state_stride = m->state_stride,
                                  .dim = c->index.head_dim,
                                  .rope = c->attn.qk_rope_head_dim,
                                  .unit_log2 = log2,
                                  .ld = c->index.head_dim,
                                  .eps = c->rms_eps,
                                  .act = p->act}};
}

static sl_status attend(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    const sl_row_format format = p->m->opts.row_format;
    sl_layer_memory m;
    sl_attn_call call = {
        .kind = SL_ATTN_GQA,
        .layer = p->layer,
        .has_indexer = true,
        .seqs = p->f->seqs,
        .gqa.kv = {.k = own->k,
                   .v = own->v,
                   .key = head_params(p, SL_QWEN4_K_NORM),
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
    SL_TRY(sl_pass_memory(p, &m));
    fill_index(p, &m, &call.index);
    return p->f->seam.attend(p->f->seam.ctx, &call, p->err);
}

/* Attention of the row in ws->h, times its gate and through o_proj, to ws->delta. */
sl_status sl_qwen4_step_attend(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    const int32_t dim = (int32_t)sl_qwen4_dim_q(c);
    sl_sigmoid_mul_params gate = {.x = own->o,
                                  .gate = own->gate,
                                  .tokens = p->tokens,
                                  .dim = dim,
                                  .ld_x = dim,
                                  .ld_gate = dim,
                                  .act = p->act};
    SL_TRY(project(p));
    SL_TRY(finish_queries(p, own->q, SL_QWEN4_Q_NORM, c->attn.n_heads, c->attn.v_head_dim));
    SL_TRY(finish_queries(p, own->index_q, SL_QWEN4_INDEX_Q_NORM, c->index.n_heads, c->index.head_dim));
    SL_TRY(attend(p));
    SL_TRY(sl_pass_run(p, SL_OP_SIGMOID_MUL, &gate));
    return sl_pass_linear(p, own->o, &p->lw->w[SL_QWEN4_O], p->ws->delta);
}

sl_status sl_qwen4_ask_attend(void *backend, const sl_attn_call *call, sl_err *err)
{
    sl_gqa_append_params kv = call->gqa.kv;
    sl_gqa_attn_params attn = call->gqa.attn;
    sl_pool_append_params pool = call->index.pool;
    sl_pool_scores_params scores = {.seqs = call->seqs,
                                    .token_count = 1,
                                    .heads = call->index.heads,
                                    .dim = call->index.dim,
                                    .unit_log2 = pool.unit_log2,
                                    .ld_scores = SL_PAGE_TOKENS};
    const int64_t row = sl_gqa_row_bytes(kv.format, kv.heads << pool.unit_log2, kv.dim);
    if (row == 0)
        return sl_fail(err, SL_ERR_INVALID,
                       "row format %s does not store keys and values by head; gqa_* formats do",
                       sl_row_format_name(kv.format));
    kv.seqs = pool.seqs = call->seqs;
    kv.rows.row_bytes = attn.rows.row_bytes = row;
    kv.rows.block_log2 = attn.rows.block_log2 = pool.unit_log2;
    attn.k = attn.ld_ids = call->index.topk >> pool.unit_log2;
    SL_TRY(sl_be_supports(backend, SL_OP_POOL_APPEND, &pool, err));
    SL_TRY(sl_be_supports(backend, SL_OP_POOL_SCORES, &scores, err));
    SL_TRY(sl_be_supports(backend, SL_OP_GQA_APPEND, &kv, err));
    return sl_be_supports(backend, SL_OP_GQA_ATTN, &attn, err);
}
