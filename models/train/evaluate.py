"""Accuracy of a model on every task and length.

An answer is right when every one of its tokens, the end token included, is the most likely one after the right tokens before
it; greedy decoding then gives exactly this answer.
"""
import random

import torch

from documents import DEPTH, Plan, fill_up

# task: (shares of the text as codes, persons, chains; least numbers of the three; questions of which one is asked; early)
TASKS = {
    "needle": ((0, 0, 0), (1, 0, 0), ["code"], False),
    "several": ((0, 0, 0), (8, 0, 0), ["codes3"], False),
    "multikey": ((1, 0, 0), (4, 0, 0), ["code"], False),
    "persons": ((0, 1, 0), (0, 4, 0), ["lives", "likes", "works", "owns"], False),
    "chain": ((0, 0, 0.7), (0, 0, 1), [f"chain{DEPTH}"], False),
    "early": ((0.3, 0.3, 0), (2, 4, 0), ["code", "lives"], True),
}


def plan(sizes, task, question, length, rng):
    shares, least, _, early = TASKS[task]
    room = length - 8 - sizes.question[question] - (sizes.early if early else 0)
    codes = min(max(int(room * shares[0]) // sizes.fact["code"], least[0]), 1000)
    persons = min(max(int(room * shares[1]) // 4 // sizes.fact["works"], least[1] // 4), 250)
    chains = min(max(int(room * shares[2]) // sizes.chain, least[2]), 60)
    facts = {"code": codes, **{k: persons for k in ("lives", "likes", "works", "owns")}}
    used = sum(n * sizes.fact[k] for k, n in facts.items()) + chains * sizes.chain
    return Plan(length, facts, chains, fill_up(sizes, room - used, rng), [question], early, at_start=early)


@torch.no_grad()
def right(net, ids, grades, dtype, sparse):
    """[B] bool: whether the whole answer is right."""
    h = net(ids, dtype, sparse=sparse)[:, :-1]
    wanted = grades[:, 1:] > 0
    ok = torch.ones(ids.shape[0], dtype=torch.bool, device=ids.device)
    row = torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(wanted)[wanted]
    wrong = net.lm_head(h[wanted]).argmax(-1) != ids[:, 1:][wanted]
    ok[row[wrong]] = False
    return ok


def jobs(sizes, lengths, count, batch_tokens):
    """(task, length, plan, rows) of all batches."""
    rng = random.Random(1)
    for task, (_, _, questions, _) in TASKS.items():
        for length in lengths:
            done = 0
            while done < count:
                b = max(1, min(count - done, batch_tokens // length, -(-count // len(questions))))
                yield task, length, plan(sizes, task, questions[done * len(questions) // count], length, rng), b
                done += b


def evaluate(net, feeder, sizes, lengths, count, dtype, sparse=False, batch_tokens=131072):
    """{task: {length: accuracy}} over `count` documents each. feeder: see feed.py. The documents are always the same."""
    work = [(task, length, feeder.submit(p, b, 1000003 + i))
            for i, (task, length, p, b) in enumerate(jobs(sizes, lengths, count, batch_tokens))]
    good = {task: {length: 0 for length in lengths} for task in TASKS}
    for task, length, handle in work:
        good[task][length] += int(right(net, *feeder.get(handle), dtype, sparse).sum())
    return {task: {length: round(n / count, 4) for length, n in row.items()} for task, row in good.items()}


def table(result):
    lengths = list(next(iter(result.values())))
    lines = [f"{'task':10}" + "".join(f"{n:>8}" for n in lengths)]
    lines += [f"{task:10}" + "".join(f"{100 * row[n]:7.1f}%" for n in lengths) for task, row in result.items()]
    return "\n".join(lines)
