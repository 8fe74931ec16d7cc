#!/usr/bin/env python3
"""Makes the tiny checkpoints and golden answers of the families with grouped-query attention (llama, qwen2, qwen3).

Every case is a small random model built, saved and run by Hugging Face transformers in float32 on the CPU with eager
attention. Prompts are kept only when the same model in float64 confirms every greedy token with a clear margin: a case
that float32 rounding could decide proves nothing. See README.md for the files and versions.

usage: make_gqa.py [--out DIR] [case ...]        (default: all, into this folder)
"""
import json
import os
import shutil
import sys

import safetensors.torch
import torch
import transformers
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

HERE = os.path.dirname(os.path.abspath(__file__))
GREEDY = 64
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
            "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def plain(theta):
    return dict(rope_type="default", rope_theta=theta)


def llama3(theta, factor, original):
    return dict(rope_type="llama3", rope_theta=theta, factor=factor, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=original)


def yarn(theta, factor, original):
    return dict(rope_type="yarn", rope_theta=theta, factor=factor, original_max_position_embeddings=original)


def sizes(hidden, inter, layers, heads, kv_heads, vocab, context, rope, **more):
    return dict(hidden_size=hidden, intermediate_size=inter, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, vocab_size=vocab, max_position_embeddings=context, rope_parameters=rope,
                bos_token_id=0, eos_token_id=1, **more)


CASES = {
    # Llama 3.1's RoPE in the published spelling (rope_theta, rope_scaling), head_dim 64 = hidden / heads, not stored.
    "llama-rope3": dict(family="llama", seed=11, old_config=True, drop=["head_dim"], lengths=[1, 17, 70, 150],
                        config=sizes(128, 96, 3, 2, 1, 128, 2048, llama3(500000.0, 8.0, 64), rms_norm_eps=1e-5)),
    # Sizes that are multiples of nothing, 7 query heads per KV head, tied embeddings, shards, new RoPE spelling.
    "llama-odd": dict(family="llama", seed=12, shard="60KB", lengths=[2, 15, 64, 131],
                      config=sizes(56, 84, 3, 14, 2, 97, 1000, plain(10000.0), head_dim=12, rms_norm_eps=1e-6,
                                   tie_word_embeddings=True)),
    # Stored in BF16, head_dim 128 apart from hidden / heads, YaRN.
    "llama-bf16": dict(family="llama", seed=13, store=torch.bfloat16, lengths=[3, 40, 129],
                       config=sizes(64, 112, 3, 4, 2, 144, 1024, yarn(10000.0, 4.0, 64), head_dim=128,
                                    rms_norm_eps=1e-5)),
    # Biases of the projections, 7 query heads per KV head of dimension 64, as Qwen 2.5 has them; BF16.
    "qwen2-g7": dict(family="qwen2", seed=21, store=torch.bfloat16, lengths=[1, 33, 100],
                     config=sizes(64, 96, 3, 14, 2, 128, 2048, plain(1000000.0), head_dim=64, rms_norm_eps=1e-6,
                                  tie_word_embeddings=True)),
    # As many KV heads as heads, odd sizes.
    "qwen2-mha": dict(family="qwen2", seed=22, lengths=[4, 16, 65, 140],
                      config=sizes(60, 76, 3, 3, 3, 101, 1000, plain(10000.0), rms_norm_eps=1e-6)),
    # YaRN in the published spelling ("type" in rope_scaling).
    "qwen2-yarn": dict(family="qwen2", seed=23, old_config=True, lengths=[2, 50, 128],
                       config=sizes(96, 80, 2, 6, 2, 120, 2048, yarn(1000000.0, 4.0, 128), rms_norm_eps=1e-6)),
    # Norms of queries and keys, head_dim 128 apart from hidden / heads; BF16 in shards.
    "qwen3-norms": dict(family="qwen3", seed=31, store=torch.bfloat16, shard="100KB", lengths=[1, 34, 127],
                        config=sizes(64, 96, 3, 4, 2, 128, 2048, plain(1000000.0), head_dim=128, rms_norm_eps=1e-6)),
    # head_dim 256, one KV head, tied.
    "qwen3-d256": dict(family="qwen3", seed=32, store=torch.bfloat16, lengths=[5, 63, 64],
                       config=sizes(48, 80, 2, 3, 1, 112, 1024, plain(10000.0), head_dim=256, rms_norm_eps=1e-6,
                                    tie_word_embeddings=True)),
    # Odd sizes, YaRN in the new spelling.
    "qwen3-yarn": dict(family="qwen3", seed=33, lengths=[2, 20, 64, 150],
                       config=sizes(52, 68, 3, 5, 5, 99, 2048, yarn(1000000.0, 2.0, 256), head_dim=14,
                                    rms_norm_eps=1e-6)),
}


