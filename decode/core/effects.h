/*
 * A worker's requests: the table of tickets, who gets pages and places, and the executor that carries out the effects of
 * steps. What differs between drivers is the world, a table of functions: the decode worker (decode/run/) has pages, an
 * engine and messages; the simulator has virtual time; the mock worker has answers; tests write down what is called.
 *
 * Effects are performed in order. A function of the world may send an event to any ticket (the simulated router acts
 * inside of a message): that ticket's step is made at once, and its effects come after those that are waiting. Such an event
 * must borrow nothing that ends with the function.
 *
 * A job of the checker that cannot be posted is the event UNDONE for its ticket; what the same step wanted afterwards (to
 * publish pages that have no seal) is left out.
 *
 * What clients wait for comes first: while effects are held (sl_core_hold()), messages are performed as they come, and everything
 * else waits until they are sent.
 *
 * Threads: one. Ownership: sl_core_close() frees all tickets.
 */
#ifndef SL_DECODE_CORE_EFFECTS_H
#define SL_DECODE_CORE_EFFECTS_H

#include "decode/core/core.h"

/* env, world, tickets.bytes, tickets.free and admission.o are set, the rest is zeroed. */
sl_status sl_core_open(sl_core *c, sl_err *err);
/* The threads have ended. Tickets that exist release their sequences and pages and send no message. */
void sl_core_close(sl_core *c);

/* One event for one ticket, and all its effects. False: it has no entry in the table for this state. */
bool sl_core_event(sl_core *c, sl_ticket *t, const sl_ticket_event *ev);
/* The same by number. False: there is no such ticket, or no entry. */
bool sl_core_event_to(sl_core *c, uint64_t number, const sl_ticket_event *ev);
/* Events without a value. */
bool sl_core_signal(sl_core *c, sl_ticket *t, sl_ticket_event_kind kind, uint64_t now);
bool sl_core_fail(sl_core *c, sl_ticket *t, sl_status st, bool retryable, const char *why, uint64_t now);

/* From (c, true) to (c, false) the effects that are no messages are kept; then they are performed in their order. Tickets that
 * are gone are swept later. */
void sl_core_hold(sl_core *c, bool on);

/* LOST to the tickets of a session. */
void sl_core_session_lost(sl_core *c, uint32_t router, uint64_t now);
/* FENCED to the tickets of a writer. */
void sl_core_fenced(sl_core *c, uint32_t router, uint32_t writer, uint64_t now);
/* Handles the deadlines that have passed; returns the next one. */
uint64_t sl_core_tick(sl_core *c, uint64_t now);

#endif
