/*
 * The expected time until a worker can begin with a request, in seconds; the formula is in policy.h.
 */
#include "router/policies/policy.h"

/* Bytes per second, used until a worker has measured its own: one NVMe disk, a network of 10 Gbit/s. */
static const double DISK_RATE = 1e9, SHARED_RATE = 1e9;
/* A copy also takes memory of the worker that makes it, where other pages must leave. */
static const double COPY_WEIGHT = 2;
/* A request that ends soon still takes its place for a while: the order among idle workers of unknown speed. */
static const double REQUEST_S = 1e-3;

static double rate_or(double measured, double otherwise)
{
    return measured > 0 ? measured : otherwise;
}

double sl_candidate_pull_seconds(const sl_candidate *c, double token_bytes)
{
    return c->peer_rate > 0 ? c->peer_tokens * token_bytes / c->peer_rate : 0;
}

/* Requests that a request waits for; of a rank of a group see policy.h. */
static double requests_before(const sl_pick_request *req, const sl_candidate *c)
{
    double own = sl_candidate_requests(c), adds = 1 + (double)req->n_tokens / SL_CONTEXT_PER_REQUEST;
    return own + adds < c->slowest ? c->slowest - adds : own;
}

double sl_candidate_seconds(const sl_pick_request *req, const sl_candidate *c)
{
    double prefill = rate_or(c->prefill_rate, SL_COST_PREFILL_RATE);
    double wait =
        requests_before(req, c) * rate_or(c->request_s, REQUEST_S) + (double)c->queued_tokens * c->token_s;
    double load = c->disk_tokens * req->token_bytes / rate_or(c->disk_rate, DISK_RATE) +
                  c->shared_tokens * req->token_bytes / rate_or(c->shared_rate, SHARED_RATE);
    uint64_t have = (uint64_t)c->matched_tokens + c->disk_tokens + c->shared_tokens;
    if (c->peer_rate > 0 && c->peer_tokens) {
        load += COPY_WEIGHT * sl_candidate_pull_seconds(c, req->token_bytes);
        have += c->peer_tokens;
    }
    have = have > req->given_tokens ? have : req->given_tokens;
    double compute = have < req->n_tokens ? (double)(req->n_tokens - have) / prefill : 0;
    return wait + load + compute;
}
