/*
 * The streams of DeepSeek-V4, and the steps of its layers. Each block reads one row that is made of the streams, in ws->x; what it
 * leaves in ws->delta goes to every stream by a gate, while the streams are mixed by a matrix that each token makes for itself.
 */
#include "kernels/streams.h"
#include "model/families/deepseek_v4/v4.h"
#include "model/steps.h"

/* ws->x from the streams; of a block also the gates and the matrix of what follows it. */
static sl_status collapse(sl_pass *p, const sl_weight *fn, bool block)
{
    const sl_v4_workspace *own = p->ws->own;
    return sl_pass_streams_out(p, own->streams, fn, own->mix, block ? own->post : NULL,
                               block ? own->comb : NULL);
}

static sl_status add(sl_pass *p, const void *y, bool block)
{
    const sl_v4_workspace *own = p->ws->own;
    return sl_pass_streams_add(p, own->streams, y, block ? own->post : NULL, block ? own->comb : NULL);
}

static sl_status step_begin(sl_pass *p)
{
    return add(p, p->ws->x, false);
}

static sl_status step_attn_row(sl_pass *p)
{
    return collapse(p, &p->lw->w[SL_V4_ATTN_FN], true);
}

static sl_status step_mlp_row(sl_pass *p)
{
    return collapse(p, &p->lw->w[SL_V4_MLP_FN], true);
}

static sl_status step_add(sl_pass *p)
{
    return add(p, p->ws->delta, true);
}

static sl_status step_end(sl_pass *p)
{
    return collapse(p, &p->m->weights.w[SL_V4_HEAD_FN], false);
}

const sl_layer_step sl_v4_steps[SL_V4_N_STEPS] = {
    {"streams", sl_in_first, step_begin},
    {"row for attention", NULL, step_attn_row},
    {"input norm", NULL, sl_step_input_norm},
    {"queries and window rows", NULL, sl_v4_step_queries},
    {"entries", sl_v4_in_entries, sl_v4_step_entries},
    {"index", sl_v4_in_chosen, sl_v4_step_index},
    {"attend", NULL, sl_v4_step_attend},
    {"output", NULL, sl_v4_step_output},
    {"attention to the streams", NULL, step_add},
    {"row for the MLP", NULL, step_mlp_row},
    {"post norm", NULL, sl_step_post_norm},
    {"experts", NULL, sl_step_experts},
    {"shared experts", NULL, sl_step_shared},
    {"MLP to the streams", NULL, step_add},
    {"row for the head", sl_in_last, step_end},
};
