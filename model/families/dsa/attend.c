/* How a layer of the DSA families asks the owner of the cache for its attention (kernels/attn.h). */
#include "kernels/cache.h"
#include "model/families/dsa/dsa.h"
#include "model/steps.h"

/* sl_attn_call.queries */
static sl_status make_queries(void *ctx, sl_err *err)
{
    const sl_pass *p = ctx;
    const sl_dsa_workspace *own = p->ws->own;
    (void)err; /* the ops report to the pass's own */
    SL_TRY(sl_pass_linear(p, own->q_in, &p->lw->w[SL_DSA_Q_B], own->q));
    return sl_dsa_absorb(p);
}

static void fill_index_call(const sl_pass *p, sl_attn_call *call)
{
    const sl_dsa_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    const sl_weight *w = p->lw->w;
    call->index.key = (sl_index_append_params){.k = own->index_k,
                                               .norm_weight = w[SL_DSA_INDEX_NORM].data,
                                               .norm_bias = w[SL_DSA_INDEX_NORM_BIAS].data,
                                               .cos_sin = p->m->cos_sin,
                                               .ld_k = c->index.head_dim,
                                               .dim = c->index.head_dim,
                                               .rope = c->attn.qk_rope_head_dim,
                                               .interleaved = c->index.rope_interleaved,
                                               .eps = c->index.eps,
                                               .format = p->m->opts.index_format,
                                               .act = p->act,
                                               .norm_dtype = w[SL_DSA_INDEX_NORM].dtype};
    call->index.q = own->index_q_out;
    call->index.weights = own->index_weights;
}

void sl_dsa_call(sl_pass *p, sl_attn_call *out)
{
    const sl_dsa_workspace *own = p->ws->own;
    const sl_model_config *c = p->c;
    const sl_weight *kv_norm = &p->lw->w[SL_DSA_KV_A_NORM];
    sl_row_format format = p->m->opts.row_format;
    *out = (sl_attn_call){
        .kind = SL_ATTN_MLA,
        .layer = p->layer,
        .has_indexer = c->layer_has_indexer[p->layer],
        .seqs = p->f->seqs,
        .mla.kv = {.kv = own->kv,
                   .norm = kv_norm->data,
                   .cos_sin = p->m->cos_sin,
                   .ld_kv = c->attn.kv_lora_rank + c->attn.qk_rope_head_dim,
                   .lora = c->attn.kv_lora_rank,
                   .rope = c->attn.qk_rope_head_dim,
                   .eps = c->attn.lora_eps,
                   .format = format,
                   .act = p->act,
                   .norm_dtype = kv_norm->dtype},
        .index = {.heads = c->index.n_heads,
                  .dim = c->index.head_dim,
                  .topk = c->index.topk,
                  .format = p->m->opts.index_format},
        .mla.attn = {.ql = own->ql,
                     .o = own->o,
                     .tokens = p->tokens,
                     .heads = c->attn.n_heads,
                     .lora = c->attn.kv_lora_rank,
                     .rope = c->attn.qk_rope_head_dim,
                     .scale = c->attn.softmax_scale,
                     .sinks = p->lw->w[SL_DSA_SINKS].data,
                     .format = format},
    };
    out->rows_only = p->rows_only;
    if (p->f->draft)
        out->again = p->f->draft->again, out->later = p->f->draft->later;
    if (sl_pass_is_late(p) && !p->rows_only)
        out->queries = make_queries, out->queries_ctx = p;
}

sl_status sl_dsa_step_attend(sl_pass *p)
{
    sl_attn_call call;
    sl_dsa_call(p, &call);
    if (sl_pass_indexes(p))
        fill_index_call(p, &call);
    return p->f->seam.attend(p->f->seam.ctx, &call, p->err);
}

sl_status sl_dsa_ask_attend(void *backend, const sl_attn_call *call, sl_err *err)
{
    sl_backend *be = backend;
    int64_t row = sl_row_bytes(call->mla.kv.format, call->mla.kv.lora, call->mla.kv.rope);
    if (row == 0)
        return sl_fail(err, SL_ERR_INVALID, "row format %s does not store latent rows; mla_* formats do",
                       sl_row_format_name(call->mla.kv.format));
    sl_kv_append_params kv = call->mla.kv;
    sl_index_append_params key = call->index.key;
    sl_sparse_attn_params attn = call->mla.attn;
    sl_index_scores_params scores = {.heads = call->index.heads,
                                     .dim = call->index.dim,
                                     .format = call->index.format,
                                     .token_count = 1,
                                     .ld_scores = SL_PAGE_TOKENS,
                                     .seqs = call->seqs};
    sl_topk_params topk = {.token_count = 1,
                           .k = call->index.topk,
                           .ld_ids = call->index.topk,
                           .ld_scores = SL_PAGE_TOKENS,
                           .seqs = call->seqs};
    kv.seqs = key.seqs = call->seqs;
    key.index_page_stride = sl_index_block_bytes(call->index.format, call->index.dim);
    kv.rows.row_bytes = attn.rows.row_bytes = row;
    attn.k = attn.ld_ids = call->index.topk;
    SL_TRY(sl_be_supports(be, SL_OP_KV_APPEND, &kv, err));
    if (call->has_indexer) {
        SL_TRY(sl_be_supports(be, SL_OP_INDEX_APPEND, &key, err));
        SL_TRY(sl_be_supports(be, SL_OP_INDEX_SCORES, &scores, err));
        SL_TRY(sl_be_supports(be, SL_OP_TOPK, &topk, err));
    }
    return sl_be_supports(be, SL_OP_SPARSE_ATTN, &attn, err);
}
