#!/usr/bin/env python3
"""Makes checkpoints of random configurations of every family in random dress, with the answers of transformers, to be compared and not kept.

A configuration is anything that the class of transformers computes and Sluice does not refuse by key: heads, groups, ranks, windows,
patterns of layers, rotated parts, rope scaling. The dress is what a published checkpoint may have besides: shards with an index, tensors
that are not read (pictures, draft layers), other spellings of names, experts fused or one by one, BF16, and weights in F8 and in 4 bits. For
weights in few bits the model's own values are put on a grid that the form holds exactly, so the answers are those of the stored values.
Of equal scores (experts of refused groups, keys without a positive product) torch takes any and Sluice the first; here the classes take the
first too, so that no answer hangs on it.

    vary.py --out DIR [--seed S] [--count N] [--format FORM] [family ...]      (default: 4 of each family)
    build/release/tests/unit/engine/compare_goldens DIR/*

Needs transformers 5.17. A prompt is kept when float64 gives the same greedy tokens and nearly the same logits; a rare one is
still decided by rounding (two scores of an indexer that are almost equal).
"""
import argparse
import json
import os
import random
import re
import shutil
import traceback

import safetensors.torch
import torch
import transformers
from transformers.models.glm5_next import modeling_glm5_next

import make
import make_families
import make_m3
import make_states
import make_v4
from make import plain, yarn

STORES = [torch.float32, torch.bfloat16]


def first_of_equals(x, k, dim=-1, largest=True, sorted=True):  # pylint: disable=redefined-builtin
    """topk that takes the smaller index of equal values."""
    assert largest and sorted is not None
    values, indices = torch.sort(x, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


def lengths_at(r, edges, longest):
    """Prompts at and next to the edges, and a long one."""
    found = {1, longest} | {e + d for e in r.sample(edges, min(2, len(edges))) for d in (-1, 0, 1)}
    return sorted(n for n in found if 1 <= n <= longest)


def ropes(r):
    return r.choice([
        plain(r.choice([1e4, 5e5, 8e6])), yarn(1e4, r.choice([2.0, 8.0, 40.0]), r.choice([32, 64, 128])),
        yarn(1e4, 4.0, 256, mscale=r.choice([0.5, 1.0]), mscale_all_dim=r.choice([0.7, 1.0])),
        dict(yarn(1e4, 4.0, 256), attention_factor=1.2), dict(yarn(1e4, 4.0, 256, mscale_all_dim=1.3), truncate=False),
        dict(rope_type="linear", rope_theta=1e4, factor=r.choice([0.5, 3.0])),
        dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)])


def latent(r):
    """What the families with latent rows and an indexer of tokens share."""
    layers, rope, groups, per = r.randint(1, 6), r.choice([2, 4, 6, 8, 12]), r.choice([1, 1, 2, 3]), r.randint(2, 4)
    taken, heads = r.randint(1, groups), r.choice([1, 2, 3, 5, 18])
    return dict(
        vocab_size=r.randint(60, 140), hidden_size=r.choice([32, 36, 44, 60]), intermediate_size=r.randint(20, 90),
        moe_intermediate_size=r.randint(8, 40), num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        q_lora_rank=r.randint(10, 50), kv_lora_rank=r.randint(8, 50), qk_nope_head_dim=r.randint(2, 20), qk_rope_head_dim=rope,
        v_head_dim=r.randint(4, 30), n_routed_experts=groups * per, n_shared_experts=r.choice([1, 2, 3]),
        num_experts_per_tok=r.randint(1, per * taken), n_group=groups, topk_group=taken, norm_topk_prob=r.random() < 0.5,
        routed_scaling_factor=r.uniform(0.5, 3), index_n_heads=r.choice([1, 2, 4, r.randint(16, 40)]), index_head_dim=rope + r.randint(2, 16),
        index_topk=r.randint(5, 30), max_position_embeddings=1024, rms_norm_eps=r.choice([1e-6, 1e-5, 1e-4]),
        rope_parameters=ropes(r), tie_word_embeddings=r.random() < 0.3,
        mlp_layer_types=[r.choice(["dense", "sparse"]) for _ in range(layers)])


def latent_case(family, r, config, **more):
    return dict(family=family, seed=r.randrange(10**6), lengths=lengths_at(r, [config["index_topk"], 64], r.randint(60, 160)), config=config,
                per_expert=r.random() < 0.6, **more)


