/* The tensors of GLM-5.3-Flash, and its row for the registry. */
#include "model/families/glm5_next/glm5.h"

int64_t sl_glm5_dim_all(const sl_model_config *c)
{
    return (int64_t)c->streams.count * c->hidden_size;
}

int64_t sl_glm5_dim_gates(const sl_model_config *c)
{
    return (2 + (int64_t)c->streams.count) * c->streams.count;
}

int64_t sl_glm5_dim_linear(const sl_model_config *c)
{
    return (int64_t)c->linear.value_heads * c->linear.value_dim;
}

static int64_t dim_three(const sl_model_config *c)
{
    (void)c;
    return 3;
}

static int64_t dim_heads(const sl_model_config *c)
{
    return c->linear.value_heads;
}

static int64_t dim_head(const sl_model_config *c)
{
    return c->linear.value_dim;
}

static int64_t dim_taps(const sl_model_config *c)
{
    return c->linear.taps;
}

static int64_t dim_unit(const sl_model_config *c)
{
    return c->index.unit;
}

bool sl_glm5_in_linear(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] == SL_GLM5_LINEAR;
}

bool sl_glm5_in_attention(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] != SL_GLM5_LINEAR;
}

/* One row for each tensor, which clang-format would break up. Names: published ones, then those of the class of transformers. */
/* clang-format off */
static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
};

