/*
 * Qwen 4, the preview that was released as Qwen3.8-Flash-Next (qwen4_exp), its text part. Most layers are Gated DeltaNet, the others
 * attend by KV head to units of tokens that an indexer chooses by pooled keys (sparse/algorithms/pooled.c). The residual is several
 * streams with gates for each value (SL_OP_STREAMS_MIX); some layers add embeddings of hashed n-grams to the streams, from a table
 * in host memory. Every layer has experts with a softmax router, and a shared expert with a gate of its own.
 *
 *   config.c   the keys of config.json, and the classes of layers
 *   tensors.c  names of tensors, rows that are parts of one tensor, the family's row for the registry
 *   steps.c    the buffers and the steps of a layer
 *   attend.c   attention and index of a layer with rows of tokens
 *   presets.c  models for benchmarks
 */
#ifndef SL_MODEL_FAMILIES_QWEN4_H
#define SL_MODEL_FAMILIES_QWEN4_H

#include "model/family.h"

extern const sl_family sl_family_qwen4_exp;

/* The classes of layers, by number in sl_model_config.layer_class. */
enum { SL_QWEN4_ATTENTION, SL_QWEN4_LINEAR, SL_QWEN4_NGRAM, SL_QWEN4_CLASSES };

/* Slots of tensors. Of the model: */
enum { SL_QWEN4_MIX_NORM = SL_T_MODEL_OWN, SL_QWEN4_MIX_DOWN, SL_QWEN4_MIX_UP };
/* Of a layer: */
enum {
    SL_QWEN4_ATTN_NORM =
        SL_T_OWN, /* the gates before attention; those before the experts have the same order */
    SL_QWEN4_ATTN_DOWN,
    SL_QWEN4_ATTN_UP,
    SL_QWEN4_ATTN_INJECT,
    SL_QWEN4_MLP_NORM,
    SL_QWEN4_MLP_DOWN,
    SL_QWEN4_MLP_UP,
    SL_QWEN4_MLP_INJECT,
    SL_QWEN4_QKV,
    SL_QWEN4_Z,
    SL_QWEN4_A,
    SL_QWEN4_B,
    SL_QWEN4_CONV,
    SL_QWEN4_A_LOG,
    SL_QWEN4_DT_BIAS,
    SL_QWEN4_OUT_NORM,
    SL_QWEN4_OUT,
    SL_QWEN4_Q,
    SL_QWEN4_GATE,
    SL_QWEN4_K,
    SL_QWEN4_V,
    SL_QWEN4_O,
    SL_QWEN4_Q_NORM,
    SL_QWEN4_K_NORM,
    SL_QWEN4_INDEX_Q,
    SL_QWEN4_INDEX_K,
    SL_QWEN4_INDEX_Q_NORM,
    SL_QWEN4_INDEX_K_NORM,
    SL_QWEN4_SHARED_GATE,
    SL_QWEN4_NGRAM_KEY,
    SL_QWEN4_NGRAM_VALUE,
    SL_QWEN4_NGRAM_KEY_NORM,
    SL_QWEN4_NGRAM_QUERY_NORM,
    SL_QWEN4_NGRAM_OUT_NORM,
    SL_QWEN4_NGRAM_CONV,
    SL_QWEN4_NGRAM_MULTIPLIERS,
    SL_QWEN4_NGRAM_SIZES,
    SL_QWEN4_NGRAM_OFFSETS,
};

/* T = max_tokens, C = streams, act = the activations' dtype. */
typedef struct sl_qwen4_workspace {
    void *streams, *normed;          /* [T][C][hidden] act */
    float *low;                      /* [T][rank] */
    void *low_act;                   /* [T][rank] act */
    float *up;                       /* [T][C][hidden] */
    float *inject, *post;            /* [T][C] */
    float *qkv, *mixed;              /* [T][channels of the convolution], before and after it */
    float *z, *core;                 /* [T][value heads][value dim] */
    float *a, *b;                    /* [T][value heads] */
    void *core_act;                  /* [T][value heads][value dim] act */
    float *q;                        /* [T][heads][head_dim] */
    float *k, *v;                    /* [T][kv heads][head_dim] */
    void *gate, *o;                  /* [T][heads][head_dim] act */
    float *index_q;                  /* [T][index heads][index dim] */
    float *index_k;                  /* [T][index dim] */
    float *shared_gate;              /* [T] */
    void *ngram;                     /* [T][(order - 1) * heads * dim] act */
    float *ngram_value;              /* [T][hidden] */
    float *ngram_out, *ngram_normed; /* [T][C][hidden] */
} sl_qwen4_workspace;

/* Dimensions of tensors and buffers. */
int64_t sl_qwen4_dim_all(const sl_model_config *c);      /* streams * hidden */
int64_t sl_qwen4_dim_channels(const sl_model_config *c); /* of the convolution */
int64_t sl_qwen4_dim_values(const sl_model_config *c);   /* value heads * value dim */
int64_t sl_qwen4_dim_q(const sl_model_config *c);
int64_t sl_qwen4_dim_kv(const sl_model_config *c);
int64_t sl_qwen4_dim_index_q(const sl_model_config *c);
int64_t sl_qwen4_dim_ngram(const sl_model_config *c);
/* Kinds of layers. */
bool sl_qwen4_in_linear(const sl_model_config *c, int32_t layer);
bool sl_qwen4_in_attention(const sl_model_config *c, int32_t layer);
bool sl_qwen4_in_ngram(const sl_model_config *c, int32_t layer);

/* Parts of the state of a linear layer, the last two of one with n-grams; an attention layer has the raw keys of an open unit. */
enum { SL_QWEN4_PART_CONV, SL_QWEN4_PART_DELTA, SL_QWEN4_PART_TOKENS, SL_QWEN4_PART_NGRAM_CONV };

extern const sl_model_preset sl_qwen4_presets[];
sl_status sl_qwen4_begin(struct sl_config_reader *x);
sl_status sl_qwen4_read_config(struct sl_config_reader *x, const sl_family *f);
void sl_qwen4_cache_dims(const sl_model_config *c, sl_cache_dims *out);
void sl_qwen4_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
enum { SL_QWEN4_N_STEPS = 11 };
extern const sl_layer_step sl_qwen4_steps[SL_QWEN4_N_STEPS];
sl_status sl_qwen4_step_attend(struct sl_pass *p);
sl_status sl_qwen4_ask_attend(void *backend, const sl_attn_call *call, sl_err *err);

#endif
