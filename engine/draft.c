/* See draft.h. */
#include "engine/draft.h"

#include <stdlib.h>

#include "base/log.h"
#include "engine/engine_impl.h"

/* What one engine has for its MTP layer. `hidden` is divided into a row of zeros, one row for each sequence, those of the last
 * step, and those of the last draft. */
struct sl_drafts {
    uint8_t *hidden, *spare; /* device */
    int32_t pass, draft;     /* where the last two parts begin */
    sl_drafted *of;          /* [max_seqs] */
    sl_draft_pass now;       /* of the pass that is enqueued */
    bool again;              /* it takes the lists of the first one of these drafts */
    int32_t *
        live; /* [max_seqs]: the items, those that want most tokens first; so those that want a j-th one are the first ones */
};

enum {
    BEGIN = 64
}; /* parts begin at a multiple of this many rows, and so at an address that every op accepts */

static uint64_t begin_at(uint64_t row)
{
    return (row + BEGIN - 1) / BEGIN * BEGIN;
}

static uint64_t pass_begin(uint64_t seqs)
{
    return begin_at(1 + seqs);
}

static uint64_t draft_begin(uint64_t seqs, uint64_t step_tokens)
{
    return begin_at(pass_begin(seqs) + step_tokens);
}

static uint64_t spare_begin(uint64_t seqs, uint64_t step_tokens)
{
    return begin_at(draft_begin(seqs, step_tokens) + seqs);
}

uint64_t sl_drafts_rows(uint64_t seqs, uint64_t step_tokens)
{
    return spare_begin(seqs, step_tokens) + seqs;
}

sl_status sl_drafts_init(sl_engine *e, sl_err *err)
{
    const uint64_t seqs = (uint64_t)e->o.max_seqs, tokens = (uint64_t)e->o.max_step_tokens,
                   row = (uint64_t)e->cfg->hidden_size * sl_dtype_size(sl_model_get_opts(e->model)->act),
                   rows = sl_drafts_rows(seqs, tokens);
    if (!e->cfg->n_draft)
        return SL_OK;
    sl_drafts *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    e->drafts = d;
    d->pass = (int32_t)pass_begin(seqs), d->draft = (int32_t)draft_begin(seqs, tokens);
    d->of = calloc(seqs, sizeof *d->of);
    d->live = calloc(seqs, sizeof *d->live);
    if (!d->of || !d->live)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    SL_TRY(sl_dmem_alloc(e->mem, rows * row, (void **)&d->hidden, err));
    d->spare = d->hidden + spare_begin(seqs, tokens) * row;
    sl_drafts_forget(e);
    return sl_be_fill(e->be, d->hidden, 0, (size_t)(rows * row), err);
}

void sl_drafts_fini(sl_engine *e)
{
    sl_drafts *d = e->drafts;
    if (!d)
        return;
    sl_be_free(e->be, SL_MEM_DEVICE, d->hidden);
    free(d->live);
    free(d->of);
    free(d);
    e->drafts = NULL;
}

/* ---- where hidden states are ---- */

void sl_drafts_begin(sl_seq *s)
{
    if (s->e->drafts)
        s->e->drafts->of[s->row] = (sl_drafted){.kept = -1};
}

void sl_drafts_forget(sl_engine *e)
{
    for (int32_t i = 0; e->drafts && i < e->o.max_seqs; i++)
        e->drafts->of[i] = (sl_drafted){.kept = -1};
}

/* The row of the state at a position of the sequence in row i of the tables; 0: it is not known. */
static int32_t state_at(const sl_drafts *d, int32_t i, int32_t pos)
{
    const sl_drafted *h = &d->of[i];
    if (pos >= h->pos && pos < h->pos + h->n)
        return h->row + pos - h->pos;
    return pos >= 0 && pos == h->kept ? 1 + i : 0;
}

size_t sl_engine_hidden_bytes(const sl_engine *e)
{
    return e->drafts ? (size_t)e->cfg->hidden_size * sl_dtype_size(sl_model_get_opts(e->model)->act) : 0;
}

