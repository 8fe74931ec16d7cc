/* One step of an engine: inputs are copied to the device, the forward pass runs, logits are copied back; see
 * engine.h. */
#include "engine/engine_impl.h"
#include "engine/states.h"

#include <string.h>

#include "base/log.h"

typedef struct step_plan {
    int32_t tokens, logits, context;
    int32_t per; /* most tokens of an item */
    sl_step_shape shape;
    bool graph; /* the shape may be captured: a decode step, or a step of a group without own tokens */
} step_plan;

static sl_status check_item(const sl_engine *e, const sl_step_item *it, sl_err *err)
{
    if (!it->seq || it->seq->e != e || !it->seq->open)
        return sl_fail(err, SL_ERR_INVALID, "step: a sequence is not open in this engine");
    SL_TRY(sl_states_check(it->seq, err));
    if (it->n_tokens < 1)
        return sl_fail(err, SL_ERR_INVALID, "step: a sequence appends %d tokens", it->n_tokens);
    if (it->n_tokens > sl_engine_seq_capacity(it->seq) - it->seq->len)
        return sl_fail(err, SL_ERR_EXHAUSTED, "step: a sequence of %d tokens appends %d, its pages hold %d",
                       it->seq->len, it->n_tokens, sl_engine_seq_capacity(it->seq));
    if (it->want_logits < 0 || it->want_logits > it->n_tokens)
        return sl_fail(err, SL_ERR_INVALID, "step: logits of the last %d of %d tokens", it->want_logits,
                       it->n_tokens);
    for (int32_t i = 0; i < it->n_tokens; i++)
        if (it->tokens[i] < 0 || it->tokens[i] >= e->cfg->vocab_size)
            return sl_fail(err, SL_ERR_INVALID, "step: token id %d is outside the vocabulary of %d",
                           it->tokens[i], e->cfg->vocab_size);
    return sl_choices_check(it, err);
}

/* Checks the items; p receives their tokens and wanted logits in total, and the length of the longest sequence
 * after the step. */
static sl_status measure_step(sl_engine *e, const sl_step_item *items, int32_t n_items, step_plan *p,
                              sl_err *err)
{
    if (n_items < (e->comm ? 0 : 1) || n_items > e->o.max_seqs)
        return sl_fail(err, SL_ERR_INVALID, "step: %d items, 1..%d are possible", n_items, e->o.max_seqs);
    *p = (step_plan){0};
    for (int32_t i = 0; i < n_items; i++) {
        const sl_step_item *it = &items[i];
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
    return SL_OK;
}

/* The arrays of a step of n tokens are contiguous, so that one copy sends them all. */
static void place_arrays(sl_step_arrays *a, int32_t n)
{
    a->token_seq = a->ids + n, a->token_pos = a->ids + 2 * n, a->logit_rows = a->ids + 3 * n;
}

/* Makes p a decode step of n items: it gets the padded sizes of its shape, and if any logits are wanted, it computes
 * those of all tokens. */
static void shape_step(sl_engine *e, int32_t n, step_plan *p)
{
    p->shape = sl_graphs_shape(e, n, p->per, p->context, p->logits > 0);
    p->graph = e->graphs && (!e->comm || sl_graphs_together(e));
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
static void fill_arrays(sl_engine *e, const sl_step_item *items, int32_t n_items, const step_plan *p)
{
    sl_step_arrays *a = &e->in_host;
    int32_t t = 0, g = 0;
    place_arrays(a, p->tokens);
    place_arrays(&e->in_dev, p->tokens);
    for (int32_t i = 0; i < n_items; i++) {
        const sl_step_item *it = &items[i];
        fill_padding(a, &t, i * p->shape.per);
        for (int32_t k = 0; k < it->n_tokens; k++, t++) {
            a->ids[t] = it->tokens[k];
            a->token_seq[t] = it->seq->row;
            a->token_pos[t] = it->seq->len + k;
        }
        for (int32_t k = sl_item_rows(it); p->shape.tokens == 0 && k > 0; k--)
            a->logit_rows[g++] = t - k;
    }
    fill_padding(a, &t, p->tokens);
    for (; g < p->logits; g++)
        a->logit_rows[g] = g;
}

static sl_status upload_step(sl_engine *e, const sl_step_item *items, int32_t n_items, const step_plan *p,
                             sl_err *err)
{
    size_t n = 3 * (size_t)p->tokens + (size_t)p->logits;
    SL_TRY(sl_be_copy(e->be, e->in_dev.ids, e->in_host.ids, n * 4, err));
    for (int32_t i = 0; i < n_items; i++)
        SL_TRY(sl_seq_upload(items[i].seq, err));
    return SL_OK;
}

/* Calls the hook for every further layer whose rows are in the host pages. With `all` it waits until this is true
 * of all layers. */
static sl_status report_layers(sl_engine *e, bool all, sl_err *err)
{
    if (!e->hooks || !e->hooks->layer_done)
        return SL_OK;
    while (e->layers_done < e->layers_run) {
        sl_status st = e->sync ? SL_OK : sl_event_query(e->events[e->layers_done]);
        if (st == SL_INPROGRESS && !all)
            return SL_OK;
        if (st == SL_INPROGRESS)
            continue;
        if (st != SL_OK)
            return sl_fail(err, st, "layer %d did not complete", e->layers_done);
        e->hooks->layer_done(e->hooks->ctx, e->layers_done++);
    }
    return SL_OK;
}

/* What the layers below n write to the host pages has been enqueued. */
static sl_status layers_enqueued(sl_engine *e, int32_t n, sl_err *err)
{
    for (; e->layers_run < n; e->layers_run++)
        if (!e->sync && e->hooks && e->hooks->layer_done)
            SL_TRY(sl_event_record(e->be, e->events[e->layers_run], err));
    return report_layers(e, false, err);
}

static sl_status engine_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_engine *e = ctx;
    SL_TRY(sl_coord_attend(e->coord, call, err));
    return layers_enqueued(e, call->layer + 1, err);
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
    };
    sl_attend_seam seam = sl_coord_seam(e->coord);
    seam.attend = engine_attend, seam.ctx = e; /* the same call, and then the layer's event */
    seam.memory = sl_states_memory;
    sl_forward f = {
        .ids = e->in_dev.ids,
        .seqs = &tables,
        .logit_rows = e->in_dev.logit_rows,
        .n_logits = n_logits,
        .logits = e->logits_dev,
        .seam = seam,
        .group_tokens = e->group_tokens,
    };
    e->layers_done = e->layers_run = 0;
    SL_TRY(sl_model_forward(e->model, &f, err));
    return layers_enqueued(e, e->cfg->n_layers, err); /* the last ones may have no attention */
}

