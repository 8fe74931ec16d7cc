/* The parts of a step: inputs are copied to the device, the forward pass runs, logits and tokens are copied back. flight.c
 * puts them together. */
#include "engine/blocks.h"
#include "engine/draft.h"
#include "engine/engine_impl.h"
#include "engine/sampling.h"
#include "engine/states.h"

#include <string.h>

#include "base/log.h"

static sl_status check_item(const sl_engine *e, const sl_step_item *it, sl_err *err)
{
    if (!it->seq || it->seq->e != e || !it->seq->open)
        return sl_fail(err, SL_ERR_INVALID, "step: a sequence is not open in this engine");
    SL_TRY(sl_states_check(it->seq, err));
    SL_TRY(sl_states_check_save(it, err));
    if (it->n_tokens < 1)
        return sl_fail(err, SL_ERR_INVALID, "step: a sequence appends %d tokens", it->n_tokens);
    if (it->n_tokens > sl_engine_seq_capacity(it->seq) - it->seq->len)
        return sl_fail(err, SL_ERR_EXHAUSTED, "step: a sequence of %d tokens appends %d, its pages hold %d",
                       it->seq->len, it->n_tokens, sl_engine_seq_capacity(it->seq));
    if (it->want_logits < 0 || it->want_logits > it->n_tokens)
        return sl_fail(err, SL_ERR_INVALID, "step: logits of the last %d of %d tokens", it->want_logits,
                       it->n_tokens);
    if (it->follows && !sl_engine_can_follow(e, it))
        return sl_fail(err, SL_ERR_INVALID, "step: an item follows a token that the device does not have");
    for (int32_t i = 0; i < it->n_tokens && !it->follows; i++)
        if (it->tokens[i] < 0 || it->tokens[i] >= e->cfg->vocab_size)
            return sl_fail(err, SL_ERR_INVALID, "step: token id %d is outside the vocabulary of %d",
                           it->tokens[i], e->cfg->vocab_size);
    SL_TRY(sl_scoring_check(it, err));
    return sl_choices_check(e, it, err);
}

sl_status sl_step_measure(sl_engine *e, sl_flight *f, sl_err *err)
{
    sl_step_plan *p = &f->p;
    if (f->n_items < (sl_agree_comm(e->agree) ? 0 : 1) || f->n_items > e->o.max_seqs)
        return sl_fail(err, SL_ERR_INVALID, "step: %d items, 1..%d are possible", f->n_items, e->o.max_seqs);
    *p = (sl_step_plan){0};
    for (int32_t i = 0; i < f->n_items; i++) {
        const sl_step_item *it = &f->items[i];
        SL_TRY(check_item(e, it, err));
        if (it->n_tokens > e->o.max_step_tokens - p->tokens)
            return sl_fail(err, SL_ERR_TOO_LARGE, "step: more than %d tokens", e->o.max_step_tokens);
        if (sl_item_rows(it) > e->max_logits - p->logits)
            return sl_fail(err, SL_ERR_TOO_LARGE, "step: logits of more than %d tokens", e->max_logits);
        e->runs[i] = (sl_coord_run){.seq = it->seq->row, .n = it->n_tokens};
        p->tokens += it->n_tokens, p->logits += sl_item_rows(it);
        p->per = it->n_tokens > p->per ? it->n_tokens : p->per;
        if (it->seq->len + it->n_tokens > p->context)
            p->context = it->seq->len + it->n_tokens;
    }
    p->own = p->tokens;
    return SL_OK;
}

sl_status sl_step_arrays_make(sl_engine *e, sl_mem_kind kind, sl_step_arrays *a, sl_err *err)
{
    size_t n = (size_t)e->o.max_step_tokens, total = 3 * n + (size_t)e->max_logits +
                                                     (e->cfg->n_draft ? n + (size_t)e->o.max_seqs : 0) +
                                                     n * (size_t)sl_states_turns(&e->geo, e->item_tokens);
    int32_t *base;
    SL_TRY(sl_dmem_alloc_in(e->mem, kind, total * 4, (void **)&base, err));
    *a = (sl_step_arrays){
        .ids = base, .token_seq = base + n, .token_pos = base + 2 * n, .logit_rows = base + 3 * n};
    return SL_OK;
}

