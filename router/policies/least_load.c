/*
 * least_load: the worker with the least work. Work is the larger of what this router placed and what the
 * worker reported (the report is a heartbeat old; the own count prevents a burst from landing on one worker),
 * plus queued prompt tokens, plus a term that grows as the worker's pages run out; for ranks of a group, plus the lengths of
 * the contexts there. Ties rotate.
 */
#include "router/policies/policy.h"

static const double TOKENS_PER_UNIT = 1024.0; /* this many queued prompt tokens weigh as one request */
static const double PRESSURE = 0.15;          /* weight of k / (1 - k), k the share of pages in use */

uint64_t sl_candidate_on(const sl_candidate *c)
{
    uint64_t reported = (uint64_t)c->running + c->waiting;
    return c->placed > reported ? c->placed : reported;
}

double sl_candidate_requests(const sl_candidate *c)
{
    double load = (double)sl_candidate_on(c);
    if (c->total_pages) {
        double used = 1.0 - (double)c->free_pages / (double)c->total_pages;
        if (used < 0)
            used = 0;
        if (used > 0.99)
            used = 0.99;
        load += PRESSURE * used / (1.0 - used);
    }
    return load + (double)c->context_tokens / SL_CONTEXT_PER_REQUEST;
}

double sl_candidate_load(const sl_candidate *c)
{
    return sl_candidate_requests(c) + (double)c->queued_tokens / TOKENS_PER_UNIT;
}

static size_t pick(const void *options, const sl_pick_request *req, const sl_candidate *c, size_t n)
{
    (void)options;
    size_t best = (size_t)(req->sequence % n);
    double least = sl_candidate_load(&c[best]);
    for (size_t k = 1; k < n; k++) {
        size_t i = (size_t)((req->sequence + k) % n);
        double load = sl_candidate_load(&c[i]);
        if (load < least) {
            least = load;
            best = i;
        }
    }
    return best;
}

const sl_policy sl_policy_least_load = {
    .name = "least_load", .description = "the worker with the least work", .pick = pick};
