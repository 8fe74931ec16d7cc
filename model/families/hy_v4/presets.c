/* Presets of Hy4 (model/synthetic.h): what is published of the model, and a small one of the same family for tests. */
#include "model/families/hy_v4/hy_v4.h"

/* One line for each subject. */
/* clang-format off */
#define COMMON \
    "\"architectures\": [\"HYV4ForCausalLM\"], \"model_type\": \"hy_v4\", \"hidden_act\": \"silu\", \"attention_bias\": false, " \
    "\"rms_norm_eps\": 1e-5, \"hc_mult\": 4, \"hc_magnitude\": 2.0, \"hc_eps\": 1e-6, \"swiglu_limit\": 10.0, " \
    "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.827, \"n_group\": 1, \"topk_group\": 1, " \
    "\"first_k_dense_replace\": 1, \"rope_theta\": 10000, \"max_position_embeddings\": 262144, "

/* The dimensions of the published configuration class. Those of the larger release are not published as text: they are read from
 * its config.json. */
const sl_model_preset sl_hy4_presets[] = {
    {"hy_v4",
     COMMON
     "\"vocab_size\": 120832, \"hidden_size\": 2816, \"intermediate_size\": 6912, \"moe_intermediate_size\": 768, "
     "\"num_attention_heads\": 32, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, "
     "\"qk_rope_head_dim\": 64, \"v_head_dim\": 256, \"index_n_heads\": 16, \"index_head_dim\": 128, \"index_topk\": 2048, "
     "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"eos_token_id\": 120025",
     34},
    {"tiny-hy_v4",
     COMMON
     "\"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 128, \"moe_intermediate_size\": 64, "
     "\"num_attention_heads\": 2, \"q_lora_rank\": 64, \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, "
     "\"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"index_n_heads\": 4, \"index_head_dim\": 32, \"index_topk\": 32, "
     "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"eos_token_id\": 1",
     6},
    {NULL, NULL, 0},
};
/* clang-format on */
