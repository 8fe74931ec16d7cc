#!/usr/bin/env python3
"""Writes examples of what a checkpoint is asked: a short document of every task with its answer (examples.json), and one long
document about which several questions are asked (document.txt, questions.json). The checkpoint is not run.

    examples.py CHECKPOINT [--length 300] [--document 4000] [--seed 1]
"""
import argparse
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from documents import Maker, Plan, Sizes, fill_up  # noqa: E402
from evaluate import TASKS, plan  # noqa: E402
from language import Language  # noqa: E402
from nets import Config  # noqa: E402

QUESTIONS = ["code", "lives", "works", "chain3", "codes2"]


def turns(lang, text):
    """(What the user said, what the assistant answered) of a chat."""
    for turn in text.split("".join(lang.chat["user"]))[1:]:
        said, _, answer = turn.partition("".join(lang.chat["assistant"]))
        yield said, answer.split(lang.chat["end"])[0]


def long_document(sizes, length, rng):
    """A plan with facts of every kind in filler, of at most `length` tokens."""
    facts = {"code": length // 80, "lives": length // 100, "likes": length // 100, "works": length // 100, "owns": length // 100}
    chains = length // 1000
    used = sum(n * sizes.fact[k] for k, n in facts.items()) + chains * sizes.chain + sum(sizes.question[q] for q in QUESTIONS)
    return Plan(length, facts, chains, fill_up(sizes, length - used - 16, rng), QUESTIONS)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", type=pathlib.Path)
    ap.add_argument("--length", type=int, default=300, help="tokens of the short documents")
    ap.add_argument("--document", type=int, default=4000, help="tokens of the long one with its questions and answers")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    dimensions = json.loads((args.checkpoint / "training.json").read_text(encoding="utf-8"))["dimensions"]
    lang = Language(Config(**dimensions).language())
    sizes, maker, rng = Sizes(lang), Maker(lang, "cpu"), random.Random(args.seed)
    examples = []
    for i, task in enumerate(TASKS):
        ids, _ = maker.batch(plan(sizes, task, TASKS[task][2][0], args.length, rng), 1, args.seed * 100 + i)
        (said, answer), = turns(lang, lang.decode(ids[0].tolist()))
        examples.append({"task": task, "user": said, "answer": answer.strip()})
    ids, _ = maker.batch(long_document(sizes, args.document, rng), 1, args.seed * 100 + len(TASKS))
    (first, answer), *more = turns(lang, lang.decode(ids[0].tolist()))
    text, question = first.removeprefix("Text: ").rsplit(" Question: ", 1)
    asked = [{"question": question, "answer": answer.strip()}]
    asked += [{"question": q.removeprefix("Question: "), "answer": a.strip()} for q, a in more]
    for name, content in (("examples.json", json.dumps(examples, indent=1) + "\n"), ("document.txt", text + "\n"),
                          ("questions.json", json.dumps(asked, indent=1) + "\n")):
        (args.checkpoint / name).write_text(content, encoding="utf-8")
        print(f"{args.checkpoint / name}: {len(content)} characters")


if __name__ == "__main__":
    main()