def build(case):
    config_class, model_class = FAMILIES[case["family"]]
    torch.manual_seed(case["seed"])
    config = config_class(initializer_range=0.15, **case["config"])
    config._attn_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    gen = torch.Generator().manual_seed(case["seed"] + 1000)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1.0 + 0.3 * torch.randn(p.shape, generator=gen))
            elif name.endswith("bias"):
                p.copy_(0.3 * torch.randn(p.shape, generator=gen))
    return model


def in_double(model):
    double = type(model)(model.config).double().eval()
    double.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    return double


@torch.no_grad()
def run(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def answer(model, double, ids):
    """Golden tensors for a prompt, or None when rounding could decide something."""
    logits, seq, greedy = run(model, ids), list(ids), []
    for _ in range(GREEDY):
        row = run(model, seq)[-1]
        top = row.topk(2).values
        if top[0] - top[1] < 1e-3:
            return None
        greedy.append(int(row.argmax()))
        seq.append(greedy[-1])
    final, final64 = run(model, seq), run(double, seq)
    if (final.double() - final64).abs().max() > 3e-5:
        return None
    if [int(t) for t in final64[len(ids) - 1:-1].argmax(-1)] != greedy:
        return None
    out = {"ids": torch.tensor(ids, dtype=torch.int32), "greedy": torch.tensor(greedy, dtype=torch.int32),
           "logits": logits[-1].clone()}
    if len(ids) <= 70:
        out["all_logits"] = logits.contiguous()
    return out


def goldens(model, double, lengths, seed):
    out, gen = {}, torch.Generator().manual_seed(seed + 2000)
    for i, n in enumerate(lengths):
        for attempt in range(200):
            ids = torch.randint(2, model.config.vocab_size, (n,), generator=gen).tolist()
            found = answer(model, double, ids)
            if found:
                break
        else:
            raise SystemExit(f"no well-conditioned prompt of length {n}")
        print(f"  prompt {i}: {n} tokens, attempt {attempt + 1}", flush=True)
        out.update({f"p{i}.{k}": v for k, v in found.items()})
    return out


def rewrite_config(case, path):
    """The spellings that save_pretrained does not write but published checkpoints have."""
    file = os.path.join(path, "config.json")
    with open(file) as f:
        config = json.load(f)
    for key in case.get("drop", []):
        config.pop(key, None)
    if case.get("old_config"):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        if case["family"] == "qwen2":
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = rope
        config.pop("layer_types", None)
    with open(file, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def make(name, out):
    case, path = CASES[name], os.path.join(out, name)
    print(name, flush=True)
    shutil.rmtree(path, ignore_errors=True)
    model = build(case)
    store = case.get("store", torch.float32)
    for p in model.parameters():
        p.data = p.data.to(store).float()
    saved = build(case)
    saved.load_state_dict(model.state_dict())
    saved.to(store).save_pretrained(path, max_shard_size=case.get("shard", "1GB"))
    rewrite_config(case, path)
    tensors = goldens(model, in_double(model), case["lengths"], case["seed"])
    safetensors.torch.save_file(tensors, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    args, out = sys.argv[1:], HERE
    if args[:1] == ["--out"]:
        out, args = args[1], args[2:]
    for name in args or list(CASES):
        make(name, out)
