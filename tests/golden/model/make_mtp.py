#!/usr/bin/env python3
"""Makes the tiny checkpoints with an MTP layer, and what that layer drafts.

transformers leaves MTP layers out, so this is a restatement of the published mathematics in float64: first the layers of the model,
which must give the logits that transformers gave for `ds-yarn` and `glm-share` (their golden files), then with the same functions
the MTP layer. A row of the MTP layer at position p takes the token at p and the hidden state at p - 1, after the norm before the
head; there is no state before the first token, and zero stands for it. A further draft takes the layer's own output, after its norm, and
attends to the tokens that the first draft selected, the worst of them giving way to the drafts where the checkpoint says so
(`index_share_for_mtp_iteration`: `glm-mtp`); otherwise every draft selects for itself.

The weights are random, but attention and experts add little to the residual stream and the MTP layer's projection passes the
token's embedding on, so that a part of the drafts is right.

usage: make_mtp.py [case ...]        (default: all; needs numpy and safetensors)
"""
import json
import os
import shutil
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
DRAFTS, GREEDY = 4, 64
COMMON = dict(bos_token_id=0, eos_token_id=1, hidden_act="silu", attention_bias=False, n_shared_experts=1, norm_topk_prob=True,
              topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1, tie_word_embeddings=False, num_nextn_predict_layers=1)
CASES = {
    "ds-mtp": dict(seed=31, lengths=[1, 16, 17, 60], config=dict(
        architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", vocab_size=96, hidden_size=64, intermediate_size=96,
        moe_intermediate_size=24, num_hidden_layers=3, first_k_dense_replace=1, num_attention_heads=4, num_key_value_heads=4,
        q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, n_group=4,
        topk_group=2, num_experts_per_tok=2, routed_scaling_factor=2.5, index_n_heads=16, index_head_dim=16, index_topk=16,
        max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=10000.0,
        rope_scaling=dict(type="yarn", factor=40.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1, mscale=1.0,
                          mscale_all_dim=1.0))),
    "glm-mtp": dict(seed=32, lengths=[2, 15, 16, 70], copies=True, config=dict(
        architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", vocab_size=100, hidden_size=48, intermediate_size=80,
        moe_intermediate_size=20, num_hidden_layers=4, first_k_dense_replace=2, num_attention_heads=3, num_key_value_heads=3,
        q_lora_rank=36, kv_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=6, n_group=1,
        topk_group=1, num_experts_per_tok=2, routed_scaling_factor=1.5, index_n_heads=16, index_head_dim=16, index_topk=15,
        max_position_embeddings=4096, rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=8000000.0),
        indexer_types=["full", "full", "shared", "shared"], index_share_for_mtp_iteration=True)),
}


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def layer_norm(x, w, b, eps=1e-6):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w + b


def silu(x):
    return x / (1 + np.exp(-x))


