/*
 * Constraints of the requests of a worker (model/grammar.h). Threads of their own compile them, tell them of every token and
 * make the next mask. So the engine thread waits for finished masks only, and does so while the device computes.
 *
 * A constraint follows the output of its request. Whoever runs the request tells it of new tokens (sl_constraint_follow());
 * a thread then takes them and makes the mask of the next token, while the step that needs it runs.
 * sl_constraint_token_mask() waits for it.
 *
 * One whose grammar is not compiled yet is not ready, nor is one whose last mask has taken long and whose next one is not
 * made: its request sits out steps until it is, so that a grammar that is hard to follow slows down its own request alone. One that
 * took 20 ms of processor time for a mask counts as slow permanently, and such ones share a thread of their own.
 * When that changes, the engine thread's mailbox gets a SL_WMAIL_WAKE.
 *
 * Threads: they begin with the first constraint. One compiles, one makes masks that are heavy, the others make masks.
 * All functions are for the engine thread; create and destroy are for the thread that owns the worker, while no engine
 * thread runs. Ownership: every constraint is closed by its owner; what a thread
 * still works on is freed when that has ended.
 */
#ifndef SL_WORKER_CONSTRAINT_H
#define SL_WORKER_CONSTRAINT_H

#include "base/mailbox.h"
#include "base/metrics.h"
#include "model/sampler.h"

typedef struct sl_constraints sl_constraints; /* of a worker */
typedef struct sl_constraint sl_constraint;   /* of a request */

typedef struct sl_constraints_opts {
    sl_grammars_opts grammars; /* opened late */
    sl_mailbox *wake;
    sl_metrics *metrics; /* NULL: none */
    uint64_t heavy_ns;   /* for tests: the processor time from which on a mask is heavy; 0: the default */
} sl_constraints_opts;

/* SL_ERR_NO_MEMORY. */
sl_status sl_constraints_create(const sl_constraints_opts *o, sl_constraints **out, sl_err *err);
/* Ends the threads and frees everything; constraints that are still open are closed. NULL is allowed. */
void sl_constraints_destroy(sl_constraints *cs);

/* A step of requests took this long: from this, and from how long the step waited for masks, follows which masks take too long
 * (mask_limit.h). NULL is allowed. */
void sl_constraints_stepped(sl_constraints *cs, uint64_t step_ns);

/* The constraint of a request with these parameters and this output so far; *out NULL: it has none. A text that cannot be compiled
 * shows later, by sl_constraint_failed(). SL_ERR_NO_MEMORY. */
sl_status sl_constraint_open(sl_constraints *cs, const sl_sampling *s, const int32_t *output, size_t n,
                             sl_constraint **out);
/* NULL is allowed. */
void sl_constraint_close(sl_constraint *c);
/* The request has this output now, which begins with what it had. c NULL: nothing happens. */
void sl_constraint_follow(sl_constraint *c, const int32_t *output, size_t n);
/* Whether a step may ask for the mask of the next token: it is there, or will be soon. c NULL: true. After a failure, true. */
bool sl_constraint_ready(sl_constraint *c);
/* Whether a step may be submitted before the token is known from which its mask follows: masks have been quick so far, so that
 * the step's pass takes longer. c NULL: true. */
bool sl_constraint_keeps_up(sl_constraint *c);
/* The error that ended the constraint; SL_OK: none has. */
sl_status sl_constraint_failed(sl_constraint *c, sl_err *err);
/* For sl_step_sample.mask, with an sl_constraint as ctx: waits for the mask of the next token. Valid until the next follow or close. */
sl_token_mask sl_constraint_token_mask(void *ctx);
/* Asks a step to choose under the constraint. c NULL: nothing happens. */
struct sl_step_sample;
void sl_constraint_apply(sl_constraint *c, struct sl_step_sample *w);

#endif
