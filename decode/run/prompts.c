/*
 * Prompts that this worker computes itself (role both).
 *
 * A step of the batch takes a chunk of prompts with it: the tokens of running requests and those of prompts are items of
 * one step of the runner, so a prompt never adds a step between two tokens of a running request. How many tokens of which
 * prompt a step computes is decided as on a prefill worker (worker/order.h), with one more bound: while a request
 * decodes, the prompt tokens of a step may take both.max_stall_ms (stall.h).
 *
 * The rows go straight to the pages that RESERVE has reserved. Pages enter the prefix tree as soon as they are full and
 * are sealed at the same time. Matched pages are verified while the rest of the prompt is computed; the first token
 * waits for the answer. A sequence is resident while its prompt is computed. When the prompt has ended it stays open if
 * the request joins the batch at once (residency.c), and is closed otherwise.
 */
#include <stdlib.h>

#include "decode/run/run_impl.h"

static const uint64_t MS = 1000000;
static const double FIRST_GUESS_NS = 1e5; /* of one prompt token, until a step was measured */
enum { PAGE = SL_PAGE_TOKENS, PARTS = 1024 /* the largest prefill.max_requests */ };

sl_status sl_prompts_open(sl_run *r, sl_err *err)
{
    const sl_prompt_opts *o = &r->o.prompts;
    sl_prompts *p = &r->prompts;
    if (!o->chunk_tokens)
        return SL_OK;
    p->turn = calloc((size_t)o->max_requests, sizeof *p->turn);
    p->ticket = calloc((size_t)o->max_requests, sizeof(sl_ticket *));
    if (!p->turn || !p->ticket)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    p->bound = (sl_prefill_bound){.ns = (double)o->max_step_ms * (double)MS,
                                  .short_ns = (double)o->short_step_ms * (double)MS};
    return sl_pace_init(&p->pace, r->runner->max_context, FIRST_GUESS_NS, err);
}

void sl_prompts_close(sl_run *r)
{
    free(r->prompts.turn);
    free(r->prompts.ticket);
    sl_pace_free(&r->prompts.pace);
}

/* ---- admission ---- */

static bool is_long(const sl_run *r, const sl_ticket *t)
{
    return t->n_tokens > r->o.prompts.chunk_tokens;
}

static int32_t begun(const sl_run *r, int32_t *n_long)
{
    int32_t n = 0;
    *n_long = 0;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(PROMPT)));) {
        n += t->begun;
        *n_long += t->begun && is_long(r, t);
    }
    return n;
}

static bool has_place(const sl_run *r, const sl_ticket *t)
{
    int32_t n_long, n = begun(r, &n_long);
    return sl_prefill_has_place(n, n_long, is_long(r, t), r->o.prompts.max_requests);
}

/*
 * A prompt that has waited may match pages that were computed meanwhile: it gets another lease then. Its own pages, of
 * which none is written yet, are free at once, so there is room for that. False: t has failed.
 */
static bool match_again(sl_run *r, sl_ticket *t)
{
    const sl_world *w = &r->core.world;
    int32_t had = t->matched;
    sl_grant g;
    if (t->jobs || t->n_pages - w->missing(w->ctx, t) <= had)
        return true;
    w->release(w->ctx, t);
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
    int32_t n_long;
    sl_status st;
    if (!match_again(r, t))
        return true;
    do {
        st = sl_runner_open(r->runner, SL_RESIDENT, sl_lease_pages(x->lease), t->n_pages, t->matched * PAGE,
                            t->n_prompt, &x->seq, &err);
    } while (st == SL_ERR_EXHAUSTED && sl_residency_give(r));
    if (st == SL_ERR_EXHAUSTED && (r->core.tickets.count[SL_TICKET_RUNNING] || begun(r, &n_long)))
        return false;
    if (st != SL_OK) {
        sl_run_fail(r, t, st, "cannot open the sequence: ", err.text);
        return true;
    }
    x->seq_pages = t->n_pages;
    x->started_ns = sl_now_ns();
    r->st.prompt_reused += (uint64_t)t->rows;
    sl_core_signal(&r->core, t, SL_ON_JOINED, x->started_ns);
    return true;
}