class Rope:
    """Angles by position, and the factor of the attention scale."""

    def __init__(self, c):
        dim, p = c["qk_rope_head_dim"], c.get("rope_scaling") or c.get("rope_parameters")
        theta = p.get("rope_theta", c.get("rope_theta"))
        freq = theta ** (-np.arange(0, dim, 2) / dim)
        self.factor = 1.0
        if p.get("type", p.get("rope_type")) == "yarn":
            def where(turns):
                return dim * np.log(p["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta))
            low, high = max(np.floor(where(p["beta_fast"])), 0), min(np.ceil(where(p["beta_slow"])), dim - 1)
            ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
            freq = freq / p["factor"] * ramp + freq * (1 - ramp)
            self.factor = (0.1 * p["mscale_all_dim"] * np.log(p["factor"]) + 1) ** 2
        self.freq = freq

    def turn(self, x, interleaved):
        """x [n][...][dim] at positions 0..n-1."""
        angle = np.arange(x.shape[0])[:, None] * self.freq
        cos, sin = (f(angle).reshape((x.shape[0],) + (1,) * (x.ndim - 2) + (-1,)) for f in (np.cos, np.sin))
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
        out = [a * cos - b * sin, b * cos + a * sin]
        return np.stack(out, -1).reshape(x.shape) if interleaved else np.concatenate(out, -1)


class Model:
    def __init__(self, config, weights):
        self.c, self.w = config, {k: v.astype(np.float64) for k, v in weights.items()}
        self.rope, self.eps = Rope(config), config["rms_norm_eps"]
        self.n = config["num_hidden_layers"]
        types = config.get("indexer_types") or ["full"] * self.n
        self.full = [t == "full" for t in types[:self.n]] + [True]
        self.kept = None
        self.shares, self.first = config.get("index_share_for_mtp_iteration", False), None  # scores of the first draft
        self.gap = np.inf  # the smallest difference at a cut of a selection or of the experts

    def at(self, layer, name):
        return self.w[f"model.layers.{layer}.{name}"]

    def select(self, layer, x, qr):
        c, n = self.c, x.shape[0]
        r, glm = c["qk_rope_head_dim"], c["model_type"] == "glm_moe_dsa"
        q = (qr @ self.at(layer, "self_attn.indexer.wq_b.weight").T).reshape(n, c["index_n_heads"], -1)
        k = layer_norm(x @ self.at(layer, "self_attn.indexer.wk.weight").T, self.at(layer, "self_attn.indexer.k_norm.weight"),
                       self.at(layer, "self_attn.indexer.k_norm.bias"))
        q = np.concatenate([self.rope.turn(q[..., :r], glm), q[..., r:]], -1)
        k = np.concatenate([self.rope.turn(k[..., :r], glm), k[..., r:]], -1)
        w = x @ self.at(layer, "self_attn.indexer.weights_proj.weight").T
        scores = np.einsum("thd,sd->ths", q, k)
        scores = np.einsum("ths,th->ts", np.maximum(scores, 0), w) * (c["index_n_heads"] * c["index_head_dim"]) ** -0.5
        if layer == self.n and self.shares:
            self.first = scores[-1].copy() if self.first is None else np.append(self.first, np.inf)
            scores[-1] = self.first
        mask, top = np.zeros((n, n), bool), c["index_topk"]
        for t in range(n):
            order = np.argsort(-scores[t, :t + 1], kind="stable")
            mask[t, order[:top]] = True
            if t + 1 > top and scores[t, order[top]] < np.inf:
                self.gap = min(self.gap, scores[t, order[top - 1]] - scores[t, order[top]])
        return mask

    def attention(self, layer, x):
        c, n = self.c, x.shape[0]
        heads, nope, r, lora = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        qr = rms(x @ self.at(layer, "self_attn.q_a_proj.weight").T, self.at(layer, "self_attn.q_a_layernorm.weight"), 1e-6)
        q = (qr @ self.at(layer, "self_attn.q_b_proj.weight").T).reshape(n, heads, -1)
        kv = x @ self.at(layer, "self_attn.kv_a_proj_with_mqa.weight").T
        latent = rms(kv[:, :lora], self.at(layer, "self_attn.kv_a_layernorm.weight"), 1e-6)
        both = (latent @ self.at(layer, "self_attn.kv_b_proj.weight").T).reshape(n, heads, -1)
        rope_k = self.rope.turn(kv[:, lora:], True)
        if self.full[layer]:
            self.kept = self.select(layer, x, qr)
        scores = np.einsum("thd,shd->hts", q[..., :nope], both[..., :nope])
        scores += np.einsum("thd,sd->hts", self.rope.turn(q[..., nope:], True), rope_k)
        scores = np.where(self.kept, scores * (nope + r) ** -0.5 * self.rope.factor, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), both[..., nope:])
        return out.reshape(n, -1) @ self.at(layer, "self_attn.o_proj.weight").T

    def mlp(self, layer, name, x):
        gate, up, down = (self.at(layer, f"mlp.{name}{part}_proj.weight") for part in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def experts(self, layer, x):
        c, out = self.c, self.mlp(layer, "shared_experts.", x)
        s = 1 / (1 + np.exp(-(x @ self.at(layer, "mlp.gate.weight").T)))
        choice = s + self.at(layer, "mlp.gate.e_score_correction_bias")
        groups, k = c["n_group"], c["num_experts_per_tok"]
        for t in range(x.shape[0]):
            row = choice[t].copy()
            if groups > 1:
                best = np.sort(row.reshape(groups, -1), -1)[:, -2:].sum(-1)
                order = np.argsort(-best, kind="stable")
                self.gap = min(self.gap, best[order[c["topk_group"] - 1]] - best[order[c["topk_group"]]])
                row.reshape(groups, -1)[order[c["topk_group"]:]] = -np.inf
            order = np.argsort(-row, kind="stable")
            self.gap = min(self.gap, row[order[k - 1]] - row[order[k]])
            weights = s[t, order[:k]] / s[t, order[:k]].sum() * c["routed_scaling_factor"]
            for e, weight in zip(order[:k], weights):
                out[t] += weight * self.mlp(layer, f"experts.{e}.", x[t:t + 1])[0]
        return out

    def layer(self, layer, x):
        x = x + self.attention(layer, rms(x, self.at(layer, "input_layernorm.weight"), self.eps))
        h = rms(x, self.at(layer, "post_attention_layernorm.weight"), self.eps)
        dense = layer < self.c["first_k_dense_replace"]
        return x + (self.mlp(layer, "", h) if dense else self.experts(layer, h))

    def hidden(self, ids):
        x = self.w["model.embed_tokens.weight"][ids]
        for layer in range(self.n):
            x = self.layer(layer, x)
        return rms(x, self.w["model.norm.weight"], self.eps)

    def logits(self, hidden):
        return hidden @ self.w["lm_head.weight"].T

    def draft(self, ids, states):
        """Hidden states of the MTP layer for tokens ids, of which states[p] is that before the token at p."""
        e = rms(self.w["model.embed_tokens.weight"][ids], self.at(self.n, "enorm.weight"), self.eps)
        h = rms(states, self.at(self.n, "hnorm.weight"), self.eps)
        x = self.layer(self.n, np.concatenate([e, h], -1) @ self.at(self.n, "eh_proj.weight").T)
        return rms(x, self.at(self.n, "shared_head.norm.weight"), self.eps)


def compare_with_transformers(case):
    """The functions above are those of transformers: the logits of all short prompts."""
    path = os.path.join(HERE, case)
    with open(os.path.join(path, "config.json")) as f:
        m = Model(json.load(f), load_file(os.path.join(path, "model.safetensors")))
    golden = load_file(os.path.join(path, "golden.safetensors"))
    for i in range(3):
        worst = np.abs(m.logits(m.hidden(golden[f"p{i}.ids"])) - golden[f"p{i}.all_logits"]).max()
        assert worst < 3e-5, (case, i, worst)
    print(f"{case}: as transformers", flush=True)


def make_weights(c, seed, copies):
    gen, w = np.random.default_rng(seed), {}
    hidden, heads, n = c["hidden_size"], c["num_attention_heads"], c["num_hidden_layers"]
    full = [t == "full" for t in c.get("indexer_types", ["full"] * n)] + [True]

    def put(name, *shape, spread=0.15, mean=0.0):
        w[name] = (mean + spread * gen.standard_normal(shape)).astype(np.float32)

    def put_mlp(p, inter):
        put(p + "gate_proj.weight", inter, hidden)
        put(p + "up_proj.weight", inter, hidden)
        put(p + "down_proj.weight", hidden, inter, spread=0.02)

    put("model.embed_tokens.weight", c["vocab_size"], hidden, spread=1.0)
    put("lm_head.weight", c["vocab_size"], hidden)
    put("model.norm.weight", hidden, spread=0.3, mean=1.0)
    for l in range(n + 1):
        p = f"model.layers.{l}."
        a = p + "self_attn."
        for name, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden),
                           ("self_attn.q_a_layernorm", c["q_lora_rank"]), ("self_attn.kv_a_layernorm", c["kv_lora_rank"])):
            put(f"{p}{name}.weight", size, spread=0.3, mean=1.0)
        put(a + "q_a_proj.weight", c["q_lora_rank"], hidden)
        put(a + "q_b_proj.weight", heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["q_lora_rank"])
        put(a + "kv_a_proj_with_mqa.weight", c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden)
        put(a + "kv_b_proj.weight", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        put(a + "o_proj.weight", hidden, heads * c["v_head_dim"], spread=0.02)
        if full[l]:
            put(a + "indexer.wq_b.weight", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            put(a + "indexer.wk.weight", c["index_head_dim"], hidden)
            put(a + "indexer.k_norm.weight", c["index_head_dim"], spread=0.3, mean=1.0)
            put(a + "indexer.k_norm.bias", c["index_head_dim"], spread=0.3)
            put(a + "indexer.weights_proj.weight", c["index_n_heads"], hidden)
        if l < c["first_k_dense_replace"]:
            put_mlp(p + "mlp.", c["intermediate_size"])
            continue
        put(p + "mlp.gate.weight", c["n_routed_experts"], hidden)
        put(p + "mlp.gate.e_score_correction_bias", c["n_routed_experts"], spread=0.2)
        put_mlp(p + "mlp.shared_experts.", c["moe_intermediate_size"])
        for e in range(c["n_routed_experts"]):
            put_mlp(f"{p}mlp.experts.{e}.", c["moe_intermediate_size"])
    p = f"model.layers.{n}."
    put(p + "enorm.weight", hidden, spread=0.1, mean=1.0)
    put(p + "hnorm.weight", hidden, spread=0.1, mean=1.0)
    put(p + "eh_proj.weight", hidden, 2 * hidden, spread=0.02)
    w[p + "eh_proj.weight"][:, :hidden] += np.eye(hidden, dtype=np.float32)
    w[p + "shared_head.norm.weight"] = w["model.norm.weight"].copy()
    if copies:  # as in checkpoints of V3
        w[p + "embed_tokens.weight"] = w["model.embed_tokens.weight"].copy()
        w[p + "shared_head.head.weight"] = w["lm_head.weight"].copy()
    return w


def answer(m, prompt):
    """None when rounding in float32 could decide something."""
    m.gap, ids, greedy = np.inf, list(prompt), []

    def best(row):
        order = np.argsort(-row)
        m.gap = min(m.gap, row[order[0]] - row[order[1]])
        return int(order[0])
    for _ in range(GREEDY):
        greedy.append(best(m.logits(m.hidden(ids))[-1]))
        ids.append(greedy[-1])
    ids, drafts, logits, m.first = list(prompt) + greedy[:1], [], [], None
    states = np.concatenate([np.zeros((1, m.c["hidden_size"])), m.hidden(ids)[:len(prompt)]])
    for _ in range(DRAFTS):
        out = m.draft(ids, states)
        logits.append(m.logits(out)[-1])
        drafts.append(best(logits[-1]))
        ids.append(drafts[-1])
        states = np.concatenate([states, out[-1:]])
    if m.gap < 1e-4:
        return None
    return {"ids": np.array(prompt, np.int32), "greedy": np.array(greedy, np.int32), "drafts": np.array(drafts, np.int32),
            "draft_logits": np.array(logits, np.float32)}


def make(name):
    case, path = CASES[name], os.path.join(HERE, name)
    c = {**COMMON, **case["config"]}
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
        f.write("\n")
    weights, out, right = make_weights(c, case["seed"], case.get("copies")), {}, 0
    save_file(weights, os.path.join(path, "model.safetensors"))
    m, gen = Model(c, weights), np.random.default_rng(case["seed"] + 2000)
    for i, n in enumerate(case["lengths"]):
        found = None
        while not found:
            found = answer(m, gen.integers(2, c["vocab_size"], n).tolist())
        right += int(found["drafts"][0] == found["greedy"][1])
        out.update({f"p{i}.{k}": v for k, v in found.items()})
        print(f"{name}: prompt of {n} tokens, drafts {found['drafts']}, greedy {found['greedy'][1:5]}", flush=True)
    save_file(out, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    for done in ("ds-yarn", "glm-share"):
        compare_with_transformers(done)
    for wanted in sys.argv[1:] or CASES:
        make(wanted)
