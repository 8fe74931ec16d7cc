"""Drafts of the MTP layer: a cluster with drafts, whose workers die in mid-stream, gives the tokens of one process without the layer."""

import array
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import threading

import pytest

import real
from streams import QUICK, Streams, has, jobs

LAYERS, HIDDEN = 5, 64  # of models/tiny-v32
HOT = {"sparse_attention.hot_rows": 5 * real.TOPK, "sparse_attention.tail_rows": 16}


def read(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: (v["shape"], data[8 + n:][slice(*v["data_offsets"])]) for k, v in head.items() if k != "__metadata__"}


def write(path, tensors):
    head, at = {}, 0
    for name, (shape, data) in tensors.items():
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def scaled(data, by):
    return array.array("f", [x * by for x in array.array("f", data)]).tobytes()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The usual model with an MTP layer that is its last layer and gets the token's embedding. Layers add so little to the residual
    stream that a part of the drafts is right."""
    to = tmp_path_factory.mktemp("mtp") / "tiny-v32"
    shutil.copytree(real.MODEL, to)
    tensors = read(to / "model.safetensors")
    for name, (shape, data) in list(tensors.items()):
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            tensors[name] = shape, scaled(data, 0.02)
    for name, tensor in list(tensors.items()):
        if name.startswith(f"model.layers.{LAYERS - 1}."):
            tensors[name.replace(f".{LAYERS - 1}.", f".{LAYERS}.", 1)] = tensor
    ones = [HIDDEN], array.array("f", [1.0] * HIDDEN).tobytes()
    join = array.array("f", [float(r == c) for r in range(HIDDEN) for c in range(2 * HIDDEN)])
    p = f"model.layers.{LAYERS}."
    tensors.update({p + "enorm.weight": ones, p + "hnorm.weight": ones, p + "eh_proj.weight": ([HIDDEN, 2 * HIDDEN], join.tobytes()),
                    p + "shared_head.norm.weight": tensors["model.norm.weight"]})
    write(to / "model.safetensors", tensors)
    return to


def joined(checkpoint, to, join):
    """The same checkpoint with another projection of token and state: join(row, column)."""
    to /= "tiny-v32"
    shutil.copytree(checkpoint, to)
    tensors = read(to / "model.safetensors")
    values = array.array("f", [float(join(r, c)) for r in range(HIDDEN) for c in range(2 * HIDDEN)])
    tensors[f"model.layers.{LAYERS}.eh_proj.weight"] = [HIDDEN, 2 * HIDDEN], values.tobytes()
    write(to / "model.safetensors", tensors)
    return to


@pytest.fixture(scope="module")
def stateful(checkpoint, tmp_path_factory):
    """Its drafts depend on the hidden state."""
    return joined(checkpoint, tmp_path_factory.mktemp("stateful"), lambda r, c: c in (r, r + HIDDEN))


@pytest.fixture(scope="module")
def noise(checkpoint, tmp_path_factory):
    """Its drafts have nothing to do with the model."""
    return joined(checkpoint, tmp_path_factory.mktemp("noise"), lambda r, c: -(c == r))


def generate(path, ids, n, *more, **options):
    command = [str(real.SLUICE), "generate", "--model", str(path), "--threads", "1", "--json", "--ignore-eos", "--ids",
               ",".join(map(str, ids)), "--max-new-tokens", str(n), *more]
    for key, value in options.items():
        command += ["--" + key.replace("_", "-"), str(value)]
    p = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=real.ROOT)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def total(text, name):
    return sum(real.metric(text, name, f'place="{k}"') or 0 for k in range(1, 5))


def test_generate_drafts(checkpoint):
    """The output of one process is the same, in fewer steps."""
    ids = real.prompt("drafts", 200)
    for more in ([], ["--mode", "hierarchical", "--tail-rows", "16"], ["--temperature", "0.7", "--seed", "5"]):
        want = generate(checkpoint, ids, 100, *more)
        have = generate(checkpoint, ids, 100, *more, "--draft-tokens", "3")
        assert have["ids"] == want["ids"] and "drafts" not in want
        assert 0 < have["drafts"]["accepted"] < have["drafts"]["drafted"]
        assert have["drafts"]["steps"] == 99 - have["drafts"]["accepted"]


def test_a_decode_worker_dies_while_streams_have_drafts(start, checkpoint):
    c = start(**QUICK, **HOT, **{"model.path": checkpoint, "model.draft_tokens": 4})
    todo = jobs("drafts", 6, prompt=150, out=120)
    want = [generate(checkpoint, ids, n, **kw)["ids"] for ids, n, kw in todo]
    for (ids, n, kw), tokens in list(zip(todo, want))[:2]:
        assert c.tokens(ids, n, **kw) == tokens
    text = c.metrics(2) + c.metrics(3)
    assert 0 < total(text, "sluice_draft_accepted_tokens_total") < total(text, "sluice_draft_tokens_total")
    streams = Streams(c, todo, want=want)
    victim = real.until("a worker with streams", lambda: has(c, "decode/0", 1)() or has(c, "decode/1", 1)())
    streams.until_streaming(tokens=5)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    ids = todo[0][0]
    again = c.complete(ids, 60, frequency_penalty=0.5, presence_penalty=0.2)
    assert len(again.output_ids) == 60
    c.idle()


def test_first_drafts_of_a_cluster_are_those_of_one_process(start, stateful):
    """COMMIT carries the last hidden state: what a decode worker drafts for shipped prompts stands as often as where the prompt was computed."""
    counts = []
    for workers, options in (((2, 3), {}), ((1,), {"roles": ("router", "both"), "config": "configs/one-host-both.yaml"})):
        c = start(**options, **QUICK, **{"model.path": stateful, "model.draft_tokens": 2})
        for i in range(24):
            c.tokens(real.prompt(f"first{i}", 70 + 3 * i), 3)
        text = "".join(c.metrics(k) for k in workers)
        counts.append([sum(float(line.split()[-1]) for line in text.splitlines()
                           if line.startswith(f"sluice_draft_{what}_total") and f'place="{k}"' in line)
                       for k in (1, 2) for what in ("tokens", "accepted_tokens")])
        assert c.close()
    assert counts[0] == counts[1] and counts[0][1] > 0


def test_noise_is_seen_at_start(start, checkpoint, noise):
    """A worker says how many drafts of a fixed text were right, and warns of a layer of which none is."""
    for path, bad in ((checkpoint, False), (noise, True)):
        c = start(roles=("router", "both"), config="configs/one-host-both.yaml", **QUICK, **{"model.path": path, "model.draft_tokens": 2})
        c.logged("ev=draft_check .*drafted=32")
        assert ("ev=drafts_are_noise" in c.text()) == bad
        assert (real.metric(c.metrics(1), "sluice_draft_check_ratio") < 0.1) == bad
        assert c.close()


CONSTRAINTS = [{"regex": "([a-e]{2,5} ){2,9}[f-h]"}, {"guided_choice": ["yes", "yellow", "no, never"]}, {"grammar": "root ::= [0-9]{3,12}"},
               {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
                   "type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}},
                   "required": ["a", "b"], "additionalProperties": False}}}}]


def drawn(r, number):
    """A request with drawn settings. Its answer follows from it alone."""
    body = {"prompt": real.prompt(f"drawn{number}", r.choice((1, 5, 63, 64, 65, 130, 200))), "max_tokens": r.randint(1, 70), "seed": number,
            "temperature": r.choice((0, 0, 0.3, 0.8, 1.2)), "ignore_eos": r.random() < 0.7}
    some = {"top_p": lambda: r.uniform(0.1, 1), "top_k": lambda: r.randint(1, 50), "min_p": lambda: r.uniform(0, 0.3),
            "presence_penalty": lambda: r.uniform(-1, 2), "frequency_penalty": lambda: r.uniform(-1, 2),
            "repetition_penalty": lambda: r.uniform(0.8, 1.5), "logprobs": lambda: r.randint(0, 5), "min_tokens": lambda: r.randint(0, body["max_tokens"]),
            "stop": lambda: r.sample(["e", "an", " t", "1", "q", "er ", "\n", "zz"], r.randint(1, 3)),
            "stop_token_ids": lambda: [r.randrange(10, 1200) for _ in range(8)],
            "logit_bias": lambda: {str(r.randrange(10, 1200)): r.choice((-100, -5, 3, 6)) for _ in range(r.randint(1, 5))}}
    body.update({name: value() for name, value in some.items() if r.random() < 0.3})
    if r.random() < 0.25:
        body.update(r.choice(CONSTRAINTS))
    return body


def answers_of(c, bodies):
    """What every request is given, without what differs from call to call."""
    replies = real.in_parallel([lambda b=b: c.post(b) for b in bodies])
    assert all(a.status_code == 200 for a in replies), next(a.text for a in replies if a.status_code != 200)
    return [a.json()["choices"][0] for a in replies]


def test_every_answer_is_that_without_drafts(start, checkpoint):
    """Drawn settings, penalties, bias, stops, constraints and log-probabilities, in batches: what a worker with drafts answers is what one
    without the layer answers, and so is what a cluster answers of which a decode worker is killed meanwhile. SLUICE_TEST_DRAWS: how many
    requests, from which seed, as COUNT:SEED."""
    count, seed = map(int, os.environ.get("SLUICE_TEST_DRAWS", "24:1").split(":"))
    r = random.Random(seed)
    bodies = [drawn(r, seed * 100000 + k) for k in range(count)]
    both = {"roles": ("router", "both"), "config": "configs/one-host-both.yaml"}
    want = None
    for drafts, kind in (("0", both), ("auto", both), ("3", both), ("4", {})):
        c = start(**kind, **QUICK, **HOT, **{"model.path": checkpoint, "model.draft_tokens": drafts})
        if not kind:
            victim = c.workers("decode")[0]["pid"]
            killer = threading.Timer(r.uniform(0.05, 0.5), os.kill, (victim, signal.SIGKILL))
            killer.start()
        have = answers_of(c, bodies)
        want = want or have
        wrong = [k for k in range(count) if have[k] != want[k]]
        assert not wrong, f"{drafts} drafts: {bodies[wrong[0]]} gives {have[wrong[0]]}, without drafts {want[wrong[0]]}"
        if kind:
            assert (total(c.metrics(1), "sluice_draft_tokens_total") > 0) == (drafts != "0")
            ids = real.prompt("same", 130)
            c.complete(ids, 30)
            again = c.complete(ids, 30)
            assert again.cached_tokens == 128 and list(again.output_ids) == generate(checkpoint, ids, 30)["ids"]
        else:
            killer.join()
        assert c.close()


def test_ranks_of_a_group_draft_together(start, checkpoint):
    """A group of two ranks of role both, whose MTP layer's experts are shared out between them: the tokens of one process without the layer,
    also while a rank is killed in mid-stream and replaced."""
    model = {"model.path": checkpoint, "model.draft_tokens": 3}
    c = start(real.Process, "router", **QUICK, **model, **{"router.retries": 20})
    settings = {**HOT, **model, "cluster.groups": f"[both=2@127.0.0.1:{real.free_ports(1)}]"}

    def rank(k):
        return start(real.Process, "both", None, c.worker_address, rank=("0", str(k), "2"), **QUICK, **settings)

    ranks = [rank(1), rank(0)][::-1]
    c.wait_ready(2)
    todo = jobs("group-drafts", 4, prompt=90, out=100)
    want = [generate(checkpoint, ids, n, **kw)["ids"] for ids, n, kw in todo]
    Streams(c, todo, want=want).check()
    for r in ranks:
        text = r.metrics()
        assert 0 < total(text, "sluice_draft_accepted_tokens_total") < total(text, "sluice_draft_tokens_total")
        assert 0 < real.metric(text, "sluice_draft_seconds_total")
    streams = Streams(c, todo, want=want)
    streams.until_streaming(tokens=5)
    ranks[1].process.kill()
    ranks[1].process.wait(60)
    ranks[1] = rank(1)
    streams.check()
