/*
 * Random numbers of the simulator: splitmix64. Equal seeds give equal sequences on every machine.
 */
#ifndef SL_SIMULATE_RANDOM_H
#define SL_SIMULATE_RANDOM_H

#include <stdint.h>

static inline uint64_t sl_sim_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* In [0, 1). */
static inline double sl_sim_random_real(uint64_t *state)
{
    return (double)(sl_sim_random(state) >> 11) * 0x1p-53;
}

#endif
