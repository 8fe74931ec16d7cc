/*
 * longest_prefix: the worker that holds the longest prefix of the prompt, unless loads are too far apart or too
 * little matches; then the least loaded one. Following the cache alone would pile one popular prefix on one
 * worker; hence the imbalance gate: max - min > 32 and max > 1.5 x min, over requests.
 */
#include "router/policies/policy.h"

enum { IMBALANCE_ABS = 32 };
static const double IMBALANCE_REL = 1.5;

typedef struct prefix_options {
    double cache_threshold; /* share of the prompt that must match */
} prefix_options;

static const sl_option rows[] = {
    SL_OPTION(prefix_options, cache_threshold, SL_OPTION_FLOAT, 0, "0.3", 0, 1,
              "Share of the prompt that must match for the cache to decide the worker."),
};

static const sl_options table = {.section = "router",
                                 .name = "longest_prefix",
                                 .seam = "router.policy",
                                 .rows = rows,
                                 .n = SL_COUNT(rows),
                                 .bytes = sizeof(prefix_options)};
_Static_assert(sizeof(prefix_options) <= SL_POLICY_OPTIONS_BYTES, "see policy.h");

static bool imbalanced(const sl_candidate *c, size_t n)
{
    uint64_t lo = UINT64_MAX, hi = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t v = sl_candidate_on(&c[i]);
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    return hi - lo > IMBALANCE_ABS && (double)hi > IMBALANCE_REL * (double)lo;
}

static size_t pick(const void *options, const sl_pick_request *req, const sl_candidate *c, size_t n)
{
    const prefix_options *o = options;
    size_t least = sl_policy_least_load.pick(options, req, c, n);
    if (imbalanced(c, n))
        return least;
    size_t best = least;
    for (size_t i = 0; i < n; i++) {
        if (c[i].matched_tokens > c[best].matched_tokens ||
            (c[i].matched_tokens == c[best].matched_tokens && i != best &&
             sl_candidate_load(&c[i]) < sl_candidate_load(&c[best])))
            best = i;
    }
    double share = req->n_tokens ? (double)c[best].matched_tokens / (double)req->n_tokens : 0;
    return share > o->cache_threshold ? best : least;
}

static bool by_prefix(const void *options, const sl_pick_request *req, const sl_candidate *c)
{
    const prefix_options *o = options;
    return c->matched_tokens && (double)c->matched_tokens > o->cache_threshold * (double)req->n_tokens;
}

const sl_policy sl_policy_longest_prefix = {.name = "longest_prefix",
                                            .description = "the worker that holds the longest prefix",
                                            .pick = pick,
                                            .by_prefix = by_prefix,
                                            .options = &table};
