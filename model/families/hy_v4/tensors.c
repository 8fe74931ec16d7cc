/* The tensors of Hy4, the order in which the ops want their rows, and its row for the registry. */
#include "model/families/hy_v4/hy_v4.h"

static int64_t dim_streams(const sl_model_config *c)
{
    return c->streams.count;
}

static int64_t dim_gates(const sl_model_config *c)
{
    return 2 * (int64_t)c->streams.count;
}

static int64_t dim_all(const sl_model_config *c)
{
    return (int64_t)c->streams.count * c->hidden_size;
}

static int64_t dim_two(const sl_model_config *c)
{
    (void)c;
    return 2;
}

static int64_t dim_heads(const sl_model_config *c)
{
    return c->attn.n_heads;
}

/* One row for each tensor, which clang-format would break up. Names: published ones, those of the class of transformers, and those that its
 * save_pretrained() writes. */
/* clang-format off */
#define HEAD(own) "model.hc_head.hc_head_" own "|model.hc_head.hc_" own "|model.hc_pre.hc_head.hc_head_" own

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
    {HEAD("fn"), SL_HY4_HEAD_FN, SL_K_LINEAR, NULL, dim_streams, dim_all, SL_SPEC_16BIT},
    {HEAD("base"), SL_HY4_HEAD_BASE, SL_K_FLOATS, NULL, dim_streams, sl_dim_one, 0},
    {HEAD("scale"), SL_HY4_HEAD_SCALE, SL_K_FLOATS, NULL, sl_dim_one, sl_dim_one, 0},
};

#define HC(part, own) "hc_" part "_layer.hc_pre.hc_" own "|hc_" part "_layer.hc_" own "|hc_pre.hc_" part "_layer.hc_" own