def random_hy_v4(r):
    c = latent(r)
    c.update(hc_mult=r.choice([1, 2, 4, 5]), hc_magnitude=r.uniform(0.5, 3), hc_eps=r.choice([0.0, 1e-6, 1e-2]), swiglu_limit=r.choice([0.5, 1.5, 10.0]))
    if r.random() < 0.7:
        c["indexer_types"] = ["full"] + [r.choice(["full", "shared"]) for _ in range(c["num_hidden_layers"] - 1)]
    pairs = r.random() < 0.5
    return latent_case("hy_v4", r, c, interleaved=pairs, pre=r.choice([True, False, "saved"]), add=dict(rope_interleave=pairs))


def random_axk2(r):
    c = latent(r)
    c["gated_norm_rank"] = r.choice([1, 5, 16])
    if c["n_group"] == 1 and r.random() < 0.7:
        c["n_group"] = c["topk_group"] = None
    return latent_case("axk2", r, c, published=r.random() < 0.5, bias=r.choice([0.2, 1.0]))  # below 0, experts of refused groups are as good


def random_v32(r):
    return latent_case("deepseek_v32", r, latent(r))


def random_glm(r):
    c = latent(r)
    how = r.random()
    if how < 0.5:
        c["indexer_types"] = ["full"] + [r.choice(["full", "shared"]) for _ in range(c["num_hidden_layers"] - 1)]
    case = latent_case("glm_moe_dsa", r, c)
    if how > 0.8:
        c.update(index_topk_freq=r.randint(1, 3), index_skip_topk_offset=r.randint(1, 3))
        case["drop"] = ["indexer_types"]
    return case


def random_v4(r):
    return dict(make_v4.random_case(r.randrange(10**6)), family="deepseek_v4")


def random_m3(r):
    case = dict(make_m3.random_case(r.randrange(10**6)), family="minimax_m3_vl")
    c = case["config"]
    if not case["released"] and r.random() < 0.4:
        factor = c["rope_parameters"]["partial_rotary_factor"]
        c["rope_parameters"] = dict(ropes(r), partial_rotary_factor=factor)
    return case


# Places of the axes of each family in a case's config: sizes that forms of few bits want, and what a checkpoint calls experts.
SIZES = {"minimax_m3_vl": ("hidden_size", "intermediate_size", "shared_intermediate_size", "dense_intermediate_size"),
         "qwen4_exp": ("hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size")}
RANDOM = {"deepseek_v32": random_v32, "glm_moe_dsa": random_glm, "hy_v4": random_hy_v4, "axk2": random_axk2, "deepseek_v4": random_v4,
          "minimax_m3_vl": random_m3, "qwen4_exp": make_states.random_qwen4, "glm5_next": make_states.random_glm5}
FORMATS = ["f8", "f8_powers", "f8_channel", "int4", "mxfp4", "nvfp4", "nvfp4_modelopt", "nvfp4_mixed", "f8+int4", "f8+nvfp4", "f8_powers+mxfp4"]


# ---- values that forms of few bits hold exactly ----

WEIGHTS = re.compile(r"(_proj|_proj_qkv|in_proj_z|\.wq|\.wk|\.wkv|\.w[123]|linear_gate|q_gate_proj|wq_[ab]|wo_[ab]|gate_up_proj|down_proj|indexer\.q_proj|"
                     r"indexer\.k_proj)(\.weight)?$")
NOT_WEIGHTS = re.compile(r"(weights_proj|compress|in_proj_[ab]|b_proj\.weight$|shared_expert_gate|ple\.|scorer|index_qk)")


