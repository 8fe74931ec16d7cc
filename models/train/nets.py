"""The two architectures in plain PyTorch, with the tensor names of their Hugging Face checkpoints.

Llama: grouped-query attention. DSA: DeepSeek-V3.2's latent attention (expanded to heads, as training does it) with its
lightning indexer, and dense MLPs in every layer. The conventions are those of transformers' DeepseekV32: interleaved RoPE in
attention, half-split RoPE on the first dimensions of the index vectors, ReLU of the raw products, signed weights.

Weights are kept in float32 and every layer computes in the dtype of its input; in training on a GPU that is bf16.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    family: str  # "llama" or "dsa"
    vocab: int = 0
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    inter: int = 320
    theta: float = 500000.0
    kv_heads: int = 2  # llama
    head_dim: int = 64
    q_lora: int = 128  # dsa
    kv_lora: int = 128
    nope: int = 32
    rope: int = 32
    v: int = 32
    index_heads: int = 8
    index_dim: int = 64
    topk: int = 256
    eps: float = 1e-6
    max_positions: int = 8192
    chat: str = ""  # whose chat format the documents have; "": the family's

    def language(self):
        return self.chat or self.family

    def rotary(self):
        return self.head_dim if self.family == "llama" else self.rope


class Linear(nn.Linear):
    def __init__(self, n_in, n_out, gain=1.0):
        super().__init__(n_in, n_out, bias=False)
        nn.init.normal_(self.weight, std=gain / math.sqrt(n_in))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


def rotate_halves(x, cos, sin):
    """RoPE on pairs (j, j + half). x [..][T][d], cos and sin [T][d / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rotate_pairs(x, cos, sin):
    """RoPE on pairs (2j, 2j + 1), result in the order of rotate_halves(), which no product of two of them sees."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def gated(gate, up):
    return F.silu(gate) * up


class Rows:
    """What the indexer's loss needs: positions [B][R] of queries, and the sum over layers."""

    def __init__(self, positions):
        self.positions, self.loss, self.recall, self.layers = positions, 0.0, 0.0, 0


class LlamaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = Linear(c.hidden, c.heads * c.head_dim)
        self.k_proj = Linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = Linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = Linear(c.heads * c.head_dim, c.hidden, 1 / math.sqrt(2 * c.layers))

    def forward(self, x, cos, sin, rows, sparse):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.c.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate_halves(q, cos, sin), rotate_halves(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))


class Indexer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wq_b = Linear(c.q_lora, c.index_heads * c.index_dim)
        self.wk = Linear(c.hidden, c.index_dim)
        self.k_norm = LayerNorm(c.index_dim, eps=1e-6)
        self.weights_proj = Linear(c.hidden, c.index_heads)

    def keys(self, x, cos, sin):
        """[B][T][index_dim]"""
        k = self.k_norm(self.wk(x))
        return torch.cat((rotate_halves(k[..., : self.c.rope], cos, sin), k[..., self.c.rope:]), -1)

    def scores(self, x, q_low, cos, sin, keys):
        """[B][R][T] float32 of the queries x [B][R][hidden], q_low [B][R][q_lora]; cos, sin [B or 1][R][rope / 2]."""
        b, r, _ = x.shape
        q = self.wq_b(q_low).view(b, r, -1, self.c.index_dim)
        cos, sin = cos[:, :, None], sin[:, :, None]
        q = torch.cat((rotate_halves(q[..., : self.c.rope], cos, sin), q[..., self.c.rope:]), -1)
        s = torch.matmul(q.reshape(b, -1, self.c.index_dim), keys.transpose(1, 2)).view(b, r, -1, keys.shape[1])
        w = self.weights_proj(x).float() * (self.c.index_heads * self.c.index_dim) ** -0.5
        return (F.relu(s).float() * w[..., None]).sum(2)


class LatentAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_a_proj = Linear(c.hidden, c.q_lora)
        self.q_a_layernorm = RMSNorm(c.q_lora, c.eps)
        self.q_b_proj = Linear(c.q_lora, c.heads * (c.nope + c.rope))
        self.kv_a_proj_with_mqa = Linear(c.hidden, c.kv_lora + c.rope)
        self.kv_a_layernorm = RMSNorm(c.kv_lora, c.eps)
        self.kv_b_proj = Linear(c.kv_lora, c.heads * (c.nope + c.v))
        self.o_proj = Linear(c.heads * c.v, c.hidden, 1 / math.sqrt(2 * c.layers))
        self.indexer = Indexer(c)

    def forward(self, x, cos, sin, rows, sparse):
        c, (b, t, _) = self.c, x.shape
        q_low = self.q_a_layernorm(self.q_a_proj(x))
        q = self.q_b_proj(q_low).view(b, t, c.heads, -1).transpose(1, 2)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((c.kv_lora, c.rope), -1)
        k, v = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, t, c.heads, -1).transpose(1, 2).split((c.nope, c.v), -1)
        q = torch.cat((q[..., : c.nope], rotate_pairs(q[..., c.nope:], cos, sin)), -1)
        k_rope = rotate_pairs(k_rope, cos, sin)[:, None].expand(-1, c.heads, -1, -1)
        k = torch.cat((k, k_rope), -1)
        if rows is not None:
            self.follow(x.detach(), q_low.detach(), q.detach(), k.detach(), cos, sin, rows)
        mask = self.selection(x, q_low, cos, sin) if sparse and t > c.topk else None
        v = F.pad(v, (0, q.shape[-1] - c.v))  # the fast kernels want heads of one size
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)[..., : c.v]
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))

    def follow(self, x, q_low, q, k, cos, sin, rows):
        """Adds KL(attention summed over heads || softmax of the index scores) of the chosen rows, DeepSeek-V3.2's
        objective of the dense warm-up; nothing flows into the rest of the model."""
        at, t = rows.positions, x.shape[1]
        pick = lambda y: y.gather(1, at[..., None].expand(-1, -1, y.shape[-1]))
        seen = torch.arange(t, device=x.device) <= at[..., None]
        with torch.no_grad():
            qr = q.gather(2, at[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[-1]))
            logits = torch.matmul(qr, k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
            p = logits.masked_fill(~seen[:, None], float("-inf")).softmax(-1).mean(1)
        scores = self.indexer.scores(pick(x), pick(q_low), cos[at], sin[at], self.indexer.keys(x, cos, sin))
        scores = scores.masked_fill(~seen, float("-inf"))
        log_q = scores.log_softmax(-1).masked_fill(~seen, 0)
        rows.loss = rows.loss + (torch.xlogy(p, p) - p * log_q).sum(-1).mean()
        with torch.no_grad():
            rows.recall += p.gather(2, scores.topk(min(self.c.topk, t), -1).indices).sum(-1).mean()
        rows.layers += 1

    @torch.no_grad()
    def selection(self, x, q_low, cos, sin, block=512):
        """[B][1][T][T] bool: the index_topk keys of every query."""
        b, t, _ = x.shape
        keys = self.indexer.keys(x, cos, sin)
        out = torch.zeros(b, 1, t, t, dtype=torch.bool, device=x.device)
        for i in range(0, t, block):
            part = slice(i, min(i + block, t))
            end = part.stop
            s = self.indexer.scores(x[:, part], q_low[:, part], cos[None, part], sin[None, part], keys[:, :end])
            at = torch.arange(i, end, device=x.device)[:, None]
            seen = torch.arange(end, device=x.device) <= at
            s = s.masked_fill(~seen, float("-inf"))
            best = s.topk(min(self.c.topk, end), -1, sorted=False).indices
            out[:, 0, part, :end] = torch.zeros_like(s, dtype=torch.bool).scatter_(2, best, True) & seen
        return out


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = Linear(c.hidden, c.inter), Linear(c.hidden, c.inter)
        self.down_proj = Linear(c.inter, c.hidden, 1 / math.sqrt(2 * c.layers))

    def forward(self, x):
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.self_attn = LlamaAttention(c) if c.family == "llama" else LatentAttention(c)
        self.mlp = MLP(c)

    def forward(self, x, cos, sin, rows, sparse):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, rows, sparse)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)


class Net(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.model = c, Body(c)
        self.lm_head = Linear(c.hidden, c.vocab, 0.5)
        freq = c.theta ** (-torch.arange(0, c.rotary(), 2, dtype=torch.float64) / c.rotary())
        angles = torch.arange(c.max_positions, dtype=torch.float64)[:, None] * freq
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids, dtype, rows=None, sparse=False):
        """Hidden states [B][T][hidden] before the head. rows: also compute the indexer's loss (DSA). sparse: every
        query attends to the keys that the indexer selects (DSA)."""
        t = ids.shape[1]
        cos, sin = self.cos[:t].to(dtype), self.sin[:t].to(dtype)
        x = self.model.embed_tokens(ids).to(dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, rows, sparse)
        return self.model.norm(x)

    def indexer_parameters(self):
        return [p for n, p in self.named_parameters() if ".indexer." in n]

    def hf_config(self, lang):
        """config.json of the checkpoint."""
        c = self.c
        common = {"bos_token_id": lang.bos, "pad_token_id": lang.pad, "dtype": "bfloat16", "vocab_size": c.vocab,
                  "eos_token_id": sorted({lang.eos, lang.end}) if lang.end != lang.eos else lang.eos,
                  "hidden_size": c.hidden, "intermediate_size": c.inter, "num_hidden_layers": c.layers,
                  "num_attention_heads": c.heads, "hidden_act": "silu", "rms_norm_eps": c.eps, "attention_bias": False,
                  "mlp_bias": False, "max_position_embeddings": c.max_positions, "tie_word_embeddings": False,
                  "rope_parameters": {"rope_type": "default", "rope_theta": c.theta}, "use_cache": True}
        if c.family == "llama":
            return common | {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                             "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim}
        return common | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
                         "num_key_value_heads": c.heads, "q_lora_rank": c.q_lora, "kv_lora_rank": c.kv_lora,
                         "qk_nope_head_dim": c.nope, "qk_rope_head_dim": c.rope, "qk_head_dim": c.nope + c.rope,
                         "head_dim": c.rope, "v_head_dim": c.v, "index_n_heads": c.index_heads,
                         "index_head_dim": c.index_dim, "index_topk": c.topk, "first_k_dense_replace": c.layers,
                         "mlp_layer_types": ["dense"] * c.layers, "layer_types": ["deepseek_sparse_attention"] * c.layers,
                         "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1,
                         "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                         "routed_scaling_factor": 1.0}
