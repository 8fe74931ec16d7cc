/*
 * The buffers of Qwen 4 and the steps of its layers. Each block reads one row, which gates make of the normalised streams, in ws->h,
 * and leaves its result in ws->delta; the result goes to every stream by a gate of its own. After the last layer gates make one row
 * of the streams, which the head reads as it is.
 */
#include "kernels/delta.h"
#include "kernels/ngram.h"
#include "kernels/streams.h"
#include "model/families/qwen4_exp/qwen4.h"
#include "model/steps.h"

static void carve_ngram(const sl_model_config *c, int64_t t, size_t act, sl_carve *k, sl_qwen4_workspace *w)
{
    if (!c->ngram.order)
        return;
    w->ngram = sl_carve_take(k, t, sl_qwen4_dim_ngram(c), act);
    w->ngram_value = sl_carve_take(k, t, c->hidden_size, sizeof(float));
    w->ngram_out = sl_carve_take(k, t, sl_qwen4_dim_all(c), sizeof(float));
    w->ngram_normed = sl_carve_take(k, t, sl_qwen4_dim_all(c), sizeof(float));
}

void sl_qwen4_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_qwen4_workspace *w = own;
    const int64_t t = o->max_tokens, all = sl_qwen4_dim_all(c), heads = c->linear.value_heads;
    const size_t act = sl_dtype_size(o->act), f = sizeof(float);
    w->streams = sl_carve_take(k, t, all, act);
    w->normed = sl_carve_take(k, t, all, act);
    w->low = sl_carve_take(k, t, c->streams.rank, f);
    w->low_act = sl_carve_take(k, t, c->streams.rank, act);
    w->up = sl_carve_take(k, t, all, f);
    w->inject = sl_carve_take(k, t, c->streams.count, f);
    w->post = sl_carve_take(k, t, c->streams.count, f);
    w->qkv = sl_carve_take(k, t, sl_qwen4_dim_channels(c), f);
    w->mixed = sl_carve_take(k, t, sl_qwen4_dim_channels(c), f);
    w->z = sl_carve_take(k, t, sl_qwen4_dim_values(c), f);
    w->core = sl_carve_take(k, t, sl_qwen4_dim_values(c), f);
    w->a = sl_carve_take(k, t, heads, f);
    w->b = sl_carve_take(k, t, heads, f);
    w->core_act = sl_carve_take(k, t, sl_qwen4_dim_values(c), act);
    w->q = sl_carve_take(k, t, sl_qwen4_dim_q(c), f);
    w->k = sl_carve_take(k, t, sl_qwen4_dim_kv(c), f);
    w->v = sl_carve_take(k, t, sl_qwen4_dim_kv(c), f);
    w->gate = sl_carve_take(k, t, sl_qwen4_dim_q(c), act);
    w->o = sl_carve_take(k, t, sl_qwen4_dim_q(c), act);
    w->index_q = sl_carve_take(k, t, sl_qwen4_dim_index_q(c), f);
    w->index_k = sl_carve_take(k, t, c->index.head_dim, f);
    w->shared_gate = sl_carve_take(k, t, 1, f);
    carve_ngram(c, t, act, k, w);
}

/* ---- gated residual ---- */

static sl_status norm_streams(sl_pass *p, const sl_weight *gain)
{
    const sl_qwen4_workspace *own = p->ws->own;
    sl_rmsnorm_params a = {.x = own->streams,
                           .weight = gain->data,
                           .out = own->normed,
                           .tokens = p->tokens * p->c->streams.count,
                           .dim = p->c->hidden_size,
                           .ld_x = p->c->hidden_size,
                           .eps = p->c->rms_eps,
                           .act = p->act,
                           .weight_dtype = SL_F32,
                           .groups = p->c->streams.count};
    return sl_pass_run(p, SL_OP_RMSNORM, &a);
}

