"""Deaths, hangs, aborts and bad input against a real cluster. What must hold every time: a stream that survives is the stream that
would have been, and afterwards all pages are back."""

import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import grpc
import openai
import pytest
import requests

import clients
import real

QUICK = {"cluster.heartbeat_ms": 100, "cluster.dead_after_ms": 2500}  # a busy machine is no dead worker
NO_GATES = "the kernel takes no socket filter"  # said by a process that may not attach one
SAMPLED = {"temperature": 0.9, "top_p": 0.95}


def jobs(tag, n, prompt=300, out=200):
    """(ids, tokens wanted, sampling) of n requests, every third one sampled."""
    return [(real.prompt(f"{tag}{i}", prompt + 13 * (i % 7)), out + 11 * (i % 5), {"seed": i, **SAMPLED} if i % 3 == 0 else {})
            for i in range(n)]


class Streams:
    """Requests in flight on their own threads; progress is the tokens each has got."""

    def __init__(self, cluster, todo, timeout=300):
        self.todo, self.got, self.errors = todo, [None] * len(todo), []
        self.progress = [0] * len(todo)
        self.want = [real.reference(ids, n, **kw) for ids, n, kw in todo]
        self.threads = [threading.Thread(target=self.run, args=(cluster, i, timeout), daemon=True) for i in range(len(todo))]
        for t in self.threads:
            t.start()

    def run(self, cluster, i, timeout):
        ids, n, kw = self.todo[i]

        def on_token(so_far):
            self.progress[i] = so_far

        try:
            self.got[i] = cluster.streamed(ids, n, timeout, on_token=on_token, **kw)
        except Exception as e:  # shown by check
            self.errors.append(f"request {i}: {e}")

    def until_streaming(self, tokens=1, requests_=1, seconds=30):
        real.until("streams under way", lambda: self.errors or sum(p >= tokens for p in self.progress) >= requests_, seconds, 0.002)

    def running(self):
        return any(t.is_alive() for t in self.threads)

    def check(self, limit=320):
        deadline = time.monotonic() + limit
        for t in self.threads:
            t.join(max(0.1, deadline - time.monotonic()))
        hanging = [i for i, t in enumerate(self.threads) if t.is_alive()]
        assert not hanging, f"requests {hanging} hang"
        assert not self.errors, self.errors
        wrong = [i for i in range(len(self.todo)) if self.got[i] != self.want[i]]
        assert not wrong, "; ".join(f"request {i} differs from token {first_difference(self.got[i], self.want[i])} on" for i in wrong)


def streams_when(c, tag, n, state, **sizes):
    """n streams while state() holds, and what it returned. On a busy machine all may be over before anyone has looked: then they
    are checked, and as many others begin."""
    for wave in range(8):
        streams = Streams(c, jobs(f"{tag}.{wave}.", n, **sizes))
        while streams.running():
            if value := state():
                return streams, value
            time.sleep(0.002)
        streams.check()
    raise AssertionError("eight times over before anyone had looked")


def first_difference(a, b):
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def retries(c):
    return real.metric(c.get("/metrics").text, "sluice_request_retries_total") or 0


def one_more(c, tag="after"):
    """The cluster serves."""
    ids = real.prompt(tag, 150)
    assert c.tokens(ids, 20) == real.reference(ids, 20)


# ---- workers killed ----


def has(c, name, placed):
    """Tells whether the worker has so many requests: it, or None."""
    def busy():
        w = c.worker(name)
        return w if w and w["placed"] >= placed else None
    return busy


def all_have(c, role, placed):
    return lambda: all(w["placed"] >= placed for w in c.workers(role))


def test_prefill_killed_while_prefilling(start):
    c = start(roles=("router", "prefill", "prefill", "decode"), **QUICK, **{"prefill.chunk_tokens": 32})
    streams, victim = streams_when(c, "pk", 14, has(c, "prefill/0", 4), prompt=800, out=20)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    assert retries(c) >= 1, "nobody was hit: the test shows nothing"
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
    streams = Streams(c, jobs("dk", 10, prompt=100, out=500))
    streams.until_streaming(50, 7)
    victim = max(c.workers("decode"), key=lambda w: w["running"])
    assert victim["running"] >= 2
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
    """Deaths of either role under load; a new process takes each place. Every stream is undisturbed."""
    c = start(real.Process, "router", **QUICK, **{"router.retries": 20})
    def worker(role, i):
        return start(real.Process, role, i, c.worker_address, **QUICK, **{"prefill.chunk_tokens": 64})
    alive = [worker(role, i) for role in ("prefill", "decode") for i in range(2)]
    c.wait_ready(4)
    streams = Streams(c, jobs("oo", 16, prompt=120, out=400))
    streams.until_streaming(1, 4)
    for turn in range(6):
        k = turn % len(alive)
        alive[k].process.kill()
        alive[k].process.wait(60)
        alive[k] = worker(alive[k].role, 10 + turn)
        real.until("the new worker", lambda t=turn, role=alive[k].role: c.worker(f"{role}/{10 + t}"), 20)
        time.sleep(0.2)
    streams.check()
    c.idle()
    assert len(c.workers()) == 4


