/*
 * Prompts that this worker computes itself (role both).
 *
 * A step of the batch takes a chunk of prompts with it: the tokens of running requests and those of prompts are items of
 * one step of the runner, so a prompt never adds a step between two tokens of a running request. How many tokens of which
 * prompt a step computes is decided as on a prefill worker (worker/prompt_queue.h), with one more bound: while a request
 * decodes, the prompt tokens of a step may take both.max_stall_ms (stall.h).
 *
 * The rows go straight to the pages that RESERVE has reserved. Pages enter the prefix tree as soon as they are full and
 * are sealed at the same time. Matched pages are verified while the rest of the prompt is computed; the first token
 * waits for the answer. A sequence is resident while its prompt is computed. When the prompt has ended it stays open if
 * the request joins the batch at once (residency.c), and is closed otherwise.
 */
#include <stdlib.h>

#include "decode/run/run_impl.h"

static const double FIRST_GUESS_NS = 1e5; /* of one prompt token, until a step was measured */
enum { PAGE = SL_PAGE_TOKENS, PARTS = 1024 /* the largest prefill.max_requests */ };

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

sl_status sl_prompts_open(sl_run *r, sl_err *err)
{
    const sl_prompt_opts *o = &r->o.prompts;
    sl_prompt_queue_opts q = {.chunk_tokens = o->chunk_tokens,
                              .automatic = o->automatic,
                              .max_prompts = o->max_requests,
                              .max_step_ns = o->max_step_ms * 1e6,
                              .short_step_ns = o->short_step_ms * 1e6,
                              .min_step_tokens = o->min_step_tokens,
                              .unit = r->runner->prompt_unit,
                              .max_context = r->runner->max_context,
                              .guess_ns = FIRST_GUESS_NS};
    if (!o->chunk_tokens)
        return SL_OK;
    if (o->declared)
        SL_TRY(sl_engine_random_pages_open(&r->random, r->geo, err));
    return sl_prompt_queue_open(&r->prompts, &q, err);
}

void sl_prompts_close(sl_run *r)
{
    sl_prompt_queue_close(&r->prompts);
    sl_engine_random_pages_close(&r->random);
}

/* ---- benchmarks: prompts that count as computed ---- */

/* Fills the pages of t that are declared as computed and are not in the cache. Returns the tokens that need not be computed. */
static int32_t declare(sl_run *r, const sl_ticket *t)
{
    int32_t pages = t->sampling.prompt_logprobs ? 0 : smaller(r->o.prompts.declared, t->n_tokens - 1) / PAGE;
    sl_run_ticket *x = sl_run_of(t);
    for (int32_t i = t->matched; i < pages && !x->filled; i++)
        sl_engine_random_pages_fill(&r->random, r->arena, sl_lease_pages(x->lease)[i]);
    x->filled = true;
    return pages > t->matched ? pages * PAGE : t->rows;
}

/* As if a step had computed them. */
static void declared(sl_run *r, sl_ticket *t, int32_t rows)
{
    sl_ticket_event ev = {.kind = SL_ON_STEP, .now_ns = sl_now_ns()};
    sl_core_event(&r->core, t, &ev);
    ev.kind = SL_ON_STEPPED;
    ev.stepped.rows = rows;
    sl_core_event(&r->core, t, &ev);
}

/* ---- admission ---- */

/*
 * A prompt that has waited may match pages that were computed meanwhile: it gets another lease then. Its own pages, of
 * which none is written yet, are free at once, so there is room for that. False: t has failed.
 */
static bool match_again(sl_run *r, sl_ticket *t)
{
    const sl_world *w = &r->core.world;
    int32_t had = t->matched;
    sl_grant g;
    if (t->jobs || sl_run_match(r, t) <= had)
        return true;
    w->release(w->ctx, t);
    sl_run_of(t)->filled = false;
    sl_status st = w->lease(w->ctx, t, &g);
    if (st != SL_OK) {
        sl_run_fail(r, t, st, "cannot lease pages again", "");
        return false;
    }
    sl_ticket_event ev = {.kind = SL_ON_GRANTED, .now_ns = sl_now_ns()};
    ev.granted.n_pages = g.n_pages;
    ev.granted.matched = g.matched;
    ev.granted.first = g.matched > had ? had : 0;
    ev.granted.verify = g.matched > had ? g.matched - had : 0;
    sl_core_event(&r->core, t, &ev);
    return t->state == SL_TICKET_PROMPT;
}

/* False: the device has no pages or no sequence for it now; it continues to wait. */
static bool begin(sl_run *r, sl_ticket *t)
{
    sl_err err = {0};
    sl_run_ticket *x = sl_run_of(t);
    sl_status st;
    if (!match_again(r, t))
        return true;
    int32_t rows = r->o.prompts.declared ? declare(r, t) : t->rows;
    do {
        st = sl_runner_open(r->runner, SL_RESIDENT, sl_lease_pages(x->lease), t->n_pages, rows, t->n_prompt,
                            &x->seq, &err);
    } while (st == SL_ERR_EXHAUSTED && sl_residency_give(r));
    if (st == SL_ERR_EXHAUSTED && sl_residency_held(r))
        return false;
    if (st == SL_OK)
        st = sl_run_states_begin(r, t, &err);
    if (st != SL_OK) {
        sl_run_fail(r, t, st, "cannot open the sequence: ", err.text);
        return true;
    }
    sl_scores_close(&x->scores);
    if (sl_scores_open(&x->scores, &t->sampling, t->tokens, (size_t)t->n_prompt) != SL_OK) {
        sl_run_fail(r, t, SL_ERR_NO_MEMORY, "out of memory for log-probabilities", "");
        return true;
    }
    x->seq_pages = t->n_pages;
    x->started_ns = sl_now_ns();
    r->st.prompt_reused += (uint64_t)t->rows;
    x->prompt = (sl_queued_prompt){
        .arrived = t->number, .tokens = t->n_tokens, .start = rows, .pos = rows, .ready = true, .owner = t};
    x->prompt.stop = sl_run_states_stop(r, t, rows);
    sl_prompt_queue_begin(&r->prompts, &x->prompt);
    sl_core_signal(&r->core, t, SL_ON_JOINED, x->started_ns);
    if (rows > t->rows)
        declared(r, t, rows);
    return true;
}

