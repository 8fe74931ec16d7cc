/* Steps that families share; see steps.h. */
#include "model/steps.h"

#include "kernels/streams.h"
#include "kernels/synth.h"

sl_status sl_pass_run(const sl_pass *p, sl_op op, const void *params)
{
    return p->dry ? sl_be_supports(p->m->be, op, params, p->err) : sl_be_run(p->m->be, op, params, p->err);
}

sl_linear_params sl_pass_linear_params(const sl_pass *p, const void *x, int32_t ld_x, const sl_weight *w,
                                       void *out, int32_t ld_out, sl_dtype out_dtype)
{
    return (sl_linear_params){.x = x,
                              .w = *w,
                              .out = out,
                              .tokens = p->tokens,
                              .ld_x = ld_x,
                              .ld_out = ld_out,
                              .fp8_acts = p->c->fp8_acts && sl_weight_takes_e4m3(w),
                              .act = p->act,
                              .out_dtype = out_dtype};
}

sl_status sl_pass_linear_as(const sl_pass *p, const void *x, int32_t ld_x, const sl_weight *w, void *out,
                            int32_t ld_out, sl_dtype out_dtype)
{
    sl_linear_params a = sl_pass_linear_params(p, x, ld_x, w, out, ld_out, out_dtype);
    return sl_pass_run(p, SL_OP_LINEAR, &a);
}

sl_linear_params sl_pass_chain_as(const sl_pass *p, const void *x, const sl_weight *w, void *out,
                                  sl_dtype out_dtype, const sl_linear_params *next)
{
    sl_linear_params a = sl_pass_linear_params(p, x, w->in, w, out, w->out, out_dtype);
    a.next = next;
    return a;
}

sl_linear_params sl_pass_chain(const sl_pass *p, const void *x, const sl_weight *w, void *out,
                               const sl_linear_params *next)
{
    return sl_pass_chain_as(p, x, w, out, p->act, next);
}

sl_status sl_pass_linear(const sl_pass *p, const void *x, const sl_weight *w, void *out)
{
    return sl_pass_linear_as(p, x, w->in, w, out, w->out, p->act);
}

sl_status sl_pass_streams_add(sl_pass *p, void *streams, const void *y, const float *post, const float *comb)
{
    sl_streams_add_params a = {.streams = streams,
                               .y = y,
                               .post = post,
                               .comb = comb,
                               .tokens = p->tokens,
                               .dim = p->c->hidden_size,
                               .count = p->c->streams.count,
                               .act = p->act};
    p->pending = false;
    return sl_pass_run(p, SL_OP_STREAMS_ADD, &a);
}

sl_status sl_pass_streams_out(const sl_pass *p, const void *streams, const sl_weight *fn, float *mix,
                              float *post, float *comb)
{
    const sl_model_config *c = p->c;
    sl_streams_out_params a = {.streams = streams,
                               .mix = mix,
                               .base = fn[1].data,
                               .scale = fn[2].data,
                               .out = p->ws->x,
                               .post = post,
                               .comb = comb,
                               .iters = comb ? c->streams.iters : 0,
                               .tokens = p->tokens,
                               .dim = c->hidden_size,
                               .count = c->streams.count,
                               .eps = c->rms_eps,
                               .hc_eps = c->streams.eps,
                               .magnitude = c->streams.magnitude,
                               .act = p->act};
    SL_TRY(sl_pass_linear_as(p, streams, fn->in, fn, mix, fn->out, SL_F32));
    return sl_pass_run(p, SL_OP_STREAMS_OUT, &a);
}

sl_status sl_pass_norm(const sl_pass *p, void *x, const void *add, const sl_weight *w, float eps,
                       int32_t tokens, void *out)
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
    return sl_pass_run(p, SL_OP_RMSNORM, &a);
}

/* x += delta if it is pending; h = rmsnorm(x). */
static sl_status norm_residual(sl_pass *p, const sl_weight *w)
{
    const void *add = p->pending ? p->ws->delta : NULL;
    p->pending = false;
    return sl_pass_norm(p, p->ws->x, add, w, p->c->rms_eps, p->tokens, p->ws->h);
}

sl_status sl_step_input_norm(sl_pass *p)
{
    return norm_residual(p, &p->lw->w[SL_T_INPUT_NORM]);
}

sl_status sl_step_post_norm(sl_pass *p)
{
    return norm_residual(p, &p->lw->w[SL_T_POST_NORM]);
}

/* Values from one row of the buffer of gate and up to the next; up is the second half of a row. */
static int32_t gate_up_ld(const sl_pass *p)
{
    return 2 * sl_workspace_part(p->lw->w[SL_T_GATE].out, p->act);
}

static void *up_of(const sl_pass *p)
{
    return (char *)p->ws->gate_up + (size_t)gate_up_ld(p) / 2 * sl_dtype_size(p->act);
}

sl_status sl_pass_mlp_in(sl_pass *p)
{
    const sl_weight *gate = &p->lw->w[SL_T_GATE], *up = &p->lw->w[SL_T_UP];
    int32_t ld = gate_up_ld(p);
    sl_linear_params u = sl_pass_linear_params(p, p->ws->h, up->in, up, up_of(p), ld, p->act),
                     g = sl_pass_linear_params(p, p->ws->h, gate->in, gate, p->ws->gate_up, ld, p->act);
    g.next = &u;
    return sl_pass_run(p, SL_OP_LINEAR, &g);
}

