/*
 * The pages of a decode worker that belong to no step: those that storage tiers and other workers bring (loading.c, prefetch.c,
 * workers.c, pull.c), those that are lent (lend.c), how they are looked at and verified (inspect.c, audit.c, damage.c), and who is
 * told of them (changes.c, holdings.c, publish.c). env.h is what these parts share; each of them has a type that only its own
 * file knows.
 *
 * This room knows requests by numbers alone and calls none of them. What it has to say to them is an event, which its owner
 * takes after every call:
 *
 *     LOADED    the wait of this request has ended: RESERVE is handled again, which may wait once more
 *     DAMAGED   this page is damaged and has left the prefix tree with the pages that continue it: every request that holds it
 *               gives way
 *
 * Threads: the engine thread, except where a function says otherwise. Ownership: the room owns its cascade and the tiers.
 */
#ifndef SL_DECODE_PAGES_PAGES_H
#define SL_DECODE_PAGES_PAGES_H

#include "decode/mail.h"
#include "decode/pages/pull.h"
#include "events/events.h"
#include "kvstore/cascade.h"
#include "worker/checker.h"
#include "worker/runner.h"

typedef struct sl_pages sl_pages;

/* Loads of requests from storage tiers: see kvstore.prefetch in docs/configuration.md. */
typedef struct sl_prefetch_opts {
    sl_cfg_prefetch policy;
    uint32_t base_ms, ms_per_1024;
    int32_t min_tokens; /* fewest that are worth a load */
    double budget;      /* share of the store's pages */
} sl_prefetch_opts;

typedef struct sl_pages_opts {
    /* Storage tiers below the host store, the cheapest first. Taken over by sl_pages_create(), also when it fails. */
    sl_cascade_tier tiers[SL_CASCADE_TIERS];
    int n_tiers;
    sl_prefetch_opts prefetch;
    uint64_t load_chunk_bytes; /* of a load; 0: the cascade's default */
    /* For other programs' routers, NULL: off. Taken over likewise. */
    sl_events *events;
    /* Pages of other decode workers are pulled, and this worker lends its own. */
    bool pull, lend;
    uint32_t pull_timeout_ms; /* how long a request waits for pages of another worker */
} sl_pages_opts;

/* Closes the tiers and the events that were not taken over. */
void sl_pages_opts_close(sl_pages_opts *o);

/* What the room uses of its worker; everything here outlives the room. */
typedef struct sl_pages_worker {
    sl_pages_opts *o; /* kept, the tiers and the events are taken out */
    sl_store *store;
    sl_arena *arena;
    const sl_runner *runner;
    sl_checker *checker;
    const bool *draining;
} sl_pages_worker;

/* SL_ERR_NO_MEMORY, and what the tier of other workers says. Frees what it has taken over when it fails. */
sl_status sl_pages_create(const sl_pages_worker *w, sl_pages **out, sl_err *err);
/* The threads have begun (w), or have ended (NULL). */
void sl_pages_threads(sl_pages *p, sl_worker *w);
/* The checker has ended, and what it has answered was dropped. p may be NULL. */
void sl_pages_destroy(sl_pages *p);

/* ---- what requests want ---- */

/*
 * RESERVE of this request would be granted now: whether it waits for pages of a tier first. The number is the caller's and
 * unique; r is borrowed until sl_pages_leave(). The same call after LOADED may wait again. What was announced for the request
 * (PREFETCH) ends here.
 */
bool sl_pages_wait(sl_pages *p, uint64_t number, uint32_t router, const sl_msg_reserve *r);
/* The request waits no more and will not ask again. A number that has not waited is allowed. */
void sl_pages_leave(sl_pages *p, uint64_t number);
/* Requests that wait. */
int32_t sl_pages_waiting(const sl_pages *p);
/* What was announced for this request ends: the router has ended it. */
void sl_pages_aborted(sl_pages *p, uint32_t router, uint64_t rid);

