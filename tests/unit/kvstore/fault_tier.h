/*
 * Test double: a storage tier that passes every request on to another one and injects faults between the two. It keeps
 * the promises of kvstore/tier.h itself, so the conformance suite also runs against it.
 *
 *   delay    a request that is complete is held for delay_polls further polls
 *   loss     every lose_every-th page of gets is reported as not found
 *   short    every short_every-th page of gets has only its first half delivered, and is reported as corrupt
 *   damage   before a get, every damage_every-th page has stored bytes changed in the inner tier, which must notice it.
 *            Only when nothing is in flight, as sl_tier_ops.damage demands
 *   death    after die_after requests, every key ends with SL_ERR_IO and the health is failed
 *
 * 0 means never. The faults may be changed at any time. Ownership: the wrapper owns the inner tier.
 */
#ifndef SL_TEST_FAULT_TIER_H
#define SL_TEST_FAULT_TIER_H

#include "kvstore/tier.h"

typedef struct faults {
    int32_t delay_polls, lose_every, short_every, damage_every, die_after;
} faults;

/* Takes the inner tier over. Aborts when there is no memory. */
sl_tier *fault_tier_wrap(sl_tier *inner, const faults *f);
void fault_tier_set(sl_tier *t, const faults *f);

#endif
