/*
 * Inside model/: models whose tensors are made and not read (sl_model_opts.dummy), so that a server can be tried where the
 * weights are missing: its cost, its memory and its failures are those of the real model, its answers have no meaning.
 *
 * The weights are those of model/synthetic.h for the config of a directory, with one seed that never changes: every
 * process makes the same bits, so the ranks of a group and the workers of a cluster agree. The fingerprint is a hash of
 * the config, the formats and the seed, and is that of no checkpoint, so pages never move between a model of random
 * weights and a real one. It is the print of every rank too: what a rank makes follows from it. No file of weights is
 * opened.
 */
#ifndef SL_MODEL_DUMMY_H
#define SL_MODEL_DUMMY_H

#include "model/model.h"

/*
 * As the functions of model/model.h without "dummy" in their names, for opts->dummy. SL_ERR_INVALID: more ranks than routed
 * experts, or fp8_acts OFF, because nothing says how such weights would be made.
 */
sl_status sl_dummy_load(sl_backend *be, const char *dir, const sl_model_opts *opts, sl_model **out,
                        sl_err *err);
/* *bytes (may be NULL): the memory for weights of opts->rank of opts->ranks. */
sl_status sl_dummy_identify(const char *dir, const sl_model_opts *opts, sl_key *out, uint64_t *bytes,
                            sl_err *err);

#endif
