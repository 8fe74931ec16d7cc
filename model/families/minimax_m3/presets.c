/* Presets of MiniMax-M3 (model/synthetic.h): the released model, and a small one of the same family for tests. */
#include "model/families/minimax_m3/minimax_m3.h"

/* One line for each subject. */
/* clang-format off */
#define ONES19 "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1"
#define THREE_DENSE "[0, 0, 0, " ONES19 ", " ONES19 ", " ONES19 "]"
#define ONE_DENSE "[0, 1, 1, 1]"

#define COMMON \
    "\"architectures\": [\"MiniMaxM3VLForCausalLM\"], \"model_type\": \"minimax_m3_vl_text\", \"hidden_act\": \"swigluoai\", " \
    "\"rms_norm_eps\": 1e-6, \"swiglu_alpha\": 1.702, \"swiglu_limit\": 7.0, \"routed_scaling_factor\": 2.0, " \
    "\"rope_theta\": 5000000.0, \"max_position_embeddings\": 524288, \"tie_word_embeddings\": false, "

const sl_model_preset sl_m3_presets[] = {
    {"minimax_m3",
     COMMON
     "\"vocab_size\": 200064, \"hidden_size\": 6144, \"dense_intermediate_size\": 12288, \"intermediate_size\": 3072, "
     "\"shared_intermediate_size\": 3072, \"num_attention_heads\": 64, \"num_key_value_heads\": 4, \"head_dim\": 128, "
     "\"rotary_dim\": 64, \"num_local_experts\": 128, \"num_experts_per_tok\": 4, \"index_n_heads\": 4, "
     "\"index_head_dim\": 128, \"index_block_size\": 128, \"index_topk_blocks\": 16, \"index_local_blocks\": 1, "
     "\"moe_layer_freq\": " THREE_DENSE ", \"sparse_attention_config\": {\"sparse_attention_freq\": " THREE_DENSE "}, "
     "\"eos_token_id\": 200020",
     60},
    {"tiny-minimax_m3",
     COMMON
     "\"vocab_size\": 256, \"hidden_size\": 128, \"dense_intermediate_size\": 256, \"intermediate_size\": 128, "
     "\"shared_intermediate_size\": 128, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, "
     "\"rotary_dim\": 16, \"num_local_experts\": 16, \"num_experts_per_tok\": 4, \"index_n_heads\": 2, "
     "\"index_head_dim\": 32, \"index_block_size\": 16, \"index_topk_blocks\": 4, \"index_local_blocks\": 1, "
     "\"moe_layer_freq\": " ONE_DENSE ", \"sparse_attention_config\": {\"sparse_attention_freq\": " ONE_DENSE "}, "
     "\"eos_token_id\": 1",
     4},
    {NULL, NULL, 0},
};
/* clang-format on */
