/*
 * The forward pass: embed, then for every layer a list of steps, then norm and head of the positions that are
 * wanted.
 *
 * A step is a function that enqueues one or a few ops; the list says in which layers it runs. Attention
 * itself is not here: step_attend hands queries, raw rows and raw index keys to the owner of the cache and
 * finds the result in ws.o. The residual is added where it is next normalised, so that x is read and written
 * once per block.
 */
#include "kernels/synth.h"
#include "model/model_impl.h"

typedef struct pass {
    sl_model *m;
    const sl_forward *f;
    const sl_model_config *c;
    sl_workspace *ws;
    const sl_layer_weights *lw;
    sl_dtype act;
    int32_t tokens, layer;
    bool pending; /* ws->delta waits to be added to ws->x */
    bool dry;     /* ask whether the ops are supported instead of running them */
    sl_err *err;
} pass;

static sl_status run(const pass *p, sl_op op, const void *params)
{
    return p->dry ? sl_be_supports(p->m->be, op, params, p->err) : sl_be_run(p->m->be, op, params, p->err);
}

static sl_linear_params layer_of(const pass *p, const void *x, int32_t ld_x, const sl_weight *w, void *out,
                                 int32_t ld_out, sl_dtype out_dtype)
{
    return (sl_linear_params){.x = x,
                              .w = *w,
                              .out = out,
                              .tokens = p->tokens,
                              .ld_x = ld_x,
                              .ld_out = ld_out,
                              .fp8_acts = p->c->fp8_acts && w->dtype == SL_F8_E4M3,
                              .act = p->act,
                              .out_dtype = out_dtype};
}

static sl_status linear_as(const pass *p, const void *x, int32_t ld_x, const sl_weight *w, void *out,
                           int32_t ld_out, sl_dtype out_dtype)
{
    sl_linear_params a = layer_of(p, x, ld_x, w, out, ld_out, out_dtype);
    return run(p, SL_OP_LINEAR, &a);
}

/* A layer whose output lies dense, and the chain behind it (same x). */
static sl_linear_params dense(const pass *p, const void *x, const sl_weight *w, void *out,
                              const sl_linear_params *next)
{
    sl_linear_params a = layer_of(p, x, w->in, w, out, w->out, p->act);
    a.next = next;
    return a;
}

static sl_status linear(const pass *p, const void *x, const sl_weight *w, void *out)
{
    return linear_as(p, x, w->in, w, out, w->out, p->act);
}

static sl_status norm(const pass *p, void *x, const void *add, const sl_weight *w, float eps, int32_t tokens,
                      void *out)
{
    sl_rmsnorm_params a = {.x = x,
                           .add = add,
                           .weight = w->data,
                           .out = out,
                           .tokens = tokens,
                           .dim = w->out,
                           .ld_x = w->out,
                           .eps = eps,
                           .act = p->act,
                           .weight_dtype = w->dtype};
    return run(p, SL_OP_RMSNORM, &a);
}

/* x += delta when one is pending; h = rmsnorm(x). */
static sl_status norm_residual(pass *p, const sl_weight *w)
{
    const void *add = p->pending ? p->ws->delta : NULL;
    p->pending = false;
    return norm(p, p->ws->x, add, w, p->c->rms_eps, p->tokens, p->ws->h);
}

static sl_status step_input_norm(pass *p)
{
    return norm_residual(p, &p->lw->w[SL_T_INPUT_NORM]);
}

/* The queries as attention wants them. */
static sl_status absorb(const pass *p)
{
    const sl_model_config *c = p->c;
    sl_q_absorb_params a = {.q = p->ws->q,
                            .kv_b = p->lw->w[SL_T_KV_B],
                            .pos = p->f->seqs->token_pos,
                            .cos_sin = p->m->cos_sin,
                            .ql = p->ws->ql,
                            .tokens = p->tokens,
                            .heads = c->n_heads,
                            .nope = c->qk_nope_head_dim,
                            .rope = c->qk_rope_head_dim,
                            .v = c->v_head_dim,
                            .lora = c->kv_lora_rank,
                            .act = p->act};
    return run(p, SL_OP_Q_ABSORB, &a);
}