/* Enqueues the step: one launch, or op by op. *fresh: its shape has no graph yet, so it is to be captured
 * afterwards. */
static sl_status enqueue(sl_engine *e, const step_plan *p, bool *fresh, sl_err *err)
{
    sl_graph *graph = p->graph ? sl_graphs_find(e, &p->shape) : NULL;
    *fresh = p->graph && !graph;
    if (!graph)
        return sl_step_forward(e, p->tokens, p->logits, err);
    e->stats.graph_steps++;
    return sl_be_graph_launch(e->be, graph, err);
}

/* Everything of a step up to the wait for its end. rows: how many rows of logits are copied to the host. */
static sl_status start_step(sl_engine *e, const step_plan *p, int32_t rows, bool *fresh, sl_err *err)
{
    SL_TRY(enqueue(e, p, fresh, err));
    SL_TRY(sl_choices_enqueue(e, err));
    if (!e->unified && rows > 0)
        SL_TRY(sl_be_copy(e->be, e->logits_host, e->logits_dev,
                          (size_t)rows * (size_t)e->cfg->vocab_size * sizeof(float), err));
    return report_layers(e, true, err);
}

static sl_status run_step(sl_engine *e, const step_plan *p, int32_t rows, sl_err *err)
{
    bool fresh;
    sl_status st = start_step(e, p, rows, &fresh, err);
    uint64_t t0 = sl_now_ns();
    /* Also after an error: no work of this step may still run when the next step begins. */
    sl_status done = sl_be_sync(e->be, st == SL_OK ? err : NULL);
    e->waited_ns = sl_now_ns() - t0;
    if (st == SL_OK && done == SL_OK && fresh) {
        sl_err why = {0};
        if (sl_graphs_capture(e, &p->shape, &why) != SL_OK) {
            sl_log(SL_LOG_WARN, "engine", "no_graphs",
                   "decode steps run op by op, they cannot be captured: %s", why.text);
            e->graphs = false;
        }
    }
    return st != SL_OK ? st : done;
}

