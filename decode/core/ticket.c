/*
 * The step function of a ticket: the way from RESERVE to the tokens. ticket_end.c has the ways to its end; the table is in ticket.h.
 *
 * A reason that a step makes itself is a constant text, or is formatted into the thread's `reason`, which is valid until the
 * next step: the executor performs effects before it makes another step of a failure.
 */
#include "decode/core/ticket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "decode/core/ticket_impl.h"
#include "kernels/params.h"
#include "kvstore/snapshot.h"

enum {
    PAGE = SL_PAGE_TOKENS,
    FIRST_ROOM = PAGE /* tokens that are added before the list grows */
};

const char *sl_ticket_state_name(sl_ticket_state s)
{
    static const char *const names[] = {"asked",      "loading", "landing", "prompt",
                                        "checking",   "waiting", "running", "confirming",
                                        "quarantine", "ending",  "gone"};
    return (size_t)s < SL_COUNT(names) ? names[s] : "?";
}

int32_t sl_ticket_sealed(const sl_ticket_env *env, const sl_ticket *t)
{
    return env->seals ? t->rows / PAGE : 0;
}

bool sl_ticket_has_place(const sl_ticket *t)
{
    return t->state >= SL_TICKET_LANDING && t->state <= SL_TICKET_ENDING;
}

/* ---- parts of steps ---- */

sl_ticket_effect *sl_ticket_add(sl_ticket_effects *out, sl_ticket *t, sl_ticket_effect_kind kind)
{
    SL_CHECK(out->n < SL_TICKET_EFFECTS, "a step has more than %d effects", SL_TICKET_EFFECTS);
    sl_ticket_effect *e = &out->list[out->n++];
    *e = (sl_ticket_effect){.kind = kind, .ticket = t};
    return e;
}

void sl_ticket_add_check(sl_ticket_effects *out, sl_ticket *t, sl_ticket_job job, int32_t first, int32_t n)
{
    sl_ticket_effect *e = sl_ticket_add(out, t, SL_DO_CHECK);
    e->check.job = job;
    e->check.first = first;
    e->check.n = n;
    t->jobs++;
}

/* ---- tokens ---- */

/* False: there is no memory. */
static bool push(sl_ticket *t, int32_t id)
{
    if (t->n_tokens == t->cap || !t->own) {
        int32_t cap = t->own ? t->cap * 2 : t->n_tokens + FIRST_ROOM;
        int32_t *own = realloc(t->own, (size_t)cap * sizeof *own);
        if (!own)
            return false;
        if (!t->own)
            memcpy(own, t->tokens, (size_t)t->n_tokens * sizeof *own);
        t->tokens = t->own = own;
        t->cap = cap;
    }
    t->own[t->n_tokens++] = id;
    return true;
}

/* Whether the last token ends the stream. */
static bool complete(const sl_ticket_env *env, const sl_ticket *t, sl_finish *how, int32_t *matched)
{
    int32_t id = t->tokens[t->n_tokens - 1];
    bool stop = env->is_stop && env->is_stop(env->ctx, &t->sampling, id);
    *how = stop ? SL_FINISH_STOP : SL_FINISH_LENGTH;
    *matched = stop ? id : -1;
    return stop || sl_ticket_produced(t) >= t->sampling.max_tokens || t->n_tokens >= env->max_context;
}

/* Adds tokens to the stream, up to its end. */
static void emit(const sl_ticket_env *env, sl_ticket *t, const sl_msg_token *list, int32_t n, uint64_t now,
                 sl_ticket_effects *out)
{
    sl_finish how;
    int32_t used = 0, matched, first = sl_ticket_produced(t);
    bool ended = false;
    while (used < n && !ended) {
        if (!push(t, list[used].id)) {
            sl_ticket_fail(env, t, SL_ERR_NO_MEMORY, "out of memory", now, out);
            return;
        }
        used++;
        ended = complete(env, t, &how, &matched);
    }
    sl_ticket_effect *e = sl_ticket_add(out, t, SL_DO_TELL_TOKENS);
    e->tokens.first_index = first;
    e->tokens.list = list;
    e->tokens.n = used;
    if (!ended)
        return;
    if (sl_ticket_sealed(env, t)) {
        sl_ticket_confirm(env, t, how, matched, out);
        return;
    }
    sl_ticket_tell_done(t, how, matched, out);
    sl_ticket_over(t, out);
}

