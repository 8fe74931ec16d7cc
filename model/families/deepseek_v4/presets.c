/* Presets of DeepSeek-V4 (model/synthetic.h): the published models, and a small one of the same family for tests. */
#include "model/families/deepseek_v4/v4.h"

/* One line for each subject. */
/* clang-format off */
#define COMMON \
    "\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\", \"hidden_act\": \"silu\", " \
    "\"attention_bias\": false, \"rms_norm_eps\": 1e-6, \"num_key_value_heads\": 1, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20, " \
    "\"hc_eps\": 1e-6, \"swiglu_limit\": 10.0, \"n_shared_experts\": 1, \"norm_topk_prob\": true, " \
    "\"scoring_func\": \"sqrtsoftplus\", \"rope_theta\": 10000, \"compress_rope_theta\": 160000, \"num_hash_layers\": 3, " \
    "\"eos_token_id\": 1, "
#define RELEASED \
    "\"vocab_size\": 129280, \"head_dim\": 512, \"qk_rope_head_dim\": 64, \"index_n_heads\": 64, \"index_head_dim\": 128, " \
    "\"o_lora_rank\": 1024, \"sliding_window\": 128, \"num_experts_per_tok\": 6, \"max_position_embeddings\": 1048576, " \
    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 65536, \"beta_fast\": 32, " \
    "\"beta_slow\": 1}, \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", " \
    "\"weight_block_size\": [128, 128]}, \"expert_dtype\": \"fp4\", "
#define PAIR "4, 128, "
#define FOUR PAIR PAIR
#define SIXTEEN FOUR FOUR FOUR FOUR

const sl_model_preset sl_v4_presets[] = {
    {"deepseek_v4_flash",
     COMMON RELEASED
     "\"hidden_size\": 4096, \"moe_intermediate_size\": 2048, \"num_attention_heads\": 64, \"q_lora_rank\": 1024, "
     "\"o_groups\": 8, \"index_topk\": 512, \"n_routed_experts\": 256, \"routed_scaling_factor\": 1.5, "
     "\"compress_ratios\": [0, 0, " SIXTEEN SIXTEEN FOUR FOUR "4]",
     43},
    {"deepseek_v4_pro",
     COMMON RELEASED
     "\"hidden_size\": 7168, \"moe_intermediate_size\": 3072, \"num_attention_heads\": 128, \"q_lora_rank\": 1536, "
     "\"o_groups\": 16, \"index_topk\": 1024, \"n_routed_experts\": 384, \"routed_scaling_factor\": 2.5, "
     "\"compress_ratios\": [128, 128, " SIXTEEN SIXTEEN SIXTEEN FOUR FOUR PAIR "4]",
     61},
    {"tiny-deepseek_v4",
     COMMON
     "\"vocab_size\": 256, \"hidden_size\": 64, \"moe_intermediate_size\": 64, \"num_attention_heads\": 4, \"head_dim\": 32, "
     "\"qk_rope_head_dim\": 8, \"q_lora_rank\": 32, \"o_groups\": 2, \"o_lora_rank\": 32, \"index_n_heads\": 8, "
     "\"index_head_dim\": 16, \"index_topk\": 8, \"sliding_window\": 24, \"n_routed_experts\": 16, "
     "\"num_experts_per_tok\": 4, \"routed_scaling_factor\": 1.5, \"max_position_embeddings\": 4096, "
     "\"compress_rates\": {\"compressed_sparse_attention\": 4, \"heavily_compressed_attention\": 32}, "
     "\"compress_ratios\": [0, 4, 128, 4, 128, 4]",
     6},
    {NULL, NULL, 0},
};
/* clang-format on */
