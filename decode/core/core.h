/*
 * What the core of a worker is made of: the table of tickets, what admission remembers, effects that wait, and the world, a table of
 * functions through which a driver carries out what the core wants. effects.h performs, admission.h decides.
 */
#ifndef SL_DECODE_CORE_CORE_H
#define SL_DECODE_CORE_CORE_H

#include "decode/core/tickets.h"

enum { SL_ADMISSION_ROUTERS = 32 };

typedef struct sl_admission_opts {
    int32_t max_batch, max_waiting;
} sl_admission_opts;

/* A router that has a session. */
typedef struct sl_admission_router {
    uint32_t session;
    uint64_t place_asked_ns; /* when its last RESERVE was refused because no place was free; 0: never */
    /* its request that was refused pages */
    bool claims;
    uint64_t claim_rid, claim_asked_ns; /* the last RESERVE */
    uint32_t passed;                    /* tickets of other routers that were granted since */
    uint64_t due_ns;                    /* from when on pages are set aside for it; 0: not yet */
} sl_admission_router;

typedef struct sl_admission {
    sl_admission_opts o;
    bool draining;
    sl_admission_router routers[SL_ADMISSION_ROUTERS];
    int n_routers;
} sl_admission;

/* What a lease has. */
typedef struct sl_grant {
    int32_t n_pages, matched;
    int32_t verify; /* leading matched pages that are to be verified */
} sl_grant;

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

#endif