/* In a group the ranks agree on tokens, not on sequences: their decode steps have one token of each. */
static bool is_decode(const sl_engine *e, const step_plan *p, int32_t n, const sl_step_hooks *hooks)
{
    if (n < 1 || (hooks && hooks->layer_done) || p->per > (e->comm ? 1 : e->item_tokens))
        return false;
    return n <= sl_graphs_cap(e, p->per) && !sl_coord_step_once(e->coord);
}

static void count_step(sl_engine *e, const step_plan *p, int32_t tokens, uint64_t ns)
{
    e->stats.steps++;
    e->stats.tokens += (uint64_t)tokens;
    e->stats.step_ns += ns;
    e->stats.host_ns += ns - e->waited_ns;
    if (p->shape.tokens == 0)
        return;
    e->stats.decode_steps++;
    e->stats.decode_ns += ns;
    e->stats.decode_host_ns += ns - e->waited_ns;
}

static sl_status upload_and_run(sl_engine *e, const sl_step_item *items, int32_t n_items, const step_plan *p,
                                int32_t rows, sl_err *err)
{
    SL_TRY(sl_choices_prepare(e, items, n_items, p->shape.tokens ? p->shape.per : 0, err));
    SL_TRY(upload_step(e, items, n_items, p, err));
    return run_step(e, p, rows, err);
}

/*
 * The ranks of a group agree on a step: each learns the most tokens of any rank. The padded number is a size of the
 * exchanges and is the same on all ranks, so it depends on nothing that may differ between them.
 */
static sl_status agree(sl_engine *e, int32_t tokens, sl_err *err)
{
    e->group_tokens = tokens;
    if (!e->comm)
        return SL_OK;
    int32_t ranks = sl_comm_ranks(e->comm);
    sl_step_share own = {tokens, e->flags};
    SL_TRY(sl_comm_agree(e->comm, &own, e->shares, sizeof own, err));
    for (int32_t r = 0; r < ranks; r++)
        e->group_tokens = e->shares[r].tokens > e->group_tokens ? e->shares[r].tokens : e->group_tokens;
    if (e->group_tokens > 0)
        e->group_tokens = sl_graphs_pad(e->group_tokens, e->o.max_step_tokens);
    e->agreed++;
    return SL_OK;
}

/* A step of a group in which this rank has no tokens: its experts compute for the others. */
static void shape_idle(sl_engine *e, step_plan *p)
{
    p->shape = (sl_step_shape){.group_tokens = e->group_tokens};
    p->graph = e->graphs && e->comm && sl_graphs_together(e);
}

/* Whether rows of logits are to be copied to the host. */
static bool any_logits(const sl_step_item *items, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (items[i].want_logits)
            return true;
    return false;
}

/* The rows of logits of each item, which are those of its last tokens, and the tokens that were chosen. */
static void give_results(sl_engine *e, sl_step_item *items, int32_t n_items, const step_plan *p)
{
    int32_t g = 0;
    for (int32_t i = 0; i < n_items; i++) {
        sl_step_item *it = &items[i];
        int32_t row = p->shape.tokens ? i * p->shape.per + it->n_tokens - it->want_logits
                                      : g + sl_item_rows(it) - it->want_logits;
        g += sl_item_rows(it);
        it->logits = it->want_logits ? e->logits_host + (int64_t)row * e->cfg->vocab_size : NULL;
    }
    sl_choices_finish(e);
}

/* *begun: whether the ranks of the group have met for this step. */
static sl_status step(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                      bool *begun, sl_err *err)
{
    uint64_t t0 = sl_now_ns();
    step_plan p;
    SL_TRY(measure_step(e, items, n_items, &p, err));
    SL_TRY(sl_coord_step_begin(e->coord, e->runs, n_items, err));
    int32_t tokens = p.tokens, rows = p.logits;
    *begun = true;
    sl_status st = agree(e, p.tokens, err);
    if (st != SL_OK)
        goto abort_step;
    if (is_decode(e, &p, n_items, hooks)) {
        shape_step(e, n_items, &p);
        rows = p.logits > 0 ? n_items * p.per : 0;
    } else if (n_items == 0) {
        shape_idle(e, &p);
    }
    if (!any_logits(items, n_items))
        rows = 0;
    fill_arrays(e, items, n_items, &p);
    e->hooks = hooks;
    st = upload_and_run(e, items, n_items, &p, rows, err);
    e->hooks = NULL;
    for (int32_t i = 0; i < n_items; i++) {
        items[i].seq->len += st == SL_OK ? items[i].n_tokens : 0;
        sl_states_stepped(items[i].seq, st != SL_OK);
    }
    if (st != SL_OK)
        goto abort_step;
    sl_coord_step_end(e->coord);
    give_results(e, items, n_items, &p);
    if (n_items > 0)
        count_step(e, &p, tokens, sl_now_ns() - t0);
    return SL_OK;
abort_step:
    sl_choices_abort(e);
    sl_coord_step_abort(e->coord);
    return st;
}

