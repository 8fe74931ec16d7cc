/* The keys of A.X-K2, its tensors and its row for the registry. */
#include "model/families/axk2/axk2.h"

#include "model/config_read.h"

static sl_status read_config(sl_config_reader *x, const sl_family *f)
{
    static const char *const others[] = {"indexer_types", "index_topk_pattern", "index_topk_freq"};
    sl_model_config *c = x->c;
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (sl_cfg_get(x->root, others[i]))
            return sl_cfg_cannot(x, "%s: is no key of axk2, every layer has an indexer", others[i]);
    if (!sl_cfg_get(x->root, "n_group") != !sl_cfg_get(x->root, "topk_group"))
        return sl_cfg_bad(x, "topk_group: is set together with n_group, or neither of them is");
    SL_TRY(sl_dsa_read_config(x, f));
    SL_TRY(sl_cfg_int(x, sl_cfg_get(x->root, "gated_norm_rank"), "gated_norm_rank", 1, 1 << 14,
                      &c->norm_gate_rank));
    c->moe.refused_groups_zero = true;
    if (sl_dsa_dim_q(c) + sl_dsa_dim_o(c) > SL_CFG_MAX_PRODUCT)
        return sl_cfg_bad(x, "heads * head dimension is greater than 2^24");
    return SL_OK;
}

static int64_t dim_two_q(const sl_model_config *c)
{
    return 2 * (int64_t)c->attn.q_lora_rank;
}

static int64_t dim_rank(const sl_model_config *c)
{
    return c->norm_gate_rank;
}

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
};

/* One row for each tensor, which clang-format would break up. Names: published ones, then those of the class of transformers. */
/* clang-format off */
#define DOWN(norm) norm ".W_down.weight|" norm ".mlp.fc1.weight"
#define UP(norm) norm ".W_up.weight|" norm ".mlp.fc2.weight"
#define Q_B "self_attn.q_b_proj.weight|self_attn.q_gate_proj.weight"