bool sl_engine_seq_hidden(sl_engine *e, const sl_seq *s, void *out)
{
    const size_t n = sl_engine_hidden_bytes(e);
    const int32_t row = n > 0 && s->e == e ? state_at(e->drafts, s->row, s->len - 1) : 0;
    return row > 0 && sl_be_copy(e->be, out, e->drafts->hidden + (size_t)row * n, n, NULL) == SL_OK &&
           sl_be_sync(e->be, NULL) == SL_OK;
}

void sl_engine_seq_set_hidden(sl_engine *e, sl_seq *s, const void *bytes)
{
    const size_t n = sl_engine_hidden_bytes(e), own = (size_t)(1 + s->row);
    if (n == 0 || s->e != e || s->len < 1)
        return;
    if (sl_be_copy(e->be, e->drafts->hidden + own * n, bytes, n, NULL) == SL_OK &&
        sl_be_sync(e->be, NULL) == SL_OK) /* the caller's bytes are borrowed */
        e->drafts->of[s->row] = (sl_drafted){.kept = s->len - 1};
}

/* The last step's states are about to be written over: those that are still wanted move to the rows of their sequences. */
static void keep_states(sl_engine *e, int32_t *keep)
{
    sl_drafts *d = e->drafts;
    for (int32_t i = 0; i < e->o.max_seqs; i++) {
        const sl_seq *s = &e->seqs[i];
        keep[i] = s->open ? state_at(d, i, s->len - 1) : 0;
        d->of[i] = (sl_drafted){.kept = keep[i] > 0 ? s->len - 1 : -1};
    }
}

void sl_drafts_fill(sl_engine *e, sl_flight *f)
{
    sl_drafts *d = e->drafts;
    const sl_step_plan *p = &f->p;
    int32_t t = 0;
    if (!d ||
        p->tokens == 0) /* a rank without tokens runs no pass that would move them, or write over them */
        return;
    keep_states(e, f->in.keep);
    for (int32_t i = 0; i < p->tokens; i++)
        f->in.prev[i] = 0;
    for (int32_t i = 0; i < f->n_items; i++) {
        const sl_step_item *it = &f->items[i];
        t = p->shape.per ? i * p->shape.per : t;
        f->in.prev[t] = state_at(d, it->seq->row, it->seq->len - 1);
        for (int32_t k = 1; k < it->n_tokens; k++)
            f->in.prev[t + k] = d->pass + t + k - 1;
        t += it->n_tokens;
    }
    t = 0;
    for (int32_t i = 0; i < f->n_items; i++) {
        const sl_step_item *it = &f->items[i];
        sl_drafted *h = &d->of[it->seq->row];
        t = p->shape.per ? i * p->shape.per : t;
        h->pos = it->seq->len, h->n = it->n_tokens, h->row = d->pass + t;
        t += it->n_tokens;
    }
}

const sl_draft_pass *sl_drafts_pass(sl_engine *e)
{
    sl_drafts *d = e->drafts;
    if (!d)
        return NULL;
    if (!d->now.alone)
        d->now = (sl_draft_pass){.hidden = d->hidden,
                                 .prev = e->in_dev.prev,
                                 .first = d->pass,
                                 .keep = e->in_dev.keep,
                                 .n_keep = e->o.max_seqs,
                                 .spare = d->spare};
    return &d->now;
}

/* ---- drafts ---- */

static sl_status check_draft(const sl_engine *e, const sl_draft_item *it, sl_err *err)
{
    if (!it->seq || it->seq->e != e || !it->seq->open || it->seq->flights > 0)
        return sl_fail(err, SL_ERR_INVALID, "draft: a sequence is not open, or in a step in flight");
    if (it->n < 1 || it->n >= e->item_tokens)
        return sl_fail(err, SL_ERR_INVALID, "draft: %d tokens, 1..%d are possible", it->n,
                       e->item_tokens - 1);
    if (it->token < 0 || it->token >= e->cfg->vocab_size)
        return sl_fail(err, SL_ERR_INVALID, "draft: token id %d is outside the vocabulary of %d", it->token,
                       e->cfg->vocab_size);
    if (it->n > sl_engine_seq_capacity(it->seq) - it->seq->len)
        return sl_fail(err, SL_ERR_EXHAUSTED, "draft: a sequence of %d tokens drafts %d, its pages hold %d",
                       it->seq->len, it->n, sl_engine_seq_capacity(it->seq));
    return SL_OK;
}

