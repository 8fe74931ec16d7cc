/*
 * The steps of all requests that compute. One turn of the engine loop has four phases:
 *
 *   admit     tickets join the batch in the order of admission, while there are slots and device memory
 *   grow      every running ticket gets the page that its next row needs (growth.c)
 *   begin     the step is submitted: the runner takes the last token of every running ticket, appends its row and chooses
 *             the next one, and computes parts of prompts in the same step (prompts.c)
 *   end       the oldest step in flight is collected. Requests of which it has fetched damaged rows give way (checks.c). Its
 *             results are events for the tickets, which are known by their numbers: a ticket may have ended meanwhile
 *
 * Where the device computes by itself, two steps are in flight: while it computes one, this thread handles the results of
 * the one before and submits the next one. An item of that one follows the token that is not known yet. What is learnt too
 * late (the token ends the stream, the request was cancelled or gives way) costs that one item: its result is dropped, and as
 * nothing counts its row, no page that is sealed, published or verified has it. What follows from counts alone (pages, length
 * limits) is known in time. A request whose token the host must have first takes part in every second step, alone. The mask of a
 * constraint follows from the token before: a step with one is submitted without it, and chooses its tokens when the host has
 * that token and the mask, while its pass runs; a request whose masks take long takes part in every second step. An item
 * that is ahead takes nothing from other requests, and room is made when no step is in flight, so the decisions are those of one
 * step at a time. A group of ranks has one step at a time.
 *
 * Full pages are published as they fill, so that the next turn of a conversation finds them.
 */
#include <stdio.h>

#include "decode/run/run_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

/* ---- admission ---- */

static uint64_t us_between(uint64_t from, uint64_t to)
{
    return from && to > from ? (to - from) / 1000 : 0;
}

/* For the router's traces. */
static void tell_joined(sl_run *r, const sl_ticket *t, uint64_t now)
{
    const sl_run_ticket *x = sl_run_of(t);
    sl_msg m = {.type = SL_MSG_JOINED};
    m.joined = (sl_msg_joined){.rid = t->rid,
                               .attempt = t->attempt,
                               .load_us = us_between(x->at.asked, t->granted_ns),
                               .check_us = us_between(x->at.committed, x->at.waiting),
                               .wait_us = us_between(x->at.waiting, now)};
    sl_run_tell(r, t->router, &m);
}

/* False: there is no device memory now; t continues to wait. The host pages have the rows of all tokens except the last. */
static bool join(sl_run *r, sl_ticket *t)
{
    sl_err err = {0};
    sl_run_ticket *x = sl_run_of(t);
    sl_status st = x->seq ? sl_residency_adopt(r, t, &err) : sl_residency_open(r, t, &err);
    if (st == SL_OK) {
        x->seq_pages = sl_lease_n_pages(x->lease);
        sl_run_states_release(t);
        sl_answers_begin(t);
        uint64_t now = sl_now_ns();
        sl_core_signal(&r->core, t, SL_ON_JOINED, now);
        tell_joined(r, t, now);
        return true;
    }
    if (st == SL_ERR_EXHAUSTED && sl_residency_held(r))
        return false;
    sl_run_fail(r, t, st, "cannot open the sequence: ", err.text);
    return true;
}

static void admit(sl_run *r)
{
    for (sl_ticket *t; (t = sl_admission_next(&r->core)) && join(r, t);)
        ;
    /* A request that waits for a slot keeps no device memory; prompts that have not begun may need it. */
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(WAITING)));) {
        if (sl_run_of(t)->seq)
            sl_draft_state_take(&sl_run_of(t)->hidden, r->runner, sl_run_of(t)->seq);
        sl_run_close_seq(r, t);
    }
    if (r->role->draining)
        sl_admission_give_back(&r->core, sl_now_ns());
    sl_prompts_admit(r);
}

/* ---- a step begins ---- */

