/*
 * The workspace of a forward pass. One function lists all buffers and runs twice: first without a block, to add up
 * their sizes, then with the block, to place them. So there is one allocation for the lifetime of the model.
 */
#include "model/workspace.h"

#include <stdlib.h>

#include "kernels/ep.h"

int32_t sl_workspace_part(int32_t dim, sl_dtype act)
{
    int32_t line = SL_ROW_ALIGN / (int32_t)sl_dtype_size(act);
    return (dim + line - 1) / line * line;
}

void sl_workspace_arrivals(const sl_model_config *c, sl_dtype act, int32_t max_tokens, int32_t ranks,
                           sl_carve *k, sl_workspace *w)
{
    sl_ep_layout l = {.cap = max_tokens, .hidden = c->hidden_size, .top_k = c->moe.per_token, .act = act};
    if (ranks < 2 || c->moe.n_routed < 1)
        return;
    w->ep_recv = sl_carve_take(k, (int64_t)ranks * l.cap, sl_ep_row_bytes(&l), 1);
    w->ep_back = sl_carve_take(k, (int64_t)ranks * sl_ep_result_cap(&l), sl_ep_result_bytes(&l), 1);
}

void sl_workspace_exchange(const sl_model_config *c, sl_dtype act, int32_t max_tokens, int32_t ranks,
                           sl_carve *k, sl_workspace *w)
{
    sl_ep_layout l = {.cap = max_tokens, .hidden = c->hidden_size, .top_k = c->moe.per_token, .act = act};
    if (ranks < 2 || c->moe.n_routed < 1)
        return;
    int64_t rows = (int64_t)ranks * l.cap, results = (int64_t)ranks * sl_ep_result_cap(&l);
    w->ep_send = sl_carve_take(k, rows, sl_ep_row_bytes(&l), 1);
    w->ep_results = sl_carve_take(k, results, sl_ep_result_bytes(&l), 1);
    sl_workspace_arrivals(c, act, max_tokens, ranks, k, w);
    for (int i = 0; i < 4; i++)
        w->ep_counts[i] = sl_carve_take(k, 1, ranks, sizeof(int32_t));
}

static void carve_draft(const sl_model_config *c, size_t act, sl_carve *k, sl_workspace *w)
{
    const int64_t s = SL_DRAFT_SLICE, hidden = c->hidden_size;
    if (!c->n_draft)
        return;
    w->draft_raw = sl_carve_take(k, s, hidden, act);
    w->draft_parts = sl_carve_take(k, 2 * s, hidden, act);
    w->draft_joined = sl_carve_take(k, s, 2 * hidden, act);
    w->draft_order = sl_carve_take(k, 2 * s, 1, sizeof(int32_t));
}

/* Row t of the embeddings, then row t of the states, for every token t. */
static sl_status fill_order(sl_backend *be, const sl_workspace *w, sl_err *err)
{
    int32_t order[2 * SL_DRAFT_SLICE];
    if (!w->draft_order)
        return SL_OK;
    for (int32_t t = 0; t < SL_DRAFT_SLICE; t++)
        order[2 * t] = t, order[2 * t + 1] = SL_DRAFT_SLICE + t;
    SL_TRY(sl_be_copy(be, w->draft_order, order, sizeof order, err));
    return sl_be_sync(be, err);
}

static void carve(const sl_family *f, const sl_model_config *c, const sl_model_opts *o, sl_carve *k,
                  sl_workspace *w)
{
    int64_t t = o->max_tokens, picks = o->max_logit_rows, hidden = c->hidden_size;
    int64_t dense = c->intermediate_size, shared = sl_dim_shared(c), inter = dense > shared ? dense : shared;
    size_t act = sl_dtype_size(o->act);
    w->moe_bytes = sl_moe_workspace_bytes((int32_t)t, c->hidden_size, c->moe.intermediate_size,
                                          c->moe.n_routed, c->moe.per_token);
    w->x = sl_carve_take(k, t, hidden, act);
    w->h = sl_carve_take(k, t, hidden, act);
    w->delta = sl_carve_take(k, t, hidden, act);
    w->extra = sl_carve_take(k, t, hidden, act);
    w->gate_up = sl_carve_take(k, t, 2 * (int64_t)sl_workspace_part((int32_t)inter, o->act), act);
    w->inter = sl_carve_take(k, t, inter, act);
    w->router = sl_carve_take(k, t, c->moe.n_routed, sizeof(float));
    w->expert_ids = sl_carve_take(k, t, c->moe.per_token, sizeof(int32_t));
    w->expert_weights = sl_carve_take(k, t, c->moe.per_token, sizeof(float));
    w->moe = sl_carve_take(k, 1, (int64_t)w->moe_bytes, 1);
    w->picked = sl_carve_take(k, picks, hidden, act);
    w->picked_norm = sl_carve_take(k, picks, hidden, act);
    carve_draft(c, act, k, w);
    sl_workspace_exchange(c, o->act, o->max_tokens, o->ranks > 1 ? o->ranks : 1, k, w);
    if (f->workspace)
        f->workspace(c, o, k, w->own);
}

sl_status sl_workspace_create(sl_backend *be, const sl_family *f, const sl_model_config *c,
                              const sl_model_opts *o, sl_workspace *out, sl_err *err)
{
    sl_workspace w = {0};
    sl_carve k = {0};
    if (f->workspace_size && !(w.own = calloc(1, f->workspace_size)))
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a workspace");
    carve(f, c, o, &k, &w);
    w.bytes = k.at;
    sl_status rc = sl_be_alloc(be, SL_MEM_DEVICE, w.bytes, &w.block, err);
    if (rc != SL_OK) {
        free(w.own);
        return sl_fail_in(err, rc, "workspace of %zu bytes for max_tokens %d", w.bytes, o->max_tokens);
    }
    k = (sl_carve){.base = w.block};
    carve(f, c, o, &k, &w);
    *out = w;
    rc = fill_order(be, &w, err);
    if (rc != SL_OK)
        sl_workspace_free(be, out);
    return rc;
}

void sl_workspace_free(sl_backend *be, sl_workspace *ws)
{
    if (ws->block)
        sl_be_free(be, SL_MEM_DEVICE, ws->block);
    free(ws->own);
    *ws = (sl_workspace){0};
}
