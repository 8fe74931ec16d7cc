/*
 * Tickets and who gets pages and places: ticket.c, landing.c, claims.c. Engine thread.
 */
#ifndef SL_DECODE_TICKETS_H
#define SL_DECODE_TICKETS_H

#include "decode/decode.h"
#include "decode/mail.h"
#include "decode/pages/pages.h"
#include "worker/token.h"

enum { MAX_WRITERS = 1024 };

/*
 * A ticket is one attempt of a request on this worker. Its state machine runs on the engine thread alone:
 *
 *   state       entered when                            left when                                  deadline
 *   ----------  --------------------------------------  -----------------------------------------  ---------------
 *   LANDING     RESERVE is granted                      COMMIT -> CHECKING                         deadline_ns
 *   PROMPT      RESERVE without a writer is granted     its prompt is computed here -> CHECKING    none
 *   CHECKING    COMMIT arrives, or the prompt is        the checksums are right, and the pages of
 *               computed                                the prefix are undamaged -> WAITING        none
 *   WAITING     the rows are verified                   a slot is free -> RUNNING                  none
 *   RUNNING     its sequence is open                    DONE or retraction -> gone                 none
 *   QUARANTINE  it has ended, its writer may not have   DRAINED, COMMIT or fence -> gone           fence_ns
 *   ENDING      it has ended, a check reads its pages   the last check is back -> gone             none
 *
 * ABORT, a failure or the loss of its router end it in every state. All of them call sl_ticket_end(): LANDING
 * becomes QUARANTINE unless its writer has drained, a ticket with checks in flight becomes ENDING, every other is freed
 * at once. At deadline_ns the request has failed; at fence_ns the transport thread is asked to close the writer's
 * connection, and asked again while there is no answer. CHECKING needs no deadline: the checker always answers. PROMPT,
 * WAITING and RUNNING have none here: the router watches them.
 */
typedef enum {
    TICKET_LANDING,
    TICKET_PROMPT,
    TICKET_CHECKING,
    TICKET_WAITING,
    TICKET_RUNNING,
    TICKET_QUARANTINE,
    TICKET_ENDING,
    TICKET_STATES
} ticket_state;

typedef struct sl_ticket {
    /* constant */
    struct sl_ticket *next, *prev; /* in the list of all tickets */
    sl_wmsg *m;                    /* RESERVE */
    uint64_t rid, number, reserved_ns;
    uint32_t attempt;
    uint32_t router; /* the session in which RESERVE came; rid and writer are that router's */
    uint32_t writer;
    sl_lease *lease;
    sl_sampling sampling;
    int32_t n_prompt;

    ticket_state state;
    int checks;                     /* jobs in flight at the checker, which read the pages */
    bool unverified;                /* the matched pages of its prefix are still to be verified */
    bool drained;                   /* LANDING: its writer writes no more */
    uint64_t deadline_ns, fence_ns; /* LANDING; QUARANTINE */
    sl_status abort_status;         /* QUARANTINE: why it has ended */

    /* PROMPT; seq is NULL until it has a place. Its prompt is computed up to pos; the pages before start were matched */
    int32_t pos, start;
    int64_t passed; /* worker/order.h */
    uint64_t started_ns;

    /* from CHECKING on */
    bool arrived; /* the pages that were shipped are right, or were computed here */
    sl_msg_token first;
    uint32_t cached_tokens;
    /* from WAITING on */
    uint64_t order;  /* in which they were verified */
    int32_t *tokens; /* prompt + produced */
    int32_t n_tokens, cap;
    int32_t sealed; /* leading full pages whose checksums are kept; 0 if none are kept (kvstore.verify) */
    /* RUNNING, and PROMPT until it joins the batch */
    int32_t patrol_at; /* the next page to verify */
    uint64_t patrol_ns;
    void *seq;
    int32_t seq_pages;
    bool resident; /* residency.c has decided that all its rows are on the device */
} sl_ticket;

/* A request of a router that was refused pages (claims.c). */
typedef struct sl_claim {
    bool made;
    uint64_t rid, asked_ns; /* asked_ns: its last RESERVE */
    uint32_t passed;        /* tickets of other routers that were granted since */
    uint64_t due_ns;        /* from when on pages are set aside for it; 0: not yet */
} sl_claim;

/* A router's session, as the engine thread knows it. */
typedef struct sl_decode_router {
    uint32_t session;
    sl_claim claim;
    uint64_t place_asked_ns; /* when its last RESERVE was refused because no place was free; 0: never */
} sl_decode_router;

/* A RESERVE that waits for pages of a storage tier (pages/pages.h), by a number. */
typedef struct sl_reserving {
    struct sl_reserving *next;
    uint64_t number;
    sl_wmsg *m;
} sl_reserving;

