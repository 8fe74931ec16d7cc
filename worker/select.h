/*
 * What a configuration says about which rows attention reads: the algorithm of `sparse_attention`, with its parameters and
 * gates, for a model. Workers, their identity and `sluice eval` take it from here. Pure, any thread.
 */
#ifndef SL_WORKER_SELECT_H
#define SL_WORKER_SELECT_H

#include "base/config.h"
#include "engine/choose.h"
#include "engine/plan.h"

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
/*
 * Whether the hot buffers of the configuration hold the longest list of a selection. in: model, cache, gates, algorithm, and
 * the most tokens and sequences of a step. SL_ERR_INVALID names the key. Lists as long as the context (dense layers, dense
 * queries) are checked by the coordinator, which knows the context that the store can hold.
 */
sl_status sl_setup_check_hot(const sl_config *cfg, const sl_model_config *mc, const sl_plan_in *in,
                             sl_err *err);

/*
 * What a worker of this configuration would refuse when it starts, as far as that can be known without a device and without
 * loading weights: a checkpoint that is not there or does not fit the keys, a store that holds no request, hot buffers
 * that are too small. *context: tokens of the longest request that checkpoint, configuration and store allow. Errors name the key.
 */
sl_status sl_worker_check_config(const sl_config *cfg, int32_t *context, sl_err *err);

#endif