/* What was shipped is right, or was computed here. The matched pages may still be unverified. */
static void arrived(const sl_ticket_env *env, sl_ticket *t, uint64_t now, sl_ticket_effects *out)
{
    t->arrived = true;
    if (t->unverified)
        return;
    t->state = SL_TICKET_WAITING;
    t->rows = t->n_tokens;
    t->safe = t->n_tokens + 1; /* and the token that follows */
    sl_ticket_add(out, t, SL_DO_ACCEPTED);
    sl_ticket_publish(t, t->rows, out);
    emit(env, t, &t->first, 1, now, out);
}

/* ---- RESERVE ---- */

static bool on_load(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev, sl_ticket_effects *out)
{
    (void)env;
    (void)ev;
    (void)out;
    t->state = SL_TICKET_LOADING;
    return true;
}

static bool on_granted(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                       sl_ticket_effects *out)
{
    bool again = t->state == SL_TICKET_PROMPT;
    if (again && t->begun)
        return false;
    t->leased = true;
    t->n_pages = ev->granted.n_pages;
    t->matched = ev->granted.matched;
    t->rows = t->published = t->matched * PAGE;
    t->unverified += ev->granted.verify > 0 && env->seals;
    if (!again) {
        t->granted_ns = ev->now_ns;
        t->state = t->writer ? SL_TICKET_LANDING : SL_TICKET_PROMPT;
        t->due_ns = t->writer ? t->deadline_ns : UINT64_MAX;
        sl_ticket_add(out, t, SL_DO_TELL_RESERVED);
    }
    if (ev->granted.verify > 0 && env->seals)
        sl_ticket_add_check(out, t, SL_JOB_VERIFY, ev->granted.first, ev->granted.verify);
    return true;
}

static bool on_refused(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                       sl_ticket_effects *out)
{
    (void)env;
    sl_ticket_tell_failed(t, ev->failed.status, ev->failed.retryable, ev->failed.why, out);
    sl_ticket_over(t, out);
    return true;
}

/* ---- the writer ---- */

/* Pages that the writer writes: those of the tokens that are not matched, and of snapshots. */
static int32_t shipped(const sl_ticket_env *env, const sl_ticket *t)
{
    return sl_snapshot_place(env->snapshot, t->n_tokens, t->matched).written - t->matched;
}

static const char *check_commit(const sl_ticket_env *env, const sl_ticket *t, const sl_msg_commit *c)
{
    if (c->n_tokens != (uint32_t)t->n_tokens)
        return "COMMIT: number of tokens differs";
    if (c->first_page != (uint32_t)t->matched)
        return "COMMIT: first shipped page differs";
    if (c->n_crc != (size_t)shipped(env, t) * (size_t)env->layers)
        return "COMMIT: number of checksums differs";
    if (c->first.id < 0 || c->first.id >= env->vocab)
        return "COMMIT: first token is outside the vocabulary";
    return NULL;
}

static bool on_commit(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                      sl_ticket_effects *out)
{
    const sl_msg_commit *c = ev->commit;
    if (!sl_ticket_fits(t, c->ticket, c->worker_id))
        return false;
    if (t->state == SL_TICKET_QUARANTINE) { /* too late, but it tells that the writer has finished */
        sl_ticket_over(t, out);
        return true;
    }
    t->drained = true;
    const char *wrong = check_commit(env, t, c);
    if (wrong) {
        sl_ticket_fail(env, t, SL_ERR_CORRUPT, wrong, ev->now_ns, out);
        return true;
    }
    t->first = c->first;
    t->cached_tokens = c->cached_tokens;
    t->state = SL_TICKET_CHECKING;
    t->due_ns = UINT64_MAX;
    if (!env->compare) {
        arrived(env, t, ev->now_ns, out);
        return true;
    }
    sl_ticket_add_check(out, t, SL_JOB_COMPARE, t->matched, shipped(env, t));
    out->list[out->n - 1].check.commit = c;
    return true;
}

