#!/usr/bin/env python3
"""Makes the tiny checkpoints and golden answers of the families of 2026, as make.py does for the DSA families.

Every parameter is random, because the published classes begin many of them with constants, and a tensor that is forgotten would
not show. Checkpoints have the names that published files have (see rename_*), not those of save_pretrained. Needs transformers
5.17; README.md has the versions and what each case is there for.

usage: make_families.py [--out DIR] [case ...]        (default: all, in this folder)
"""
import argparse
import json
import os
import shutil

import safetensors.torch
import torch
import transformers
from transformers import AXK2Config, AXK2ForCausalLM, HYV4Config, HYV4ForCausalLM

import make
from make import per_expert, plain, yarn

HERE = os.path.dirname(os.path.abspath(__file__))


def paired(n):
    """Of n rotated values, pairs (i, i + n/2) become neighbours."""
    return [i // 2 + i % 2 * (n // 2) for i in range(n)]


def interleave_hy_v4(state, config):
    """The rows of rotated values in the order of published checkpoints; the class of transformers pairs i and i + half."""
    rope, nope = config.qk_rope_head_dim, config.qk_nope_head_dim
    q = [h * (nope + rope) + i for h in range(config.num_attention_heads)
         for i in list(range(nope)) + [nope + j for j in paired(rope)]]
    kv = list(range(config.kv_lora_rank)) + [config.kv_lora_rank + j for j in paired(rope)]
    dim = config.index_head_dim
    key = list(range(dim - rope)) + [dim - rope + j for j in paired(rope)]
    index = [h * dim + i for h in range(config.index_n_heads) for i in key]
    rows = {"self_attn.q_b_proj.weight": q, "self_attn.kv_a_proj_with_mqa.weight": kv, "indexer.wq_b.weight": index,
            "indexer.wk.weight": key, "indexer.k_norm.weight": key, "indexer.k_norm.bias": key}
    return {name: next((t[r] for end, r in rows.items() if name.endswith(end)), t) for name, t in state.items()}


def rename_hy_v4(name, pre):
    """pre: what is before the name of a part, or "saved" for the names that save_pretrained() writes."""
    pairs = ((".self_attn.gate_proj.", ".self_attn.linear_gate."), (".self_attn.sinks", ".self_attn.learnable_sink_param"))
    if pre == "saved":
        pairs += ((".attn_hc.", ".hc_pre.hc_attn_layer.hc_"), (".ffn_hc.", ".hc_pre.hc_mlp_layer.hc_"),
                  ("model.hc_head.hc_", "model.hc_pre.hc_head.hc_head_"), ("mlp.gate_proj.", "mlp.linear_gate."),
                  ("shared_experts.gate_proj.", "shared_experts.linear_gate."))
    else:
        pairs += ((".attn_hc.", ".hc_attn_layer." + pre), (".ffn_hc.", ".hc_mlp_layer." + pre), ("hc_head.hc_", "hc_head.hc_head_"))
    for old, new in pairs:
        name = name.replace(old, new)
    return name


def pre_of(case):
    return {True: "hc_pre.hc_", False: "hc_"}.get(case.get("pre", True), "saved")


def state_hy_v4(model, case):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    if case.get("interleaved", True):
        state = interleave_hy_v4(state, model.config)
    return {rename_hy_v4(k, pre_of(case)): v for k, v in state.items()}


def state_axk2(model, case):
    names = ((".mlp.fc1.", ".W_down."), (".mlp.fc2.", ".W_up."), (".q_gate_proj.", ".q_b_proj."))
    out = {}
    for name, t in model.state_dict().items():
        for old, new in names if case.get("published", True) else ():
            name = name.replace(old, new)
        out[name] = t.clone()
    return out


FAMILIES = {"hy_v4": (HYV4Config, HYV4ForCausalLM, state_hy_v4), "axk2": (AXK2Config, AXK2ForCausalLM, state_axk2)}

CASES = {
    # As published: shared indexers by default pattern, neighbouring pairs, fused experts, a clamp that bites.
    "hy4-share": dict(
        family="hy_v4", seed=41, lengths=[1, 15, 16, 17, 40, 150], drop=["indexer_types", "mlp_layer_types"],
        config=dict(vocab_size=128, hidden_size=48, intermediate_size=96, moe_intermediate_size=24, num_hidden_layers=6,
                    num_attention_heads=4, q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                    v_head_dim=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, routed_scaling_factor=1.5,
                    index_n_heads=24, index_head_dim=16, index_topk=16, swiglu_limit=0.5, max_position_embeddings=2048,
                    rms_norm_eps=1e-5, rope_parameters=plain(10000.0))),
    # Pairs of halves by key, YaRN with a softmax scale, odd sizes, three streams, groups of experts, one tensor per expert, no hc_pre.
    "hy4-halves": dict(
        family="hy_v4", seed=42, lengths=[1, 12, 13, 33, 120], interleaved=False, pre=False, per_expert=True,
        add=dict(rope_interleave=False),
        config=dict(vocab_size=101, hidden_size=44, intermediate_size=76, moe_intermediate_size=20, num_hidden_layers=4,
                    mlp_layer_types=["sparse", "dense", "sparse", "sparse"], indexer_types=["full", "shared", "full", "full"],
                    num_attention_heads=3, q_lora_rank=36, kv_lora_rank=28, qk_nope_head_dim=10, qk_rope_head_dim=6,
                    v_head_dim=14, n_routed_experts=9, n_shared_experts=2, num_experts_per_tok=3, n_group=3, topk_group=2,
                    norm_topk_prob=False, routed_scaling_factor=1.3, index_n_heads=25, index_head_dim=18, index_topk=13,
                    hc_mult=3, hc_magnitude=1.7, hc_eps=1e-3, swiglu_limit=0.7, max_position_embeddings=1000, rms_norm_eps=1e-4,
                    rope_parameters=yarn(10000.0, 4.0, 256, mscale=0.8, mscale_all_dim=1.0))),
    # F8 weights whose rows are reordered within their blocks of 128 rows; the answers are those of the dequantised weights.
    "hy4-fp8": dict(
        family="hy_v4", seed=43, spread=0.1, lengths=[2, 17, 60], interleaved=False, per_expert=True, fp8=True, pre="saved",
        add=dict(rope_interleave=False),
        config=dict(vocab_size=128, hidden_size=132, intermediate_size=140, moe_intermediate_size=40, num_hidden_layers=2,
                    num_attention_heads=2, q_lora_rank=130, kv_lora_rank=136, qk_nope_head_dim=112, qk_rope_head_dim=16,
                    v_head_dim=32, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, index_n_heads=24,
                    index_head_dim=64, index_topk=16, max_position_embeddings=1024, rms_norm_eps=1e-5,
                    rope_parameters=plain(10000.0))),
    # As A.X-K2-Light: no groups of experts, one tensor per expert, YaRN.
    "axk2-light": dict(
        family="axk2", seed=51, lengths=[1, 15, 16, 17, 40, 150], per_expert=True,
        config=dict(vocab_size=128, hidden_size=48, intermediate_size=96, moe_intermediate_size=24, num_hidden_layers=4,
                    num_attention_heads=4, num_key_value_heads=4, q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                    v_head_dim=12, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, index_n_heads=24,
                    index_head_dim=16, index_topk=16, gated_norm_rank=7, max_position_embeddings=2048, rms_norm_eps=1e-6,
                    rope_parameters=yarn(10000.0, 8.0, 256, mscale=1.0, mscale_all_dim=1.0))),
    # Groups whose refused experts keep the score 0, which negative scores lose to; stored in BF16, tied, fused, other names.
    "axk2-groups": dict(
        family="axk2", seed=52, lengths=[1, 12, 13, 33, 120], published=False, store=torch.bfloat16, bias=1.0,
        config=dict(vocab_size=101, hidden_size=44, intermediate_size=76, moe_intermediate_size=20, num_hidden_layers=4,
                    mlp_layer_types=["sparse", "dense", "sparse", "sparse"], num_attention_heads=3, num_key_value_heads=3, q_lora_rank=36,
                    kv_lora_rank=28, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=12,
                    n_shared_experts=2, num_experts_per_tok=4, n_group=4, topk_group=2, norm_topk_prob=False,
                    routed_scaling_factor=1.3, index_n_heads=25, index_head_dim=18, index_topk=13, gated_norm_rank=16,
                    tie_word_embeddings=True, max_position_embeddings=1000, rms_norm_eps=1e-5, rope_parameters=plain(50000.0))),
}


def randomise(model, seed, bias):
    gen = torch.Generator().manual_seed(seed + 1000)
    kinds = (("e_score_correction_bias", 0, bias), ("k_norm.bias", 0, 0.3), ("sinks", 0.5, 1.0), ("scale", 1, 0.3), (".base", 0, 0.5),
             ("hc_base", 0, 0.5))
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            found = next(((mean, spread) for end, mean, spread in kinds if name.endswith(end)), None)
            if found is None and "norm" in name and name.endswith("weight"):
                found = (model.norm_mean if hasattr(model, "norm_mean") else 1.0, 0.3)
            if found:
                p.copy_(found[0] + found[1] * torch.randn(p.shape, generator=gen))


def build(case):
    config_class, model_class, _ = FAMILIES[case["family"]]
    torch.manual_seed(case["seed"])
    config = config_class(initializer_range=case.get("spread", 0.15), bos_token_id=0, eos_token_id=1, pad_token_id=None, **case["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    randomise(model, case["seed"], case.get("bias", 0.2))
    if "store" in case:  # the answers are those of the stored values
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.to(case["store"]).to(torch.float32))
    return model


def quantise(model, case, state):
    """F8 tensors of the published state, and the model with the values that they dequantise to."""
    out, back = {}, {}
    for name, t in state.items():
        f8 = make.is_f8(name, t) or "linear_gate" in name
        out[name], back[name] = t, t
        if f8:
            out[name], out[name + "_scale_inv"], back[name] = make.quantise(t)
    # Where rows of the model have gone: a state of row numbers takes the same way.
    own = model.state_dict()
    rows = {k: torch.arange(t.shape[0], dtype=torch.float64).view(-1, *[1] * (t.dim() - 1)).expand_as(t).clone() if t.dim() else t
            for k, t in own.items()}
    places = interleave_hy_v4(rows, model.config) if case.get("interleaved", True) else rows
    for name, t in own.items():
        if name.endswith("experts.gate_up_proj"):
            stem = name.replace("gate_up_proj", "")
            parts = [torch.cat([back[f"{stem}{e}.{k}_proj.weight"] for k in ("gate", "up")]) for e in range(t.shape[0])]
            t.copy_(torch.stack(parts))
        elif name.endswith("experts.down_proj"):
            stem = name.replace("down_proj", "")
            t.copy_(torch.stack([back[f"{stem}{e}.down_proj.weight"] for e in range(t.shape[0])]))
        elif t.dim() == 2:
            t[places[name][:, 0].long()] = back[rename_hy_v4(name, pre_of(case))]
    return out


def save(model, case, path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    state = FAMILIES[case["family"]][2](model, case)
    if case["config"].get("tie_word_embeddings"):
        state.pop("lm_head.weight")
    if case.get("per_expert"):
        state = per_expert(state)
    if case.get("fp8"):
        state = quantise(model, case, state)
    state = {k: v.to(case.get("store", v.dtype)).contiguous() if v.is_floating_point() else v for k, v in state.items()}
    safetensors.torch.save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    for key in case.get("drop", []):
        del config[key]
    config.update(case.get("add", {}))
    if case.get("fp8"):
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    for name in args.cases or CASES:
        case = CASES[name]
        print(name, flush=True)
        model = build(case)
        path = os.path.join(args.out, name)
        save(model, case, path)
        out = make.goldens(model, make.in_double(model), case["lengths"], case["seed"])
        safetensors.torch.save_file(out, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    main()
