/*
 * Page keys as a client chooses them that knows how tables find the places of keys: alike in their low or in their high bits. A table
 * that mixes a secret of the process in (sl_key_place()) costs with them what it costs with other keys; one that does not is searched
 * from one end to the other for each of them, which is a thousand times as much for the numbers here.
 */
#ifndef SL_TESTS_CHOSEN_KEYS_H
#define SL_TESTS_CHOSEN_KEYS_H

#include <check.h>
#include <time.h>

#include "base/hash.h"
#include "base/status.h"

enum { CHOSEN_N = 30000, CHOSEN_TIMES = 10 };

static inline sl_key chosen_other(uint64_t i)
{
    return sl_hash_chain((sl_key){1, 1}, &i, sizeof i);
}

static inline sl_key chosen_high(uint64_t i) /* all low bits are equal */
{
    return (sl_key){i << 40, i << 40};
}

static inline sl_key chosen_low(uint64_t i) /* most high bits are equal */
{
    return (sl_key){i << 20, 7};
}

static inline double chosen_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* use() puts key(1) to key(CHOSEN_N) into a table of its own and looks for them. */
static inline void chosen_check(void (*use)(sl_key (*key)(uint64_t)))
{
    sl_key (*const kinds[])(uint64_t) = {chosen_other, chosen_high, chosen_low};
    double took[3];
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        const double begin = chosen_cpu_s();
        use(kinds[k]);
        took[k] = chosen_cpu_s() - begin;
    }
    ck_assert_msg(took[1] < CHOSEN_TIMES * took[0] && took[2] < CHOSEN_TIMES * took[0],
                  "%f s, with chosen keys %f s and %f s", took[0], took[1], took[2]);
}

#endif
