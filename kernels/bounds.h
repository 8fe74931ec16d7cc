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
 * Bounds of int8 are half as many bytes: max[dim] | min[dim] | exponent + 127 as an unsigned byte for every 16 channels, and
 * zeros up to a multiple of 16 bytes. An append writes all bytes of a unit, also these zeros, whatever was there before.
 * A value is code * 2^exponent, with codes from -127 to 127, rounded outward. The exponent is the smallest one, from
 * -100 on, with which the codes of the 16 channels are in that range; a later key can raise it, and then the codes are
 * those which all keys would have had with it from the start, because rounding up twice is rounding up once. Queries
 * become integers too: q is the integer next to q / 2^(x - 13), with the smallest x, from -80 on, for which every |q| of
 * the query is below 2^x. The bound is
 *
 *   2^(x - 13) * sum over groups of 16 channels, in their order, of 2^exponent * (integer sum of products)
 *
 * in float32. The integer sums are exact and below 2^24, so that only the sum over groups is rounded, and tensor cores give the bits
 * of a plain loop. The rounding of q can lower the bound by at most 2^(x - 14) * (sum over channels of the larger one of |max|
 * and |min|), about 1e-4 of a typical product.
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
    /* Bounds of a block are made of all its tokens up to the step's last one, from the block's row, as if none existed:
     * the present ones may be those of tokens that were taken back. The row of a block that the step begins in its middle
     * has the tokens before. The bytes are the same. */
    bool whole;
} sl_bounds_append_params;

/* How the bounds for the query heads that share a list become the score of a block. */
typedef enum {
    SL_GROUP_MAX,     /* the largest bound of a query head */
    SL_GROUP_MEAN,    /* sum over KV heads of the bound of the mean query of the head's group */
    SL_GROUP_SOFTMAX, /* sum over query heads of softmax over blocks of scale * bound */
    /*
     * Minus the best place of the block in the orders of the query heads. The order of a head is by falling bound, of equal
     * bounds by rising block, NaN last; places count from 0. The best k = shares * heads blocks by this score, ties to the
     * smaller block, are the union of the first `shares` blocks of every head and, for each block that several heads
     * have there, one that is next in a head's order. No block is there twice.
     */
    SL_GROUP_UNION,
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

enum {
    SL_BOUNDS_GROUP = 16,   /* channels with one exponent, for bounds of int8; divides dim */
    SL_BOUNDS_LEAST = -100, /* exponent of a group */
    SL_BOUNDS_CODE = 127,   /* largest code */
    SL_BOUNDS_DIGITS = 13,  /* bits of a query's largest value, without the sign */
    SL_BOUNDS_LEAST_QUERY = -80,
};

/* Bytes of one unit; 0 for a type that bounds cannot have. Pure. */
int64_t sl_bounds_unit_bytes(int32_t dim, sl_dtype dtype);

/* The reductions by name: "max", "mean", "softmax", "union", in the order of the enumeration, NULL at the end. */
const char *const *sl_group_reduce_names(void);

#endif