/* sl_attn_call.queries */
static sl_status late_queries(void *ctx, sl_err *err)
{
    const pass *p = ctx;
    sl_status rc = linear(p, p->ws->q_r, &p->lw->w[SL_T_Q_B], p->ws->q);
    (void)err; /* is the pass's own */
    return rc == SL_OK ? absorb(p) : rc;
}

static bool is_late(const pass *p)
{
    return p->f->late_queries && p->c->layer_has_indexer[p->layer];
}

/* Everything that is made from h or from the normalised low-rank query by an fp8 or bf16 layer, in two
 * chains. */
static sl_status step_queries(pass *p)
{
    const sl_model_config *c = p->c;
    sl_workspace *ws = p->ws;
    const sl_weight *w = p->lw->w;
    bool index = c->layer_has_indexer[p->layer];
    sl_linear_params k = dense(p, ws->h, &w[SL_T_INDEX_K], ws->index_k, NULL),
                     kv = dense(p, ws->h, &w[SL_T_KV_A], ws->kv, index ? &k : NULL),
                     q_a = dense(p, ws->h, &w[SL_T_Q_A], ws->q_a, &kv),
                     iq = dense(p, ws->q_r, &w[SL_T_INDEX_Q], ws->index_q, NULL),
                     q_b = dense(p, ws->q_r, &w[SL_T_Q_B], ws->q, index ? &iq : NULL);
    sl_status rc = run(p, SL_OP_LINEAR, &q_a);
    if (rc == SL_OK)
        rc = norm(p, ws->q_a, NULL, &w[SL_T_Q_A_NORM], c->lora_eps, p->tokens, ws->q_r);
    if (rc == SL_OK && is_late(p))
        return run(p, SL_OP_LINEAR, &iq);
    if (rc == SL_OK)
        rc = run(p, SL_OP_LINEAR, &q_b);
    return rc == SL_OK ? absorb(p) : rc;
}

static sl_status step_index(pass *p)
{
    const sl_model_config *c = p->c;
    sl_workspace *ws = p->ws;
    const sl_weight *w = p->lw->w;
    sl_status rc =
        linear_as(p, ws->h, c->hidden_size, &w[SL_T_INDEX_WEIGHTS], ws->index_proj, c->index_n_heads, SL_F32);
    if (rc != SL_OK)
        return rc;
    sl_index_query_params a = {.q = ws->index_q,
                               .wproj = ws->index_proj,
                               .pos = p->f->seqs->token_pos,
                               .cos_sin = p->m->cos_sin,
                               .q_out = ws->index_q_out,
                               .weights = ws->index_weights,
                               .tokens = p->tokens,
                               .heads = c->index_n_heads,
                               .dim = c->index_head_dim,
                               .rope = c->qk_rope_head_dim,
                               .interleaved = c->index_rope_interleaved,
                               .format = p->m->opts.index_format,
                               .act = p->act};
    return run(p, SL_OP_INDEX_QUERY, &a);
}

static void fill_index_call(const pass *p, sl_attn_call *call)
{
    const sl_model_config *c = p->c;
    const sl_weight *w = p->lw->w;
    call->index_k = (sl_index_append_params){.k = p->ws->index_k,
                                             .norm_weight = w[SL_T_INDEX_NORM].data,
                                             .norm_bias = w[SL_T_INDEX_NORM_BIAS].data,
                                             .cos_sin = p->m->cos_sin,
                                             .ld_k = c->index_head_dim,
                                             .dim = c->index_head_dim,
                                             .rope = c->qk_rope_head_dim,
                                             .interleaved = c->index_rope_interleaved,
                                             .eps = c->index_eps,
                                             .format = p->m->opts.index_format,
                                             .act = p->act,
                                             .norm_dtype = w[SL_T_INDEX_NORM].dtype};
    call->index_q = p->ws->index_q_out;
    call->index_weights = p->ws->index_weights;
}

