#!/usr/bin/env python3
"""Makes the tiny checkpoints and golden answers of families whose layers keep a state, as make_families.py does for the others.

Every parameter is random, because the published classes begin many of them with constants. Prompts contain ends of text, which cut
n-grams. The class of GLM-5.3-Flash computes prompts in chunks of 64 tokens, and the norm after the state makes the rounding of that
large, so its delta rule is replaced by one that goes token by token, in the precision of the model. Greedy tokens are computed with the class's cache and confirmed by a pass over the whole text, in float32 and in float64.
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
from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration, Glm5NextTextConfig, Qwen4ExpTextConfig
from transformers.models.glm5_next import modeling_glm5_next
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextVisionConfig
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
    # As published: units of 4, 4 streams, a bound of the decay, fused experts, a clamp that bites, names of a whole model with pictures.
    "glm5-flash": dict(
        family="glm5_next", seed=71, lengths=[1, 3, 4, 21, 33, 150], nested=True, pictures=True,
        config=dict(vocab_size=128, hidden_size=32, intermediate_size=40, moe_intermediate_size=16, num_hidden_layers=5,
                    layer_types=["linear_attention", "linear_attention", "deepseek_sparse_attention", "linear_attention",
                                 "deepseek_sparse_attention"],
                    mlp_layer_types=["dense"] + ["sparse"] * 4, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24,
                    kv_lora_rank=32, qk_nope_head_dim=16, v_head_dim=12, index_n_heads=24, index_head_dim=16, index_topk=32, index_kpool=4,
                    linear_num_heads=3, linear_head_dim=16, n_routed_experts=8, num_experts_per_tok=3, swiglu_limit=1.5,
                    rms_norm_eps=1e-2, max_position_embeddings=2048)),
    # Odd sizes, units of 2, three streams, a layer that shares a selection, no bound, 3 taps, groups of experts, one tensor per expert,
    # BF16, tied embeddings, a config of the text alone with linear_attn_config, names of the class of transformers.
    "glm5-odd": dict(
        family="glm5_next", seed=72, lengths=[2, 5, 23, 24, 120], per_expert=True, store=torch.bfloat16, class_names=True,
        linear_attn_config=True,
        config=dict(vocab_size=101, hidden_size=44, intermediate_size=52, moe_intermediate_size=20, num_hidden_layers=5,
                    layer_types=["deepseek_sparse_attention", "deepseek_sparse_attention", "linear_attention", "deepseek_sparse_attention",
                                 "linear_attention"],
                    indexer_types=["full", "shared", "shared", "full", "full"], mlp_layer_types=["dense", "sparse"] * 2 + ["dense"],
                    tie_word_embeddings=True, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=28,
                    qk_nope_head_dim=10, v_head_dim=14, index_n_heads=25, index_head_dim=13, index_topk=16, index_kpool=2,
                    linear_num_heads=5, linear_head_dim=10, linear_conv_kernel_dim=3, linear_lower_bound=None, n_routed_experts=8,
                    n_group=2, topk_group=1, num_experts_per_tok=2, n_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=1.5,
                    hc_mult=3, hc_eps=1e-3, hc_sinkhorn_iters=3, rms_norm_eps=1e-2, max_position_embeddings=1000)),
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


def random_glm5(rng):
    layers = rng.randint(2, 6)
    kinds = [rng.choice(["linear_attention", "deepseek_sparse_attention"]) for _ in range(layers)]
    kinds[rng.randrange(layers)] = "deepseek_sparse_attention"
    own = ["full"] * layers
    for i in range(1, layers):  # the class knows no layer that shares after another one that does
        if kinds[i - 1:i + 1] == ["deepseek_sparse_attention"] * 2 and own[i - 1] == "full" and rng.random() < 0.4:
            own[i] = "shared"
    unit, heads, groups = rng.choice([1, 2, 4, 4, 8, 16]), rng.choice([1, 2, 3, 4, 6]), rng.choice([1, 1, 2, 4])
    experts = groups * rng.choice([2, 3, 4])
    chosen = rng.randint(1, groups)
    return dict(
        family="glm5_next", seed=rng.randrange(10**6), lengths=[rng.randint(1, 3), rng.randint(4, 30), rng.randint(60, 140)],
        nested=rng.random() < 0.5, per_expert=rng.random() < 0.5, store=rng.choice([torch.float32, torch.float32, torch.bfloat16]),
        class_names=rng.random() < 0.3, linear_attn_config=rng.random() < 0.3, pictures=rng.random() < 0.1,
        config=dict(vocab_size=rng.choice([64, 97, 128]), hidden_size=rng.choice([24, 32, 44, 60]), intermediate_size=rng.choice([20, 36, 64]),
                    moe_intermediate_size=rng.choice([12, 16, 20]), num_hidden_layers=layers, layer_types=kinds, indexer_types=own,
                    mlp_layer_types=[rng.choice(["dense", "sparse"]) for _ in range(layers)], tie_word_embeddings=rng.random() < 0.2,
                    num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=rng.choice([16, 20, 30]),
                    kv_lora_rank=rng.choice([16, 28, 40]), qk_nope_head_dim=rng.choice([8, 10, 24]), v_head_dim=rng.choice([6, 16, 20]),
                    index_n_heads=rng.choice([24, 25, 32]), index_head_dim=rng.choice([8, 13, 24]), index_topk=unit * rng.choice([2, 4, 6]),
                    index_kpool=unit, linear_num_heads=rng.choice([1, 2, 5]), linear_head_dim=rng.choice([6, 8, 16, 20]),
                    linear_conv_kernel_dim=rng.choice([2, 3, 4]), linear_lower_bound=rng.choice([None, -5.0, -5.0, -2.5]),
                    n_routed_experts=experts, n_group=groups, topk_group=chosen,
                    num_experts_per_tok=rng.randint(1, min(4, experts // groups * chosen)), n_shared_experts=rng.choice([1, 1, 2]),
                    norm_topk_prob=rng.random() < 0.7, routed_scaling_factor=rng.choice([1.0, 2.5]), swiglu_limit=rng.choice([1.0, 2.0, 10.0]),
                    hc_mult=rng.choice([1, 2, 3, 4, 5]), hc_eps=rng.choice([1e-6, 1e-3]), hc_sinkhorn_iters=rng.choice([1, 2, 20]),
                    rms_norm_eps=rng.choice([1e-2, 1e-1]), max_position_embeddings=1024))


def delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False, **_):
    """The recurrence of Kimi Delta Attention, token by token: [batch][token][head][dim], the decay by channel."""
    query, key = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    shape = (*key.shape[:1], *key.shape[2:], value.shape[-1])
    state = value.new_zeros(shape) if initial_state is None else initial_state.to(value)
    out = []
    for t in range(key.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1).to(value)
        u = (value[:, t] - (state * key[:, t].unsqueeze(-1)).sum(-2)) * beta[:, t].unsqueeze(-1)
        state = state + key[:, t].unsqueeze(-1) * u.unsqueeze(-2)
        out.append((state * query[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(out, 1), state


def config_glm5(**keys):
    ends = {k: keys.pop(k) for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    seen = Glm5NextVisionConfig(depth=1, hidden_size=8, num_heads=2, image_size=28, out_hidden_size=keys["hidden_size"], intermediate_size=8,
                                projection_intermediate_size=8)
    text = Glm5NextTextConfig(**keys, **ends)
    return Glm5NextConfig(text_config=text, vision_config=seen, tie_word_embeddings=keys.get("tie_word_embeddings", False))


def state_glm5(model, case):
    """Tensors with the names of published files, without `language_model.`, which save() writes."""
    out = {}
    for name, t in model.state_dict().items():
        if name.startswith("model.visual.") and not case.get("pictures"):
            continue
        name = name.replace("model.language_model.", "model.")
        if not case.get("class_names"):
            name = name.replace("self_attn.forget_gate.", "self_attn.").replace(".attn_hc.", ".hc_attn_").replace(".ffn_hc.", ".hc_ffn_")
        if name.endswith("self_attn.conv1d.weight"):
            for part, which in zip(torch.chunk(t, 3), "qkv"):
                out[name.replace("conv1d", which + "_conv1d")] = part.clone()
        else:
            out[name] = t.clone()
    return out


def write_glm5(config, case):
    """The config of the text part, in one of its spellings."""
    text = config["text_config"]
    if case.get("linear_attn_config"):
        text["linear_attn_config"] = dict(num_heads=text.pop("linear_num_heads"), head_dim=text.pop("linear_head_dim"), safe_gate=False,
                                          short_conv_kernel_size=text.pop("linear_conv_kernel_dim"),
                                          gate_lower_bound=text.pop("linear_lower_bound", None))
    return text


def write_qwen4(config, case):
    return config


QWEN4_KINDS = (("A_log", 0.2, 0.7), ("dt_bias", 0, 1.0), ("conv1d.weight", 0, 0.5), ("linear_attn.norm.weight", 1, 0.3),
               ("shared_expert_gate.weight", 0, 0.3), ("gate.weight", 0, 0.3), ("norm", 0, 0.3))
GLM5_KINDS = (("A_log", 0.2, 0.7), ("dt_bias", 0, 1.0), ("conv1d.weight", 0, 0.5), ("norm.bias", 0, 0.3), ("norm", 1, 0.3),
              ("_hc.fn", 0, 0.1), ("_hc.base", 0, 1.0), ("_hc.scale", 0.7, 0.3), ("compress_ape", 0, 0.7), ("compress_gate", 0, 0.2),
              ("mlp.gate.weight", 0, 0.3), ("e_score_correction_bias", 0, 0.2))
FAMILIES = {"qwen4_exp": (Qwen4ExpTextConfig, Qwen4ExpForCausalLM, state_qwen4, random_qwen4, QWEN4_KINDS, write_qwen4),
            "glm5_next": (config_glm5, Glm5NextForConditionalGeneration, state_glm5, random_glm5, GLM5_KINDS, write_glm5)}
# The model type and class of a whole model, of which these are the text parts.
WHOLE = {"qwen4_exp": ("qwen4_exp", "Qwen4ExpForConditionalGeneration"), "glm5_next": ("glm5_next", "Glm5NextForConditionalGeneration")}


def randomise(model, seed, kinds):
    """Parameters that begin as constants; those that begin at random are left."""
    gen = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n.endswith("_bias"))]:
            found = next(((mean, spread) for end, mean, spread in kinds if name.endswith(end) or (end == "norm" and end in name)), None)
            if found:
                p.copy_(found[0] + found[1] * torch.randn(p.shape, generator=gen))


def build(case):
    config_class, model_class = FAMILIES[case["family"]][:2]
    torch.manual_seed(case["seed"])
    config = config_class(initializer_range=case.get("spread", 0.2), bos_token_id=0, eos_token_id=1, pad_token_id=None, **case["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    randomise(model, case["seed"], FAMILIES[case["family"]][4])
    if "store" in case:  # the answers are those of the stored values
        with torch.no_grad():
            for p in [*model.parameters(), *(b for n, b in model.named_buffers() if n.endswith("_bias"))]:
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
            ids = torch.randint(2, case["config"]["vocab_size"], (n,), generator=gen)
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
    config = FAMILIES[case["family"]][5](json.loads(model.config.to_json_string()), case)
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
    modeling_glm5_next.chunk_kimi_delta_attention = modeling_glm5_next.recurrent_kimi_delta_attention = delta_rule
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
