/*
 * Routed experts that the ranks of a group share (kernels/ep.h): rows out, experts, results back, the sum at home.
 * Every rank enqueues the same exchanges in every MoE layer, also one without tokens, so the ranks stay together
 * without asking each other between layers; what differs is only how many rows travel.
 *
 * Of many tokens the ops write rows and results straight into the memory of the ranks that they are for, where GPUs
 * can: a result crosses the link while the next one is computed, and the exchange carries the counts alone. Of few
 * tokens, the kernels would write too few bytes at a time; there the exchange moves the rows, without a copy where they
 * arrive, and the ops place those of the own block.
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
                          .top_k = p->c->moe.per_token,
                          .act = p->act,
                          .quantised = p->c->fp8_acts && p->lw->quantised};
}

/* One way of the rows of a layer. Where any are placed, to[] says where the op before the exchange writes the blocks. */
typedef struct way {
    void *send, *recv;
    int32_t *send_count, *recv_count;
    int64_t row_bytes;
    int32_t cap;
    sl_comm_where placed;
    void *to[SL_EP_TO_RANKS];
} way;

/* Which rows are placed is equal on all ranks. */
static void find_places(const sl_pass *p, const sl_ep_layout *l, way *w)
{
    size_t block = (size_t)w->row_bytes * (size_t)w->cap;
    bool all = l->cap > SPLIT_TOKENS;
    if (p->dry || l->ranks > SL_EP_TO_RANKS || !sl_comm_at(p->m->opts.comm, w->recv, l->rank))
        return;
    w->placed = all ? SL_COMM_PLACED : SL_COMM_OWN_PLACED;
    for (int32_t q = 0; q < l->ranks; q++)
        w->to[q] = all || q == l->rank
                       ? (uint8_t *)sl_comm_at(p->m->opts.comm, w->recv, q) + (size_t)l->rank * block
                       : (uint8_t *)w->send + (size_t)q * block;
}

/* Begins to move rows or results to every rank and from every rank. Where nothing is computed meanwhile it moves them at
 * once, with the whole device. */
static sl_status begin(const sl_pass *p, const way *w, bool compute)
{
    sl_comm_rows rows = {.send = w->send,
                         .send_count = w->send_count,
                         .recv = w->recv,
                         .recv_count = w->recv_count,
                         .row_bytes = w->row_bytes,
                         .cap = w->cap,
                         .placed = w->placed};
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
    way w = {.send = ws->ep_send,
             .recv = p->m->arrive_rows,
             .send_count = ws->ep_counts[0],
             .recv_count = ws->ep_counts[1],
             .row_bytes = sl_ep_row_bytes(l),
             .cap = l->cap};
    find_places(p, l, &w);
    sl_ep_send_params a = {.layout = *l,
                           .x = ws->h,
                           .expert_ids = ws->expert_ids,
                           .token_seq = p->f->seqs->token_seq,
                           .send = w.send,
                           .send_count = w.send_count,
                           .tokens = p->tokens,
                           .to = w.placed != SL_COMM_IN_SEND ? w.to : NULL};
    SL_TRY(sl_pass_run(p, SL_OP_EP_SEND, &a));
    SL_TRY(begin(p, &w, compute));
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
    way w = {.send = ws->ep_results,
             .recv = p->m->arrive_results,
             .send_count = ws->ep_counts[2],
             .recv_count = ws->ep_counts[3],
             .row_bytes = sl_ep_result_bytes(l),
             .cap = sl_ep_result_cap(l)};
    find_places(p, l, &w);
    sl_ep_experts_params a = {.layout = *l,
                              .recv = p->m->arrive_rows,
                              .recv_count = ws->ep_counts[1],
                              .gate = lw->gate + first,
                              .up = lw->up + first,
                              .down = lw->down + first,
                              .send = w.send,
                              .send_count = w.send_count,
                              .to = w.placed != SL_COMM_IN_SEND ? w.to : NULL,
                              .inter = p->c->moe.intermediate_size,
                              .fp8_acts = p->c->fp8_acts,
                              .glu = p->c->moe.glu,
                              .load = &p->m->expert_load};
    SL_TRY(sl_pass_run(p, SL_OP_EP_EXPERTS, &a));
    SL_TRY(begin(p, &w, shared));
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
                          .recv = p->m->arrive_results,
                          .recv_count = ws->ep_counts[3],
                          .expert_ids = ws->expert_ids,
                          .weights = ws->expert_weights,
                          .token_seq = p->f->seqs->token_seq,
                          .out = ws->delta,
                          .tokens = p->tokens};
    return sl_pass_run(p, SL_OP_EP_SUM, &a);
}

sl_status sl_model_arrivals(sl_model *m, sl_err *err)
{
    sl_carve k = {0};
    sl_workspace w = {0};
    void *memory = NULL;
    if (m->arrives_of == m->opts.comm)
        return SL_OK;
    m->arrive_rows = m->ws.ep_recv, m->arrive_results = m->ws.ep_back;
    sl_workspace_arrivals(&m->config, m->opts.act, m->opts.max_tokens, m->weights.ranks, &k, &w);
    if (k.at > 0)
        SL_TRY(sl_comm_memory(m->opts.comm, k.at, &memory, err));
    if (memory) {
        k = (sl_carve){.base = memory};
        sl_workspace_arrivals(&m->config, m->opts.act, m->opts.max_tokens, m->weights.ranks, &k, &w);
        m->arrive_rows = w.ep_recv, m->arrive_results = w.ep_back;
    }
    m->arrives_of = m->opts.comm;
    return SL_OK;
}
