/*
 * Rows of options that several algorithms have, for their tables (base/options.h): one key has one type and the same bounds
 * everywhere, and each algorithm its default. An option of one algorithm is in the file of that algorithm.
 */
#ifndef SL_SPARSE_ROWS_H
#define SL_SPARSE_ROWS_H

#include "base/options.h"
#include "kernels/cache.h"

enum { SL_ROWS_MOST_TOKENS = 1 << 24 };

/* What changes the lists of queries changes what later layers append. */
#define SL_ROW_TOKENS(type, field, dflt, doc)                                                                \
    SL_OPTION(type, field, SL_OPTION_INT, SL_OPTION_PAGES | SL_OPTION_CONTEXT, dflt, 1, SL_ROWS_MOST_TOKENS, \
              doc)
#define SL_ROW_INT(type, field, dflt, lo, hi, doc)                                                           \
    SL_OPTION(type, field, SL_OPTION_INT, SL_OPTION_PAGES, dflt, lo, hi, doc)
#define SL_ROW_TOKEN_BUDGET(type, doc) SL_ROW_TOKENS(type, token_budget, "1024", doc)
#define SL_ROW_GQA_REDUCTION(type, unit)                                                                     \
    SL_OPTION_LIST(type, gqa_reduction, SL_OPTION_PAGES, "max", sl_group_reduce_names,                       \
                   "The score of a " unit " for the query heads that share a list. max: the largest score "  \
                   "of a head. mean: that of the mean query. softmax: the sum over heads of the softmax "    \
                   "over all of them. union: each head has its share of the list for its own best ones, "    \
                   "without copies.")
#define SL_ROW_LIST_MASS(type)                                                                               \
    SL_OPTION(                                                                                               \
        type, list_mass, SL_OPTION_FLOAT, SL_OPTION_PAGES, "0", 0, 1,                                        \
        "Share of the estimated attention with which a list is complete, so that it may be shorter than "    \
        "its budget; 0: lists have their full length. Algorithms with gqa_reduction need its value softmax.")
#define SL_ROW_BUDGETS(type)                                                                                 \
    SL_OPTION(type, budgets_path, SL_OPTION_TEXT, 0, "", 0, 0,                                               \
              "The file with what share of the budget each layer and KV head gets, which `sluice calibrate " \
              "--algorithm budgets` makes for the model; empty: all get the same. Pages of other shares "    \
              "never match.")
#define SL_ROW_NITER(type) SL_ROW_INT(type, niter, "20", 1, 10000, "Iterations of k-means.")
#define SL_ROW_LIST_SCOPE(type)                                                                              \
    SL_OPTION_NAMES(type, list_scope, SL_OPTION_PAGES, "kv_head", sl_row_scopes,                             \
                    "Who shares a list. kv_head: the query heads of one KV head. request: all heads.")

/* Values of list_scope. */
enum { SL_ROW_SCOPE_KV_HEAD, SL_ROW_SCOPE_REQUEST };
extern const char *const sl_row_scopes[]; /* in by_scores.c */

#endif
