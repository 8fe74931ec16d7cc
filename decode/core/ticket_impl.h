/*
 * What the steps of a ticket share (ticket.h): ticket.c has the way from RESERVE to the tokens and the table, ticket_end.c the
 * ways to its end.
 */
#ifndef SL_DECODE_CORE_TICKET_IMPL_H
#define SL_DECODE_CORE_TICKET_IMPL_H

#include "decode/core/ticket.h"

/* Adds an effect; the caller fills its value. */
sl_ticket_effect *sl_ticket_add(sl_ticket_effects *out, sl_ticket *t, sl_ticket_effect_kind kind);
/* Adds a job of the checker for pages [first, first + n). */
void sl_ticket_add_check(sl_ticket_effects *out, sl_ticket *t, sl_ticket_job job, int32_t first, int32_t n);
/* Full pages of the first `rows` tokens are published, if they are not yet. */
void sl_ticket_publish(sl_ticket *t, int32_t rows, sl_ticket_effects *out);

/* The end of a ticket whose pages are not written any more. */
void sl_ticket_over(sl_ticket *t, sl_ticket_effects *out);
/* Its sequence is closed, unless a step computes it. */
void sl_ticket_close_if_idle(sl_ticket *t, sl_ticket_effects *out);
/* The last effects of a ticket that is over, as soon as nothing reads its pages. */
void sl_ticket_free_if_unused(sl_ticket *t, sl_ticket_effects *out);
/* FAILED, without and with the end. */
void sl_ticket_tell_failed(sl_ticket *t, sl_status st, bool retryable, const char *why,
                           sl_ticket_effects *out);
void sl_ticket_fail(const sl_ticket_env *env, sl_ticket *t, sl_status st, const char *why, uint64_t now,
                    sl_ticket_effects *out);

/* The stream is complete: DONE waits in CONFIRMING for what must be known first. */
void sl_ticket_confirm(const sl_ticket_env *env, sl_ticket *t, sl_finish finish, int32_t matched,
                       sl_ticket_effects *out);
/* It is known: DONE, if the router waits for it, and the end. */
void sl_ticket_confirmed(sl_ticket *t, sl_ticket_effects *out);
void sl_ticket_tell_done(sl_ticket *t, sl_finish finish, int32_t matched, sl_ticket_effects *out);
/* A job of the patrol has found its pages right. */
void sl_ticket_patrolled(sl_ticket *t, sl_ticket_effects *out);

typedef bool sl_ticket_step_fn(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                               sl_ticket_effects *out);

/* Events that end a ticket, or may. */
sl_ticket_step_fn sl_ticket_on_drained, sl_ticket_on_fenced, sl_ticket_on_damaged, sl_ticket_on_patrol,
    sl_ticket_on_undone, sl_ticket_on_retract, sl_ticket_on_failed, sl_ticket_on_abort, sl_ticket_on_lost,
    sl_ticket_on_deadline;

#endif
