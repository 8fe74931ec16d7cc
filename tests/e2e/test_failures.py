"""Deaths, hangs, aborts, full stores and drains of a real cluster. What must hold every time: a stream that survives has the tokens
that it would have had without the failure, and afterwards all pages are released."""

import json
import os
import re
import signal
import socket
import threading
import time

import grpc
import openai
import pytest

import clients
import real
from streams import QUICK, Streams, all_have, has, jobs, one_more, retries, streams_when


# ---- workers killed ----


def test_prefill_killed_while_prefilling(start):
    c = start(roles=("router", "prefill", "prefill", "decode"), **QUICK, **{"prefill.chunk_tokens": 32})
    streams, victim = streams_when(c, "pk", 14, has(c, "prefill/0", 4), prompt=800, out=20)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    assert retries(c) >= 1, "no stream was interrupted: the test shows nothing"
    assert c.process.poll() is None, "mpirun ended with the worker"
    assert len(c.workers()) == 2
    one_more(c)
    c.idle()


def test_only_prefill_killed_and_another_joins_late(start):
    """Without any prefill worker requests wait; a worker that joins without MPI takes them."""
    c = start(**QUICK, **{"prefill.chunk_tokens": 32})
    streams, victim = streams_when(c, "pj", 8, has(c, "prefill/0", 4), prompt=800, out=30)
    os.kill(victim["pid"], signal.SIGKILL)
    real.until("its loss seen", lambda: not c.workers("prefill"))
    assert c.get("/health").status_code == 503
    start(real.Process, "prefill", 7, c.worker_address, **QUICK)
    streams.check()
    assert c.worker("prefill/7")["tokens_done"] > 0
    assert c.get("/health").status_code == 200
    c.idle()


@pytest.mark.parametrize("tls", ["", "tcp,self"], ids=["any", "tcp"])
def test_decode_killed_in_mid_stream(start, tls):
    c = start(**QUICK, **({"cluster.tls": tls} if tls else {}))
    def in_the_middle():
        w = max(c.workers("decode"), key=lambda w: w["running"])
        return w if w["running"] >= 3 and w["tokens_done"] >= 150 else None
    streams, victim = streams_when(c, "dk", 10, in_the_middle, prompt=100, out=500)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    text = c.get("/metrics").text
    assert real.metric(text, "sluice_stream_resumes_total") >= 2
    assert real.metric(text, "sluice_worker_failures_total", 'role="decode"') == 1
    assert c.process.poll() is None
    one_more(c)
    c.idle()


def test_decode_killed_while_rows_arrive(start):
    c = start(**QUICK, **{"prefill.chunk_tokens": 16})
    pid = c.pid("decode/0")
    streams, _ = streams_when(c, "dt", 10, all_have(c, "decode", 3), prompt=600, out=20)
    os.kill(pid, signal.SIGKILL)
    streams.check()
    assert retries(c) >= 1
    one_more(c)
    c.idle()


def test_workers_killed_over_and_over(start):
    """Workers of both roles are killed under load, and a new process replaces each. Every stream has the tokens of one process."""
    c = start(real.Process, "router", **QUICK, **{"router.retries": 20})
    def worker(role, i):
        return start(real.Process, role, i, c.worker_address, **QUICK, **{"prefill.chunk_tokens": 64})
    alive = [worker(role, i) for role in ("prefill", "decode") for i in range(2)]
    c.wait_ready(4)
    streams = [Streams(c, jobs("oo", 16, prompt=120, out=400))]
    streams[0].until_streaming(1, 4)
    for turn in range(6):
        k = turn % len(alive)
        if turn == len(alive):  # a request on which three workers of a role die, without eight tokens in between, is refused
            streams[0].until_all_go_on(8)
            streams.append(Streams(c, jobs("op", 6, prompt=400, out=100)))
        alive[k].process.kill()
        alive[k].process.wait(60)
        alive[k] = worker(alive[k].role, 10 + turn)
        real.until("the new worker", lambda t=turn, role=alive[k].role: c.worker(f"{role}/{10 + t}"), 20)
        time.sleep(0.2)
    for s in streams:
        s.check()
    c.idle()
    assert len(c.workers()) == 4


