#!/usr/bin/env python3
"""Makes a checkpoint with the dimensions of DeepSeek-V3.2's layers, few layers and random bf16 weights, to measure what
depends on the size of a layer and not on its values. Layers are dense with the width of eight routed experts and one
shared expert.

    made_up.py DIR [LAYERS]        default 4 layers, 4.7 GB

The tokenizer is that of models/tiny-v32, or of the directory $TOKENIZER_FROM.
"""
import json
import os
import pathlib
import shutil
import struct
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HIDDEN, HEADS, Q_LORA, LORA, NOPE, ROPE, V, INDEX_HEADS, INDEX_DIM, INTER, VOCAB = 7168, 128, 1536, 512, 128, 64, 128, 64, 128, 18432, 1280


def tensors(layers):
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(layers):
        p = "model.layers.%d." % i
        a = p + "self_attn."
        yield p + "input_layernorm.weight", (HIDDEN,)
        yield p + "post_attention_layernorm.weight", (HIDDEN,)
        yield a + "q_a_proj.weight", (Q_LORA, HIDDEN)
        yield a + "q_a_layernorm.weight", (Q_LORA,)
        yield a + "q_b_proj.weight", (HEADS * (NOPE + ROPE), Q_LORA)
        yield a + "kv_a_proj_with_mqa.weight", (LORA + ROPE, HIDDEN)
        yield a + "kv_a_layernorm.weight", (LORA,)
        yield a + "kv_b_proj.weight", (HEADS * (NOPE + V), LORA)
        yield a + "o_proj.weight", (HIDDEN, HEADS * V)
        yield a + "indexer.wq_b.weight", (INDEX_HEADS * INDEX_DIM, Q_LORA)
        yield a + "indexer.wk.weight", (INDEX_DIM, HIDDEN)
        yield a + "indexer.k_norm.weight", (INDEX_DIM,)
        yield a + "indexer.k_norm.bias", (INDEX_DIM,)
        yield a + "indexer.weights_proj.weight", (INDEX_HEADS, HIDDEN)
        yield p + "mlp.gate_proj.weight", (INTER, HIDDEN)
        yield p + "mlp.up_proj.weight", (INTER, HIDDEN)
        yield p + "mlp.down_proj.weight", (HIDDEN, INTER)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def config(layers):
    return {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "dtype": "bfloat16", "attention_bias": False,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "first_k_dense_replace": layers, "hidden_act": "silu",
            "hidden_size": HIDDEN, "index_head_dim": INDEX_DIM, "index_n_heads": INDEX_HEADS, "index_topk": 2048,
            "intermediate_size": INTER, "kv_lora_rank": LORA, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
            "mlp_layer_types": ["dense"] * layers, "n_group": 4, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": True,
            "num_attention_heads": HEADS, "num_experts_per_tok": 2, "num_hidden_layers": layers, "num_key_value_heads": HEADS,
            "q_lora_rank": Q_LORA, "qk_head_dim": NOPE + ROPE, "head_dim": ROPE, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
            "rms_norm_eps": 1e-6, "rope_parameters": {"beta_fast": 32, "beta_slow": 1, "factor": 40.0, "mscale": 1.0,
                                                      "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                                                      "rope_theta": 10000.0, "rope_type": "yarn"},
            "routed_scaling_factor": 2.5, "tie_word_embeddings": False, "topk_group": 2, "v_head_dim": V, "vocab_size": VOCAB}


def main():
    out, layers = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    out.mkdir(parents=True, exist_ok=True)
    head, at = {}, 0
    for name, shape in tensors(layers):
        n = 2
        for d in shape:
            n *= d
        head[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    block = bytearray(8 << 20)  # of either sign, magnitude 2^-7 to 2^-5
    block[0::2] = os.urandom(len(block) // 2)
    block[1::2] = os.urandom(len(block) // 2).translate(bytes(0xBC if i & 1 else 0x3C for i in range(256)))
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, t in head.items():
            n, first = t["data_offsets"][1] - t["data_offsets"][0], True
            if name.endswith("norm.weight"):
                f.write(b"\x80\x3f" * (n // 2))
            elif name.endswith("bias"):
                f.write(bytes(n))
            else:
                skip = 2 * (zlib.crc32(name.encode()) % 1000003)
                while n > 0:
                    piece = memoryview(block)[skip if first else 0:][:n]
                    f.write(piece)
                    n, first = n - len(piece), False
    (out / "config.json").write_text(json.dumps(config(layers), indent=1))
    source = pathlib.Path(os.environ.get("TOKENIZER_FROM", ROOT / "models/tiny-v32"))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, out / name)
    print("%s: %d layers, %.1f GB" % (out, layers, at / 1e9))


if __name__ == "__main__":
    main()
