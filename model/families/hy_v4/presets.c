/* Presets of Hy4 (model/synthetic.h): the released model, and a small one of the same family for tests. */
#include "model/families/hy_v4/hy_v4.h"

/* One line for each subject. */
/* clang-format off */
#define COMMON \
    "\"architectures\": [\"HYV4ForCausalLM\"], \"model_type\": \"hy_v4\", \"hidden_act\": \"silu\", \"attention_bias\": false, " \
    "\"rms_norm_eps\": 1e-5, \"hc_mult\": 4, \"hc_magnitude\": 2.0, \"hc_eps\": 1e-6, \"swiglu_limit\": 10.0, " \
    "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.827, \"n_group\": 1, \"topk_group\": 1, " \
    "\"first_k_dense_replace\": 1, "

/* Those of the released model, which are not the defaults of its class in transformers (34 layers). */
const sl_model_preset sl_hy4_presets[] = {
    {"hy_v4",
     COMMON
     "\"rope_theta\": 10000000, \"max_position_embeddings\": 1048576, "
     "\"vocab_size\": 120832, \"hidden_size\": 6144, \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, "
     "\"num_attention_heads\": 64, \"q_lora_rank\": 2048, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, "
     "\"qk_rope_head_dim\": 64, \"v_head_dim\": 256, \"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, "
     "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"eos_token_id\": 120025",
     78},
    {"tiny-hy_v4",
     COMMON
     "\"rope_theta\": 10000, \"max_position_embeddings\": 262144, "
     "\"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 128, \"moe_intermediate_size\": 64, "
     "\"num_attention_heads\": 2, \"q_lora_rank\": 64, \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, "
     "\"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"index_n_heads\": 4, \"index_head_dim\": 32, \"index_topk\": 32, "
     "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"eos_token_id\": 1",
     6},
    {NULL, NULL, 0},
};
/* clang-format on */
