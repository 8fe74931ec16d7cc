/*
 * The table of all tickets of a worker: by attempt, by number, in order of age, with the number of tickets in each state.
 *
 * A ticket is freed in one place, sl_tickets_sweep(), which the owner calls at the end of a turn of its loop. Until then a
 * ticket that is GONE stays in the list, so a pointer to a ticket is valid for the whole turn, whatever happens to the ticket
 * meanwhile, and a loop over the list may end tickets. Across turns a ticket is known by its number; numbers start at 1 and
 * are never used again.
 *
 * A driver that keeps more about a ticket makes tickets of a larger size, whose first member is the sl_ticket.
 *
 * Threads: one. Errors: NULL without memory.
 */
#ifndef SL_DECODE_CORE_TICKETS_H
#define SL_DECODE_CORE_TICKETS_H

#include <stddef.h>

#include "decode/core/ticket.h"

enum { SL_TICKET_BUCKETS = 1024 };

/* Zeroed at the beginning, but for the first two fields. */
typedef struct sl_tickets {
    size_t bytes; /* of a ticket of the driver; 0: sizeof(sl_ticket) */
    /* Frees what belongs to the driver, before the ticket. NULL: nothing does. */
    void (*free)(sl_ticket *t);

    sl_ticket *first, *last; /* in order of age */
    sl_ticket *by_attempt[SL_TICKET_BUCKETS], *by_number[SL_TICKET_BUCKETS];
    int32_t count[SL_TICKET_STATES];
    uint64_t last_number, last_order;
} sl_tickets;

/* A zeroed ticket with a number, in state ASKED. The caller sets the constant fields; sl_tickets_enter() then lets it be found. */
sl_ticket *sl_tickets_new(sl_tickets *a);
void sl_tickets_enter(sl_tickets *a, sl_ticket *t);
/* NULL: there is none, or it is GONE. */
sl_ticket *sl_tickets_find(const sl_tickets *a, uint32_t router, uint64_t rid, uint32_t attempt);
sl_ticket *sl_tickets_number(const sl_tickets *a, uint64_t number);
/* t was in state `before`; to be called after every step. */
void sl_tickets_moved(sl_tickets *a, sl_ticket *t, sl_ticket_state before);
/* Frees the tickets that are GONE. */
void sl_tickets_sweep(sl_tickets *a);
/* Frees all, whatever their state. The threads that use them have ended. */
void sl_tickets_free(sl_tickets *a);

/* Those that have a place. */
int32_t sl_tickets_placed(const sl_tickets *a);
/* Those of one session among them. */
int32_t sl_tickets_of(const sl_tickets *a, uint32_t router);

/* The oldest ticket in one of these states (SL_TICKETS_IN) after t; t NULL: of all. */
#define SL_TICKETS_IN(state) (1u << SL_TICKET_##state)
sl_ticket *sl_tickets_next(const sl_tickets *a, const sl_ticket *t, unsigned states);
/* for (sl_ticket *t = NULL; (t = sl_tickets_next(a, t, states));) may end tickets, t among them, and make new ones. */

#endif
