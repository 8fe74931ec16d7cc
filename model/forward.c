/*
 * The forward pass: the embedding, then for every layer the steps of the model's family, then norm and head for the
 * positions whose logits are wanted. The steps themselves are in families/ and in the shared library (steps.h).
 */
#include "model/steps.h"

static sl_status run_layer(sl_pass *p)
{
    const sl_family *f = p->m->family;
    p->lw = &p->m->weights.layers[p->layer];
    for (size_t i = 0; i < f->n_steps; i++) {
        if (!sl_when_holds(f->steps[i].when, p->c, p->layer))
            continue;
        sl_status rc = f->steps[i].run(p);
        if (rc != SL_OK)
            return sl_fail_in(p->err, rc, "layer %d, %s", p->layer, f->steps[i].name);
    }
    return SL_OK;
}

static sl_status run_pass(sl_pass *p)
{
    SL_TRY(sl_pass_embed(p));
    for (p->layer = 0; p->layer < p->c->n_layers; p->layer++)
        SL_TRY(run_layer(p));
    return p->f->n_logits > 0 ? sl_pass_head(p) : SL_OK;
}

/* A pass of a rank without tokens: the others need its experts. */
static sl_status run_idle(sl_pass *p)
{
    for (p->layer = 0; p->layer < p->c->n_layers; p->layer++) {
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
    return run_pass(&p);
}
