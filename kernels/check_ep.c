/* What the ops of expert parallelism require of their parameters (kernels/ep.h). */
#include "kernels/check.h"
#include "kernels/ep.h"

static void chk_layout(sl_chk *c, const sl_ep_layout *l)
{
    sl_chk_pos(c, "ranks", l->ranks);
    sl_chk_need(c, l->rank >= 0 && l->rank < l->ranks, "rank", "is not within 0..ranks - 1");
    sl_chk_pos(c, "cap", l->cap);
    sl_chk_pos(c, "hidden", l->hidden);
    sl_chk_pos(c, "top_k", l->top_k);
    sl_chk_act(c, "act", l->act);
    sl_chk_need(c, l->first != NULL, "first", "is NULL");
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "cap", l->cap, l->top_k);
    sl_chk_need(c, l->first[0] == 0, "first", "does not begin with 0");
    for (int32_t r = 0; r < l->ranks && c->st == SL_OK; r++)
        sl_chk_need(c, l->first[r] < l->first[r + 1], "first", "leaves a rank without experts");
}

/* Blocks that go to other places than send. */
static void chk_to(sl_chk *c, const sl_ep_layout *l, void *const *to)
{
    if (!to || c->st != SL_OK)
        return;
    sl_chk_need(c, l->ranks <= SL_EP_TO_RANKS, "to", "is for at most 16 ranks");
    for (int32_t r = 0; r < l->ranks && c->st == SL_OK; r++)
        sl_chk_need(c, to[r] && (uintptr_t)to[r] % 4 == 0, "to",
                    "has a block that is NULL or not aligned to 4 bytes");
}

void sl_chk_ep_send(sl_chk *c, const void *params)
{
    const sl_ep_send_params *p = params;

    chk_layout(c, &p->layout);
    sl_chk_need(c, p->tokens >= 0 && p->tokens <= p->layout.cap, "tokens", "is not within 0..cap");
    if (p->tokens > 0) {
        sl_chk_rows(c, "x", p->x, sl_dtype_size(p->layout.act),
                    p->layout.hidden * (int64_t)sl_dtype_size(p->layout.act));
        sl_chk_ptr(c, "expert_ids", p->expert_ids, 4);
    }
    sl_chk_rows(c, "send", p->send, 4, SL_ROW_ALIGN);
    sl_chk_ptr(c, "send_count", p->send_count, 4);
    chk_to(c, &p->layout, p->to);
}

void sl_chk_ep_experts(sl_chk *c, const void *params)
{
    const sl_ep_experts_params *p = params;
    const sl_ep_layout *l = &p->layout;

    chk_layout(c, l);
    sl_chk_pos(c, "inter", p->inter);
    sl_chk_glu(c, &p->glu);
    sl_chk_rows(c, "recv", p->recv, 4, SL_ROW_ALIGN);
    sl_chk_ptr(c, "recv_count", p->recv_count, 4);
    sl_chk_rows(c, "send", p->send, 4, SL_ROW_ALIGN);
    sl_chk_ptr(c, "send_count", p->send_count, 4);
    chk_to(c, l, p->to);
    if (c->st != SL_OK)
        return;
    sl_chk_experts(c, p->gate, p->up, p->down, l->first[l->rank + 1] - l->first[l->rank], p->inter,
                   l->hidden);
}

void sl_chk_ep_sum(sl_chk *c, const void *params)
{
    const sl_ep_sum_params *p = params;

    chk_layout(c, &p->layout);
    sl_chk_need(c, p->tokens >= 0 && p->tokens <= p->layout.cap, "tokens", "is not within 0..cap");
    sl_chk_rows(c, "recv", p->recv, 4, SL_ROW_ALIGN);
    sl_chk_ptr(c, "recv_count", p->recv_count, 4);
    sl_chk_ptr(c, "expert_ids", p->expert_ids, 4);
    sl_chk_ptr(c, "weights", p->weights, 4);
    sl_chk_rows(c, "out", p->out, sl_dtype_size(p->layout.act),
                p->layout.hidden * (int64_t)sl_dtype_size(p->layout.act));
}
