/*
 * A test double of a sparse algorithm for grouped-query attention: lists of blocks per KV head (or shared by all
 * heads), chosen by the bounds of the keys in each block, which are its own plane of metadata. It exists to show that
 * such an algorithm needs its table and nothing else. It computes on the host, so its backend must be the CPU's.
 *
 *   bounds   per block and head: the smallest and the largest value of each channel of the keys, as attention reads them
 *   score    of a block for a list: the largest, over the query heads that share the list, of the sum over channels of
 *            max(q * smallest, q * largest), an upper bound of q . k for every key of the block
 *   list     the first block, the newest one, and the best others, within the budget; ties go to the older block
 */
#ifndef SL_TEST_ENGINE_HEAD_BLOCKS_H
#define SL_TEST_ENGINE_HEAD_BLOCKS_H

#include "sparse/algorithm.h"

/* One list, after it was made; valid during the call. */
typedef struct head_blocks_list {
    int32_t layer, seq, pos, list; /* seq: row of the page tables */
    const float *q;                /* [n_q][dim] the queries that share it */
    const int32_t *ids;            /* [k] */
    int32_t n_q, dim, k;
} head_blocks_list;

/* What the double selects. Set before an engine is made, and unchanged while it exists. */
typedef struct head_blocks_options {
    sl_list_scope scope; /* REQUEST or KV_HEAD */
    int32_t block_tokens, budget_tokens;
    void (*made)(void *ctx, const head_blocks_list *l); /* NULL, or called for every list */
    void *ctx;
} head_blocks_options;

extern head_blocks_options head_blocks;
extern const sl_algo_desc head_blocks_algo;

#endif
