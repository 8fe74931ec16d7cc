"""A model whose layers keep states besides rows and blocks (tests/unit/engine/toy_family.h), in a program that has its family: workers
move snapshots of the states, and every stream has the tokens of one process, whatever happens to a worker."""

import json
import os
import random
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile

import pytest
import zmq

import real
from streams import QUICK, Streams
from test_events import Subscriber, whole_pages

PROGRAM = real.clients.BUILD / "tests" / "sluice_toy"
SELECT = {"sparse_attention.algorithm": "streaming_llm", "sparse_attention.sink_tokens": 4, "sparse_attention.recent_tokens": 24,
          "sparse_attention.hot_rows": 28, "sparse_attention.tail_rows": 3}
PAGE = 64


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The checkpoint: an identity for the head, so that the layers' number is the token."""
    to = tmp_path_factory.mktemp("toy") / "toy"
    to.mkdir()
    config = {"architectures": ["ToyLayersForCausalLM"], "model_type": "toy_layers", "vocab_size": 64, "hidden_size": 64,
              "intermediate_size": 8, "num_hidden_layers": 7, "num_attention_heads": 2, "layer_kinds": "stbrtsb",
              "max_position_embeddings": 1024, "rope_theta": 10000, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
              "hidden_act": "silu", "eos_token_id": 1}
    (to / "config.json").write_text(json.dumps(config))
    eye = b"".join(struct.pack("<64f", *[float(i == j) for j in range(64)]) for i in range(64))
    tensors = {"model.embed_tokens.weight": ([64, 64], bytes(len(eye))), "model.norm.weight": ([64], struct.pack("<64f", *[1.0] * 64)),
               "lm_head.weight": ([64, 64], eye)}
    head, body = {}, b""
    for name, (shape, data) in tensors.items():
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    (to / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    shutil.copy(real.MODEL / "tokenizer_config.json", to)
    tokenizer = json.loads((real.MODEL / "tokenizer.json").read_text())  # its first 64 tokens
    tokenizer["model"]["vocab"] = {t: i for t, i in tokenizer["model"]["vocab"].items() if i < 64}
    tokenizer["model"]["merges"] = []
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < 64]
    (to / "tokenizer.json").write_text(json.dumps(tokenizer))
    return to


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(2, 64) for _ in range(n)]


def reference(toy, ids, n):
    command = [str(PROGRAM), "generate", "--model", str(toy), "--json", "--ignore-eos", "--algorithm", "streaming_llm", "--sinks", "4",
               "--recent", "24", "--ids", ",".join(map(str, ids)), "--max-new-tokens", str(n)]
    p = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=real.ROOT)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["ids"]


def cached(n):
    """Tokens of a prompt after which a worker that has served it has a snapshot."""
    return (n - 1) // PAGE * PAGE


def answered(n):
    """Tokens of a text of n after which the worker that has generated it has a snapshot, if it was long enough for one."""
    return (n - 2) // PAGE * PAGE


def begin(start, toy, roles, **settings):
    return start(roles=roles, program=PROGRAM, model__path=toy, **QUICK, **SELECT, **settings)


def config(roles):
    return "configs/one-host-both.yaml" if "both" in roles else "configs/one-host.yaml"


@pytest.mark.parametrize("roles", [("router", "prefill", "decode"), ("router", "both")], ids=["apart", "both"])
def test_prefixes_end_at_snapshots(start, toy, roles):
    """Lengths around pages; the same prompts again, of which the part before the last snapshot is not computed; the next turn."""
    c = begin(start, toy, roles, config=config(roles))
    for n in (1, 63, 64, 65, 129, 300):
        ids = prompt(n, n)
        want = reference(toy, ids, 20)
        first, again = c.complete(ids, 20), c.complete(ids, 20)
        assert list(first.output_ids) == want and list(again.output_ids) == want, n
        assert first.cached_tokens == 0 and again.cached_tokens == cached(n), n
    turn = ids + want + prompt("next", 30)
    answer = c.complete(turn, 20)
    assert list(answer.output_ids) == reference(toy, turn, 20) and answer.cached_tokens == cached(300)
    c.idle()

    def snapshots(rank, event):
        return real.metric(c.metrics(rank), "sluice_state_snapshots_total", f'event="{event}"')
    last = len(roles) - 1
    assert snapshots(1, "made") > 0 and snapshots(last, "kept") > 0 and snapshots(last, "restored") > 0
    assert snapshots(1, "damaged") == snapshots(last, "damaged") == 0


