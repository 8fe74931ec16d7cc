#!/usr/bin/env python3
"""Trains one variant (variants.py) on generated documents within a time, and writes its checkpoint.

    train.py --variant llama-a --minutes 9 --out DIR [--seed 1] [--start-from CHECKPOINT] [--replay training.json]

Stages: short documents until the model retrieves (or a share of the time has passed), then longer ones. A DSA model learns
with all keys first; its indexer follows the attention from the second stage on (from the start if the weights were trained
before); in the last part every query attends to the keys that its indexer selects, as the finished model does.

The schedule follows the clock, so that the time is used on any machine: progress goes from 0 to 1 in TICKS steps, and what
happened in each tick (stage, number of training steps) is written to training.json. --replay repeats a recorded run without
looking at the clock: same batches, same learning rates. Two such runs differ only where the device's own sums are not
deterministic.

A checkpoint is written every minute to DIR/VARIANT (and DIR/VARIANT.tar), so a run that is cut leaves a result.
"""
import argparse
import collections
import dataclasses
import json
import math
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import export  # noqa: E402
from documents import VALUE_GRADE, Plan, Sizes, random_plan  # noqa: E402
from evaluate import evaluate, table  # noqa: E402
from feed import Feeder  # noqa: E402
from language import Language  # noqa: E402
from latent import from_llama  # noqa: E402
from nets import Config, Net, Rows  # noqa: E402
from variants import SMALL, VARIANTS  # noqa: E402

TICKS = 400
# Lengths and their shares of the steps; LATEST: the share of the time after which each stage begins at the latest.
STAGES = [{128: 0.4, 256: 0.6}, {256: 0.3, 1024: 0.7}, {256: 0.1, 1024: 0.3, 4096: 0.6},
          {256: 0.1, 1024: 0.2, 4096: 0.4, 8192: 0.3}]
# DSA retrieves later, and what follows the first stage costs more because the indexer is trained as well.
LATEST = {"llama": (0, 0.40, 0.55, 0.72), "dsa": (0, 0.55, 0.68, 0.80)}
SPARSE_LENGTHS = {1024: 0.3, 4096: 0.5, 8192: 0.2}
SPARSE_FROM = 0.85   # DSA: the last part of the time, in which attention is selected
STAGE_TICKS = 16     # least ticks of a stage
REPEATS = 0.3        # share of batches of the first stage that only repeat words: retrieval begins much earlier with them
AHEAD = 32           # batches that are being made ahead of training
INDEXER_RATE = 1.5e-3  # peak, where the rest of the model was trained before
GOOD = 0.97          # share of right value tokens at a stage's longest documents that ends it
SMALL_STAGES = [({128: 1}, 0), ({128: 0.5, 256: 0.5}, 0.75)]


class Schedule:
    """Progress, and the stage: by the clock, or as recorded."""

    def __init__(self, start, seconds, stages, record=None):
        self.start, self.seconds, self.stages = start, seconds, stages
        self.record, self.replay = [], record
        self.tick = self.stage = self.begun = self.left = 0
        self.accuracy = {}

    def saw(self, length, accuracy):
        """Running share of right value tokens at a length."""
        if math.isnan(accuracy):
            return
        old = self.accuracy.get(length, accuracy)
        self.accuracy[length] = 0.8 * old + 0.2 * accuracy

    def next(self):
        """Moves on by one step; False at the end. Progress is a function of the tick alone."""
        if self.replay is not None:
            while self.left == 0:
                if self.tick >= len(self.replay):
                    return False
                self.stage, self.left = self.replay[self.tick]
                self.tick += 1
            self.left -= 1
        else:
            tick = int(TICKS * (time.time() - self.start) / self.seconds)
            if tick >= TICKS:
                return False
            self._advance(tick)
            self.tick = tick + 1
        if len(self.record) < self.tick:
            self.record += [[self.stage, 0] for _ in range(self.tick - len(self.record))]
            self.record[-1][0] = self.stage
        self.record[-1][1] += 1
        return True

    def _advance(self, tick):
        if self.tick == tick + 1 or self.stage + 1 >= len(self.stages):
            return
        good = self.accuracy.get(max(self.stages[self.stage][0]), 0) >= GOOD and tick - self.begun >= STAGE_TICKS
        if good or tick >= self.stages[self.stage + 1][1] * TICKS:
            self.stage, self.begun = self.stage + 1, tick

    def progress(self):
        return (self.tick - 1) / TICKS


