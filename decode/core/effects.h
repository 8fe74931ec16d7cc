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

#include "decode/core/admission.h"
#include "decode/core/tickets.h"

typedef struct sl_world {
    void *ctx;
    /* messages to t's router, and what is counted and logged with them */
    void (*tell_reserved)(void *ctx, sl_ticket *t);
    void (*tell_failed)(void *ctx, const sl_ticket *t, sl_status st, bool retryable, const char *why);
    void (*tell_prefilled)(void *ctx, const sl_ticket *t);
    void (*tell_tokens)(void *ctx, sl_ticket *t, int32_t first_index, const sl_msg_token *list, int32_t n);
    void (*tell_done)(void *ctx, sl_ticket *t, sl_finish finish, int32_t matched);
    void (*tell_retracted)(void *ctx, sl_ticket *t, const char *why);
    void (*tell_drained)(void *ctx, const sl_ticket *t);
    /* Gives the checker this job; false: there is no memory. CHECKED comes later, not inside of the call. */
    bool (*check)(void *ctx, sl_ticket *t, sl_ticket_job job, int32_t first, int32_t n,
                  const sl_msg_commit *commit);
    /* Full pages of the first `rows` tokens enter the prefix tree. */
    void (*publish)(void *ctx, sl_ticket *t, int32_t rows);
    void (*accepted)(void *ctx, const sl_ticket *t);
    void (*quarantined)(void *ctx, const sl_ticket *t);
    void (*fence)(void *ctx, const sl_ticket *t); /* FENCED comes later */
    void (*close)(void *ctx, sl_ticket *t);       /* its sequence, if it has one */
    void (*leave)(void *ctx, sl_ticket *t);       /* the load that it waits for */
    void (*release)(void *ctx, sl_ticket *t);     /* its pages */

    /* what admission asks (admission.h) */
    int32_t (*missing)(void *ctx,
                       const sl_ticket *t); /* pages of its tokens that the prefix tree does not have */
    int32_t (*available)(void *ctx);        /* pages that can be allocated */
    /* Whether it waits for pages of a storage tier first: then the driver calls sl_admission_ask() again when they are here. */
    bool (*load)(void *ctx, sl_ticket *t);
    sl_status (*lease)(void *ctx, sl_ticket *t, sl_grant *out); /* SL_ERR_EXHAUSTED: too few pages are free */
} sl_world;

typedef struct sl_effect_list {
    sl_ticket_effect *of;
    size_t n, cap;
} sl_effect_list;

typedef struct sl_core {
    sl_ticket_env env;
    sl_world world;
    sl_tickets tickets;
    sl_admission admission;
    sl_effect_list queue; /* not performed yet, from `at` on */
    size_t at;
    sl_effect_list held;
    bool performing, holds;
    uint64_t now_ns; /* of the last event */
} sl_core;

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