bool sl_run_can_choose(sl_run *r, sl_ticket *t)
{
    sl_constraint *c = sl_run_of(t)->constraint;
    sl_err err = {0};
    char why[400];
    if (!c)
        return true;
    if (t->steps) /* what is allowed next follows from the token that is in flight */
        return sl_constraint_keeps_up(c);
    sl_constraint_follow(c, t->tokens + t->n_prompt, (size_t)sl_ticket_produced(t));
    sl_status st = sl_constraint_failed(c, &err);
    if (st == SL_OK)
        return sl_constraint_ready(c);
    snprintf(why, sizeof why, "constraint: %.350s", err.text);
    sl_core_fail(&r->core, t, st, false, why, sl_now_ns());
    return false;
}

sl_step_sample *sl_run_sample(sl_run_flight *f, const sl_ticket *t, int32_t item, int32_t ahead)
{
    sl_step_sample *w = &f->samples[(size_t)item * (1 + SL_DRAFTS_MAX)];
    w->sampling = &t->sampling;
    w->history = (sl_history){.prompt = t->tokens,
                              .n_prompt = (size_t)t->n_prompt,
                              .output = t->tokens + t->n_prompt,
                              .n_output = (size_t)(sl_ticket_produced(t) + ahead)};
    sl_constraint_apply(sl_run_of(t)->constraint, w);
    return w;
}

/* Puts the next token of t into the step, if t can take part. */
static void put(sl_run *r, sl_run_flight *f, sl_ticket *t)
{
    int32_t n = f->decoding, ahead = (int32_t)t->steps;
    f->parts[n] = (sl_run_part){t->number, sl_run_tokens(t) - 1, sl_run_tokens(t), false};
    f->items[n] = (sl_step_item){.seq = sl_run_of(t)->seq,
                                 .tokens = &t->tokens[t->n_tokens - 1],
                                 .n_tokens = 1,
                                 .follows = ahead > 0,
                                 .sample = sl_run_sample(f, t, n, ahead)};
    if (!ahead || r->runner->can_follow(r->runner->impl, &f->items[n]))
        f->decoding++;
}

static void put_running(sl_run *r, sl_run_flight *f)
{
    f->decoding = 0;
    sl_run_grow(r);
    sl_laps_mark(&r->laps, SL_LAP_PAGES);
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(RUNNING)));)
        if (!sl_run_ends_in_flight(r, t) && sl_run_tokens(t) <= sl_run_of(t)->seq_pages * PAGE &&
            sl_run_can_choose(r, t))
            put(r, f, t);
}

static void tell_step(sl_run *r, const sl_run_flight *f)
{
    sl_ticket_event ev = {.kind = SL_ON_STEP, .now_ns = sl_now_ns()};
    for (int32_t i = 0; i < f->decoding + f->prompts; i++)
        sl_core_event_to(&r->core, f->parts[i].number, &ev);
}

/* rows: the step has computed the rows of its parts; else it failed with st, or (SL_OK) was not computed at all. */
static void tell_stepped(sl_run *r, const sl_run_flight *f, bool rows, sl_status st, const char *why)
{
    for (int32_t i = 0; i < f->decoding + f->prompts; i++) {
        const sl_ticket *t = sl_tickets_number(&r->core.tickets, f->parts[i].number);
        sl_ticket_event ev = {.kind = SL_ON_STEPPED, .now_ns = sl_now_ns()};
        ev.stepped.status = st;
        ev.stepped.why = why;
        ev.stepped.rows = rows || !t ? f->parts[i].end : t->rows;
        sl_core_event_to(&r->core, f->parts[i].number, &ev);
    }
}

/* The i-th step in flight, the oldest first. */
static sl_run_flight *flight_at(sl_run *r, int32_t i)
{
    return &r->flight[(r->first_flight + i) % SL_STEPS_IN_FLIGHT];
}

