/*
 * cache_aware: the worker that can begin soonest: the least sum of waiting, loading and computing (policy.h). An owner of a
 * prefix that many requests have is chosen until its load costs more than the copy or the computation elsewhere; so popular
 * prefixes spread, and others stay where they are. Workers that differ by less than TIE count as equal: of them the least
 * loaded one is chosen, and these rotate.
 */
#include "router/policies/policy.h"

static const double TIE = 1e-6; /* seconds */

static size_t pick(const void *options, const sl_pick_request *req, const sl_candidate *c, size_t n)
{
    (void)options;
    size_t best = (size_t)(req->sequence % n);
    double least = sl_candidate_seconds(req, &c[best]);
    for (size_t k = 1; k < n; k++) {
        size_t i = (size_t)((req->sequence + k) % n);
        double s = sl_candidate_seconds(req, &c[i]);
        bool equal = s < least + TIE && s > least - TIE;
        if (equal ? sl_candidate_load(&c[i]) < sl_candidate_load(&c[best]) : s < least) {
            least = s;
            best = i;
        }
    }
    return best;
}

static bool by_prefix(const void *options, const sl_pick_request *req, const sl_candidate *c)
{
    (void)options, (void)req;
    return (uint64_t)c->matched_tokens + c->disk_tokens + c->shared_tokens + c->peer_tokens > 0;
}

const sl_policy sl_policy_cache_aware = {.name = "cache_aware",
                                         .description = "the worker that can begin soonest",
                                         .pick = pick,
                                         .by_prefix = by_prefix};
