/* See eval.h: the loop over lengths, settings, tasks and documents. */
#include <stdlib.h>
#include <string.h>

#include "eval/ask.h"
#include "local/progress.h"

const char *const sl_eval_long_names[] = {"refuse", "cut", "skip", NULL};

bool sl_eval_left_out(const sl_eval_opts *o, int32_t length, int32_t setting)
{
    const sl_eval_setting *s = &o->settings[setting];
    return !s->baseline && s->budget >= o->lengths[length];
}

/* Refuses what cannot be asked, and opens every setting, before the first question. */
static sl_status check(const sl_eval_running *r, sl_err *err)
{
    const sl_eval_opts *o = r->o;
    for (int32_t l = 0; l < o->n_lengths; l++) {
        for (int32_t t = 0; t < o->n_tasks; t++)
            SL_TRY(sl_eval_check(r, t, l, err));
        for (int32_t s = 0; s < o->n_settings; s++)
            if (!sl_eval_left_out(o, l, s))
                SL_TRY(r->t->begin(r->t->ctx, &o->settings[s], o->lengths[l], err));
    }
    return SL_OK;
}

static sl_status run_row(sl_eval_running *r, sl_eval_row *row, sl_err *err)
{
    const sl_eval_setting *s = &r->o->settings[row->setting];
    const int32_t n = sl_eval_count(r->o, row->task, row->length);
    snprintf(r->what, sizeof r->what, "%s, %d tokens, %s%s%.0d", r->o->tasks[row->task].name,
             r->o->lengths[row->length], s->name, s->budget ? " " : "", s->budget);
    for (int32_t i = 0; i < n; i++) {
        if (r->o->stop && *r->o->stop)
            return SL_ERR_CANCELLED;
        SL_TRY(sl_eval_ask(r, row, i, err));
        sl_local_progress_update(&r->progress, ++r->done, r->total, "documents");
    }
    return SL_OK;
}

static sl_status run_setting(sl_eval_running *r, int32_t length, int32_t setting, sl_err *err)
{
    const sl_eval_opts *o = r->o;
    sl_status st = r->t->begin(r->t->ctx, &o->settings[setting], o->lengths[length], err);
    for (int32_t t = 0; t < o->n_tasks && st == SL_OK; t++) {
        sl_eval_row *row = &r->out->rows[r->out->n_rows++];
        *row = (sl_eval_row){.task = t, .length = length, .setting = setting};
        st = run_row(r, row, err);
        if (o->row_done && row->documents)
            o->row_done(o->row_ctx, r->out, row);
    }
    return st;
}

static sl_status run_all(sl_eval_running *r, sl_err *err)
{
    for (int32_t l = 0; l < r->o->n_lengths; l++) {
        for (int32_t s = 0; s < r->o->n_settings; s++)
            if (!sl_eval_left_out(r->o, l, s))
                SL_TRY(run_setting(r, l, s, err));
        sl_eval_dense_forget(r);
    }
    return SL_OK;
}

static uint64_t count_documents(const sl_eval_opts *o)
{
    uint64_t n = 0;
    for (int32_t l = 0; l < o->n_lengths; l++)
        for (int32_t s = 0; s < o->n_settings; s++)
            for (int32_t t = 0; t < o->n_tasks && !sl_eval_left_out(o, l, s); t++)
                n += (uint64_t)sl_eval_count(o, t, l);
    return n;
}

sl_status sl_eval_run(const sl_eval_opts *o, const sl_eval_target *t, sl_eval_result *out, sl_err *err)
{
    sl_eval_running r = {.o = o, .t = t, .out = out, .total = count_documents(o)};
    size_t most = (size_t)o->n_lengths * (size_t)o->n_settings * (size_t)o->n_tasks;
    *out = (sl_eval_result){.opts = o, .rows = calloc(most + 1, sizeof(sl_eval_row))};
    if (!out->rows)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for %zu results", most);
    SL_TRY(check(&r, err));
    sl_local_progress_begin(&r.progress, r.what);
    sl_status st = run_all(&r, err);
    sl_local_progress_end(&r.progress);
    sl_eval_dense_forget(&r);
    return st == SL_ERR_CANCELLED ? sl_fail(err, st, "interrupted after %llu of %llu documents",
                                            (unsigned long long)r.done, (unsigned long long)r.total)
                                  : st;
}

void sl_eval_result_free(sl_eval_result *r)
{
    free(r->rows);
    *r = (sl_eval_result){0};
}

const sl_eval_row *sl_eval_row_of(const sl_eval_result *r, int32_t task, int32_t length, int32_t setting)
{
    for (int32_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].task == task && r->rows[i].length == length && r->rows[i].setting == setting)
            return &r->rows[i];
    return NULL;
}

double sl_eval_accuracy(const sl_eval_row *row)
{
    if (!row || !row->documents)
        return -1;
    return row->next.tokens ? sl_eval_agreement(&row->next) : row->score / row->documents;
}

int64_t sl_eval_answers(const sl_eval_row *row)
{
    return !row ? 0 : row->next.tokens ? row->next.tokens : row->documents;
}

bool sl_eval_of_texts(const sl_eval_opts *o)
{
    return o->n_tasks > 0 && o->tasks[0].text != NULL;
}

int32_t sl_eval_baseline(const sl_eval_opts *o)
{
    for (int32_t s = 0; s < o->n_settings; s++)
        if (o->settings[s].baseline)
            return s;
    return -1;
}
