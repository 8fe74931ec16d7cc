/*
 * Admission: which requests get pages and places of a decode worker, and in which order. One object decides all this:
 *
 *   places     tickets, at most max_batch + max_waiting. Divided fairly between routers, as are the pages (admission.c)
 *   pages      a prompt is taken when its pages, and one more for every running request, which will need it soon, can be
 *              allocated. Without this margin the new prompt would cause a retraction. A worker without requests takes every
 *              prompt
 *   the queue  tickets that have pages but do not compute yet: WAITING ones join the batch in the order in which they were
 *              verified, while there are slots; PROMPT ones begin in the order in which they came (worker/order.h says how many)
 *   retraction when a running request needs a page and none is free, the request that was verified last gives its pages
 *              back, and the router starts it again
 *   draining   a worker that drains takes no request, and returns those that do not compute yet
 *
 * It decides; the driver carries out what a decision needs (opens a sequence, grows a lease). Threads: one.
 */
#ifndef SL_DECODE_CORE_ADMISSION_H
#define SL_DECODE_CORE_ADMISSION_H

#include "decode/core/core.h"

void sl_admission_session(sl_core *c, uint32_t session, bool up);

/* RESERVE of t, which is ASKED, or LOADING when the load that it has waited for is over: it is granted, refused, or waits for a
 * load. */
void sl_admission_ask(sl_core *c, sl_ticket *t, uint64_t now);

/* The next ticket to join the batch; NULL: there is none, or no slot. */
sl_ticket *sl_admission_next(const sl_core *c);
/* A worker that drains returns tickets that do not compute yet to their routers: another worker can start them sooner. */
void sl_admission_give_back(sl_core *c, uint64_t now);

/*
 * A running ticket t needs `needed` pages in all, of `total` that exist, and none is free: retracts the ticket that was verified last,
 * which may be t. A request that is alone and needs no more than exist is retracted as well, and not failed: pages of requests that
 * have ended can still be held by a check of their checksums, so not all other pages have to be free.
 */
void sl_admission_make_room(sl_core *c, sl_ticket *t, const char *what, int64_t needed, int64_t total,
                            uint64_t now);

/* Whether a worker takes a prompt: missing are its pages that are not in the prefix tree. */
static inline bool sl_admission_has_room(int32_t missing, int32_t n_running, int32_t available,
                                         int32_t n_tickets)
{
    return missing + n_running <= available || !n_tickets;
}

#endif