@pytest.mark.parametrize("api", ["http", "grpc"])
def test_query_of_death(start, api):
    """Every prefill worker that computes one request is killed: the request is refused in the end, with its id in the log, and what its
    neighbours get is right."""
    r = start(real.Process, "router", **QUICK, **{"router.retries": 20})
    start(real.Process, "decode", 0, r.worker_address, **QUICK)
    died, killer = [], real.prompt(f"death{api}", 4000)
    victim = start(real.Process, "prefill", 0, r.worker_address, **QUICK)
    r.wait_ready(2)
    neighbours = Streams(r, jobs(f"near{api}", 4, prompt=60, out=600))
    neighbours.until_streaming(1, 4)

    def ask():
        if api == "grpc":
            try:
                r.tokens(killer, 5)
            except grpc.RpcError as e:
                died.append((e.code().name, e.details()))
        else:
            answer = r.post({"prompt": killer, "max_tokens": 5, "temperature": 0})
            died.append((answer.status_code, answer.text))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    for turn in range(1, 12):
        name = f"prefill/{turn - 1}"
        real.until("the request at a worker", lambda n=name: died or (r.worker(n) or {}).get("running"), 60, 0.005)
        if died:
            break
        victim.process.kill()
        victim.process.wait(60)
        victim = start(real.Process, "prefill", turn, r.worker_address, **QUICK)
    asking.join(60)
    assert died and died[0][0] in (500, "INTERNAL") and "every worker that computed this request died" in died[0][1], died
    r.logged("ev=request_kills_workers rid=[0-9a-f]+ id=\\S+ deaths=[3-9]", 10)
    neighbours.check()
    one_more(r)


# ---- workers that hang ----


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_hanging_worker_is_dead_and_comes_back(start, role):
    """SIGSTOP for longer than dead_after: its requests recover elsewhere. SIGCONT: it learns that it was declared dead and joins again,
    and the rows that it still writes damage no other request."""
    roles = ("router", "prefill", "prefill", "decode", "decode")
    c = start(roles=roles, **QUICK, **{"prefill.chunk_tokens": 32})
    pid = c.pid(f"{role}/0")
    if role == "decode":
        streams = Streams(c, jobs(f"hang{role}", 12, prompt=300, out=250))
        streams.until_streaming(20, 6)
    else:
        streams, _ = streams_when(c, f"hang{role}", 12, has(c, "prefill/0", 3), prompt=300, out=250)
    os.kill(pid, signal.SIGSTOP)
    try:
        real.until("the hang seen", lambda: not c.worker(f"{role}/0"), 15)
        more = Streams(c, jobs(f"hangmore{role}", 6, prompt=150, out=40))
        streams.check()
    finally:
        os.kill(pid, signal.SIGCONT)
    more.check()
    real.until("the worker to join again", lambda: c.worker(f"{role}/0"), 20)
    again = Streams(c, jobs(f"hangafter{role}", 8, prompt=200, out=40))
    again.check()
    c.idle()
    assert c.worker(f"{role}/0")["pid"] == pid and len(c.workers()) == 4


# ---- the router ----


def test_router_restarts_and_workers_come_back(start):
    port = real.free_ports(1)
    router = start(real.Process, "router", **QUICK, **{"cluster.router_port": port})
    workers = [start(real.Process, role, 0, f"127.0.0.1:{port}", **QUICK) for role in ("prefill", "decode")]
    router.wait_ready(2)
    one_more(router)
    broken = threading.Thread(target=lambda: pytest.raises(grpc.RpcError, router.tokens, real.prompt("rr", 50), 12000), daemon=True)
    broken.start()
    real.until("a request in work", lambda: router.status()["active"], 10, 0.001)
    router.process.kill()
    router.process.wait(60)
    broken.join(60)
    assert not broken.is_alive(), "the client hangs"
    assert all(w.process.poll() is None for w in workers)
    router = start(real.Process, "router", **QUICK, **{"cluster.router_port": port})
    router.wait_ready(2)
    one_more(router)
    router.idle()  # the request of the dead router gave its pages back
    assert router.close() and router.process.returncode == 0  # and now in order: workers do not drain with their router
    router = start(real.Process, "router", **QUICK, **{"cluster.router_port": port})
    router.wait_ready(2)
    one_more(router)
    router.idle()


