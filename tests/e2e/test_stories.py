"""Failures that users of other disaggregated servers have reported, told again here: numbers are those of the table of stories in the
project's notes on disaggregation. Every stream must have the tokens of one process."""

import os
import signal
import threading
import time

import grpc
import pytest

import clients
import real
from streams import QUICK, Streams, jobs, one_more, retries, sampling


def answers(c, todo, clients_=16, timeout=120):
    """Tokens of all requests of todo, (ids, n, sampling) each, by `clients_` clients over one connection."""
    got, at, lock = [None] * len(todo), iter(range(len(todo))), threading.Lock()
    with c.channel() as channel:
        stub = c.stub(channel)

        def client():
            while True:
                with lock:
                    i = next(at, None)
                if i is None:
                    return
                ids, n, kw = todo[i]
                replies = list(stub.Generate(c.request(ids, n, **kw), timeout=timeout))
                got[i] = list(replies[-1].complete.output_ids)

        real.in_parallel([client] * clients_)
    return got


def test_2_a_thousand_requests_over_tcp(start):
    """Garbage after some hundred requests: pages are taken again and again, from a store that holds few requests."""
    c = start(roles=("router", "prefill", "prefill", "decode", "decode"), **{"cluster.tls": "tcp,self", "kvstore.bytes": "4MiB"})
    kinds = [(real.prompt(f"thousand{i}", 60 + 17 * (i % 9)), 6 + i % 5, sampling(i)) for i in range(40)]
    want = [real.reference(ids, n, **kw) for ids, n, kw in kinds]
    order = [(7 * i + i // 40) % 40 for i in range(1000)]
    got = answers(c, [kinds[k] for k in order])
    wrong = [i for i, k in enumerate(order) if got[i] != want[k]]
    assert not wrong, f"{len(wrong)} of 1000 differ, the first is request {wrong[0]}"
    assert not retries(c)
    c.idle()


def test_4_requests_wait_longer_than_their_pages_are_promised(start):
    """Rows lie in the decode worker's pages, verified, for many times the time that a writer has: they are not given away."""
    c = start(roles=("router", "prefill", "decode"), **{"decode.max_batch": 1, "router.stage_timeout_ms": 4000})
    streams = Streams(c, jobs("lease", 6, prompt=150, out=900))
    streams.until_streaming()
    real.until("requests that wait with their rows", lambda: c.worker("decode/0")["waiting"] >= 2 or not streams.running())
    streams.check()
    c.idle()


def test_14_five_hundred_clients_at_once(own):
    """Every client of a cluster of 64 workers comes in the moment in which it is ready; eight workers die meanwhile."""
    c = own("--prefill", 32, "--decode", 32, "--max-queue", 2000, "--step-us", 500)
    pb, services, _ = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        stub = services.SglangSchedulerStub(channel)
        real.until("64 workers", lambda: len([w for w in clients_workers(c) if w["state"] == "ready"]) == 64)

        def request(i):
            return pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[1 + i % 200] * (20 + i % 180)), stream=True,
                                      sampling_params=pb.SamplingParams(max_new_tokens=30, ignore_eos=True))
        calls = [stub.Generate(request(i), timeout=120) for i in range(500)]
        for n in range(28, 36):
            c.command(f"kill {n}")
        for i, call in enumerate(calls):
            last = list(call)[-1].complete
            assert (last.finish_reason, len(last.output_ids)) == ("length", 30), f"client {i}"
        real.until("56 workers", lambda: len([w for w in clients_workers(c) if w["state"] == "ready"]) == 56)
    clients.until_idle(c)


def clients_workers(c):
    import requests
    return requests.get(c.http + "/workers", headers={"Authorization": f"Bearer {c.key}"}, timeout=30).json()["workers"]


