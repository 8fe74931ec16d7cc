/* See ask.h. */
#include "eval/ask.h"

#include "eval/dump.h"

#include <stdlib.h>
#include <string.h>

enum { USUAL_DOCUMENTS = 10 };

int32_t sl_eval_count(const sl_eval_opts *o, int32_t task, int32_t length)
{
    const sl_eval_source *s = &o->tasks[task];
    const int32_t asked = o->documents ? o->documents : s->file ? INT32_MAX : USUAL_DOCUMENTS;
    const int32_t most = s->file   ? s->file->n
                         : s->text ? sl_eval_windows(s->text, o->lengths[length])
                                   : asked;
    return asked < most ? asked : most;
}

/* ---- made from a seed ---- */

static sl_eval_spec spec_of(const sl_eval_running *r, int32_t task, int32_t length, int32_t index)
{
    return (sl_eval_spec){.task = r->o->tasks[task].made,
                          .style = r->o->style,
                          .length = r->o->lengths[length] - r->o->max_new - r->t->frame_tokens,
                          .seed = r->o->seed,
                          .index = index,
                          .counter = r->t->counter};
}

/* Makes the first two documents, whose forms may differ. */
static sl_status check_made(const sl_eval_running *r, int32_t task, int32_t length, sl_err *err)
{
    for (int32_t i = 0; i < 2; i++) {
        sl_eval_document d = {0};
        sl_eval_spec spec = spec_of(r, task, length, i);
        sl_status st = sl_eval_document_make(&spec, &d, err);
        sl_eval_document_free(&d);
        if (st != SL_OK)
            return sl_fail_in(err, st,
                              "length %d (of which %d are for the answer and %d for the chat format)",
                              r->o->lengths[length], r->o->max_new, r->t->frame_tokens);
    }
    return SL_OK;
}

static sl_status put(sl_eval_running *r, sl_eval_row *row, const sl_eval_question *q, sl_eval_answer *a,
                     sl_err *err)
{
    SL_TRY(r->t->answer(r->t->ctx, q, a, err));
    row->documents++;
    row->prompt_tokens += a->prompt_tokens;
    sl_eval_reads_add(&row->reads, &a->reads);
    return SL_OK;
}

static void add_score(sl_eval_row *row, double score)
{
    row->score += score;
    row->right += score > 1 - 1e-6;
}

static sl_status ask_made(sl_eval_running *r, sl_eval_row *row, int32_t index, sl_err *err)
{
    sl_eval_document d = {0};
    sl_eval_answer a = {0};
    sl_eval_spec spec = spec_of(r, row->task, row->length, index);
    SL_TRY(sl_eval_document_make(&spec, &d, err));
    const sl_eval_question q = {.user = d.user, .max_new = r->o->max_new, .chat = true};
    sl_status st = put(r, row, &q, &a, err);
    if (st == SL_OK)
        add_score(row, sl_eval_right(&d, r->o->style, a.text));
    free(a.text);
    sl_eval_document_free(&d);
    return st;
}

/* ---- of a file ---- */

static sl_eval_question question_of(const sl_eval_opts *o, const sl_eval_item *it)
{
    return (sl_eval_question){.user = it->prompt,
                              .prefix = it->prefix,
                              .max_new = it->max_new && !o->max_new_given ? it->max_new : o->max_new,
                              .chat = !o->no_chat && !it->no_chat,
                              .cut = o->too_long == SL_EVAL_LONG_CUT};
}

/* Tokens of prompt and answer; 0: the target does not know. */
static sl_status measure(const sl_eval_opts *o, const sl_eval_target *t, const sl_eval_file *f, int32_t index,
                         int32_t *out, sl_err *err)
{
    const sl_eval_question q = question_of(o, &f->items[index]);
    *out = 0;
    if (!t->measure)
        return SL_OK;
    sl_status st = t->measure(t->ctx, &q, out, err);
    *out += q.max_new;
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "%s:%d", f->path, f->items[index].line);
}

sl_status sl_eval_longest(const sl_eval_opts *o, const sl_eval_target *t, int32_t *out, sl_err *err)
{
    int32_t longest = 0, tokens;
    if (!t->measure)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the tokens of the questions are not known; give --lengths");
    for (int32_t i = 0; i < o->n_tasks; i++)
        for (int32_t k = 0; o->tasks[i].file && k < sl_eval_count(o, i, 0); k++) {
            SL_TRY(measure(o, t, o->tasks[i].file, k, &tokens, err));
            longest = tokens > longest ? tokens : longest;
        }
    *out = longest;
    return SL_OK;
}

static sl_status check_file(const sl_eval_running *r, int32_t task, int32_t length, sl_err *err)
{
    const sl_eval_file *f = r->o->tasks[task].file;
    int32_t tokens, fitting = 0;
    for (int32_t i = 0; i < sl_eval_count(r->o, task, length); i++) {
        SL_TRY(measure(r->o, r->t, f, i, &tokens, err));
        fitting += tokens <= r->o->lengths[length];
        if (tokens > r->o->lengths[length] && r->o->too_long == SL_EVAL_LONG_REFUSE)
            return sl_fail(
                err, SL_ERR_TOO_LARGE,
                "%s:%d: prompt and answer have %d tokens, more than the length of %d: --too-long cut leaves out the "
                "middle of such prompts, --too-long skip does not ask them",
                f->path, f->items[i].line, tokens, r->o->lengths[length]);
    }
    if (!fitting && r->o->too_long == SL_EVAL_LONG_SKIP)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: every question is longer than %d tokens", f->path,
                       r->o->lengths[length]);
    return SL_OK;
}

