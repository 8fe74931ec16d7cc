/*
 * Presets of the DSA families (model/synthetic.h): the published models, and a small one of the same family for tests.
 * The keys are those of config.json; the caller gives the number of layers.
 */
#include "model/families/dsa/dsa.h"

/* One line for each subject. */
/* clang-format off */
#define COMMON \
    "\"architectures\": [\"DeepseekV32ForCausalLM\"], \"model_type\": \"deepseek_v32\", " \
    "\"moe_layer_freq\": 1, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, " \
    "\"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"attention_bias\": false, " \
    "\"rope_theta\": 10000, \"max_position_embeddings\": 163840, \"eos_token_id\": 1, " \
    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096, " \
    "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}, " \
    "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", " \
    "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]}, "

const sl_model_preset sl_dsa_presets_v32[] = {
    {"deepseek_v32",
     COMMON
     "\"vocab_size\": 129280, \"hidden_size\": 7168, \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, "
     "\"first_k_dense_replace\": 3, \"num_attention_heads\": 128, \"num_key_value_heads\": 128, "
     "\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
     "\"index_n_heads\": 64, \"index_head_dim\": 128, \"index_topk\": 2048, "
     "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"n_group\": 8, \"topk_group\": 4",
     61},
    {"tiny",
     COMMON
     "\"vocab_size\": 256, \"hidden_size\": 128, \"intermediate_size\": 256, \"moe_intermediate_size\": 128, "
     "\"first_k_dense_replace\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
     "\"q_lora_rank\": 128, \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, \"v_head_dim\": 32, "
     "\"index_n_heads\": 4, \"index_head_dim\": 32, \"index_topk\": 32, "
     "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"n_group\": 4, \"topk_group\": 2",
     4},
    {NULL, NULL, 0},
};

/* GLM-5.2: layers 0, 1, 2, 6, 10, .. have an indexer, the others read the list of the one before them. */
const sl_model_preset sl_dsa_presets_glm[] = {
    {"glm_5_2",
     "\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"model_type\": \"glm_moe_dsa\", "
     "\"moe_layer_freq\": 1, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, "
     "\"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"attention_bias\": false, "
     "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 8000000}, \"max_position_embeddings\": 1048576, \"eos_token_id\": 1, "
     "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
     "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]}, "
     "\"vocab_size\": 154880, \"hidden_size\": 6144, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, "
     "\"first_k_dense_replace\": 3, \"num_attention_heads\": 64, \"num_key_value_heads\": 64, "
     "\"q_lora_rank\": 2048, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, \"v_head_dim\": 256, "
     "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3, "
     "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"n_group\": 1, \"topk_group\": 1",
     78},
    {NULL, NULL, 0},
};
/* clang-format on */
