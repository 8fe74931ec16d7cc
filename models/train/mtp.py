#!/usr/bin/env python3
"""Trains an MTP layer (multi-token prediction) for a finished DSA checkpoint, whose own weights stay as they are.

    mtp.py CHECKPOINT --out DIR [--minutes 3] [--seed 1]

The layer is one more of the model's layers, with a dense MLP and an indexer of its own, and begins as a copy of the last one. At
position p it reads the token at p and the hidden state at p - 1 (after the norm before the head; zero before the first token), and
learns the distribution that the model gives for p + 1: Kullback-Leibler divergence, in which answers count as in train.py. A
further draft reads the layer's own state, so it is unrolled DEPTH times, with a weight that falls by half each time. Its indexer
follows its attention, as in train.py.

DIR becomes the checkpoint with the layer: the weights of before as the first of two files, the layer as the second, so that what
reads no MTP layer finds the model unchanged. training.json gets what the last batches said: for how many tokens of answers the
first draft was the model's own choice, the first two, and so on.
"""
import argparse
import collections
import dataclasses
import json
import math
import pathlib
import random
import shutil
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from documents import Sizes, random_plan  # noqa: E402
from feed import Feeder  # noqa: E402
from language import Language  # noqa: E402
from nets import Config, Layer, Linear, Net, RMSNorm, Rows  # noqa: E402

DEPTH = 4
LENGTHS = {256: 0.4, 1024: 0.4, 4096: 0.2}
RATE, TEXT_WEIGHT, AHEAD, LAST = 2e-3, 0.03, 32, 50
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class Draft(nn.Module):
    """The MTP layer. Its names are those of checkpoints; `layer` has none of its own."""

    def __init__(self, net):
        super().__init__()
        c = net.c
        self.enorm, self.hnorm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.eh_proj = Linear(2 * c.hidden, c.hidden)
        self.layer, self.norm = Layer(c), RMSNorm(c.hidden, c.eps)
        with torch.no_grad():
            half = 0.5 * torch.eye(c.hidden)
            self.eh_proj.weight.copy_(torch.cat((half, half), 1))
            self.layer.load_state_dict(net.model.layers[-1].state_dict())
            self.norm.load_state_dict(net.model.norm.state_dict())

    def forward(self, embedded, states, cos, sin, rows):
        """Hidden states [B][T][hidden] after the layer's norm. states[p]: of the position before p."""
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(states)), -1))
        return self.norm(self.layer(x, cos, sin, rows, False))

    def tensors(self, index):
        names = {"layer.": "", "norm.": "shared_head.norm."}
        out = {}
        for name, w in self.state_dict().items():
            for old, new in names.items():
                name = new + name[len(old):] if name.startswith(old) else name
            out[f"model.layers.{index}.{name}"] = w.detach().to("cpu", torch.bfloat16).contiguous()
        return out


def moved(states):
    """What position p reads: the state of p - 1, and zero before the first token."""
    return F.pad(states[:, :-1], (0, 0, 1, 0))


