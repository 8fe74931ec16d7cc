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

/* The type of stored bounds by name: of sl_bounds_dtype_names(), or "auto" or NULL, which leave p as it is. */
sl_status sl_choose_bounds(const char *name, sl_select_params *p, sl_err *err);

/* What a configuration says about an algorithm's lists. */
typedef struct sl_selection_keys {
    int32_t token_budget, block_tokens; /* 0: the algorithm's defaults */
    const char *list_scope;             /* of sl_list_scope_names(); NULL: kv_head */
    const char *gqa_reduction;          /* of sl_group_reduce_names(); NULL: max */
    const char *bounds_dtype;           /* of sl_bounds_dtype_names(), or "auto"; NULL: auto */
    const char *channel_config_path;    /* file of calibrated channels; NULL or empty: there is none */
    int32_t heavy_channels;             /* 0: the algorithm's default */
    double threshold_scale_factor;      /* of skip_softmax; 0: nothing is left out */
    const char *klabel_dtype;           /* of sl_label_dtype_names(), or "auto"; NULL: auto */
    /* Of algorithms that select at the end of a prompt. */
    int32_t prompt_budget, window_size, kernel_size; /* 0: the algorithm's defaults */
    int32_t output_tokens;                           /* 0: all generated tokens are read */
    const char *pooling;                             /* of sl_pooling_names(), or "auto"; NULL: auto */
    /* Of algorithms that divide keys by k-means; 0: the algorithm's defaults. */
    int32_t niter, cluster_tokens, cluster_window, window_nlist, n_subvec, n_subbits;
    double recent_ratio; /* 0: the query's own token alone */
    /* Of algorithms that select pages among what a prompt keeps. */
    int32_t topk, topr,
        page_size;              /* pages of a list, channels, tokens of a page; 0: the algorithm's defaults */
    const char *kt_cache_dtype; /* of sl_kt_type_names(); NULL: float8_e5m2 */
} sl_selection_keys;
const char *const *sl_list_scope_names(void);   /* kv_head, request */
const char *const *sl_bounds_dtype_names(void); /* f32, bf16, int8 */
const char *const *sl_label_dtype_names(void);  /* f32, bf16 */

/*
 * The parameters of an algorithm from its keys. *gates: those of the configuration; an algorithm that cannot be without
 * sinks and recent tokens sets its defaults if both are 0. The stamp is 0 for the algorithm that `auto` stands for, without gates;
 * otherwise the rows depend on what is selected, and the stamp is a hash of the algorithm, its parameters and the gates:
 * pages of other parameters never match. The file of calibrated channels is read for algorithms that need it. Errors
 * name the key: SL_ERR_INVALID, SL_ERR_NOT_FOUND, SL_ERR_REFUSED for a file of another model, and SL_ERR_UNSUPPORTED when
 * the algorithm cannot serve the model.
 */
sl_status sl_choose_selection(const sl_algo_desc *algorithm, const sl_selection_keys *keys,
                              const sl_model_config *cfg, sl_gates *gates, sl_select_params *out,
                              sl_err *err);

#endif
