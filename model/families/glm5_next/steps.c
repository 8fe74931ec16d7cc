/*
 * The buffers of GLM-5.3-Flash, its streams, and the steps of its layers. Each block reads one row that is made of the streams, in ws->x;
 * what it leaves in ws->delta goes to every stream by a gate, while the streams are mixed by a matrix that each token makes. After the
 * last layer ws->x is the mean of the streams.
 */
#include "kernels/streams.h"
#include "model/families/glm5_next/glm5.h"
#include "model/steps.h"

static void carve_linear(const sl_model_config *c, int64_t t, size_t act, sl_carve *k, sl_glm5_workspace *w)
{
    const int64_t dim = sl_glm5_dim_linear(c);
    const size_t f = sizeof(float);
    for (int i = 0; i < 3; i++) {
        w->raw[i] = sl_carve_take(k, t, dim, f);
        w->mixed[i] = sl_carve_take(k, t, dim, f);
    }
    w->decay_low = sl_carve_take(k, t, c->linear.key_dim, act);
    w->gate_low = sl_carve_take(k, t, c->linear.key_dim, act);
    w->decay = sl_carve_take(k, t, dim, f);
    w->gate = sl_carve_take(k, t, dim, f);
    w->core = sl_carve_take(k, t, dim, f);
    w->beta = sl_carve_take(k, t, c->linear.value_heads, f);
    w->core_act = sl_carve_take(k, t, dim, act);
}

void sl_glm5_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_glm5_workspace *w = own;
    const int64_t t = o->max_tokens, n = c->streams.count;
    const size_t act = sl_dtype_size(o->act), f = sizeof(float);
    sl_model_opts plain = *o; /* index queries are in float32 */
    plain.index_format = SL_INDEX_PLAIN;
    sl_dsa_carve(c, &plain, k, &w->dsa);
    w->streams = sl_carve_take(k, t, n * c->hidden_size, act);
    w->mix = sl_carve_take(k, t, sl_glm5_dim_gates(c), f);
    w->post = sl_carve_take(k, t, n, f);
    w->comb = sl_carve_take(k, t, n * n, f);
    w->index_raw = sl_carve_take(k, t, c->index.head_dim, f);
    w->index_key = sl_carve_take(k, t, c->index.head_dim, f);
    w->index_gate = sl_carve_take(k, t, c->index.head_dim, f);
    carve_linear(c, t, act, k, w);
}

/* ws->x from the streams, and the gates and the matrix of what follows the block. */
static sl_status collapse(sl_pass *p, const sl_weight *fn)
{
    const sl_glm5_workspace *own = p->ws->own;
    return sl_pass_streams_out(p, own->streams, fn, own->mix, own->post, own->comb);
}

static sl_status step_begin(sl_pass *p)
{
    const sl_glm5_workspace *own = p->ws->own;
    return sl_pass_streams_add(p, own->streams, p->ws->x, NULL, NULL);
}

static sl_status step_attn_row(sl_pass *p)
{
    return collapse(p, &p->lw->w[SL_GLM5_ATTN_FN]);
}

static sl_status step_mlp_row(sl_pass *p)
{
    return collapse(p, &p->lw->w[SL_GLM5_MLP_FN]);
}

static sl_status step_add(sl_pass *p)
{
    const sl_glm5_workspace *own = p->ws->own;
    return sl_pass_streams_add(p, own->streams, p->ws->delta, own->post, own->comb);
}

static sl_status step_end(sl_pass *p)
{
    const sl_glm5_workspace *own = p->ws->own;
    sl_streams_out_params mean = {.streams = own->streams,
                                  .out = p->ws->x,
                                  .tokens = p->tokens,
                                  .dim = p->c->hidden_size,
                                  .count = p->c->streams.count,
                                  .act = p->act};
    return sl_pass_run(p, SL_OP_STREAMS_OUT, &mean);
}

static sl_status step_finish(sl_pass *p)
{
    SL_TRY(sl_dsa_step_values(p));
    return sl_dsa_step_output(p);
}

const sl_layer_step sl_glm5_steps[SL_GLM5_N_STEPS] = {
    {"streams", sl_in_first, step_begin},
    {"row for attention", NULL, step_attn_row},
    {"input norm", NULL, sl_step_input_norm},
    {"linear attention", sl_glm5_in_linear, sl_glm5_step_linear},
    {"queries and latents", sl_glm5_in_attention, sl_glm5_step_queries},
    {"index", sl_dsa_in_indexer, sl_glm5_step_index},
    {"attend", sl_glm5_in_attention, sl_glm5_step_attend},
    {"values and output", sl_glm5_in_attention, step_finish},
    {"attention to the streams", NULL, step_add},
    {"row for the MLP", NULL, step_mlp_row},
    {"post norm", NULL, sl_step_post_norm},
    {"dense", sl_in_dense, sl_step_mlp},
    {"experts", sl_in_moe, sl_step_experts},
    {"shared experts", sl_in_shared, sl_step_shared},
    {"MLP to the streams", NULL, step_add},
    {"row for the head", sl_in_last, step_end},
};
