/*
 * round_robin: workers in turn, whatever their load. The baseline that the other policies must beat.
 */
#include "router/policies/policy.h"

static size_t pick(const void *options, const sl_pick_request *req, const sl_candidate *c, size_t n)
{
    (void)options;
    (void)c;
    return (size_t)(req->sequence % n);
}

const sl_policy sl_policy_round_robin = {
    .name = "round_robin", .description = "workers in turn", .pick = pick};
