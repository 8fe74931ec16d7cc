/*
 * Products of queries with rows of a paged plane: what the scores of blocks (bounds), of tokens (labels) and of keys (an
 * observation window) have in common. A row belongs to one KV head; its values are f32, bf16, or e4m3 with a scale. For
 * every token and KV head the queries of the head's group, or their mean, are multiplied by the rows that the token
 * sees, and the products are stored one by one or reduced to one score per list (sl_group_reduce).
 *
 * The order of summation is the canonical one of kernels/cpu/vec.h, eight lanes of fused multiply-adds. A product
 * therefore has the bits of the CPU backend, whichever kernel computes it, and whatever the other tokens are. This is why
 * the tensor cores are not used: their order of summation is another one, and float32 queries would need three bf16 terms. Bounds of int8 have a
 * product of integers instead, for which tensor cores are used (bounds_codes.cuh).
 *
 * Host code of kernels/cuda only. Pointers are device addresses.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_ROW_DOTS_H
#define SL_KERNELS_CUDA_ANY_SELECT_ROW_DOTS_H

#include "kernels/cuda/instance.h"

typedef struct sl_row_dots {
    /* Row r of head h: base + page(r >> page_log2) * page_stride + (r & (1 << page_log2) - 1) * row_stride + h *
     * head_stride. The scale of e4m3 rows is at the row's bytes (of head 0) + scale_at + h * scale_stride. */
    const uint8_t *base;
    int64_t page_stride, row_stride, head_stride, scale_at, scale_stride;
    int32_t page_log2, n; /* n: values of a row */
    sl_dtype type;
    /* Values of a query: of `channels` [kv_heads][n]; or, when that is NULL, [max(q, 0) | min(q, 0)] with `split`, of n
     * = 2 * dim values, otherwise all dim = n. */
    const float *q; /* [token][heads][dim] */
    const int32_t *channels;
    bool split, mean;
    int32_t heads, kv_heads, dim;
    /* Tokens: those of `seqs`, or when pages is set, tokens at positions first_pos, first_pos + 1, … of one sequence with
     * this table. A token at pos sees rows 0 .. (pos >> pos_log2) + plus - 1; in tokens below from_pos nothing is
     * written. */
    const sl_seq_tables *seqs;
    const int32_t *pages;
    int32_t first_pos, token_first, token_count, from_pos, pos_log2, plus;
    /* out[token - token_first][list][ld_out]: the largest product of the list's queries, or with `mean` the sum of those of
     * its KV heads. With plus 0, the score after the last one is set to 0. raw: lists are the query heads. */
    float *out;
    int32_t lists, ld_out;
    bool raw;
    void *scratch; /* rows of int8 (bounds): sl_digits_scratch() for every token */
} sl_row_dots;

/* Enqueues the products of such rows, from sl_cuda_row_dots(): bounds_codes.cu. */
sl_status sl_cuda_bound_codes(sl_cuda *cu, const sl_row_dots *d, sl_err *err);

/* Enqueues the products. SL_ERR_UNSUPPORTED: rows too long for the shared memory. */
sl_status sl_cuda_row_dots(sl_cuda *cu, const sl_row_dots *d, sl_err *err);

/* The scores of bounds and of labels, whose reduction needs all products of a query when it is SL_GROUP_SOFTMAX: `d`
 * as above with the fields of `out` for the scores, in slices whose products fit into the scratch memory. */
sl_status sl_cuda_group_scores(sl_cuda *cu, const sl_row_dots *d, sl_group_reduce reduce, float scale,
                               sl_err *err);

/* Of the products x that `d`, with raw set, has stored: replaces x by exp(scale * (x - largest)), and sums[token -
 * token_first][heads] = the sums of these. */
sl_status sl_cuda_row_exp(sl_cuda *cu, const sl_row_dots *d, float scale, double *sums, sl_err *err);

/* Of the weights and sums that sl_cuda_row_exp has made of `raw`: to[token - token_first][lists][ld] = the sum, over the
 * query heads of a list in their order, of weight / sum. */
sl_status sl_cuda_row_add(sl_cuda *cu, const sl_row_dots *raw, const double *sums, int lists, int ld,
                          float *to, sl_err *err);

/* Of the products x that `d`, with raw set, has stored: replaces x by minus its place among those of its query (SL_GROUP_UNION).
 * space: sl_places_scratch() for every token. */
sl_status sl_cuda_row_places(sl_cuda *cu, const sl_row_dots *d, void *space, sl_err *err);
/* to[token - token_first][lists][ld] = the largest of the values that the query heads of a list have in `raw`. */
sl_status sl_cuda_row_best(sl_cuda *cu, const sl_row_dots *raw, int lists, int ld, float *to, sl_err *err);

#endif
