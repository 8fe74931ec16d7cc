/* See effects.h. */
#include "decode/core/effects.h"

#include <stdlib.h>

#include "base/log.h"

enum { FIRST_CAP = 64 };

sl_status sl_core_open(sl_core *c, sl_err *err)
{
    c->queue.of = malloc(FIRST_CAP * sizeof *c->queue.of);
    c->queue.cap = FIRST_CAP;
    return c->queue.of ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

void sl_core_close(sl_core *c)
{
    for (sl_ticket *t = c->tickets.first; t; t = t->next) {
        if (t->state == SL_TICKET_LOADING)
            c->world.leave(c->world.ctx, t);
        if (!t->leased)
            continue;
        if (!t->closed)
            c->world.close(c->world.ctx, t);
        c->world.release(c->world.ctx, t);
    }
    sl_tickets_free(&c->tickets);
    free(c->queue.of);
    free(c->held.of);
    c->queue = c->held = (sl_effect_list){0};
}

/* Without memory for an effect the process ends: a lost effect would leave pages reserved and a router waiting without end,
 * and the step that made it cannot be undone. */
static void keep(sl_effect_list *l, const sl_ticket_effect *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : FIRST_CAP;
        sl_ticket_effect *more = realloc(l->of, cap * sizeof *more);
        SL_CHECK(more, "out of memory for %zu effects", cap);
        l->of = more;
        l->cap = cap;
    }
    l->of[l->n++] = *e;
}

static void step(sl_core *c, sl_ticket *t, const sl_ticket_event *ev, bool *known)
{
    sl_ticket_effects out;
    sl_ticket_state before = t->state;
    c->now_ns = ev->now_ns > c->now_ns ? ev->now_ns : c->now_ns;
    *known = sl_ticket_step(&c->env, t, ev, &out);
    sl_tickets_moved(&c->tickets, t, before);
    for (int i = 0; i < out.n; i++)
        keep(&c->queue, &out.list[i]);
}

/* The job could not be posted. Pages that were to be sealed are not published. */
static void undone(sl_core *c, const sl_ticket_effect *e)
{
    sl_ticket_event ev = {.kind = SL_ON_UNDONE, .now_ns = c->now_ns, .undone = e->check.job};
    bool known;
    const sl_ticket_effect *next = c->at < c->queue.n ? &c->queue.of[c->at] : NULL;
    if (next && next->ticket == e->ticket && next->kind == SL_DO_PUBLISH)
        c->at++;
    step(c, e->ticket, &ev, &known);
}

static void perform(sl_core *c, const sl_ticket_effect *e)
{
    const sl_world *w = &c->world;
    sl_ticket *t = e->ticket;
    switch (e->kind) {
    case SL_DO_TELL_RESERVED:
        w->tell_reserved(w->ctx, t);
        break;
    case SL_DO_TELL_FAILED:
        w->tell_failed(w->ctx, t, e->failed.status, e->failed.retryable, e->failed.why);
        break;
    case SL_DO_TELL_PREFILLED:
        w->tell_prefilled(w->ctx, t);
        break;
    case SL_DO_TELL_TOKENS:
        w->tell_tokens(w->ctx, t, e->tokens.first_index, e->tokens.list, e->tokens.n);
        break;
    case SL_DO_TELL_DONE:
        w->tell_done(w->ctx, t, e->done.finish, e->done.matched);
        break;
    case SL_DO_TELL_RETRACTED:
        w->tell_retracted(w->ctx, t, e->retract_why);
        break;
    case SL_DO_TELL_DRAINED:
        w->tell_drained(w->ctx, t);
        break;
    case SL_DO_CHECK:
        if (!w->check(w->ctx, t, e->check.job, e->check.first, e->check.n, e->check.commit))
            undone(c, e);
        break;
    case SL_DO_PUBLISH:
        w->publish(w->ctx, t, e->rows);
        break;
    case SL_DO_ACCEPTED:
        w->accepted(w->ctx, t);
        break;
    case SL_DO_QUARANTINE:
        w->quarantined(w->ctx, t);
        break;
    case SL_DO_FENCE:
        w->fence(w->ctx, t);
        break;
    case SL_DO_CLOSE:
        w->close(w->ctx, t);
        break;
    case SL_DO_LEAVE:
        w->leave(w->ctx, t);
        break;
    case SL_DO_RELEASE:
        w->release(w->ctx, t);
        break;
    case SL_DO_FREE: /* sl_tickets_sweep() does it at the end of the turn */
    case SL_DO_EFFECTS:
        break;
    }
}

static bool is_message(sl_ticket_effect_kind kind)
{
    return kind <= SL_DO_TELL_DRAINED;
}

static void perform_all(sl_core *c)
{
    if (c->performing)
        return;
    c->performing = true;
    while (c->at < c->queue.n) {
        sl_ticket_effect e = c->queue.of[c->at++]; /* a copy: the world may add effects and move the list */
        if (c->holds && !is_message(e.kind))
            keep(&c->held, &e);
        else
            perform(c, &e);
    }
    c->at = c->queue.n = 0;
    c->performing = false;
}

void sl_core_hold(sl_core *c, bool on)
{
    SL_CHECK(!c->performing && c->queue.n == 0, "effects are held while some are performed");
    c->holds = on;
    if (on)
        return;
    sl_effect_list done = c->queue;
    c->queue = c->held;
    c->held = done;
    perform_all(c);
}

bool sl_core_event(sl_core *c, sl_ticket *t, const sl_ticket_event *ev)
{
    bool known;
    step(c, t, ev, &known);
    perform_all(c);
    return known;
}

bool sl_core_event_to(sl_core *c, uint64_t number, const sl_ticket_event *ev)
{
    sl_ticket *t = sl_tickets_number(&c->tickets, number);
    return t && sl_core_event(c, t, ev);
}

bool sl_core_signal(sl_core *c, sl_ticket *t, sl_ticket_event_kind kind, uint64_t now)
{
    return sl_core_event(c, t, &(sl_ticket_event){.kind = kind, .now_ns = now});
}

bool sl_core_fail(sl_core *c, sl_ticket *t, sl_status st, bool retryable, const char *why, uint64_t now)
{
    sl_ticket_event ev = {.kind = SL_ON_FAILED, .now_ns = now};
    ev.failed.status = st;
    ev.failed.retryable = retryable;
    ev.failed.why = why;
    return sl_core_event(c, t, &ev);
}

void sl_core_session_lost(sl_core *c, uint32_t router, uint64_t now)
{
    for (sl_ticket *t = c->tickets.first; t; t = t->next) {
        if (t->router == router)
            sl_core_signal(c, t, SL_ON_LOST, now);
    }
}

void sl_core_fenced(sl_core *c, uint32_t router, uint32_t writer, uint64_t now)
{
    for (sl_ticket *t = c->tickets.first; t; t = t->next) {
        if (t->router == router && t->writer == writer)
            sl_core_signal(c, t, SL_ON_FENCED, now);
    }
}

uint64_t sl_core_tick(sl_core *c, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_ticket *t = c->tickets.first; t; t = t->next) {
        if (t->due_ns <= now)
            sl_core_signal(c, t, SL_ON_DEADLINE, now);
        due = t->due_ns < due ? t->due_ns : due;
    }
    return due;
}
