/*
 * How many tokens are drafted for a request in the next step: pure arithmetic on what was measured, no clock, no engine.
 *
 * A draft at place k (1, 2, ..) is worth the probability that it and those before it stand. This is measured for each request, by
 * place, with a memory of about 32 steps. What it costs is measured for the worker, for each size of batch and length of context by
 * itself, in powers of two and four: the time of drafting and of a step, over the time of a step without drafts, by the most drafts of a
 * request in that step. Whatever makes verification dear there, the link among it, is in that time. A draft pays if its worth is at
 * least what it adds to the cost.
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
    double ratio[SL_DRAFTS_MAX +
                 1]; /* of one with up to k drafts of a request, over plain_ns; 0: not measured */
    uint64_t steps;
} sl_draft_cost;

/* Of a worker: by size of batch (1, 2 to 3, 4 to 7, ..) and mean context (below 4K, 16K, ..). */
enum { SL_DRAFT_BATCHES = 10, SL_DRAFT_CONTEXTS = 6 };
typedef struct sl_draft_costs {
    sl_draft_cost of[SL_DRAFT_BATCHES][SL_DRAFT_CONTEXTS];
} sl_draft_costs;

/* Of steps of `batch` requests with `tokens` tokens together. */
sl_draft_cost *sl_draft_cost_of(sl_draft_costs *c, int32_t batch, int64_t tokens);

/* Whether the next step is one without drafts, to measure it. Call once for each step. */
bool sl_draft_cost_turn(sl_draft_cost *c);
/* A step of requests alone took ns, drafting included; most: drafts of the request that had most. */
void sl_draft_cost_saw(sl_draft_cost *c, int32_t most, double ns);

/* Drafts for the next step of the request, at most `most`. Call once for each of its steps. */
int32_t sl_draft_length(const sl_draft_cost *c, sl_draft_seen *s, int32_t most);
/* Of `drafted` tokens the first `stood` stood. */
void sl_draft_saw(sl_draft_seen *s, int32_t drafted, int32_t stood);

#endif
