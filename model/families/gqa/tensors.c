/* The tensors of the families with grouped-query attention and their rows for the registry. */
#include "model/families/gqa/gqa.h"

int64_t sl_gqa_dim_q(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * c->attn.v_head_dim;
}

int64_t sl_gqa_dim_kv(const sl_model_config *c)
{
    return (int64_t)c->attn.n_kv_heads * c->attn.v_head_dim;
}

static int64_t dim_head(const sl_model_config *c)
{
    return c->attn.v_head_dim;
}

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
};

/* One row for each tensor, which clang-format would break up. */
/* clang-format off */
#define LAYER_TENSORS                                                                                               \
    {"input_layernorm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},        \
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN}, \
    {"self_attn.q_proj.weight", SL_GQA_Q, SL_K_LINEAR, NULL, sl_gqa_dim_q, sl_dim_hidden, 0},                       \
    {"self_attn.k_proj.weight", SL_GQA_K, SL_K_LINEAR, NULL, sl_gqa_dim_kv, sl_dim_hidden, 0},                      \
    {"self_attn.v_proj.weight", SL_GQA_V, SL_K_LINEAR, NULL, sl_gqa_dim_kv, sl_dim_hidden, 0},                      \
    {"self_attn.o_proj.weight", SL_GQA_O, SL_K_LINEAR, NULL, sl_dim_hidden, sl_gqa_dim_q, 0},                       \
    {"mlp.gate_proj.weight", SL_T_GATE, SL_K_LINEAR, NULL, sl_dim_dense, sl_dim_hidden, 0},                         \
    {"mlp.up_proj.weight", SL_T_UP, SL_K_LINEAR, NULL, sl_dim_dense, sl_dim_hidden, 0},                             \
    {"mlp.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dim_dense, 0}

static const sl_tensor_spec llama_tensors[] = {LAYER_TENSORS};

static const sl_tensor_spec qwen2_tensors[] = {
    LAYER_TENSORS,
    {"self_attn.q_proj.bias", SL_GQA_Q_BIAS, SL_K_FLOATS, NULL, sl_gqa_dim_q, sl_dim_one, 0},
    {"self_attn.k_proj.bias", SL_GQA_K_BIAS, SL_K_FLOATS, NULL, sl_gqa_dim_kv, sl_dim_one, 0},
    {"self_attn.v_proj.bias", SL_GQA_V_BIAS, SL_K_FLOATS, NULL, sl_gqa_dim_kv, sl_dim_one, 0},
};

static const sl_tensor_spec qwen3_tensors[] = {
    LAYER_TENSORS,
    {"self_attn.q_norm.weight", SL_GQA_Q_NORM, SL_K_FLOATS, NULL, dim_head, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.k_norm.weight", SL_GQA_K_NORM, SL_K_FLOATS, NULL, dim_head, sl_dim_one, SL_SPEC_GAIN},
};
/* clang-format on */

static void cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    out->kv_heads = c->attn.n_kv_heads;
    out->head_dim = c->attn.v_head_dim;
    out->query_heads = c->attn.n_heads;
}

/* Qwen 3's reference has head_dim 128 as a constant, and its checkpoints state it. */
static const sl_gqa_traits llama = {.kv_heads_optional = true};
static const sl_gqa_traits qwen2 = {.kv_heads_optional = false};
static const sl_gqa_traits qwen3 = {.head_dim = 128};

#define GQA_FAMILY(name, class, made)                                                                        \
    const sl_family sl_family_##name = {.model_type = #name,                                                 \
                                        .architecture = class,                                               \
                                        .read_config = sl_gqa_read_config,                                   \
                                        .cache_dims = cache_dims,                                            \
                                        .model_tensors = model_tensors,                                      \
                                        .layer_tensors = name##_tensors,                                     \
                                        .n_model_tensors = SL_COUNT(model_tensors),                          \
                                        .n_layer_tensors = SL_COUNT(name##_tensors),                         \
                                        .workspace_size = sizeof(sl_gqa_workspace),                          \
                                        .workspace = sl_gqa_carve,                                           \
                                        .steps = sl_gqa_steps,                                               \
                                        .n_steps = SL_GQA_N_STEPS,                                           \
                                        .ask_attend = sl_gqa_ask_attend,                                     \
                                        .presets = made,                                                     \
                                        .traits = &name}

GQA_FAMILY(llama, "LlamaForCausalLM", sl_gqa_presets_llama);
GQA_FAMILY(qwen2, "Qwen2ForCausalLM", NULL);
GQA_FAMILY(qwen3, "Qwen3ForCausalLM", sl_gqa_presets_qwen3);
