/*
 * Parameters of the ops of pooled index keys: the tokens of a unit of 2^unit_log2 tokens have one key together, which exists as
 * soon as the unit's last token does. A query scores the units that are complete for it, (pos + 1) >> unit_log2 of them, and
 * always reads the tokens of the open one. The conventions are those of kernels/params.h.
 *
 * Keys lie in the pages of the index plane, those of a page one after the other: key of unit u at page (u << unit_log2) / 64, place
 * u % (64 >> unit_log2). What the open unit needs is in a state of the request (kernels/delta.h), float [unit][dim] of raw keys and,
 * with gates, as many of gates; the token at position p is in row p % unit.
 *
 * Both backends have these ops.
 */
#ifndef SL_KERNELS_POOLED_H
#define SL_KERNELS_POOLED_H

#include "kernels/params.h"

/*
 * New keys. Without gates: mean of the unit's raw keys; with gates: by channel the sum of the raw keys, weighted by a softmax over the
 * unit's tokens of gate + ape[place in the unit]. Then, with a norm, key * rsqrt(mean(key^2) + eps) * norm, and RoPE of the first
 * `rope` values in halves at the position of the unit's first token. float32 throughout, except that each of the three results is
 * rounded to act; keys are stored as float32.
 */
typedef struct sl_pool_append_params {
    const float *k;    /* [T][ld] raw keys */
    const float *gate; /* [T][ld] or NULL */
    const float *ape;  /* [unit][dim], with gates */
    const float *norm; /* [dim] or NULL */
    const float *cos_sin;
    const sl_seq_tables *seqs;
    uint8_t *state;
    int64_t state_stride;
    uint8_t *base; /* device pool of this layer: page p at base + p * page_stride */
    int64_t page_stride;
    sl_host_plane host; /* base NULL: do not write to the host */
    int32_t dim, rope, unit_log2, ld;
    float eps;
    sl_dtype act;
} sl_pool_append_params;

/*
 * scores[t][u] = sum over heads of relu(q[t][h] . key u) * weights[t][h], times scale, of the units that are complete for token t; the
 * others are not written. weights NULL: all are 1. unit_seq and unit_pos are what SL_OP_TOPK needs to choose among these
 * units: a token with complete units is at the position of the last token of the last one, and one without is a padding token.
 */
typedef struct sl_pool_scores_params {
    const float *q;       /* [T][heads][dim] */
    const float *weights; /* [T][heads] or NULL */
    const sl_seq_tables *seqs;
    const uint8_t *base;
    int64_t page_stride;
    float *scores;                /* [token_count][ld_scores] */
    int32_t *unit_seq, *unit_pos; /* [token_count] */
    int32_t token_first, token_count;
    int32_t heads, dim, unit_log2, ld_scores;
    float scale;
} sl_pool_scores_params;

/* Puts the open unit of each token, if it has one, after the last id of its list, unless it is that already. With `by_token` the
 * list then becomes that of the tokens of its units, up to the token itself. A list that is full is an error. */
typedef struct sl_open_units_params {
    int32_t *ids; /* [tokens][ld_ids], ascending, -1 padded */
    const sl_seq_tables *seqs;
    int32_t unit_log2, ld_ids;
    bool by_token;
} sl_open_units_params;

#endif
