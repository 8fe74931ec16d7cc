"""Weights of a DSA model that computes what a trained Llama model with one key/value head does.

Both attend with keys that are rotated whole and shared by all heads (multi-query attention), so the shared rotated key of latent
attention can be the Llama model's key. The rest is exact as well, up to rounding and the epsilon of a second normalisation:

  input norm     its weight w moves into the projections that read it, so their input x has a mean square of one
  q_a, kv_a      the identity: the norms after them then change nothing, and the latent is x itself
  q_b            W_q diag(w), scaled for the other head size; the part without rotation is zero
  kv_b           zero for the key's part without rotation, W_v diag(w) for every head
  order          Llama rotates pairs (j, j + 32), DSA pairs (2j, 2j + 1)

The indexer keeps its initial weights: it is trained afterwards, to follow this attention.
"""
import torch


def fits(llama, dsa):
    """The reason why the conversion is impossible, or None."""
    want = {"one key/value head": llama.kv_heads == 1, "hidden": llama.hidden == dsa.hidden, "layers": llama.layers == dsa.layers,
            "heads": llama.heads == dsa.heads, "inter": llama.inter == dsa.inter, "theta": llama.theta == dsa.theta,
            "rope = v = head_dim": dsa.rope == dsa.v == llama.head_dim, "q_lora = kv_lora = hidden": dsa.q_lora == dsa.kv_lora == dsa.hidden,
            "vocab": llama.vocab == dsa.vocab}
    wrong = [k for k, ok in want.items() if not ok]
    return f"these differ: {', '.join(wrong)}" if wrong else None


def interleaved(rows, head_dim):
    """Rows [heads * head_dim][n] from the order of pairs (j, j + half) to that of pairs (2j, 2j + 1)."""
    n = rows.shape[-1]
    return rows.view(-1, 2, head_dim // 2, n).transpose(1, 2).reshape(-1, n)


def attention(old, c, prefix, w):
    """The tensors of one layer's self_attn; w is the weight of the input norm."""
    d, h = c.rope, c.heads
    eye, zeros = torch.eye(c.hidden), lambda n: torch.zeros(h, n, c.hidden)
    q, k, v = (old[f"{prefix}{name}_proj.weight"] * w for name in "qkv")
    q = interleaved(q, d) * ((c.nope + d) / d) ** 0.5
    return {"q_a_proj.weight": eye, "q_a_layernorm.weight": torch.ones(c.hidden),
            "q_b_proj.weight": torch.cat((zeros(c.nope), q.view(h, d, -1)), 1).flatten(0, 1),
            "kv_a_proj_with_mqa.weight": torch.cat((eye, interleaved(k, d))), "kv_a_layernorm.weight": torch.ones(c.hidden),
            "kv_b_proj.weight": torch.cat((zeros(c.nope), v.expand(h, -1, -1)), 1).flatten(0, 1),
            "o_proj.weight": old[f"{prefix}o_proj.weight"]}


def from_llama(old, llama, dsa):
    """{name: tensor} of the DSA model, without the indexers, from the Llama model's; raises ValueError when they do not fit."""
    reason = fits(llama, dsa)
    if reason:
        raise ValueError(f"this Llama model does not fit into that DSA model: {reason}")
    old = {k: v.float() for k, v in old.items()}
    new = {k: v for k, v in old.items() if "self_attn" not in k}
    for i in range(dsa.layers):
        layer = f"model.layers.{i}."
        w = old[layer + "input_layernorm.weight"]
        new[layer + "input_layernorm.weight"] = torch.ones_like(w)
        made = attention(old, dsa, layer + "self_attn.", w)
        new.update({layer + "self_attn." + k: v for k, v in made.items()})
    return new