static void place_arrays(const sl_engine *e, const sl_step_plan *p, sl_step_arrays *a)
{
    const int32_t n = p->tokens;
    a->token_seq = a->ids + n, a->token_pos = a->ids + 2 * n, a->logit_rows = a->ids + 3 * n;
    a->prev = a->logit_rows + p->logits, a->keep = a->prev + n;
    a->turns = e->drafts ? a->keep + e->o.max_seqs : a->prev;
}

void sl_step_place(sl_engine *e, sl_flight *f)
{
    place_arrays(e, &f->p, &f->in);
    place_arrays(e, &f->p, &e->in_dev);
    sl_states_place(e, f);
}

int32_t sl_step_words(const sl_engine *e, const sl_flight *f)
{
    return 3 * f->p.tokens + f->p.logits + (e->drafts ? f->p.tokens + e->o.max_seqs : 0) +
           e->states->turns.n * f->p.tokens;
}

/* Whether all ranks of the group have decode steps. */
static bool together(const sl_engine *e)
{
    return sl_graphs_together(e->graphs, sl_agree_group_tokens(e->agree));
}

/* Makes p a decode step of n items: it gets the padded sizes of its shape, and if any logits are wanted, it computes
 * those of all tokens. exact: it is to be captured. */
static void shape_step(sl_engine *e, int32_t n, sl_step_plan *p, bool exact)
{
    const bool group = sl_agree_comm(e->agree) != NULL;
    p->shape =
        sl_graphs_shape(e->graphs, n, p->per, p->context, p->logits > 0, sl_agree_group_tokens(e->agree));
    p->graph = sl_graphs_captures(e->graphs) && (!group || together(e));
    if (p->graph && !group && !exact)
        sl_graphs_choose(e->graphs, &p->shape);
    p->tokens = p->shape.tokens;
    p->logits = p->shape.logits ? p->shape.tokens : 0;
    sl_coord_step_shape(e->coord, p->shape.tokens, p->shape.per, p->shape.context);
}

static void fill_padding(sl_step_arrays *a, int32_t *t, int32_t end)
{
    for (; *t < end; ++*t)
        a->ids[*t] = 0, a->token_seq[*t] = -1, a->token_pos[*t] = 0;
}

/* In a decode step the tokens of item i begin at i * per. */
static void fill_arrays(sl_engine *e, sl_flight *f)
{
    sl_step_arrays *a = &f->in;
    const sl_step_plan *p = &f->p;
    int32_t t = 0, g = 0;
    sl_step_place(e, f);
    for (int32_t i = 0; i < f->n_items; i++) {
        const sl_step_item *it = &f->items[i];
        fill_padding(a, &t, i * p->shape.per);
        for (int32_t k = 0; k < it->n_tokens; k++, t++) {
            a->ids[t] = it->follows ? 0 : it->tokens[k];
            a->token_seq[t] = it->seq->row;
            a->token_pos[t] = it->seq->len + k;
        }
        for (int32_t k = sl_item_rows(it); p->shape.tokens == 0 && k > 0; k--)
            a->logit_rows[g++] = t - k;
    }
    fill_padding(a, &t, p->tokens);
    for (; g < p->logits; g++)
        a->logit_rows[g] = g;
    sl_drafts_fill(e, f);
    sl_states_fill(e, f);
}

/* The ids of items that follow come from where the step before has put them: one copy for each stretch that is there in the
 * same order, which is one for a batch that stays as it is. */
static sl_status copy_ids(sl_engine *e, const sl_flight *f, sl_err *err)
{
    int32_t to = 0, from = 0, n = 0, at = 0;
    for (int32_t i = 0; i <= f->n_items; i++) {
        const sl_step_item *it = i < f->n_items ? &f->items[i] : NULL;
        int32_t t = f->p.shape.tokens ? i * f->p.shape.per : at;
        bool goes_on = n > 0 && it && it->follows && t == to + n && it->seq->chosen_at == from + n;
        at += it ? it->n_tokens : 0;
        if (goes_on) {
            n++;
            continue;
        }
        SL_TRY(sl_be_copy(e->be, e->in_dev.ids + to, e->choices.next_dev + from, (size_t)n * 4, err));
        n = it && it->follows;
        to = t, from = n ? it->seq->chosen_at : 0;
    }
    return SL_OK;
}

static sl_status upload_step(sl_engine *e, sl_flight *f, sl_err *err)
{
    SL_TRY(sl_be_copy(e->be, e->in_dev.ids, f->in.ids, (size_t)sl_step_words(e, f) * 4, err));
    SL_TRY(copy_ids(e, f, err));
    for (int32_t i = 0; i < f->n_items; i++)
        SL_TRY(sl_engine_seq_upload(f->items[i].seq, &f->tables, err));
    return SL_OK;
}