sl_status sl_pass_mlp_out(sl_pass *p, void *out)
{
    int32_t dim = p->lw->w[SL_T_GATE].out;
    sl_silu_mul_params a = {.gate = p->ws->gate_up,
                            .up = up_of(p),
                            .out = p->ws->inter,
                            .tokens = p->tokens,
                            .dim = dim,
                            .ld_in = gate_up_ld(p),
                            .ld_out = dim,
                            .act = p->act,
                            .glu = p->c->mlp_glu};
    SL_TRY(sl_pass_run(p, SL_OP_SILU_MUL, &a));
    return sl_pass_linear(p, p->ws->inter, &p->lw->w[SL_T_DOWN], out);
}

sl_status sl_step_mlp(sl_pass *p)
{
    p->pending = true;
    SL_TRY(sl_pass_mlp_in(p));
    return sl_pass_mlp_out(p, p->ws->delta);
}

/* A synthetic model (model/synthetic.h): replaces the router's choices by the same number of random choices among its
 * experts, those of one rank of a simulated group or those of all ranks of a real one. */
static sl_status draw_experts(const sl_pass *p)
{
    sl_draw_params d = {.ids = p->ws->expert_ids,
                        .seqs = p->f->seqs,
                        .k = p->c->moe.per_token,
                        .ld_ids = p->c->moe.per_token,
                        .span = p->m->local_experts,
                        .layer = p->layer,
                        .seed = (uint64_t)p->m->weights.rank};
    return sl_pass_run(p, SL_OP_DRAW, &d);
}

sl_status sl_step_experts(sl_pass *p)
{
    const sl_model_config *c = p->c;
    sl_workspace *ws = p->ws;
    const sl_layer_weights *lw = p->lw;
    SL_TRY(sl_pass_linear_as(p, ws->h, c->hidden_size, &lw->w[SL_T_ROUTER], ws->router, c->moe.n_routed,
                             SL_F32));
    sl_moe_route_params r = {.logits = ws->router,
                             .bias = lw->w[SL_T_ROUTER_BIAS].data,
                             .experts_out = ws->expert_ids,
                             .weights_out = ws->expert_weights,
                             .tokens = p->tokens,
                             .experts = c->moe.n_routed,
                             .groups = c->moe.n_group,
                             .top_groups = c->moe.topk_group,
                             .top_k = c->moe.per_token,
                             .normalise = c->moe.norm_topk_prob,
                             .zero_refused = c->moe.refused_groups_zero,
                             .scale = c->moe.scaling_factor,
                             .score = c->moe.score,
                             .table = lw->w[SL_T_ROUTER_TABLE].data,
                             .ids = p->f->ids,
                             .vocab = lw->w[SL_T_ROUTER_TABLE].out};
    SL_TRY(sl_pass_run(p, SL_OP_MOE_ROUTE, &r));
    p->pending = true;
    bool simulated = p->m->local_experts > 0 && p->m->local_experts < c->moe.n_routed;
    if (simulated || p->m->drawn_experts)
        SL_TRY(draw_experts(p));
    if (p->m->weights.ranks > 1)
        return sl_pass_group_experts(p);
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
                       .inter = c->moe.intermediate_size,
                       .experts = simulated ? p->m->local_experts : c->moe.n_routed,
                       .top_k = c->moe.per_token,
                       .fp8_acts = c->fp8_acts,
                       .act = p->act,
                       .glu = c->moe.glu};
    return sl_pass_run(p, SL_OP_MOE, &a);
}

sl_status sl_step_shared(sl_pass *p)
{
    if (p->m->weights.ranks < 2) { /* else sl_pass_group_experts() has computed them */
        SL_TRY(sl_pass_mlp_in(p));
        SL_TRY(sl_pass_mlp_out(p, p->ws->extra));
    }
    sl_add_params a = {
        .x = p->ws->delta, .y = p->ws->extra, .tokens = p->tokens, .dim = p->c->hidden_size, .act = p->act};
    return sl_pass_run(p, SL_OP_ADD, &a);
}

sl_status sl_pass_embed(sl_pass *p)
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
    return sl_pass_run(p, SL_OP_EMBED, &a);
}

sl_status sl_pass_logits(sl_pass *p, const int32_t *rows, int32_t n)
{
    const sl_model_config *c = p->c;
    sl_workspace *ws = p->ws;
    const sl_weight *w = &p->m->weights.w[SL_T_HEAD];
    const int32_t tokens = p->tokens;
    sl_add_params add = {.x = ws->x, .y = ws->delta, .tokens = tokens, .dim = c->hidden_size, .act = p->act};
    sl_pick_params pick = {
        .x = ws->x, .rows = rows, .out = ws->picked, .n = n, .dim = c->hidden_size, .act = p->act};
    if (p->pending)
        SL_TRY(sl_pass_run(p, SL_OP_ADD, &add));
    p->pending = false;
    SL_TRY(sl_pass_run(p, SL_OP_PICK, &pick));
    const sl_weight *norm = &p->m->weights.w[SL_T_NORM]; /* data NULL: the model has none */
    if (norm->data)
        SL_TRY(sl_pass_norm(p, ws->picked, NULL, norm, c->rms_eps, n, ws->picked_norm));
    p->tokens = n; /* of the linear layer */
    sl_status st = sl_pass_linear_as(p, norm->data ? ws->picked_norm : ws->picked, w->in, w, p->f->logits,
                                     w->out, SL_F32);
    p->tokens = tokens;
    return st;
}

sl_status sl_pass_memory(const sl_pass *p, sl_layer_memory *out)
{
    *out = (sl_layer_memory){.state_stride = SL_STATE_BYTES_MAX};
    return p->dry ? SL_OK : p->f->seam.memory(p->f->seam.ctx, p->layer, out, p->err);
}