void sl_prompts_admit(sl_run *r)
{
    bool room = true;
    for (sl_ticket *t = NULL; room && (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(PROMPT)));) {
        if (!t->begun && sl_run_can_choose(r, t) && sl_prompt_queue_has_place(&r->prompts, t->n_tokens))
            room = begin(r, t);
    }
}

/* ---- steps ---- */

void sl_prompts_collect(sl_run *r, sl_run_flight *f)
{
    sl_prompt_queue_share(&r->prompts, sl_stall_max_ns(r->o.prompts.max_stall_ms, f->decoding));
    f->prompts = 0;
    f->scored.n = f->scored.tokens = 0;
    for (sl_queued_prompt *p = r->prompts.first; p; p = p->next) {
        const sl_ticket *t = p->owner;
        int32_t n = f->decoding + f->prompts;
        if (!p->take || t->state != SL_TICKET_PROMPT)
            continue;
        f->parts[n] = (sl_run_part){t->number, p->pos, p->pos + p->take, false};
        f->items[n] =
            (sl_step_item){.seq = sl_run_of(t)->seq,
                           .tokens = t->tokens + p->pos,
                           .n_tokens = p->take,
                           .sample = p->pos + p->take == p->tokens ? sl_run_sample(f, t, n, 0) : NULL,
                           .score = sl_scores_ask(&sl_run_of(t)->scores, p->pos, p->take, &f->scored,
                                                  r->o.prompts.max_requests, r->runner->max_step_tokens)};
        f->prompts++;
    }
}

void sl_prompts_begun(sl_run *r, const sl_run_flight *f)
{
    for (int32_t i = f->decoding; i < f->decoding + f->prompts; i++) {
        const sl_ticket *t = sl_tickets_number(&r->core.tickets, f->parts[i].number);
        sl_queued_prompt *p = &sl_run_of(t)->prompt;
        p->pos = f->parts[i].end;
        p->ready = p->pos < p->tokens && p->pos < p->stop; /* there a snapshot is made first */
    }
}

void sl_prompts_save(sl_run *r, const sl_run_flight *f)
{
    for (int32_t i = f->decoding; r->snapshot && i < f->decoding + f->prompts; i++) {
        sl_ticket *t = sl_tickets_number(&r->core.tickets, f->parts[i].number);
        sl_queued_prompt *p = t ? &sl_run_of(t)->prompt : NULL;
        sl_err err = {0};
        if (!t || t->state != SL_TICKET_PROMPT || f->parts[i].end != p->stop)
            continue;
        sl_status st = sl_run_states_save(r, t, p->stop, &err);
        p->stop = sl_run_states_stop(r, t, p->pos);
        p->ready = p->pos < p->tokens;
        if (st != SL_OK)
            sl_run_fail(r, t, st, "snapshot: ", err.text);
    }
}

void sl_prompts_measure(sl_run *r, const sl_run_flight *f, uint64_t ns)
{
    const sl_run_part *part = f->parts + f->decoding;
    sl_pace_part spans[PARTS];
    if (!f->prompts) {
        sl_stall_decoded(&r->stall, f->decoding, (double)ns);
        return;
    }
    for (int32_t i = 0; i < f->prompts; i++) {
        spans[i] = (sl_pace_part){part[i].first, part[i].end};
        r->st.prompt_tokens += (uint64_t)(part[i].end - part[i].first);
    }
    double mine = sl_stall_of_prompts(&r->stall, f->decoding, (double)ns);
    atomic_store(&r->role->load.prefill_rate, sl_prompt_queue_measured(&r->prompts, spans, f->prompts, mine));
    sl_histogram_observe(r->metrics.chunk, (double)ns / 1e9);
}

/* False: t has failed. */
static bool take_scores(sl_run *r, sl_ticket *t, const sl_run_part *part, const sl_step_item *it)
{
    sl_err err = {0};
    sl_status st = sl_scores_take(&sl_run_of(t)->scores, part->first, it->score, &err);
    if (st != SL_OK)
        sl_run_fail(r, t, st, "log-probabilities: ", err.text);
    return st == SL_OK;
}

/* Its rows are in the pages. After the last part the first token follows. */
void sl_prompts_computed(sl_run *r, const sl_run_part *part, const sl_step_item *it)
{
    sl_ticket *t = sl_tickets_number(&r->core.tickets, part->number);
    sl_ticket_event ev = {.kind = SL_ON_COMPUTED, .now_ns = sl_now_ns()};
    if (!t || t->state != SL_TICKET_PROMPT || !take_scores(r, t, part, it) || t->rows != t->n_tokens ||
        !sl_run_chosen(r, t, it, &ev.computed.first))
        return;
    ev.computed.cached_tokens = (uint32_t)(t->matched * PAGE);
    sl_pages_prompt_took(r->pages, t->n_tokens - t->matched * PAGE,
                         ev.now_ns > t->granted_ns ? ev.now_ns - t->granted_ns : 0);
    sl_prompt_queue_end(&r->prompts, &sl_run_of(t)->prompt);
    sl_core_event(&r->core, t, &ev);
}
