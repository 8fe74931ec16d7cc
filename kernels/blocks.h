/*
 * Selection of blocks of tokens by index keys, one key per token: the score of a block is the largest product of an index
 * query with a key of the block, and every list takes the best blocks (MiniMax-M3).
 *
 *   score(t, h, b) = max over the tokens j of block b, j <= pos, of q[t][h] . k[j]
 *
 * Blocks begin at multiples of block_tokens, which may be any number. Attention reads rows of
 * 1 << block_log2 tokens (sl_row_view), which divides block_tokens: a block is then several neighbouring rows.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have them.
 */
#ifndef SL_KERNELS_BLOCKS_H
#define SL_KERNELS_BLOCKS_H

#include "kernels/params.h"

/*
 * scores[t][h][b] as above, for b = 0..pos / block_tokens. Keys are those of SL_OP_INDEX_APPEND in the plain convention. Scores
 * of later blocks, of tokens at positions below from_pos (which select everything) and of padding tokens are not written.
 * Products that are NaN do not count; where none counts the score is -infinity. Row t - token_first of scores belongs to token
 * t; q holds all T.
 */
typedef struct sl_block_scores_params {
    const float *q; /* [T][heads][dim] */
    const sl_seq_tables *seqs;
    const uint8_t *index_base; /* page p at index_base + p * index_page_stride: f32 [64][dim] */
    int64_t index_page_stride;
    float *scores; /* [token_count][heads][ld_scores] */
    int32_t token_first, token_count;
    int32_t heads, dim, block_tokens, ld_scores, from_pos;
} sl_block_scores_params;

/*
 * The best k blocks of every list by (score descending, block ascending), as the rows that they are made of: ids of blocks of
 * 1 << block_log2 tokens, ascending, those up to pos, padded with -1 up to ld_ids. List l reads the scores of head
 * l * heads / lists. The blocks that hold one of the first `sinks` or of the newest `recent` tokens rank above all others,
 * within k. A token with pos + 1 <= dense_below, or with at most k blocks, takes everything; its scores are not read. What
 * does not fit into ld_ids is SL_DEVERR_SELECTION.
 */
typedef struct sl_block_lists_params {
    const float *scores; /* [token_count][heads][ld_scores] */
    const sl_seq_tables *seqs;
    int32_t *ids; /* [T][lists][ld_ids], those of token_first.. are written */
    int32_t token_first, token_count;
    int32_t k, heads, lists, ld_scores, ld_ids, block_tokens, block_log2;
    int32_t sinks, recent, dense_below;
} sl_block_lists_params;

#endif
