/*
 * Bounds of blocks: for every block of consecutive tokens and every KV head, the largest and the smallest value of each
 * channel of the keys, as attention reads them. They give an upper bound of the product of a query with each key of the
 * block (Quest, arXiv 2406.10774):
 *
 *   bound(q, block) = sum over i of max(q_i * max_i, q_i * min_i)       >= q . k for every key k of the block
 *                   = [max(q, 0) | min(q, 0)] . [max | min]              one product of 2 * dim values
 *
 * A unit of the plane is one block of one KV head: max[dim] | min[dim], of type f32 or bf16. Values that bf16 cannot
 * represent are rounded outward (max upward, min downward), so that the bound holds for the stored values. Keys of
 * bf16 and e4m3 rows are exact in bf16. Heads of a block are contiguous; unit(page, i, head) is that of sl_host_plane.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have
 * them.
 */
#ifndef SL_KERNELS_BOUNDS_H
#define SL_KERNELS_BOUNDS_H

#include "kernels/params.h"

/*
 * Adds the keys of this step's tokens to the bounds of their blocks: the first token of a block sets them, every later
 * one widens them. The device's bounds are read and written; the host receives the same bytes. A key is read from the
 * device row, or from the host row if the device has none (rows.base is NULL, or later tokens of the step have pushed
 * the row out of the tail).
 */
typedef struct sl_bounds_append_params {
    const sl_seq_tables *seqs;
    sl_row_view rows; /* also says how host_rows are divided: into blocks of 1 << rows.block_log2 tokens */
    sl_host_plane host_rows;
    uint8_t *base; /* device plane of bounds, paged by seqs->index_pages */
    int64_t page_stride;
    sl_host_plane host; /* base NULL: do not write to the host */
    int32_t heads, dim; /* KV heads */
    sl_row_format format;
    sl_dtype dtype; /* of the bounds */
} sl_bounds_append_params;

/* How the bounds for the query heads that share a list become the score of a block. */
typedef enum {
    SL_GROUP_MAX,     /* the largest bound of a query head */
    SL_GROUP_MEAN,    /* sum over KV heads of the bound of the mean query of the head's group */
    SL_GROUP_SOFTMAX, /* sum over query heads of softmax over blocks of scale * bound */
} sl_group_reduce;

/*
 * scores[t][l][b] for the blocks b before that of pos, where list l is shared by all query heads (lists 1) or by
 * those of KV head l (lists kv_heads). The block of pos itself gets 0: it is not complete, and its bounds may be
 * those of later tokens of the step, so whoever selects takes it in any case. Scores of later blocks, of tokens at
 * positions below from_pos (which select everything) and of padding tokens are not written. Row t - token_first of
 * scores belongs to token t; q holds all T.
 */
typedef struct sl_bounds_scores_params {
    const float *q; /* [T][heads][dim] */
    const sl_seq_tables *seqs;
    const uint8_t *base;
    int64_t page_stride;
    float *scores; /* [token_count][lists][ld_scores] */
    int32_t token_first, token_count;
    int32_t heads, kv_heads, dim, lists, block_log2, ld_scores, from_pos;
    sl_group_reduce reduce;
    float scale; /* of attention; read with SL_GROUP_SOFTMAX only */
    sl_dtype dtype;
} sl_bounds_scores_params;

/* Bytes of one unit; 0 for a type that bounds cannot have. Pure. */
int64_t sl_bounds_unit_bytes(int32_t dim, sl_dtype dtype);

/* The reductions by name: "max", "mean", "softmax", in the order of the enumeration, NULL at the end. */
const char *const *sl_group_reduce_names(void);
/* False: no reduction has this name; *out is then unchanged. */
bool sl_group_reduce_find(const char *name, sl_group_reduce *out);

#endif
