/* See eval.h: the loop over lengths, settings, tasks and documents. */
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "local/progress.h"

typedef struct run {
    const sl_eval_opts *o;
    const sl_eval_target *t;
    sl_eval_result *out;
    sl_local_progress progress;
    char what[128]; /* of the progress */
    uint64_t done, total;
} run;

/* A budget that holds every token of this length gives what the baseline gives. */
static bool skipped(const sl_eval_opts *o, int32_t length, int32_t setting)
{
    const sl_eval_setting *s = &o->settings[setting];
    return !s->baseline && s->budget >= o->lengths[length];
}

static sl_eval_spec spec_of(const run *r, int32_t task, int32_t length, int32_t index)
{
    return (sl_eval_spec){.task = r->o->tasks[task],
                          .style = r->o->style,
                          .length = r->o->lengths[length] - r->o->max_new - r->t->frame_tokens,
                          .seed = r->o->seed,
                          .index = index,
                          .counter = r->t->counter};
}

/* Makes the first two documents of every task and length, whose forms may differ, and opens every setting. */
static sl_status check(const run *r, sl_err *err)
{
    const sl_eval_opts *o = r->o;
    for (int32_t l = 0; l < o->n_lengths; l++) {
        for (int32_t i = 0; i < 2 * o->n_tasks; i++) {
            sl_eval_document d = {0};
            sl_eval_spec spec = spec_of(r, i / 2, l, i % 2);
            sl_status st = sl_eval_document_make(&spec, &d, err);
            sl_eval_document_free(&d);
            if (st != SL_OK)
                return sl_fail_in(err, st,
                                  "length %d (of which %d are for the answer and %d for the chat format)",
                                  o->lengths[l], o->max_new, r->t->frame_tokens);
        }
        for (int32_t s = 0; s < o->n_settings; s++)
            if (!skipped(o, l, s))
                SL_TRY(r->t->begin(r->t->ctx, &o->settings[s], o->lengths[l], err));
    }
    return SL_OK;
}

static sl_status ask(run *r, sl_eval_row *row, int32_t index, sl_err *err)
{
    sl_eval_document d = {0};
    sl_eval_answer a = {0};
    sl_eval_spec spec = spec_of(r, row->task, row->length, index);
    SL_TRY(sl_eval_document_make(&spec, &d, err));
    sl_status st = r->t->answer(r->t->ctx, d.user, r->o->max_new, &a, err);
    if (st == SL_OK) {
        row->documents++;
        row->right += sl_eval_right(&d, r->o->style, a.text);
        row->prompt_tokens += a.prompt_tokens;
        sl_eval_reads_add(&row->reads, &a.reads);
    }
    free(a.text);
    sl_eval_document_free(&d);
    return st;
}

static sl_status run_row(run *r, sl_eval_row *row, sl_err *err)
{
    const sl_eval_setting *s = &r->o->settings[row->setting];
    snprintf(r->what, sizeof r->what, "%s, %d tokens, %s%s%.0d", r->o->tasks[row->task]->name,
             r->o->lengths[row->length], s->name, s->budget ? " " : "", s->budget);
    for (int32_t i = 0; i < r->o->documents; i++) {
        if (r->o->stop && *r->o->stop)
            return SL_ERR_CANCELLED;
        SL_TRY(ask(r, row, i, err));
        sl_local_progress_update(&r->progress, ++r->done, r->total, "documents");
    }
    return SL_OK;
}

static sl_status run_all(run *r, sl_err *err)
{
    const sl_eval_opts *o = r->o;
    for (int32_t l = 0; l < o->n_lengths; l++)
        for (int32_t s = 0; s < o->n_settings; s++) {
            if (skipped(o, l, s))
                continue;
            SL_TRY(r->t->begin(r->t->ctx, &o->settings[s], o->lengths[l], err));
            for (int32_t t = 0; t < o->n_tasks; t++) {
                sl_eval_row *row = &r->out->rows[r->out->n_rows++];
                *row = (sl_eval_row){.task = t, .length = l, .setting = s};
                SL_TRY(run_row(r, row, err));
            }
        }
    return SL_OK;
}

static uint64_t count_documents(const sl_eval_opts *o)
{
    uint64_t n = 0;
    for (int32_t l = 0; l < o->n_lengths; l++)
        for (int32_t s = 0; s < o->n_settings; s++)
            n += skipped(o, l, s) ? 0 : (uint64_t)o->n_tasks * (uint64_t)o->documents;
    return n;
}

sl_status sl_eval_run(const sl_eval_opts *o, const sl_eval_target *t, sl_eval_result *out, sl_err *err)
{
    run r = {.o = o, .t = t, .out = out, .total = count_documents(o)};
    size_t most = (size_t)o->n_lengths * (size_t)o->n_settings * (size_t)o->n_tasks;
    *out = (sl_eval_result){.opts = o, .rows = calloc(most + 1, sizeof(sl_eval_row))};
    if (!out->rows)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for %zu results", most);
    SL_TRY(check(&r, err));
    sl_local_progress_begin(&r.progress, r.what);
    sl_status st = run_all(&r, err);
    sl_local_progress_end(&r.progress);
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
    return row && row->documents ? (double)row->right / row->documents : -1;
}

int32_t sl_eval_baseline(const sl_eval_opts *o)
{
    for (int32_t s = 0; s < o->n_settings; s++)
        if (o->settings[s].baseline)
            return s;
    return -1;
}