static sl_status check_drafts(const sl_engine *e, const sl_draft_item *items, int32_t n, sl_err *err)
{
    if (n < 1 || n > e->o.max_seqs || n > e->max_logits || n > e->o.max_step_tokens)
        return sl_fail(err, SL_ERR_INVALID, "draft: %d items", n);
    for (int32_t i = 0; i < n; i++)
        SL_TRY(check_draft(e, &items[i], err));
    return SL_OK;
}

/* Parameters of a draft: those of its request at the position, without lists, so that it is the same random draw as the
 * model's own token, and so the same token if the layer's probabilities are those of the model. */
static sl_sampling plain(const sl_sampling *s)
{
    sl_sampling p = *s;
    p.frequency_penalty = p.presence_penalty = 0, p.repetition_penalty = 1;
    p.n_logprobs = -1, p.min_tokens = 0, p.n_bias = 0, p.n_stop_ids = 0;
    return p;
}

/* Enqueues the j-th token of the n live items. */
static sl_status enqueue_draft(sl_engine *e, sl_flight *f, const sl_draft_item *items, int32_t n, int32_t j,
                               sl_err *err)
{
    sl_drafts *d = e->drafts;
    f->p = (sl_step_plan){.tokens = n};
    d->now = (sl_draft_pass){.hidden = d->hidden,
                             .prev = e->in_dev.prev,
                             .first = d->draft,
                             .alone = true,
                             .again = d->again ? j : 0,
                             .later = n > 0 ? items[d->live[0]].n - 1 - j : 0};
    if (n == 0) /* of a group, in which others draft */
        return sl_step_forward(e, 0, 0, err);
    sl_step_place(e, f);
    for (int32_t t = 0; t < n; t++) {
        const sl_draft_item *it = &items[d->live[t]];
        sl_seq *s = it->seq;
        f->in.ids[t] = j == 0 ? it->token : it->out[j - 1];
        f->in.token_seq[t] = s->row;
        f->in.token_pos[t] = s->len + j;
        f->in.prev[t] = j == 0 ? state_at(d, s->row, s->len - 1) : d->draft + t;
        sl_sampling how = plain(it->sampling);
        f->chosen.rows[t] = sl_sampling_row(&how, (uint64_t)(s->len + j + 1), 0);
        f->chosen.rows[t].row = t;
        SL_TRY(sl_engine_seq_upload(s, &f->tables, err));
    }
    SL_TRY(sl_be_copy(e->be, e->in_dev.ids, f->in.ids, (size_t)sl_step_words(e, f) * 4, err));
    d->now.prev = e->in_dev.prev;
    SL_TRY(sl_step_forward(e, n, 0, err));
    if (!e->choices.device)
        return e->unified ? SL_OK
                          : sl_be_copy(e->be, e->logits_host, e->logits_dev,
                                       (size_t)n * (size_t)e->cfg->vocab_size * sizeof(float), err);
    e->choices.op.n = n;
    SL_TRY(sl_be_copy(e->be, e->choices.rows_dev, f->chosen.rows, (size_t)n * sizeof *f->chosen.rows, err));
    SL_TRY(sl_be_run(e->be, SL_OP_SAMPLE, &e->choices.op, err));
    return sl_be_copy(e->be, f->chosen.out, e->choices.out_dev, (size_t)n * sizeof *f->chosen.out, err);
}

