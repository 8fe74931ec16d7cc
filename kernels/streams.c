/* What the ops of kernels/streams.h require of their parameters (see kernels/check.h). */
#include "kernels/streams.h"

#include <math.h>

#include "kernels/check.h"

void sl_chk_sigmoid_mul(sl_chk *c, const void *params)
{
    const sl_sigmoid_mul_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_ld(c, "ld_x", p->ld_x, p->dim);
    sl_chk_ld(c, "ld_gate", p->ld_gate, p->dim);
    sl_chk_act(c, "act", p->act);
    sl_chk_values(c, "x", p->x, p->act);
    sl_chk_values(c, "gate", p->gate, p->act);
}

void sl_chk_join(sl_chk *c, const void *params)
{
    const sl_join_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim_a", p->dim_a);
    sl_chk_pos(c, "dim_b", p->dim_b);
    sl_chk_act(c, "act", p->act);
    sl_chk_values(c, "a", p->a, p->act);
    sl_chk_values(c, "b", p->b, p->act);
    sl_chk_values(c, "out", p->out, p->act);
}

static void chk_streams(sl_chk *c, int32_t tokens, int32_t dim, int32_t count, sl_dtype act)
{
    sl_chk_count(c, "tokens", tokens);
    sl_chk_pos(c, "dim", dim);
    sl_chk_need(c, count >= 1 && count <= SL_STREAMS_MAX, "count", "must be within 1..16");
    sl_chk_act(c, "act", act);
    if (c->st == SL_OK)
        sl_chk_size(c, "dim", dim, count);
}

void sl_chk_streams_out(sl_chk *c, const void *params)
{
    const sl_streams_out_params *p = params;

    chk_streams(c, p->tokens, p->dim, p->count, p->act);
    sl_chk_values(c, "streams", p->streams, p->act);
    sl_chk_values(c, "out", p->out, p->act);
    if (!p->mix && !p->base && !p->scale) { /* the mean */
        sl_chk_need(c, !p->post && !p->comb, "mix", "is NULL, and post or comb is not");
        return;
    }
    sl_chk_eps(c, p->eps);
    sl_chk_need(c, p->hc_eps >= 0 && isfinite(p->hc_eps) && isfinite(p->magnitude), "hc_eps",
                "is negative, or it or magnitude is no number");
    sl_chk_ptr(c, "mix", p->mix, 4);
    sl_chk_ptr(c, "base", p->base, 4);
    sl_chk_ptr(c, "scale", p->scale, 4);
    sl_chk_need(c, p->iters >= 0 && p->iters <= 1000, "iters", "must be within 0..1000");
    sl_chk_need(c, !c->pointers || (p->iters > 0) == (p->comb != NULL), "comb",
                "and iters do not go together");
    sl_chk_need(c, !c->pointers || p->post || !p->comb, "post", "is NULL, and comb is not");
}

void sl_chk_streams_add(sl_chk *c, const void *params)
{
    const sl_streams_add_params *p = params;

    chk_streams(c, p->tokens, p->dim, p->count, p->act);
    sl_chk_values(c, "streams", p->streams, p->act);
    sl_chk_values(c, "y", p->y, p->act);
    sl_chk_need(c, !c->pointers || p->post || !p->comb, "post", "is NULL, and comb is not");
}

void sl_chk_streams_mix(sl_chk *c, const void *params)
{
    const sl_streams_mix_params *p = params;

    chk_streams(c, p->tokens, p->dim, p->count, p->act);
    sl_chk_values(c, "normed", p->normed, p->act);
    sl_chk_ptr(c, "up", p->up, 4);
    if (p->post)
        sl_chk_ptr(c, "inject", p->inject, 4);
    sl_chk_values(c, "out", p->out, p->act);
}

void sl_chk_unary(sl_chk *c, const void *params)
{
    const sl_unary_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_need(c, (unsigned)p->form <= SL_UNARY_SIGMOID, "form", "is unknown");
    sl_chk_need(c, isfinite(p->scale), "scale", "is no number");
    sl_chk_act(c, "out_dtype", p->out_dtype);
    sl_chk_ptr(c, "x", p->x, 4);
    sl_chk_values(c, "out", p->out, p->out_dtype);
}