class Trainer:
    def __init__(self, args):
        small = args.variant in SMALL
        config, self.rate = (SMALL if small else VARIANTS)[args.variant]
        self.args, self.small = args, small
        self.stages = SMALL_STAGES if small else list(zip(STAGES, LATEST[config.family]))
        self.device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        workers = args.workers if args.workers is not None else 12 if self.device.type == "cuda" else 0
        self.feeder, self.ahead = Feeder(config.language(), workers, self.device), collections.deque()
        self.lang = Language(config.language())
        self.sizes, self.rng = Sizes(self.lang), random.Random(args.seed)
        self.dsa = config.family == "dsa"
        torch.manual_seed(args.seed)
        torch.backends.cuda.enable_cudnn_sdp(False)  # the flash and memory-efficient kernels are the tried ones
        self.net = Net(dataclasses.replace(config, vocab=self.lang.vocab_size)).to(self.device)
        self.earlier = None  # training.json of the run that this one continues
        if args.start_from:
            self.earlier = self._continue(pathlib.Path(args.start_from))
        self.chance = torch.Generator(device=self.device)
        self.chance.manual_seed(args.seed)
        self.indexers = self.net.indexer_parameters()
        self.body = [p for n, p in self.net.named_parameters() if ".indexer." not in n]
        self.optimizer = self._optimizer()
        self.tokens_per_step = args.tokens or (65536 if self.device.type == "cuda" else 4096)
        self.steps = self.tokens = self.asked = 0
        self.can_select = True  # attention to selected keys runs on this device
        self.log(f"{args.variant}: {sum(p.numel() for p in self.net.parameters())} parameters, device {self.device}, "
                 f"vocabulary {self.lang.vocab_size}")
        self.rehearse()

    def _continue(self, start):
        """Takes the weights of a checkpoint, converted if it is of the other family; returns its training.json."""
        earlier = json.loads((start / "training.json").read_text(encoding="utf-8"))
        weights, dimensions = load_file(start / "model.safetensors"), Config(**earlier["dimensions"])
        if dimensions.family == self.net.c.family:
            self.net.load_state_dict(weights)
        else:
            self.net.load_state_dict(from_llama(weights, dimensions, self.net.c), strict=False)
        return earlier

    def _optimizer(self):
        indexers = {id(p) for p in self.indexers}
        plain = [p for n, p in self.net.named_parameters() if p.ndim < 2 or "embed" in n]
        decayed = [p for n, p in self.net.named_parameters() if not (p.ndim < 2 or "embed" in n)]
        groups = []
        for params, decay in ((decayed, 0.05), (plain, 0.0)):
            for new in (False, True):  # indexers are always new, the rest may be trained already
                some = [p for p in params if (id(p) in indexers) == new]
                groups.append({"params": some, "weight_decay": decay, "peak": INDEXER_RATE if new and self.earlier else self.rate})
        return torch.optim.AdamW([g for g in groups if g["params"]],
                                 lr=self.rate, betas=(0.9, 0.98), fused=self.device.type == "cuda")

    def log(self, text):
        print(f"[{time.time() - self.args.start:6.1f}s] {text}", flush=True)

    def rehearse(self):
        """Runs every length once, forwards and backwards, so that what this device cannot do is known at the start: steps
        become smaller until they fit its memory, and selected attention is given up if it fails."""
        lengths = sorted({n for shares, _ in self.stages for n in shares})
        for sparse in [False, True] if self.dsa else [False]:
            for length in reversed(lengths):
                while not self._fits(length, sparse):
                    self.tokens_per_step //= 2
                    if self.tokens_per_step < max(lengths):
                        raise RuntimeError("the longest document does not fit into the device's memory")
        self.optimizer.zero_grad(set_to_none=True)
        self.log(f"{self.tokens_per_step} tokens per step, selected attention: {self.can_select}")

    def _fits(self, length, sparse):
        if sparse and not self.can_select:
            return True
        ids = torch.randint(self.lang.vocab_size, (max(1, self.tokens_per_step // length), length), device=self.device)
        grades = (ids % 5 == 0).to(torch.uint8)
        try:
            self.gradients(ids, grades, self.rows(grades, length) if self.dsa else None, sparse, 0.1)[0].item()
            return True
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return False
        except RuntimeError as e:
            if not sparse:
                raise
            self.can_select = False
            self.log(f"attention to selected keys does not run here, all keys instead: {str(e)[:300]}")
            return True

    # ---- a step ----

    def ask(self, sparse):
        """Orders one more batch. The schedule is that of AHEAD steps before the batch is used."""
        shares = SPARSE_LENGTHS if sparse and not self.small else self.stages[self.schedule.stage][0]
        length = self.rng.choices(list(shares), list(shares.values()))[0]
        self.asked += 1
        rows = max(1, self.tokens_per_step // length)
        seed = self.args.seed * 1000000007 + self.asked
        plan = random_plan(self.sizes, self.rng, length)
        if self.schedule.stage == 0 and self.rng.random() < REPEATS:
            plan = Plan(length, {}, 0, [], [], repeat=True)
        self.ahead.append((length, self.feeder.submit(plan, rows, seed)))

    def batch(self, sparse):
        self.ask(sparse)
        while len(self.ahead) <= AHEAD:
            self.ask(sparse)
        length, handle = self.ahead.popleft()
        return length, *self.feeder.get(handle)

    def rows(self, grades, length):
        """Positions of queries for the indexer's loss: half of them where an answer's token is predicted."""
        b = grades.shape[0]
        n = max(8, min(64, length // 2, (1 << 25) // (b * length * self.net.c.heads)))
        weight = torch.full(grades.shape, 1.0, device=grades.device)
        answers = torch.zeros_like(weight)
        answers[:, :-1] = (grades[:, 1:] > 0).float()
        weight += answers * (length / answers.sum(1, keepdim=True).clamp(min=1))
        return Rows(torch.multinomial(weight, n, replacement=True, generator=self.chance))

    def step(self):
        progress, stage = self.schedule.progress(), self.schedule.stage
        sparse = self.dsa and progress >= SPARSE_FROM and self.can_select
        length, ids, grades = self.batch(sparse)
        rows = self.rows(grades, length) if self.dsa and (stage > 0 or progress > 0.5 or self.small or self.earlier) else None
        self.optimizer.zero_grad(set_to_none=True)
        loss, share = self.gradients(ids, grades, rows, sparse, 0.1 if stage == 0 else 0.03)
        torch.nn.utils.clip_grad_norm_(self.body, 1.0)
        if rows:
            torch.nn.utils.clip_grad_norm_(self.indexers, 1.0)
        scale = min(1, (self.steps + 1) / 200) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * scale
        self.optimizer.step()
        self.steps, self.tokens = self.steps + 1, self.tokens + ids.numel()
        return length, loss, share, rows, sparse

    def gradients(self, ids, grades, rows, sparse, text_weight):
        hidden = self.net(ids, self.dtype, rows, sparse)
        loss, share = self.loss(hidden, ids, grades, text_weight)
        (loss + rows.loss if rows else loss).backward()
        return loss, share

    def loss(self, hidden, ids, grades, text_weight):
        """Cross entropy in which the text counts text_weight and answers 1; the shares of right tokens in answers and
        of right values in them (NaN if there are none)."""
        logits = self.net.lm_head(hidden[:, :-1])
        target, grade = ids[:, 1:], grades[:, 1:]
        each = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        weight = torch.where(grade > 0, 1.0, text_weight) * (target != self.lang.pad)
        with torch.no_grad():
            right = logits.argmax(-1) == target
            share = [(right & wanted).sum() / wanted.sum() for wanted in (grade > 0, grade == VALUE_GRADE)]
        return (each * weight).sum() / weight.sum(), torch.stack(share)

    # ---- the run ----

    def run(self):
        reserve = 5 if self.small else 45  # seconds for the evaluation at the end
        replay = None
        if self.args.replay:
            replay = json.loads(pathlib.Path(self.args.replay).read_text(encoding="utf-8"))["schedule"]
        seconds = self.args.until - reserve - time.time()
        self.schedule = Schedule(time.time(), seconds, self.stages, replay)
        every, minute = 20, time.time()
        while self.schedule.next():
            length, loss, share, rows, sparse = self.step()
            if self.steps % every == 0 and replay is None or self.steps % 100 == 0:
                self.schedule.saw(length, share[1].item())  # waits for the device
            if self.steps % 100 == 0:
                self.report(length, loss, share, rows, sparse)
            if time.time() - minute > (60 if not self.small else 1e9):
                minute = time.time()
                self.checkpoint(32)
        self.checkpoint(64 if self.small else 128, last=True)
        self.feeder.close()

    def report(self, length, loss, share, rows, sparse):
        text = f"step {self.steps:6d} {100 * self.schedule.progress():5.1f}% stage {self.schedule.stage}"
        text += f" length {length:5d} loss {loss.item():.4f} answers {100 * share[0].item():5.1f}%"
        text += f" values {100 * share[1].item():5.1f}%"
        if rows:
            text += f" indexer KL {rows.loss.item() / rows.layers:.3f} kept {100 * rows.recall.item() / rows.layers:.1f}%"
        rate = self.tokens / (time.time() - self.schedule.start)
        self.log(text + (" sparse" if sparse else "") + f"  {rate / 1e6:.2f}M tokens/s")

    def checkpoint(self, count, last=False):
        """Evaluates and writes; at the end at all lengths and, for DSA, with all keys and with the selected ones."""
        self.net.eval()
        training = {"variant": self.args.variant, "seed": self.args.seed, "continues": self.earlier, "steps": self.steps, "tokens": self.tokens,
                    "tokens_per_step": self.tokens_per_step, "torch": torch.__version__,
                    "dimensions": dataclasses.asdict(self.net.c), "accuracy": {}, "schedule": self.schedule.record}
        out = pathlib.Path(self.args.work or self.args.out)
        export.save(self.net, self.lang, out / self.args.variant, training)
        lengths = [128, 256] if self.small else [256, 1024, 4096, 8192] if last else [1024, 4096]
        for mode in ["dense", "sparse"] if self.dsa and (last or self.schedule.progress() >= 0.5) else ["dense"]:
            n = count if mode == "dense" else count // 2  # choosing keys for whole documents takes long
            result = evaluate(self.net, self.feeder, self.sizes, lengths, n, self.dtype, mode == "sparse")
            training["accuracy"][mode] = result
            self.log(f"{mode}, {n} documents each\n" + table(result))
            if time.time() > self.args.until:
                break
        export.save(self.net, self.lang, out / self.args.variant, training)
        export.pack(out / self.args.variant, pathlib.Path(self.args.out) / f"{self.args.variant}.tar")
        self.net.train()


def main():
    start = time.time()
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--variant", choices=[*VARIANTS, *SMALL], required=True)
    ap.add_argument("--minutes", type=float, default=9)
    ap.add_argument("--until", type=float, help="end as seconds since the epoch, instead of --minutes")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True, help="folder of VARIANT.tar")
    ap.add_argument("--work", help="folder of the checkpoint itself; default: --out")
    ap.add_argument("--device")
    ap.add_argument("--tokens", type=int, help="tokens per step")
    ap.add_argument("--workers", type=int, help="processes that make documents; default 12 with a GPU, else 0")
    ap.add_argument("--start-from", help="checkpoint of the same variant, or of the one it is made of, whose weights are trained further")
    ap.add_argument("--replay", help="training.json of a run to repeat")
    args = ap.parse_args()
    args.start = start
    args.until = args.until or start + 60 * args.minutes
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    Trainer(args).run()


if __name__ == "__main__":
    main()