def on_grid(w, r, factor):
    """Three bits and a sign, times a power of two for each row and 32 inputs, times a factor."""
    flat = w.reshape(-1, w.shape[-1])
    gen = torch.Generator().manual_seed(r.randrange(10**6))
    rows = torch.exp2(torch.randint(-1, 2, (flat.shape[0], 1), generator=gen).float())
    cols = torch.exp2(torch.randint(-1, 2, (1, -(-flat.shape[1] // 32)), generator=gen).float()).repeat_interleave(32, 1)[:, :flat.shape[1]]
    unit = 2.0 ** torch.floor(torch.log2(flat.std() / 2)) * factor
    code = torch.randint(-6, 7, flat.shape, generator=gen).float()
    code = torch.where(code.abs() == 5, 4 * code.sign(), code)
    return (code * unit / 2 * rows * cols).reshape(w.shape)


def put_on_grid(model, case, r):
    factor = 1.0 if "powers" in case["format"] or "mxfp4" in case["format"] else r.choice([1.0, 1.25, 1.5])
    case["factor"] = factor
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 and WEIGHTS.search(name) and not NOT_WEIGHTS.search(name):
                p.copy_(on_grid(p, r, factor))


def unit_of(groups, most):
    """The step of which all values of a group are small multiples: [..., 1]."""
    top = groups.abs().amax(-1, keepdim=True)
    unit = torch.zeros_like(top)
    for k in range(most, 0, -1):
        u = torch.where(top > 0, top / k, torch.ones_like(top))
        fits = ((groups / u).round() * u == groups).all(-1, keepdim=True)
        unit = torch.where((unit == 0) & fits, u, unit)
    return unit


def pack_f8(w, factor, powers, channel):
    rows, cols = w.shape
    down, across = (1, cols) if channel else (128, 128)
    blocks = [[w[i:i + down, j:j + across] for j in range(0, cols, across)] for i in range(0, rows, down)]
    scale = torch.tensor([[factor * 2.0 ** torch.ceil(torch.log2(b.abs().max().clamp(min=1e-6) / 448 / factor)) for b in row] for row in blocks])
    wide = scale.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :cols]
    q = (w / wide).to(torch.float8_e4m3fn)
    return (q, scale.to(torch.float8_e8m0fnu) if powers else scale) if (q.float() * wide == w).all() else None


def nibbles(code):
    return (code[:, 0::2] | code[:, 1::2] << 4).to(torch.uint8)


def pack_int4(stem, w, group):
    if w.shape[1] % group or w.shape[1] % 8:
        return None
    groups = w.view(w.shape[0], -1, group)
    unit = unit_of(groups, 7)
    if not (unit > 0).all():
        return None
    code = ((groups / unit).round().to(torch.int64) + 8).view(w.shape[0], -1, 8)
    packed = sum(code[:, :, i] << 4 * i for i in range(8))
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return {stem + "weight_packed": packed, stem + "weight_scale": unit.squeeze(-1).to(torch.bfloat16), stem + "weight_shape": torch.tensor(w.shape)}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def codes_e2m1(x):
    code = (x.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    return (code + 8 * (x < 0)).to(torch.uint8), (E2M1[code] * x.sign() == x).all()


def pack_mxfp4(stem, w, bytes_):
    if w.shape[1] % 32:
        return None
    groups = w.view(w.shape[0], -1, 32)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 6)))
    code, exact = codes_e2m1(groups / scale)
    if not exact:
        return None
    packed, scale = nibbles(code.view(w.shape)), scale.squeeze(-1).to(torch.float8_e8m0fnu)
    return {stem + "weight": packed.view(torch.int8), stem + "scale": scale} if bytes_ else \
        {stem + "weight_packed": packed, stem + "weight_scale": scale.view(torch.uint8)}


def pack_nvfp4(stem, w, modelopt):
    if w.shape[1] % 16:
        return None
    groups = w.view(w.shape[0], -1, 16)
    top = groups.abs().amax(-1, keepdim=True)
    whole = 2.0 ** torch.floor(torch.log2(top.max() / 6))
    for most in (3, 6, 4, 2, 1):  # the largest code of a group; on a grid the least value is half of a code or a multiple
        scale = torch.where(top > 0, top / most / whole, torch.ones_like(top))
        code, exact = codes_e2m1(groups / scale / whole)
        if exact and (scale.to(torch.float8_e4m3fn).float() == scale).all():
            break
    else:
        return None
    scale = scale.to(torch.float8_e4m3fn)
    packed, scale = nibbles(code.view(w.shape)), scale.squeeze(-1)
    return {stem + "weight": packed, stem + "weight_scale": scale, stem + "weight_scale_2": whole.clone()} if modelopt else \
        {stem + "weight_packed": packed, stem + "weight_scale": scale, stem + "weight_global_scale": (1 / whole).reshape(1)}


EXPERT = re.compile(r"experts\.\d+\.(gate_proj|up_proj|down_proj|w[123])\.weight$")
# Refused in F8 by docs/families.md, because the loader divides or reorders their rows.
NOT_F8 = {"qwen4_exp": r"(self_attn\.q_proj|index_qk_proj)", "minimax_m3_vl": r"self_attn\.[kv]_proj", "hy_v4": r"(q_b_proj|kv_a_proj|indexer\.w)", "axk2": r"(q_b_proj|q_gate_proj)"}


def pack_one(case, name, w):
    form, stem = case["format"].split("+"), name[:-len("weight")]
    four = next((f for f in form if f in ("int4", "mxfp4", "nvfp4", "nvfp4_modelopt", "nvfp4_mixed")), None)
    eight = next((f for f in form if f.startswith("f8")), None)
    if four and EXPERT.search(name):
        if four == "int4":
            return pack_int4(stem, w, case["group"])
        return pack_mxfp4(stem, w, eight is not None) if four == "mxfp4" else pack_nvfp4(stem, w, four != "nvfp4")
    if eight and not re.search(NOT_F8.get(case["family"], "$^"), name):
        found = pack_f8(w, case["factor"], eight == "f8_powers", eight == "f8_channel")
        if found:
            ends = "scale" if case["family"] == "deepseek_v4" and eight == "f8_powers" else \
                "weight_scale" if eight == "f8_channel" else "weight_scale_inv"
            return {name: found[0], stem + ends: found[1]}
    return None


def packed(case, state):
    out, n = {}, 0
    for name, t in state.items():
        found = None
        if t.dim() == 2 and name.endswith("weight") and WEIGHTS.search(name) and not NOT_WEIGHTS.search(name):
            found = pack_one(case, name, t.float())
        n += found is not None
        out.update(found or {name: t})
    print(f"  {case['format']}: {n} of {len(state)} tensors packed", flush=True)
    return out


def group(**weights):
    return dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None)