typedef struct sl_tickets {
    sl_ticket *list, *tail; /* all, oldest first */
    int32_t n, n_running;
    uint64_t next_number, next_order;
    /* writers with a connection, as the transport thread has reported */
    sl_writer connected[MAX_WRITERS];
    uint32_t n_connected;
    sl_decode_router routers[SL_WORKER_ROUTERS_MAX];
    int n_routers;
    sl_reserving *reserving;
    uint64_t next_reserving;
    struct {
        uint64_t stale, corrupt, retracted, fences;
    } count;
    struct {
        bool running; /* a job of the patrol is at the checker */
        uint64_t due_ns;
        uint64_t reused, found; /* damaged pages that requests have found: when they began, and the patrol */
    } patrol;
} sl_tickets;

/* ticket.c */
/* Takes m, a message from the router or from a writer. */
void sl_tickets_msg(sl_decode *d, sl_wmsg *m);
void sl_tickets_connected(sl_decode *d, sl_writer writer);
void sl_tickets_fenced(sl_decode *d, sl_writer writer);
void sl_tickets_router_up(sl_decode *d, uint32_t router);
/* Ends every ticket of this session. */
void sl_tickets_router_down(sl_decode *d, uint32_t router);
/* Handles the deadlines that have passed; returns the next one. */
uint64_t sl_tickets_tick(sl_decode *d, uint64_t now);
/* The threads have ended: frees every ticket whatever its state. */
void sl_tickets_free_all(sl_decode *d);
/* Ends t in any state, see ticket_state. t may have been freed afterwards. Its full pages stay cached. */
void sl_ticket_end(sl_decode *d, sl_ticket *t, sl_status why);
/* The ticket of an attempt, in any state; NULL: there is none (any more). */
sl_ticket *sl_ticket_find(const sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt);
/* Its writer writes no more: frees the ticket now, or when the last check of its pages has come back. */
void sl_ticket_let_go(sl_decode *d, sl_ticket *t);
/* Counts and logs a message that is dropped because its ticket does not exist or is in another state. */
void sl_ticket_stale(sl_decode *d, const char *what, uint64_t rid, uint32_t attempt);
/* FAILED to the router, for an attempt that may have no ticket. */
void sl_ticket_tell_failed(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt, sl_status st,
                           bool retryable, const char *why);
/* Tells the router FAILED and ends the ticket. */
void sl_ticket_failed(sl_decode *d, sl_ticket *t, sl_status st, bool retryable, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* landing.c: each of these owns the message, or the check, that it is called with */
void sl_landing_reserve(sl_decode *d, sl_wmsg *m);
/* RESERVE again, whose wait has ended. */
void sl_landing_loaded(sl_decode *d, const sl_pages_event *ev);
/* A RESERVE that waits is gone. False: there is none. */
bool sl_landing_abort(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt);
/* Those of this session are gone; NULL: all. */
void sl_landing_router_down(sl_decode *d, const uint32_t *router);
void sl_landing_commit(sl_decode *d, sl_wmsg *m);
/* The prompt of t is computed, and its first token is known. t may have been freed afterwards. */
void sl_landing_computed(sl_decode *d, sl_ticket *t);
void sl_landing_pages_ask(sl_decode *d, sl_wmsg *m);
/* An answer of the checker, for a ticket in any state. */
void sl_landing_checked(sl_decode *d, sl_check *k);

/* patrol.c */
/* Has the checker verify n sealed pages of t's lease, from `first` on. False: out of memory. */
bool sl_patrol_verify(sl_decode *d, sl_ticket *t, int32_t first, int32_t n, bool running);
/* The answer of the checker. False: pages were damaged; all requests that held them have ended and may have been freed,
 * perhaps the owner of k among them. */
bool sl_patrol_verified(sl_decode *d, const sl_check *k);
/* Has the checker seal the full page `page` of t's lease, whose rows were computed here. False: out of memory. */
bool sl_patrol_seal(sl_decode *d, sl_ticket *t, int32_t page);
/* This page is damaged: all requests that held it have ended and may have been freed. dropped: pages that have left the tree
 * already. */
void sl_patrol_damaged(sl_decode *d, int32_t page, int32_t dropped);
/* Starts the next verification of running requests if it is due; returns when the next one is. */
uint64_t sl_patrol_tick(sl_decode *d, uint64_t now);

/* claims.c */
/* Whether there is a place for this request of the router; remembers that it was refused one. */
bool sl_claims_place(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);
/* Whether pages are set aside for another request than this one. */
bool sl_claims_bar(const sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);
/* A RESERVE was refused because too few pages were free, or was granted. */
void sl_claims_refused(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);
void sl_claims_granted(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);

#endif