static const sl_tensor_spec layer_tensors[] = {
    {"input_layernorm.norm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {DOWN("input_layernorm"), SL_AXK2_INPUT_DOWN, SL_K_LINEAR, NULL, dim_rank, sl_dim_hidden, SL_SPEC_16BIT},
    {UP("input_layernorm"), SL_AXK2_INPUT_UP, SL_K_LINEAR, NULL, sl_dim_hidden, dim_rank, SL_SPEC_16BIT},
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, sl_in_dense, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"post_attention_layernorm.norm.weight", SL_T_POST_NORM, SL_K_VECTOR, sl_in_moe, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {DOWN("post_attention_layernorm"), SL_AXK2_POST_DOWN, SL_K_LINEAR, sl_in_moe, dim_rank, sl_dim_hidden, SL_SPEC_16BIT},
    {UP("post_attention_layernorm"), SL_AXK2_POST_UP, SL_K_LINEAR, sl_in_moe, sl_dim_hidden, dim_rank, SL_SPEC_16BIT},
    {"self_attn.q_a_proj.weight", SL_DSA_Q_A, SL_K_LINEAR, NULL, sl_dsa_dim_q_lora, sl_dim_hidden, 0},
    {"self_attn.q_a_layernorm.weight", SL_DSA_Q_A_NORM, SL_K_VECTOR, NULL, sl_dsa_dim_q_lora, sl_dim_one, SL_SPEC_GAIN},
    {Q_B, SL_DSA_Q_B, SL_K_LINEAR, NULL, sl_dsa_dim_q, dim_two_q, 0},
    {Q_B, SL_AXK2_GATE, SL_K_LINEAR, NULL, sl_dsa_dim_o, dim_two_q, 0},
    {"self_attn.kv_a_proj_with_mqa.weight", SL_DSA_KV_A, SL_K_LINEAR, NULL, sl_dsa_dim_kv_a, sl_dim_hidden, 0},
    {"self_attn.kv_a_layernorm.weight", SL_DSA_KV_A_NORM, SL_K_VECTOR, NULL, sl_dsa_dim_kv_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.kv_b_proj.weight", SL_DSA_KV_B, SL_K_LINEAR, NULL, sl_dsa_dim_kv_b, sl_dsa_dim_kv_lora,
     SL_SPEC_ABSORBED | SL_SPEC_16BIT},
    {"self_attn.o_proj.weight", SL_DSA_O, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dsa_dim_o, 0},
    {"self_attn.indexer.wq_b.weight", SL_DSA_INDEX_Q, SL_K_LINEAR, NULL, sl_dsa_dim_index_q, sl_dsa_dim_q_lora, 0},
    {"self_attn.indexer.wk.weight", SL_DSA_INDEX_K, SL_K_LINEAR, NULL, sl_dsa_dim_index, sl_dim_hidden, 0},
    {"self_attn.indexer.k_norm.weight", SL_DSA_INDEX_NORM, SL_K_FLOATS, NULL, sl_dsa_dim_index, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.indexer.k_norm.bias", SL_DSA_INDEX_NORM_BIAS, SL_K_FLOATS, NULL, sl_dsa_dim_index, sl_dim_one, 0},
    {"self_attn.indexer.weights_proj.weight", SL_DSA_INDEX_WEIGHTS, SL_K_LINEAR, NULL, sl_dsa_dim_index_heads, sl_dim_hidden,
     SL_SPEC_16BIT},
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

/* Rows of the wide projection: of each head nope + rope of the query, then v of the gate. */
static int64_t file_rows(const sl_model_config *c)
{
    return sl_dsa_dim_q(c) + sl_dsa_dim_o(c);
}

static int64_t row_of_query(const sl_model_config *c, int64_t row)
{
    int64_t q = c->attn.qk_nope_head_dim + c->attn.qk_rope_head_dim;
    return row / q * (q + c->attn.v_head_dim) + row % q;
}

static int64_t row_of_gate(const sl_model_config *c, int64_t row)
{
    int64_t q = c->attn.qk_nope_head_dim + c->attn.qk_rope_head_dim, v = c->attn.v_head_dim;
    return row / v * (q + v) + q + row % v;
}

static const sl_row_map queries = {file_rows, row_of_query}, gates = {file_rows, row_of_gate};

static const sl_row_map *row_map(const sl_model_config *c, int slot)
{
    (void)c;
    return slot == SL_DSA_Q_B ? &queries : slot == SL_AXK2_GATE ? &gates : NULL;
}

/* What the published configuration class fills in. */
static const sl_dsa_traits traits = {
    .lora_eps = 1e-6f,
    .index_eps = 1e-6f,
    .defaults = "{\"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, \"first_k_dense_replace\": 1, "
                "\"n_shared_experts\": 1, \"routed_scaling_factor\": 2.5, \"gated_norm_rank\": 16}"};

/* clang-format off */
#define COMMON \
    "\"architectures\": [\"AXK2ForCausalLM\"], \"model_type\": \"axk2\", \"hidden_act\": \"silu\", \"attention_bias\": false, " \
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, \"max_position_embeddings\": 131072, "

static const sl_model_preset presets[] = {
    {"axk2_light",
     COMMON
     "\"vocab_size\": 163840, \"hidden_size\": 2048, \"intermediate_size\": 5120, \"moe_intermediate_size\": 512, "
     "\"num_attention_heads\": 32, \"q_lora_rank\": 384, \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 64, "
     "\"qk_rope_head_dim\": 32, \"v_head_dim\": 64, \"index_n_heads\": 16, \"index_head_dim\": 128, \"index_topk\": 2048, "
     "\"n_routed_experts\": 128, \"num_experts_per_tok\": 8, \"eos_token_id\": 163691",
     48},
    {NULL, NULL, 0},
};
/* clang-format on */

static const char no_drafts[] = "neither its configuration nor its class has an MTP layer";

const sl_family sl_family_axk2 = {.model_type = "axk2",
                                  .architecture = "AXK2ForCausalLM",
                                  .read_config = read_config,
                                  .cache_dims = sl_dsa_cache_dims,
                                  .model_tensors = model_tensors,
                                  .layer_tensors = layer_tensors,
                                  .n_model_tensors = SL_COUNT(model_tensors),
                                  .n_layer_tensors = SL_COUNT(layer_tensors),
                                  .row_map = row_map,
                                  .no_drafts = no_drafts,
                                  .workspace_size = sizeof(sl_axk2_workspace),
                                  .workspace = sl_axk2_carve,
                                  .steps = sl_axk2_steps,
                                  .n_steps = SL_AXK2_N_STEPS,
                                  .ask_attend = sl_dsa_ask_attend,
                                  .presets = presets,
                                  .traits = &traits};
