"""All attacks at once, under a hard limit of the router's memory, while honest clients are served.

The attackers have a key of their own, or none; each attack is sent again and again for ATTACK_S seconds. The honest clients are another
tenant. Their tokens are compared with those of one process. No turn of the loop may be long, nothing may be left at the end.

The limit is one of address space (RLIMIT_AS), because it needs no rights and no cgroup. A quiet router has reserved address space that it
does not use (libraries, stacks of threads, arenas of the allocator, UCX). So the limit is what it has reserved when it is quiet, and
on top of that the documented MEMORY_MIB less what it then has in memory: it cannot come to more than that without reserving more. What it had
in memory at most is compared too. It takes
ATTACK_S and what the last answers take, in place of a test that sent the inputs of test_loop.py together and one of the budget for bodies."""

import copy
import hashlib
import os
import pathlib
import random
import resource
import socket
import threading
import time

import grpc
import pytest
import requests

import clients
import honest
import real
import test_frames
import test_heads
import test_loop
import test_pool
import test_rates
import test_requests
import test_surfaces
import wire

ATTACK_S = 15
BUDGET = 256 << 20  # router.max_request_bytes
KEYS = {"operator": real.Base.key, "honest": "key-of-honest", "loud": "key-of-loud"}


def memory(pid, name):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name + ":")) << 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean):
    directory = tmp_path_factory.mktemp("all")
    lines = [f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()} {'' if name == 'loud' else 'admin'}" for name, key in KEYS.items()]
    (directory / "keys").write_text("\n".join(lines) + "\n")
    c = real.Cluster(directory, roles=("router", "prefill", "decode"), **{
        "kvstore.bytes": "64MiB", "router.keys_file": directory / "keys", "router.client_timeout_ms": 5000})
    c.key = KEYS["honest"]
    yield c
    assert c.close(), f"had to be killed:\n{c.tail()}"


def attacker(cluster):
    """The cluster with the attackers' key; they do not wait for long."""
    loud = copy.copy(cluster)
    loud.key, loud.patience = KEYS["loud"], 8
    loud.post = lambda *args, **kw: real.Base.post(loud, *args, **{**kw, "timeout": loud.patience})
    return loud


SURFACES = ("messages, calls", "messages, tools", "responses, items", "tokenize, strings", "detokenize, a million ids")

# ---- attacks: each takes the cluster as an attacker sees it and the time when to end ----


def posted(data, path="/v1/completions"):
    def run(c, _end):
        c.post(data, path)
    return run


def flood(kind):
    def run(c, _end):
        test_frames.flood(c.grpc, kind, [])
    return run