def test_router_killed_under_mpirun(start):
    """Nothing hangs: mpirun keeps running without it until it is asked to end, and then ends every process."""
    c = start(**QUICK)
    os.kill(c.router_pid(), signal.SIGKILL)
    c.logged("router_lost|lost the router|ev=router", 10)
    assert c.process.poll() is None or c.process.returncode != 0
    assert c.close(20)


# ---- clients that leave ----


def test_aborts_at_every_stage(start):
    """Clients cancel after times that fall into every stage; pages return each time."""
    c = start(roles=("router", "prefill", "decode"), **{"prefill.chunk_tokens": 16, "prefill.max_requests": 2, "decode.max_batch": 4})
    def leave(i):
        delay = 0.004 * i * i / 4
        with c.channel() as channel:
            call = c.stub(channel).Generate(c.request(real.prompt(f"ab{i}", 40 * (i % 20) + 10), 3000, stream=True), timeout=240)
            time.sleep(delay)
            call.cancel()
    for _ in range(3):
        real.in_parallel([lambda i=i: leave(i) for i in range(20)])
        c.idle()
    outcomes = set(re.findall(r"ev=request_done .*outcome=(\w+)", c.text()))
    assert "cancelled" in outcomes
    one_more(c)
    c.idle()


def test_abort_call_and_closed_stream(start):
    c = start(roles=("router", "prefill", "decode"))
    pb, _, _ = clients.protocol()
    ids = real.prompt("abort", 100)
    with c.channel() as channel:
        stub = c.stub(channel)
        call = stub.Generate(c.request(ids, 12000, stream=True, request_id="to-abort"), timeout=240)
        next(call)
        assert stub.Abort(pb.AbortRequest(request_id="to-abort"), timeout=30).success
        last = list(call)[-1]
        assert last.complete.finish_reason == "abort"
        got = list(last.complete.output_ids)
        assert got == real.reference(ids, 2000)[:len(got)] or len(got) > 2000
    c.idle()
    before = c.text().count("outcome=cancelled")
    stream = c.openai().completions.create(model=c.model, prompt=ids, max_tokens=12000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    c.idle()
    assert c.text().count("outcome=cancelled") == before + 1, "the disconnect must cancel"


def test_clients_that_vanish(start):
    """Clients reset their connections (RST) at random moments of HTTP requests."""
    c = start()
    host, port = c.http.split("//")[1].split(":")
    def vanish(i):
        body = json.dumps({"model": c.model, "prompt": real.prompt(f"v{i}", 200 + i), "max_tokens": 5000, "stream": i % 2 == 0,
                           "ignore_eos": True}).encode()
        s = socket.create_connection((host, int(port)), timeout=60)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.02 * i)
        s.close()
    real.in_parallel([lambda i=i: vanish(i) for i in range(24)])
    c.idle()
    one_more(c)


# ---- pages and places run out ----


def test_pages_run_out_and_requests_still_finish(start):
    """A store that is much too small for all requests at once: the newest are retracted to the queue, and every stream is still right."""
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.bytes": "4MiB"})
    total = c.worker("decode/0")["total_pages"]
    todo = jobs("ret", 12, prompt=64, out=400)
    assert sum((len(ids) + n) // 64 for ids, n, _ in todo) > 2 * total
    Streams(c, todo).check()
    assert real.metric(c.metrics(2), "sluice_decode_retractions_total") > 0, "nothing was retracted: the test shows nothing"
    c.idle()


def test_a_request_that_can_never_fit(start):
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.bytes": "4MiB"})
    total = c.worker("decode/0")["total_pages"]
    with pytest.raises(grpc.RpcError) as e:
        c.tokens(real.prompt("big", 64 * total + 1), 10)
    assert e.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT), e.value
    ids = real.prompt("grow", 64)  # grows beyond the store while it is alone: it must end, not hang
    try:
        got = c.complete(ids, 64 * total + 10)
        assert list(got.output_ids) == real.reference(ids, len(got.output_ids))
    except grpc.RpcError as err:
        assert err.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT), err
    one_more(c)
    c.idle()


