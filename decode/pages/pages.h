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

#include "decode/mail/mail.h"
#include "decode/pages/types.h"
#include "worker/checker.h"
#include "worker/runner.h"

typedef struct sl_pages sl_pages;

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

/* The next event; false: there is none. */
bool sl_pages_next(sl_pages *p, sl_pages_event *out);

/* Of the pages that a request matches, the number of first ones that must be verified: the load for which it has waited (ev)
 * has compared the others with their checksums. ev NULL: all. */
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

void sl_pages_stats_get(const sl_pages *p, sl_pages_stats *out);
/* For the numbers of the tiers; NULL: there is none. */
const sl_cascade *sl_pages_cascade(const sl_pages *p);

#endif
