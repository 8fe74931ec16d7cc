/*
 * The MTP layer (multi-token prediction) in a forward pass; see sl_draft_pass. Its input is a projection of two normalised
 * vectors: the embedding of a token, and the model's hidden state for the token before. Embedding and head are those of the model, of
 * which checkpoints carry copies at most.
 *
 * The two vectors of a token must lie next to each other for the projection. They are gathered so, SL_DRAFT_SLICE tokens at a
 * time, by the op that picks rows.
 */
#include "model/steps.h"

static void *row_of(const sl_pass *p, void *base, int64_t row)
{
    return (uint8_t *)base + row * p->c->hidden_size * (int64_t)sl_dtype_size(p->act);
}

static sl_status pick(const sl_pass *p, const void *x, const int32_t *rows, int32_t n, void *out)
{
    sl_pick_params a = {.x = x, .rows = rows, .out = out, .n = n, .dim = p->c->hidden_size, .act = p->act};
    return sl_pass_run(p, SL_OP_PICK, &a);
}

sl_status sl_pass_keep_hidden(sl_pass *p)
{
    const sl_draft_pass *d = p->f->draft;
    if (d->n_keep == 0)
        return SL_OK;
    SL_TRY(pick(p, d->hidden, d->keep, d->n_keep, d->spare));
    size_t row = (size_t)p->c->hidden_size * sl_dtype_size(p->act);
    return p->dry ? SL_OK
                  : sl_be_copy(p->m->be, row_of(p, d->hidden, 1), d->spare, (size_t)d->n_keep * row, p->err);
}

/* x += delta; the hidden states of all tokens are its norm. */
static sl_status write_hidden(sl_pass *p, const sl_weight *norm)
{
    const void *add = p->pending ? p->ws->delta : NULL;
    p->pending = false;
    return sl_pass_norm(p, p->ws->x, add, norm, p->c->rms_eps, p->tokens,
                        row_of(p, p->f->draft->hidden, p->f->draft->first));
}

sl_status sl_pass_hidden(sl_pass *p)
{
    sl_add_params add = {
        .x = p->ws->x, .y = p->ws->delta, .tokens = p->tokens, .dim = p->c->hidden_size, .act = p->act};
    if (p->pending) /* as the head does it, whose bits must not depend on this */
        SL_TRY(sl_pass_run(p, SL_OP_ADD, &add));
    p->pending = false;
    return write_hidden(p, &p->m->weights.w[SL_T_NORM]);
}

/* x of tokens from `at` on. */
static sl_status join_slice(sl_pass *p, int32_t at, int32_t n)
{
    const sl_workspace *ws = p->ws;
    const sl_weight *table = &p->m->weights.w[SL_T_EMBED], *w = p->lw->w;
    const sl_draft_pass *d = p->f->draft;
    sl_embed_params e = {.ids = p->f->ids + at,
                         .table = table->data,
                         .out = ws->draft_raw,
                         .tokens = n,
                         .dim = table->in,
                         .vocab = table->out,
                         .table_dtype = table->dtype,
                         .act = p->act};
    SL_TRY(pick(p, d->hidden, d->prev + at, n, ws->draft_raw));
    SL_TRY(sl_pass_norm(p, ws->draft_raw, NULL, &w[SL_T_STATE_NORM], p->c->rms_eps, n,
                        row_of(p, ws->draft_parts, SL_DRAFT_SLICE)));
    SL_TRY(sl_pass_run(p, SL_OP_EMBED, &e));
    SL_TRY(sl_pass_norm(p, ws->draft_raw, NULL, &w[SL_T_TOKEN_NORM], p->c->rms_eps, n, ws->draft_parts));
    SL_TRY(pick(p, ws->draft_parts, ws->draft_order, 2 * n, ws->draft_joined));
    int32_t tokens = p->tokens;
    p->tokens = n;
    sl_status st = sl_pass_linear(p, ws->draft_joined, &w[SL_T_JOIN], row_of(p, ws->x, at));
    p->tokens = tokens;
    return st;
}

/* The layer's input of all tokens. */
static sl_status join(sl_pass *p)
{
    p->layer = p->c->n_layers - p->c->n_draft;
    p->lw = &p->m->weights.layers[p->layer];
    p->pending = false;
    for (int32_t at = 0; at < p->tokens; at += SL_DRAFT_SLICE) {
        int32_t left = p->tokens - at;
        sl_status rc = join_slice(p, at, left < SL_DRAFT_SLICE ? left : SL_DRAFT_SLICE);
        if (rc != SL_OK)
            return sl_fail_in(p->err, rc, "layer %d, token and hidden state", p->layer);
    }
    return SL_OK;
}

sl_status sl_pass_draft_rows(sl_pass *p)
{
    SL_TRY(join(p));
    p->rows_only = true;
    sl_status rc = sl_pass_layer(p);
    p->rows_only = false;
    return rc;
}

sl_status sl_pass_draft(sl_pass *p)
{
    const sl_weight *head = &p->m->weights.w[SL_T_HEAD];
    SL_TRY(join(p));
    SL_TRY(sl_pass_layer(p));
    SL_TRY(write_hidden(p, &p->lw->w[SL_T_HEAD_NORM]));
    return sl_pass_linear_as(p, row_of(p, p->f->draft->hidden, p->f->draft->first), head->in, head,
                             p->f->logits, head->out, SL_F32);
}
