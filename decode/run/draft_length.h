/*
 * How many tokens are drafted for a request in the next step: pure arithmetic on what was measured, no clock, no engine.
 *
 * A draft at place k (1, 2, ..) is worth the probability that it and those before it stand. This is measured for each request, by
 * place, with a memory of about 32 steps. What it costs has two parts, and a draft pays if its worth is at least what it adds to them:
 *
 * - Computing, with drafting: the time of a step, less that of the second part, over the time of a step without drafts, by the most
 *   drafts of a request in that step. It is measured for the worker, for each size of batch and length of context by itself, in
 *   powers of two and four.
 * - Waiting for rows that come over the link. The rows of q tokens of a request are the union of q lists. That is what q steps of one
 *   token would miss one after the other, so they grow with q, while the tokens that stand do not: four tokens of which three
 *   stand move 1.32 times the rows of each token. How many bytes a token misses is measured for each size as well; how long a
 *   step waits for a byte is the state of the link, measured for the worker with a memory of a few dozen steps. So when the link
 *   becomes slower or faster, for every size and number of drafts the next decision knows it, also for those that no step had since
 *   then. What arrives while the step computes is not waited for, and with all rows on the device this part is 0.
 *
 * So that what was measured stays true, one step in SL_DRAFT_PROBE of each size has no drafts, and in one of as many steps a
 * request gets a draft more than pays. That is what drafts cost where none pays.
 */
#ifndef SL_DECODE_RUN_DRAFT_LENGTH_H
#define SL_DECODE_RUN_DRAFT_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_DRAFTS_MAX = 4, SL_DRAFT_PROBE = 48 };

/* Of a request. Zeroed: nothing is known. */
typedef struct sl_draft_seen {
    float stands[SL_DRAFTS_MAX]; /* of drafts at this place that were checked, the part that stood */
    uint32_t n[SL_DRAFTS_MAX];   /* that were checked */
    uint32_t steps;              /* since it had a draft more */
} sl_draft_seen;

/* Of a worker's steps of about one size. Zeroed: nothing is known. */
typedef struct sl_draft_cost {
    double plain_ns; /* of a step without drafts */
    /* of one with up to k drafts of a request, over plain_ns; 0: not measured. Neither has the waiting for rows. */
    double ratio[SL_DRAFTS_MAX + 1];
    double bytes; /* of rows that a token misses */
    bool missed;  /* that is known */
    uint64_t steps;
} sl_draft_cost;

/* What steps of one size have moved over the link. */
typedef struct sl_draft_moved {
    uint64_t tokens;    /* that these steps computed: with the drafts, whether they stood or not */
    uint64_t bytes;     /* of rows that were fetched */
    uint64_t waited_ns; /* during which it only fetched */
} sl_draft_moved;

/* Of a worker: by size of batch (1, 2 to 3, 4 to 7, ..) and mean context (below 4K, 16K, ..). */
enum { SL_DRAFT_BATCHES = 10, SL_DRAFT_CONTEXTS = 6 };
typedef struct sl_draft_costs {
    sl_draft_cost of[SL_DRAFT_BATCHES][SL_DRAFT_CONTEXTS];
    double wait_ns; /* the state of the link: a step waits so long for a byte of rows */
    bool waited;    /* that is known */
    double bytes;   /* that a token of any size misses: for sizes of which it is not known */
} sl_draft_costs;

/* Of steps of `batch` requests with `tokens` tokens together. */
sl_draft_cost *sl_draft_cost_of(sl_draft_costs *c, int32_t batch, int64_t tokens);

/* Steps of the size of `of` have moved this. */
void sl_draft_link_saw(sl_draft_costs *c, sl_draft_cost *of, const sl_draft_moved *m);
/* How long a step of `batch` requests waits for the rows of one token of each of them, ns. */
double sl_draft_rows_ns(const sl_draft_costs *c, const sl_draft_cost *of, int32_t batch);

/* In the following, rows_ns is sl_draft_rows_ns() of the step. */

/* Whether the next step is one without drafts, to measure it. Call once for each step. */
bool sl_draft_cost_turn(sl_draft_cost *c);
/* A step of requests alone took ns, drafting included; most: drafts of the request that had most. */
void sl_draft_cost_saw(sl_draft_cost *c, double rows_ns, int32_t most, double ns);

/*
 * Drafts for the next step of the request, at most `most`. Call once for each of its steps. With the same cost and request, a
 * longer rows_ns never gives more drafts: where k drafts are better than fewer, they stand more often for each token that they
 * compute than they cost more time, and a wait that grows with the tokens of the step only makes that harder.
 */
int32_t sl_draft_length(const sl_draft_cost *c, double rows_ns, sl_draft_seen *s, int32_t most);
/* Of `drafted` tokens the first `stood` stood. */
void sl_draft_saw(sl_draft_seen *s, int32_t drafted, int32_t stood);

#endif