/* The tokens of a pass that is over. One that could not be chosen is token 0, which verification will refuse. */
static void take_drafts(sl_engine *e, sl_flight *f, sl_draft_item *items, int32_t n, int32_t j)
{
    sl_sampled *out = f->chosen.out;
    for (int32_t t = 0; t < n; t++) {
        sl_draft_item *it = &items[e->drafts->live[t]];
        const sl_history none = {0};
        sl_sampling how = plain(it->sampling);
        if (!e->choices.device)
            sl_sampler_sample_or_fault(e->choices.host,
                                       e->logits_host + (size_t)t * (size_t)e->cfg->vocab_size, &how, &none,
                                       (uint64_t)(it->seq->len + j + 1), NULL, &out[t]);
        it->out[j] = out[t].fault ? 0 : out[t].id;
    }
}

static sl_status run_draft(sl_engine *e, sl_flight *f, sl_draft_item *items, int32_t n, int32_t j,
                           sl_err *err)
{
    sl_drafts *d = e->drafts;
    for (int32_t t = 0; t < n; t++)
        e->runs[t] = (sl_coord_run){.seq = items[d->live[t]].seq->row, .n = 1};
    SL_TRY(sl_coord_step_begin(e->coord, e->runs, n, err));
    sl_status st = enqueue_draft(e, f, items, n, j, err);
    d->now.alone = false;
    sl_status done = sl_be_sync(e->be, st == SL_OK ? err : NULL);
    if (st != SL_OK || done != SL_OK) {
        sl_coord_step_abort(e->coord);
        return st != SL_OK ? st : done;
    }
    sl_coord_step_end(e->coord);
    take_drafts(e, f, items, n, j);
    return SL_OK;
}

static void order_live(const sl_engine *e, const sl_draft_item *items, int32_t n_items)
{
    int32_t at = 0;
    for (int32_t n = e->item_tokens - 1; n > 0; n--)
        for (int32_t i = 0; i < n_items; i++)
            if (items[i].n == n)
                e->drafts->live[at++] = i;
}

/* The items that want a j-th token. */
static int32_t count_live(const sl_drafts *d, const sl_draft_item *items, int32_t n_items, int32_t j)
{
    int32_t n = n_items;
    while (n > 0 && items[d->live[n - 1]].n <= j)
        n--;
    return n;
}

static sl_status make_drafts(sl_engine *e, sl_flight *f, sl_draft_item *items, int32_t n_items, sl_err *err)
{
    sl_drafts *d = e->drafts;
    sl_status st;
    int32_t n = 0, passes = 0, most;
    uint64_t t0 = sl_now_ns();
    order_live(e, items, n_items);
    for (;; passes++) {
        n = count_live(d, items, n_items, passes);
        d->again =
            passes > 0 && e->cfg->draft_shares && (d->again || passes == 1) && sl_coord_again(e->coord);
        st = sl_agree_on_pass(e->agree, n, &most, err);
        if (st == SL_OK && most > 0)
            st = run_draft(e, f, items, n, passes, err);
        if (st != SL_OK || most == 0)
            break;
        e->stats.drafted += (uint64_t)n;
    }
    for (int32_t i = 0; i < n_items; i++) { /* the next step writes over their rows */
        const sl_coord_run run = {.seq = items[i].seq->row, .n = items[i].n < passes ? items[i].n : passes};
        sl_coord_step_rewind(e->coord, &run, 1);
    }
    e->stats.draft_ns += sl_now_ns() - t0;
    return st;
}

sl_status sl_drafts_run(sl_engine *e, sl_flight *f, sl_draft_item *items, int32_t n_items, sl_err *err)
{
    SL_TRY(check_drafts(e, items, n_items, err));
    return make_drafts(e, f, items, n_items, err);
}

sl_status sl_drafts_round(sl_engine *e, sl_flight *f, const sl_step_drafts *d, bool *begun, sl_err *err)
{
    const bool any = d && d->n > 0;
    const sl_status refused = any ? check_drafts(e, d->items, d->n, err) : SL_OK;
    const bool own = any && refused == SL_OK;
    const sl_status st =
        make_drafts(e, f, own ? d->items : NULL, own ? d->n : 0, refused == SL_OK ? err : NULL);
    *begun = st != SL_OK;
    if (own && st == SL_OK)
        d->made(d->ctx);
    return refused != SL_OK ? refused : st;
}