static bool on_pages_ask(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                         sl_ticket_effects *out)
{
    (void)env;
    int64_t end_page = (int64_t)ev->pages.first + ev->pages.n;
    if (ev->pages.first < 0 || ev->pages.n < 0 || end_page > t->matched)
        return false;
    sl_ticket_add_check(out, t, SL_JOB_READ, ev->pages.first, ev->pages.n);
    return true;
}

/* ---- steps of the batch ---- */

static bool on_step(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev, sl_ticket_effects *out)
{
    (void)env;
    (void)ev;
    (void)out;
    t->steps++;
    return true;
}

/* Pages that have become full are sealed, and published after a clean round; at once where no checksums are kept. */
static bool on_stepped(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                       sl_ticket_effects *out)
{
    if (!t->steps)
        return false;
    t->steps--;
    if (t->state == SL_TICKET_ENDING) {
        sl_ticket_free_if_unused(t, out);
        return true;
    }
    if (t->state == SL_TICKET_CONFIRMING) {
        sl_ticket_close_if_idle(t, out);
        return true;
    }
    if (ev->stepped.status != SL_OK) {
        sl_ticket_fail(env, t, ev->stepped.status, ev->stepped.why, ev->now_ns, out);
        return true;
    }
    int32_t full = t->rows / PAGE, now_full = ev->stepped.rows / PAGE;
    t->rows = ev->stepped.rows;
    if (now_full == full)
        return true;
    if (env->seals)
        sl_ticket_add_check(out, t, SL_JOB_SEAL, full, now_full - full);
    else
        sl_ticket_publish(t, t->rows, out);
    return true;
}

static bool on_saved(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                     sl_ticket_effects *out)
{
    (void)env;
    (void)ev;
    sl_ticket_add_check(out, t, SL_JOB_STATES, 0, 0);
    return true;
}

static bool on_computed(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                        sl_ticket_effects *out)
{
    if (t->rows != t->n_tokens)
        return false;
    t->first = ev->computed.first;
    t->cached_tokens = ev->computed.cached_tokens;
    t->state = SL_TICKET_CHECKING;
    sl_ticket_add(out, t, SL_DO_TELL_PREFILLED);
    int32_t sealed = sl_ticket_sealed(env, t);
    if (sealed) { /* a clean round, as what a writer ships is compared */
        t->unverified++;
        sl_ticket_add_check(out, t, SL_JOB_VERIFY, 0, sealed);
    }
    arrived(env, t, ev->now_ns, out);
    return true;
}

static bool on_joined(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                      sl_ticket_effects *out)
{
    (void)env;
    (void)ev;
    (void)out;
    if (t->state == SL_TICKET_WAITING)
        t->state = SL_TICKET_RUNNING;
    else if (t->begun)
        return false;
    else
        t->begun = true;
    return true;
}

static bool on_tokens(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                      sl_ticket_effects *out)
{
    if (t->rows != t->n_tokens || ev->tokens.n < 1)
        return false;
    emit(env, t, ev->tokens.list, ev->tokens.n, ev->now_ns, out);
    return true;
}

/* ---- the checker ---- */