static sl_status step_attend(pass *p)
{
    const sl_model_config *c = p->c;
    const sl_weight *kv_norm = &p->lw->w[SL_T_KV_A_NORM];
    sl_row_format format = p->m->opts.row_format;
    sl_attn_call call = {
        .layer = p->layer,
        .has_indexer = c->layer_has_indexer[p->layer],
        .seqs = p->f->seqs,
        .kv = {.kv = p->ws->kv,
               .norm = kv_norm->data,
               .cos_sin = p->m->cos_sin,
               .ld_kv = c->kv_lora_rank + c->qk_rope_head_dim,
               .lora = c->kv_lora_rank,
               .rope = c->qk_rope_head_dim,
               .eps = c->lora_eps,
               .format = format,
               .act = p->act,
               .norm_dtype = kv_norm->dtype},
        .index_heads = c->index_n_heads,
        .index_dim = c->index_head_dim,
        .index_topk = c->index_topk,
        .index_format = p->m->opts.index_format,
        .attn = {.ql = p->ws->ql,
                 .o = p->ws->o,
                 .tokens = p->tokens,
                 .heads = c->n_heads,
                 .lora = c->kv_lora_rank,
                 .rope = c->qk_rope_head_dim,
                 .scale = c->softmax_scale,
                 .format = format},
    };
    if (call.has_indexer)
        fill_index_call(p, &call);
    if (is_late(p))
        call.queries = late_queries, call.queries_ctx = p;
    return p->f->attend(p->f->attend_ctx, &call, p->err);
}

static sl_status step_output(pass *p)
{
    const sl_model_config *c = p->c;
    sl_v_up_params a = {.o = p->ws->o,
                        .kv_b = p->lw->w[SL_T_KV_B],
                        .out = p->ws->attn,
                        .tokens = p->tokens,
                        .heads = c->n_heads,
                        .nope = c->qk_nope_head_dim,
                        .v = c->v_head_dim,
                        .lora = c->kv_lora_rank,
                        .act = p->act};
    sl_status rc = run(p, SL_OP_V_UP, &a);
    if (rc == SL_OK)
        rc = linear(p, p->ws->attn, &p->lw->w[SL_T_O], p->ws->delta);
    p->pending = true;
    return rc;
}

static sl_status step_post_norm(pass *p)
{
    return norm_residual(p, &p->lw->w[SL_T_POST_NORM]);
}

/* A gated MLP from h: the dense block, or the shared experts. */
static sl_status mlp(pass *p, void *out)
{
    const sl_weight *w = p->lw->w;
    int32_t dim = w[SL_T_GATE].out;
    char *gate = p->ws->gate_up, *up = gate + (size_t)dim * sl_dtype_size(p->act);
    sl_linear_params u = layer_of(p, p->ws->h, w[SL_T_UP].in, &w[SL_T_UP], up, 2 * dim, p->act),
                     g = layer_of(p, p->ws->h, w[SL_T_GATE].in, &w[SL_T_GATE], gate, 2 * dim, p->act);
    g.next = &u;
    sl_status rc = run(p, SL_OP_LINEAR, &g);
    sl_silu_mul_params a = {.gate = gate,
                            .up = up,
                            .out = p->ws->inter,
                            .tokens = p->tokens,
                            .dim = dim,
                            .ld_in = 2 * dim,
                            .ld_out = dim,
                            .act = p->act};
    if (rc == SL_OK)
        rc = run(p, SL_OP_SILU_MUL, &a);
    return rc == SL_OK ? linear(p, p->ws->inter, &w[SL_T_DOWN], out) : rc;
}

static sl_status step_dense(pass *p)
{
    p->pending = true;
    return mlp(p, p->ws->delta);
}

/* One rank of a made-up model (model/synthetic.h): as many choices, all among the experts that are here. */
static sl_status choose_local(const pass *p, sl_moe_params *a)
{
    sl_draw_params d = {.ids = p->ws->expert_ids,
                        .seqs = p->f->seqs,
                        .k = a->top_k,
                        .ld_ids = a->top_k,
                        .span = p->m->local_experts,
                        .layer = p->layer};
    a->experts = p->m->local_experts;
    return run(p, SL_OP_DRAW, &d);
}

