/*
 * The forward pass: the embedding, then for every layer the steps of the model's family, then norm and head for the
 * positions whose logits are wanted. The steps themselves are in families/ and in the shared library (steps.h).
 */
#include "model/steps.h"

sl_status sl_pass_layer(sl_pass *p)
{
    const sl_family *f = p->m->family;
    const sl_layer_step *steps = p->rows_only ? f->row_steps : f->steps;
    const size_t n = p->rows_only ? f->n_row_steps : f->n_steps;
    p->lw = &p->m->weights.layers[p->layer];
    for (size_t i = 0; i < n; i++) {
        if (!sl_when_holds(steps[i].when, p->c, p->layer))
            continue;
        sl_status rc = steps[i].run(p);
        if (rc != SL_OK)
            return sl_fail_in(p->err, rc, "layer %d, %s", p->layer, steps[i].name);
    }
    return SL_OK;
}

static sl_status run_pass(sl_pass *p)
{
    const sl_draft_pass *draft = p->f->draft;
    if (draft && draft->alone)
        return sl_pass_draft(p);
    if (draft)
        SL_TRY(sl_pass_keep_hidden(p));
    SL_TRY(sl_pass_embed(p));
    for (p->layer = 0; p->layer < p->c->n_layers - p->c->n_draft; p->layer++)
        SL_TRY(sl_pass_layer(p));
    if (draft)
        SL_TRY(sl_pass_hidden(p));
    if (p->f->rows && !p->dry)
        SL_TRY(p->f->rows(p->f->rows_ctx, p, p->err));
    if (p->f->n_logits > 0)
        SL_TRY(sl_pass_logits(p, p->f->logit_rows, p->f->n_logits));
    return draft ? sl_pass_draft_rows(p) : SL_OK;
}

/* A pass of a rank without tokens: the others need its experts. */
static sl_status run_idle(sl_pass *p)
{
    const int32_t own = p->c->n_layers - p->c->n_draft;
    const bool alone = p->f->draft && p->f->draft->alone;
    for (p->layer = alone ? own : 0; p->layer < (alone ? p->c->n_layers : own); p->layer++) {
        p->lw = &p->m->weights.layers[p->layer];
        if (!p->c->layer_is_moe[p->layer])
            continue;
        sl_status rc = sl_pass_group_experts(p);
        if (rc != SL_OK)
            return sl_fail_in(p->err, rc, "layer %d, experts without tokens", p->layer);
    }
    return SL_OK;
}

/* Whether the number of tokens of the group fits; without a group it is not looked at. */
static sl_status check_group(const sl_model *m, const sl_forward *f, sl_err *err)
{
    if (m->weights.ranks < 2 ||
        (f->group_tokens >= f->seqs->n_tokens && f->group_tokens <= m->opts.max_tokens))
        return SL_OK;
    return sl_fail(err, SL_ERR_INVALID,
                   "forward: %d tokens of a rank at most, this rank has %d of at most %d", f->group_tokens,
                   f->seqs->n_tokens, m->opts.max_tokens);
}

sl_status sl_model_forward(sl_model *m, const sl_forward *f, sl_err *err)
{
    if (!f->seqs || f->seqs->n_tokens < 0 || f->seqs->n_tokens > m->opts.max_tokens)
        return sl_fail(err, SL_ERR_INVALID, "forward: %d tokens, the model was loaded for %d",
                       f->seqs ? f->seqs->n_tokens : -1, m->opts.max_tokens);
    if (f->n_logits < 0 || f->n_logits > m->opts.max_logit_rows)
        return sl_fail(err, SL_ERR_INVALID, "forward: %d logit rows, the model was loaded for %d",
                       f->n_logits, m->opts.max_logit_rows);
    SL_TRY(check_group(m, f, err));
    if (m->weights.ranks > 1 && !m->opts.comm)
        return sl_fail(err, SL_ERR_PEER, "forward: the group of this rank is not formed");
    if (m->weights.ranks > 1)
        SL_TRY(sl_model_arrivals(m, err));
    if (f->draft && !m->config.n_draft)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "forward: the MTP layer is not loaded");
    if (f->seqs->n_tokens == 0 && (m->weights.ranks < 2 || f->group_tokens == 0))
        return SL_OK;
    sl_pass p = {.m = m,
                 .f = f,
                 .c = &m->config,
                 .ws = &m->ws,
                 .act = m->opts.act,
                 .tokens = f->seqs->n_tokens,
                 .err = err};
    return p.tokens > 0 ? run_pass(&p) : run_idle(&p);
}

sl_status sl_model_ask(sl_model *m, sl_err *err)
{
    sl_seq_tables seqs = {.n_tokens = 1, .n_seqs = 1, .ld = 1};
    sl_forward f = {.seqs = &seqs,
                    .n_logits = 1,
                    .seam = {.attend = m->family->ask_attend, .ctx = m->be},
                    .group_tokens = 1};
    sl_pass p = {.m = m,
                 .f = &f,
                 .c = &m->config,
                 .ws = &m->ws,
                 .act = m->opts.act,
                 .tokens = 1,
                 .dry = true,
                 .err = err};
    const sl_draft_pass rows = {.n_keep = 1}, alone = {.alone = true};
    if (!m->config.n_draft)
        return run_pass(&p);
    sl_pass q = p;
    f.draft = &rows;
    SL_TRY(run_pass(&p));
    f.draft = &alone;
    return run_pass(&q);
}
