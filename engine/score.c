/*
 * Log-probabilities of known tokens: those of a prompt, which a client wants to see.
 *
 * When the last layer has been computed, the head runs over the rows that are wanted, as many at once as there is room for
 * logits, and the sampling op is told which token to choose: the row's list of changes has one entry, which makes that token's
 * logit the largest one. What the op says of a token are the log-probabilities of the unchanged logits, so the result is that of
 * a step which had chosen it. The op is the same for prompts and for output, and so are its bits.
 *
 * The host waits for each part, because the next one takes its place. A prompt whose tokens are not scored pays nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_impl.h"

static const float FORCED = 1e30f; /* added to the token's logit: larger than any other */

/* What is uploaded for a part, on the host and on the device: [most] each. */
typedef struct parts {
    int32_t *at;         /* rows of the pass */
    sl_sample_row *rows; /* with lists on the device */
    uint8_t *lists;      /* sl_sample_list_bytes(1) each */
    sl_sampled *out;
} parts;

struct sl_scoring {
    const sl_flight *f; /* of the step that is being enqueued; NULL: it scores nothing */
    parts host, dev;
};

static sl_status make_host(parts *h, size_t most, sl_err *err)
{
    h->at = calloc(most, sizeof *h->at);
    h->rows = calloc(most, sizeof *h->rows);
    h->lists = calloc(most, sl_sample_list_bytes(1));
    h->out = calloc(most, sizeof *h->out);
    return h->at && h->rows && h->lists && h->out ? SL_OK
                                                  : sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
}

sl_status sl_scoring_init(sl_engine *e, sl_err *err)
{
    size_t most = (size_t)e->max_logits;
    struct sl_scoring *s = e->scoring = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    SL_TRY(make_host(&s->host, most, err));
    SL_TRY(sl_dmem_alloc(e->mem, most * sizeof *s->dev.at, (void **)&s->dev.at, err));
    SL_TRY(sl_dmem_alloc(e->mem, most * sizeof *s->dev.rows, (void **)&s->dev.rows, err));
    SL_TRY(sl_dmem_alloc(e->mem, most * sl_sample_list_bytes(1), (void **)&s->dev.lists, err));
    return sl_dmem_alloc(e->mem, most * sizeof *s->dev.out, (void **)&s->dev.out, err);
}

void sl_scoring_fini(sl_engine *e)
{
    struct sl_scoring *s = e->scoring;
    if (!s)
        return;
    free(s->host.at);
    free(s->host.rows);
    free(s->host.lists);
    free(s->host.out);
    sl_be_free(e->be, SL_MEM_DEVICE, s->dev.at);
    sl_be_free(e->be, SL_MEM_DEVICE, s->dev.rows);
    sl_be_free(e->be, SL_MEM_DEVICE, s->dev.lists);
    sl_be_free(e->be, SL_MEM_DEVICE, s->dev.out);
    free(s);
    e->scoring = NULL;
}

sl_status sl_scoring_check(const sl_step_item *it, sl_err *err)
{
    const sl_step_score *w = it->score;
    const sl_engine *e = it->seq->e;
    if (!w)
        return SL_OK;
    if (w->n < 1 || w->n > it->n_tokens || w->n_best < 0 || w->n_best > SL_LOGPROBS_MAX || it->want_logits ||
        it->follows)
        return sl_fail(err, SL_ERR_INVALID, "step: log-probabilities of %d of %d tokens, with the %d best",
                       w->n, it->n_tokens, w->n_best);
    if (!e->choices.device)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "step: the backend has no sampling op to score tokens with");
    for (int32_t i = 0; i < w->n; i++)
        if (w->next[i] < 0 || w->next[i] >= e->cfg->vocab_size)
            return sl_fail(err, SL_ERR_INVALID, "step: token id %d is outside the vocabulary of %d",
                           w->next[i], e->cfg->vocab_size);
    return SL_OK;
}

bool sl_scoring_of(const sl_flight *f)
{
    for (int32_t i = 0; i < f->n_items; i++)
        if (f->items[i].score)
            return true;
    return false;
}

void sl_scoring_begin(sl_engine *e, const sl_flight *f)
{
    e->scoring->f = sl_scoring_of(f) ? f : NULL;
}

bool sl_scoring_runs(const sl_engine *e)
{
    return e->scoring->f != NULL;
}

void sl_scoring_end(sl_engine *e)
{
    e->scoring->f = NULL;
}

/* Prepares the row that is the k-th of a part: the logits of row `at` of the pass, and this token. */
static void put_row(struct sl_scoring *s, int32_t k, int32_t at, int32_t token, int32_t n_best)
{
    const size_t bytes = sl_sample_list_bytes(1);
    sl_sample_list *list = (sl_sample_list *)(void *)(s->host.lists + (size_t)k * bytes);
    *list = (sl_sample_list){.n = 1, .room = 1};
    list->entry[0] = (sl_sample_entry){.id = token, .bias = FORCED};
    s->host.at[k] = at;
    s->host.rows[k] = (sl_sample_row){.top_p = (uint64_t)1 << 32,
                                      .list = (sl_sample_list *)(void *)(s->dev.lists + (size_t)k * bytes),
                                      .row = k,
                                      .n_logprobs = n_best,
                                      .repetition = 1};
}

/* Tokens [from, from + n) of what w scores, whose first token is row `first` of the pass. */
static sl_status score_part(sl_engine *e, sl_pass *p, sl_step_score *w, int32_t first, int32_t from,
                            int32_t n, sl_err *err)
{
    struct sl_scoring *s = e->scoring;
    sl_sample_params op = e->choices.op;
    size_t rows = (size_t)n;
    for (int32_t k = 0; k < n; k++)
        put_row(s, k, first + from + k, w->next[from + k], w->n_best);
    SL_TRY(sl_be_copy(e->be, s->dev.at, s->host.at, rows * sizeof *s->host.at, err));
    SL_TRY(sl_be_copy(e->be, s->dev.rows, s->host.rows, rows * sizeof *s->host.rows, err));
    SL_TRY(sl_be_copy(e->be, s->dev.lists, s->host.lists, rows * sl_sample_list_bytes(1), err));
    SL_TRY(sl_pass_logits(p, s->dev.at, n));
    op.rows = s->dev.rows;
    op.out = s->dev.out;
    op.next = NULL;
    op.n = n;
    SL_TRY(sl_be_run(e->be, SL_OP_SAMPLE, &op, err));
    SL_TRY(sl_be_copy(e->be, s->host.out, s->dev.out, rows * sizeof *s->host.out, err));
    SL_TRY(sl_be_sync(e->be, err));
    for (int32_t k = 0; k < n; k++) {
        sl_sampled *out = &w->out[from + k];
        *out = s->host.out[k];
        if (!out->fault && out->id != w->next[from + k]) { /* no bias lifts -inf */
            out->id = w->next[from + k];
            out->logprob = -INFINITY;
        }
    }
    return SL_OK;
}

sl_status sl_scoring_rows(void *ctx, sl_pass *p, sl_err *err)
{
    sl_engine *e = ctx;
    const sl_flight *f = e->scoring->f;
    int32_t first = 0;
    for (int32_t i = 0; i < f->n_items; first += f->items[i++].n_tokens) {
        sl_step_score *w = f->items[i].score;
        for (int32_t from = 0; w && from < w->n; from += e->max_logits) {
            int32_t left = w->n - from;
            SL_TRY(score_part(e, p, w, first, from, left < e->max_logits ? left : e->max_logits, err));
        }
    }
    return SL_OK;
}
