/*
 * One sequence of the synthetic oracle in the memory of a backend, for the methods that select by ops: rows, tables, and
 * buffers that live as long as the rig. After the first failure every function does nothing, and oracle_done() returns it.
 */
#ifndef TESTS_UNIT_SPARSE_ORACLE_RIG_H
#define TESTS_UNIT_SPARSE_ORACLE_RIG_H

#include "kernels/backend.h"
#include "kernels/clusters.h"
#include "kernels/window.h"
#include "tests/unit/sparse/oracle_data.h"

typedef struct oracle_input {
    const oracle_data *d;
    sl_backend *be, *cpu; /* that is tested; of the CPU, which may be the same */
    int32_t budget;       /* tokens */
    int32_t ask;          /* the question is in the observation window */
    const double *p;      /* [ORACLE_HEADS][n] weights of dense attention */
    uint64_t seed;
} oracle_input;

enum { ORACLE_ALLOCS = 24 };

typedef struct oracle_rig {
    const oracle_input *in;
    void *allocs[ORACLE_ALLOCS];
    int32_t n_allocs, n_pages;
    sl_seq_tables all, last; /* all tokens; the last one */
    sl_row_view rows;
    sl_host_plane host_rows; /* of oracle_need_host_rows() */
    sl_status st;            /* first failure */
    sl_err *err;
} oracle_rig;

/* Rows of one KV head of 1 << block_log2 tokens. */
oracle_rig oracle_rig_make(const oracle_input *in, int32_t block_log2, sl_err *err);
/* Frees everything. */
sl_status oracle_done(oracle_rig *r);
/* A copy of the rows in host memory that the device can read. */
void oracle_need_host_rows(oracle_rig *r);

/* Device memory with these bytes; NULL: with 0xff. */
void *oracle_put(oracle_rig *r, const void *host, size_t bytes);
void oracle_read(oracle_rig *r, void *host, const void *from, size_t bytes);
void oracle_run_op(oracle_rig *r, sl_op op, const void *params);
/* Marks the listed blocks of each list for the query heads that share it. */
void oracle_take(oracle_rig *r, const int32_t *ids, int32_t lists, int32_t ld, int32_t block_log2,
                 uint8_t *out);

/* The keys on the device. */
sl_key_source oracle_keys(const oracle_rig *r);
/* Of the tokens before the observation window of a prompt, those with the most votes: device [ORACLE_KV][kept], ascending. */
const int32_t *oracle_vote(oracle_rig *r, int32_t prompt, int32_t kernel, sl_pooling pooling, int32_t kept);

#endif