# ---- workers that hang ----


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_hanging_worker_is_dead_and_comes_back(start, role):
    """SIGSTOP beyond dead_after: recovered elsewhere. SIGCONT: it finds itself dead, joins again, and what it still had to write
    damages nobody."""
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
    """Nothing hangs: mpirun goes on without it until it is told to end, and ends everything then."""
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
    """Sockets closed without a word (RST) at random moments of HTTP requests."""
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
    """A store far too small for all requests at once: the youngest are put back, and every stream is still the right one."""
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
    """SIGTERM to the router: what runs and what waits finishes, new requests are turned away at once."""
    c = start(roles=("router", "prefill", "decode"), **{"decode.max_batch": 2, "prefill.max_requests": 1})
    streams = Streams(c, jobs("drain", 7, prompt=60, out=500))
    def all_there():
        s = c.status()  # a request that is still on its way when the drain begins may be turned away
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
    """SIGTERM to mpirun in the middle of work: it ends everything soon, whatever runs."""
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
    """SIGTERM to a worker: its requests finish or move, the cluster goes on with the other."""
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


# ---- those who do not belong here ----


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean):
    c = real.Cluster(tmp_path_factory.mktemp("bad"))
    yield c
    assert c.close(), f"had to be killed:\n{c.tail()}"


def refused(start, cluster, role, reason, **settings):
    p = start(real.Process, role, 9, cluster.worker_address, **settings)
    p.logged(reason, 15)
    p.process.wait(60)
    assert p.process.returncode != 0, "a refused worker ends with an error"
    assert cluster.worker(f"{role}/9") is None
    one_more(cluster)


def test_wrong_cluster_tag_is_refused(start, cluster):
    refused(start, cluster, "decode", r"cluster\.tag is 'other', this cluster is 'sluice'", **{"cluster.tag": "other"})


def test_wrong_page_geometry_is_refused(start, cluster):
    refused(start, cluster, "decode", r"page geometry differs", **{"kvstore.layout": "layer_first"})
    cluster.logged("ev=worker_refused .*geometry", 5)


def test_wrong_convention_is_refused(start, cluster):
    refused(start, cluster, "prefill", r"fingerprint \w+ differs|geometry differs", **{"model.indexer": "official"})


def test_wrong_model_is_refused(start, cluster):
    refused(start, cluster, "decode", r"model is '.*', this cluster serves 'tiny-v32'", **{"model.path": "tests/golden/model/ds-yarn"})


def test_same_name_other_weights_is_refused(start, cluster, tmp_path):
    config = json.loads((real.MODEL / "config.json").read_text())
    other = tmp_path / "tiny-v32"
    other.mkdir()
    for f in real.MODEL.iterdir():
        (other / f.name).write_bytes(f.read_bytes())
    config["rope_parameters"]["rope_theta"] = 12000.0
    (other / "config.json").write_text(json.dumps(config))
    refused(start, cluster, "decode", r"fingerprint \w+ differs", **{"model.path": other})


def test_nobody_there(start):
    """A worker whose router does not answer keeps trying, says so, and ends on SIGTERM."""
    p = start(real.Process, "prefill", 1, f"127.0.0.1:{real.free_ports(1)}", **{"cluster.connect_timeout_ms": 500})
    p.logged(r"level=warn.*router", 10)
    assert p.process.poll() is None
    assert p.close(10) and p.process.returncode == 0


# ---- bytes that are no request ----


def listening(pids):
    """TCP addresses on which these processes listen."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = []
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        f = line.split()
        if f[3] == "0A" and f[9] in inodes:
            found.append(int(f[1].split(":")[1], 16))
    return sorted(found)


GARBAGE = [os.urandom(4096), bytes(range(256)) * 20, b"\0" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"A",
           b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 300, b"\x16\x03\x01\x02\x00" + b"x" * 600]


def throw(port, data, wait=0.05):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            s.sendall(data)
            s.settimeout(wait)
            s.recv(65536)
    except OSError:
        pass


def worker_ports(c):
    """Ports where workers connect: the router's and the decode workers'."""
    return {int(a.rsplit(":", 1)[1]) for a in [c.worker_address] + [w["listen"] for w in c.workers("decode")]}


def public_ports(c, pids):
    """HTTP, gRPC and the workers' metrics: where anybody may connect."""
    return {int(a.rsplit(":", 1)[1]) for a in (c.http, c.grpc)} | set(range(c.metrics_port + 1, c.metrics_port + len(pids)))