def test_20_idle_then_traffic(start):
    """Idle for 100 heartbeats, 10 times every limit of liveness and of connections: nothing is lost, and the next requests are
    served at the first attempt, those of a client whose connection stood all the while too."""
    c = start(**{"cluster.dead_after_ms": 2000, "cluster.connect_timeout_ms": 2000})
    pids = {w["name"]: w["pid"] for w in c.workers()}
    ids = real.prompt("idle", 200)
    want = real.reference(ids, 30)
    with c.channel() as channel:
        stub = c.stub(channel)
        assert list(list(stub.Generate(c.request(ids, 30), timeout=60))[-1].complete.output_ids) == want
        time.sleep(20)
        assert list(list(stub.Generate(c.request(ids, 30), timeout=60))[-1].complete.output_ids) == want
    Streams(c, jobs("idle", 8, prompt=100, out=40)).check()
    assert not retries(c)
    assert {w["name"]: w["pid"] for w in c.workers()} == pids
    text = c.get("/metrics").text
    assert not sum(real.metric(text, "sluice_worker_failures_total", f'role="{r}"') or 0 for r in ("prefill", "decode"))


def test_21_overload_then_drain_to_nothing(start):
    """Ten seconds of more requests than there are places and pages, some of which give up; then everything is back."""
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.bytes": "4MiB", "router.max_queue": 24, "decode.max_batch": 4})
    kinds = [(real.prompt(f"over{i}", 100 + 90 * i), 60) for i in range(6)]
    want = [real.reference(ids, n) for ids, n in kinds]
    end, counts, wrong = time.monotonic() + 10, {}, []

    def client(i):
        while time.monotonic() < end:
            k, patience = i % 6, 0.3 if i % 4 == 0 else 120
            try:
                ok = c.tokens(*kinds[k], timeout=patience) == want[k]
                what = "done" if ok else "wrong"
                if not ok:
                    wrong.append(k)
            except grpc.RpcError as e:
                what = e.code().name
            counts[what] = counts.get(what, 0) + 1
            i += 7
            time.sleep(0.01)

    real.in_parallel([lambda i=i: client(i) for i in range(48)])
    assert not wrong
    assert set(counts) <= {"done", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"} and counts["done"] and len(counts) > 1, counts
    c.idle()
    text = c.get("/metrics").text
    assert real.metric(text, "sluice_requests_waiting") == 0
    decode = c.metrics(2)
    assert all(real.metric(decode, "sluice_tickets", f'state="{s}"') == 0 for s in ("reserved", "filling", "draining"))
    one_more(c)


def test_26_arrivals_while_frees_are_late(start):
    """84 % of the pages are in use when half of the requests are given up; their pages cannot be freed, because the prefill worker
    that may still write them is stopped, and new requests arrive. When it continues, all are served."""
    c = start(roles=("router", "prefill", "decode"), **{**QUICK, "cluster.dead_after_ms": 10000, "kvstore.bytes": "8MiB",
                                                        "prefill.chunk_tokens": 64})
    total = c.all_pages()["decode/0"]
    with c.channel() as channel:
        stub = c.stub(channel)
        held, prefill = [], c.pid("prefill/0")

        def used():
            w = c.worker("decode/0")
            return (w["total_pages"] - w["free_pages"] - w["cached_pages"]) / total
        per_request = 8  # and they grow
        for i in range(int(0.84 * total / per_request)):
            ids = real.prompt(f"held{i}", 64 * per_request - 100)
            call = stub.Generate(c.request(ids, 3000, stream=True), timeout=240)
            next(call)
            held.append(call)
        os.kill(prefill, signal.SIGSTOP)
        try:
            late = [stub.Generate(c.request(real.prompt(f"late{i}", 250), 200, stream=True), timeout=240) for i in range(4)]
            real.until("84 % of the pages", lambda: used() >= 0.84, 15)
            for call in held[::2] + late:
                call.cancel()
            arrivals = Streams(c, jobs("arrival", 6, prompt=200, out=60))
            time.sleep(1)
        finally:
            os.kill(prefill, signal.SIGCONT)
        arrivals.check()
        for call in held[1::2]:
            call.cancel()
    c.idle()
    one_more(c)
