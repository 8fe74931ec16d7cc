/* The cases of the suite: what healthy groups do, and how groups fail. */
#ifndef SL_TESTS_KERNELS_COMM_CASES_H
#define SL_TESTS_KERNELS_COMM_CASES_H

#include "tests/unit/collectives/group.h"

/* A case of a healthy group; many run one after another in one group. */
typedef struct cc_case {
    const char *name;
    void (*fn)(cg_rank *r, const int64_t *a);
    int64_t a[6];
} cc_case;
extern const cc_case cc_cases[];
extern const size_t cc_n_cases;

/* A failure; each has a group of its own. */
typedef struct cc_failure {
    const char *name;
    cg_fn fn;
    int32_t least_ranks;
    uint32_t deadline_ms, stop_ms;
    bool kills_last, stops_last, unformed, cpu_only;
    bool waits; /* mostly: on the CPU it runs while the others do */
} cc_failure;
extern const cc_failure cc_failures[];
extern const size_t cc_n_failures;

#endif
