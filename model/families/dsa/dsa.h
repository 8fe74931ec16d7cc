/*
 * The DSA families, DeepSeek-V3.2 and GLM-5.x: latent attention (MLA) over the tokens that an indexer selects, and a
 * mixture of experts. They share mathematics and tensor names and differ in a few constants (sl_dsa_traits).
 *
 *   config.c   the family's keys of config.json
 *   tensors.c  its tensors, and the two rows for the registry
 *   steps.c    its buffers and the steps of a layer
 *   attend.c   the call by which a layer asks for its attention
 */
#ifndef SL_MODEL_FAMILIES_DSA_H
#define SL_MODEL_FAMILIES_DSA_H

#include "model/family.h"

extern const sl_family sl_family_deepseek_v32, sl_family_glm_moe_dsa;

/* Slots of a layer's tensors that only these families have. */
enum {
    SL_DSA_Q_A = SL_T_OWN,
    SL_DSA_Q_A_NORM,
    SL_DSA_Q_B,
    SL_DSA_KV_A,
    SL_DSA_KV_A_NORM,
    SL_DSA_KV_B,
    SL_DSA_O,
    SL_DSA_INDEX_Q,
    SL_DSA_INDEX_K,
    SL_DSA_INDEX_NORM,
    SL_DSA_INDEX_NORM_BIAS,
    SL_DSA_INDEX_WEIGHTS,
    SL_DSA_SINKS, /* of families that have them */
    SL_DSA_SLOTS, /* from here on those of families that are composed of this one */
};

typedef struct sl_dsa_traits {
    bool index_rope_interleaved; /* unless the config says otherwise */
    bool index_share;            /* layers may reuse an earlier layer's selection */
    float lora_eps, index_eps;   /* index_eps 0: that of the residual norms */
    const char *defaults;        /* of keys that the published class fills in (sl_cfg_fill); NULL: none */
    bool any_kv_heads;           /* num_key_value_heads has no meaning */
} sl_dsa_traits;

/* Buffers of the attention block; T = max_tokens, act = the activations' dtype. */
typedef struct sl_dsa_workspace {
    void *q_a;            /* [T][q_lora] act */
    void *q_r;            /* [T][q_lora] act, normalised */
    const void *q_in;     /* what q_b reads: q_r, unless a family says otherwise */
    void *q;              /* [T][heads][nope + rope] act */
    void *kv;             /* [T][lora + rope] act */
    float *ql;            /* [T][heads][lora + rope] */
    float *o;             /* [T][heads][lora] */
    void *attn;           /* [T][heads][v] act */
    void *index_k;        /* [T][index_dim] act */
    void *index_q;        /* [T][index_heads][index_dim] act */
    void *index_q_out;    /* the same, f32 or e4m3 */
    float *index_proj;    /* [T][index_heads] */
    float *index_weights; /* [T][index_heads] */
} sl_dsa_workspace;

/* Dimensions of tensors and buffers. */
int64_t sl_dsa_dim_q(const sl_model_config *c);       /* heads * (nope + rope) */
int64_t sl_dsa_dim_kv_a(const sl_model_config *c);    /* kv_lora + rope */
int64_t sl_dsa_dim_kv_b(const sl_model_config *c);    /* heads * (nope + v) */
int64_t sl_dsa_dim_o(const sl_model_config *c);       /* heads * v */
int64_t sl_dsa_dim_index_q(const sl_model_config *c); /* index heads * index dim */

/* Other dimensions, and a pattern of layers, as rows of tensors use them. */
int64_t sl_dsa_dim_q_lora(const sl_model_config *c);
int64_t sl_dsa_dim_kv_lora(const sl_model_config *c);
int64_t sl_dsa_dim_index(const sl_model_config *c);
int64_t sl_dsa_dim_index_heads(const sl_model_config *c);

/* sl_family.cache_dims and ignores */
void sl_dsa_cache_dims(const sl_model_config *c, sl_cache_dims *out);
bool sl_dsa_ignores(const sl_model_config *c, int32_t layer, const char *rest);

/* Layers that run their own indexer. */
bool sl_dsa_in_indexer(const sl_model_config *c, int32_t layer);

/* Which layers run their own indexer, from the keys of IndexShare, to layer_has_indexer. */
sl_status sl_dsa_indexer_layers(struct sl_config_reader *x);
/* sl_family.read_config */
sl_status sl_dsa_read_config(struct sl_config_reader *x, const sl_family *f);
/* sl_family.workspace */
void sl_dsa_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
/* sl_family.steps */
enum { SL_DSA_N_STEPS = 10, SL_DSA_N_ROW_STEPS = 3 };
extern const sl_layer_step sl_dsa_steps[SL_DSA_N_STEPS], sl_dsa_row_steps[SL_DSA_N_ROW_STEPS];
/* Its parts, for families that are composed of them: queries from q_in, latents and index keys; the index queries; the call of
 * `attend`; results of the heads, in attn; the output, in delta. */
sl_status sl_dsa_step_queries(struct sl_pass *p);
sl_status sl_dsa_step_index(struct sl_pass *p);
sl_status sl_dsa_step_attend(struct sl_pass *p);
/* The call without what the indexer gives. It is valid as long as the pass. */
void sl_dsa_call(struct sl_pass *p, sl_attn_call *out);
sl_status sl_dsa_step_values(struct sl_pass *p);
sl_status sl_dsa_step_output(struct sl_pass *p);
/* The first of them in two parts: what reads the normalised input; queries from q_in, and the index queries from q_r. */
sl_status sl_dsa_step_latents(struct sl_pass *p);
sl_status sl_dsa_step_heads(struct sl_pass *p);
/* sl_family.presets */
extern const sl_model_preset sl_dsa_presets_v32[], sl_dsa_presets_glm[];
/* sl_family.ask_attend */
sl_status sl_dsa_ask_attend(void *backend, const sl_attn_call *call, sl_err *err);
/* The queries as attention wants them, in ql: q multiplied by the key half of kv_b, rotated. */
sl_status sl_dsa_absorb(const struct sl_pass *p);

#endif
