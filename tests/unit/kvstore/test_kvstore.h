/* What every unit test of kvstore/ needs: libcheck, the end of main, and a small deterministic random source. */
#ifndef SL_TEST_KVSTORE_H
#define SL_TEST_KVSTORE_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/run_suite.h"

/* splitmix64 */
static inline uint64_t rnd(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int rnd_below(uint64_t *state, int n)
{
    return (int)(rnd(state) % (uint64_t)n);
}

#endif
