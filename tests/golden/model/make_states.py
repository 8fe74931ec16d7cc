#!/usr/bin/env python3
"""Makes the tiny checkpoints and golden answers of families whose layers keep a state, as make_families.py does for the others.

Every parameter is random, because the published classes begin many of them with constants. Prompts contain ends of text, which cut
n-grams. Greedy tokens are computed with the class's cache and confirmed by a pass over the whole text, in float32 and in float64.
Needs transformers 5.17; README.md has the versions and what each case is there for.

usage: make_states.py [--out DIR] [--random N [--seed S]] [case ...]       (default: all cases, in this folder)
--random makes N checkpoints of random configurations into DIR instead, for comparisons that are not kept.
"""
import argparse
import json
import os
import random
import shutil

import safetensors.torch
import torch
import transformers
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from make import GREEDY, per_expert, yarn

HERE = os.path.dirname(os.path.abspath(__file__))

CASES = {
    # As published: a gate by sigmoid, two layers of n-grams, 4 streams, fused experts, names of a text part.
    "qwen4-ngram": dict(
        family="qwen4_exp", seed=61, lengths=[1, 3, 4, 21, 33, 150], nested=True,
        config=dict(vocab_size=128, hidden_size=32, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_hidden_layers=5,
                    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"],
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                    linear_key_head_dim=16, linear_value_head_dim=12, linear_conv_kernel_dim=4, num_experts=8, num_experts_per_tok=3,
                    indexer_n_heads=14, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=32, indexer_compress_ratio=4,
                    hc_count=4, hc_lowrank=10, ple_layer_ids=[2, 3], ple_embed_dim=64, ngram_size=3, heads_per_ngram=4,
                    ngram_vocab_size_base=200, make_ngram_vocab_size_divisible_by=16, split_ngram_parts=5, output_gate_type="sigmoid",
                    rms_norm_eps=1e-3, max_position_embeddings=2048,
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 2]))),
    # Odd sizes, three streams, units of 2, a gate by silu, one tensor per expert, as many key heads as value heads, YaRN, BF16, tied.
    "qwen4-odd": dict(
        family="qwen4_exp", seed=62, lengths=[2, 5, 23, 24, 120], per_expert=True, store=torch.bfloat16,
        config=dict(vocab_size=101, hidden_size=44, moe_intermediate_size=20, shared_expert_intermediate_size=28, num_hidden_layers=4,
                    layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"], tie_word_embeddings=True,
                    num_attention_heads=3, num_key_value_heads=1, head_dim=12, linear_num_key_heads=3, linear_num_value_heads=3,
                    linear_key_head_dim=10, linear_value_head_dim=14, linear_conv_kernel_dim=3, num_experts=7, num_experts_per_tok=2,
                    norm_topk_prob=False, indexer_n_heads=13, indexer_kv_heads=1, indexer_head_dim=10, indexer_budget=16,
                    indexer_compress_ratio=2, hc_count=3, hc_lowrank=13, ple_layer_ids=[1], ple_embed_dim=24, ngram_size=4, heads_per_ngram=2,
                    ple_conv_kernel_size=3, ngram_vocab_size_base=50, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=1,
                    rms_norm_eps=1e-3, max_position_embeddings=1000,
                    rope_parameters=dict(yarn(10000.0, 4.0, 256), partial_rotary_factor=0.5, mrope_section=[1, 1, 1]))),
}


