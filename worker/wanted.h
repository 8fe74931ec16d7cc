/*
 * The model that a configuration wants, as far as the headers of its checkpoint say it: what a worker loads, what its identity follows
 * from, and what `sluice config` checks. Pure but for the files that are read; any thread.
 */
#ifndef SL_WORKER_WANTED_H
#define SL_WORKER_WANTED_H

#include "base/config.h"
#include "model/model.h"

/* The model as the configuration wants it: with its MTP layer or without. Errors name model.path or model.draft_tokens. */
sl_status sl_setup_config(const sl_config *cfg, sl_model_config *out, sl_err *err);
/* The dtype of most weights: of the checkpoint, or with model.load_format dummy of what is made. */
sl_status sl_setup_stored(const sl_config *cfg, const sl_model_config *mc, sl_dtype *out, sl_err *err);
/*
 * Decides the formats of the cache: those of the configuration; for "auto", those that suit weights stored as `stored`.
 * Together with the type of the activations they are part of a worker's identity.
 */
sl_status sl_setup_formats(const sl_config *cfg, const sl_model_config *mc, sl_dtype stored,
                           sl_index_format *index, sl_row_format *row, sl_err *err);

#endif