def reachable(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.15).close()
        return True
    except OSError:
        return False


def test_garbage_on_every_port(cluster):
    """Every port of every process: those for anybody, those for workers, and UCX's own, which nobody reaches."""
    workers = sorted(w["pid"] for w in cluster.workers())
    pids = workers + [cluster.router_pid()]
    ports, doors, public = set(listening(pids)), worker_ports(cluster), public_ports(cluster, pids)
    assert doors | public <= ports
    behind = ports - doors - public
    assert len(behind) >= len(pids) + 3, f"every process has a data socket, three have a listener of UCX: {behind}"
    gates = NO_GATES not in cluster.text()
    if gates:
        real.until("UCX's own ports to be shut", lambda: not any(reachable(p) for p in behind), 60, 0.5)
    for port in sorted(doors | public):
        for data in GARBAGE:
            throw(port, data)
        one_more(cluster)
    assert sorted(w["pid"] for w in cluster.workers()) == workers, f"somebody died:\n{cluster.tail()}"
    cluster.idle()
    if not gates:
        pytest.skip(f"all but UCX's own ports, which are open here: {NO_GATES}")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def knock(port, version=1):
    """What a worker says at a door (docs/protocol.md)."""
    body = struct.pack("<HH", 0, port)
    head = b"SLUICEDR" + struct.pack("<HHI", version, 1, len(body))
    return head + struct.pack("<I", crc32c(head + body)) + body


def strange_bytes(rng):
    """What no worker says, and what a worker says only in part."""
    whole = knock(40000)
    yield from GARBAGE
    yield from (rng.randbytes(n) for n in [*range(0, 65), 100, 500, 1000, 4096, 20000, 100000])
    yield from (whole[:n] for n in range(len(whole)))
    yield from (whole[:i] + bytes([whole[i] ^ 1 << rng.randrange(8)]) + whole[i + 1:] for i in range(len(whole)))
    yield from (b"SLUICEDR" + rng.randbytes(n) for n in (12, 100, 5000))
    yield whole + b"more"


def resources(pid):
    """(descriptors, resident KiB) of a process."""
    status = open(f"/proc/{pid}/status").read()
    return len(os.listdir(f"/proc/{pid}/fd")), int(re.search(r"VmRSS:\s+(\d+)", status)[1])


def test_garbage_on_the_ports_for_workers(start):
    """Strangers where only workers should connect, while the cluster works: it goes on, and nothing is left of them."""
    c = start(**QUICK, **{"cluster.connect_timeout_ms": 1000})
    workers = sorted(w["pid"] for w in c.workers())
    pids, doors, rng = workers + [c.router_pid()], sorted(worker_ports(c)), random.Random(5)
    Streams(c, jobs("warm", 8, prompt=100, out=30)).check()  # everybody who has to has met
    c.idle()
    before = {pid: resources(pid) for pid in pids}
    streams = Streams(c, jobs("garbage", 8, prompt=100, out=300))
    streams.until_streaming(5, 4)
    for port in doors:
        for data in strange_bytes(rng):
            throw(port, data, 0.002)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for port in doors for _ in range(100)]
    for i, s in enumerate(silent):
        s.sendall(knock(40000)[:i % 24])
    for i in range(6000):
        with socket.create_connection(("127.0.0.1", doors[i % len(doors)]), timeout=5) as s:
            if i % 2:
                s.sendall(b"\xff" * (i % 50))
    start(real.Process, "prefill", 7, c.worker_address, **QUICK)  # who belongs here comes in meanwhile
    real.until("the new worker", lambda: c.worker("prefill/7"), 60)
    streams.check()
    c.logged("ev=turned_away peer=127.0.0.1:.* cause=\"not the greeting of a sluice process\"", 5)
    with socket.create_connection(("127.0.0.1", doors[0]), timeout=5) as s:
        s.sendall(knock(40000, version=9))
        assert b"version" in s.recv(200), "an answer with the reason"
    for s in silent:
        s.close()
    assert sorted(w["pid"] for w in c.workers() if w["name"] != "prefill/7") == workers, f"somebody died:\n{c.tail()}"
    one_more(c)
    c.idle()
    os.kill(c.pid("prefill/7"), signal.SIGTERM)
    real.until("it to leave", lambda: not c.worker("prefill/7"), 20)
    def more():
        return {pid: resources(pid)[0] - before[pid][0] for pid in pids}
    real.until("descriptors back to what they were", lambda: max(more().values()) <= 2, 60, 1)
    grown = {pid: resources(pid)[1] - before[pid][1] for pid in pids}
    assert max(grown.values()) < 16384, f"KiB of growth: {grown}"
    behind = set(listening(pids)) - set(doors) - public_ports(c, pids)
    if NO_GATES not in c.text():
        real.until("UCX's own ports to be shut", lambda: not any(reachable(p) for p in behind), 60, 0.2)
    one_more(c)