@pytest.mark.parametrize("roles", [("router", "prefill", "decode"), ("router", "both")], ids=["apart", "both"])
def test_answers_are_reused(start, toy, roles):
    """Three turns of a conversation, each after a long answer: what was generated is not computed again, up to the last end of a page."""
    c = begin(start, toy, roles, config=config(roles))
    text = prompt("conversation", 40)
    for turn, n in enumerate((200, 150, 20)):
        want = reference(toy, text, n)
        answer = c.complete(text, n)
        assert list(answer.output_ids) == want, turn
        assert least < answer.cached_tokens <= answered(before) if turn else not answer.cached_tokens, turn
        least, before = cached(len(text)), len(text) + n
        text += want + prompt(f"turn{turn}", 25)
    c.idle()


@pytest.mark.parametrize("roles", [("router", "prefill", "decode", "decode"), ("router", "both", "both")], ids=["apart", "both"])
def test_a_worker_is_killed(start, toy, roles):
    """In the middle of streams, which another worker continues after it has computed the states again."""
    c = begin(start, toy, roles, config=config(roles))
    jobs = [(prompt(f"kill{i}", 100 + 30 * i), 400, {}) for i in range(4)]
    streams = Streams(c, jobs, want=[reference(toy, ids, n) for ids, n, _ in jobs])
    victim = real.until("streams on a worker", lambda: next((w for w in c.workers() if w["role"] != "prefill" and w["placed"]), None), 30)
    streams.until_streaming(tokens=20)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    c.idle()
    assert real.metric(c.get("/metrics").text, "sluice_worker_failures_total", f'role="{victim["role"]}"') == 1


@pytest.fixture
def disk():
    path = pathlib.Path(tempfile.mkdtemp(prefix="states-", dir=real.ROOT / "build"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("role", ["decode", "both"])
def test_a_restart_finds_snapshots_on_disk(start, toy, disk, role):
    """All workers and their memory are gone; the next ones find pages and snapshot on disk, for the same prompt and for the next turn."""
    roles = ("router", "both") if role == "both" else ("router", "prefill", "decode")
    keys = {"kvstore.disk.path": disk, "kvstore.disk.bytes": "64MiB"}
    ids = prompt("disk", 300)
    want = reference(toy, ids, 150)
    turn = ids + want + prompt("next turn", 40)
    answer = reference(toy, turn, 20)

    def on_disk(c, pages):
        at = len(roles) - 1
        real.until("pages on disk", lambda: (real.metric(c.metrics(at), "sluice_tier_stored_pages_total") or 0) >= pages)

    port = real.free_ports(1)
    c = begin(start, toy, roles, config=config(roles), **keys, **{"events.zmq.endpoint": f"tcp://127.0.0.1:{port}"})
    assert c.tokens(ids, 150) == want
    on_disk(c, 7 + 2 * 2)
    with zmq.Context() as context:  # other programs are told of the pages of the text alone
        told = Subscriber(context, port, f"kv@{role}/0@toy")
        told.until("the pages of the text", lambda: len(told.blocks) == 7)
        assert told.chains() == [whole_pages(ids + want[:-1])]
    c.close()
    for again, asked, right in ((1, turn, answer), (2, ids, want)):
        c = begin(start, toy, roles, config=config(roles), **keys)
        r = c.complete(asked, len(right))
        assert list(r.output_ids) == right and (
            cached(300) < r.cached_tokens <= answered(450) if again == 1 else r.cached_tokens == cached(300)), again
        c.idle()
        c.close()


@pytest.mark.parametrize("roles", [("router", "prefill", "decode", "decode"), ("router", "both", "both")], ids=["apart", "both"])
def test_a_snapshot_of_another_worker(start, toy, roles):
    """The second time a prompt goes to the other worker, which reads pages and snapshot out of the memory of the first one, and
    restores the states from it. Then the next turn, of whose beginning each has a part."""
    c = begin(start, toy, roles, config=config(roles), **{"router.policy": "round_robin", "kvstore.load_timeout_ms": 1000})
    holders = [i for i, role in enumerate(roles) if role in ("decode", "both")]

    def total(name, *labels):
        return sum(real.metric(c.metrics(rank), name, *labels) or 0 for rank in holders)
    for n in (65, 300):
        ids = prompt(f"other{n}", n)
        want = reference(toy, ids, 20)
        before = total("sluice_pull_pages_total")
        first, second, third = (c.complete(ids, 20) for _ in range(3))
        assert list(first.output_ids) == list(second.output_ids) == list(third.output_ids) == want, n
        assert first.cached_tokens == 0 and second.cached_tokens == third.cached_tokens == cached(n), n
        real.until("pages and snapshot that were read", lambda: total("sluice_pull_pages_total") - before > cached(n) // PAGE)
        real.until("no page is lent any more", lambda: total("sluice_lend_leases") == 0)
    turn = ids + want + prompt("other turn", 30)
    for _ in range(2):
        assert c.tokens(turn, 20) == reference(toy, turn, 20)
    assert total("sluice_state_snapshots_total", 'event="damaged"') == 0
    c.idle()