/* The row `out` from the streams; w: norm, down, up and, unless it is the end of the model, inject. */
static sl_status mix(sl_pass *p, const sl_weight *w, bool end, void *out)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const int32_t count = p->c->streams.count;
    sl_unary_params silu = {.x = own->low,
                            .out = own->low_act,
                            .tokens = p->tokens,
                            .dim = p->c->streams.rank,
                            .scale = 1 / (float)count,
                            .form = SL_UNARY_SILU,
                            .out_dtype = p->act};
    sl_streams_mix_params a = {.normed = own->normed,
                               .up = own->up,
                               .inject = end ? NULL : own->inject,
                               .out = out,
                               .post = end ? NULL : own->post,
                               .tokens = p->tokens,
                               .dim = p->c->hidden_size,
                               .count = count,
                               .act = p->act};
    SL_TRY(norm_streams(p, &w[0]));
    SL_TRY(sl_pass_linear_as(p, own->normed, w[1].in, &w[1], own->low, w[1].out, SL_F32));
    SL_TRY(sl_pass_run(p, SL_OP_UNARY, &silu));
    SL_TRY(sl_pass_linear_as(p, own->low_act, w[2].in, &w[2], own->up, w[2].out, SL_F32));
    if (!end)
        SL_TRY(sl_pass_linear_as(p, own->normed, w[3].in, &w[3], own->inject, w[3].out, SL_F32));
    return sl_pass_run(p, SL_OP_STREAMS_MIX, &a);
}

static sl_status add(sl_pass *p, const void *y, const float *post)
{
    const sl_qwen4_workspace *own = p->ws->own;
    return sl_pass_streams_add(p, own->streams, y, post, NULL);
}

static sl_status step_begin(sl_pass *p)
{
    return add(p, p->ws->x, NULL);
}

static sl_status step_attn_row(sl_pass *p)
{
    return mix(p, &p->lw->w[SL_QWEN4_ATTN_NORM], false, p->ws->h);
}

static sl_status step_mlp_row(sl_pass *p)
{
    return mix(p, &p->lw->w[SL_QWEN4_MLP_NORM], false, p->ws->h);
}

static sl_status step_add(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    return add(p, p->ws->delta, own->post);
}

static sl_status step_end(sl_pass *p)
{
    return mix(p, &p->m->weights.w[SL_QWEN4_MIX_NORM], true, p->ws->x);
}

/* ---- Gated DeltaNet ---- */

static sl_status project(sl_pass *p)
{
    const sl_weight *w = p->lw->w;
    const sl_qwen4_workspace *own = p->ws->own;
    const struct {
        int slot;
        float *out;
    } all[] = {{SL_QWEN4_B, own->b}, {SL_QWEN4_A, own->a}, {SL_QWEN4_Z, own->z}, {SL_QWEN4_QKV, own->qkv}};
    sl_linear_params a[SL_COUNT(all)];
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        const sl_weight *one = &w[all[i].slot];
        a[i] = sl_pass_linear_params(p, p->ws->h, one->in, one, all[i].out, one->out, SL_F32);
        a[i].next = i > 0 ? &a[i - 1] : NULL;
    }
    return sl_pass_run(p, SL_OP_LINEAR, &a[SL_COUNT(all) - 1]);
}

static sl_status convolve(sl_pass *p, const sl_layer_memory *m)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const int32_t channels = (int32_t)sl_qwen4_dim_channels(p->c);
    sl_conv_params a = {.x = own->qkv,
                        .w = p->lw->w[SL_QWEN4_CONV].data,
                        .out = own->mixed,
                        .seqs = p->f->seqs,
                        .state = sl_layer_part(m, SL_QWEN4_PART_CONV),
                        .state_stride = m->state_stride,
                        .channels = channels,
                        .taps = p->c->linear.taps,
                        .dilation = 1,
                        .ld_x = channels,
                        .out_dtype = SL_F32};
    return sl_pass_run(p, SL_OP_CONV, &a);
}

