/*
 * What algorithms share that score units (blocks or tokens) of the cache and take the best ones: the buffer of scores,
 * the slices of a step for which it is large enough, and the call of top-k. An algorithm gives the function that writes
 * the scores of a slice. Nothing here decides which units are best.
 *
 * Threads: those of the algorithm.
 */
#ifndef SL_SPARSE_BY_SCORES_H
#define SL_SPARSE_BY_SCORES_H

#include "sparse/sparse.h"

typedef struct sl_by_scores {
    sl_backend *be;
    float *scores;    /* device, owned; [count][lists][ld] of a slice */
    int64_t capacity; /* floats in scores */
} sl_by_scores;

/* Tokens first .. first + count - 1 of a step; list i of token t has ld scores at (t - first) * lists + i. */
typedef struct sl_score_slice {
    int32_t first, count, ld;
    /* Whoever selects takes everything before this position, so scores of tokens there are not read. */
    int32_t from_pos;
} sl_score_slice;

/* Writes the scores of a slice into the buffer. */
typedef sl_status sl_score_fn(sl_algo *a, const sl_algo_call *call, const sl_score_slice *s, sl_err *err);

typedef struct sl_best {
    int32_t budget; /* most units of a list */
    int32_t sinks,
        recent;  /* tokens that are always selected, unless the step is so short that everything is */
    double mass; /* sl_topk_params.mass */
    const int32_t *limits; /* sl_topk_params.k_of, of the call's layer; budget is then the most of them */
    sl_score_fn *score;
} sl_best;

/* Floats of scores that are kept at once, of units of 1 << block_log2 tokens in `lists` lists: those of a whole step if
 * they fit into the workspace, but at least those of one token. */
int64_t sl_by_scores_floats(const sl_algo_dims *d, int32_t lists, int32_t block_log2);
/* Allocates the buffer. On failure there is nothing to free. */
sl_status sl_by_scores_open(sl_by_scores *s, sl_backend *be, int64_t floats, sl_err *err);
void sl_by_scores_close(sl_by_scores *s);

/* sl_algo_desc.retrieve by scores, slice by slice. */
sl_status sl_by_scores_retrieve(const sl_by_scores *s, const sl_best *best, sl_algo *a,
                                const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                                sl_err *err);

/* SL_ERR_INVALID: list_mass needs scores that are weights. */
sl_status sl_algo_mass_check(double list_mass, int reduction, sl_err *err);
/* Tokens of the longest list of a selection of `budget` tokens, where queries before dense_below read everything. */
int32_t sl_budget_width(const sl_algo_dims *d, int64_t budget, int32_t dense_below);
/* A type that holds every key of the rows exactly. bf16 does for bf16 and e4m3 rows: the scales of the latter are powers
 * of two. */
sl_dtype sl_exact_key_type(const sl_cache_dims *d);
int32_t sl_log2_of(int32_t power_of_two);

#endif