def silent(c, end):
    held = wire.silent(c.http, 100) + wire.silent(c.grpc, 100)
    for i, s in enumerate(held):
        try:
            s.sendall((b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n", wire.PREFACE, b"", b"GET / HT")[i % 4])
        except OSError:
            pass
    while time.monotonic() < end and wire.closed(held[:8]) < 8:
        time.sleep(0.2)
    for s in held:
        s.close()


def bodies(method, headers):
    """Over HTTP/2: bodies that never end, on many streams of a connection."""
    def run(c, end):
        h2 = wire.H2(c.grpc)
        streams = [h2.open(method, *headers) for _ in range(8)]
        for s in streams:
            h2.data(s, b"\0" + (7 << 20).to_bytes(4, "big"))
        while time.monotonic() < end and not h2.gone:
            if not sum(h2.data(s, b"\0" * 16384) for s in streams if s not in h2.trailers):
                time.sleep(0.01)
            if all(s in h2.trailers for s in streams):
                break
        h2.close()
    return run


def half(c, end):
    """Over HTTP/1.1: 7 of 8 MB of a body, and then nothing, or a client that leaves."""
    with socket.create_connection(wire.address(c.http), timeout=20) as s:
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {c.key}\r\nContent-Length: 8000000\r\n\r\n".encode())
        s.sendall(b" " * 7000000)
        time.sleep(random.random() * max(0, end - time.monotonic()) / 4)


def heads(c, end):
    for raw in test_heads.BAD.values():
        if time.monotonic() > end:
            return
        with socket.create_connection(wire.address(c.http), timeout=20) as s:
            s.sendall(raw)
            s.recv(4096)


def pipelined(c, _end):
    with socket.create_connection(wire.address(c.http), timeout=20) as s:
        s.sendall(b"".join(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % p for p in (b"/metrics", b"/health", b"/v1/models", b"/x")) * 20)
        for _ in range(20):
            if not s.recv(1 << 16):
                break


def watches(c, end):
    h2 = wire.H2(c.grpc)
    for _ in range(40):
        stream = h2.open(test_frames.WATCH)
        h2.data(stream, wire.grpc_frame(b""), end=True)
    while time.monotonic() < end and not h2.gone:
        time.sleep(0.1)
    h2.close()


def lists(kind):
    """Long lists of headers, again and again."""
    data = wire.PREFACE + test_frames.frame(wire.SETTINGS, 0, 0, b"") + b"".join(
        test_rates.list_of(test_frames.CHECK, kind, 2 * i + 1) for i in range(40))

    def run(c, _end):
        with socket.create_connection(wire.address(c.grpc), timeout=20) as s:
            s.sendall(data)
            s.recv(1)
    return run


def leaves(kind):
    """Long work whose client leaves at once."""
    n = 0

    def run(c, _end):
        nonlocal n
        n += 1
        _, path, data = test_pool.LEFT[kind](n)
        with socket.create_connection(wire.address(c.http), timeout=20) as s:
            s.sendall((f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {c.key}\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data)
            time.sleep(0.2)
    return run


def others_ids(c, _end):
    """Aborts of ids that other tenants may use, and requests with them."""
    pb, _, _ = clients.protocol()
    with c.channel() as channel:
        for name in ("same", "0", *(f"honest{i}" for i in range(20))):
            c.stub(channel).Abort(pb.AbortRequest(request_id=name), timeout=20)
    c.post({"prompt": [5, 6, 7], "max_tokens": 2})
    c.get("/metrics")


def archives(c, _end):
    _, _, common = clients.protocol()
    with c.channel() as channel:
        calls = [c.stub(channel).GetTokenizer(common.GetTokenizerRequest(), timeout=20) for _ in range(32)]
        for call in calls:
            next(iter(call), None)


def deep(c, _end):
    test_requests.raw_call(c, test_requests.GENERATE, test_requests.with_custom_params(30000), 20)


def reads_nothing(c, end):
    data = b'{"model":"tiny-v32","prompt":[5,6,7],"max_tokens":400,"ignore_eos":true,"stream":true,"logprobs":5,"n":12,"temperature":1}'
    with socket.create_connection(wire.address(c.http), timeout=20) as s:
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {c.key}\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        s.sendall(data)
        time.sleep(max(0, min(5, end - time.monotonic())))


def input_of(name):
    def run(c, _end):
        test_loop.INPUTS[name](c)
    return run


def attacks():
    auth = ("authorization", f"Bearer {KEYS['loud']}")
    found = {f"loop: {name}": input_of(name) for name in test_loop.INPUTS}
    found |= {f"frames: {kind}": flood(kind) for kind in test_frames.KINDS}
    for kind, make in test_pool.GROWS.items():
        found[f"grows: {kind}"] = posted(make(), "/v1/chat/completions" if kind == "arguments" else "/v1/completions")
    found["grows: schemas"] = lambda c, _end: c.post(test_pool.GROWS["schemas"](), "/v1/completions")  # another one each time
    for kind in SURFACES:
        path, make = test_surfaces.BODIES[kind]
        found[f"surface: {kind}"] = posted(test_surfaces.data_of(make), path)
    found |= {f"headers: {kind}": lists(kind) for kind in test_rates.LISTS}
    found |= {f"leaves: {kind}": leaves(kind) for kind in test_pool.LEFT}
    found["ids of others"] = others_ids
    found["marks"] = posted(test_pool.body(test_pool.MARKS))
    found["deep JSON"] = posted(b'{"model": "tiny-v32", "prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}")
    found |= {"bodies with a key": bodies(test_frames.GENERATE, (auth,)), "bodies without a key": bodies(test_frames.CHECK, ()),
              "half a body": half, "silent": silent, "heads": heads, "pipelined": pipelined, "watches": watches, "archives": archives,
              "deep protobuf": deep, "reads nothing": reads_nothing}
    return found


EXPECTED = (OSError, AssertionError, grpc.RpcError, requests.RequestException, IndexError)  # refused, closed, too late


def test_all_attacks_at_once(cluster):
    pid = cluster.router_pid()
    jobs = attacks()
    loud = attacker(cluster)
    for kind in test_frames.KINDS:
        test_frames.many(kind)  # made before the attack, whose time is short
    for run in test_loop.INPUTS.values():
        getattr(run, "data", lambda: None)()
    # Arenas and buffers that every router makes are there before the limit is set.
    assert cluster.tokens(real.prompt("warm", 50), 5)
    limit = memory(pid, "VmSize") + (honest.MEMORY_MIB << 20) - memory(pid, "VmRSS")
    if not real.sanitized():  # a sanitizer reserves terabytes
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY if os.geteuid() == 0 else limit))
    before = test_loop.turns(cluster, "cpu_")
    watched = honest.Honest(cluster)
    real.until("an honest client is served", lambda: watched.done)
    begun, held = watched.done, []
    sent, all_there = dict.fromkeys(jobs, 0), threading.Barrier(len(jobs) + 1)

    def attack(name):
        all_there.wait()
        end = time.monotonic() + ATTACK_S
        while not sent[name] or time.monotonic() < end:  # each at least once, however slow the machine is
            try:
                jobs[name](loud, end)
            except EXPECTED:
                pass
            sent[name] += 1

    threads = [threading.Thread(target=attack, args=(name,), daemon=True) for name in jobs]
    for t in threads:
        t.start()
    all_there.wait()
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end or not held:
        held.append(real.metric(cluster.get("/metrics").text, "sluice_request_bytes"))
        time.sleep(0.1)
    served = watched.done - begun
    for t in threads:
        t.join(240)
    real.until("honest clients are served after it", lambda: watched.done > begun + served, 60)
    watched.stop()
    peak = memory(pid, "VmHWM") >> 20
    print(f"{sum(sent.values())} of {len(jobs)} attacks; {served} honest streams meanwhile; the router had {peak} MiB, "
          f"{max(held) / (1 << 20):.0f} of them counted; each attack: {sent}")
    assert min(sent.values()) >= 1 and not watched.problems, (sent, watched.problems[:3])
    assert served >= 1
    assert max(held) <= BUDGET and (peak < honest.MEMORY_MIB or real.sanitized())
    after = test_loop.turns(cluster, "cpu_")
    test_loop.show(cluster, "all attacks")
    assert test_loop.longest(before, after) <= test_loop.LIMIT_S
    real.until("all bytes are given back", lambda: real.metric(cluster.get("/metrics").text, "sluice_request_bytes") == 0, 60)
    cluster.idle(60)