static sl_status recur(sl_pass *p, const sl_layer_memory *m)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_linear_config *l = &p->c->linear;
    const int32_t keys = l->key_heads * l->key_dim, ld = (int32_t)sl_qwen4_dim_channels(p->c);
    sl_delta_params a = {.q = own->mixed,
                         .k = own->mixed + keys,
                         .v = own->mixed + 2 * (int64_t)keys,
                         .gate = own->a,
                         .beta = own->b,
                         .a_log = p->lw->w[SL_QWEN4_A_LOG].data,
                         .dt_bias = p->lw->w[SL_QWEN4_DT_BIAS].data,
                         .out = own->core,
                         .seqs = p->f->seqs,
                         .state = sl_layer_part(m, SL_QWEN4_PART_DELTA),
                         .state_stride = m->state_stride,
                         .key_heads = l->key_heads,
                         .value_heads = l->value_heads,
                         .key_dim = l->key_dim,
                         .value_dim = l->value_dim,
                         .ld_q = ld,
                         .ld_k = ld,
                         .ld_v = ld};
    return sl_pass_run(p, SL_OP_DELTA, &a);
}

static sl_status step_linear(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_linear_config *l = &p->c->linear;
    sl_layer_memory m;
    sl_gated_norm_params norm = {.x = own->core,
                                 .gate = own->z,
                                 .weight = p->lw->w[SL_QWEN4_OUT_NORM].data,
                                 .out = own->core_act,
                                 .tokens = p->tokens,
                                 .heads = l->value_heads,
                                 .dim = l->value_dim,
                                 .eps = p->c->rms_eps,
                                 .form = l->silu_gate ? SL_GATE_SILU : SL_GATE_SIGMOID,
                                 .act = p->act};
    SL_TRY(sl_pass_memory(p, &m));
    SL_TRY(project(p));
    SL_TRY(convolve(p, &m));
    SL_TRY(recur(p, &m));
    SL_TRY(sl_pass_run(p, SL_OP_GATED_NORM, &norm));
    return sl_pass_linear(p, own->core_act, &p->lw->w[SL_QWEN4_OUT], p->ws->delta);
}

/* ---- n-grams ---- */

static sl_status embed_ngrams(sl_pass *p, const sl_layer_memory *m)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_ngram_config *n = &p->c->ngram;
    const sl_weight *w = p->lw->w;
    const sl_host_table *t = &p->lw->table;
    sl_ngram_params a = {.ids = p->f->ids,
                         .multipliers = w[SL_QWEN4_NGRAM_MULTIPLIERS].data,
                         .sizes = w[SL_QWEN4_NGRAM_SIZES].data,
                         .offsets = w[SL_QWEN4_NGRAM_OFFSETS].data,
                         .shards = (const void *const *)t->shards,
                         .shard_rows = t->shard_rows,
                         .out = own->ngram,
                         .seqs = p->f->seqs,
                         .state = sl_layer_part(m, SL_QWEN4_PART_TOKENS),
                         .state_stride = m->state_stride,
                         .order = n->order,
                         .heads = n->heads,
                         .dim = n->dim,
                         .eos = n->eos,
                         .n_shards = t->n_shards,
                         .table_dtype = t->dtype,
                         .act = p->act};
    return sl_pass_run(p, SL_OP_NGRAM, &a);
}

