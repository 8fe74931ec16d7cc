/*
 * Inside model/: parses the texts of config.json and generation_config.json. Other rooms call sl_model_config_load()
 * (model/model.h).
 *
 * Pure functions for any thread; no text is kept.
 */
#ifndef SL_MODEL_CONFIG_H
#define SL_MODEL_CONFIG_H

#include "model/model.h"

/*
 * Parses a config and fills in what follows from it. `generation` may be NULL: there is no generation_config.json. The
 * labels name the two texts in errors. A key that is missing, of the wrong type, out of bounds or in contradiction with
 * another one is SL_ERR_INVALID with file, key and reason; a valid value that is not implemented is SL_ERR_UNSUPPORTED.
 */
sl_status sl_model_config_parse(const char *text, size_t n, const char *label, const char *generation,
                                size_t generation_n, const char *generation_label, sl_model_config *out,
                                sl_err *err);

/*
 * Parses hf_quant_config.json, which some quantised checkpoints have, into a config that was parsed. Nothing happens where
 * config.json has said how weights are quantised. Errors as above.
 */
sl_status sl_model_config_hf_quant(const char *text, size_t n, const char *label, sl_model_config *out,
                                   sl_err *err);

#endif
