/*
 * Budgets by layer and KV head from how attention is spread (sparse/budgets.h). For the lists of a text's tokens the mean share of
 * attention on the most, the second most, ... attended token is measured; a budget is then divided so that the sum of the shares of
 * all lists becomes largest, or each list is called a retrieval or a streaming one. Internal to local/. One thread.
 *
 *   method    who shares a budget                                   like
 *   head      the KV heads of a layer                               Ada-KV
 *   layer     the layers; all KV heads of one have the same         PyramidKV
 *   both      all lists of the model
 *   duo       the lists with the most attention outside of the first 16 and the newest 64 tokens get "all", the others 0
 *             DuoAttention
 *
 * As in Ada-KV, a fifth of a budget is divided evenly, so that no list gets less than a share of 0.2.
 */
#ifndef SL_LOCAL_BUDGETS_H
#define SL_LOCAL_BUDGETS_H

#include "sparse/algorithm.h"

typedef enum { SL_BUDGETS_HEAD, SL_BUDGETS_LAYER, SL_BUDGETS_BOTH, SL_BUDGETS_DUO } sl_budgets_method;
extern const char *const sl_budgets_methods[]; /* "head", "layer", "both", "duo", NULL */

typedef struct sl_curves sl_curves;

/* For texts of at most `tokens` tokens. SL_ERR_NO_MEMORY. */
sl_status sl_curves_new(int32_t n_layers, int32_t kv_heads, int32_t dim, int32_t tokens, sl_curves **out,
                        sl_err *err);
void sl_curves_free(sl_curves *c);
/* Adds the attention of a step's tokens in one layer: those at positions from a quarter of the text on, every fourth. The step has
 * one sequence, from its position 0 on, and rows of one token with all KV heads are in the host pages. */
void sl_curves_add(sl_curves *c, const sl_algo_call *call);
/* share [n_layers][kv_heads]. budget: tokens of a list for which they are divided. retrieval: share of lists that get "all", by
 * SL_BUDGETS_DUO. */
void sl_curves_shares(const sl_curves *c, sl_budgets_method method, int32_t budget, double retrieval,
                      float *share);

#endif
