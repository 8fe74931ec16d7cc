#!/usr/bin/env python3
"""Makes the tiny checkpoints and golden answers of DeepSeek-V4, as make_families.py does for other families of 2026.

Every parameter is random, the tables of experts too. Checkpoints have the names of published files; with as_saved those that
save_pretrained gives them. A prompt is kept if the same model in float64 chooses the same entries and the same greedy tokens.
Needs transformers 5.17; README.md has the versions and what each case is there for.

usage: make_v4.py [--out DIR] [--random N] [case ...]     (default: all cases, in this folder; N: this number of random configurations)
"""
import argparse
import json
import os
import random
import shutil
import tempfile

import safetensors.torch
import torch
import transformers
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import make

HERE = os.path.dirname(os.path.abspath(__file__))
YARN = dict(type="yarn", factor=16, original_max_position_embeddings=64, beta_fast=32, beta_slow=1)

CASES = {
    # The published spelling, YaRN for the layers with entries, more than half of the entries not chosen, a clamp that bites.
    "v4-flash": dict(
        seed=61, lengths=[1, 3, 4, 23, 24, 25, 40, 300],
        config=dict(vocab_size=128, hidden_size=40, moe_intermediate_size=24, num_hidden_layers=5, num_attention_heads=4,
                    head_dim=32, qk_rope_head_dim=8, q_lora_rank=24, o_groups=2, o_lora_rank=12, index_n_heads=24,
                    index_head_dim=16, index_topk=8, sliding_window=24, n_routed_experts=8, num_experts_per_tok=2,
                    num_hash_layers=2, compress_ratios=[0, 4, 128, 4, 128], compress_rate_hca=32, swiglu_limit=1.5,
                    max_position_embeddings=2048, rope_scaling=YARN)),
    # Odd sizes, entries that do not divide a page, three streams, groups that cut a head, sigmoid scores, names of save_pretrained.
    "v4-odd": dict(
        seed=62, lengths=[1, 2, 11, 12, 13, 64, 65, 200], as_saved=True,
        config=dict(vocab_size=101, hidden_size=44, moe_intermediate_size=20, num_hidden_layers=4, num_attention_heads=6,
                    head_dim=20, partial_rotary_factor=0.5, q_lora_rank=28, o_groups=4, o_lora_rank=7, index_n_heads=25,
                    index_head_dim=14, index_topk=5, sliding_window=11, n_routed_experts=7, num_experts_per_tok=3,
                    layer_types=["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention",
                                 "compressed_sparse_attention"],
                    compress_rates=dict(compressed_sparse_attention=5, heavily_compressed_attention=24),
                    mlp_layer_types=["moe", "hash_moe", "moe", "hash_moe"], hc_mult=3, hc_sinkhorn_iters=3, hc_eps=1e-3,
                    routed_scaling_factor=2.2, swiglu_limit=1.0, scoring_func="sigmoid", rms_norm_eps=1e-4,
                    max_position_embeddings=1000)),
    # Stored in BF16, the default order of layers, entries of whole pages, tied embeddings.
    "v4-bf16": dict(
        seed=63, lengths=[2, 63, 64, 130, 270], store=torch.bfloat16,
        config=dict(vocab_size=96, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=4, num_attention_heads=4,
                    head_dim=16, qk_rope_head_dim=4, q_lora_rank=16, o_groups=1, o_lora_rank=20, index_n_heads=24,
                    index_head_dim=8, index_topk=12, sliding_window=16, n_routed_experts=6, num_experts_per_tok=2,
                    num_hash_layers=1, compress_rates=dict(compressed_sparse_attention=8, heavily_compressed_attention=128),
                    swiglu_limit=1.2, tie_word_embeddings=True, max_position_embeddings=4096,
                    rope_scaling=dict(YARN, factor=4, original_max_position_embeddings=128))),
    # Entries of 3 tokens, which divide no page, though their bytes could be rows.
    "v4-thirds": dict(
        seed=65, lengths=[2, 3, 64, 90],
        config=dict(vocab_size=60, hidden_size=20, moe_intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
                    head_dim=12, qk_rope_head_dim=4, q_lora_rank=12, o_groups=2, o_lora_rank=8, index_n_heads=24, index_head_dim=8,
                    index_topk=9, sliding_window=8, n_routed_experts=4, num_experts_per_tok=2, num_hash_layers=1, hc_mult=2,
                    layer_types=["compressed_sparse_attention", "sliding_attention"],
                    compress_rates=dict(compressed_sparse_attention=3, heavily_compressed_attention=128), swiglu_limit=1.5,
                    max_position_embeddings=1024)),
    # Weights as released: F8 in blocks and experts in 4 bits, both with powers of two; the answers are those of the dequantised weights.
    "v4-released": dict(
        seed=64, lengths=[3, 17, 64, 150], released=True,
        config=dict(vocab_size=64, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
                    head_dim=32, qk_rope_head_dim=8, q_lora_rank=48, o_groups=2, o_lora_rank=128, index_n_heads=24,
                    index_head_dim=16, index_topk=6, sliding_window=16, n_routed_experts=4, num_experts_per_tok=2,
                    num_hash_layers=1, compress_ratios=[0, 4, 128, 0], swiglu_limit=1.5, max_position_embeddings=2048,
                    rope_scaling=YARN)),
}


