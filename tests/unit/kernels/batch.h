/*
 * A batch of sequences for the conformance cases: T tokens, `per` of each of T / per sequences, with page
 * tables. Token g belongs to sequence g / per. Sequence 0 starts at position 0, sequence 1 ends at the last
 * position, the others anywhere. Page numbers are scattered; entries after a sequence's last page are -1.
 */
#ifndef SL_TESTS_KERNELS_BATCH_H
#define SL_TESTS_KERNELS_BATCH_H

#include "kernels/clusters.h"
#include "kernels/gqa.h"
#include "tests/unit/kernels/cf.h"

typedef struct batch {
    sl_seq_tables t; /* device arrays, tokens of this run only */
    int64_t per, seqs, length;
    int32_t ld, pages;                                        /* table width; pages in a pool */
    bool full;                                                /* batch_full() */
    int32_t *seq, *pos;                                       /* host copies, of this run's tokens */
    int32_t *host_pages, *index_pages, *row_pages, *hot_slot; /* host copies, [seqs][ld] */
} batch;

/* hier: every second sequence (odd ones) is hierarchical; 2: all. total: tokens of the whole case. */
void batch_make(cf_run *r, batch *b, int64_t total, int64_t per, int64_t length, int hier);
/* Host copy of a page table entry: page of position pos of sequence seq. */
int32_t batch_page(const batch *b, const int32_t *table, int64_t seq, int64_t pos);
/* Last position that sequence seq has in the whole case. */
int32_t batch_last(const batch *b, int64_t seq);

/* Timing: every token is at the last position, and every page exists (one token per sequence). */
void batch_full(cf_run *r, batch *b);

/* An op that changes states, and where its parameters are: those of a run from the states before the step. */
typedef struct batch_op {
    sl_op op;
    void *params;
    const sl_seq_tables **seqs;
    uint8_t **state;
    int64_t stride, pad; /* of a state; its last bytes, which are not the op's */
} batch_op;
/* Runs the op again in turns (kernels/turns.h), in which up to 4 tokens of each sequence are kept for. Fails unless the states are
 * those `after` the step, and each version is what the op leaves when that many tokens are left out. NULL: what states have of
 * units that are complete depends on the cut, so they are not compared. */
void batch_in_turns(cf_run *r, const batch *b, const batch_op *o, const uint8_t *after);

enum { BATCH_BY_HEAD = 16 }; /* rows of one KV head, + log2 of the tokens of a block */
/*
 * A batch with rows of keys and values that SL_OP_GQA_APPEND has written, for ops that make metadata of keys. a: T, per,
 * length, KV heads, dim, format, (not read), hierarchical, division of rows. rows: the op's parameters.
 */
void batch_rows(cf_run *r, batch *b, const int64_t *a, sl_gqa_append_params *rows);

/* Random keys and values: 2 * cf_uniform() of these streams, of the tokens key_at and value_at. */
typedef struct batch_values {
    uint32_t keys, values;
    int64_t key_at, value_at;
} batch_values;
/* The key and value of one token of all KV heads into place `slot` of its rows: one of all heads, or one for each of them, of which
 * the first is at `row`. */
void batch_put_token(const sl_row_view *rows, sl_row_format format, int32_t heads, int32_t dim, int32_t slot,
                     batch_values from, uint8_t *row);
/* A pool of rows of the batch's pages, as rows->base. What no token of the batch sees is NaN; whole: but for the rest of the pages. */
void batch_pages(cf_run *r, const batch *b, sl_row_view *rows, sl_row_format format, int32_t heads,
                 int32_t dim, bool whole);
/* Rows of `tokens` tokens of one request in scattered pages of the device or of the host. distinct: the number of different keys; 0:
 * all. keys, values: streams. */
sl_key_source batch_keys(cf_run *r, int32_t tokens, int32_t heads, int32_t dim, sl_row_format format,
                         bool by_head, bool host, int32_t distinct, uint32_t keys);

#endif
