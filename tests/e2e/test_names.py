"""Who belongs to a cluster: names of workers, what the router expects of them, and that neither a busy router nor a stopped worker
makes workers leave or evict each other."""

import json
import os
import re
import signal
import socket
import time

import real
from streams import QUICK, one_more


def refused_and_ended(process, reason, seconds=20):
    process.logged(reason, seconds)
    process.process.wait(seconds * real.PATIENCE)
    assert process.process.returncode != 0, "a refused worker ends with an error"


def other_weights(directory):
    """The tiny checkpoint with another rotary base: same shapes, same name, other mathematics."""
    other = directory / "tiny-v32"
    other.mkdir()
    for f in real.MODEL.iterdir():
        (other / f.name).write_bytes(f.read_bytes())
    config = json.loads((real.MODEL / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 12000.0
    (other / "config.json").write_text(json.dumps(config))
    return other


def test_wrong_worker_that_comes_first_is_refused(start, tmp_path):
    """The router knows what it serves: the first worker does not define the cluster."""
    r = start(real.Process, "router", **QUICK)
    r.logged(r"ev=identity fingerprint=\w+ row_format=\S+ indexer=\S+ read_ms=", 5)
    wrong = start(real.Process, "decode", 0, r.worker_address, **QUICK, **{"model.path": other_weights(tmp_path)})
    refused_and_ended(wrong, r"fingerprint \w+ differs")
    for role in ("prefill", "decode"):
        start(real.Process, role, 0, r.worker_address, **QUICK)
    real.until("both roles", lambda: len(r.workers()) == 2, 30)
    one_more(r)


def test_workers_of_other_layouts_serve(start):
    """Each worker chooses the layout of its own pages, because puts are mapped: prefill and decode differ, and the tokens are right."""
    r = start(real.Process, "router", **QUICK)
    start(real.Process, "prefill", 0, r.worker_address, **QUICK, **{"kvstore.layout": "page_first"})
    start(real.Process, "decode", 0, r.worker_address, **QUICK, **{"kvstore.layout": "layer_first"})
    real.until("both roles", lambda: len(r.workers()) == 2, 30)
    ids = real.prompt("layouts", 300)
    assert r.tokens(ids, 40) == real.reference(ids, 40)
    assert r.tokens(ids, 40) == real.reference(ids, 40)  # with the prefix from the cache
    r.idle()


def pair(start):
    r = start(real.Process, "router", **QUICK)
    p = start(real.Process, "prefill", 0, r.worker_address, **QUICK)
    d = start(real.Process, "decode", 0, r.worker_address, **QUICK)
    real.until("both roles", lambda: len(r.workers()) == 2, 30)
    return r, p, d


def test_living_holder_keeps_its_name(start):
    """A second process of a name is refused with the reason and ends; the holder and its streams are not disturbed."""
    r, _, d = pair(start)
    second = start(real.Process, "decode", 0, r.worker_address, **QUICK)
    second.logged(rf"decode/0 is held by a living worker: pid {d.process.pid} on host {re.escape(socket.gethostname())}", 20)
    ids = real.prompt("names", 100)
    assert r.tokens(ids, 60) == real.reference(ids, 60)
    refused_and_ended(second, "held by a living worker")
    assert r.worker("decode/0")["pid"] == d.process.pid
    assert "ev=worker_lost" not in r.text() and "ev=router_lost" not in d.text()


def test_restart_of_a_name_is_admitted(start):
    """kill -9 and an immediate restart under the same name: it joins, whether or not the loss has been noticed yet."""
    r, _, d = pair(start)
    for _ in range(3):
        d.process.kill()
        d.process.wait(10)
        d = start(real.Process, "decode", 0, r.worker_address, **QUICK)
        real.until("the new process", lambda d=d: (r.worker("decode/0") or {}).get("pid") == d.process.pid, 20)
    one_more(r)


def test_stopped_worker_does_not_fight_for_its_name(start):
    """A worker is stopped and replaced under its name. When it continues it is refused and ends, and no other process is disturbed."""
    r, _, d = pair(start)
    os.kill(d.process.pid, signal.SIGSTOP)
    try:
        real.until("its loss", lambda: r.worker("decode/0") is None, 20)
        second = start(real.Process, "decode", 0, r.worker_address, **QUICK)
        real.until("the replacement", lambda: (r.worker("decode/0") or {}).get("pid") == second.process.pid, 20)
    finally:
        os.kill(d.process.pid, signal.SIGCONT)
    since = len(r.text())
    ids = real.prompt("stopped", 200)
    for _ in range(3):
        assert r.tokens(ids, 60) == real.reference(ids, 60)
    refused_and_ended(d, "held by a living worker")
    assert r.worker("decode/0")["pid"] == second.process.pid
    assert "ev=worker_lost" not in r.text()[since:] and "ev=worker_joined" not in r.text()[since:]
    one_more(r)


def test_default_name_has_host_and_process(start):
    r = start(real.Process, "router", **QUICK)
    p = start(real.Process, "prefill", None, r.worker_address, **QUICK)
    real.until("the worker", r.workers, 20)
    host = socket.gethostname().split(".")[0][-40:]
    assert re.fullmatch(rf"prefill@{re.escape(host)}/{p.process.pid}(-[0-9a-f]+)?", r.workers()[0]["name"]), r.workers()


def test_stalled_router_loses_no_worker(start):
    """The router does nothing for longer than cluster.dead_after_ms, as in a long turn of its loop: no worker leaves."""
    r, p, d = pair(start)
    for _ in range(2):
        os.kill(r.process.pid, signal.SIGSTOP)
        time.sleep(4)
        os.kill(r.process.pid, signal.SIGCONT)
        one_more(r)
    assert "ev=worker_lost" not in r.text()
    for w in (p, d):
        assert "ev=router_lost" not in w.text()
        assert w.text().count("ev=router_joined") == 1