/* A step has failed, which is f or, if it was submitted, one in flight. */
static sl_status failed(sl_run *r, const sl_run_flight *f, sl_status st, const sl_err *err)
{
    char why[300];
    if (st > SL_ERR_DEVICE && sl_runner_broken(r->runner)) {
        tell_stepped(r, f, false, SL_OK, NULL);
        return SL_OK; /* the sessions with the routers end, and with them every ticket */
    }
    snprintf(why, sizeof why, "step: %.250s", err ? err->text : sl_status_name(st));
    tell_stepped(r, f, false, st, why);
    return st <= SL_ERR_DEVICE ? st : SL_OK;
}

/* No step has begun: the requests that would be in it are told so. */
static sl_status drafts_failed(sl_run *r, sl_run_flight *f, const sl_err *err)
{
    f->prompts = 0;
    tell_step(r, f);
    return failed(r, f, f->st, err);
}

/* Whether the steps in flight come first: tokens that are there do not wait for what the runner does with a device without work. */
static bool rests(const sl_run *r)
{
    return r->n_flights > 0 && r->runner->wants_rest && r->runner->wants_rest(r->runner->impl);
}

/* Submits a step of all that can compute. *begun: there was one. */
static sl_status begin(sl_run *r, bool *begun, sl_err *err)
{
    sl_run_flight *f = flight_at(r, r->n_flights);
    r->settle = false;
    if (rests(r))
        return SL_OK;
    put_running(r, f);
    sl_laps_mark(&r->laps, SL_LAP_ITEMS);
    if (r->settle) /* later */
        return SL_OK;
    sl_prompts_collect(r, f);
    int32_t n = f->decoding + f->prompts;
    if (!n)
        return SL_OK;
    *begun = true;
    sl_answers_put(r, f);
    f->st = sl_drafts_make(r, f, err);
    if (f->st != SL_OK)
        return drafts_failed(r, f, err);
    sl_prompts_begun(r, f);
    tell_step(r, f);
    f->began_ns = sl_now_ns();
    r->st.steps++;
    f->st = r->depth > 1 ? r->runner->submit(r->runner->impl, f->items, n, err)
                         : sl_runner_step(r->runner, f->items, n, sl_drafts_hooks(r), err);
    sl_laps_mark(&r->laps, SL_LAP_SUBMIT);
    if (f->st != SL_OK) {
        *begun = !sl_runner_broken(r->runner);
        return failed(r, f, f->st, err);
    }
    r->n_flights++;
    return SL_OK;
}

/* ---- a step ends ---- */

bool sl_run_chosen(sl_run *r, sl_ticket *t, const sl_step_item *it, sl_msg_token *out)
{
    sl_err err = {0};
    sl_status st = sl_worker_chosen(it->sample, out, &err);
    if (st != SL_OK)
        sl_run_fail(r, t, st, "sampling: ", err.text);
    return st == SL_OK;
}

/* The rows of drafts that stand are counted with the next step. */
static void take_token(sl_run *r, const sl_run_part *part, const sl_step_item *it)
{
    sl_ticket *t = sl_tickets_number(&r->core.tickets, part->number);
    sl_msg_token tokens[1 + SL_DRAFTS_MAX];
    sl_ticket_event ev = {.kind = SL_ON_TOKENS, .now_ns = sl_now_ns()};
    if (!t || t->state != SL_TICKET_RUNNING || !sl_run_chosen(r, t, it, &tokens[0]))
        return;
    ev.tokens.list = tokens;
    ev.tokens.n = sl_drafts_confirm(r, t, it);
    for (int32_t k = 1; k < ev.tokens.n; k++)
        tokens[k] = sl_worker_token(&it->sample[k].out);
    if (ev.tokens.n > 0)
        sl_core_event(&r->core, t, &ev);
}

static void results(sl_run *r, const sl_run_flight *f)
{
    for (int32_t i = 0; i < f->decoding; i++)
        take_token(r, &f->parts[i], &f->items[i]);
    for (int32_t i = f->decoding; i < f->decoding + f->prompts; i++)
        sl_prompts_computed(r, &f->parts[i], &f->items[i]);
}

