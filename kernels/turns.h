/*
 * Steps whose last tokens may be taken back, in models whose layers keep a state of fixed size (sl_layer_memory).
 *
 * An op that changes states leaves those after the last token of each sequence, and the ones before are lost. So where tokens
 * may be taken back, the tables say in which turns such an op takes the tokens (sl_seq_tables.turns), and the dispatcher runs
 * it once for each turn: one token of each sequence, in their order. Before a turn it copies the op's part of the states of
 * that turn's sequences. Version k of a state is the one before the last k tokens of the step; it is k * stride bytes
 * after the state. Tokens that are too far from the end to be taken back come first, all in one turn that copies nothing.
 *
 * The bits are those of one turn, because every op with a state gives a token the same bits however a prompt is cut.
 */
#ifndef SL_KERNELS_TURNS_H
#define SL_KERNELS_TURNS_H

#include "kernels/backend.h"
#include "kernels/params.h"

typedef struct sl_turns {
    int32_t n;    /* turns; the last one has the last token of every sequence */
    int32_t kept; /* of them, the last ones, which have one token of a sequence and are copied for */
    const int32_t
        *token_seq; /* [n][n_tokens]: sl_seq_tables.token_seq with -1 for the tokens of other turns */
    int64_t stride; /* bytes from a state to its version 1, and from each version to the next */
} sl_turns;

/* Copies `bytes` bytes of the state of every token's sequence, from + seq * stride to to + seq * stride. One token of a sequence. */
typedef struct sl_state_keep_params {
    const sl_seq_tables *seqs;
    const uint8_t *from;
    uint8_t *to;
    int64_t stride, bytes;
} sl_state_keep_params;

/* Whether the op changes states, and the bytes of the part that these parameters name; 0 for other ops. Pure. */
bool sl_op_has_state(sl_op op);
int64_t sl_op_state_bytes(sl_op op, const void *params);

#endif
