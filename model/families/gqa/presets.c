/*
 * Presets of the families with grouped-query attention (model/synthetic.h): the published models of 8 billion
 * parameters, and a small one for tests. The keys are those of config.json; the caller gives the number of layers.
 * Qwen3-8B has the YaRN factor that its publishers recommend for contexts beyond 32K.
 */
#include "model/families/gqa/gqa.h"

/* One line for each subject. */
/* clang-format off */
#define LLAMA \
    "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", " \
    "\"attention_bias\": false, \"mlp_bias\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, " \
    "\"max_position_embeddings\": 131072, \"eos_token_id\": 1, \"tie_word_embeddings\": false, " \
    "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " \
    "\"original_max_position_embeddings\": 8192}, "

const sl_model_preset sl_gqa_presets_llama[] = {
    {"llama3_8b",
     LLAMA
     "\"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128",
     32},
    {"tiny_llama",
     LLAMA
     "\"vocab_size\": 256, \"hidden_size\": 128, \"intermediate_size\": 256, "
     "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32",
     4},
    {NULL, NULL, 0},
};

const sl_model_preset sl_gqa_presets_qwen3[] = {
    {"qwen3_8b",
     "\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_act\": \"silu\", "
     "\"attention_bias\": false, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, "
     "\"max_position_embeddings\": 131072, \"eos_token_id\": 1, \"tie_word_embeddings\": false, "
     "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768}, "
     "\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 12288, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128",
     36},
    {NULL, NULL, 0},
};
/* clang-format on */