sl_status sl_engine_step(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                         sl_err *err)
{
    bool begun = false;
    sl_status st = step(e, items, n_items, hooks, &begun, err);
    if (st == SL_OK || !e->comm)
        return st;
    if (!begun)
        (void)step(e, NULL, 0, NULL, &begun, NULL); /* the other ranks wait for this one */
    else if (sl_comm_state(e->comm, NULL) == SL_OK)
        sl_comm_abort(e->comm); /* this rank will not come to the exchanges of this step */
    return st;
}

void sl_engine_set_comm(sl_engine *e, sl_comm *comm)
{
    sl_graphs_clear(e);
    sl_model_set_comm(e->model, comm);
    e->comm = comm;
    e->agreed = 0;
}

void sl_engine_set_flags(sl_engine *e, uint32_t flags)
{
    e->flags = flags;
}

sl_ep_load sl_engine_expert_load(const sl_engine *e)
{
    return sl_model_expert_load(e->model);
}

const sl_step_share *sl_engine_shares(const sl_engine *e, uint64_t *steps)
{
    *steps = e->agreed;
    return e->shares;
}

/* A step of padding alone: it runs every op once and changes no cache. */
static sl_status warm(sl_engine *e, int32_t batch, int32_t per, int32_t context, sl_err *err)
{
    step_plan p = {.tokens = batch * per, .logits = batch * per, .context = context, .per = per};
    SL_TRY(sl_coord_step_begin(e->coord, e->runs, 0, err));
    shape_step(e, batch, &p);
    fill_arrays(e, NULL, 0, &p);
    sl_status st = upload_and_run(e, NULL, 0, &p, 0, err);
    if (st != SL_OK)
        goto abort_step;
    sl_coord_step_end(e->coord);
    return SL_OK;
abort_step:
    sl_coord_step_abort(e->coord);
    return st;
}

typedef struct shape_walk {
    bool run; /* calls warm() for each shape; otherwise they are counted */
    int32_t most, made, of;
    void (*done)(void *ctx, int32_t n, int32_t of);
    void *ctx;
} shape_walk;

/* The shapes of up to `batch` sequences, `per` tokens for each, of one context. */
static sl_status each_batch(sl_engine *e, int32_t batch, int32_t per, int32_t context, shape_walk *w,
                            sl_err *err)
{
    const int32_t cap = sl_graphs_cap(e, per);
    for (int32_t b = batch < cap ? batch : cap; b >= 1 && w->made < w->most;) {
        const sl_step_shape s = sl_graphs_shape(e, b, per, context, true);
        if (w->run)
            SL_TRY(warm(e, b, per, context, err));
        w->made++;
        if (w->run && w->done)
            w->done(w->ctx, w->made, w->of);
        while (b >= 1 && sl_graphs_shape(e, b, per, context, true).tokens == s.tokens)
            b--;
    }
    return SL_OK;
}

/* All shapes up to the limits, at most w->most. */
static sl_status each_shape(sl_engine *e, int32_t batch, int32_t context, shape_walk *w, sl_err *err)
{
    for (int32_t c = 1; c <= context && w->made < w->most;) {
        for (int32_t per = 1; per <= e->item_tokens; per++)
            SL_TRY(each_batch(e, batch, per, c, w, err));
        c = sl_graphs_shape(e, 1, 1, c, true).context + 1;
    }
    return SL_OK;
}

sl_status sl_engine_capture(sl_engine *e, int32_t max_batch, int32_t max_context,
                            void (*done)(void *ctx, int32_t n, int32_t of), void *ctx, sl_err *err)
{
    if (!e->graphs || e->decode_cap < 1 || sl_model_get_opts(e->model)->ranks > 1)
        return SL_OK;
    int32_t context = max_context < e->o.max_context ? max_context : e->o.max_context;
    shape_walk count = {.most = e->max_graphs};
    (void)each_shape(e, max_batch, context, &count, NULL);
    shape_walk walk = {.run = true, .most = e->max_graphs, .of = count.made, .done = done, .ctx = ctx};
    return each_shape(e, max_batch, context, &walk, err);
}