def quantisation(case):
    form = case["format"].split("+")
    if form == ["f8"] or form == ["f8_powers"] or "mxfp4" in form and len(form) == 2:
        out = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
        if "f8_powers" in form:
            out["scale_fmt"] = "ue8m0"
        return out
    if form == ["nvfp4_modelopt"]:
        return dict(quant_method="modelopt", quant_algo="NVFP4", group_size=16, exclude_modules=["lm_head"], kv_cache_scheme=None)
    if form == ["nvfp4_mixed"]:
        nv = dict(quant_algo="NVFP4", group_size=16)
        return dict(quant_method="modelopt", quant_algo="MIXED_PRECISION", ignore=["lm_head"], quantized_layers={
            **{f"model.layers.{i}.mlp.experts": nv for i in range(case["config"]["num_hidden_layers"])},
            "mtp.layers.0.mlp.experts": dict(quant_algo="FP8_PB_WO", group_size=128)})
    kinds = {"f8": group(num_bits=8, type="float", strategy="block", block_structure=[128, 128], symmetric=True, dynamic=False),
             "f8_channel": group(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False),
             "int4": group(num_bits=4, type="int", strategy="group", group_size=case["group"], symmetric=True, dynamic=False),
             "mxfp4": group(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True, dynamic=False),
             "nvfp4": group(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True, dynamic=False)}
    return dict(quant_method="compressed-tensors", format="mixed-precision", quantization_status="compressed", ignore=["lm_head"],
                config_groups={f"group_{i}": kinds[f] for i, f in enumerate(form)})


# ---- models and files of each family ----

def family_build(case):
    if case["family"] in ("deepseek_v32", "glm_moe_dsa"):
        return make.build(case)
    return {"hy_v4": make_families, "axk2": make_families, "deepseek_v4": make_v4, "minimax_m3_vl": make_m3, "qwen4_exp": make_states,
            "glm5_next": make_states}[case["family"]].build(case)


def save_dsa(model, case, path):
    os.makedirs(path)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    if case["config"].get("tie_word_embeddings"):
        state.pop("lm_head.weight")
    if case.get("per_expert"):
        state = make.per_expert(state)
    safetensors.torch.save_file({k: v.contiguous() for k, v in state.items()}, os.path.join(path, "model.safetensors"))
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    for key in case.get("drop", []):
        config.pop(key, None)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


def family_save(model, case, path):
    module = {"hy_v4": make_families, "axk2": make_families, "deepseek_v4": make_v4, "minimax_m3_vl": make_m3, "qwen4_exp": make_states,
              "glm5_next": make_states}.get(case["family"])
    (module.save if module else save_dsa)(model, case, path)


