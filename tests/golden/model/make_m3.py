#!/usr/bin/env python3
"""Makes the tiny checkpoints and golden answers of MiniMax-M3, as make_gqa.py does for other families with KV heads.

Every parameter is random, because the published class begins many of them with constants. Checkpoints have either the spelling of
released ones (text_config, lists of numbers, names with language_model.) or that of the text-only class of transformers. Needs
transformers 5.17; README.md has the versions and what each case is there for.

usage: make_m3.py [--out DIR] [--random N] [case ...]        (default: all, in this folder; --random: N random configurations)
"""
import argparse
import json
import os
import random
import shutil

import safetensors.torch
import torch
import transformers
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM

import make_gqa

HERE = os.path.dirname(os.path.abspath(__file__))


def sizes(hidden, heads, kv, dim, layers, block, topk, index, rotated=0.5, **more):
    """index: heads and dimension of the indexer; layers: two strings, attention (f: full, s: sparse) and MLP (d, s)."""
    words = {"f": "full_attention", "s": "minimax_m3_sparse"}
    return dict(dict(
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, num_hidden_layers=len(layers[0]),
        layer_types=[words[c] for c in layers[0]], mlp_layer_types=["dense" if c == "d" else "sparse" for c in layers[1]],
        index_block_size=block, index_topk_blocks=topk, index_n_heads=index[0], index_head_dim=index[1], index_local_blocks=1,
        vocab_size=128, max_position_embeddings=2048, dense_intermediate_size=72, intermediate_size=24, shared_intermediate_size=40,
        num_local_experts=8, num_experts_per_tok=2, routed_scaling_factor=2.0, swiglu_limit=1.5, rms_norm_eps=1e-5,
        bos_token_id=0, eos_token_id=1, rotary_dim=int(dim * rotated),
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=rotated)), **more)


CASES = {
    # As released: nested config, lists of numbers, prefixes, one tensor per expert, three kinds of layers.
    "m3-vl": dict(seed=61, released=True, lengths=[1, 15, 16, 17, 70, 200],
                  config=sizes(48, 8, 2, 16, ("fsss", "dsss"), 16, 3, (2, 16))),
    # The text-only class: flat config, fused tensors; a head of the indexer for three KV heads, blocks of 24 (rows of 8), two newest
    # blocks always, the whole head rotated, tied embeddings, BF16.
    "m3-text": dict(seed=62, store=torch.bfloat16, lengths=[2, 23, 24, 25, 49, 150],
                    config=sizes(36, 6, 3, 10, ("sfs", "sds"), 24, 3, (1, 12), rotated=1.0, index_local_blocks=2, vocab_size=101,
                                 tie_word_embeddings=True, num_experts_per_tok=3, swiglu_alpha=1.3, swiglu_limit=0.8)),
    # Blocks of 128, as released: rows of 64.
    "m3-128": dict(seed=63, released=True, lengths=[3, 127, 129, 600],
                   config=sizes(32, 4, 2, 16, ("fss", "dss"), 128, 2, (2, 16), num_local_experts=4)),
    # More heads of the indexer than KV heads, which become as many; blocks of 4, no local block, every layer sparse; YaRN.
    "m3-lists": dict(seed=64, lengths=[1, 4, 5, 33, 120],
                     config=sizes(40, 8, 2, 12, ("ss", "sd"), 4, 5, (4, 14), index_local_blocks=0, rms_norm_eps=1e-6,
                                  rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, partial_rotary_factor=0.5, factor=4.0,
                                                       original_max_position_embeddings=256))),
}