static sl_status engine_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_engine *e = ctx;
    SL_TRY(sl_coord_attend(e->coord, call, err));
    return sl_reports_enqueued(e->reports, call->layer + 1, err);
}

sl_status sl_step_forward(sl_engine *e, int32_t n_tokens, int32_t n_logits, sl_err *err)
{
    sl_seq_tables tables = {
        .n_tokens = n_tokens,
        .n_seqs = e->o.max_seqs,
        .ld = e->ld,
        .token_seq = e->in_dev.token_seq,
        .token_pos = e->in_dev.token_pos,
        .host_pages = e->dev.host_pages,
        .index_pages = e->dev.index_pages,
        .row_pages = e->dev.row_pages,
        .hot_slot = e->dev.hot_slot,
        .turns = e->states->turns.n > 0 ? &e->states->turns : NULL,
    };
    sl_attend_seam seam = sl_coord_seam(e->coord);
    seam.attend = engine_attend, seam.ctx = e; /* the same call, and then the layer's event */
    seam.memory = sl_states_memory, seam.fetch = sl_blocks_fetch;
    sl_forward f = {
        .ids = e->in_dev.ids,
        .seqs = &tables,
        .logit_rows = e->in_dev.logit_rows,
        .n_logits = n_logits,
        .logits = e->logits_dev,
        .seam = seam,
        .draft = sl_drafts_pass(e),
        .group_tokens = sl_agree_tokens(e->agree),
        .rows = sl_scoring_runs(e) ? sl_scoring_rows : NULL,
        .rows_ctx = e,
    };
    sl_reports_begin(e->reports);
    sl_status st = sl_model_forward(e->model, &f, err);
    if (st != SL_OK)
        sl_coord_step_settle(e->coord);
    SL_TRY(st);
    return sl_reports_enqueued(e->reports, e->cfg->n_layers, err); /* the last ones may have no attention */
}

/* Enqueues the pass: one launch, or op by op. *fresh: its shape has no graph yet, so it is to be captured
 * afterwards. */
static sl_status enqueue(sl_engine *e, const sl_step_plan *p, bool *fresh, sl_err *err)
{
    sl_graph *graph = p->graph ? sl_graphs_find(e->graphs, &p->shape) : NULL;
    *fresh = p->graph && !graph;
    if (!graph)
        return sl_step_forward(e, p->tokens, p->logits, err);
    e->stats.graph_steps++;
    return sl_be_graph_launch(e->be, graph, err);
}

static sl_status stamp(sl_engine *e, const sl_flight *f, int at, sl_err *err)
{
    return e->sync ? SL_OK : sl_be_stamp(e->be, f->stamps_dev + at, err);
}

sl_status sl_step_results(sl_engine *e, sl_flight *f, sl_err *err)
{
    SL_TRY(sl_choices_enqueue(e, f, err));
    if (!e->unified && f->p.rows > 0)
        SL_TRY(sl_be_copy(e->be, e->logits_host, e->logits_dev,
                          (size_t)f->p.rows * (size_t)e->cfg->vocab_size * sizeof(float), err));
    SL_TRY(stamp(e, f, 1, err));
    if (!e->sync)
        SL_TRY(sl_be_copy(e->be, f->stamps, f->stamps_dev, 2 * sizeof *f->stamps, err));
    SL_TRY(sl_event_fence(e->be, f->end, err));
    if (e->sync)
        f->stamps[1] = sl_now_ns();
    return SL_OK;
}

sl_status sl_step_run(sl_engine *e, sl_flight *f, bool *fresh, sl_err *err)
{
    *fresh = false;
    f->stamps[0] = sl_now_ns();
    SL_TRY(sl_choices_prepare(e, f, f->p.shape.tokens ? f->p.shape.per : 0, err));
    SL_TRY(stamp(e, f, 0, err));
    SL_TRY(sl_states_save(f, err));
    SL_TRY(upload_step(e, f, err));
    sl_scoring_begin(e, f);
    sl_status st = enqueue(e, &f->p, fresh, err);
    sl_scoring_end(e);
    SL_TRY(st);
    if (!f->open)
        SL_TRY(sl_step_results(e, f, err));
    return sl_reports_finish(e->reports, err);
}

