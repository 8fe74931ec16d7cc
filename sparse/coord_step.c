/* A step begins and ends. See sparse.h. */
#include "sparse/coordinator_impl.h"

/* Pages of a prompt whose lists are of pages are computed as a whole: none has another list because a step computes a part of the page. */
static sl_status check_pages(const sl_coord *c, const sl_algo_run *r, sl_err *err)
{
    enum { PAGE = SL_PAGE_TOKENS };
    const int32_t whole = r->prompt / PAGE * PAGE, end = r->pos + r->n;
    if (r->pos >= whole || (r->pos % PAGE == 0 && (end >= whole || end % PAGE == 0)))
        return SL_OK;
    return sl_fail(
        err, SL_ERR_INVALID,
        "sparse algorithm %s: a step of tokens %d to %d of a prompt of %d tokens divides a page of %d",
        c->z.algo->name, r->pos, end - 1, r->prompt, PAGE);
}

/* The step's runs, and for an algorithm that selects at the end of prompts, which tokens are those of prompts. */
static sl_status see_prompts(sl_coord *c, sl_err *err)
{
    int32_t first = 0;
    c->in_prompt = false;
    c->all_prompt = c->z.algo->prompt && c->tracker.n_runs > 0;
    c->no_hot = true;
    c->n_runs = c->tracker.n_runs;
    for (int32_t i = 0; i < c->n_runs; i++) {
        const sl_coord_run *run = &c->tracker.runs[i];
        const sl_track *t = &c->tracker.rows[run->seq];
        c->runs[i] = (sl_algo_run){.seq = run->seq,
                                   .first = first,
                                   .n = run->n,
                                   .pos = t->len,
                                   .prompt = t->prompt,
                                   .hot = t->hot_slot >= 0};
        first += run->n;
        c->no_hot &= t->hot_slot < 0;
        if (!c->z.algo->prompt)
            continue;
        if (t->prompt < 1)
            return sl_fail(err, SL_ERR_INVALID,
                           "sparse algorithm %s: the end of the prompt of sequence row %d is not known",
                           c->z.algo->name, run->seq);
        if (t->len < t->prompt && t->hot_slot >= 0)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "sparse algorithm %s: sequence row %d is hierarchical before the end of its prompt",
                c->z.algo->name, run->seq);
        if (c->z.algo->prompt_lists)
            SL_TRY(check_pages(c, &c->runs[i], err));
        c->in_prompt |= t->len < t->prompt;
        c->all_prompt &= t->len + run->n <= t->prompt;
    }
    return SL_OK;
}

bool sl_coord_step_once(const sl_coord *c)
{
    return c->in_prompt || (c->z.algo->once && c->z.algo->once(c->algo, c->runs, c->n_runs));
}

/* Whether a hierarchical request appends several tokens. */
static bool several_hot(const sl_coord *c)
{
    for (int32_t i = 0; i < c->n_runs; i++)
        if (c->runs[i].hot && c->runs[i].n > 1)
            return true;
    return false;
}

sl_status sl_coord_step_begin(sl_coord *c, const sl_coord_run *runs, int32_t n_runs, sl_err *err)
{
    SL_TRY(sl_tracker_step_begin(&c->tracker, runs, n_runs, c->o.max_step_tokens, err));
    c->last_ids = NULL, c->last_k = 0;
    c->ahead.owner = c->ahead.last = -1;
    c->per = 1;
    sl_status st = see_prompts(c, err);
    if (st == SL_OK)
        st = sl_swapin_step(c->swapin, several_hot(c), err);
    if (st != SL_OK)
        sl_tracker_step_end(&c->tracker, false);
    return st;
}

void sl_coord_step_shape(sl_coord *c, int32_t tokens, int32_t per, int32_t context)
{
    SL_CHECK(c->tracker.in_step && tokens >= c->tracker.step_tokens && context > c->tracker.max_pos &&
                 tokens <= c->o.max_step_tokens && context <= c->o.max_context && per >= 1 &&
                 per <= c->z.run && tokens % per == 0 && tokens >= c->n_runs * per,
             "step of %d tokens up to %d padded to %d, %d for each run, up to %d", c->tracker.step_tokens,
             c->tracker.max_pos, tokens, per, context);
    for (int32_t i = 0; i < c->n_runs; i++) {
        SL_CHECK(c->runs[i].n <= per, "run of %d tokens in a step of %d for each", c->runs[i].n, per);
        c->runs[i].first = i * per;
    }
    c->per = per;
    sl_swapin_several(c->swapin, per > 1);
    c->tracker.step_tokens = tokens;
    c->tracker.max_pos = context - 1;
    c->tracker.shaped = true;
    c->no_hot = c->o.hot_slots == 0;
    c->all_prompt = false; /* a graph has no ops that are for the prompts of one step */
}

void sl_coord_rows_free(sl_coord *c, bool on)
{
    c->rows_free = on;
    sl_swapin_rows_free(c->swapin, on);
}

void sl_coord_step_end(sl_coord *c)
{
    sl_tracker_step_end(&c->tracker, true);
}

/* Resolve may have marked rows as present that gather did not copy. */
static void forget_rows(sl_coord *c, const sl_coord_run *runs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = c->tracker.rows[runs[i].seq].hot_slot;
        if (slot >= 0)
            (void)sl_swapin_reset(c->swapin, slot, false, NULL);
    }
}

void sl_coord_step_abort(sl_coord *c)
{
    forget_rows(c, c->tracker.runs, c->tracker.n_runs);
    sl_tracker_step_end(&c->tracker, false);
}

void sl_coord_step_rewind(sl_coord *c, const sl_coord_run *runs, int32_t n_runs)
{
    for (int32_t i = 0; i < n_runs; i++)
        SL_CHECK(runs[i].n < c->z.run, "%d of at most %d tokens are taken back", runs[i].n, c->z.run);
    sl_tracker_undo(&c->tracker, runs, n_runs);
}

void sl_coord_step_undo(sl_coord *c, const sl_coord_run *runs, int32_t n_runs)
{
    forget_rows(c, runs, n_runs);
    sl_tracker_undo(&c->tracker, runs, n_runs);
}
