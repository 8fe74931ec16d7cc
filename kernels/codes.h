/*
 * Product quantisation of keys (PQCache, arXiv 2407.12820): a key is cut into `parts` pieces of dim / parts channels, and its
 * code is the number of the nearest centroid of each piece. The centroids are those of SL_OP_KMEANS (kernels/clusters.h). The
 * product of a query with a key is approximated by that with the decoded key:
 *
 *   score(q, token) = sum over the parts s of q_s . centroid[s][code[token][s]]
 *
 * The products of a query with all centroids are computed once, and a token costs `parts` look-ups.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have
 * them: codes have the same bytes, scores may differ by their last bit.
 */
#ifndef SL_KERNELS_CODES_H
#define SL_KERNELS_CODES_H

#include "kernels/clusters.h"

/* The tokens that leave the recent window with a step's tokens: token pos - recent for each token at a position pos >= trained
 * of its sequence. */
typedef struct sl_codes_step {
    const sl_seq_tables *seqs;
    const int32_t *trained; /* [S] tokens of which the codebook was made */
    int32_t recent;         /* at least 1 */
} sl_codes_step;

/*
 * Codes of the keys of tokens first .. first + tokens - 1 of one request; with `step`, of the tokens that leave the window,
 * of all its sequences. Then `tokens` is step->seqs->n_tokens, first and keys.pages are not read, and a key is that of the row
 * pool, or of the host page if the sequence is hierarchical (SL_DEVERR_PAGE: keys.host has no base). Ties go to the smaller
 * code. Other codes stay as they are.
 */
typedef struct sl_codes_params {
    sl_key_source keys;
    const sl_codes_step *step; /* NULL, or host struct of device arrays */
    int32_t first, tokens;
    int32_t parts, k;       /* k <= 256 */
    const float *centroids; /* [heads][k][dim], as SL_OP_KMEANS writes them; with `step` [S][heads][k][dim] */
    uint8_t *codes; /* [heads][ld_codes][parts] by position; with `step` [S][heads][ld_codes][parts] */
    int32_t ld_codes;
} sl_codes_params;

/*
 * scores[t][v][i] for the tokens i = sinks .. pos - recent of KV head v: the softmax of scale * score over these
 * tokens, summed over the query heads of v. Other scores at 0 .. pos are 0. Scores of tokens at positions below from_pos
 * and of padding tokens are not written. Row t - token_first of scores belongs to token t; q holds all T.
 */
typedef struct sl_code_scores_params {
    const float *q; /* [T][heads][dim] */
    const sl_seq_tables *seqs;
    const float *centroids; /* [S][kv_heads][k][dim] */
    const uint8_t *codes;   /* [S][kv_heads][ld_codes][parts] */
    float *scores;          /* [token_count][kv_heads][ld_scores] */
    int32_t token_first, token_count;
    int32_t heads, kv_heads, dim, parts, k, ld_codes, ld_scores;
    int32_t sinks, recent, from_pos;
    float scale;
} sl_code_scores_params;

#endif
