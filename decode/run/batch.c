/*
 * One step of all requests that compute. One turn of the engine loop has five phases:
 *
 *   admit     tickets join the batch in the order of admission, while there are slots and device memory
 *   grow      every running ticket gets the page that its next row needs. When there is none, on the host or on the
 *             device, a resident ticket is spilled or admission makes room
 *   compute   the runner takes the last token of every running ticket, appends its row and chooses the next one, and computes
 *             parts of prompts in the same step (prompts.c)
 *   fetched   requests of which the step has fetched damaged rows give way (checks.c)
 *   results   are events for the tickets, which are known by their numbers: a ticket may have ended meanwhile
 *
 * Full pages are published as they fill, so that the next turn of a conversation finds them.
 */
#include <stdio.h>

#include "decode/run/run_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

/* ---- admission ---- */

/* False: there is no device memory now; t continues to wait. The host pages have the rows of all tokens except the last. */
static bool join(sl_run *r, sl_ticket *t)
{
    sl_err err = {0};
    sl_run_ticket *x = sl_run_of(t);
    sl_status st = x->seq ? sl_residency_adopt(r, t, &err) : sl_residency_open(r, t, &err);
    if (st == SL_OK) {
        x->seq_pages = sl_lease_n_pages(x->lease);
        sl_core_signal(&r->core, t, SL_ON_JOINED, sl_now_ns());
        return true;
    }
    if (st == SL_ERR_EXHAUSTED && r->core.tickets.count[SL_TICKET_RUNNING])
        return false;
    sl_run_fail(r, t, st, "cannot open the sequence: ", err.text);
    return true;
}

static void admit(sl_run *r)
{
    for (sl_ticket *t; (t = sl_admission_next(&r->core)) && join(r, t);)
        ;
    /* A request that waits for a slot keeps no device memory; prompts that have not begun may need it. */
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(WAITING)));)
        sl_run_close_seq(r, t);
    if (r->role->draining)
        sl_admission_give_back(&r->core, sl_now_ns());
    sl_prompts_admit(r);
}

/* ---- pages for the next rows ---- */

static void grow_host(sl_run *r, sl_ticket *t)
{
    sl_lease *lease = sl_run_of(t)->lease;
    int32_t have = sl_lease_n_pages(lease);
    if (sl_lease_grow(lease, 1) == SL_OK)
        sl_run_forget_sums(r, lease, have);
    else
        sl_admission_make_room(&r->core, t, "no host pages", have + 1, sl_arena_pages(r->arena), sl_now_ns());
}

static void grow_device(sl_run *r, sl_ticket *t)
{
    sl_err err = {0};
    sl_run_ticket *x = sl_run_of(t);
    int32_t have = sl_lease_n_pages(x->lease);
    sl_status st = r->runner->add_pages(r->runner->impl, x->seq, sl_lease_pages(x->lease) + x->seq_pages,
                                        have - x->seq_pages, &err);
    if (st == SL_OK)
        x->seq_pages = have;
    else if (st != SL_ERR_EXHAUSTED)
        sl_run_fail(r, t, st, "cannot grow: ", err.text);
    else if (!sl_residency_relieve(r, t))
        sl_admission_make_room(&r->core, t, "no device pages", 1, 0, sl_now_ns());
}

/* Each turn of the inner loop brings a page or ends a ticket, which may be t. */
static void grow(sl_run *r)
{
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(RUNNING)));) {
        sl_run_ticket *x = sl_run_of(t);
        while (t->state == SL_TICKET_RUNNING) {
            if (t->n_tokens > sl_lease_n_pages(x->lease) * PAGE)
                grow_host(r, t);
            else if (x->seq_pages < sl_lease_n_pages(x->lease))
                grow_device(r, t);
            else
                break;
        }
    }
}

/* ---- the step ---- */

sl_step_sample *sl_run_sample(sl_run *r, const sl_ticket *t, int32_t item)
{
    sl_step_sample *w = &r->samples[item];
    w->sampling = &t->sampling;
    w->history = (sl_history){.prompt = t->tokens,
                              .n_prompt = (size_t)t->n_prompt,
                              .output = t->tokens + t->n_prompt,
                              .n_output = (size_t)sl_ticket_produced(t)};
    return w;
}

