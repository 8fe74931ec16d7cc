/*
 * Presets of Qwen 4 (model/synthetic.h): the released model as far as its dimensions are published, and a small one of the same family
 * for tests. A synthetic model has no n-gram tables: they are host memory, of which a step reads a few kilobytes.
 */
#include "model/families/qwen4_exp/qwen4.h"

/* One line for each subject. */
/* clang-format off */
#define COMMON \
    "\"architectures\": [\"Qwen4ExpForCausalLM\"], \"model_type\": \"qwen4_exp_text\", \"hidden_act\": \"silu\", " \
    "\"attention_bias\": false, \"rms_norm_eps\": 1e-6, \"norm_topk_prob\": true, \"hc_count\": 4, \"output_gate_type\": \"sigmoid\", " \
    "\"full_attention_interval\": 4, \"linear_conv_kernel_dim\": 4, \"indexer_kv_heads\": 1, \"indexer_compress_ratio\": 4, " \
    "\"max_position_embeddings\": 262144, \"eos_token_id\": 1, " \
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25}, "

const sl_model_preset sl_qwen4_presets[] = {
    {"qwen3.8_flash_next",
     COMMON
     "\"vocab_size\": 248320, \"hidden_size\": 2560, \"num_attention_heads\": 24, \"num_key_value_heads\": 2, \"head_dim\": 256, "
     "\"linear_num_key_heads\": 16, \"linear_num_value_heads\": 48, \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, "
     "\"num_experts\": 512, \"num_experts_per_tok\": 10, \"moe_intermediate_size\": 640, \"shared_expert_intermediate_size\": 640, "
     "\"hc_lowrank\": 320, \"indexer_n_heads\": 4, \"indexer_head_dim\": 128, \"indexer_budget\": 2048",
     48},
    {"tiny-qwen4",
     COMMON
     "\"vocab_size\": 256, \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, "
     "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 32, \"linear_value_head_dim\": 32, "
     "\"num_experts\": 16, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 64, \"shared_expert_intermediate_size\": 64, "
     "\"hc_lowrank\": 16, \"indexer_n_heads\": 4, \"indexer_head_dim\": 32, \"indexer_budget\": 32",
     8},
    {NULL, NULL, 0},
};
/* clang-format on */
