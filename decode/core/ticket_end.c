/*
 * How tickets end, and what must be known before they do: fences, aborts, deadlines, damage, rounds of the patrol. The table is in
 * ticket.h.
 */
#include "decode/core/ticket_impl.h"
#include "kernels/params.h"

static const uint64_t MS = 1000000;
enum { PAGE = SL_PAGE_TOKENS, PEER_GRACE_MS = 100 /* a DRAINED in flight may still arrive */ };

/* ---- parts of steps ---- */

void sl_ticket_close_if_idle(sl_ticket *t, sl_ticket_effects *out)
{
    if (t->leased && !t->closed && !t->steps) {
        t->closed = true;
        sl_ticket_add(out, t, SL_DO_CLOSE);
    }
}

void sl_ticket_free_if_unused(sl_ticket *t, sl_ticket_effects *out)
{
    t->state = SL_TICKET_ENDING;
    sl_ticket_close_if_idle(t, out);
    if (t->jobs || t->steps)
        return;
    if (t->leased)
        sl_ticket_add(out, t, SL_DO_RELEASE);
    t->leased = false;
    t->state = SL_TICKET_GONE;
    sl_ticket_add(out, t, SL_DO_FREE);
}

/* The end of a ticket whose pages are not written any more. */
void sl_ticket_over(sl_ticket *t, sl_ticket_effects *out)
{
    t->due_ns = UINT64_MAX;
    sl_ticket_free_if_unused(t, out);
}

/* The end of a ticket in every state that has pages. */
static void end(const sl_ticket_env *env, sl_ticket *t, sl_status why, uint64_t now, sl_ticket_effects *out)
{
    if (t->state != SL_TICKET_LANDING || t->drained) {
        sl_ticket_over(t, out);
        return;
    }
    t->state = SL_TICKET_QUARANTINE;
    t->why = why;
    sl_ticket_add(out, t, SL_DO_QUARANTINE);
    t->due_ns = now + (why == SL_ERR_PEER ? PEER_GRACE_MS : env->quarantine_ms) * MS;
}

void sl_ticket_tell_failed(sl_ticket *t, sl_status st, bool retryable, const char *why,
                           sl_ticket_effects *out)
{
    sl_ticket_effect *e = sl_ticket_add(out, t, SL_DO_TELL_FAILED);
    e->failed.status = st;
    e->failed.retryable = retryable;
    e->failed.why = why;
}

void sl_ticket_fail(const sl_ticket_env *env, sl_ticket *t, sl_status st, const char *why, uint64_t now,
                    sl_ticket_effects *out)
{
    sl_ticket_tell_failed(t, st, true, why, out);
    end(env, t, st, now, out);
}

static void retract(sl_ticket *t, const char *why, sl_ticket_effects *out)
{
    sl_ticket_add(out, t, SL_DO_TELL_RETRACTED)->retract_why = why;
    sl_ticket_over(t, out);
}

void sl_ticket_publish(sl_ticket *t, int32_t rows, sl_ticket_effects *out)
{
    if (rows / PAGE > t->published / PAGE)
        sl_ticket_add(out, t, SL_DO_PUBLISH)->rows = rows;
    t->published = rows > t->published ? rows : t->published;
}

/* Begins the last round. finish NONE: the router does not wait for its end. */
void sl_ticket_confirm(const sl_ticket_env *env, sl_ticket *t, sl_finish finish, int32_t matched,
                       sl_ticket_effects *out)
{
    t->state = SL_TICKET_CONFIRMING;
    t->finish = finish;
    t->matched_stop = matched;
    sl_ticket_close_if_idle(t, out);
    sl_ticket_add_check(out, t, SL_JOB_CONFIRM, 0, sl_ticket_sealed(env, t));
}

void sl_ticket_tell_done(sl_ticket *t, sl_finish finish, int32_t matched, sl_ticket_effects *out)
{
    sl_ticket_effect *e = sl_ticket_add(out, t, SL_DO_TELL_DONE);
    e->done.finish = finish;
    e->done.matched = matched;
}

void sl_ticket_confirmed(sl_ticket *t, sl_ticket_effects *out)
{
    t->safe = t->n_tokens;
    sl_ticket_publish(t, t->rows, out);
    if (t->finish != SL_FINISH_NONE)
        sl_ticket_tell_done(t, t->finish, t->matched_stop, out);
    sl_ticket_over(t, out);
}

/* A part of the patrol's round is back, without damage. */
void sl_ticket_patrolled(sl_ticket *t, sl_ticket_effects *out)
{
    if (!t->round.tokens || t->round.at < t->round.pages)
        return;
    t->safe = t->round.tokens;
    t->round.tokens = 0;
    sl_ticket_publish(t, t->round.rows, out);
}

/* ---- events ---- */

bool sl_ticket_on_drained(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                          sl_ticket_effects *out)
{
    (void)env;
    if (t->state == SL_TICKET_LANDING) {
        t->drained |= ev->drained.direct; /* matters when ABORT or the deadline ends the ticket */
        return true;
    }
    if (!ev->drained.direct && t->why == SL_ERR_PEER && ev->drained.connected)
        return true; /* an assumption of the router; the fence is due soon */
    sl_ticket_add(out, t, SL_DO_TELL_DRAINED);
    sl_ticket_over(t, out);
    return true;
}

