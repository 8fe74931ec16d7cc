/*
 * Routed experts that the ranks of a group share (kernels/ep.h): rows out, experts, results back, the sum at home.
 * Every rank enqueues the same exchanges in every MoE layer, also one without tokens, so the ranks stay together
 * without asking each other between layers; what differs is only how many rows travel.
 *
 * The shared experts need no rows of other ranks, so they are computed while rows travel. They are the only work of a
 * layer that depends on neither exchange: what follows needs the sum.
 */
#include "kernels/ep.h"
#include "model/steps.h"

/* Of more tokens in a step the results take longer on the link than all of the shared experts take to compute, so these
 * are computed then; of fewer, half of them while the rows go out, where ranks also wait for the slowest one. */
#define SPLIT_TOKENS 256

static sl_ep_layout layout_of(const sl_pass *p)
{
    const sl_weights *w = &p->m->weights;
    return (sl_ep_layout){.first = w->expert_first,
                          .rank = w->rank,
                          .ranks = w->ranks,
                          .cap = p->f->group_tokens,
                          .hidden = p->c->hidden_size,
                          .top_k = p->c->num_experts_per_tok,
                          .act = p->act,
                          .quantised = p->c->fp8_acts && p->lw->quantised};
}

/* Begins to move rows or results to every rank and from every rank. Where nothing is computed meanwhile it moves them at
 * once, with the whole device. */
static sl_status begin(const sl_pass *p, const void *send, const int32_t *send_count, void *recv,
                       int32_t *recv_count, int64_t row_bytes, int32_t cap, bool compute)
{
    sl_comm_rows rows = {.send = send,
                         .send_count = send_count,
                         .recv = recv,
                         .recv_count = recv_count,
                         .row_bytes = row_bytes,
                         .cap = cap};
    if (p->dry)
        return SL_OK;
    return compute ? sl_comm_all_to_all_begin(p->m->opts.comm, &rows, p->err)
                   : sl_comm_all_to_all(p->m->opts.comm, &rows, p->err);
}

/* Ends it, also when what was computed meanwhile failed with `st`. */
static sl_status end(const sl_pass *p, sl_status st)
{
    if (p->dry)
        return st;
    sl_status wait = sl_comm_all_to_all_end(p->m->opts.comm, st == SL_OK ? p->err : NULL);
    return st == SL_OK ? wait : st;
}

static sl_status send_rows(sl_pass *p, const sl_ep_layout *l, bool compute)
{
    sl_workspace *ws = p->ws;
    sl_ep_send_params a = {.layout = *l,
                           .x = ws->h,
                           .expert_ids = ws->expert_ids,
                           .token_seq = p->f->seqs->token_seq,
                           .send = ws->ep_send,
                           .send_count = ws->ep_counts[0],
                           .tokens = p->tokens};
    SL_TRY(sl_pass_run(p, SL_OP_EP_SEND, &a));
    SL_TRY(begin(p, ws->ep_send, ws->ep_counts[0], ws->ep_recv, ws->ep_counts[1], sl_ep_row_bytes(l), l->cap,
                 compute));
    return end(p, compute ? sl_pass_mlp_in(p) : SL_OK);
}

/* The shared experts, or what is left of them. */
static sl_status run_shared(sl_pass *p, bool begun)
{
    if (!begun)
        SL_TRY(sl_pass_mlp_in(p));
    return sl_pass_mlp_out(p, p->ws->extra);
}

static sl_status run_experts(sl_pass *p, const sl_ep_layout *l, bool shared, bool begun)
{
    sl_workspace *ws = p->ws;
    const sl_layer_weights *lw = p->lw;
    int32_t first = l->first[l->rank];
    sl_ep_experts_params a = {.layout = *l,
                              .recv = ws->ep_recv,
                              .recv_count = ws->ep_counts[1],
                              .gate = lw->gate + first,
                              .up = lw->up + first,
                              .down = lw->down + first,
                              .send = ws->ep_results,
                              .send_count = ws->ep_counts[2],
                              .inter = p->c->moe_intermediate_size,
                              .fp8_acts = p->c->fp8_acts && lw->gate[0].dtype == SL_F8_E4M3,
                              .load = &p->m->expert_load};
    SL_TRY(sl_pass_run(p, SL_OP_EP_EXPERTS, &a));
    SL_TRY(begin(p, ws->ep_results, ws->ep_counts[2], ws->ep_back, ws->ep_counts[3], sl_ep_result_bytes(l),
                 sl_ep_result_cap(l), shared));
    return end(p, shared ? run_shared(p, begun) : SL_OK);
}

sl_status sl_pass_group_experts(sl_pass *p)
{
    sl_workspace *ws = p->ws;
    sl_ep_layout l = layout_of(p);
    bool shared = p->tokens > 0 && sl_in_shared(p->c, p->layer), early = shared && l.cap <= SPLIT_TOKENS;
    SL_TRY(send_rows(p, &l, early));
    SL_TRY(run_experts(p, &l, shared, early));
    sl_ep_sum_params a = {.layout = l,
                          .recv = ws->ep_back,
                          .recv_count = ws->ep_counts[3],
                          .expert_ids = ws->expert_ids,
                          .weights = ws->expert_weights,
                          .token_seq = p->f->seqs->token_seq,
                          .out = ws->delta,
                          .tokens = p->tokens};
    return sl_pass_run(p, SL_OP_EP_SUM, &a);
}
