/*
 * How long a mask may take before its request sits out steps (constraint.h). The pass of a long step takes longer than one slow mask,
 * but not than 64 of them, so the limit follows from what steps waited: while masks are done within half a step it grows, up to half a
 * step; when a step waits for them for most of its time it is halved, so that after a few steps only requests with quick
 * masks are in them.
 */
#ifndef SL_WORKER_MASK_LIMIT_H
#define SL_WORKER_MASK_LIMIT_H

#include <stdint.h>

enum { SL_MASK_LIMIT_LEAST_NS = 2000000 };

/* The limit after a step that took step_ns, waited_ns of which its masks were waited for. */
static inline uint64_t sl_mask_limit(uint64_t limit_ns, uint64_t step_ns, uint64_t waited_ns)
{
    if (waited_ns > step_ns / 4 * 3)
        limit_ns /= 2;
    else if (waited_ns <= step_ns / 2)
        limit_ns += limit_ns / 4;
    limit_ns = limit_ns < step_ns / 2 ? limit_ns : step_ns / 2;
    return limit_ns > SL_MASK_LIMIT_LEAST_NS ? limit_ns : SL_MASK_LIMIT_LEAST_NS;
}

#endif