# Tensors that published checkpoints have and text does not read, by their first part.
UNREAD = {
    "deepseek_v32": ["model.layers.{n}.eh_proj.weight", "model.layers.{n}.shared_head.head.weight", "model.layers.{n}.mlp.experts.0.gate_proj.weight"],
    "glm_moe_dsa": ["model.layers.{n}.eh_proj.weight", "model.layers.{n}.self_attn.q_a_proj.weight", "model.layers.{n}.enorm.weight"],
    "hy_v4": ["model.mtp_layers.0.eh_proj.weight", "model.mtp_layers.0.mlp.experts.gate_up_proj"],
    "axk2": ["model.layers.{n}.eh_proj.weight", "model.layers.{n}.input_layernorm.norm.weight"],
    "deepseek_v4": ["mtp.0.e_proj.weight", "mtp.0.h_proj.scale", "mtp.0.attn.wq_a.weight", "mtp.0.ffn.experts.3.w1.weight", "mtp.0.hc_head_fn"],
    "minimax_m3_vl": ["vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", "multi_modal_projector.linear_1.weight",
                      "patch_merge_mlp.linear_1.bias", "mtp.layers.0.eh_proj.weight", "language_model.model.mtp.0.norm.weight"],
    "qwen4_exp": ["model.visual.blocks.0.attn.qkv.weight", "model.visual.patch_embed.proj.bias", "mtp.layers.0.self_attn.q_proj.weight",
                  "mtp.hyper_connection_mixer.hc_norm.weight"],
    "glm5_next": ["model.visual.merger.proj.weight", "model.visual.blocks.0.norm1.weight", "{prefix}layers.{n}.eh_proj.weight",
                  "{prefix}layers.{n}.self_attn.q_proj.weight"],
}


def unread(case, state):
    layers = case["config"]["num_hidden_layers"]
    prefix = "model.language_model." if any(k.startswith("model.language_model.") for k in state) else "model."
    return {name.format(n=layers, prefix=prefix): torch.full((3, 5), float("nan")) for name in UNREAD[case["family"]]}


def mixed(state, r):
    """Tensors of 16 bits in any type that has their values; experts of a layer must be in one, and stay as they are."""
    def one(t):
        kinds = [torch.float32, torch.bfloat16] + [torch.float16] * torch.equal(t.half().to(t.dtype), t)
        return t.to(r.choice(kinds))
    return {k: one(t) if t.dtype == torch.bfloat16 and "experts" not in k else t for k, t in state.items()}


def dress(case, path, r):
    file = os.path.join(path, "model.safetensors")
    state = safetensors.torch.load_file(file)
    config = json.load(open(os.path.join(path, "config.json")))
    if case["format"]:
        state = packed(case, state)
        config["quantization_config"] = quantisation(case)
        if "mxfp4" in case["format"] and "+" in case["format"]:
            config["expert_dtype"] = "fp4"
    elif r.random() < 0.3:
        state = mixed(state, r)
    if r.random() < 0.6:
        state.update(unread(case, state))
    if r.random() < 0.5:
        config.update(transformers_version="5.17.0", torch_dtype="bfloat16", use_cache=True, auto_map={"AutoConfig": "x.Y"}, num_nextn_predict_layers=1)
    os.remove(file)
    shards = r.choice([1, 1, 2, 5])
    names = list(state)
    r.shuffle(names)
    index = {}
    for i in range(shards):
        part = {k: state[k].contiguous() for k in names[i::shards]}
        name = "model.safetensors" if shards == 1 else f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        safetensors.torch.save_file(part, os.path.join(path, name), metadata={"format": "pt"})
        index.update({k: name for k in part})
    if shards > 1:
        with open(file + ".index.json", "w") as f:
            json.dump(dict(metadata=dict(total_size=sum(v.numel() * v.element_size() for v in state.values())), weight_map=index), f)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


# ---- answers ----

@torch.no_grad()
def answer(model, double, ids, cached, length):
    seq, greedy, cache = list(ids), [], None
    for _ in range(length):
        out = model(torch.tensor([seq if cache is None else seq[-1:]]), use_cache=cached, past_key_values=cache)
        cache, row = out.past_key_values if cached else None, out.logits[0, -1]
        top = row.topk(2).values
        if top[0] - top[1] < 1e-3:
            return None
        greedy.append(int(row.argmax()))
        seq.append(greedy[-1])
    final, final64 = (m(torch.tensor([seq]), use_cache=False).logits[0] for m in (model, double))
    if (final.double() - final64).abs().max() > 3e-5 or [int(t) for t in final64[len(ids) - 1:-1].argmax(-1)] != greedy:
        return None
    return {"ids": torch.tensor(ids, dtype=torch.int32), "greedy": torch.tensor(greedy, dtype=torch.int32), "logits": final64[len(ids) - 1].float()}


