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

#include "base/options.h"

typedef struct sl_candidate {
    uint32_t worker;                  /* id, for the trace only */
    uint32_t placed;                  /* requests this router has there now */
    uint32_t running, waiting;        /* as last reported by the worker */
    uint64_t queued_tokens;           /* prompt tokens waiting for or in prefill there */
    uint32_t free_pages, total_pages; /* free or evictable; total_pages 0 when unknown */
    uint32_t matched_tokens;          /* leading tokens of the request that its prefix cache probably holds */
    /* For cache_aware. Tokens that follow the matched ones: on its disk, in its shared store, in another worker's memory */
    uint32_t disk_tokens, shared_tokens, peer_tokens;
    /* Measured speeds. 0: unknown, a default is used; peer_rate 0: it cannot fetch from other workers */
    double prefill_rate;                      /* tokens/s */
    double disk_rate, shared_rate, peer_rate; /* bytes/s */
    double request_s; /* seconds for each request that it has; decode: mean stay / places. 0: unknown */
    /* Of a decode rank of a group, else 0: a step lasts as long as that of the rank with the most work. */
    uint64_t context_tokens; /* tokens of the contexts of the requests there */
    double slowest;          /* the largest sl_candidate_requests() among all ranks of its group */
    double token_s;          /* seconds of work for each of queued_tokens */
} sl_candidate;

typedef struct sl_pick_request {
    uint32_t n_tokens;
    uint64_t sequence;     /* counts picks; rotates ties and round_robin */
    double token_bytes;    /* of the cache, for each token */
    uint32_t given_tokens; /* leading tokens that need not be computed, whoever is chosen */
} sl_pick_request;

enum { SL_POLICY_OPTIONS_BYTES = 64 };

typedef struct sl_policy {
    const char *name, *description;
    /* Index of the chosen candidate; n > 0. options: values of the table below; not read without one. */
    size_t (*pick)(const void *options, const sl_pick_request *req, const sl_candidate *c, size_t n);
    /* Whether the cache decided for this candidate, for counters. NULL: it never does. */
    bool (*by_prefix)(const void *options, const sl_pick_request *req, const sl_candidate *c);
    /* keys of the section router, at most SL_POLICY_OPTIONS_BYTES of values; NULL: none */
    const sl_options *options;
} sl_policy;

/* By name ("round_robin", "least_load", "longest_prefix", "cache_aware"); NULL when unknown. */
const sl_policy *sl_policy_find(const char *name);
/* The i-th policy, NULL after the last; and the same as names, which end with NULL. */
const sl_policy *sl_policy_at(size_t i);
const char *const *sl_policy_names(void);

extern const sl_policy sl_policy_round_robin, sl_policy_least_load, sl_policy_longest_prefix,
    sl_policy_cache_aware;

/* Load of a candidate as least_load sees it: requests there, queued prompt tokens in units of 1024, and
 * memory pressure. */
double sl_candidate_load(const sl_candidate *c);
/* Requests there, by this router's count or by the worker's report, whichever is more; and with memory pressure and
 * contexts added. */
uint64_t sl_candidate_on(const sl_candidate *c);
double sl_candidate_requests(const sl_candidate *c);

/*
 * The expected time until the worker can begin with the request, in seconds:
 *
 *   wait       requests [with memory pressure] x request_s [s] + queued_tokens x token_s [s]
 *   disk       disk_tokens x token_bytes / disk_rate [bytes/s]
 *   shared     shared_tokens x token_bytes / shared_rate
 *   copy       2 x peer_tokens x token_bytes / peer_rate; left out when peer_rate is 0
 *   compute    (n_tokens - tokens that are held or given) / prefill_rate [tokens/s]
 *
 * A copy weighs double because it takes memory of a second worker. Where speeds are unknown: 5,000 tokens/s, 1 GB/s, and
 * 1 ms for each request.
 *
 * Ranks of a group. Every rank takes part in every step, which lasts as long as its slowest rank, so a request that a rank
 * computes within that time delays no other request. As long as the rank would not become the slowest one with this request, its
 * `requests` count as those of the slowest rank, less what this request adds; so the ranks of one group that have room
 * below the slowest rank cost the same, a group costs what its slowest rank costs, and a rank that becomes the slowest one
 * costs what it adds. Contexts count as requests: SL_CONTEXT_PER_REQUEST tokens as one.
 */
enum { SL_COST_PREFILL_RATE = 5000 };
/* In a decode step of V3.2 the index keys of this many tokens (132 bytes each) are as many bytes as the 2,048 rows that one
 * request attends to (656 bytes each). */
enum { SL_CONTEXT_PER_REQUEST = 10178 };
double sl_candidate_seconds(const sl_pick_request *req, const sl_candidate *c);
/* The time of the copy alone, weighed once. */
double sl_candidate_pull_seconds(const sl_candidate *c, double token_bytes);

#endif