static sl_status step_experts(pass *p)
{
    const sl_model_config *c = p->c;
    sl_workspace *ws = p->ws;
    const sl_layer_weights *lw = p->lw;
    sl_status rc =
        linear_as(p, ws->h, c->hidden_size, &lw->w[SL_T_ROUTER], ws->router, c->n_routed_experts, SL_F32);
    sl_moe_route_params r = {.logits = ws->router,
                             .bias = lw->w[SL_T_ROUTER_BIAS].data,
                             .experts_out = ws->expert_ids,
                             .weights_out = ws->expert_weights,
                             .tokens = p->tokens,
                             .experts = c->n_routed_experts,
                             .groups = c->n_group,
                             .top_groups = c->topk_group,
                             .top_k = c->num_experts_per_tok,
                             .normalise = c->norm_topk_prob,
                             .scale = c->routed_scaling_factor};
    if (rc == SL_OK)
        rc = run(p, SL_OP_MOE_ROUTE, &r);
    sl_moe_params a = {.x = ws->h,
                       .expert_ids = ws->expert_ids,
                       .weights = ws->expert_weights,
                       .gate = lw->gate,
                       .up = lw->up,
                       .down = lw->down,
                       .out = ws->delta,
                       .workspace = ws->moe,
                       .workspace_bytes = ws->moe_bytes,
                       .tokens = p->tokens,
                       .hidden = c->hidden_size,
                       .inter = c->moe_intermediate_size,
                       .experts = c->n_routed_experts,
                       .top_k = c->num_experts_per_tok,
                       .fp8_acts = c->fp8_acts && lw->gate[0].dtype == SL_F8_E4M3,
                       .act = p->act};
    p->pending = true;
    if (rc == SL_OK && p->m->local_experts > 0 && p->m->local_experts < c->n_routed_experts)
        rc = choose_local(p, &a);
    return rc == SL_OK ? run(p, SL_OP_MOE, &a) : rc;
}

static sl_status step_shared(pass *p)
{
    sl_status rc = mlp(p, p->ws->extra);
    sl_add_params a = {
        .x = p->ws->delta, .y = p->ws->extra, .tokens = p->tokens, .dim = p->c->hidden_size, .act = p->act};
    return rc == SL_OK ? run(p, SL_OP_ADD, &a) : rc;
}

static const struct {
    const char *name;
    sl_when when;
    sl_status (*run)(pass *p);
} layer_steps[] = {
    {"input norm", SL_IN_ALWAYS, step_input_norm},
    {"queries, latents and index keys", SL_IN_ALWAYS, step_queries},
    {"index", SL_IN_INDEXER, step_index},
    {"attend", SL_IN_ALWAYS, step_attend},
    {"output", SL_IN_ALWAYS, step_output},
    {"post norm", SL_IN_ALWAYS, step_post_norm},
    {"dense", SL_IN_DENSE, step_dense},
    {"experts", SL_IN_MOE, step_experts},
    {"shared experts", SL_IN_SHARED, step_shared},
};

static sl_status embed(pass *p)
{
    const sl_weight *w = &p->m->weights.w[SL_T_EMBED];
    sl_embed_params a = {.ids = p->f->ids,
                         .table = w->data,
                         .out = p->ws->x,
                         .tokens = p->tokens,
                         .dim = w->in,
                         .vocab = w->out,
                         .table_dtype = w->dtype,
                         .act = p->act};
    return run(p, SL_OP_EMBED, &a);
}

static sl_status head(pass *p)
{
    const sl_model_config *c = p->c;
    sl_workspace *ws = p->ws;
    const sl_weight *w = &p->m->weights.w[SL_T_HEAD];
    sl_add_params add = {
        .x = ws->x, .y = ws->delta, .tokens = p->tokens, .dim = c->hidden_size, .act = p->act};
    sl_pick_params pick = {.x = ws->x,
                           .rows = p->f->logit_rows,
                           .out = ws->picked,
                           .n = p->f->n_logits,
                           .dim = c->hidden_size,
                           .act = p->act};
    sl_status rc = run(p, SL_OP_ADD, &add);
    if (rc == SL_OK)
        rc = run(p, SL_OP_PICK, &pick);
    if (rc == SL_OK)
        rc = norm(p, ws->picked, NULL, &p->m->weights.w[SL_T_NORM], c->rms_eps, p->f->n_logits,
                  ws->picked_norm);
    p->tokens = p->f->n_logits;
    if (rc == SL_OK)
        rc = linear_as(p, ws->picked_norm, w->in, w, p->f->logits, w->out, SL_F32);
    return rc;
}