void sl_prompts_admit(sl_run *r)
{
    bool room = true;
    for (sl_ticket *t = NULL; room && (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(PROMPT)));) {
        if (!t->begun && has_place(r, t))
            room = begin(r, t);
    }
}

/* ---- steps ---- */

int32_t sl_prompts_collect(sl_run *r, int32_t decoding)
{
    const sl_prompt_opts *o = &r->o.prompts;
    sl_prompts *p = &r->prompts;
    bool short_prompt = false;
    int32_t n = 0, parts = decoding;
    for (sl_ticket *t = NULL;
         o->chunk_tokens && (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(PROMPT)));) {
        if (!t->begun)
            continue;
        p->turn[n] = (sl_prefill_turn){.left = t->n_tokens - t->rows,
                                       .token_ns = sl_pace_token_ns(&p->pace, t->rows),
                                       .passed = sl_run_of(t)->passed};
        p->ticket[n++] = t;
        short_prompt |= t->n_tokens - t->matched * PAGE <= SL_PREFILL_SHORT_TOKENS;
    }
    if (!n)
        return 0;
    sl_prefill_limit limit = {.tokens = o->chunk_tokens,
                              .min_tokens = o->min_step_tokens > 0 ? o->min_step_tokens : 1};
    sl_prefill_bound_next(&p->bound, short_prompt, &limit);
    sl_stall_limit(o->max_stall_ms, decoding, &limit);
    sl_prefill_order(p->turn, n, &limit);
    for (int32_t i = 0; i < n; i++) {
        const sl_prefill_turn *turn = &p->turn[i];
        sl_ticket *t = p->ticket[i];
        sl_run_of(t)->passed = turn->passed;
        if (!turn->take)
            continue;
        r->parts[parts] = (sl_run_part){t->number, t->rows, t->rows + turn->take};
        r->items[parts++] = (sl_step_item){.seq = sl_run_of(t)->seq,
                                           .tokens = t->tokens + t->rows,
                                           .n_tokens = turn->take,
                                           .want_logits = turn->take == turn->left};
    }
    return parts - decoding;
}

void sl_prompts_measure(sl_run *r, int32_t decoding, int32_t n, uint64_t ns)
{
    sl_prompts *p = &r->prompts;
    const sl_run_part *part = r->parts + decoding;
    sl_pace_part spans[PARTS];
    int32_t tokens = 0;
    if (!n) {
        sl_stall_decoded(&p->stall, decoding, (double)ns);
        return;
    }
    double mine = sl_stall_of_prompts(&p->stall, decoding, (double)ns);
    for (int32_t i = 0; i < n; i++) {
        spans[i] = (sl_pace_part){part[i].first, part[i].end};
        tokens += part[i].end - part[i].first;
    }
    sl_pace_measured(&p->pace, spans, n, mine);
    atomic_store(&r->role->load.prefill_rate, sl_pace_rate_add(&p->rate, tokens, mine));
    sl_histogram_observe(r->metrics.chunk, (double)ns / 1e9);
    r->st.prompt_tokens += (uint64_t)tokens;
}

/* Its rows are in the pages. After the last part the first token follows. */
void sl_prompts_computed(sl_run *r, const sl_run_part *part, const float *logits)
{
    sl_ticket *t = sl_tickets_number(&r->core.tickets, part->number);
    sl_ticket_event ev = {.kind = SL_ON_COMPUTED, .now_ns = sl_now_ns()};
    if (!t || t->state != SL_TICKET_PROMPT || t->rows != t->n_tokens ||
        !sl_run_sample(r, t, logits, &ev.computed.first))
        return;
    ev.computed.cached_tokens = (uint32_t)(t->matched * PAGE);
    sl_pages_prompt_took(r->pages, t->n_tokens - t->matched * PAGE,
                         ev.now_ns > t->asked_ns ? ev.now_ns - t->asked_ns : 0);
    sl_core_event(&r->core, t, &ev);
}