/* Puts the running tickets into the step. Returns their number. */
static int32_t collect(sl_run *r)
{
    int32_t n = 0;
    grow(r);
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(RUNNING)));) {
        r->parts[n] = (sl_run_part){t->number, t->n_tokens - 1, t->n_tokens};
        r->items[n] = (sl_step_item){.seq = sl_run_of(t)->seq,
                                     .tokens = &t->tokens[t->n_tokens - 1],
                                     .n_tokens = 1,
                                     .sample = sl_run_sample(r, t, n)};
        n++;
    }
    return n;
}

bool sl_run_chosen(sl_run *r, sl_ticket *t, const sl_step_item *it, sl_msg_token *out)
{
    sl_err err = {0};
    sl_status st = sl_worker_chosen(it->sample, out, &err);
    if (st != SL_OK)
        sl_run_fail(r, t, st, "sampling: ", err.text);
    return st == SL_OK;
}

static void take_token(sl_run *r, const sl_run_part *part, const sl_step_item *it)
{
    sl_ticket *t = sl_tickets_number(&r->core.tickets, part->number);
    sl_msg_token token;
    sl_ticket_event ev = {.kind = SL_ON_TOKENS, .now_ns = sl_now_ns()};
    if (!t || t->state != SL_TICKET_RUNNING || !sl_run_chosen(r, t, it, &token))
        return;
    ev.tokens.list = &token;
    ev.tokens.n = 1;
    sl_core_event(&r->core, t, &ev);
}

static void begin_step(sl_run *r, int32_t n)
{
    sl_ticket_event ev = {.kind = SL_ON_STEP, .now_ns = sl_now_ns()};
    for (int32_t i = 0; i < n; i++)
        sl_core_event_to(&r->core, r->parts[i].number, &ev);
}

/* rows: the step has computed the rows of its parts; else it failed with st, or (SL_OK) was not computed at all. */
static void end_step(sl_run *r, int32_t n, bool rows, sl_status st, const char *why)
{
    for (int32_t i = 0; i < n; i++) {
        const sl_ticket *t = sl_tickets_number(&r->core.tickets, r->parts[i].number);
        sl_ticket_event ev = {.kind = SL_ON_STEPPED, .now_ns = sl_now_ns()};
        ev.stepped.status = st;
        ev.stepped.why = why;
        ev.stepped.rows = rows || !t ? r->parts[i].end : t->rows;
        sl_core_event_to(&r->core, r->parts[i].number, &ev);
    }
}

static void results(sl_run *r, int32_t decoding, int32_t prompts)
{
    for (int32_t i = 0; i < decoding; i++)
        take_token(r, &r->parts[i], &r->items[i]);
    for (int32_t i = decoding; i < decoding + prompts; i++)
        sl_prompts_computed(r, &r->parts[i], &r->items[i]);
}

sl_status sl_run_step(sl_run *r, bool *worked, sl_err *err)
{
    admit(r);
    int32_t n = collect(r), prompts = sl_prompts_collect(r, n);
    *worked = n + prompts > 0;
    if (!*worked)
        return SL_OK;
    begin_step(r, n + prompts);
    uint64_t t0 = sl_now_ns();
    sl_status step = sl_runner_step(r->runner, r->items, n + prompts, NULL, err);
    uint64_t ns = sl_now_ns() - t0;
    if (step > SL_ERR_DEVICE && sl_runner_broken(r->runner)) {
        *worked = false;
        end_step(r, n + prompts, false, SL_OK, NULL);
        return SL_OK; /* the sessions with the routers end, and with them every ticket */
    }
    if (n) {
        sl_histogram_observe(r->metrics.step, (double)ns / 1e9);
        sl_histogram_observe(r->metrics.batch, n);
    }
    r->st.steps++;
    if (step != SL_OK) {
        char why[300];
        snprintf(why, sizeof why, "step: %.250s", err ? err->text : sl_status_name(step));
        end_step(r, n + prompts, false, step, why);
        return step <= SL_ERR_DEVICE ? step : SL_OK;
    }
    sl_prompts_measure(r, n, prompts, ns);
    end_step(r, n + prompts, true, SL_OK, NULL);
    sl_run_fetched(r);
    results(r, n, prompts);
    return SL_OK;
}
