/*
 * Steps of a prefill worker: which prompts' tokens each computes, and what follows from it for them. Only steps.c knows the memory of the
 * step that is computed, and those that came back for reuse. A step is posted to the transport thread layer by layer, and comes back by
 * PM_STEP_BACK. Threads: the engine thread.
 */
#ifndef SL_PREFILL_STEPS_H
#define SL_PREFILL_STEPS_H

#include "prefill/prefill_impl.h"

struct sl_step_room;

sl_status sl_steps_create(struct sl_step_room **out, int32_t n_layers, sl_err *err);
void sl_steps_destroy(struct sl_step_room *all); /* all steps have come back. NULL: nothing */
void sl_steps_back(struct sl_step_room *all, sl_prefill_step *s);
/* Computes one step; false if there was nothing to compute. A negative *st is fatal. */
bool sl_steps_compute(sl_prefill *p, sl_status *st, sl_err *err);

#endif
