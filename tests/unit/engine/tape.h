/*
 * The parameters of an op, kept for later: for devices of tests that run an op when its caller has gone on. Host structs that
 * they point at are copied too. A kept copy must not be moved.
 */
#ifndef SL_TEST_ENGINE_TAPE_H
#define SL_TEST_ENGINE_TAPE_H

#include "kernels/backend.h"
#include "kernels/codes.h"

enum { TAPE_PARAMS_MAX = 320 };

typedef struct tape_params {
    _Alignas(16) uint8_t params[TAPE_PARAMS_MAX];
    sl_seq_tables seqs;
    sl_codes_step step;
    sl_linear_params chain[SL_LINEAR_CHAIN];
} tape_params;

void tape_keep(tape_params *t, sl_op op, const void *params);

#endif
