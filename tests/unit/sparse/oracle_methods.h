/*
 * What selects, for the synthetic oracle (test_oracle.c): the GQA strategies through the ops of a backend, as their
 * algorithms call them, and what they are compared with, computed on the host.
 */
#ifndef TESTS_UNIT_SPARSE_ORACLE_METHODS_H
#define TESTS_UNIT_SPARSE_ORACLE_METHODS_H

#include "tests/unit/sparse/oracle_rig.h"

typedef struct oracle_method {
    const char *name;
    /* in[head][token] = 1 for the selected tokens; it is 0 before. */
    sl_status (*run)(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err);
    int32_t arg;
    bool ops;    /* runs on a backend */
    bool newest; /* selects the first and the newest tokens in any case */
    bool window; /* selects by the queries of the observation window */
    bool exact;  /* its scores have the same bits on every backend, so that the sets are equal */
    /* The least share of the mass of the oracle per KV head, of the 256 heaviest tokens, and of the needles; 0: none is
     * required. Of a method with a window: while the question is in it. */
    double mass, top, needles;
} oracle_method;

enum {
    ORACLE_PER_HEAD,
    ORACLE_PER_KV,
    ORACLE_STREAMING,
    ORACLE_RANDOM
};                                           /* the first methods, in this order */
extern const oracle_method oracle_methods[]; /* ends with name NULL */
#define ORACLE_METHODS_MAX 20

/* oracle_stages.c. arg: sl_kt_type of the bounds; sl_group_reduce; not used. */
sl_status oracle_run_rocket(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err);
sl_status oracle_run_clusters(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err);
sl_status oracle_run_codes(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err);

#endif