def build(case):
    torch.manual_seed(case["seed"])
    config = MiniMaxM3VLTextConfig(initializer_range=case.get("spread", 0.2), **case["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = MiniMaxM3VLForCausalLM(config).to(torch.float32).eval()
    gen = torch.Generator().manual_seed(case["seed"] + 1000)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "norm" in name or name.endswith("e_score_correction_bias"):
                p.copy_(0.3 * torch.randn(p.shape, generator=gen))
        for p in model.parameters():
            p.copy_(p.to(case.get("store", torch.float32)).float())
    return model


def released_state(state):
    """The names of released checkpoints."""
    out = {}
    for name, t in state.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            stem = name.replace("mlp.experts.gate_up_proj", "block_sparse_moe.experts.")
            for e, both in enumerate(t):
                out[f"{stem}{e}.w1.weight"], out[f"{stem}{e}.w3.weight"] = both.chunk(2)
        elif name.endswith("mlp.experts.down_proj"):
            stem = name.replace("mlp.experts.down_proj", "block_sparse_moe.experts.")
            for e, down in enumerate(t):
                out[f"{stem}{e}.w2.weight"] = down
        elif name.endswith("gate_up_proj.weight"):
            where = name.replace("mlp.shared_experts.", "block_sparse_moe.shared_experts.")
            out[where.replace("gate_up_proj", "gate_proj")], out[where.replace("gate_up_proj", "up_proj")] = t.chunk(2)
        else:
            for old, new in (("mlp.shared_experts.", "block_sparse_moe.shared_experts."), ("mlp.gate.e_score", "block_sparse_moe.e_score"),
                             ("mlp.gate.", "block_sparse_moe.gate."), ("self_attn.indexer.", "self_attn.index_")):
                name = name.replace(old, new)
            out[name] = t
    out = {"language_model." + k: v for k, v in out.items()}
    out["vision_tower.patch_embedding.weight"] = torch.zeros(2, 2)  # nothing reads it
    return out


def released_config(config):
    """The keys of released checkpoints."""
    text = {k: v for k, v in config.items() if not k.startswith("index_") and k not in ("layer_types", "mlp_layer_types", "architectures")}
    rope = text.pop("rope_parameters")
    text.update(hidden_act="swigluoai", rope_theta=rope["rope_theta"], moe_layer_freq=[int(w == "sparse") for w in config["mlp_layer_types"]],
                sparse_attention_config=dict(
                    sparse_num_index_heads=config["index_n_heads"], sparse_index_dim=config["index_head_dim"],
                    sparse_block_size=config["index_block_size"], sparse_topk_blocks=config["index_topk_blocks"],
                    sparse_local_block=config["index_local_blocks"], sparse_init_block=0, sparse_score_type="max",
                    sparse_disable_index_value=[1] * len(config["layer_types"]),
                    sparse_attention_freq=[int(w != "full_attention") for w in config["layer_types"]]))
    return dict(architectures=["MiniMaxM3SparseForConditionalGeneration"], model_type="minimax_m3_vl", text_config=text,
                vision_config=dict(hidden_size=8), image_token_index=99)


def save(model, case, path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    state = dict(model.state_dict())
    if case["config"].get("tie_word_embeddings"):
        state.pop("lm_head.weight")
    if case.get("released"):
        state, config = released_state(state), released_config(config)
    state = {k: v.to(v.dtype if "bias" in k else case.get("store", v.dtype)).contiguous().clone() for k, v in state.items()}
    safetensors.torch.save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def random_case(i):
    r = random.Random(1000 + i)
    n = r.randint(1, 4)
    kv = r.choice([1, 2, 3, 4])
    group = r.choice([1, 2, 3, 4])
    dim = 2 * r.randint(4, 12)
    rotated = r.choice([0.25, 0.5, 0.75, 1.0])
    while int(dim * rotated) % 2 or int(dim * rotated) < 2:
        dim += 2
    index = r.choice([h for h in range(1, kv * group + 1) if (kv * group) % h == 0 and (kv % h == 0 or h % kv == 0)])
    block = r.choice([1, 2, 3, 4, 5, 8, 12, 16, 20, 32, 64, 96, 128])
    topk = r.randint(1, 5)
    attention = "".join(r.choice("fss") for _ in range(n))
    return dict(
        seed=5000 + i, released=r.random() < 0.5, store=r.choice([torch.float32, torch.float32, torch.bfloat16]), spread=r.choice([0.15, 0.2, 0.25]),
        lengths=[max(1, block - 1), block + 1, min(500, block * topk * 2 + r.randint(1, 40))],
        config=sizes(4 * r.randint(6, 14), kv * group, kv, dim, (attention, "".join(r.choice("dss") for _ in range(n))), block, topk,
                     (index, int(dim * rotated) + 2 * r.randint(0, 6)), rotated=rotated, vocab_size=r.randint(60, 150),
                     dense_intermediate_size=r.randint(8, 90), intermediate_size=r.randint(8, 40), shared_intermediate_size=r.randint(8, 50),
                     num_local_experts=r.randint(3, 12), num_experts_per_tok=r.randint(1, 3), routed_scaling_factor=r.choice([1.0, 2.0, 2.5]),
                     swiglu_limit=r.choice([0.7, 1.5, 7.0]), swiglu_alpha=r.choice([1.0, 1.702]), rms_norm_eps=r.choice([1e-6, 1e-5]),
                     index_local_blocks=r.randint(0, topk), tie_word_embeddings=r.random() < 0.3))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    cases = {f"r{i}": random_case(i) for i in range(args.random)} if args.random else CASES
    for name in args.cases or cases:
        case, path = cases[name], os.path.join(args.out, name)
        print(name, flush=True)
        model = build(case)
        save(model, case, path)
        try:
            out = make_gqa.goldens(model, make_gqa.in_double(model), case["lengths"], case["seed"])
        except SystemExit as e:
            if not args.random:
                raise
            print(f"  {e}", flush=True)
            shutil.rmtree(path)
            continue
        safetensors.torch.save_file(out, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    main()
