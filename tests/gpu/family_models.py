"""config.json of families of 2026 with released dimensions, for weights that the worker makes (tests/gpu/served --model). Fewer
experts are those of one rank of a group: with balanced load a rank computes as many pairs of token and expert as its own tokens
choose, so every token takes all of its experts from them."""

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

GLM = {"architectures": ["Glm5NextForCausalLM"], "model_type": "glm5_next_text", "hidden_act": "silu", "attention_bias": False,
       "rms_norm_eps": 1e-5, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
       "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "swiglu_limit": 10.0, "hc_mult": 4, "hc_eps": 1e-6,
       "hc_sinkhorn_iters": 20, "qk_rope_head_dim": 0, "index_kpool": 4, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
       "max_position_embeddings": 1048576, "eos_token_id": 1, "vocab_size": 154880, "hidden_size": 4096,
       "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_attention_heads": 64, "q_lora_rank": 1536,
       "kv_lora_rank": 512, "qk_nope_head_dim": 256, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128,
       "index_topk": 2048, "linear_num_heads": 64, "linear_head_dim": 128, "n_routed_experts": 288, "num_experts_per_tok": 8,
       "num_hidden_layers": 45, "quantization_config": FP8}

QWEN = {"architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp_text", "hidden_act": "silu", "attention_bias": False,
        "rms_norm_eps": 1e-6, "norm_topk_prob": True, "hc_count": 4, "output_gate_type": "sigmoid", "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4, "indexer_kv_heads": 1, "indexer_compress_ratio": 4, "max_position_embeddings": 262144,
        "eos_token_id": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "vocab_size": 248320, "hidden_size": 2560, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640,
        "hc_lowrank": 320, "indexer_n_heads": 4, "indexer_head_dim": 128, "indexer_budget": 2048, "num_hidden_layers": 48}

V4 = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_act": "silu", "attention_bias": False,
      "rms_norm_eps": 1e-6, "num_key_value_heads": 1, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "swiglu_limit": 10.0,
      "n_shared_experts": 1, "norm_topk_prob": True, "scoring_func": "sqrtsoftplus", "rope_theta": 10000,
      "compress_rope_theta": 160000, "num_hash_layers": 3, "eos_token_id": 1, "vocab_size": 129280, "head_dim": 512,
      "qk_rope_head_dim": 64, "index_n_heads": 64, "index_head_dim": 128, "o_lora_rank": 1024, "sliding_window": 128,
      "num_experts_per_tok": 6, "max_position_embeddings": 1048576,
      "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1},
      "quantization_config": FP8, "expert_dtype": "fp4", "hidden_size": 4096, "moe_intermediate_size": 2048,
      "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8, "index_topk": 512, "n_routed_experts": 256,
      "routed_scaling_factor": 1.5, "compress_ratios": [0, 0] + [4, 128] * 20 + [4], "num_hidden_layers": 43}

# Name: config, key of the experts, rows, ranks of which one is here; and a small one of the family, for the CPU.
MODELS = {
    "glm5.3_flash": (GLM, "n_routed_experts", "mla_fp8", 8,
                     {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "num_attention_heads": 2,
                      "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "index_n_heads": 4,
                      "index_head_dim": 32, "index_topk": 32, "linear_num_heads": 2, "linear_head_dim": 32, "n_routed_experts": 16,
                      "num_experts_per_tok": 4, "num_hidden_layers": 8, "quantization_config": None}),
    "qwen3.8_flash_next": (QWEN, "num_experts", "gqa_bf16", 4,
                           {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32, "linear_num_key_heads": 2,
                            "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_experts": 16,
                            "num_experts_per_tok": 4, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
                            "hc_lowrank": 16, "indexer_head_dim": 32, "indexer_budget": 32, "num_hidden_layers": 8}),
    "deepseek_v4_flash": (V4, "n_routed_experts", "gqa_bf16", 8,
                          {"hidden_size": 64, "moe_intermediate_size": 64, "num_attention_heads": 4, "head_dim": 32,
                           "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 8,
                           "index_head_dim": 16, "index_topk": 8, "sliding_window": 24, "n_routed_experts": 16,
                           "num_experts_per_tok": 4, "compress_ratios": [0, 4, 128, 4, 128, 4], "num_hidden_layers": 6,
                           "quantization_config": None, "expert_dtype": None}),
}


def config(name, layers, small):
    """layers 0: all."""
    base, experts, _, ranks, tiny = MODELS[name]
    c = {**base, "vocab_size": 1280, "max_position_embeddings": 8192, **tiny} if small else dict(base)
    c[experts] = c[experts] if small else c[experts] // ranks
    c["num_hidden_layers"] = layers or c["num_hidden_layers"]
    if "compress_ratios" in c:
        c["compress_ratios"] = c["compress_ratios"][:c["num_hidden_layers"]]
    return {k: v for k, v in c.items() if v is not None}
