/*
 * The arithmetic of the sampler, whose result must be the same on every machine and in every build: exponentials, sums
 * in a fixed order, a total order of candidates and the counter-based random generator. It uses only + - * and
 * comparisons of IEEE floats, no libm, and is compiled without contraction into fused multiply-adds.
 */
#ifndef SL_MODEL_SAMPLER_MATH_H
#define SL_MODEL_SAMPLER_MATH_H

#include "base/status.h"

typedef struct sm_cand {
    float logit;
    float weight;
    int32_t id;
} sm_cand;

/* exp(x) for x <= 0, relative error below 2e-7; 0 below -87. */
float sm_exp(float x);
/* w[i] = exp((x[i] - max) * inv_t), and their sum (see sm_sum). */
double sm_weights(const float *x, size_t n, float max, float inv_t, float *w);
/* The sum: eight interleaved partial sums in double, which are then added in pairs. */
double sm_sum(const float *w, size_t n);
/* The largest of n >= 1 values; *bad: one of them is NaN or +inf. */
float sm_max(const float *x, size_t n, bool *bad);
/* Sorts by descending logit; equal logits keep their order. tmp has room for n. */
void sm_sort(sm_cand *v, size_t n, sm_cand *tmp);

#endif
