/*
 * The two selections between which every strategy lies, for rows of `sluice eval` next to those of strategies. They are no strategies:
 * no worker can run them, and they are not in the registry.
 *
 *   exact_topk   the ceiling: of each list the tokens with the most attention, the sum over the query heads that share the list of the
 *                probabilities of dense attention. No list of as many tokens keeps more of that sum.
 *   random       the floor: tokens that are drawn anew for each layer, list and query
 *
 * Every query selects, also those of a prompt, as with quest and double_sparsity; lists are of single tokens, by KV head where
 * there are KV heads. The gates sinks, recent tokens and min_tokens hold. Backends whose device memory is host memory.
 */
#ifndef SL_EVAL_IDEAL_H
#define SL_EVAL_IDEAL_H

#include "sparse/algorithm.h"

extern const sl_algo_desc sl_eval_exact_topk, sl_eval_random;

/* The options of either for a budget of tokens. */
sl_status sl_eval_ideal_select(const sl_algo_desc *algorithm, int32_t budget, sl_select_options *out,
                               sl_err *err);

#endif
