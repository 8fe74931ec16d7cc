/* The tokens that a step of the engine chooses on its device, or has chosen on the host. Internal to the engine; what is kept for
 * it is in choice.h. */
#ifndef SL_ENGINE_SAMPLING_H
#define SL_ENGINE_SAMPLING_H

#include "engine/engine_impl.h"

/* prepare before the step is uploaded: with `per`, the rows of logits of item i begin at i * per and are those of all
 * its tokens; with 0 those of sl_item_rows() follow each other. enqueue after the pass; stepped when the sequences have
 * their new lengths, submitted when the tokens are enqueued, too; then finish, when the device is done, or abort. */
sl_status sl_choices_init(sl_engine *e, sl_err *err);
void sl_choices_fini(sl_engine *e);
/* What the host keeps of the tokens of one step. */
sl_status sl_chosen_make(sl_engine *e, sl_chosen *c, sl_err *err);
void sl_chosen_free(sl_engine *e, sl_chosen *c);
sl_status sl_choices_check(const sl_engine *e, const sl_step_item *it,
                           sl_err *err); /* its sequence is open */
sl_status sl_choices_prepare(sl_engine *e, sl_flight *f, int32_t per, sl_err *err);
sl_status sl_choices_enqueue(sl_engine *e, sl_flight *f, sl_err *err);
void sl_choices_stepped(sl_engine *e);
void sl_choices_submitted(sl_engine *e, sl_flight *f);
void sl_choices_finish(sl_engine *e, sl_flight *f);
void sl_choices_abort(sl_flight *f);

#endif