static sl_status mix_ngrams(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_weight *w = p->lw->w;
    sl_ngram_mix_params a = {.key = own->up,
                             .value = own->ngram_value,
                             .streams = own->streams,
                             .key_gain = w[SL_QWEN4_NGRAM_KEY_NORM].data,
                             .stream_gain = w[SL_QWEN4_NGRAM_QUERY_NORM].data,
                             .out_gain = w[SL_QWEN4_NGRAM_OUT_NORM].data,
                             .out = own->ngram_out,
                             .normed = own->ngram_normed,
                             .tokens = p->tokens,
                             .dim = p->c->hidden_size,
                             .count = p->c->streams.count,
                             .eps = p->c->rms_eps,
                             .act = p->act};
    const sl_weight *key = &w[SL_QWEN4_NGRAM_KEY], *value = &w[SL_QWEN4_NGRAM_VALUE];
    sl_linear_params v =
        sl_pass_linear_params(p, own->ngram, value->in, value, own->ngram_value, value->out, SL_F32);
    sl_linear_params k = sl_pass_linear_params(p, own->ngram, key->in, key, own->up, key->out, SL_F32);
    k.next = &v;
    SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &k));
    return sl_pass_run(p, SL_OP_NGRAM_MIX, &a);
}

static sl_status step_ngrams(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const int32_t all = (int32_t)sl_qwen4_dim_all(p->c);
    sl_layer_memory m;
    SL_TRY(sl_pass_memory(p, &m));
    SL_TRY(embed_ngrams(p, &m));
    SL_TRY(mix_ngrams(p));
    sl_conv_params conv = {.x = own->ngram_normed,
                           .w = p->lw->w[SL_QWEN4_NGRAM_CONV].data,
                           .add = own->ngram_out,
                           .out = own->normed,
                           .seqs = p->f->seqs,
                           .state = sl_layer_part(&m, SL_QWEN4_PART_NGRAM_CONV),
                           .state_stride = m.state_stride,
                           .channels = all,
                           .taps = p->c->ngram.taps,
                           .dilation = p->c->ngram.order,
                           .ld_x = all,
                           .out_dtype = p->act};
    sl_add_params sum = {.x = own->streams, .y = own->normed, .tokens = p->tokens, .dim = all, .act = p->act};
    SL_TRY(sl_pass_run(p, SL_OP_CONV, &conv));
    return sl_pass_run(p, SL_OP_ADD, &sum);
}

/* ---- the shared expert ---- */

/* delta += sigmoid(gate . h) * the shared expert of h. */
static sl_status step_shared(sl_pass *p)
{
    const sl_qwen4_workspace *own = p->ws->own;
    const sl_weight *w = &p->lw->w[SL_QWEN4_SHARED_GATE];
    sl_unary_params gate = {.x = own->shared_gate,
                            .out = own->shared_gate,
                            .tokens = p->tokens,
                            .dim = 1,
                            .scale = 1,
                            .form = SL_UNARY_SIGMOID,
                            .out_dtype = SL_F32};
    sl_streams_add_params a = {.streams = p->ws->delta,
                               .y = p->ws->extra,
                               .post = own->shared_gate,
                               .tokens = p->tokens,
                               .dim = p->c->hidden_size,
                               .count = 1,
                               .act = p->act};
    if (p->m->weights.ranks < 2) { /* else sl_pass_group_experts() has computed it */
        SL_TRY(sl_pass_mlp_in(p));
        SL_TRY(sl_pass_mlp_out(p, p->ws->extra));
    }
    SL_TRY(sl_pass_linear_as(p, p->ws->h, w->in, w, own->shared_gate, 1, SL_F32));
    SL_TRY(sl_pass_run(p, SL_OP_UNARY, &gate));
    return sl_pass_run(p, SL_OP_STREAMS_ADD, &a);
}

const sl_layer_step sl_qwen4_steps[SL_QWEN4_N_STEPS] = {
    {"streams", sl_in_first, step_begin},
    {"n-grams", sl_qwen4_in_ngram, step_ngrams},
    {"row for attention", NULL, step_attn_row},
    {"linear attention", sl_qwen4_in_linear, step_linear},
    {"attention", sl_qwen4_in_attention, sl_qwen4_step_attend},
    {"attention to the streams", NULL, step_add},
    {"row for the experts", NULL, step_mlp_row},
    {"experts", NULL, sl_step_experts},
    {"shared expert", NULL, step_shared},
    {"experts to the streams", NULL, step_add},
    {"row for the head", sl_in_last, step_end},
};