static sl_status run_layer(pass *p)
{
    p->lw = &p->m->weights.layers[p->layer];
    for (size_t i = 0; i < SL_COUNT(layer_steps); i++) {
        if (!sl_when_holds(layer_steps[i].when, p->c, p->layer))
            continue;
        sl_status rc = layer_steps[i].run(p);
        if (rc != SL_OK)
            return sl_fail_in(p->err, rc, "layer %d, %s", p->layer, layer_steps[i].name);
    }
    return SL_OK;
}

static sl_status run_pass(pass *p)
{
    sl_status rc = embed(p);
    for (p->layer = 0; rc == SL_OK && p->layer < p->c->n_layers; p->layer++)
        rc = run_layer(p);
    return rc == SL_OK && p->f->n_logits > 0 ? head(p) : rc;
}

sl_status sl_model_forward(sl_model *m, const sl_forward *f, sl_err *err)
{
    if (!f->seqs || f->seqs->n_tokens < 0 || f->seqs->n_tokens > m->opts.max_tokens)
        return sl_fail(err, SL_ERR_INVALID, "forward: %d tokens, the model was loaded for %d",
                       f->seqs ? f->seqs->n_tokens : -1, m->opts.max_tokens);
    if (f->n_logits < 0 || f->n_logits > m->opts.max_logit_rows)
        return sl_fail(err, SL_ERR_INVALID, "forward: %d logit rows, the model was loaded for %d",
                       f->n_logits, m->opts.max_logit_rows);
    if (f->seqs->n_tokens == 0)
        return SL_OK;
    pass p = {.m = m,
              .f = f,
              .c = &m->config,
              .ws = &m->ws,
              .act = m->opts.act,
              .tokens = f->seqs->n_tokens,
              .err = err};
    return run_pass(&p);
}

/* What any owner of the cache will run, as far as the model knows it. */
static sl_status ask_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_backend *be = ctx;
    int64_t row = sl_row_bytes(call->kv.format, call->kv.lora, call->kv.rope);
    sl_kv_append_params kv = call->kv;
    sl_index_append_params key = call->index_k;
    sl_sparse_attn_params attn = call->attn;
    sl_index_scores_params scores = {.heads = call->index_heads,
                                     .dim = call->index_dim,
                                     .format = call->index_format,
                                     .token_count = 1,
                                     .ld_scores = SL_PAGE_TOKENS,
                                     .seqs = call->seqs};
    sl_topk_params topk = {.token_count = 1,
                           .k = call->index_topk,
                           .ld_ids = call->index_topk,
                           .ld_scores = SL_PAGE_TOKENS,
                           .seqs = call->seqs};
    kv.seqs = key.seqs = call->seqs;
    key.index_page_stride = sl_index_block_bytes(call->index_format, call->index_dim);
    kv.rows.row_bytes = attn.rows.row_bytes = row;
    attn.k = attn.ld_ids = call->index_topk;
    sl_status rc = sl_be_supports(be, SL_OP_KV_APPEND, &kv, err);
    if (rc == SL_OK && call->has_indexer)
        rc = sl_be_supports(be, SL_OP_INDEX_APPEND, &key, err);
    if (rc == SL_OK && call->has_indexer)
        rc = sl_be_supports(be, SL_OP_INDEX_SCORES, &scores, err);
    if (rc == SL_OK && call->has_indexer)
        rc = sl_be_supports(be, SL_OP_TOPK, &topk, err);
    return rc == SL_OK ? sl_be_supports(be, SL_OP_SPARSE_ATTN, &attn, err) : rc;
}

sl_status sl_model_ask(sl_model *m, sl_err *err)
{
    sl_seq_tables seqs = {.n_tokens = 1, .n_seqs = 1, .ld = 1};
    sl_forward f = {.seqs = &seqs, .n_logits = 1, .attend = ask_attend, .attend_ctx = m->be};
    pass p = {.m = m,
              .f = &f,
              .c = &m->config,
              .ws = &m->ws,
              .act = m->opts.act,
              .tokens = 1,
              .dry = true,
              .err = err};
    return run_pass(&p);
}
