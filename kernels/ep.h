/*
 * Parameters of the ops of expert parallelism (EP): the routed experts of a layer are spread over the ranks of a group,
 * every rank keeps its own tokens. They follow the conventions of kernels/params.h. With the two exchanges of
 * collectives/comm.h they replace SL_OP_MOE:
 *
 *     SL_OP_EP_SEND      home     a token's row, once for every rank that holds an expert of the token
 *     sl_comm_all_to_all          dispatch: rows to the ranks of their experts
 *     SL_OP_EP_EXPERTS   expert   every row through this rank's experts: one result for every (row, expert)
 *     sl_comm_all_to_all          combine: results back home
 *     SL_OP_EP_SUM       home     out[t] = sum of weight * result over the token's experts
 *
 * Bits. The three ops give the bits of SL_OP_MOE for every number of ranks and every split of the experts: a row is
 * quantised once, at home, with the values that SL_OP_MOE would use; an expert's result of a row does not depend on the
 * other rows; and the sum runs at home over the experts in ascending order in float32 with one cast at the end, which
 * is SL_OP_MOE's definition. That is why a result comes back for every expert and not one sum for every rank: a sum by
 * rank would depend on where the experts are.
 *
 * Experts. Rank r of R holds the experts first[r] .. first[r + 1] - 1; sl_ep_split() divides any number as evenly as
 * possible. Padding (token_seq -1) and choices of -1 travel nowhere.
 *
 * Order. Row i of the block from rank p to rank q is p's i-th token, ascending, that has an expert on q. The results
 * for that block come back as one row for every (row, expert on q), rows ascending, then experts ascending. So both
 * sides know which result a row is, without sending its name.
 */
#ifndef SL_KERNELS_EP_H
#define SL_KERNELS_EP_H

#include "kernels/params.h"

#define SL_EP_COUNTED 1024
#define SL_EP_TO_RANKS 16
#define SL_EP_RANKS_MAX 64 /* of a group, as SL_COMM_RANKS_MAX of collectives/comm.h */

/* What both ends of an exchange agree on; equal on all ranks except `rank`. */
typedef struct sl_ep_layout {
    const int32_t *first; /* host [ranks + 1] */
    int32_t rank, ranks;
    int32_t cap; /* rows of a block of the dispatch: at least the tokens of any rank in this step */
    int32_t hidden, top_k;
    sl_dtype act;
    /* rows travel as e4m3 with a scale per 128 values: all gates and ups take them so (sl_weight_takes_e4m3), and fp8_acts holds */
    bool quantised;
} sl_ep_layout;

/* first[0 .. ranks] for this number of experts. Pure. */
void sl_ep_split(int32_t experts, int32_t ranks, int32_t *first);
/*
 * Bytes of a row of the dispatch, a multiple of 4: the values (hidden e4m3, or hidden of act), padded to 4 bytes; when
 * quantised ceil(hidden / 128) float32 scales; top_k int32: the token's experts on that rank, counted from first[rank],
 * ascending, then -1. Pure.
 */
int64_t sl_ep_row_bytes(const sl_ep_layout *l);
/* Where the scales and the experts of a row begin, and its length. Pure. */
typedef struct sl_ep_row {
    int64_t scales, ids, bytes;
} sl_ep_row;
sl_ep_row sl_ep_row_of(const sl_ep_layout *l);
/* Bytes of a result: hidden values of act, padded to a multiple of 4. Pure. */
int64_t sl_ep_result_bytes(const sl_ep_layout *l);
/* Rows of a block of the combine: cap * top_k. Pure. */
int32_t sl_ep_result_cap(const sl_ep_layout *l);

/* send and send_count of the dispatch. Runs with 0 tokens too: then all counts are 0. */
typedef struct sl_ep_send_params {
    sl_ep_layout layout;
    const void *x;             /* [T][hidden] act */
    const int32_t *expert_ids; /* [T][top_k], ascending; -1: none */
    const int32_t *token_seq;  /* [T] as in sl_seq_tables, or NULL: no padding */
    void *send;                /* [ranks][cap][row bytes] */
    int32_t *send_count;       /* [ranks] */
    int32_t tokens;            /* 0 .. cap */
    /* Host [ranks], or NULL: where the block for each rank goes, [cap][row bytes], instead of to its part of send; for
     * instance to the memory of that rank (sl_comm_at()). Of at most SL_EP_TO_RANKS ranks. */
    void *const *to;
} sl_ep_send_params;

/* What the experts of this rank had to compute, cumulative over calls. */
typedef struct sl_ep_load {
    uint64_t rows;    /* (row, expert) pairs */
    uint64_t busiest; /* the pairs of the expert that had most in each call */
    int32_t experts;  /* of this rank */
} sl_ep_load;

/* Everything between the two exchanges. Runs with no rows too. */
typedef struct sl_ep_experts_params {
    sl_ep_layout layout;
    const void *recv;          /* [ranks][cap][row bytes], as received */
    const int32_t *recv_count; /* [ranks] */
    /* Host arrays of this rank's experts: first[rank + 1] - first[rank] entries. */
    const sl_weight *gate, *up, *down;
    void *send;          /* [ranks][result cap][result bytes] */
    int32_t *send_count; /* [ranks] */
    void *const *to;     /* as in sl_ep_send_params: [result cap][result bytes] each */
    int32_t inter;
    bool fp8_acts;
    sl_glu glu;
    /* Host; added to, at the latest by the next sl_be_sync(), until which it must exist; one for all ops of an instance.
     * Also for an op in a graph. NULL: not counted; nor are more than SL_EP_COUNTED experts of a rank on CUDA. */
    sl_ep_load *load;
} sl_ep_experts_params;

/* out[t] = sum over the token's experts, ascending, of weight * result, float32, one cast to act; 0 for padding. */
typedef struct sl_ep_sum_params {
    sl_ep_layout layout;
    const void *recv;          /* [ranks][result cap][result bytes], as received */
    const int32_t *recv_count; /* [ranks] */
    const int32_t *expert_ids; /* [T][top_k], those of SL_OP_EP_SEND */
    const float *weights;      /* [T][top_k] */
    const int32_t *token_seq;  /* [T] or NULL */
    void *out;                 /* [T][hidden] act */
    int32_t tokens;
} sl_ep_sum_params;

#endif