/* Captures the running step, whose ops have all run once in this shape. */
static sl_status capture(sl_engine *e, const sl_step_shape *shape, sl_err *err)
{
    sl_graph *graph = NULL;
    SL_TRY(sl_be_capture_begin(e->be, err));
    sl_status st = sl_step_forward(e, shape->tokens, shape->logits ? shape->tokens : 0, err);
    sl_status end = sl_be_capture_end(e->be, &graph, st == SL_OK ? err : NULL);
    if (st != SL_OK || end != SL_OK) {
        sl_graph_destroy(graph);
        return st != SL_OK ? st : end;
    }
    sl_graphs_add(e->graphs, shape, graph);
    e->stats.graph_captures++;
    return SL_OK;
}

void sl_step_capture(sl_engine *e, const sl_flight *f)
{
    sl_err why = {0};
    if (capture(e, &f->p.shape, &why) == SL_OK)
        return;
    sl_log(SL_LOG_WARN, "engine", "no_graphs", "decode steps run op by op, they cannot be captured: %s",
           why.text);
    sl_graphs_give_up(e->graphs);
}

void sl_step_capture_due(sl_engine *e, sl_flight *f)
{
    sl_step_shape s;
    if (!sl_graphs_take_due(e->graphs, &s))
        return;
    f->items = NULL, f->n_items = 0, f->open = false;
    f->p = (sl_step_plan){
        .tokens = s.tokens, .logits = s.logits ? s.tokens : 0, .context = s.context, .per = s.per};
    if (sl_graphs_find(e->graphs, &s) || sl_be_sync(e->be, NULL) != SL_OK ||
        sl_coord_step_begin(e->coord, e->runs, 0, NULL) != SL_OK)
        return; /* the next step finds the same */
    shape_step(e, s.tokens / s.per, &f->p, true);
    fill_arrays(e, f);
    sl_step_capture(e, f);
    sl_coord_step_end(e->coord);
}

/* In a group the ranks agree on tokens, not on sequences: their decode steps have one token of each. */
static bool is_decode(const sl_engine *e, const sl_step_plan *p, int32_t n, const sl_step_hooks *hooks)
{
    if (n < 1 || (hooks && hooks->layer_done) || p->per > (sl_agree_comm(e->agree) ? 1 : e->item_tokens))
        return false;
    return n <= sl_graphs_cap(e->graphs, p->per) && !sl_coord_step_once(e->coord);
}

/* A step of a group in which this rank has no tokens: its experts compute for the others. */
static void shape_idle(sl_engine *e, sl_step_plan *p)
{
    p->shape = (sl_step_shape){.group_tokens = sl_agree_tokens(e->agree)};
    p->graph = sl_graphs_captures(e->graphs) && together(e);
}

/* Whether rows of logits are to be copied to the host. */
static bool any_logits(const sl_flight *f)
{
    for (int32_t i = 0; i < f->n_items; i++)
        if (f->items[i].want_logits)
            return true;
    return false;
}

void sl_step_shape_of(sl_engine *e, sl_flight *f, const sl_step_hooks *hooks)
{
    sl_step_plan *p = &f->p;
    p->rows = p->logits;
    if (is_decode(e, p, f->n_items, hooks) && !sl_scoring_of(f)) {
        shape_step(e, f->n_items, p, false);
        p->rows = p->logits > 0 ? f->n_items * p->per : 0;
    } else if (f->n_items == 0) {
        shape_idle(e, p);
    }
    if (!any_logits(f))
        p->rows = 0;
    fill_arrays(e, f);
}

sl_status sl_step_warm(sl_engine *e, sl_flight *f, int32_t batch, int32_t per, int32_t context, sl_err *err)
{
    bool fresh;
    f->items = NULL, f->n_items = 0, f->open = false;
    f->p = (sl_step_plan){.tokens = batch * per, .logits = batch * per, .context = context, .per = per};
    SL_TRY(sl_blocks_step(e, err));
    SL_TRY(sl_coord_step_begin(e->coord, e->runs, 0, err));
    shape_step(e, batch, &f->p, true);
    fill_arrays(e, f);
    sl_status st = sl_step_run(e, f, &fresh, err);
    sl_status done = sl_be_sync(e->be, st == SL_OK ? err : NULL);
    if (st != SL_OK || done != SL_OK)
        goto abort_step;
    if (fresh)
        sl_step_capture(e, f);
    sl_coord_step_end(e->coord);
    return SL_OK;
abort_step:
    sl_coord_step_abort(e->coord);
    return st != SL_OK ? st : done;
}
