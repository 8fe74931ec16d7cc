/*
 * Tracker: the state of every request that the coordinator serves, by row of the page tables. Host memory, fixed
 * size, no device. It stores lengths and residency and checks the life cycle (begin, step, end); it never moves
 * data. Threads: one owner.
 */
#ifndef SL_SPARSE_TRACKER_H
#define SL_SPARSE_TRACKER_H

#include "sparse/sparse.h"

typedef struct sl_track {
    bool open;
    int32_t len;         /* tokens whose rows exist */
    int32_t pending;     /* tokens the running step appends */
    int32_t before;      /* tokens before its last step: those after them can be taken back */
    int32_t hot_slot;    /* -1: resident */
    int32_t prompt;      /* tokens of its prompt; 0: unknown */
    uint32_t generation; /* how often this row was used: distinguishes a request from the previous one */
} sl_track;

typedef struct sl_tracker {
    sl_track *rows;
    int32_t n, max_context;
    int32_t run_tokens;       /* most tokens of a hierarchical request in a step */
    const sl_coord_run *runs; /* of the running step; copied into run_buf */
    sl_coord_run *run_buf;
    int32_t n_runs, max_pos, step_tokens;
    bool in_step, shaped; /* shaped: a decode step, padded */
} sl_tracker;

sl_status sl_tracker_init(sl_tracker *t, int32_t max_seqs, int32_t max_context, int32_t run_tokens);
void sl_tracker_fini(sl_tracker *t);
/* SL_ERR_INVALID when the row is out of range, in use, or its length beyond max_context. */
sl_status sl_tracker_begin(sl_tracker *t, int32_t seq, int32_t len, int32_t hot_slot, sl_err *err);
void sl_tracker_end(sl_tracker *t, int32_t seq);
/* Checks and records the runs: open rows, each once, few tokens for hierarchical ones, room for all. */
sl_status sl_tracker_step_begin(sl_tracker *t, const sl_coord_run *runs, int32_t n_runs,
                                int32_t max_step_tokens, sl_err *err);
/* The request has `len` tokens. SL_ERR_INVALID: fewer than before its last step, or more than it has. */
sl_status sl_tracker_truncate(sl_tracker *t, int32_t seq, int32_t len, sl_err *err);
/* Takes back what a step has appended that had ended. */
void sl_tracker_undo(sl_tracker *t, const sl_coord_run *runs, int32_t n);
/* Advances the lengths (commit) or forgets the step. */
void sl_tracker_step_end(sl_tracker *t, bool commit);

#endif