static const sl_tensor_spec layer_tensors[] = {
    {"input_layernorm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {HC("attn", "fn") "|attn_hc.fn", SL_HY4_ATTN_FN, SL_K_LINEAR, NULL, dim_gates, dim_all, SL_SPEC_16BIT},
    {HC("attn", "base") "|attn_hc.base", SL_HY4_ATTN_BASE, SL_K_FLOATS, NULL, dim_gates, sl_dim_one, 0},
    {HC("attn", "scale") "|attn_hc.scale", SL_HY4_ATTN_SCALE, SL_K_FLOATS, NULL, dim_two, sl_dim_one, 0},
    {HC("mlp", "fn") "|ffn_hc.fn", SL_HY4_MLP_FN, SL_K_LINEAR, NULL, dim_gates, dim_all, SL_SPEC_16BIT},
    {HC("mlp", "base") "|ffn_hc.base", SL_HY4_MLP_BASE, SL_K_FLOATS, NULL, dim_gates, sl_dim_one, 0},
    {HC("mlp", "scale") "|ffn_hc.scale", SL_HY4_MLP_SCALE, SL_K_FLOATS, NULL, dim_two, sl_dim_one, 0},
    {"self_attn.q_a_proj.weight", SL_DSA_Q_A, SL_K_LINEAR, NULL, sl_dsa_dim_q_lora, sl_dim_hidden, 0},
    {"self_attn.q_a_layernorm.weight", SL_DSA_Q_A_NORM, SL_K_VECTOR, NULL, sl_dsa_dim_q_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.q_b_proj.weight", SL_DSA_Q_B, SL_K_LINEAR, NULL, sl_dsa_dim_q, sl_dsa_dim_q_lora, 0},
    {"self_attn.kv_a_proj_with_mqa.weight", SL_DSA_KV_A, SL_K_LINEAR, NULL, sl_dsa_dim_kv_a, sl_dim_hidden, 0},
    {"self_attn.kv_a_layernorm.weight", SL_DSA_KV_A_NORM, SL_K_VECTOR, NULL, sl_dsa_dim_kv_lora, sl_dim_one, SL_SPEC_GAIN},
    {"self_attn.kv_b_proj.weight", SL_DSA_KV_B, SL_K_LINEAR, NULL, sl_dsa_dim_kv_b, sl_dsa_dim_kv_lora,
     SL_SPEC_ABSORBED | SL_SPEC_16BIT},
    {"self_attn.o_proj.weight", SL_DSA_O, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dsa_dim_o, 0},
    {"self_attn.linear_gate.weight|self_attn.gate_proj.weight", SL_HY4_GATE, SL_K_LINEAR, NULL, sl_dsa_dim_o, sl_dim_hidden, 0},
    {"self_attn.learnable_sink_param|self_attn.sinks", SL_DSA_SINKS, SL_K_FLOATS, NULL, dim_heads, sl_dim_one, 0},
    {"self_attn.indexer.wq_b.weight", SL_DSA_INDEX_Q, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index_q, sl_dsa_dim_q_lora, 0},
    {"self_attn.indexer.wk.weight", SL_DSA_INDEX_K, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_hidden, 0},
    {"self_attn.indexer.k_norm.weight", SL_DSA_INDEX_NORM, SL_K_FLOATS, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_one,
     SL_SPEC_GAIN},
    {"self_attn.indexer.k_norm.bias", SL_DSA_INDEX_NORM_BIAS, SL_K_FLOATS, sl_dsa_in_indexer, sl_dsa_dim_index, sl_dim_one, 0},
    {"self_attn.indexer.weights_proj.weight", SL_DSA_INDEX_WEIGHTS, SL_K_LINEAR, sl_dsa_in_indexer, sl_dsa_dim_index_heads,
     sl_dim_hidden, SL_SPEC_16BIT},
    {"mlp.gate_proj.weight|mlp.linear_gate.weight", SL_T_GATE, SL_K_LINEAR, sl_in_dense, sl_dim_dense, sl_dim_hidden, 0},
    {"mlp.up_proj.weight", SL_T_UP, SL_K_LINEAR, sl_in_dense, sl_dim_dense, sl_dim_hidden, 0},
    {"mlp.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, sl_in_dense, sl_dim_hidden, sl_dim_dense, 0},
    {"mlp.gate.weight", SL_T_ROUTER, SL_K_LINEAR, sl_in_moe, sl_dim_experts, sl_dim_hidden, SL_SPEC_16BIT},
    {"mlp.gate.e_score_correction_bias", SL_T_ROUTER_BIAS, SL_K_FLOATS, sl_in_moe, sl_dim_experts, sl_dim_one, 0},
    {"mlp.shared_experts.gate_proj.weight|mlp.shared_experts.linear_gate.weight", SL_T_GATE, SL_K_LINEAR, sl_in_shared,
     sl_dim_shared, sl_dim_hidden, 0},
    {"mlp.shared_experts.up_proj.weight", SL_T_UP, SL_K_LINEAR, sl_in_shared, sl_dim_shared, sl_dim_hidden, 0},
    {"mlp.shared_experts.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, sl_in_shared, sl_dim_hidden, sl_dim_shared, 0},
};
/* clang-format on */

/* Of n rotated values, pairs (i, i + n/2) become neighbours. */
static int64_t paired(int64_t i, int64_t n)
{
    return i / 2 + i % 2 * (n / 2);
}

static int64_t row_of_q(const sl_model_config *c, int64_t row)
{
    int64_t nope = c->attn.qk_nope_head_dim, head = nope + c->attn.qk_rope_head_dim, i = row % head;
    return i < nope ? row : row - i + nope + paired(i - nope, c->attn.qk_rope_head_dim);
}

static int64_t row_of_kv(const sl_model_config *c, int64_t row)
{
    int64_t lora = c->attn.kv_lora_rank;
    return row < lora ? row : lora + paired(row - lora, c->attn.qk_rope_head_dim);
}

/* The rotated values are the last ones of an index head in the file, and the first ones for the ops. */
static int64_t row_of_index(const sl_model_config *c, int64_t row)
{
    int64_t dim = c->index.head_dim, rope = c->attn.qk_rope_head_dim, i = row % dim;
    return row - i + (i < rope ? dim - rope + i : i - rope);
}

static const sl_row_map map_q = {sl_dsa_dim_q, row_of_q}, map_kv = {sl_dsa_dim_kv_a, row_of_kv},
                        map_index_q = {sl_dsa_dim_index_q, row_of_index},
                        map_index = {sl_dsa_dim_index, row_of_index};

static const sl_row_map *row_map(const sl_model_config *c, int slot)
{
    switch (slot) {
    case SL_DSA_Q_B:
        return c->attn.rope_halves ? &map_q : NULL;
    case SL_DSA_KV_A:
        return c->attn.rope_halves ? &map_kv : NULL;
    case SL_DSA_INDEX_Q:
        return &map_index_q;
    case SL_DSA_INDEX_K:
    case SL_DSA_INDEX_NORM:
    case SL_DSA_INDEX_NORM_BIAS:
        return &map_index;
    default:
        return NULL;
    }
}

static const char *const unused[] = {"model.mtp_layers.", NULL};

/* What the published configuration class fills in. */
static const sl_dsa_traits traits = {
    .index_share = true,
    .lora_eps = 1e-6f,
    .any_kv_heads = true,
    .defaults = "{\"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, \"first_k_dense_replace\": 1, "
                "\"n_shared_experts\": 1, \"hc_mult\": 4, \"hc_magnitude\": 2.0, \"hc_eps\": 1e-6, "
                "\"swiglu_limit\": 10.0, \"routed_scaling_factor\": 2.827}"};

static const char no_drafts[] =
    "what its MTP layer (model.mtp_layers.*) computes is published by no configuration or class";

const sl_family sl_family_hy_v4 = {.model_type = "hy_v4",
                                   .architecture = "HYV4ForCausalLM",
                                   .read_config = sl_hy4_read_config,
                                   .cache_dims = sl_dsa_cache_dims,
                                   .model_tensors = model_tensors,
                                   .layer_tensors = layer_tensors,
                                   .n_model_tensors = SL_COUNT(model_tensors),
                                   .n_layer_tensors = SL_COUNT(layer_tensors),
                                   .row_map = row_map,
                                   .unused = unused,
                                   .no_drafts = no_drafts,
                                   .ignores = sl_dsa_ignores,
                                   .workspace_size = sizeof(sl_hy4_workspace),
                                   .workspace = sl_hy4_carve,
                                   .steps = sl_hy4_steps,
                                   .n_steps = SL_HY4_N_STEPS,
                                   .ask_attend = sl_dsa_ask_attend,
                                   .presets = sl_hy4_presets,
                                   .traits = &traits};
