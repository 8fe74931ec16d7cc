/*
 * A test double of a model family: grouped-query attention with q/k norms, dense layers, tied or own head, a head_dim
 * that is not hidden / heads. It exists to show what a new family needs: its reader, tensors, buffers and steps, and
 * nothing in model/. Its attention is the test's (`attend`); it does not rotate.
 */
#ifndef SL_TEST_TOY_GQA_H
#define SL_TEST_TOY_GQA_H

#include "model/family.h"

extern const sl_family toy_gqa;

enum { TOY_Q = SL_T_OWN, TOY_K, TOY_V, TOY_O, TOY_Q_NORM, TOY_K_NORM };

/* T = max_tokens, float32 on the CPU. */
typedef struct toy_workspace {
    float *q, *k, *v; /* [T][heads or kv heads][head_dim], as projected */
    float *qn, *kn;   /* normalised */
    float *o;         /* [T][heads][head_dim], what `attend` writes */
} toy_workspace;

#endif