bool sl_ticket_on_fenced(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                         sl_ticket_effects *out)
{
    (void)env;
    (void)ev;
    sl_ticket_add(out, t, SL_DO_TELL_DRAINED);
    sl_ticket_over(t, out);
    return true;
}

/* A page that it holds is damaged. One without a token yet fails and is tried again; one that has produced tokens is
 * retracted, and the router places it again with the safe ones. */
bool sl_ticket_on_damaged(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                          sl_ticket_effects *out)
{
    t->damaged = true;
    if (t->state == SL_TICKET_CONFIRMING && t->finish == SL_FINISH_NONE)
        sl_ticket_over(t, out);
    else if (t->state == SL_TICKET_WAITING || t->state == SL_TICKET_RUNNING ||
             t->state == SL_TICKET_CONFIRMING)
        retract(t, "damaged", out);
    else
        sl_ticket_fail(env, t, SL_ERR_CORRUPT, "pages of its prefix were damaged in the store", ev->now_ns,
                       out);
    return true;
}

bool sl_ticket_on_patrol(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                         sl_ticket_effects *out)
{
    int32_t sealed = sl_ticket_sealed(env, t);
    if (!sealed)
        return false;
    if (t->round.tokens && t->round.at >= t->round.pages)
        return false; /* its last part has not come back */
    if (!t->round.tokens) {
        t->round.at = 0;
        t->round.tokens = t->n_tokens;
        t->round.rows = t->rows;
        t->round.pages = sealed;
    }
    int32_t n = t->round.pages - t->round.at;
    n = n < ev->patrol_most ? n : ev->patrol_most;
    sl_ticket_add_check(out, t, SL_JOB_PATROL, t->round.at, n);
    t->round.at += n;
    t->round.ns = ev->now_ns;
    return true;
}

/* READ is answered without the checksums, the patrol comes again, and there is one snapshot fewer; without the other jobs the ticket
 * cannot go on. */
bool sl_ticket_on_undone(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                         sl_ticket_effects *out)
{
    if (!t->jobs)
        return false;
    t->jobs--;
    t->round.tokens = ev->undone == SL_JOB_PATROL ? 0 : t->round.tokens;
    if (t->state == SL_TICKET_ENDING)
        sl_ticket_free_if_unused(t, out);
    else if (t->state != SL_TICKET_QUARANTINE && ev->undone != SL_JOB_READ && ev->undone != SL_JOB_PATROL &&
             ev->undone != SL_JOB_STATES)
        sl_ticket_fail(env, t, SL_ERR_NO_MEMORY, "out of memory", ev->now_ns, out);
    return true;
}

bool sl_ticket_on_retract(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                          sl_ticket_effects *out)
{
    (void)env;
    retract(t, ev->retract_why, out);
    return true;
}

bool sl_ticket_on_failed(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                         sl_ticket_effects *out)
{
    sl_ticket_tell_failed(t, ev->failed.status, ev->failed.retryable, ev->failed.why, out);
    end(env, t, ev->failed.status, ev->now_ns, out);
    return true;
}

bool sl_ticket_on_abort(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                        sl_ticket_effects *out)
{
    uint64_t soon = ev->now_ns + PEER_GRACE_MS * MS;
    if (t->state == SL_TICKET_QUARANTINE) {
        if (ev->abort_why == SL_ERR_PEER && t->due_ns > soon)
            t->due_ns = soon;
        t->why = ev->abort_why;
        return true;
    }
    if (t->state == SL_TICKET_LANDING && !t->drained) {
        end(env, t, ev->abort_why, ev->now_ns, out);
        return true;
    }
    if (t->state == SL_TICKET_LOADING)
        sl_ticket_add(out, t, SL_DO_LEAVE);
    sl_ticket_add(out, t, SL_DO_TELL_DRAINED);
    bool keeps = ev->abort_why == SL_ERR_CANCELLED && sl_ticket_sealed(env, t) > t->published / PAGE;
    if (t->state == SL_TICKET_RUNNING && keeps) /* the next turn of the conversation finds them */
        sl_ticket_confirm(env, t, SL_FINISH_NONE, -1, out);
    else
        sl_ticket_over(t, out);
    return true;
}

/* No process is told; the connections of its writers are being closed already. */
bool sl_ticket_on_lost(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                       sl_ticket_effects *out)
{
    if (t->state == SL_TICKET_LOADING)
        sl_ticket_add(out, t, SL_DO_LEAVE);
    if (t->state != SL_TICKET_QUARANTINE)
        end(env, t, SL_ERR_PEER, ev->now_ns, out);
    if (t->state == SL_TICKET_QUARANTINE)
        t->due_ns = ev->now_ns;
    return true;
}

bool sl_ticket_on_deadline(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                           sl_ticket_effects *out)
{
    if (ev->now_ns < t->due_ns)
        return false;
    if (t->state == SL_TICKET_LANDING) {
        sl_ticket_fail(env, t, SL_ERR_DEADLINE, "no COMMIT before the deadline", ev->now_ns, out);
        return true;
    }
    t->due_ns = ev->now_ns + env->quarantine_ms * MS;
    sl_ticket_add(out, t, SL_DO_FENCE);
    return true;
}
