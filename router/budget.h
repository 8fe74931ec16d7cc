/*
 * One budget of bytes for all protocols (router.max_request_bytes), and what fronts, jobs of the pool and requests hold.
 */
#ifndef SL_ROUTER_BUDGET_H
#define SL_ROUTER_BUDGET_H

#include "base/guard.h"
#include "router/core.h"

/* What calls of one client hold while they arrive. */
typedef struct sl_part sl_part;

/* Of a router; zero at start. */
typedef struct sl_budget {
    uint64_t held;      /* atomic */
    uint64_t keyless;   /* by callers without a key, counted in held too */
    sl_part *parts[64]; /* by client, those that hold something; the loop's thread */
} sl_budget;
sl_budget *sl_router_budget(sl_router *r);

enum { SL_FRONT_SMALL = 64 << 10 };
#define SL_FRONT_NO_ROOM                                                                                     \
    "the server holds too many bytes of requests (router.max_request_bytes); try again later"

/*
 * Changes what a caller holds of the budget from *held to bytes. False, and nothing changes, when it grows and does
 * not fit. The last eighth is for holders of at most SL_FRONT_SMALL bytes, so that large bodies do not keep small
 * requests out. Giving back always succeeds. Any thread.
 */
bool sl_front_hold(sl_router *r, uint64_t *held, uint64_t bytes);
/* The same for a caller without a key, all of whom have a sixteenth of the budget together: the rest is for callers with
 * a key. The loop's thread. */
bool sl_front_hold_keyless(sl_router *r, uint64_t *held, uint64_t bytes);
/* The same for a call of this client that has not arrived in whole, or whose answer waits to be read. So that one client leaves room for the
 * others, its holders of at most SL_FRONT_SMALL bytes have a sixteenth of the budget together, and its larger ones, when there are several,
 * three quarters. *part is what the client's part has of *held: 0 at first. The loop's thread. */
bool sl_front_hold_part(sl_router *r, const char *client, uint64_t *held, uint64_t *part, uint64_t bytes);
/* The bytes have another owner, or none: they leave the client's part, and *held stays. */
void sl_front_leave_part(sl_router *r, const char *client, uint64_t *part);
/* That a holder of more than SL_FRONT_SMALL bytes may ever have. */
uint64_t sl_front_most(const sl_router_opts *o);

/* Holds what the requests of a call take, and bytes more. The ids of the prompts were taken by the job that made them. EXHAUSTED:
 * there is no room now; TOO_LARGE: there never is. */
sl_status sl_front_hold_spec(sl_router *r, uint64_t *held, uint64_t bytes, const sl_request_spec *s,
                             sl_guard *from, sl_err *err);
/* What the requests of a call hold while they run: a copy of its prompt and of its lists for each. */
uint64_t sl_front_spec_bytes(const sl_request_spec *s);

#endif
