"""The end of a cluster as its clients and probes see it: SIGTERM to every process, the drain timeout, and the answers of /health/*.
Drains in which everything finishes are in test_failures.py."""

import json
import os
import signal
import threading
import time

import grpc
import pytest
import requests

import real
from streams import QUICK

SHUTTING = "shutting down"


def over_http(c, ids, n, stream):
    """("done", text) or (code of the error, its message). A stream that ends without [DONE] and without an error event is a fault."""
    r = c.post({"prompt": ids, "max_tokens": n, "ignore_eos": True, "temperature": 0, "stream": stream})
    if r.status_code != 200:
        error = r.json()["error"]
        assert r.status_code == 503, r.text
        return error["code"], error["message"]
    if not stream:
        return "done", r.json()["choices"][0]["text"]
    events = [line[6:] for line in r.text.splitlines() if line.startswith("data: ")]
    errors = [json.loads(e)["error"] for e in events if e.startswith('{"error"')]
    if errors:
        return errors[0]["code"], errors[0]["message"]
    assert events and events[-1] == "[DONE]", f"the stream ended without a word: {r.text[-200:]!r}"
    return "done", "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])


def over_grpc(c, ids, n, stream):
    """("done", tokens) or (status, its details)."""
    try:
        return "done", c.streamed(ids, n, 300) if stream else c.tokens(ids, n, 300)
    except grpc.RpcError as e:
        return e.code().name, e.details()


class Calls:
    """`each` calls of every kind at once: streamed and whole, over HTTP and gRPC. ended: (kind, prompt, answer, when it ended)."""

    def __init__(self, c, tag, each, n):
        self.c, self.n, self.ended, self.problems = c, n, [], []
        kinds = [(f.__name__, f, stream) for f in (over_http, over_grpc) for stream in (True, False)]
        calls = [(f"{name} stream={stream}", f, stream, real.prompt(f"{tag}{i}.{k}", 60))
                 for i in range(each) for k, (name, f, stream) in enumerate(kinds)]
        self.threads = [threading.Thread(target=self.run, args=call, daemon=True) for call in calls]
        for t in self.threads:
            t.start()
        real.until("every call to be there", lambda: self.problems or self.there() >= len(self.threads))

    def there(self):
        return self.c.status()["active"] + len(self.ended)

    def run(self, kind, f, stream, ids):
        try:
            answer = f(self.c, ids, self.n, stream)
            self.ended.append((kind, ids, answer, time.monotonic()))
        except Exception as e:  # shown by check
            self.problems.append(f"{kind}: {type(e).__name__}: {e}")

    def check(self, limit):
        """Every client got an answer: the right one, or an error with the reason. Returns the kinds of the calls that got an error, and
        the time of the last answer."""
        for t in self.threads:
            t.join(limit)
        assert not any(t.is_alive() for t in self.threads), "a client waits for ever"
        assert not self.problems, self.problems
        told = []
        for kind, ids, (outcome, what), _ in self.ended:
            if outcome == "done":
                want = real.document(ids, self.n)
                assert what == (want["text"] if "http" in kind else want["ids"]), kind
            else:
                assert outcome == ("service_unavailable" if "http" in kind else "UNAVAILABLE") and SHUTTING in what, (kind, outcome, what)
                told.append(kind)
        return told, max(at for *_, at in self.ended)


@pytest.mark.parametrize("router_first, options", [(False, {"decode.max_batch": 1, "prefill.max_requests": 1}), (True, {"kvstore.bytes": "4MiB"})],
                         ids=["queue", "store"])
def test_sigterm_to_all_ranks(start, router_first, options):
    """Every process drains at once: what was accepted is served, what waited in the router's queue and what a small store has retracted
    included. Then all end, long before stage_timeout_ms or drain_timeout_ms."""
    limit = 200
    c = start(roles=("router", "prefill", "decode"),
              **{**options, "router.stage_timeout_ms": limit * 1000, "router.drain_timeout_ms": limit * 1000})
    calls = Calls(c, "ranks", 3, 200)
    pids = [w["pid"] for w in c.workers()] + [c.router_pid()]
    begin = time.monotonic()
    for pid in reversed(pids) if router_first else pids:
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)
    told, last = calls.check(limit)
    assert not told, f"accepted and not served: {told}"
    assert last - begin < limit / 2
    real.until("every process to end", lambda: not set(pids) & set(real.marked()), limit / 2 / real.PATIENCE)


def test_drain_timeout_is_told_to_every_client(start):
    """Requests that do not end within drain_timeout_ms: streams get the error event, calls a body with 503, gRPC its status."""
    c = start(roles=("router", "prefill", "decode"), **{"decode.max_batch": 5, "router.drain_timeout_ms": 1000})
    calls = Calls(c, "late", 2, 12000)
    real.until("some of them to run", lambda: c.worker("decode/0")["running"] >= 4 and c.worker("decode/0")["tokens_done"] > 20)
    pid = c.router_pid()
    os.kill(pid, signal.SIGTERM)
    told, _ = calls.check(60)
    assert len(told) == len(calls.threads), f"{len(told)} of {len(calls.threads)} were told; the others had ended before"
    real.until("the router to end", lambda: pid not in real.marked())
    c.logged("ev=drain_end .*status=deadline", 5)


def test_probes(start, tmp_path):
    """/health/live is about the router alone, /health/ready about the service; both without a key."""
    (tmp_path / "key").write_text("the-key\n")
    r = start(real.Process, "router", **QUICK, **{"router.api_key_file": tmp_path / "key"})
    r.key = "the-key"

    def probes():
        live, ready = (requests.get(r.http + path, timeout=30) for path in ("/health/live", "/health/ready"))
        return live.status_code, ready.status_code, ready.json()["status"]

    waiting, ready = (200, 503, "waiting for workers"), (200, 200, "ok")
    assert probes() == waiting
    start(real.Process, "prefill", 0, r.worker_address, **QUICK)
    r.wait_ready(1)
    assert probes() == waiting, "one role is missing"
    decode = start(real.Process, "decode", 0, r.worker_address, **QUICK)
    real.until("both roles", lambda: probes() == ready)
    assert requests.get(r.http + "/health", timeout=30).json() == requests.get(r.http + "/health/ready", timeout=30).json()
    decode.process.kill()
    real.until("the loss to be seen", lambda: probes() == waiting)
    start(real.Process, "decode", 1, r.worker_address, **QUICK)
    real.until("the replacement", lambda: probes() == ready)
    with r.channel() as channel:
        call = r.stub(channel).Generate(r.request(real.prompt("probes", 60), 12000, stream=True), timeout=240)
        next(call)
        os.kill(r.process.pid, signal.SIGTERM)
        real.until("the drain", lambda: probes() == (200, 503, "draining"))
        call.cancel()
    assert r.process.wait(60) == 0
