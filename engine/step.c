/* One step of an engine: inputs to the device, the forward pass, logits back; see engine.h. */
#include "engine/engine_impl.h"

#include "base/log.h"

static sl_status check_item(const sl_engine *e, const sl_step_item *it, sl_err *err)
{
    if (!it->seq || it->seq->e != e || !it->seq->open)
        return sl_fail(err, SL_ERR_INVALID, "step: a sequence is not open in this engine");
    if (it->n_tokens < 1)
        return sl_fail(err, SL_ERR_INVALID, "step: a sequence appends %d tokens", it->n_tokens);
    if (it->n_tokens > sl_engine_seq_capacity(it->seq) - it->seq->len)
        return sl_fail(err, SL_ERR_EXHAUSTED, "step: a sequence of %d tokens appends %d, its pages hold %d",
                       it->seq->len, it->n_tokens, sl_engine_seq_capacity(it->seq));
    for (int32_t i = 0; i < it->n_tokens; i++)
        if (it->tokens[i] < 0 || it->tokens[i] >= e->cfg->vocab_size)
            return sl_fail(err, SL_ERR_INVALID, "step: token id %d is outside the vocabulary of %d",
                           it->tokens[i], e->cfg->vocab_size);
    return SL_OK;
}

/* Fills the step's arrays; n_tokens and n_logits on success. */
static sl_status plan_step(sl_engine *e, const sl_step_item *items, int32_t n_items, int32_t *n_tokens,
                           int32_t *n_logits, sl_err *err)
{
    int32_t t = 0, g = 0;
    if (n_items < 1 || n_items > e->o.max_seqs)
        return sl_fail(err, SL_ERR_INVALID, "step: %d items, 1..%d are possible", n_items, e->o.max_seqs);
    for (int32_t i = 0; i < n_items; i++) {
        const sl_step_item *it = &items[i];
        sl_status st = check_item(e, it, err);
        if (st != SL_OK)
            return st;
        if (it->n_tokens > e->o.max_step_tokens - t)
            return sl_fail(err, SL_ERR_TOO_LARGE, "step: more than %d tokens", e->o.max_step_tokens);
        if (it->want_logits && g >= e->max_logits)
            return sl_fail(err, SL_ERR_TOO_LARGE, "step: logits of more than %d items", e->max_logits);
        e->runs[i] = (sl_coord_run){.seq = it->seq->row, .n = it->n_tokens};
        for (int32_t k = 0; k < it->n_tokens; k++, t++) {
            e->in_host.ids[t] = it->tokens[k];
            e->in_host.token_seq[t] = it->seq->row;
            e->in_host.token_pos[t] = it->seq->len + k;
        }
        if (it->want_logits)
            e->in_host.logit_rows[g++] = t - 1;
    }
    *n_tokens = t, *n_logits = g;
    return SL_OK;
}

static sl_status upload_step(sl_engine *e, const sl_step_item *items, int32_t n_items, int32_t n_tokens,
                             int32_t n_logits, sl_err *err)
{
    const int32_t *src[] = {e->in_host.ids, e->in_host.token_seq, e->in_host.token_pos,
                            e->in_host.logit_rows};
    int32_t *dst[] = {e->in_dev.ids, e->in_dev.token_seq, e->in_dev.token_pos, e->in_dev.logit_rows};
    sl_status st = SL_OK;
    for (int i = 0; i < 4 && st == SL_OK; i++)
        st = sl_be_copy(e->be, dst[i], src[i], (size_t)(i < 3 ? n_tokens : n_logits) * 4, err);
    for (int32_t i = 0; i < n_items && st == SL_OK; i++)
        st = sl_seq_upload(items[i].seq, err);
    return st;
}

/* Calls the hook for every further layer whose rows are in the host pages. Waits for all of them when `all`.
 */
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

static sl_status engine_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_engine *e = ctx;
    sl_status st = sl_coord_attend(e->coord, call, err);
    if (st == SL_OK && !e->sync && e->hooks && e->hooks->layer_done)
        st = sl_event_record(e->be, e->events[call->layer], err);
    if (st != SL_OK)
        return st;
    e->layers_run = call->layer + 1;
    return report_layers(e, false, err);
}

static sl_status run_step(sl_engine *e, int32_t n_tokens, int32_t n_logits, sl_err *err)
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
    sl_forward f = {
        .ids = e->in_dev.ids,
        .seqs = &tables,
        .logit_rows = e->in_dev.logit_rows,
        .n_logits = n_logits,
        .logits = e->logits_dev,
        .attend = engine_attend,
        .attend_ctx = e,
    };
    e->layers_done = e->layers_run = 0;
    sl_status st = sl_model_forward(e->model, &f, err);
    if (st == SL_OK && !e->unified)
        st = sl_be_copy(e->be, e->logits_host, e->logits_dev,
                        (size_t)n_logits * (size_t)e->cfg->vocab_size * sizeof(float), err);
    if (st == SL_OK)
        st = report_layers(e, true, err);
    sl_status done = sl_be_sync(
        e->be, st == SL_OK ? err : NULL); /* also after an error: nothing may run on into the next step */
    return st != SL_OK ? st : done;
}

sl_status sl_engine_step(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                         sl_err *err)
{
    uint64_t t0 = sl_now_ns();
    int32_t n_tokens = 0, n_logits = 0;
    sl_status st = plan_step(e, items, n_items, &n_tokens, &n_logits, err);
    if (st == SL_OK)
        st = sl_coord_step_begin(e->coord, e->runs, n_items, err);
    if (st != SL_OK)
        return st;
    e->hooks = hooks;
    st = upload_step(e, items, n_items, n_tokens, n_logits, err);
    if (st == SL_OK)
        st = run_step(e, n_tokens, n_logits, err);
    e->hooks = NULL;
    if (st != SL_OK) {
        sl_coord_step_abort(e->coord);
        return st;
    }
    sl_coord_step_end(e->coord);
    int32_t g = 0;
    for (int32_t i = 0; i < n_items; i++) {
        items[i].seq->len += items[i].n_tokens;
        items[i].logits = items[i].want_logits ? e->logits_host + (int64_t)g++ * e->cfg->vocab_size : NULL;
    }
    e->stats.steps++;
    e->stats.tokens += (uint64_t)n_tokens;
    e->stats.step_ns += sl_now_ns() - t0;
    return SL_OK;
}