def test_half_sent_requests(cluster):
    """Connections that stop in the middle, many of them and kept open, keep nobody else from being served."""
    host, port = cluster.http.split("//")[1].split(":")
    gport = int(cluster.grpc.split(":")[1])
    parts = [b"P", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
             b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"model\"",
             b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{"]
    held = []
    for i in range(50):
        s = socket.create_connection((host, int(port)), timeout=60)
        s.sendall(parts[i % len(parts)])
        g = socket.create_connection((host, gport), timeout=60)
        g.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[:4 + i % 20])
        held += [s, g]
    one_more(cluster)
    for s in held:
        s.close()
    cluster.idle()


def test_oversized_body(start):
    c = start(roles=("router", "prefill", "decode"), **{"router.max_body_bytes": "64KiB"})
    r = c.post({"prompt": "x" * 100000})
    assert r.status_code == 413 and r.json()["error"]["message"]
    with pytest.raises(grpc.RpcError) as e:
        c.tokens([20] * 70000, 5)
    assert e.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT), e.value
    one_more(c)


BAD = [
    (b"{", 400, None), (b"\xff\xfe", 400, None), (b"", 400, None), (b"[1]", 400, None), (b"null", 400, None),
    (b'{"model": "tiny-v32", "prompt": "\xff\xfe"}', 400, None),
    (b'{"model": "tiny-v32", "prompt": "\\ud800"}', 400, None),
    (b"[" * 50000, 400, None),
    ({"model": "nobody", "prompt": "x"}, 404, "model"),
    ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ({"prompt": [1280]}, 400, "prompt"),
    ({"prompt": "x", "temperature": 1e30}, 400, "temperature"),
    ({"prompt": "x", "n": 100000}, 400, "n"),
    ({"prompt": [20] * 40000}, 400, "prompt"),
]


@pytest.mark.parametrize("body,code,param", BAD, ids=[str(b[0])[:40] for b in BAD])
def test_bad_request(cluster, body, code, param):
    r = cluster.post(body)
    assert r.status_code == code, r.text
    error = r.json()["error"]
    assert error["message"] and error["param"] == param, error


def test_after_all_that_the_cluster_serves(cluster):
    assert len(cluster.workers()) == 3
    one_more(cluster)
    cluster.idle()


# ---- key and TLS ----


def certificate(directory):
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                    "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    return cert, key


def test_api_key_and_tls(start, tmp_path):
    cert, key = certificate(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("right-key\n")
    c = start(roles=("router", "prefill", "decode"), ready=False,
              **{"router.tls_cert": cert, "router.tls_key": key, "router.api_key_file": secret})
    c.find_router()
    c.verify, c.key = str(cert), "right-key"
    c.wait_ready(2)
    assert c.http.startswith("https:")
    want = real.document("Hello", 12)
    body = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    assert c.post(body).json()["choices"][0]["text"] == want["text"]
    c.key = "wrong-key"
    r = c.post(body)
    assert r.status_code == 401 and r.json()["error"]["code"] == "invalid_api_key"
    assert requests.post(c.http + "/v1/completions", json={}, verify=c.verify, timeout=30).status_code == 401
    with pytest.raises(requests.exceptions.SSLError):  # not signed by anybody the system trusts
        requests.get(c.http + "/health", timeout=30)
    with pytest.raises(requests.exceptions.RequestException):  # not TLS
        requests.get(c.http.replace("https", "http") + "/health", timeout=30).raise_for_status()
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    with grpc.secure_channel(c.grpc, credentials) as channel:
        stub = c.stub(channel)
        request = c.request(want["prompt_ids"], 12)
        answer = list(stub.Generate(request, timeout=60, metadata=[("authorization", "Bearer right-key")]))[-1]
        assert list(answer.complete.output_ids) == want["ids"]
        for metadata in ([], [("authorization", "Bearer wrong-key")]):
            with pytest.raises(grpc.RpcError) as e:
                list(stub.Generate(request, timeout=60, metadata=metadata))
            assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "right-key" not in c.text()