/* A prompt became complete: this number of its tokens was computed in this time (pull_cost.h). */
void sl_pages_prompt_took(sl_pages *p, int64_t tokens, uint64_t ns);

/* ---- what has happened ---- */

typedef enum { SL_PAGES_LOADED, SL_PAGES_DAMAGED } sl_pages_event_kind;

typedef struct sl_pages_event {
    sl_pages_event_kind kind;
    uint64_t number; /* LOADED */
    /* LOADED: pages [loaded, loaded_end) of the prompt were just compared with their checksums, and are pinned until the next
     * call of sl_pages_next() */
    int32_t loaded, loaded_end;
    int32_t page;    /* DAMAGED */
    int32_t dropped; /* DAMAGED: pages that have left the tree */
} sl_pages_event;

/* The next event; false: there is none. */
bool sl_pages_next(sl_pages *p, sl_pages_event *out);

/* How many leading ones of the pages that a request matches, which has waited (ev), are to be verified: the others were compared
 * with their checksums by the load that has just ended. ev NULL: all. */
int32_t sl_pages_to_verify(const sl_pages_event *ev, int32_t matched);

/* ---- messages, mail, jobs of the checker, time ---- */

/* A message about pages. False: it is none, and the caller still owns it. */
bool sl_pages_msg(sl_pages *p, sl_wmsg *m);
/* Mail about pages, likewise. */
bool sl_pages_mail(sl_pages *p, sl_wmail *m);
/* An answer of the checker, likewise. */
bool sl_pages_checked(sl_pages *p, sl_check *k);
/* A change of the store, as sl_store_event_fn. */
void sl_pages_store_event(sl_pages *p, sl_store_event ev, const sl_store_page *page);
/* A session has begun: its router is told everything that is here, and every change from now on. */
void sl_pages_router_up(sl_pages *p, uint32_t router);
void sl_pages_router_down(sl_pages *p, uint32_t router);
/* Returns when it must be called again at the latest. */
uint64_t sl_pages_tick(sl_pages *p, uint64_t now);
/* At the end of each turn of the loop: tells what has changed. */
void sl_pages_turn(sl_pages *p);
/* Nothing is lent, no request waits, and every page that is to be written has been. */
bool sl_pages_idle(const sl_pages *p);
/* Readable when there is something to do for sl_pages_tick(); -1: never. */
int sl_pages_fd(const sl_pages *p);

/* ---- numbers ---- */

/* How an announced request (PREFETCH) ended. */
typedef enum {
    SL_PREFETCH_IN_TIME,   /* its load had ended when RESERVE came */
    SL_PREFETCH_LATE,      /* it had not */
    SL_PREFETCH_CANCELLED, /* there was no RESERVE */
    SL_PREFETCH_SKIPPED,   /* it exceeded the budget */
    SL_PREFETCH_ENDS
} sl_prefetch_end;
extern const char *const sl_prefetch_end_names[SL_PREFETCH_ENDS];

typedef struct sl_lend_stats {
    uint64_t granted, refused, expired, pages; /* leases; leases; leases; pages that were lent */
    int32_t leases, pages_now, waiting;        /* now; waiting: questions that wait for a load */
} sl_lend_stats;

typedef struct sl_prefetch_stats {
    uint64_t ended[SL_PREFETCH_ENDS];
    int32_t now, pages; /* that have not ended, and their pages of the budget */
} sl_prefetch_stats;

typedef struct sl_damage_stats {
    uint64_t reused, verified; /* damaged pages that a reader, or an audit, has found */
} sl_damage_stats;

typedef struct sl_pages_stats {
    uint64_t stale; /* messages that were dropped */
    sl_lend_stats lend;
    sl_prefetch_stats prefetch;
    sl_damage_stats damage;
    sl_pull_stats pull; /* zero without the tier of other workers */
} sl_pages_stats;

void sl_pages_stats_get(const sl_pages *p, sl_pages_stats *out);
/* For the numbers of the tiers; NULL: there is none. */
const sl_cascade *sl_pages_cascade(const sl_pages *p);

#endif