static bool on_checked(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                       sl_ticket_effects *out)
{
    static _Thread_local char reason[100];
    if (!t->jobs)
        return false;
    t->jobs--;
    if (t->state == SL_TICKET_ENDING) {
        sl_ticket_free_if_unused(t, out);
        return true;
    }
    if (t->state == SL_TICKET_QUARANTINE)
        return true;
    if (ev->checked.job == SL_JOB_COMPARE && ev->checked.bad) {
        snprintf(reason, sizeof reason, "%zu of %zu checksums of the arrived pages are wrong",
                 ev->checked.bad, ev->checked.of);
        sl_ticket_fail(env, t, SL_ERR_CORRUPT, reason, ev->now_ns, out);
    } else if (ev->checked.job == SL_JOB_COMPARE) {
        arrived(env, t, ev->now_ns, out);
    } else if (ev->checked.job == SL_JOB_VERIFY && !ev->checked.damaged) {
        t->unverified--;
        if (t->arrived && !t->unverified)
            arrived(env, t, ev->now_ns, out);
    } else if (ev->checked.job == SL_JOB_PATROL && !ev->checked.damaged) {
        sl_ticket_patrolled(t, out);
    } else if (ev->checked.job == SL_JOB_CONFIRM && !ev->checked.damaged) {
        sl_ticket_confirmed(t, out);
    }
    return true;
}

/* ---- the table ---- */

#define IN(state) (1u << SL_TICKET_##state)
#define PAGED (IN(LANDING) | IN(PROMPT) | IN(CHECKING) | IN(WAITING) | IN(RUNNING) | IN(CONFIRMING))

static const struct {
    unsigned states;
    sl_ticket_step_fn *step;
} table[SL_ON_EVENTS] = {
    [SL_ON_LOAD] = {IN(ASKED) | IN(LOADING), on_load},
    [SL_ON_GRANTED] = {IN(ASKED) | IN(LOADING) | IN(PROMPT), on_granted},
    [SL_ON_REFUSED] = {IN(ASKED) | IN(LOADING), on_refused},
    [SL_ON_COMMIT] = {IN(LANDING) | IN(QUARANTINE), on_commit},
    [SL_ON_PAGES_ASK] = {IN(LANDING), on_pages_ask},
    [SL_ON_STEP] = {IN(PROMPT) | IN(RUNNING), on_step},
    [SL_ON_STEPPED] = {IN(PROMPT) | IN(RUNNING) | IN(CONFIRMING) | IN(ENDING), on_stepped},
    [SL_ON_SAVED] = {IN(RUNNING) | IN(CONFIRMING) | IN(ENDING), on_saved},
    [SL_ON_COMPUTED] = {IN(PROMPT), on_computed},
    [SL_ON_CHECKED] = {PAGED | IN(QUARANTINE) | IN(ENDING), on_checked},
    [SL_ON_JOINED] = {IN(PROMPT) | IN(WAITING), on_joined},
    [SL_ON_TOKENS] = {IN(RUNNING), on_tokens},
    [SL_ON_PATROL] = {IN(RUNNING), sl_ticket_on_patrol},
    [SL_ON_RETRACT] = {IN(PROMPT) | IN(WAITING) | IN(RUNNING), sl_ticket_on_retract},
    [SL_ON_DAMAGED] = {PAGED, sl_ticket_on_damaged},
    [SL_ON_FAILED] = {PAGED, sl_ticket_on_failed},
    [SL_ON_UNDONE] = {PAGED | IN(QUARANTINE) | IN(ENDING), sl_ticket_on_undone},
    [SL_ON_ABORT] = {IN(LOADING) | PAGED | IN(QUARANTINE), sl_ticket_on_abort},
    [SL_ON_DRAINED] = {IN(LANDING) | IN(QUARANTINE), sl_ticket_on_drained},
    [SL_ON_FENCED] = {IN(QUARANTINE), sl_ticket_on_fenced},
    [SL_ON_LOST] = {IN(LOADING) | PAGED | IN(QUARANTINE), sl_ticket_on_lost},
    [SL_ON_DEADLINE] = {IN(LANDING) | IN(QUARANTINE), sl_ticket_on_deadline},
};

bool sl_ticket_step(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev, sl_ticket_effects *out)
{
    out->n = 0;
    return (table[ev->kind].states & 1u << t->state) && table[ev->kind].step(env, t, ev, out);
}