def random_qwen4(rng):
    heads, kv = rng.choice([(2, 1), (4, 2), (6, 2), (4, 4), (3, 1), (8, 2)])
    head_dim = rng.choice([8, 12, 16, 24, 32])
    index_dim = rng.choice([12, 16, 24, 32])
    factor = rng.choice([f for f in (0.25, 0.5, 0.75, 1.0) if int(head_dim * f) % 2 == 0 and 2 <= int(head_dim * f) <= index_dim])
    keys = rng.choice([1, 2, 3])
    values = keys * rng.choice([1, 2, 3])
    layers = rng.randint(2, 6)
    kinds = [rng.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
    kinds[rng.randrange(layers)] = "full_attention"
    linear = [i + 1 for i, k in enumerate(kinds) if k == "linear_attention"]
    ple = sorted(rng.sample(linear, min(len(linear), rng.choice([0, 1, 1, 2]))))
    order, per = rng.choice([2, 3, 4]), rng.choice([1, 2, 4])
    unit = rng.choice([1, 2, 4, 4, 4, 8])
    experts = rng.choice([4, 6, 9, 16])
    rotated = int(head_dim * factor) // 2
    rope = dict(rope_type="default", rope_theta=rng.choice([10000.0, 5e6]), partial_rotary_factor=factor,
                mrope_section=[rotated - rotated // 3 * 2, rotated // 3, rotated // 3])
    return dict(
        family="qwen4_exp", seed=rng.randrange(10**6), lengths=[rng.randint(1, 3), rng.randint(4, 30), rng.randint(60, 140)],
        nested=rng.random() < 0.5, per_expert=rng.random() < 0.5, store=rng.choice([torch.float32, torch.float32, torch.bfloat16]),
        config=dict(vocab_size=rng.choice([64, 97, 128]), hidden_size=rng.choice([24, 32, 44, 60]), moe_intermediate_size=rng.choice([12, 16, 20]),
                    shared_expert_intermediate_size=rng.choice([8, 20, 32]), num_hidden_layers=layers, layer_types=kinds,
                    num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim, linear_num_key_heads=keys,
                    linear_num_value_heads=values, linear_key_head_dim=rng.choice([6, 8, 16]), linear_value_head_dim=rng.choice([4, 8, 20]),
                    linear_conv_kernel_dim=rng.choice([2, 3, 4]), num_experts=experts, num_experts_per_tok=rng.randint(1, min(4, experts)),
                    norm_topk_prob=rng.random() < 0.7, indexer_n_heads=rng.choice([12, 16]), indexer_kv_heads=1,
                    indexer_head_dim=index_dim, indexer_budget=unit * rng.choice([2, 4, 6]), indexer_compress_ratio=unit,
                    hc_count=rng.choice([2, 3, 4, 5]), hc_lowrank=rng.choice([5, 8, 16]), ple_layer_ids=ple or None,
                    ple_embed_dim=(order - 1) * per * rng.choice([2, 3, 8]),
                    ngram_size=order, heads_per_ngram=per, ple_conv_kernel_size=rng.choice([2, 3, 4]),
                    ngram_vocab_size_base=rng.choice([20, 100]), make_ngram_vocab_size_divisible_by=rng.choice([1, 8, 128]),
                    split_ngram_parts=rng.choice([1, 2, 7]), output_gate_type=rng.choice([None, "silu", "sigmoid"]),
                    tie_word_embeddings=rng.random() < 0.2, rms_norm_eps=rng.choice([1e-3, 1e-2]), max_position_embeddings=1024,
                    rope_parameters=rope))


def state_qwen4(model, case):
    """Tensors with the names of published files."""
    shards, out = model.config.split_ngram_parts, {}
    for name, t in model.state_dict().items():
        if name.endswith("ngram_embedding.weight"):
            for i, part in enumerate(torch.chunk(t, shards)):
                out[name.replace("ngram_embedding.weight", f"ngram_embedding.shard_{i}.weight")] = part.clone()
        else:
            out[name] = t.clone()
    return out


FAMILIES = {"qwen4_exp": (Qwen4ExpTextConfig, Qwen4ExpForCausalLM, state_qwen4, random_qwen4)}
# The model type, class and prefix of a whole model, of which these are the text parts.
WHOLE = {"qwen4_exp": ("qwen4_exp", "Qwen4ExpForConditionalGeneration")}


def randomise(model, seed):
    """Parameters that begin as constants; those that begin at random are left."""
    gen = torch.Generator().manual_seed(seed + 1000)
    kinds = (("A_log", 0.2, 0.7), ("dt_bias", 0, 1.0), ("conv1d.weight", 0, 0.5), ("linear_attn.norm.weight", 1, 0.3),
             ("shared_expert_gate.weight", 0, 0.3), ("gate.weight", 0, 0.3))
    with torch.no_grad():
        for name, p in model.named_parameters():
            found = next(((mean, spread) for end, mean, spread in kinds if name.endswith(end)), None)
            if found is None and "norm" in name:
                found = (0, 0.3)
            if found:
                p.copy_(found[0] + found[1] * torch.randn(p.shape, generator=gen))


def build(case):
    config_class, model_class = FAMILIES[case["family"]][:2]
    torch.manual_seed(case["seed"])
    config = config_class(initializer_range=case.get("spread", 0.2), bos_token_id=0, eos_token_id=1, pad_token_id=None, **case["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    randomise(model, case["seed"])
    if "store" in case:  # the answers are those of the stored values
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.to(case["store"]).to(torch.float32))
    return model


def in_double(model):
    double = type(model)(model.config).double().eval()
    double.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in model.state_dict().items()})
    return double


@torch.no_grad()
def answer(model, double, ids, greedy_n, strict):
    """Golden tensors for a prompt, or None when rounding could decide something."""
    seq, greedy, cache, last = list(ids), [], None, None
    for step in range(greedy_n):
        out = model(torch.tensor([seq if cache is None else seq[-1:]]), use_cache=True, past_key_values=cache)
        cache, row = out.past_key_values, out.logits[0, -1]
        top = row.topk(2).values
        if top[0] - top[1] < 1e-3:
            return None
        greedy.append(int(row.argmax()))
        seq.append(greedy[-1])
    final, final64 = (m(torch.tensor([seq]), use_cache=False).logits[0] for m in (model, double))
    if (final.double() - final64).abs().max() > strict:
        return None
    if [int(t) for t in final64[len(ids) - 1:-1].argmax(-1)] != greedy:
        return None
    out = {"ids": torch.tensor(ids, dtype=torch.int32), "greedy": torch.tensor(greedy, dtype=torch.int32),
           "logits": final64[len(ids) - 1].float()}
    if len(ids) <= 70:
        out["all_logits"] = final64[:len(ids)].float().contiguous()
    return out


def goldens(model, double, case, greedy_n=GREEDY, attempts=200, strict=3e-5):
    out, gen = {}, torch.Generator().manual_seed(case["seed"] + 2000)
    for i, n in enumerate(case["lengths"]):
        for attempt in range(attempts):
            ids = torch.randint(2, model.config.vocab_size, (n,), generator=gen)
            ids = torch.where(torch.rand(n, generator=gen) < 0.08, torch.ones_like(ids), ids).tolist()
            found = answer(model, double, ids, greedy_n, strict)
            if found:
                break
        else:
            return None
        print(f"  prompt {i}: {n} tokens, attempt {attempt + 1}", flush=True)
        out.update({f"p{i}.{k}": v for k, v in found.items()})
    return out


def save(model, case, path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    state = FAMILIES[case["family"]][2](model, case)
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    if case["config"].get("tie_word_embeddings"):
        state.pop("lm_head.weight")
    if case.get("per_expert"):
        state = per_expert(state)
    if case.get("nested"):
        kind, architecture = WHOLE[case["family"]]
        state = {k.replace("model.", "model.language_model.", 1) if k.startswith("model.") else k: v for k, v in state.items()}
        config = dict(architectures=[architecture], model_type=kind, text_config=config, tie_word_embeddings=config["tie_word_embeddings"])
    store = case.get("store", torch.float32)
    state = {k: v.to(store).contiguous() if v.is_floating_point() else v for k, v in state.items()}
    safetensors.torch.save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def make(name, case, out, **how):
    print(name, flush=True)
    path = os.path.join(out, name)
    model = build(case)
    save(model, case, path)
    tensors = goldens(model, in_double(model), case, **how)
    if tensors:
        safetensors.torch.save_file(tensors, os.path.join(path, "golden.safetensors"))
    else:
        print("  no well-conditioned prompt")
        shutil.rmtree(path)
    return tensors is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("cases", nargs="*", help="of --random: families")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    for i in range(args.random):
        rng = random.Random(args.seed * 1000 + i)
        family = rng.choice(args.cases or list(FAMILIES))
        make(f"{family}-{args.seed}-{i}", FAMILIES[family][3](rng), args.out, greedy_n=16, attempts=12, strict=6e-5)
    for name in [] if args.random else args.cases or CASES:
        if not make(name, CASES[name], args.out):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