#define IN_DSA sl_glm5_in_attention
#define IN_KDA sl_glm5_in_linear
#define STREAMS(published, own, which) \
    {"hc_" published "_fn|" own "_hc.fn", SL_GLM5_##which##_FN, SL_K_LINEAR, NULL, sl_glm5_dim_gates, sl_glm5_dim_all, SL_SPEC_16BIT}, \
    {"hc_" published "_base|" own "_hc.base", SL_GLM5_##which##_BASE, SL_K_FLOATS, NULL, sl_glm5_dim_gates, sl_dim_one, 0}, \
    {"hc_" published "_scale|" own "_hc.scale", SL_GLM5_##which##_SCALE, SL_K_FLOATS, NULL, dim_three, sl_dim_one, 0}

static const sl_tensor_spec layer_tensors[] = {
    {"input_layernorm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    STREAMS("attn", "attn", ATTN),
    STREAMS("ffn", "ffn", MLP),
    {"self_attn.q_proj.weight", SL_GLM5_Q, SL_K_LINEAR, IN_KDA, sl_glm5_dim_linear, sl_dim_hidden, 0},
    {"self_attn.k_proj.weight", SL_GLM5_K, SL_K_LINEAR, IN_KDA, sl_glm5_dim_linear, sl_dim_hidden, 0},
    {"self_attn.v_proj.weight", SL_GLM5_V, SL_K_LINEAR, IN_KDA, sl_glm5_dim_linear, sl_dim_hidden, 0},
    {"self_attn.q_conv1d.weight", SL_GLM5_Q_CONV, SL_K_TAPS, IN_KDA, sl_glm5_dim_linear, dim_taps, 0},
    {"self_attn.k_conv1d.weight", SL_GLM5_K_CONV, SL_K_TAPS, IN_KDA, sl_glm5_dim_linear, dim_taps, 0},
    {"self_attn.v_conv1d.weight", SL_GLM5_V_CONV, SL_K_TAPS, IN_KDA, sl_glm5_dim_linear, dim_taps, 0},
    {"self_attn.f_a_proj.weight|self_attn.forget_gate.f_a_proj.weight", SL_GLM5_DECAY_A, SL_K_LINEAR, IN_KDA, dim_head, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.f_b_proj.weight|self_attn.forget_gate.f_b_proj.weight", SL_GLM5_DECAY_B, SL_K_LINEAR, IN_KDA, sl_glm5_dim_linear, dim_head, SL_SPEC_16BIT},
    {"self_attn.dt_bias|self_attn.forget_gate.dt_bias", SL_GLM5_DT_BIAS, SL_K_FLOATS, IN_KDA, sl_glm5_dim_linear, sl_dim_one, 0},
    {"self_attn.A_log|self_attn.forget_gate.A_log", SL_GLM5_A_LOG, SL_K_FLOATS, IN_KDA, dim_heads, sl_dim_one, 0},
    {"self_attn.b_proj.weight", SL_GLM5_BETA, SL_K_LINEAR, IN_KDA, dim_heads, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.g_a_proj.weight", SL_GLM5_GATE_A, SL_K_LINEAR, IN_KDA, dim_head, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.g_b_proj.weight", SL_GLM5_GATE_B, SL_K_LINEAR, IN_KDA, sl_glm5_dim_linear, dim_head, SL_SPEC_16BIT},
    {"self_attn.o_norm.weight", SL_GLM5_OUT_NORM, SL_K_FLOATS, IN_KDA, dim_head, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.o_proj.weight", SL_GLM5_OUT, SL_K_LINEAR, IN_KDA, sl_dim_hidden, sl_glm5_dim_linear, 0},
    {"self_attn.q_a_proj.weight", SL_DSA_Q_A, SL_K_LINEAR, IN_DSA, sl_dsa_dim_q_lora, sl_dim_hidden, 0},
    {"self_attn.q_a_layernorm.weight", SL_DSA_Q_A_NORM, SL_K_VECTOR, IN_DSA, sl_dsa_dim_q_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.q_b_proj.weight", SL_DSA_Q_B, SL_K_LINEAR, IN_DSA, sl_dsa_dim_q, sl_dsa_dim_q_lora, 0},
    {"self_attn.kv_a_proj_with_mqa.weight", SL_DSA_KV_A, SL_K_LINEAR, IN_DSA, sl_dsa_dim_kv_a, sl_dim_hidden, 0},
    {"self_attn.kv_a_layernorm.weight", SL_DSA_KV_A_NORM, SL_K_VECTOR, IN_DSA, sl_dsa_dim_kv_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.kv_b_proj.weight", SL_DSA_KV_B, SL_K_LINEAR, IN_DSA, sl_dsa_dim_kv_b, sl_dsa_dim_kv_lora, SL_SPEC_ABSORBED | SL_SPEC_16BIT},
    {"self_attn.o_proj.weight", SL_DSA_O, SL_K_LINEAR, IN_DSA, sl_dim_hidden, sl_dsa_dim_o, 0},
    {"self_attn.indexer.wq_b.weight", SL_DSA_INDEX_Q, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index_q, sl_dsa_dim_q_lora, 0},
    {"self_attn.indexer.wk.weight", SL_DSA_INDEX_K, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_hidden, 0},
    {"self_attn.indexer.k_norm.weight", SL_DSA_INDEX_NORM, SL_K_FLOATS, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.indexer.k_norm.bias", SL_DSA_INDEX_NORM_BIAS, SL_K_FLOATS, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_one, 0},
    {"self_attn.indexer.weights_proj.weight", SL_DSA_INDEX_WEIGHTS, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index_heads, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.indexer.index_kpool_compress_gate", SL_GLM5_INDEX_GATE, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.indexer.index_kpool_compress_ape", SL_GLM5_INDEX_APE, SL_K_FLOATS, sl_dsa_in_indexer, dim_unit, sl_dsa_dim_index, 0},
    {"mlp.gate_proj.weight", SL_T_GATE, SL_K_LINEAR, sl_in_dense, sl_dim_dense, sl_dim_hidden, 0},
    {"mlp.up_proj.weight", SL_T_UP, SL_K_LINEAR, sl_in_dense, sl_dim_dense, sl_dim_hidden, 0},
    {"mlp.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, sl_in_dense, sl_dim_hidden, sl_dim_dense, 0},
    {"mlp.gate.weight", SL_T_ROUTER, SL_K_LINEAR, sl_in_moe, sl_dim_experts, sl_dim_hidden, SL_SPEC_16BIT},
    {"mlp.gate.e_score_correction_bias", SL_T_ROUTER_BIAS, SL_K_FLOATS, sl_in_moe, sl_dim_experts, sl_dim_one, 0},
    {"mlp.shared_experts.gate_proj.weight", SL_T_GATE, SL_K_LINEAR, sl_in_shared, sl_dim_shared, sl_dim_hidden, 0},
    {"mlp.shared_experts.up_proj.weight", SL_T_UP, SL_K_LINEAR, sl_in_shared, sl_dim_shared, sl_dim_hidden, 0},
    {"mlp.shared_experts.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, sl_in_shared, sl_dim_hidden, sl_dim_shared, 0},
};
/* clang-format on */

/* The part that sees pictures. */
static const char *const unused[] = {"mtp.", "model.visual.", "visual.", NULL};

static const char no_drafts[] =
    "its configuration does not say what its MTP layer is: the kind of its attention, and whether it has residual streams";

/* Transformers 5.17 has no class for the text part alone; its configs name that of the whole model, or the name that
 * later versions may use. */
const sl_family sl_family_glm5_next = {.model_type = "glm5_next",
                                       .architecture = "Glm5NextForConditionalGeneration",
                                       .text_type = "glm5_next_text",
                                       .text_architecture = "Glm5NextForCausalLM",
                                       .begin = sl_glm5_begin,
                                       .read_config = sl_glm5_read_config,
                                       .cache_dims = sl_glm5_cache_dims,
                                       .model_tensors = model_tensors,
                                       .layer_tensors = layer_tensors,
                                       .n_model_tensors = SL_COUNT(model_tensors),
                                       .n_layer_tensors = SL_COUNT(layer_tensors),
                                       .unused = unused,
                                       .no_drafts = no_drafts,
                                       .ignores = sl_dsa_ignores,
                                       .workspace_size = sizeof(sl_glm5_workspace),
                                       .workspace = sl_glm5_carve,
                                       .steps = sl_glm5_steps,
                                       .n_steps = SL_GLM5_N_STEPS,
                                       .ask_attend = sl_glm5_ask_attend,
                                       .presets = sl_glm5_presets};