def random_case(seed):
    """Any configuration that the class of transformers computes."""
    r = random.Random(seed)
    layers, heads, dim = r.randint(2, 5), r.choice([2, 3, 4, 8]), r.choice([12, 16, 24, 32, 40])
    rope = 2 * r.randint(1, min(dim // 4, 8))
    csa, hca = r.choice([2, 3, 4, 4, 4, 6, 8, 16]), r.choice([7, 8, 16, 24, 32, 32, 64, 100, 128, 128])
    experts = r.randint(3, 12)
    config = dict(
        vocab_size=r.randint(60, 160), hidden_size=4 * r.randint(5, 16), moe_intermediate_size=4 * r.randint(3, 10),
        num_hidden_layers=layers, num_attention_heads=heads, head_dim=dim, q_lora_rank=4 * r.randint(3, 10),
        o_groups=r.choice([g for g in (1, 2, 3, 4, 6, 8) if heads * dim % g == 0]), o_lora_rank=r.randint(4, 20),
        index_n_heads=r.randint(20, 32), index_head_dim=max(rope, 2 * r.randint(4, 12)), index_topk=r.randint(2, 12),
        sliding_window=r.choice([4, 5, 8, 16, 24, 33, 64, 128]), n_routed_experts=experts,
        num_experts_per_tok=r.randint(1, min(4, experts)), swiglu_limit=r.choice([0.7, 1.5, 10.0]), hc_mult=r.choice([1, 2, 3, 4, 4, 4]),
        hc_sinkhorn_iters=r.choice([1, 2, 5, 20]), hc_eps=r.choice([1e-6, 1e-3]), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-3]),
        routed_scaling_factor=r.choice([1.0, 1.5, 2.5]), scoring_func=r.choice(["sqrtsoftplus"] * 3 + ["sigmoid"]),
        tie_word_embeddings=r.random() < 0.2, max_position_embeddings=r.choice([1000, 2048, 65536]),
        rope_theta=r.choice([10000.0, 500.0]), compress_rope_theta=r.choice([160000.0, 2000.0]))
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    if r.random() < 0.5:
        config["compress_ratios"] = [r.choice([0, 4, 4, 128]) for _ in range(layers + r.randint(0, 2))]
        if not any(config["compress_ratios"][:layers]):
            config["compress_ratios"][0] = 4
        config["compress_rate_csa"], config["compress_rate_hca"] = csa, hca
        config["num_hash_layers"] = r.randint(0, layers)
    elif r.random() < 0.3:
        config["compress_rates"] = {kinds[1]: csa, kinds[2]: hca}
    else:
        config["layer_types"] = [r.choice(kinds) for _ in range(layers)]
        if all(t == kinds[0] for t in config["layer_types"]):
            config["layer_types"][-1] = kinds[1]
        config["compress_rates"] = {kinds[1]: csa, kinds[2]: hca}
        config["mlp_layer_types"] = [r.choice(["moe", "hash_moe"]) for _ in range(layers)]
    if r.random() < 0.5:
        config["qk_rope_head_dim"] = rope
    else:
        config["partial_rotary_factor"] = rope / dim
    if r.random() < 0.6:
        config["rope_scaling"] = dict(YARN, factor=r.choice([4, 16, 40]), original_max_position_embeddings=r.choice([64, 256]))
    window = config["sliding_window"]
    lengths = sorted({1, csa, window - 1, window, window + 1, hca, 2 * hca + 1, 4 * csa * config["index_topk"] % 330 + 2} & set(range(1, 330)))
    return dict(seed=seed, lengths=lengths, as_saved=r.random() < 0.5, store=r.choice([torch.float32, torch.float32, torch.bfloat16]),
                config=config)