static sl_status ask_file(sl_eval_running *r, sl_eval_row *row, int32_t index, sl_err *err)
{
    const sl_eval_file *f = r->o->tasks[row->task].file;
    const sl_eval_item *it = &f->items[index];
    const sl_eval_question q = question_of(r->o, it);
    sl_eval_answer a = {0};
    int32_t tokens = 0;
    if (r->o->too_long == SL_EVAL_LONG_SKIP)
        SL_TRY(measure(r->o, r->t, f, index, &tokens, err));
    if (tokens > r->o->lengths[row->length]) {
        row->skipped++;
        return SL_OK;
    }
    sl_status st = put(r, row, &q, &a, err);
    if (st == SL_OK)
        add_score(row, sl_eval_item_score(it, a.text));
    free(a.text);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "%s:%d", f->path, it->line);
}

/* ---- a text ---- */

typedef struct comparison {
    sl_eval_next sums;
    float *dense;           /* [n][vocab]: of dense attention, which is kept or compared with */
    const int32_t *expects; /* [n] tokens that follow */
    bool keep;
} comparison;

static void seen(void *ctx, int32_t i, const float *logits, int32_t vocab)
{
    comparison *c = ctx;
    float *dense = c->dense + (int64_t)i * vocab;
    if (c->keep)
        memcpy(dense, logits, (size_t)vocab * sizeof *dense);
    sl_eval_next_see(&c->sums, dense, logits, vocab, c->expects[i]);
}

static sl_status check_text(const sl_eval_running *r, int32_t task, int32_t length, sl_err *err)
{
    const sl_eval_text *t = r->o->tasks[task].text;
    if (!r->t->follow)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--text compares logits, which a server does not give; use --model");
    if (r->o->lengths[length] < r->o->measured + 2 + (int32_t)t->n_begin)
        return sl_fail(err, SL_ERR_INVALID, "length %d has no prompt before the %d tokens that are measured",
                       r->o->lengths[length], r->o->measured);
    if (!sl_eval_windows(t, r->o->lengths[length]))
        return sl_fail(err, SL_ERR_INVALID, "%s: %zu tokens are less than one window of %d", t->name, t->n,
                       r->o->lengths[length]);
    return SL_OK;
}

/* The place of a window's logits, made when dense attention is the setting, which is the first. */
static sl_status dense_of(sl_eval_running *r, const sl_eval_row *row, int32_t index, float **out, sl_err *err)
{
    int32_t at = index;
    for (int32_t t = 0; t < row->task; t++)
        at += sl_eval_count(r->o, t, row->length);
    if (at >= r->n_dense) {
        float **v = realloc(r->dense, ((size_t)at + 1) * sizeof *v);
        if (!v)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        r->dense = v;
        while (r->n_dense <= at)
            v[r->n_dense++] = NULL;
    }
    if (!r->dense[at])
        r->dense[at] = malloc((size_t)r->o->measured * (size_t)r->t->vocab * sizeof(float));
    *out = r->dense[at];
    return *out ? SL_OK
                : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the logits of %d tokens", r->o->measured);
}

static sl_status ask_text(sl_eval_running *r, sl_eval_row *row, int32_t index, sl_err *err)
{
    const int32_t length = r->o->lengths[row->length], n = r->o->measured;
    comparison c = {.keep = r->o->settings[row->setting].baseline};
    sl_eval_reads reads = {0};
    SL_TRY(dense_of(r, row, index, &c.dense, err));
    int32_t *tokens = sl_eval_window(r->o->tasks[row->task].text, length, index);
    if (!tokens)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a window of %d tokens", length);
    c.expects = tokens + length - n;
    const sl_eval_follow f = {.tokens = tokens, .n_prompt = length - n - 1, .n = n, .seen = seen, .ctx = &c};
    sl_status st = r->t->follow(r->t->ctx, &f, &reads, err);
    if (st == SL_OK) {
        row->documents++;
        row->prompt_tokens += f.n_prompt;
        sl_eval_reads_add(&row->reads, &reads);
        sl_eval_next_add(&row->next, &c.sums);
    }
    free(tokens);
    return st;
}

void sl_eval_dense_forget(sl_eval_running *r)
{
    for (int32_t i = 0; i < r->n_dense; i++)
        free(r->dense[i]);
    free(r->dense);
    r->dense = NULL, r->n_dense = 0;
}

/* ---- any ---- */

sl_status sl_eval_check(const sl_eval_running *r, int32_t task, int32_t length, sl_err *err)
{
    const sl_eval_source *s = &r->o->tasks[task];
    return s->file   ? check_file(r, task, length, err)
           : s->text ? check_text(r, task, length, err)
                     : check_made(r, task, length, err);
}

sl_status sl_eval_ask(sl_eval_running *r, sl_eval_row *row, int32_t index, sl_err *err)
{
    const sl_eval_source *s = &r->o->tasks[row->task];
    const sl_eval_setting *set = &r->o->settings[row->setting];
    if (r->o->dump)
        sl_eval_dump_answer(r->o->dump, s->name, index, set->name, set->budget, r->o->lengths[row->length]);
    return s->file   ? ask_file(r, row, index, err)
           : s->text ? ask_text(r, row, index, err)
                     : ask_made(r, row, index, err);
}