def test_full_queue(start):
    c = start(roles=("router", "prefill", "decode"), **{"router.max_queue": 2, "decode.max_batch": 1, "prefill.max_requests": 1})
    held = []
    with c.channel() as channel:
        stub = c.stub(channel)
        def rejected():
            call = stub.Generate(c.request(real.prompt(f"q{len(held)}", 30), 12000, stream=True), timeout=240)
            held.append(call)
            time.sleep(0.05)
            return c.status()["queued"] >= 2
        real.until("a full queue", rejected, 20)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as e:
            c.tokens([30, 31], 5)
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(openai.RateLimitError):
            c.openai().completions.create(model=c.model, prompt="x", max_tokens=5)
        assert time.monotonic() - began < 20, "the answer must come at once"
        for call in held:
            call.cancel()
    c.idle()
    one_more(c)


def test_deadlines(start):
    c = start(roles=("router", "prefill", "decode"), **{"router.request_timeout_ms": 1000})
    with pytest.raises(grpc.RpcError) as e:
        c.tokens(real.prompt("dl", 30), 12000, timeout=0.3)
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    c.idle(3)
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as e:
        c.tokens(real.prompt("dl", 30), 12000)
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - began < 30
    r = c.post({"prompt": real.prompt("dl", 30), "max_tokens": 12000, "ignore_eos": True})
    assert r.status_code == 504 and r.json()["error"]["code"] == "deadline_exceeded"
    c.idle(3)
    one_more(c)


# ---- drain ----


def test_drain_of_the_router(start):
    """SIGTERM to the router: running and waiting requests finish, new ones are refused at once."""
    c = start(roles=("router", "prefill", "decode"), **{"decode.max_batch": 2, "prefill.max_requests": 1})
    streams = Streams(c, jobs("drain", 7, prompt=60, out=500))
    def all_there():
        s = c.status()  # a request that has not arrived when the drain begins may be refused
        return s["queued"] >= 2 and s["active"] + sum(g is not None for g in streams.got) >= 7 and max(streams.progress) > 5
    real.until("some to run and some to wait", all_there)
    pid = c.router_pid()
    os.kill(pid, signal.SIGTERM)
    real.until("the drain", lambda: c.get("/health").status_code == 503, 5)
    assert c.post({"prompt": "x", "max_tokens": 4}).status_code == 503
    streams.check()
    real.until("its end", lambda: pid not in real.marked(), 10)
    assert "outcome=failed" not in c.text()


def test_sigterm_ends_the_job(start):
    """SIGTERM to mpirun while requests run: it ends all processes soon, and does not wait for the requests."""
    c = start()
    calls = [c.stub(c.channel()).Generate(c.request(real.prompt(f"end{i}", 50), 12000, stream=True), timeout=240) for i in range(4)]
    [next(call) for call in calls]
    began = time.monotonic()
    assert c.close(10), "mpirun had to be killed"
    assert time.monotonic() - began < 30
    for call in calls:
        with pytest.raises(grpc.RpcError):
            list(call)


def test_drain_of_one_decode_worker(start):
    """SIGTERM to a worker: its requests finish or move to another worker, and the cluster continues without it."""
    c = start()
    streams = Streams(c, jobs("wdrain", 8, prompt=60, out=500))
    streams.until_streaming(20, 6)
    pid = c.pid("decode/0")
    os.kill(pid, signal.SIGTERM)
    streams.check()
    real.until("the worker to leave", lambda: not c.worker("decode/0"), 20)
    one_more(c)
    assert real.metric(c.get("/metrics").text, "sluice_worker_failures_total", 'role="decode"') == 0, "leaving is no failure"
    c.logged("ev=worker_left worker=decode/0", 5)
    c.idle()
