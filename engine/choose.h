/*
 * What `auto` stands for in the settings whose best value depends on the device or on the model: the victim policy of
 * the hot buffers, the layout of the host store, and the sparse algorithm with its parameters. Workers, `sluice
 * generate` and the benchmarks resolve their settings here, so that a benchmark without flags measures what a worker
 * without settings runs.
 *
 *   device memory is    policy   layout        why
 *   host memory         lru      page_first    A scan of the stamps is cheap next to computing on a CPU, lru has the
 *                                              fewest misses, and a page is one piece of memory.
 *   memory of its own   clock    layer_first   A layer without a miss costs 8 us with clock and 361 us with lru (H200);
 *                                              rows of one layer that share host pages need fewer translations of
 *                                              addresses per gather.
 *
 * The algorithm is dsa for a model with an indexer, which was trained with it, and dense for every other model.
 *
 * Pure functions, any thread.
 */
#ifndef SL_ENGINE_CHOOSE_H
#define SL_ENGINE_CHOOSE_H

#include "kernels/cache.h"
#include "kvstore/arena.h"
#include "model/model.h"
#include "sparse/sparse.h"

/*
 * name: a name of the registry (sl_evict_policy_names(), sl_layout_names(), sl_algo_names()), "auto", or NULL, which
 * means the same as "auto". caps: sl_backend_caps(). SL_ERR_NOT_FOUND lists the names that exist; *out is then unchanged.
 */
sl_status sl_choose_policy(const char *name, unsigned caps, sl_evict_policy *out, sl_err *err);
sl_status sl_choose_layout(const char *name, unsigned caps, sl_layout *out, sl_err *err);
sl_status sl_choose_algorithm(const char *name, const sl_model_config *cfg, const sl_algo_desc **out,
                              sl_err *err);

/* The model as options of algorithms, and files that were made for it, know it. Borrows cfg. */
sl_algo_model sl_choose_model(const sl_model_config *cfg);

/*
 * The options of an algorithm for a model. options: a struct of algorithm->options, which has all values, or NULL for the
 * defaults. *gates: those of the configuration; an algorithm that cannot be without sinks and recent tokens sets its
 * defaults if both are 0. The stamp is 0 for the algorithm that `auto` stands for, without gates; otherwise the rows depend
 * on what is selected, and the stamp is a hash of the algorithm, its options that change pages and the gates: pages of other
 * values never match. Files that options name are read. Errors name the key: SL_ERR_INVALID, SL_ERR_NOT_FOUND,
 * SL_ERR_REFUSED for a file of another model, and SL_ERR_UNSUPPORTED when the algorithm cannot serve the model.
 */
sl_status sl_choose_selection(const sl_algo_desc *algorithm, const void *options, const sl_model_config *cfg,
                              sl_gates *gates, sl_select_options *out, sl_err *err);

#endif
