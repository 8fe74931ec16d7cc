/*
 * A synthetic model for tests of sparse/: layers whose projections are hashes of (layer, sequence content,
 * position), so that what a token sees does not depend on the step it is in. The rig owns backend, host
 * pages, device pools and a coordinator, runs steps, keeps every attention output and selection, and can
 * compute both naively in double precision from the host pages alone.
 */
#ifndef SL_TEST_SPARSE_RIG_H
#define SL_TEST_SPARSE_RIG_H

#include "sparse/algorithm.h"
#include "sparse/sparse.h"

/* ck_assert reports every success to the parent process; this is for inner loops. */
#define MUST(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            ck_abort_msg("%s", #cond);                                                                       \
    } while (0)

enum {
    RIG_LAYERS = 4,
    RIG_SEQS = 4,
    RIG_HOT_SLOTS = 3,
    RIG_CONTEXT = 448,
    RIG_PAGES = RIG_CONTEXT / SL_PAGE_TOKENS
};
enum { RIG_LORA = 32, RIG_ROPE = 8, RIG_HEADS = 3, RIG_INDEX_HEADS = 8, RIG_INDEX_DIM = 16, RIG_TOPK = 24 };
enum { RIG_MAX_STEP = 200 };
enum { RIG_INDEX = 1 }; /* plane of the index keys */

typedef struct rig_opts {
    const char *algorithm;
    const sl_algo_desc *desc; /* a test double, instead of a name of the registry */
    sl_row_format row_format;
    sl_index_format index_format;
    bool share;                             /* layers 1 and 3 reuse the selection of 0 and 2 */
    int32_t hot_slots, hot_rows, tail_rows; /* hot_rows 0: what the algorithm needs at least */
    sl_evict_policy policy;
    int32_t sinks, recent, min_tokens, n_dense;
    int32_t dense_layers[RIG_LAYERS];
    int64_t workspace;
    int threads;
    bool no_poison; /* stale rows are not overwritten: slots must be forgotten without it */
} rig_opts;

typedef struct rig_seq {
    bool open;
    uint32_t content; /* which text: equal contents give equal activations */
    int32_t len;
    /* results by [layer][position] */
    float (*o)[RIG_CONTEXT][RIG_HEADS * RIG_LORA];
    int32_t *ids; /* [layer][position][RIG_CONTEXT], -1 padded; -2 first: not known */
} rig_seq;

typedef struct rig rig;

rig *rig_create(const rig_opts *o);
void rig_destroy(rig *r);
/* The coordinator's answer to these options, without running anything. */
sl_status rig_try(const rig_opts *o, sl_err *err);

sl_coord *rig_coord(rig *r);
rig_seq *rig_seq_at(rig *r, int seq);
/* Opens row `seq`. n_cached > 0: its host pages hold this number of tokens already (from an earlier use, or copied
 * by rig_copy_pages). */
void rig_open(rig *r, int seq, uint32_t content, bool hierarchical, int32_t n_cached);
void rig_spill(rig *r, int seq);
void rig_close(rig *r, int seq);
/* Copies the host pages of one sequence, and its results, to another rig or sequence, like a prefix that came from
 * another worker. */
void rig_copy_pages(rig *to, int to_seq, rig *from, int from_seq, int32_t n_tokens);
/* What a step does, without its end: the caller ends or aborts it. Returns the tokens. */
int rig_half_step(rig *r, const int *seqs, const int32_t *n, int count, int layers);
/* Appends n[i] tokens to seqs[i]. */
void rig_step(rig *r, const int *seqs, const int32_t *n, int count);

/* Compares position pos of all layers with the naive computation over the host pages. */
void rig_check(rig *r, int seq, int32_t pos);
/* MUSTs that both have the same bits of output (and the same ids) for positions from..to-1. */
void rig_same(const rig_seq *a, const rig_seq *b, int32_t from, int32_t to);

#endif