/* The time of a step is the device's; of one that was waited for, that of the call. */
static void measure(sl_run *r, const sl_run_flight *f)
{
    uint64_t ns = r->depth > 1 ? r->runner->step_ns(r->runner->impl) : sl_now_ns() - f->began_ns;
    if (f->decoding) {
        sl_histogram_observe(r->metrics.step, (double)ns / 1e9);
        sl_histogram_observe(r->metrics.batch, f->decoding);
    }
    sl_constraints_stepped(r->role->constraints, ns);
    sl_drafts_measure(r, f, ns);
    sl_prompts_measure(r, f, ns);
}

/* A step in flight has failed with st: all of them are lost. */
static sl_status lost(sl_run *r, sl_status st, const sl_err *err)
{
    sl_status worst = SL_OK;
    while (r->n_flights > 0) {
        sl_status got = failed(r, flight_at(r, --r->n_flights), st, err);
        worst = got != SL_OK ? got : worst;
    }
    return worst;
}

/* The tokens of the step before are known: constraints of the step in flight learn theirs, so that their masks are made. */
static void follow(sl_run *r)
{
    const sl_run_flight *f = flight_at(r, 0);
    for (int32_t i = 0; r->n_flights > 0 && i < f->decoding; i++) {
        const sl_ticket *t = sl_tickets_number(&r->core.tickets, f->parts[i].number);
        if (t && t->state == SL_TICKET_RUNNING)
            sl_constraint_follow(sl_run_of(t)->constraint, t->tokens + t->n_prompt,
                                 (size_t)sl_ticket_produced(t));
    }
}

/* What the step means for the tickets. What clients are told is sent, as one message for each router; what no client waits for (seals,
 * pages that are published or released) is held. */
static void tell_clients(sl_run *r, const sl_run_flight *f)
{
    sl_core_hold(&r->core, true);
    sl_run_gather(r, true);
    sl_answers_stepped(r, f);
    tell_stepped(r, f, true, SL_OK, NULL);
    sl_run_fetched(r);
    results(r, f);
    sl_run_gather(r, false);
}

/* Waits for the oldest step in flight. Then the next one can choose, if it waited for these tokens. */
static sl_status end(sl_run *r, sl_err *err)
{
    sl_run_flight *f = flight_at(r, 0);
    sl_status st = r->depth > 1 ? r->runner->collect(r->runner->impl, err) : SL_OK;
    if (st != SL_OK)
        return lost(r, st, err);
    r->first_flight = (r->first_flight + 1) % SL_STEPS_IN_FLIGHT;
    r->n_flights--;
    sl_laps_mark(&r->laps, SL_LAP_WAIT);
    const uint64_t ended = r->runner->ended_ns ? r->runner->ended_ns(r->runner->impl) : 0;
    r->stepped.ns = ended ? ended : sl_now_ns();
    sl_prompts_save(r, f);
    tell_clients(r, f);
    sl_laps_sent(&r->laps, r->stepped.ns);
    follow(r);
    sl_core_hold(&r->core, false);
    measure(r, f);
    st = r->n_flights > 0 ? r->runner->choose(r->runner->impl, err) : SL_OK;
    return st == SL_OK ? SL_OK : lost(r, st, err);
}

void sl_run_settle(sl_run *r)
{
    while (r->n_flights > 0 && (r->depth == 1 || r->runner->collect(r->runner->impl, NULL) == SL_OK))
        r->n_flights--;
    r->n_flights = 0;
}

sl_status sl_run_step(sl_run *r, bool *worked, sl_err *err)
{
    bool begun = false;
    sl_laps_mark(&r->laps, SL_LAP_OTHER);
    admit(r);
    sl_laps_mark(&r->laps, SL_LAP_ADMIT);
    SL_TRY(begin(r, &begun, err));
    *worked = begun || r->n_flights > 0;
    if (!*worked && r->runner->rest)
        r->runner->rest(r->runner->impl);
    if (r->n_flights == r->depth || (r->n_flights > 0 && !begun))
        return end(r, err);
    return SL_OK;
}
