/* A layer of GLM-5.3-Flash with rows of tokens: the queries and latents of the DSA families, and an indexer with keys of units. */
#include "kernels/cache.h"
#include "kernels/delta.h"
#include "model/families/glm5_next/glm5.h"
#include "model/steps.h"

static const float index_eps = 1e-6f; /* of the norm of index keys, whatever the config says */

static sl_status norm_keys(const sl_pass *p)
{
    const sl_glm5_workspace *own = p->ws->own;
    sl_gated_norm_params a = {.x = own->index_raw,
                              .weight = p->lw->w[SL_DSA_INDEX_NORM].data,
                              .bias = p->lw->w[SL_DSA_INDEX_NORM_BIAS].data,
                              .out = own->index_key,
                              .tokens = p->tokens,
                              .heads = 1,
                              .dim = p->c->index.head_dim,
                              .eps = index_eps,
                              .act = SL_F32};
    return sl_pass_run(p, SL_OP_GATED_NORM, &a);
}

/* What reads the row: the low-rank queries and the latents, and of the indexer the raw keys, their gates and the weights of its
 * heads, which stay in float32. Then the queries of attention and indexer. */
sl_status sl_glm5_step_queries(sl_pass *p)
{
    sl_glm5_workspace *own = p->ws->own;
    const sl_weight *w = p->lw->w;
    const void *h = p->ws->h;
    sl_linear_params kv = sl_pass_chain(p, h, &w[SL_DSA_KV_A], own->dsa.kv, NULL),
                     q_a = sl_pass_chain(p, h, &w[SL_DSA_Q_A], own->dsa.q_a, &kv);
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &q_a));
    SL_TRY(sl_pass_norm(p, own->dsa.q_a, NULL, &w[SL_DSA_Q_A_NORM], p->c->attn.lora_eps, p->tokens,
                        own->dsa.q_r));
    return sl_dsa_step_heads(p);
}

sl_status sl_glm5_step_index(sl_pass *p)
{
    const sl_model_config *c = p->c;
    sl_glm5_workspace *own = p->ws->own;
    const struct {
        int slot;
        float *out;
    } all[] = {{SL_DSA_INDEX_WEIGHTS, own->dsa.index_proj},
               {SL_GLM5_INDEX_GATE, own->index_gate},
               {SL_DSA_INDEX_K, own->index_raw}};
    sl_linear_params a[SL_COUNT(all)];
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        const sl_weight *w = &p->lw->w[all[i].slot];
        a[i] = sl_pass_linear_params(p, p->ws->h, w->in, w, all[i].out, w->out, SL_F32);
        a[i].next = i > 0 ? &a[i - 1] : NULL;
    }
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &a[SL_COUNT(all) - 1]));
    SL_TRY(norm_keys(p));
    sl_index_query_params q = {.q = own->dsa.index_q,
                               .wproj = own->dsa.index_proj,
                               .pos = p->f->seqs->token_pos,
                               .q_out = own->dsa.index_q_out,
                               .weights = own->dsa.index_weights,
                               .tokens = p->tokens,
                               .heads = c->index.n_heads,
                               .dim = c->index.head_dim,
                               .format = SL_INDEX_PLAIN,
                               .act = p->act};
    return sl_pass_run(p, SL_OP_INDEX_QUERY, &q);
}

static void fill_index(const sl_pass *p, const sl_layer_memory *m, sl_attn_index *x)
{
    const sl_glm5_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    int32_t log2 = 0;
    while (1 << log2 < c->index.unit)
        log2++;
    *x = (sl_attn_index){.q = own->dsa.index_q_out,
                         .weights = own->dsa.index_weights,
                         .heads = c->index.n_heads,
                         .dim = c->index.head_dim,
                         .topk = c->index.topk,
                         .unit = c->index.unit,
                         .scale = 1, /* it is in the weights */
                         .pool = {.k = own->index_key,
                                  .gate = own->index_gate,
                                  .ape = p->lw->w[SL_GLM5_INDEX_APE].data,
                                  .state = m->state,
                                  .state_stride = m->state_stride,
                                  .dim = c->index.head_dim,
                                  .unit_log2 = log2,
                                  .ld = c->index.head_dim,
                                  .act = p->act}};
}

sl_status sl_glm5_step_attend(sl_pass *p)
{
    sl_layer_memory m = {0};
    sl_attn_call call;
    sl_dsa_call(p, &call);
    if (call.has_indexer) {
        SL_TRY(sl_pass_memory(p, &m));
        fill_index(p, &m, &call.index);
    }
    return p->f->seam.attend(p->f->seam.ctx, &call, p->err);
}

sl_status sl_glm5_ask_attend(void *backend, const sl_attn_call *call, sl_err *err)
{
    const int64_t row = sl_row_bytes(call->mla.kv.format, call->mla.kv.lora, call->mla.kv.rope);
    sl_kv_append_params kv = call->mla.kv;
    sl_sparse_attn_params attn = call->mla.attn;
    sl_pool_append_params pool = call->index.pool;
    sl_pool_scores_params scores = {.seqs = call->seqs,
                                    .token_count = 1,
                                    .heads = call->index.heads,
                                    .dim = call->index.dim,
                                    .unit_log2 = pool.unit_log2,
                                    .ld_scores = SL_PAGE_TOKENS};
    if (row == 0)
        return sl_fail(err, SL_ERR_INVALID, "row format %s does not store latent rows; mla_* formats do",
                       sl_row_format_name(call->mla.kv.format));
    kv.seqs = pool.seqs = call->seqs;
    kv.rows.row_bytes = attn.rows.row_bytes = row;
    attn.k = attn.ld_ids = call->index.topk;
    SL_TRY(sl_be_supports(backend, SL_OP_KV_APPEND, &kv, err));
    if (call->has_indexer) {
        SL_TRY(sl_be_supports(backend, SL_OP_POOL_APPEND, &pool, err));
        SL_TRY(sl_be_supports(backend, SL_OP_POOL_SCORES, &scores, err));
    }
    return sl_be_supports(backend, SL_OP_SPARSE_ATTN, &attn, err);
}
