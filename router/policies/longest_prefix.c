/*
 * longest_prefix: the worker that holds the longest prefix of the prompt, unless loads are too far apart or too
 * little matches; then the least loaded one. Following the cache alone would pile one popular prefix on one
 * worker; hence the imbalance gate: max - min > imbalance_abs and max > imbalance_rel x min, over requests.
 */
#include <stdbool.h>

#include "router/policies/policy.h"

static bool imbalanced(const sl_policy_opts *o, const sl_candidate *c, size_t n)
{
    uint64_t lo = UINT64_MAX, hi = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t v = sl_candidate_on(&c[i]);
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    return hi - lo > o->imbalance_abs && (double)hi > o->imbalance_rel * (double)lo;
}

static size_t pick(const sl_policy_opts *opts, const sl_pick_request *req, const sl_candidate *c, size_t n)
{
    size_t least = sl_policy_least_load.pick(opts, req, c, n);
    if (imbalanced(opts, c, n))
        return least;
    size_t best = least;
    for (size_t i = 0; i < n; i++) {
        if (c[i].matched_tokens > c[best].matched_tokens ||
            (c[i].matched_tokens == c[best].matched_tokens && i != best &&
             sl_candidate_load(&c[i]) < sl_candidate_load(&c[best])))
            best = i;
    }
    double share = req->n_tokens ? (double)c[best].matched_tokens / (double)req->n_tokens : 0;
    return share > opts->cache_threshold ? best : least;
}

const sl_policy sl_policy_longest_prefix = {"longest_prefix", "the worker that holds the longest prefix",
                                            pick};
