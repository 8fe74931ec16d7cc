/*
 * Placement policy: which of several workers gets a request. The interface that `router.policy` chooses from.
 *
 * A policy is a pure function over a table of loads: it keeps no state, reads no clock and allocates nothing,
 * so a recorded trace replays to the same choices. What changes between calls (a counter for rotation, the
 * length of the cached prefix on each worker) is passed in. It does not decide whether a worker may be used
 * at all: the caller lists only workers with room. Every policy passes the conformance suite in
 * tests/unit/router/test_policy.c.
 */
#ifndef SL_ROUTER_POLICIES_POLICY_H
#define SL_ROUTER_POLICIES_POLICY_H

#include <stddef.h>
#include <stdint.h>

typedef struct sl_candidate {
    uint32_t worker;                  /* id, for the trace only */
    uint32_t placed;                  /* requests this router has there now */
    uint32_t running, waiting;        /* as last reported by the worker */
    uint64_t queued_tokens;           /* prompt tokens waiting for or in prefill there */
    uint32_t free_pages, total_pages; /* free or evictable; total_pages 0 when unknown */
    uint32_t matched_tokens;          /* leading tokens of the request that its prefix cache probably holds */
} sl_candidate;

typedef struct sl_pick_request {
    uint32_t n_tokens;
    uint64_t sequence; /* counts picks; rotates ties and round_robin */
} sl_pick_request;

typedef struct sl_policy_opts {
    double cache_threshold; /* share of the prompt that must match */
    uint32_t imbalance_abs;
    double imbalance_rel;
} sl_policy_opts;

typedef struct sl_policy {
    const char *name, *description;
    /* Index of the chosen candidate; n > 0. */
    size_t (*pick)(const sl_policy_opts *opts, const sl_pick_request *req, const sl_candidate *c, size_t n);
} sl_policy;

/* By name ("round_robin", "least_load", "cache_aware"); NULL when unknown. */
const sl_policy *sl_policy_find(const char *name);
/* The i-th policy, NULL after the last; and the same as names, which end with NULL. */
const sl_policy *sl_policy_at(size_t i);
const char *const *sl_policy_names(void);

extern const sl_policy sl_policy_round_robin, sl_policy_least_load, sl_policy_cache_aware;

/* Load of a candidate as least_load sees it: requests there, queued prompt tokens in units of 1024, and
 * memory pressure. */
double sl_candidate_load(const sl_candidate *c);

#endif
