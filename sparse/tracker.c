/* Request table of the coordinator; see tracker.h. */
#include "sparse/tracker.h"

#include <stdlib.h>

sl_status sl_tracker_init(sl_tracker *t, int32_t max_seqs, int32_t max_context, int32_t run_tokens)
{
    *t = (sl_tracker){.n = max_seqs, .max_context = max_context, .run_tokens = run_tokens};
    t->rows = calloc((size_t)max_seqs, sizeof *t->rows);
    t->run_buf = calloc((size_t)max_seqs, sizeof *t->run_buf);
    if (!t->rows || !t->run_buf) {
        sl_tracker_fini(t);
        return SL_ERR_NO_MEMORY;
    }
    return SL_OK;
}

void sl_tracker_fini(sl_tracker *t)
{
    free(t->rows);
    free(t->run_buf);
    *t = (sl_tracker){0};
}

sl_status sl_tracker_begin(sl_tracker *t, int32_t seq, int32_t len, int32_t hot_slot, sl_err *err)
{
    if (seq < 0 || seq >= t->n)
        return sl_fail(err, SL_ERR_INVALID, "sequence row %d is outside 0..%d", seq, t->n - 1);
    if (t->rows[seq].open)
        return sl_fail(err, SL_ERR_INVALID, "sequence row %d is in use", seq);
    if (len < 0 || len > t->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE, "sequence of %d tokens, at most %d fit", len, t->max_context);
    uint32_t gen = t->rows[seq].generation + 1;
    t->rows[seq] =
        (sl_track){.open = true, .len = len, .before = len, .hot_slot = hot_slot, .generation = gen};
    return SL_OK;
}

void sl_tracker_end(sl_tracker *t, int32_t seq)
{
    SL_CHECK(seq >= 0 && seq < t->n && t->rows[seq].open, "sequence row %d is not in use", seq);
    t->rows[seq].open = false;
}

static sl_status check_run(const sl_tracker *t, const sl_coord_run *r, int32_t max_step_tokens, sl_err *err)
{
    if (r->seq < 0 || r->seq >= t->n || !t->rows[r->seq].open)
        return sl_fail(err, SL_ERR_INVALID, "step: sequence row %d is not open", r->seq);
    const sl_track *s = &t->rows[r->seq];
    if (s->pending)
        return sl_fail(err, SL_ERR_INVALID, "step: sequence row %d appears twice", r->seq);
    if (r->n < 1)
        return sl_fail(err, SL_ERR_INVALID, "step: sequence row %d appends %d tokens", r->seq, r->n);
    if (s->hot_slot >= 0 && r->n > t->run_tokens)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "step: hierarchical sequence row %d appends %d tokens, its hot buffer is made for %d",
                       r->seq, r->n, t->run_tokens);
    if (r->n > t->max_context - s->len)
        return sl_fail(err, SL_ERR_TOO_LARGE, "step: sequence row %d grows to %d tokens, at most %d fit",
                       r->seq, s->len + r->n, t->max_context);
    if (r->n > max_step_tokens - t->step_tokens)
        return sl_fail(err, SL_ERR_TOO_LARGE, "step of more than %d tokens", max_step_tokens);
    return SL_OK;
}

sl_status sl_tracker_step_begin(sl_tracker *t, const sl_coord_run *runs, int32_t n_runs,
                                int32_t max_step_tokens, sl_err *err)
{
    SL_CHECK(!t->in_step, "step begun inside a step");
    t->n_runs = 0, t->step_tokens = 0, t->max_pos = -1;
    t->runs = t->run_buf;
    t->in_step = true;
    t->shaped = false;
    sl_status st;
    for (int32_t i = 0; i < n_runs; i++) {
        st = check_run(t, &runs[i], max_step_tokens, err);
        if (st != SL_OK)
            goto end_step;
        sl_track *s = &t->rows[runs[i].seq];
        s->pending = runs[i].n;
        t->run_buf[t->n_runs++] = runs[i];
        t->step_tokens += runs[i].n;
        if (s->len + runs[i].n - 1 > t->max_pos)
            t->max_pos = s->len + runs[i].n - 1;
    }
    return SL_OK;
end_step:
    sl_tracker_step_end(t, false);
    return st;
}

sl_status sl_tracker_truncate(sl_tracker *t, int32_t seq, int32_t len, sl_err *err)
{
    SL_CHECK(!t->in_step && seq >= 0 && seq < t->n && t->rows[seq].open, "truncation of row %d", seq);
    sl_track *s = &t->rows[seq];
    if (len < s->before || len > s->len)
        return sl_fail(err, SL_ERR_INVALID,
                       "truncate: a sequence of %d tokens, of which %d are older than its last step, cannot "
                       "have %d",
                       s->len, s->before, len);
    s->len = len;
    return SL_OK;
}

void sl_tracker_undo(sl_tracker *t, const sl_coord_run *runs, int32_t n)
{
    SL_CHECK(!t->in_step, "undo inside a step");
    for (int32_t i = 0; i < n; i++) {
        sl_track *s = &t->rows[runs[i].seq];
        SL_CHECK(s->open && s->len >= runs[i].n, "undo of row %d", runs[i].seq);
        s->len -= runs[i].n;
        s->before = s->before < s->len ? s->before : s->len;
    }
}

void sl_tracker_step_end(sl_tracker *t, bool commit)
{
    SL_CHECK(t->in_step, "no step to end");
    for (int32_t i = 0; i < t->n_runs; i++) {
        sl_track *s = &t->rows[t->runs[i].seq];
        if (commit)
            s->before = s->len, s->len += s->pending;
        s->pending = 0;
    }
    t->in_step = false;
}
