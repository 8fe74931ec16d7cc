/* Presets of GLM-5.3-Flash (model/synthetic.h): the released model, and a small one of the same family for tests. */
#include "model/families/glm5_next/glm5.h"

/* One line for each subject. */
/* clang-format off */
#define COMMON \
    "\"architectures\": [\"Glm5NextForCausalLM\"], \"model_type\": \"glm5_next_text\", \"hidden_act\": \"silu\", " \
    "\"attention_bias\": false, \"rms_norm_eps\": 1e-5, \"n_shared_experts\": 1, \"n_group\": 1, \"topk_group\": 1, " \
    "\"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"swiglu_limit\": 10.0, " \
    "\"hc_mult\": 4, \"hc_eps\": 1e-6, \"hc_sinkhorn_iters\": 20, \"qk_rope_head_dim\": 0, \"index_kpool\": 4, " \
    "\"linear_conv_kernel_dim\": 4, \"linear_lower_bound\": -5.0, \"max_position_embeddings\": 1048576, \"eos_token_id\": 1, "

const sl_model_preset sl_glm5_presets[] = {
    {"glm5.3_flash",
     COMMON
     "\"vocab_size\": 154880, \"hidden_size\": 4096, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, "
     "\"num_attention_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 256, \"v_head_dim\": 256, "
     "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, \"linear_num_heads\": 64, \"linear_head_dim\": 128, "
     "\"n_routed_experts\": 288, \"num_experts_per_tok\": 8, \"first_k_dense_replace\": 3",
     45},
    {"tiny-glm5",
     COMMON
     "\"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 128, \"moe_intermediate_size\": 64, "
     "\"num_attention_heads\": 2, \"q_lora_rank\": 64, \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, \"v_head_dim\": 32, "
     "\"index_n_heads\": 4, \"index_head_dim\": 32, \"index_topk\": 32, \"linear_num_heads\": 2, \"linear_head_dim\": 32, "
     "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"first_k_dense_replace\": 1",
     8},
    {NULL, NULL, 0},
};
/* clang-format on */
