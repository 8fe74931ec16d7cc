/*
 * Parameters of the ops of parallel residual streams (hyper-connections), and of the gates that families put after attention
 * and norms. The conventions are those of kernels/params.h.
 */
#ifndef SL_KERNELS_STREAMS_H
#define SL_KERNELS_STREAMS_H

#include "kernels/params.h"

/* x *= 1 / (1 + exp(-gate)) in float32, rounded to act : [T][dim]. x and gate may be the same: then x becomes silu(x). */
typedef struct sl_sigmoid_mul_params {
    void *x;          /* [T][ld_x] */
    const void *gate; /* [T][ld_gate] */
    int32_t tokens, dim, ld_x, ld_gate;
    sl_dtype act;
} sl_sigmoid_mul_params;

/* out[t] = a[t], then b[t]. */
typedef struct sl_join_params {
    const void *a, *b; /* [T][dim_a], [T][dim_b] */
    void *out;         /* [T][dim_a + dim_b] */
    int32_t tokens, dim_a, dim_b;
    sl_dtype act;
} sl_join_params;

/*
 * Hyper-connections: the residual is C = count parallel streams X of dim values. mix holds the product of
 * all C * dim values with the weights of the gates, before normalisation. With m = mix / sqrt(mean of the squares of all
 * values + eps):
 *   out = sum over c of (sigmoid(m[c] * scale[0] + base[c]) + hc_eps) * X[c], rounded to act
 *   post[c] = magnitude * sigmoid(m[C + c] * scale[1] + base[C + c]) + hc_eps
 * The mean square is summed in double, everything else is float32.
 *
 * With comb the streams are mixed too, by a matrix of a row i of C weights for each stream, and post is without hc_eps:
 *   M[i] = softmax over j of m[2C + i * C + j] * scale[2] + base[2C + i * C + j], each + hc_eps
 *   `iters` times: (from the second time on every M[i][j] by the sum of row i + hc_eps, then) by the sum of column j + hc_eps
 *
 * Without mix, out is the mean of the streams: their sum in their order, divided by C. Only streams, out, tokens, dim, count and act are read.
 */
typedef struct sl_streams_out_params {
    const void *streams; /* [T][C][dim] act */
    const float *mix;    /* [T][2 C], [T][C] without post, or [T][(2 + C) * C] with comb; or NULL */
    const float *base;   /* as a row of mix */
    const float *scale;  /* [2], [1] without post, or [3] with comb */
    void *out;           /* [T][dim] act */
    float *post;         /* [T][C] or NULL */
    float *comb;         /* [T][C][C] M, or NULL; with it there is post */
    int32_t tokens, dim, count;
    int32_t iters; /* with comb, at least 1; else 0 */
    float eps, hc_eps, magnitude;
    sl_dtype act;
} sl_streams_out_params;

#define SL_STREAMS_MAX 16

/*
 * Gated residual: C streams with a gate for each value of the row that a block reads. normed is the streams after their norms, up
 * the product that makes the gates and inject that of what the block's result will be multiplied by:
 *   out[i] = 1 / C * sum over c of sigmoid(up[c][i]) * normed[c][i], rounded to act
 *   post[c] = 2 * sigmoid(inject[c] / C)
 */
typedef struct sl_streams_mix_params {
    const void *normed;  /* [T][C][dim] act */
    const float *up;     /* [T][C][dim] */
    const float *inject; /* [T][C], with post */
    void *out;           /* [T][dim] act */
    float *post;         /* [T][C] or NULL */
    int32_t tokens, dim, count;
    sl_dtype act;
} sl_streams_mix_params;

/* out = f(x * scale), rounded to out_dtype : [T][dim]. out may be x where both are float32. */
typedef enum { SL_UNARY_SILU, SL_UNARY_SIGMOID } sl_unary_form;
typedef struct sl_unary_params {
    const float *x;
    void *out;
    int32_t tokens, dim;
    float scale;
    sl_unary_form form;
    sl_dtype out_dtype;
} sl_unary_params;

/* X[c] += post[c] * y in float32, rounded to act; with comb X[c] = post[c] * y + sum over j of comb[j][c] * X[j]. post NULL:
 * X[c] = y, the beginning. */
typedef struct sl_streams_add_params {
    void *streams;     /* [T][C][dim] act */
    const void *y;     /* [T][dim] act */
    const float *post; /* [T][C] or NULL */
    const float *comb; /* [T][C][C] or NULL; needs post */
    int32_t tokens, dim, count;
    sl_dtype act;
} sl_streams_add_params;

#endif
