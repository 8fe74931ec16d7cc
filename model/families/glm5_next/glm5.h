/*
 * GLM-5.3-Flash (glm5_next), its text part. Most layers are Kimi Delta Attention: a delta rule with a gate for every row of its
 * state. The others are the latent attention of the DSA families without rotation, over tokens that an indexer chooses by keys of
 * units of tokens, which are pooled by learned gates (sparse/algorithms/pooled.c). The residual is several streams that every block also
 * mixes (kernels/streams.h); after the last layer the head reads their mean.
 *
 *   config.c   the keys of config.json, and the classes of layers
 *   tensors.c  names of tensors, and the family's row for the registry
 *   steps.c    the buffers, the streams and the list of steps
 *   linear.c   a layer of Kimi Delta Attention
 *   attend.c   attention and index of a layer with rows of tokens
 *   presets.c  models for benchmarks
 */
#ifndef SL_MODEL_FAMILIES_GLM5_H
#define SL_MODEL_FAMILIES_GLM5_H

#include "model/families/dsa/dsa.h"

extern const sl_family sl_family_glm5_next;

/* The classes of layers, by number in sl_model_config.layer_class. A shared layer has no index keys: it reads what the layer before it
 * has chosen. */
enum { SL_GLM5_ATTENTION, SL_GLM5_SHARED, SL_GLM5_LINEAR, SL_GLM5_CLASSES };

/* Slots of a layer's tensors that only this family has. */
enum {
    SL_GLM5_ATTN_FN = SL_DSA_SLOTS, /* fn, base and scale are in this order */
    SL_GLM5_ATTN_BASE,
    SL_GLM5_ATTN_SCALE,
    SL_GLM5_MLP_FN,
    SL_GLM5_MLP_BASE,
    SL_GLM5_MLP_SCALE,
    SL_GLM5_INDEX_GATE,
    SL_GLM5_INDEX_APE,
    SL_GLM5_Q, /* queries, keys and values are in this order, so are their convolutions */
    SL_GLM5_K,
    SL_GLM5_V,
    SL_GLM5_Q_CONV,
    SL_GLM5_K_CONV,
    SL_GLM5_V_CONV,
    SL_GLM5_DECAY_A,
    SL_GLM5_DECAY_B,
    SL_GLM5_DT_BIAS,
    SL_GLM5_A_LOG,
    SL_GLM5_BETA,
    SL_GLM5_GATE_A,
    SL_GLM5_GATE_B,
    SL_GLM5_OUT_NORM,
    SL_GLM5_OUT,
};

/* T = max_tokens, C = streams, D = linear heads * their dimension, act = the activations' dtype. */
typedef struct sl_glm5_workspace {
    sl_dsa_workspace dsa;       /* the first member: the steps of the DSA families see it alone */
    void *streams;              /* [T][C][hidden] act */
    float *mix, *post, *comb;   /* [T][(2 + C) * C], [T][C], [T][C][C] */
    float *raw[3], *mixed[3];   /* [T][D] queries, keys and values, before and after their convolution */
    void *decay_low, *gate_low; /* [T][linear dim] act */
    float *decay, *gate, *core; /* [T][D] */
    float *beta;                /* [T][linear heads] */
    void *core_act;             /* [T][D] act */
    float *index_raw, *index_key,
        *index_gate; /* [T][index dim]: keys before and after their norm, and their gates */
} sl_glm5_workspace;

/* Dimensions of tensors and buffers. */
int64_t sl_glm5_dim_all(const sl_model_config *c);    /* streams * hidden */
int64_t sl_glm5_dim_gates(const sl_model_config *c);  /* of a block's gates and matrix */
int64_t sl_glm5_dim_linear(const sl_model_config *c); /* linear heads * their dimension */
/* Kinds of layers. */
bool sl_glm5_in_linear(const sl_model_config *c, int32_t layer);
bool sl_glm5_in_attention(const sl_model_config *c, int32_t layer); /* with an indexer or without */
/* Parts of the state of a linear layer: three convolutions and the recurrence. */
enum { SL_GLM5_PART_CONV, SL_GLM5_PART_DELTA = 3 };

extern const sl_model_preset sl_glm5_presets[];
sl_status sl_glm5_begin(struct sl_config_reader *x);
sl_status sl_glm5_read_config(struct sl_config_reader *x, const sl_family *f);
void sl_glm5_cache_dims(const sl_model_config *c, sl_cache_dims *out);
void sl_glm5_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
enum { SL_GLM5_N_STEPS = 16 };
extern const sl_layer_step sl_glm5_steps[SL_GLM5_N_STEPS];
/* Attention of the row in ws->h, to ws->delta. */
sl_status sl_glm5_step_linear(struct sl_pass *p);
sl_status sl_glm5_step_queries(struct sl_pass *p);
sl_status sl_glm5_step_index(struct sl_pass *p);
sl_status sl_glm5_step_attend(struct sl_pass *p);
sl_status sl_glm5_ask_attend(void *backend, const sl_attn_call *call, sl_err *err);

#endif