def goldens(model, case, length):
    double = (make_states if case["family"] in make_states.FAMILIES else make).in_double(model)
    out, gen, n = {}, torch.Generator().manual_seed(case["seed"] + 2000), 0
    for length in case["lengths"]:
        for _ in range(8):
            ids = torch.randint(2, case["config"]["vocab_size"], (length,), generator=gen)
            if case["family"] == "qwen4_exp":
                ids = torch.where(torch.rand(length, generator=gen) < 0.08, torch.ones_like(ids), ids)
            found = answer(model, double, ids.tolist(), case["family"] in make_states.FAMILIES, length)
            if found:
                out.update({f"p{n}.{k}": v for k, v in found.items()})
                n += 1
                break
    print(f"  {n} of {len(case['lengths'])} prompts: {case['lengths']}", flush=True)
    return out


def prepared(family, r, form):
    case = RANDOM[family](r)
    case["format"] = form if form is not None else r.choice([""] * 6 + FORMATS)
    if case["format"]:
        sizes = SIZES.get(family, ("hidden_size", "moe_intermediate_size", "intermediate_size"))
        for key in sizes:
            if key in case["config"]:
                case["config"][key] = r.choice([32, 64, 160])
        if family == "deepseek_v4":
            case["config"]["o_lora_rank"] = 128  # a group of the output ends at a block of F8
        case.update(store=torch.bfloat16, per_expert=True, group=r.choice([16, 32]), spread=0.12)
        if family == "minimax_m3_vl":  # the released spelling knows the plain rope alone
            rope = case["config"]["rope_parameters"]
            case["released"] = True
            case["config"]["rope_parameters"] = dict(plain(rope["rope_theta"]), partial_rotary_factor=rope["partial_rotary_factor"])
        case["config"]["tie_word_embeddings"] = False
    elif family in ("deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2") and r.random() < 0.4:
        case["store"] = torch.bfloat16
    return case


def one(family, seed, out, form, prompts, length):
    r = random.Random(f"{family} {seed}")
    case = prepared(family, r, form)
    if prompts < len(case["lengths"]):
        case["lengths"] = sorted(r.sample(case["lengths"][:-1], prompts - 1) + case["lengths"][-1:])
    path = os.path.join(out, f"{family}-{seed}")
    print(f"{family}-{seed}", flush=True)
    shutil.rmtree(path, ignore_errors=True)
    model = family_build(case)
    if case["format"]:
        put_on_grid(model, case, r)
    if case.get("store"):
        with torch.no_grad():
            for name, p in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n.endswith("_bias")]:
                p.copy_(p.to(case["store"]).float())
    family_save(model, case, path)
    tensors = goldens(model, case, length)
    dress(case, path, r)
    if tensors:
        safetensors.torch.save_file(tensors, os.path.join(path, "golden.safetensors"))
    else:
        shutil.rmtree(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--format", choices=["", *FORMATS])
    parser.add_argument("--prompts", type=int, default=99, help="at most this number for each checkpoint")
    parser.add_argument("--greedy", type=int, default=10, help="tokens after a prompt")
    parser.add_argument("families", nargs="*", choices=[[], *RANDOM])
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.topk = torch.Tensor.topk = first_of_equals
    modeling_glm5_next.chunk_kimi_delta_attention = modeling_glm5_next.recurrent_kimi_delta_attention = make_states.delta_rule
    print("torch", torch.__version__, "transformers", transformers.__version__)
    os.makedirs(args.out, exist_ok=True)
    for seed in range(args.seed, args.seed + args.count):
        for family in args.families or RANDOM:
            try:
                one(family, seed, args.out, args.format, args.prompts, args.greedy)
            except Exception:  # a configuration that the class refuses
                traceback.print_exc(limit=-3)
                shutil.rmtree(os.path.join(args.out, f"{family}-{seed}"), ignore_errors=True)


if __name__ == "__main__":
    main()