class Trainer:
    def __init__(self, args):
        self.args, self.device = args, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        gpu = self.device.type == "cuda"
        self.dtype, self.tokens = torch.bfloat16 if gpu else torch.float32, args.tokens or (32768 if gpu else 2048)
        self.training = json.loads((args.checkpoint / "training.json").read_text(encoding="utf-8"))
        config = Config(**self.training["dimensions"])
        self.feeder = Feeder(config.language(), 12 if gpu else 0, self.device)
        self.lang = Language(config.language())
        self.sizes, self.rng, self.ahead, self.asked = Sizes(self.lang), random.Random(args.seed), collections.deque(), 0
        torch.manual_seed(args.seed)
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.net = Net(dataclasses.replace(config, vocab=self.lang.vocab_size))
        weights = {}
        for path in sorted(args.checkpoint.glob("model*.safetensors")):
            weights.update(load_file(path))
        self.net.load_state_dict({k: w for k, w in weights.items() if not k.startswith(f"model.layers.{config.layers}.")})
        self.draft = Draft(self.net).to(self.device)
        self.net = self.net.to(self.device).requires_grad_(False)
        self.chance = torch.Generator(device=self.device)
        self.chance.manual_seed(args.seed)
        groups = [{"params": [p for p in self.draft.parameters() if (p.ndim < 2) == plain], "weight_decay": 0.0 if plain else 0.05}
                  for plain in (False, True)]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))
        self.last = collections.deque(maxlen=LAST)

    def batch(self):
        while len(self.ahead) <= AHEAD:
            length = self.rng.choices(list(LENGTHS), list(LENGTHS.values()))[0] if self.device.type == "cuda" else 256
            self.asked += 1
            plan = random_plan(self.sizes, self.rng, length)
            self.ahead.append(self.feeder.submit(plan, max(1, self.tokens // length), self.args.seed * 1000000007 + self.asked))
        return self.feeder.get(self.ahead.popleft())

    def rows(self, grades):
        """Queries whose attention the indexer follows: a half of them where an answer is predicted."""
        weight = 1.0 + (grades > 0).float() * grades.shape[1] / 8
        return Rows(torch.multinomial(weight, min(64, grades.shape[1] // 2), replacement=True, generator=self.chance))

    def gradients(self, ids, grades):
        t = ids.shape[1]
        cos, sin = self.net.cos[:t].to(self.dtype), self.net.sin[:t].to(self.dtype)
        with torch.no_grad():
            states, embedded = self.net(ids, self.dtype), self.net.model.embed_tokens(ids).to(self.dtype)
            wanted = self.net.lm_head(states).float().log_softmax(-1)
            chosen, answers = wanted.argmax(-1)[:, :-1], grades[:, 1:] > 0
            weight = torch.where(answers, 1.0, TEXT_WEIGHT) * (ids[:, 1:] != self.lang.pad)
        loss, all_right, right = 0, answers, []
        for depth in range(DEPTH):
            rows = self.rows(grades) if depth == 0 else None
            states = self.draft(embedded, moved(states), cos, sin, rows)
            got = self.net.lm_head(states).float().log_softmax(-1)
            each = (wanted.exp() * (wanted - got)).sum(-1)[:, :-1]
            loss = loss + 0.5 ** depth * (each * weight).sum() / weight.sum()
            if rows:
                loss = loss + rows.loss
            with torch.no_grad():  # the drafts that lead to a token were for the tokens before it
                same = got.argmax(-1)[:, :-1] == chosen
                all_right = same & (all_right if depth == 0 else F.pad(all_right[:, :-1], (1, 0)) & answers)
                begun = F.pad(answers[:, :-depth], (depth, 0)) & answers if depth else answers
                right.append(all_right.sum() / begun.sum().clamp(min=1))
        loss.backward()
        return loss.detach(), torch.stack(right)

    def run(self):
        begun, steps, seconds = time.time(), 0, 60 * self.args.minutes
        while (done := (time.time() - begun) / seconds) < 1:
            ids, grades = self.batch()
            self.optimizer.zero_grad(set_to_none=True)
            loss, right = self.gradients(ids, grades)
            torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = RATE * min(1, (steps + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            self.optimizer.step()
            self.last.append(right)
            steps += 1
            if steps % 100 == 0:
                print(f"[{time.time() - begun:6.1f}s] step {steps} loss {loss.item():.4f} {self.accepted()}", flush=True)
        self.feeder.close()
        self.save({"seed": self.args.seed, "steps": steps, "tokens_per_step": self.tokens, "torch": torch.__version__,
                   "accepted": self.accepted()})

    def accepted(self):
        """For how many tokens of answers the first draft stands, the first two, ..: the mean of the last batches."""
        return [round(x, 4) for x in torch.stack(list(self.last)).mean(0).tolist()]

    def save(self, record):
        out, index = self.args.out, self.net.c.layers
        out.mkdir(parents=True, exist_ok=True)
        for path in self.args.checkpoint.iterdir():
            if path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
                shutil.copyfile(path, out / path.name)
        model = self.args.checkpoint / FILES[0]
        shutil.copyfile(model if model.exists() else self.args.checkpoint / "model.safetensors", out / FILES[0])
        layer = self.draft.tensors(index)
        save_file(layer, str(out / FILES[1]), metadata={"format": "pt"})
        (out / FILES[1]).chmod(0o644)  # the library makes it private
        names = {name: FILES[0] for name in load_file(out / FILES[0])} | {name: FILES[1] for name in layer}
        size = sum((out / f).stat().st_size for f in FILES)
        for name, value in (("model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}),
                            ("config.json", json.loads((out / "config.json").read_text(encoding="utf-8")) | {"num_nextn_predict_layers": 1}),
                            ("training.json", self.training | {"mtp": record})):
            (out / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", type=pathlib.Path)
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--minutes", type=float, default=3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--tokens", type=int, help="tokens per step")
    Trainer(ap.parse_args()).run()


if __name__ == "__main__":
    main()
