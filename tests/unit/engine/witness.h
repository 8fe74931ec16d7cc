/*
 * A witness of the lists that a sparse algorithm of KV heads makes inside the real engine, for tests that restate its
 * definition in double precision: every list of every token that is not padding is shown to the test, together with the
 * queries that share it. The keys are read from the host pages. Nothing here shares code with an algorithm.
 *
 * One witness at a time: an algorithm's functions receive no context of the test.
 */
#ifndef SL_TEST_ENGINE_WITNESS_H
#define SL_TEST_ENGINE_WITNESS_H

#include "fix.h"

enum { WITNESS_MAX_DIM = 512, WITNESS_MAX_UNITS = 512 };

/* One list, after it was made; valid during the call. */
typedef struct seen_list {
    int32_t layer, pos, list;
    const float *q;     /* [n_q][dim] the queries that share it */
    const int32_t *ids; /* [k] */
    int32_t n_q, dim, k;
    float scale;
} seen_list;

typedef struct witness witness;
struct witness {
    const fix *f;
    const fix_run *run;
    int64_t lists; /* checked so far; counted by `check` */
    void (*check)(witness *w, const seen_list *l);
    int32_t prompt; /* tokens of the prompt whose window's queries are kept for witness_votes(); 0: none */
    float *q;       /* [layers][window][heads][dim] of these queries; witness_end() frees it */
};

/* The algorithm, except that it shows its lists to w; valid until the next call. */
const sl_algo_desc *witness_of(const sl_algo_desc *algo, witness *w);

sl_host_plane witness_plane(const witness *w, int32_t layer, int32_t plane);
/* The key of a token and KV head, k[dim], as attention reads it. */
void witness_key(const witness *w, int32_t layer, int32_t pos, int32_t head, float *k);
/* v rounded to a number of 8 bits (bf16) by the rounding function: ceil, floor, rint. */
double witness_bf16(double v, double (*round_to)(double));

/* The score of a unit for one query of the KV head. */
typedef double witness_score(const witness *w, const seen_list *l, const double *q, int32_t head,
                             int32_t unit);
/* Scores of units 0 .. n - 1 of a list, reduced over its query heads as the selection's parameters say. */
void witness_scores(const witness *w, const seen_list *l, int32_t n, witness_score *score, double *out);
/* Fails the test unless the list is ascending, at most `last`, and padded by -1. Returns its length; in[id] of its ids
 * become true. */
int32_t witness_ids(const seen_list *l, int32_t last, bool *in);
/* Fails the test unless the n_got scores are the largest of `all`, up to rounding. Sorts both. */
void witness_best(double *all, int32_t n_all, double *got, int32_t n_got);
/* Votes of the window (select.window tokens) for the tokens of the prompt before it, of the list's KV head; pooled over
 * kernel tokens, the largest or the average. */
void witness_votes(const witness *w, const seen_list *l, int32_t kernel, bool largest, double *votes);
/* Fails the test unless `in` can be the kept tokens: the sinks, and no other one has a larger vote than the least of
 * them, up to rounding. */
void witness_kept(const witness *w, const double *votes, const bool *in, int32_t before);
void witness_end(witness *w);

#endif