KINDS = (("e_score_correction_bias", 0, 0.2), ("sinks", 0.5, 1.0), ("scale", 1, 0.3), (".base", 0, 0.5), ("hc_base", 0, 0.5),
         ("position_bias", 0, 0.7))


def build(case):
    torch.manual_seed(case["seed"])
    config = DeepseekV4Config(initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=None, **case["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).to(torch.float32).eval()
    gen = torch.Generator().manual_seed(case["seed"] + 1000)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if name.endswith("tid2eid"):
                p.copy_(torch.stack([torch.randperm(config.n_routed_experts, generator=gen)[:p.shape[1]] for _ in range(p.shape[0])]))
                continue
            kind = next((k for k in KINDS if name.endswith(k[0])), None)
            if kind is None and "norm" in name and name.endswith("weight"):
                kind = ("", 1, 0.3)
            if kind:
                p.copy_(kind[1] + kind[2] * torch.randn(p.shape, generator=gen))
        for p in model.state_dict().values():  # the answers are those of the stored values
            if p.is_floating_point():
                p.copy_(p.to(case.get("store", torch.float32)).to(torch.float32))
    return model


class Chosen:
    """What every indexer chose in one forward pass, as sets."""

    def __init__(self, model):
        self.lists, self.handles = [], []
        for m in model.modules():
            if type(m).__name__ == "DeepseekV4Indexer":
                self.handles.append(m.register_forward_hook(
                    lambda module, args, out: self.lists.append([frozenset(i for i in row if i >= 0) for row in out[0].tolist()])))

    def close(self):
        for h in self.handles:
            h.remove()


@torch.no_grad()
def run(model, ids):
    chosen = Chosen(model)
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    chosen.close()
    return logits, chosen.lists


@torch.no_grad()
def answer(model, double, ids):
    logits, _ = run(model, ids)
    seq, greedy = list(ids), []
    for _ in range(make.GREEDY):
        row = run(model, seq)[0][-1]
        top = row.topk(2).values
        if top[0] - top[1] < 1e-3:
            return None
        greedy.append(int(row.argmax()))
        seq.append(greedy[-1])
    final, chosen = run(model, seq)
    final64, chosen64 = run(double, seq)
    if (final.double() - final64).abs().max() > 5e-5 or chosen != chosen64:
        return None
    if [int(t) for t in final64[len(ids) - 1:-1].argmax(-1)] != greedy:
        return None
    return {"ids": torch.tensor(ids, dtype=torch.int32), "greedy": torch.tensor(greedy, dtype=torch.int32), "logits": logits[-1].clone()}


def goldens(model, lengths, seed):
    double, out = make.in_double(model), {}
    gen = torch.Generator().manual_seed(seed + 2000)
    for n in lengths:
        for attempt in range(60):
            found = answer(model, double, torch.randint(2, model.config.vocab_size, (n,), generator=gen).tolist())
            if found:
                break
        else:
            print(f"  no well-conditioned prompt of {n} tokens", flush=True)
            continue
        i = sum(k.endswith(".ids") for k in out)
        print(f"  prompt {i}: {n} tokens, attempt {attempt + 1}", flush=True)
        out.update({f"p{i}.{k}": v for k, v in found.items()})
    return out


def published(name):
    for old, new in (("model.layers.", "layers."), ("model.embed_tokens.", "embed."), ("model.norm.", "norm."),
                     ("model.hc_head.hc_", "hc_head_")):
        if name.startswith(old):
            return new + name[len(old):]
    return name


F8 = (".wq_a.weight", ".wq_b.weight", ".attn.wkv.weight", ".wo_a.weight", ".wo_b.weight", "shared_experts.w1.weight",
      "shared_experts.w2.weight", "shared_experts.w3.weight")
FLOATS = ("hc_", "attn_sink", ".ape", "gate.bias")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def power(t):
    """2^ceil(log2 t)."""
    return torch.exp2(torch.ceil(torch.log2(t)))


def quantise_f8(w):
    rows, cols = [-(-n // 128) for n in w.shape]
    q, scale, back = torch.empty(w.shape, dtype=torch.float8_e4m3fn), torch.empty(rows, cols), torch.empty(w.shape)
    for r in range(rows):
        for c in range(cols):
            at = slice(r * 128, r * 128 + 128), slice(c * 128, c * 128 + 128)
            scale[r, c] = power(w[at].abs().max() / 448)
            q[at] = (w[at] / scale[r, c]).to(torch.float8_e4m3fn)
            back[at] = q[at].float() * scale[r, c]
    return q, scale.to(torch.float8_e8m0fnu), back


def quantise_f4(w):
    groups = w.view(w.shape[0], -1, 32)
    scale = power(groups.abs().amax(-1, keepdim=True) / 6)
    x = groups / scale
    code = (x.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    back = (E2M1[code] * x.sign() * scale).view(w.shape)
    code = (code + 8 * (x < 0)).view(w.shape).to(torch.uint8)
    return (code[:, 0::2] | code[:, 1::2] << 4).view(torch.int8), scale.squeeze(-1).to(torch.float8_e8m0fnu), back


def release(state):
    """The tensors of a released checkpoint, and the values that they stand for."""
    out, back = {}, {}
    for name, t in state.items():
        how = quantise_f4 if ".ffn.experts." in name else quantise_f8 if name.endswith(F8) else None
        if how:
            out[name], out[name[:-len("weight")] + "scale"], back[name] = how(t)
        else:
            out[name] = t if any(f in name for f in FLOATS) or not t.is_floating_point() else t.to(torch.bfloat16)
            back[name] = out[name].float() if t.is_floating_point() else t
    return out, back


def released(model):
    """The model of the values that a released checkpoint has, and the tensors of that."""
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        file = os.path.join(tmp, "model.safetensors")
        out, back = release(safetensors.torch.load_file(file))
        safetensors.torch.save_file({k: v.contiguous() for k, v in back.items()}, file, metadata={"format": "pt"})
        made = DeepseekV4ForCausalLM.from_pretrained(tmp, dtype=torch.float32, attn_implementation="eager").eval()
    made.config._experts_implementation = "eager"
    return made, {published(k): v.contiguous() for k, v in out.items()}


def save(model, case, path, tensors=None):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        state = safetensors.torch.load_file(os.path.join(tmp, "model.safetensors"))
        config = json.load(open(os.path.join(tmp, "config.json")))
    state = {k: v.to(case.get("store", v.dtype)) if v.is_floating_point() else v for k, v in state.items()}
    if not case.get("as_saved"):
        state = {published(k): v for k, v in state.items()}
        for key in ("layer_types", "compress_rates", "mlp_layer_types", "rope_parameters", "partial_rotary_factor"):
            config.pop(key, None)
        config.update(case["config"])
    if tensors:
        state = tensors
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
        config["expert_dtype"] = "fp4"
    safetensors.torch.save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--from-seed", type=int, default=1)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    cases = {f"random-{s}": random_case(s) for s in range(args.from_seed, args.from_seed + args.random)}
    for name, case in cases.items() or [(n, CASES[n]) for n in args.cases or CASES]:
        print(name, flush=True)
        model, tensors = build(case), None
        if case.get("released"):
            model, tensors = released(model)
        path = os.path.join(args.out, name)
        save(model, case, path, tensors)
        safetensors.torch.save_file(goldens(model, case["lengths"], case["seed"]), os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    main()
