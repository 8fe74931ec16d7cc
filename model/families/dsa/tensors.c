/* The tensors of the DSA families and their rows for the registry. */
#include <string.h>

#include "model/families/dsa/dsa.h"

int64_t sl_dsa_dim_q_lora(const sl_model_config *c)
{
    return c->attn.q_lora_rank;
}

int64_t sl_dsa_dim_kv_lora(const sl_model_config *c)
{
    return c->attn.kv_lora_rank;
}

int64_t sl_dsa_dim_index(const sl_model_config *c)
{
    return c->index.head_dim;
}

int64_t sl_dsa_dim_index_heads(const sl_model_config *c)
{
    return c->index.n_heads;
}

int64_t sl_dsa_dim_q(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * (c->attn.qk_nope_head_dim + c->attn.qk_rope_head_dim);
}

int64_t sl_dsa_dim_kv_a(const sl_model_config *c)
{
    return (int64_t)c->attn.kv_lora_rank + c->attn.qk_rope_head_dim;
}

int64_t sl_dsa_dim_kv_b(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * (c->attn.qk_nope_head_dim + c->attn.v_head_dim);
}

int64_t sl_dsa_dim_o(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * c->attn.v_head_dim;
}

int64_t sl_dsa_dim_index_q(const sl_model_config *c)
{
    return (int64_t)c->index.n_heads * c->index.head_dim;
}

bool sl_dsa_in_indexer(const sl_model_config *c, int32_t layer)
{
    return c->layer_has_indexer[layer];
}

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
};

/* One row for each tensor, which clang-format would break up. */
/* clang-format off */
static const sl_tensor_spec layer_tensors[] = {
    {"input_layernorm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.q_a_proj.weight", SL_DSA_Q_A, SL_K_LINEAR, NULL, sl_dsa_dim_q_lora, sl_dim_hidden, 0},
    {"self_attn.q_a_layernorm.weight", SL_DSA_Q_A_NORM, SL_K_VECTOR, NULL, sl_dsa_dim_q_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.q_b_proj.weight", SL_DSA_Q_B, SL_K_LINEAR, NULL, sl_dsa_dim_q, sl_dsa_dim_q_lora, 0},
    {"self_attn.kv_a_proj_with_mqa.weight", SL_DSA_KV_A, SL_K_LINEAR, NULL, sl_dsa_dim_kv_a, sl_dim_hidden, 0},
    {"self_attn.kv_a_layernorm.weight", SL_DSA_KV_A_NORM, SL_K_VECTOR, NULL, sl_dsa_dim_kv_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.kv_b_proj.weight", SL_DSA_KV_B, SL_K_LINEAR, NULL, sl_dsa_dim_kv_b, sl_dsa_dim_kv_lora,
     SL_SPEC_ABSORBED | SL_SPEC_16BIT},
    {"self_attn.o_proj.weight", SL_DSA_O, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dsa_dim_o, 0},
    {"self_attn.indexer.wq_b.weight", SL_DSA_INDEX_Q, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index_q, sl_dsa_dim_q_lora,
     0},
    {"self_attn.indexer.wk.weight", SL_DSA_INDEX_K, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_hidden, 0},
    {"self_attn.indexer.k_norm.weight", SL_DSA_INDEX_NORM, SL_K_FLOATS, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_one,
     SL_SPEC_GAIN},
    {"self_attn.indexer.k_norm.bias", SL_DSA_INDEX_NORM_BIAS, SL_K_FLOATS, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_one, 0},
    {"self_attn.indexer.weights_proj.weight", SL_DSA_INDEX_WEIGHTS, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index_heads,
     sl_dim_hidden, SL_SPEC_16BIT},
    {"enorm.weight", SL_T_TOKEN_NORM, SL_K_VECTOR, sl_in_draft, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"hnorm.weight", SL_T_STATE_NORM, SL_K_VECTOR, sl_in_draft, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"eh_proj.weight", SL_T_JOIN, SL_K_LINEAR, sl_in_draft, sl_dim_hidden, sl_dim_joined, SL_SPEC_16BIT},
    {"shared_head.norm.weight", SL_T_HEAD_NORM, SL_K_VECTOR, sl_in_draft, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
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

/* Layers that share a selection may still carry the weights of an indexer, and an MTP layer copies of the model's embedding and
 * head. */
bool sl_dsa_ignores(const sl_model_config *c, int32_t layer, const char *rest)
{
    static const char indexer[] = "self_attn.indexer.";
    if (sl_in_draft(c, layer))
        return strcmp(rest, "embed_tokens.weight") == 0 || strcmp(rest, "shared_head.head.weight") == 0;
    return !c->layer_has_indexer[layer] && strncmp(rest, indexer, sizeof indexer - 1) == 0;
}

void sl_dsa_cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    out->latent = c->attn.kv_lora_rank;
    out->rope = c->attn.qk_rope_head_dim;
    for (int32_t l = 0; l < c->n_layers; l++)
        if (c->layer_has_indexer[l]) {
            out->index_dim = c->index.head_dim;
            out->index_heads = c->index.n_heads;
            out->index_topk = c->index.topk;
            return;
        }
}

/* lora_eps and index_eps are not in config.json; they are constants of the reference implementations. */
static const sl_dsa_traits deepseek_v32 = {
    .index_rope_interleaved = false, .index_share = false, .lora_eps = 1e-6f, .index_eps = 1e-6f};
static const sl_dsa_traits glm_moe_dsa = {
    .index_rope_interleaved = true, .index_share = true, .lora_eps = 1e-6f, .index_eps = 1e-6f};

#define DSA_CODE                                                                                             \
    .read_config = sl_dsa_read_config, .cache_dims = sl_dsa_cache_dims, .model_tensors = model_tensors,      \
    .layer_tensors = layer_tensors, .n_model_tensors = SL_COUNT(model_tensors),                              \
    .n_layer_tensors = SL_COUNT(layer_tensors), .ignores = sl_dsa_ignores,                                   \
    .workspace_size = sizeof(sl_dsa_workspace), .workspace = sl_dsa_carve, .steps = sl_dsa_steps,            \
    .n_steps = SL_DSA_N_STEPS, .row_steps = sl_dsa_row_steps, .n_row_steps = SL_DSA_N_ROW_STEPS,             \
    .ask_attend = sl_dsa_ask_attend

const sl_family sl_family_deepseek_v32 = {.model_type = "deepseek_v32",
                                          .architecture = "DeepseekV32ForCausalLM",
                                          .traits = &deepseek_v32,
                                          .presets = sl_dsa_presets_v32,
                                          DSA_CODE};
const sl_family sl_family_glm_moe_dsa = {.model_type = "glm_moe_dsa",
                                         .architecture = "GlmMoeDsaForCausalLM",
                                         .traits = &glm_moe_dsa,
                                         .presets = sl_dsa_presets_glm,
                                         DSA_CODE};
