/*
 * Parameters of the ops of delta-rule layers (Gated DeltaNet, Kimi Delta Attention): a causal convolution, the recurrence, and
 * the norm of its output. The conventions are those of kernels/params.h.
 *
 * What such a layer keeps of a request is a state of fixed size (sl_layer_memory in kernels/attn.h). State i of the tables'
 * sequences is at state + i * state_stride bytes; it is zero before the first token, and each op reads and writes its own part of the
 * state. The tokens of a sequence are taken one after the other in every step, so the bits of a token depend on the tokens before
 * it alone: neither on how a prompt is cut into steps nor on the batch. A chunked form of the recurrence would multiply in
 * another order for each cut, and the norm of the output makes the difference large.
 *
 * Both backends have these ops.
 */
#ifndef SL_KERNELS_DELTA_H
#define SL_KERNELS_DELTA_H

#include "kernels/params.h"

enum { SL_CONV_TAPS_MAX = 16, SL_DELTA_DIM_MAX = 256 };

/*
 * out[t][c] = silu(sum over j < taps of w[c][j] * x[t - (taps - 1 - j) * dilation][c]) + add[t][c], in this order and in float32,
 * then rounded to out_dtype. Values before the first token are 0. The state is float [(taps - 1) * dilation][channels]: the value
 * of the token at position p is in row p % ((taps - 1) * dilation).
 */
typedef struct sl_conv_params {
    const float *x;   /* [T][ld_x] */
    const float *w;   /* [channels][taps] */
    const float *add; /* [T][channels] or NULL */
    void *out;        /* [T][channels] out_dtype; not x */
    const sl_seq_tables *seqs;
    uint8_t *state;
    int64_t state_stride;
    int32_t channels, taps, dilation, ld_x;
    sl_dtype out_dtype;
} sl_conv_params;

/*
 * The recurrence. Value head h reads key head h / (value_heads / key_heads). With q and k divided by sqrt(sum of squares + 1e-6),
 * q also multiplied by key_dim^-0.5, for each token in its order:
 *   S = decay * S;  u = sigmoid(beta) * (v - S^T k);  S = S + k u^T;  out = S^T q
 * decay = e^g, of a whole head or, by_channel, of each row of S:
 *   g = -e^a_log * softplus(gate + dt_bias), or with bound < 0: g = bound * sigmoid(e^a_log * (gate + dt_bias))
 * softplus(z) is z above 20. The state is float [value_heads][key_dim][value_dim].
 */
typedef struct sl_delta_params {
    const float *q, *k,
        *v; /* [T] rows of key_heads * key_dim (q, k) and value_heads * value_dim values, ld apart */
    const float *gate;    /* [T][value_heads], or by_channel [T][value_heads][key_dim] */
    const float *beta;    /* [T][value_heads] */
    const float *a_log;   /* [value_heads] */
    const float *dt_bias; /* as a row of gate */
    float *out;           /* [T][value_heads][value_dim] */
    const sl_seq_tables *seqs;
    uint8_t *state;
    int64_t state_stride;
    int32_t key_heads, value_heads, key_dim, value_dim, ld_q, ld_k, ld_v;
    bool by_channel;
    float bound;
} sl_delta_params;

/* The gate of the norm after the recurrence. */
typedef enum { SL_GATE_SILU, SL_GATE_SIGMOID } sl_gate_form;

/*
 * out[t][h] = x * rsqrt(mean(x^2) + eps) * weight * f(gate) + bias, of each head by itself, rounded to act. Without a gate f is 1. With a
 * bias the mean of x is taken from x first (LayerNorm), without one there is none. Both means are summed in double.
 */
typedef struct sl_gated_norm_params {
    const float *x, *gate;      /* [T][heads][dim]; gate may be NULL */
    const float *weight, *bias; /* [dim]; bias may be NULL */
    void *out;                  /* [T][heads][dim] act */
    int32_t tokens, heads, dim;
    float eps;
    sl_gate_form form;
    sl_dtype act;
} sl_gated_norm_params;

#endif
