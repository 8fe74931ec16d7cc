/* What every unit test of kvstore/ needs: libcheck, the end of main, a small deterministic random source, and a tier's directory. */
#ifndef SL_TEST_KVSTORE_H
#define SL_TEST_KVSTORE_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

/* The directory of a disk tier, made at the first call: its own for each test, which is a process of its own. */
static inline const char *tier_directory(void)
{
    static char path[64];
    if (!path[0]) {
        snprintf(path, sizeof path, "build/tier-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(path));
    }
    return path;
}

static inline void remove_tier_directory(void)
{
    char file[128];
    snprintf(file, sizeof file, "%s/pages.sluice", tier_directory());
    unlink(file);
    rmdir(tier_directory());
}

#endif
