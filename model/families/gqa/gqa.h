/*
 * The families with grouped-query attention, dense MLPs and no indexer: Llama 3, Qwen 2.5 and Qwen 3. They share
 * mathematics and tensor names and differ in a few constants (sl_gqa_traits).
 *
 *   config.c   the family's keys of config.json
 *   tensors.c  its tensors, and the rows for the registry
 *   presets.c  models for benchmarks
 *   steps.c    its buffers, the steps of a layer, and the call by which a layer asks for its attention
 *
 * Not computed, and refused by the config reader: sliding windows, biases of o_proj and of the MLP.
 */
#ifndef SL_MODEL_FAMILIES_GQA_H
#define SL_MODEL_FAMILIES_GQA_H

#include "model/family.h"

extern const sl_family sl_family_llama, sl_family_qwen2, sl_family_qwen3;

/* Slots of a layer's tensors that only these families have. */
enum {
    SL_GQA_Q = SL_T_OWN,
    SL_GQA_K,
    SL_GQA_V,
    SL_GQA_O,
    SL_GQA_Q_BIAS,
    SL_GQA_K_BIAS,
    SL_GQA_V_BIAS,
    SL_GQA_Q_NORM,
    SL_GQA_K_NORM,
};

typedef struct sl_gqa_traits {
    int32_t head_dim;       /* when config.json does not say; 0: hidden_size / num_attention_heads */
    bool kv_heads_optional; /* without num_key_value_heads every head has keys and values of its own */
} sl_gqa_traits;

/* Buffers of the attention block; T = max_tokens, act = the activations' dtype. */
typedef struct sl_gqa_workspace {
    float *q;     /* [T][heads][head_dim]: projected, then (in place) as attention wants it */
    float *k, *v; /* [T][kv heads][head_dim], as projected */
    void *o;      /* [T][heads][head_dim] act, what attention writes */
} sl_gqa_workspace;

/* Dimensions of tensors and buffers. */
int64_t sl_gqa_dim_q(const sl_model_config *c);  /* heads * head_dim */
int64_t sl_gqa_dim_kv(const sl_model_config *c); /* kv heads * head_dim */

/* sl_family.presets */
extern const sl_model_preset sl_gqa_presets_llama[], sl_gqa_presets_qwen3[];
/* sl_family.read_config */
sl_status sl_gqa_read_config(struct sl_config_reader *x, const sl_family *f);
/* sl_family.workspace */
void sl_gqa_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
/* sl_family.steps */
enum { SL_GQA_N_STEPS = 6 };
extern const sl_layer_step sl_gqa_steps[SL_GQA_N_STEPS];
/* delta = the projection of what attention wrote */
sl_status sl_gqa_step_output(struct sl_pass *p);
/* sl_family.ask_attend */
sl_status sl_gqa_ask_attend(void *backend, const sl_attn_call *call, sl_err *err);

#endif
