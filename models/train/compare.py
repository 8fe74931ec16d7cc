#!/usr/bin/env python3
"""Compares a checkpoint in three programs: this folder's model, transformers, and `sluice generate`.

    compare.py CHECKPOINT [--sluice build/release/sluice] [--length 1024] [--documents 4]

For each of a few documents: the tokenizer's file must give the ids that training used, the logits of transformers must be
ours, and the greedy answers of all three must be the same text. Exit status 1 if anything differs. The logits of a DSA model
may differ by 1 % of the largest one instead of 0.1 % when a document is longer than the selection: keys whose index scores
are nearly equal are then selected by one program and not by the other.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from documents import Maker, Sizes  # noqa: E402
from evaluate import TASKS, plan  # noqa: E402
from language import Language  # noqa: E402
from nets import Config, Net  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(folder):
    dimensions = json.loads((folder / "training.json").read_text(encoding="utf-8"))["dimensions"]
    net = Net(Config(**dimensions))
    net.load_state_dict(load_file(str(folder / "model.safetensors")))
    return net.float().eval()


def split(ids, grades):
    """The prompt and the answer of a document with one question."""
    first = int((grades > 0).nonzero()[0])
    return ids[:first].tolist(), ids[first:][grades[first:] > 0].tolist()


def ours(net, prompt, n):
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(n):
            ids.append(int(net.lm_head(net(torch.tensor([ids]), torch.float32, sparse=True)[0, -1]).argmax()))
    return ids[len(prompt):]


def sluice(program, folder, family, text, n):
    rows = "mla_f32" if family == "dsa" else "gqa_f32"
    command = [program, "generate", "--model", str(folder), "--prompt", text, "--max-new-tokens", str(n), "--json",
               "--ignore-eos", "--act", "f32", "--row-format", rows]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["ids"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", type=pathlib.Path)
    ap.add_argument("--sluice", default=str(ROOT / "build" / "release" / "sluice"))
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--documents", type=int, default=4)
    args = ap.parse_args()
    net = load(args.checkpoint)
    lang = Language(net.c.family)
    sizes, maker, rng = Sizes(lang), Maker(lang, "cpu"), random.Random(1)
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    bad = 0
    for i in range(args.documents):
        task = list(TASKS)[i % len(TASKS)]
        ids, grades = maker.batch(plan(sizes, task, TASKS[task][2][0], args.length, rng), 1, i)
        prompt, answer = split(ids[0], grades[0])
        text = lang.decode(prompt)
        if tokenizer(text, add_special_tokens=False).input_ids != prompt:
            print(f"{task}: the tokenizer gives other ids")
            bad += 1
        batch = torch.tensor([prompt])
        with torch.no_grad():
            a = net.lm_head(net(batch, torch.float32, sparse=True))
            b = model(batch).logits
            theirs = model.generate(batch, max_new_tokens=len(answer), do_sample=False, eos_token_id=None)[0, len(prompt):]
        answers = {"training": ours(net, prompt, len(answer)), "transformers": theirs.tolist(),
                   "sluice": sluice(args.sluice, args.checkpoint, net.c.family, text, len(answer))}
        same = all(x == answers["training"] for x in answers.values())
        limit = 1e-2 if net.c.family == "dsa" and len(prompt) > net.c.topk else 1e-3
        far = (a - b).abs().max().item() > limit * b.abs().max().item()
        bad += far + (not same)
        print(f"{task}: greatest difference of the logits {(a - b).abs().max():.2e} of {b.abs().max():.2f}; "
              f"{'same answers' if same else 'DIFFERENT answers'}, "
              f"{'right' if answers['sluice'] == answer else 'wrong'}: {lang.decode(answers['sluice'])!r}")
        if not same:
            print({k: lang.decode(v) for k, v in answers.items()})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
