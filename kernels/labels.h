/*
 * Labels of tokens: for every cached token and every KV head, the values of a few channels of its key, as attention
 * reads them. Which channels is the result of a calibration (sparse/channels.h). The product of a query with a label
 * over these channels approximates q . k (Double Sparsity, arXiv 2408.07092):
 *
 *   score(q, token) = sum over the channels c of the KV head of q_c * k_c
 *
 * A unit of the plane is one page of one KV head: label[64][count], of type f32 or bf16, values rounded to nearest. Keys
 * of bf16 and e4m3 rows are exact in bf16. The units of a page are contiguous, one for each KV head.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have
 * them.
 */
#ifndef SL_KERNELS_LABELS_H
#define SL_KERNELS_LABELS_H

#include "kernels/bounds.h"

/*
 * Writes the labels of this step's tokens, to the device and to the host. A key is read from the device row, or from the
 * host row if the device has none (later tokens of the step have pushed the row out of the tail).
 */
typedef struct sl_labels_append_params {
    const sl_seq_tables *seqs;
    sl_row_view rows; /* also says how host_rows are divided: into blocks of 1 << rows.block_log2 tokens */
    sl_host_plane host_rows;
    uint8_t *base; /* device plane of labels, paged by seqs->index_pages */
    int64_t page_stride;
    sl_host_plane host;        /* base NULL: do not write to the host */
    const int32_t *channels;   /* [heads][count] */
    int32_t heads, dim, count; /* KV heads; channels of a label */
    sl_row_format format;
    sl_dtype dtype; /* of the labels */
} sl_labels_append_params;

/*
 * scores[t][l][i] for the tokens i = 0..pos, where list l is shared by all query heads (lists 1) or by those of KV head
 * l (lists kv_heads). How the products of the query heads that share a list become one score is `reduce`; with
 * SL_GROUP_MEAN it is the product of the mean query of each KV head's group, summed over KV heads. Scores of later
 * tokens, of tokens at positions below from_pos (which select everything) and of padding tokens are not written. Row
 * t - token_first of scores belongs to token t; q holds all T.
 */
typedef struct sl_labels_scores_params {
    const float *q; /* [T][heads][dim] */
    const sl_seq_tables *seqs;
    const uint8_t *base;
    int64_t page_stride;
    const int32_t *channels; /* [kv_heads][count] */
    float *scores;           /* [token_count][lists][ld_scores] */
    int32_t token_first, token_count;
    int32_t heads, kv_heads, dim, count, lists, ld_scores, from_pos;
    sl_group_reduce reduce;
    float scale; /* of attention; read with SL_GROUP_SOFTMAX only */
    sl_dtype dtype;
} sl_labels_scores_params;

/* Bytes of one unit; 0 for a type that labels cannot have. Pure. */
int64_t sl_labels_unit_bytes(int32_t count, sl_dtype dtype);

#endif
