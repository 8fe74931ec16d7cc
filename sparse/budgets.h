/*
 * Budgets by layer and by KV head (PyramidKV, arXiv 2406.02069; Ada-KV, 2407.11550; DuoAttention, 2410.10819): what
 * share of the budget of an algorithm each list gets. `sluice calibrate --algorithm budgets` measures them on a text;
 * the file says for which model and weights.
 *
 *   share x     a list has x times the budget, at least what is always selected: sinks, recent tokens, the newest block
 *   "all"       a list reads everything before the query: a retrieval head of DuoAttention
 *   0           only what is always selected: a streaming head
 *
 * JSON: "schema_version": 1, the fields of calibrated.h, "budget_method" (a word for readers), "budgets": one list for each layer, of a
 * number or "all" for each KV head.
 *
 * A table that was loaded is kept until the process ends, and the same contents are kept once, so a pointer to it may be
 * copied freely. Any thread.
 */
#ifndef SL_SPARSE_BUDGETS_H
#define SL_SPARSE_BUDGETS_H

#include "kernels/backend.h"
#include "sparse/calibrated.h"

typedef struct sl_budgets {
    int32_t n_layers, kv_heads;
    uint64_t hash;      /* of everything else */
    const float *share; /* [n_layers][kv_heads]; INFINITY: everything */
} sl_budgets;

/* Errors as those of sl_channels_load(). */
sl_status sl_budgets_load(const char *path, const sl_algo_model *m, const sl_budgets **out, sl_err *err);
/* The same from text; *out is the caller's, for sl_budgets_free(). name: of the text, in errors. */
sl_status sl_budgets_parse(const char *text, size_t n, const char *name, const sl_algo_model *m,
                           sl_budgets **out, sl_err *err);
void sl_budgets_free(sl_budgets *b);
/* Writes the file; share [n_layers][kv_heads]. An existing file is replaced when the new one is complete. */
sl_status sl_budgets_write(const char *path, const sl_algo_model *m, const char *name, const char *method,
                           const float *share, sl_err *err);

/* sl_algo_desc.prepare of the option budgets_path: loads the file and adds its hash to *content. path "": *out NULL. */
sl_status sl_budgets_prepare(const char *path, const sl_algo_model *m, const sl_budgets **out,
                             uint64_t *content, sl_err *err);

/* Units (blocks, pages, tokens) of a list by a budget of `budget` units, at least `least`; INT32_MAX: everything. b NULL: budget. */
int32_t sl_budgets_units(const sl_budgets *b, int32_t layer, int32_t head, int32_t budget, int32_t least);
/* The most of a layer's lists; layer -1: of all. */
int32_t sl_budgets_longest(const sl_budgets *b, int32_t layer, int32_t budget, int32_t least);

/* The limits of all lists on the device, for sl_topk_params.k_of. */
typedef struct sl_limits {
    sl_backend *be;
    int32_t *of; /* device [n_layers][lists]; NULL: there are none */
    int32_t lists;
} sl_limits;
/* lists 1: that of a layer has the mean of its KV heads. b NULL: no limits. On failure there is nothing to free. */
sl_status sl_limits_open(sl_limits *l, sl_backend *be, const sl_budgets *b, int32_t lists, int32_t budget,
                         int32_t least, sl_err *err);
void sl_limits_close(sl_limits *l);
uint64_t sl_limits_bytes(const sl_budgets *b, int32_t lists);
static inline const int32_t *sl_limits_at(const sl_limits *l, int32_t layer)
{
    return l->of ? l->of + (int64_t)layer * l->lists : NULL;
}

#endif
