"""DeepSeek-V4 in clusters: windows and open entries are states that go with a prompt's pages, and every stream has the tokens of one
process: prefixes that end at snapshots, a worker that is killed, roles apart and together."""

import json
import os
import random
import signal
import subprocess

import pytest

import real
from streams import QUICK, Streams
from test_families import checkpoint

MODEL = real.ROOT / "tests" / "golden" / "model" / "v4-flash"
ROLES = pytest.mark.parametrize("roles", [("router", "prefill", "decode", "decode"), ("router", "both", "both")], ids=["apart", "both"])
PAGE = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("v4") / "tiny-v4", MODEL)


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


def test_modes_agree(model):
    ids = prompt("modes", 200)
    want = reference(model, ids, 40)
    assert reference(model, ids, 40, "--mode", "hierarchical") == want
    assert reference(model, ids, 40, "--chunk", "7") == want


@ROLES
def test_prefixes_end_at_snapshots(start, model, roles):
    """Lengths around windows, entries and pages; the same prompts again, and the next turn of the last one."""
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


@ROLES
def test_a_worker_is_killed(start, model, roles):
    """In the middle of streams, which another worker continues after it has computed the states again."""
    c = begin(start, model, roles)
    jobs = [(prompt(f"kill{i}", 100 + 30 * i), 300, {}) for i in range(4)]
    streams = Streams(c, jobs, want=[reference(model, ids, n) for ids, n, _ in jobs])
    victim = real.until("streams on a worker", lambda: next((w for w in c.workers() if w["role"] != "prefill" and w["placed"]), None), 30)
    streams.until_streaming(tokens=20)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    c.idle()


def test_a_group_shares_the_experts(start, model):
    """Experts by scores and by tables, on two ranks that exchange rows."""
    ids = prompt("group", 150)
    port = real.free_ports(1)
    c = begin(start, model, ("router", "both", "both"), **{"cluster.groups": f"[both=2@127.0.0.1:{port}]"})
    for _ in range(2):
        assert c.tokens(ids, 40) == reference(model, ids, 40)
    c.idle()
