"""Families whose layers keep states (windows, open entries, delta rules, open units) in clusters: the states go with a prompt's pages, and
every stream has the tokens of one process: prefixes that end at snapshots, a worker that is killed, roles apart and together, a restart with
pages on disk, groups that share the experts. Families without states go through the same in one test. A family is named as the registry
names it."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile

import pytest

import real
from streams import QUICK, Streams
from test_damage import flip
from test_families import CHECKPOINTS, ROWS, STATES, checkpoint

APART, BOTH = ("router", "prefill", "decode", "decode"), ("router", "both", "both")
PAGE = 64
DEVICE = "6MiB"  # for a decode worker that fetches


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    to = tmp_path_factory.mktemp("models")
    return {f: checkpoint(to / f, real.ROOT / "tests" / "golden" / "model" / CHECKPOINTS[f]) for f in STATES + ROWS}


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(2, 100) for _ in range(n)]


def reference(model, ids, n, *flags):
    p = subprocess.run([real.SLUICE, "generate", "--model", model, "--ids", ",".join(map(str, ids)), "--max-new-tokens", str(n),
                        "--ignore-eos", "--threads", "1", "--json", *flags], capture_output=True, text=True, timeout=120, check=False)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["ids"]


def begin(start, model, roles, **settings):
    c = start(roles=roles, config="configs/one-host-both.yaml" if "both" in roles else "configs/one-host.yaml",
              **{"model.path": model, "model.max_context": 1024, **QUICK, **settings})
    c.model = model.name
    return c


@pytest.mark.parametrize("family", STATES)
def test_modes_agree(models, family):
    model = models[family]
    ids = prompt("modes", 200)
    want = reference(model, ids, 40)
    assert reference(model, ids, 40, "--mode", "hierarchical") == want
    assert reference(model, ids, 40, "--chunk", "7") == want


@pytest.mark.parametrize("family,roles", [("deepseek_v4", APART), ("deepseek_v4", BOTH), ("glm5_next", BOTH), ("qwen4_exp", BOTH)])
def test_prefixes_end_at_snapshots(start, models, family, roles):
    """Lengths around windows, entries, units and pages; the same prompts again, and the next turn of the last one."""
    model = models[family]
    c = begin(start, model, roles[:3] if "prefill" in roles else roles[:2])
    for n in (1, 4, 24, 63, 64, 65, 129, 300):
        ids = prompt(n, n)
        want = reference(model, ids, 20)
        first, again = c.complete(ids, 20), c.complete(ids, 20)
        assert list(first.output_ids) == want and list(again.output_ids) == want, n
        assert first.cached_tokens == 0 and again.cached_tokens == (n - 1) // PAGE * PAGE, n
    turn = ids + want + prompt("next", 30)
    answer = c.complete(turn, 20)
    assert list(answer.output_ids) == reference(model, turn, 20) and answer.cached_tokens == 256
    c.idle()


@pytest.mark.parametrize("family,roles", [("deepseek_v4", APART), ("glm5_next", APART), ("qwen4_exp", BOTH)])
def test_answers_are_reused(start, models, family, roles):
    """The next turn does not compute the answer again, up to the last end of a page at which the states were saved."""
    model = models[family]
    c = begin(start, model, roles[:3] if "prefill" in roles else roles[:2])
    ids = prompt("answer", 50)
    want = reference(model, ids, 250)
    assert c.tokens(ids, 250) == want
    turn = ids + want + prompt("next", 30)
    answer = c.complete(turn, 20)
    assert list(answer.output_ids) == reference(model, turn, 20)
    assert 64 <= answer.cached_tokens <= 256
    c.idle()


def kill_a_worker(c, streams):
    victim = real.until("streams on a worker", lambda: next((w for w in c.workers() if w["role"] != "prefill" and w["placed"]), None), 30)
    streams.until_streaming(tokens=20)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()


@pytest.mark.parametrize("family,roles", [("deepseek_v4", BOTH), ("glm5_next", APART), ("glm5_next", BOTH), ("qwen4_exp", APART)])
def test_a_worker_is_killed(start, models, family, roles):
    """In the middle of streams, which another worker continues after it has computed the states again."""
    model = models[family]
    c = begin(start, model, roles)
    jobs = [(prompt(f"kill{i}", 100 + 30 * i), 300, {}) for i in range(4)]
    streams = Streams(c, jobs, want=[reference(model, ids, n) for ids, n, _ in jobs])
    kill_a_worker(c, streams)
    c.idle()


@pytest.mark.parametrize("family", STATES)
def test_a_group_shares_the_experts(start, models, family):
    """Experts by scores, by tables and by softmax, on two ranks that exchange rows."""
    model = models[family]
    ids = prompt("group", 150)
    port = real.free_ports(1)
    c = begin(start, model, ("router", "both", "both"), **{"cluster.groups": f"[both=2@127.0.0.1:{port}]"})
    for _ in range(2):
        assert c.tokens(ids, 40) == reference(model, ids, 40)
    c.idle()


@pytest.fixture
def disk():
    path = pathlib.Path(tempfile.mkdtemp(prefix="states-", dir=real.ROOT / "build"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("family,roles", [("deepseek_v4", BOTH[:2]), ("glm5_next", BOTH[:2]), ("qwen4_exp", APART[:3])])
def test_a_restart_finds_snapshots_on_disk(start, models, disk, family, roles):
    """All workers and their memory are gone; the next ones find pages and snapshot of the next turn's beginning on disk."""
    model, keys = models[family], {"kvstore.disk.path": disk, "kvstore.disk.bytes": "256MiB"}
    ids = prompt("disk", 300)
    want = reference(model, ids, 40)
    turn = ids + want + prompt("next turn", 40)
    c = begin(start, model, roles, **keys)
    assert c.tokens(ids, 40) == want
    real.until("pages and two snapshots on disk",
               lambda: (real.metric(c.metrics(len(roles) - 1), "sluice_tier_stored_pages_total") or 0) >= 340 // PAGE + 2)
    c.close()
    c = begin(start, model, roles, **keys)
    answer = c.complete(turn, 20)
    assert list(answer.output_ids) == reference(model, turn, 20) and answer.cached_tokens == 320  # in the answer
    c.idle()


@pytest.mark.parametrize("family", ROWS)
def test_rows_alone(start, models, disk, family):
    """Two workers of role both, of which one is killed while streams run; then a group of two ranks, which finds prompts on disk."""
    model, keys = models[family], {"kvstore.disk.path": disk, "kvstore.disk.bytes": "256MiB"}
    jobs = [(prompt(f"rows{i}", 100 + 30 * i), 200, {}) for i in range(3)]
    want = [reference(model, ids, n) for ids, n, _ in jobs]
    c = begin(start, model, BOTH, **keys)
    kill_a_worker(c, Streams(c, jobs, want=want))
    c.close()
    c = begin(start, model, BOTH, **keys, **{"cluster.groups": f"[both=2@127.0.0.1:{real.free_ports(1)}]"})
    answers = [c.complete(ids, 40) for ids, _, _ in jobs]
    assert [list(a.output_ids) for a in answers] == [w[:40] for w in want]
    assert any(a.cached_tokens >= PAGE for a in answers), "no prompt was found on disk"
    c.idle()


def test_damaged_entries(start, models):
    """Memory of a decode worker is damaged while requests run whose entries are fetched by steps: with checksums of rows it is found before
    a token is sent, requests are retracted, and every stream is right to its end."""
    model = models["deepseek_v4"]
    c = begin(start, model, APART[:3], **{"kvstore.verify": "rows", "kvstore.patrol_rate": "1MiB", "cluster.shipping": "direct", "decode.device_bytes": DEVICE,
                                          "sparse_attention.tail_rows": 8})
    prompts = [prompt(f"entries{i}", 200 + 40 * i) for i in range(3)]
    want = [reference(model, ids, 260) for ids in prompts]
    calls = [real.Call(c, ids, 260) for ids in prompts]
    real.until("tokens", lambda: max(len(t.so_far) for t in calls) >= 70, 60, 0.001)
    flip(c.pid("decode/0"), 64)
    for t in calls:
        t.join(240)
    assert not sum(t.right_or_data_loss(tokens) for t, tokens in zip(calls, want)), "a wrong token was sent"
    assert real.metric(c.metrics(2), "sluice_store_damaged_pages_total", 'where="fetched"') > 0
    c.logged("ev=retracted")
    c.idle()
