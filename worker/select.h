/*
 * What a configuration says about which rows attention reads: the algorithm of `sparse_attention`, with its parameters and
 * gates, for a model. Workers, their identity and `sluice eval` take it from here. Pure, any thread.
 */
#ifndef SL_WORKER_SELECT_H
#define SL_WORKER_SELECT_H

#include "base/config.h"
#include "engine/choose.h"

/* The algorithm of the configuration, its parameters and its gates, which are read from *cfg as long as it exists. They
 * are part of a worker's identity, too. */
typedef struct sl_setup_selection {
    const sl_algo_desc *algorithm;
    sl_select_options select;
    sl_gates gates;
} sl_setup_selection;
/* Errors name the key; see sl_choose_selection(). */
sl_status sl_setup_select(const sl_config *cfg, const sl_model_config *mc, sl_setup_selection *out,
                          sl_err *err);

#endif
