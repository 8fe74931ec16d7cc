"""Long texts: the time of a pool's job, whose turn it is, and what is asked before a text is read."""

import gzip
import hashlib
import json
import shutil
import socket
import threading
import time

import pytest

import real
import wire

KEYS = {"loud": "key-of-loud", "calm": "key-of-calm", "none": "key-of-none"}
MARKS = "e" + "\u0315\u0316" * 1000000  # 4 MB of combining marks, which the normalizer must put in order


@pytest.fixture(scope="module")
def router(tmp_path_factory, clean):
    """A router whose tokenizer normalizes to NFC, with tenants. There are no workers: what was admitted ends with 503."""
    directory = tmp_path_factory.mktemp("pool")
    model = directory / "tiny-v32"
    shutil.copytree(real.MODEL, model)
    text = json.loads((model / "tokenizer.json").read_text())
    text["normalizer"] = {"type": "NFC"}
    (model / "tokenizer.json").write_text(json.dumps(text))
    limits = {"none": "requests_per_minute=1", "calm": "weight=1", "loud": "weight=1"}
    lines = [f"{n} sha256={hashlib.sha256(k.encode()).hexdigest()} {limits[n]}" for n, k in KEYS.items()]
    (directory / "keys").write_text("\n".join(lines) + "\n")
    r = real.Process(directory, "router", **{"router.stage_timeout_ms": 300, "model.path": model, "router.keys_file": directory / "keys",
                                             "model.max_context": 2000000})
    real.until("it to listen", lambda: r.get("/health/live").status_code == 200)
    yield r
    assert r.close(), "had to be killed"


def body(prompt, **more):
    return json.dumps({"model": "tiny-v32", "prompt": prompt, "max_tokens": 1, **more}, ensure_ascii=False).encode()


def head(tenant, n, coding=""):
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEYS[tenant]}\r\n"
            f"Content-Type: application/json\r\n{f'Content-Encoding: {coding}' + chr(13) + chr(10) if coding else ''}Content-Length: {n}\r\n\r\n"
            ).encode()


def send(r, tenant, data, wait=120, coding=""):
    """The status of the answer, and the seconds until it came."""
    begin = time.monotonic()
    with socket.create_connection(wire.address(r.http), timeout=wait) as s:
        s.sendall(head(tenant, len(data), coding) + data)
        first = s.recv(4096)
    return int(first.split(b" ")[1]) if first else 0, time.monotonic() - begin


def cpu(r):
    fields = open(f"/proc/{r.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_marks_take_seconds_at_most(router):
    before = cpu(router)
    status, _ = send(router, "loud", body(MARKS))
    assert status in (400, 503), status
    assert cpu(router) - before < 8, cpu(router) - before


def test_an_empty_account_is_told_before_its_body(router):
    """Of one request a minute: the second one is refused when its headers are there, and costs no time."""
    send(router, "none", body("x"))
    with socket.create_connection(wire.address(router.http), timeout=20) as s:
        s.sendall(head("none", 7000000))
        assert s.recv(100).startswith(b"HTTP/1.1 429")


CALL = {"type": "function", "function": {"name": "f", "arguments": '{"a":[' + "{}," * 1500000 + "{}]}"}}
def schema(i):
    """Of 30 KB, which no other call has: compiling it takes 10 MB and half a second."""
    members = ",".join(f'"p{k}x{i}":{{"maxLength":5000}}' for k in range(900))
    return '{"type":"object","properties":{%s}}' % members


class Schemas:
    """A body that is another one each time."""
    n = 0

    def __call__(self):
        Schemas.n += 1
        return body("x", guided_json=schema(Schemas.n))


GROWS = {  # what is small when it is sent and large when it is worked on
    "spaces": lambda: body(" " * 7500000),
    "word": lambda: body("a" * 7500000),
    "brackets": lambda: body("x", metadata=[[]] * 2000000),
    "user": lambda: body("x").replace(b"{", b'{"user":{%s},' % b",".join(b'"%d":0' % i for i in range(700000)), 1),
    "arguments": lambda: json.dumps({"model": "tiny-v32", "max_tokens": 1, "messages": [
        {"role": "assistant", "tool_calls": [CALL]}, {"role": "user", "content": "x"}]}).encode(),
    "bias": lambda: body(["x"] * 8, n=128, logit_bias={str(i): 1 for i in range(300)}, stop=["s" * 1000] * 4),
    "schemas": Schemas(),
    "wide bias": lambda: body(["x"] * 8, n=128, logit_bias={str(i % 1000): i % 100 for i in range(100000)}),
}


def zipped(data):
    return gzip.compress(data, 1)


FILLS = {  # of one tenant, sixteen at once
    "text": lambda: body("ab cd " * 600000),
    "gzip": lambda: zipped(body("ab cd " * 600000)),
    "schemas": lambda: GROWS["schemas"](),
}


@pytest.mark.parametrize("kind", FILLS)
def test_another_tenant_is_served_meanwhile(router, kind):
    """A prompt of 6 KB of another tenant waits for none of them, and its short schema for few that compile."""
    results, bodies, ours = [], [FILLS[kind]() for _ in range(16)], 0

    def calm():
        nonlocal ours
        ours += 1
        more = {"guided_regex": f"[a-z]{{{ours}}}"} if kind == "schemas" else {}
        return send(router, "calm", body("x y " * 1500, **more))
    threads = [threading.Thread(target=lambda data=data: results.append(send(router, "loud", data, coding="gzip" if kind == "gzip" else "")))
               for data in bodies]
    for t in threads:
        t.start()
    time.sleep(0.5)
    waits = []
    while any(t.is_alive() for t in threads) and len(waits) < 10:
        status, wait = calm()
        assert status == 503, status  # admitted
        waits.append(wait)
    alone = [calm()[1] for _ in range(3)]
    for t in threads:
        t.join()
    print(sorted(results), waits, alone)
    assert waits and max(waits) < max(alone) + 3, (waits, alone)


LEFT = {  # long work of other kinds: its client leaves at once
    "text": lambda _i: ("loud", "/v1/completions", body("q" * 6000000)),
    "numbers": lambda _i: ("loud", "/v1/completions", body([7] * 3500000)),
    "objects": lambda _i: ("loud", "/v1/completions", body("x", metadata=[{"a": []}] * 700000)),
    "schemas": lambda i: (("loud", "calm")[i % 2], "/v1/completions", GROWS["schemas"]()),
    "ids": lambda _i: ("loud", "/detokenize", json.dumps({"model": "tiny-v32", "tokens": [97] * 2000000}).encode()),
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_client_that_leaves_ends_the_work(router, kind):
    """The processor is idle soon after: of schemas, after the one that compiles, for which the others wait."""
    for i in range(12 if kind == "schemas" else 6):
        tenant, path, data = LEFT[kind](i)
        s = socket.create_connection(wire.address(router.http), timeout=20)
        s.sendall(head(tenant, len(data)).replace(b"/v1/completions", path.encode()) + data)
        time.sleep(0 if kind == "schemas" else 0.3)
        s.close()
    time.sleep(1.5)
    before = cpu(router)
    time.sleep(1)
    assert cpu(router) - before < 0.3, cpu(router) - before
    real.until("all bytes to be given back", lambda: real.metric(router.get("/metrics").text, "sluice_request_bytes") == 0)


@pytest.mark.parametrize("kind", GROWS)
def test_memory_is_reserved(router, kind):
    """Refused, or served, and the router's memory stays bounded."""
    bodies = [GROWS[kind]() for _ in range(6 if kind == "schemas" else 1)]
    path = b"/v1/chat/completions" if kind == "arguments" else b"/v1/completions"
    results = []

    def run():
        try:
            for data in bodies:
                with socket.create_connection(wire.address(router.http), timeout=120) as s:
                    s.sendall(head("loud", len(data)).replace(b"/v1/completions", path) + data)
                    results.append(int(s.recv(4096).split(b" ")[1]))
        except (ConnectionError, IndexError):
            results.append(0)
    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    status = open(f"/proc/{router.process.pid}/status").read()
    mib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    print(kind, results, f"{mib:.0f} MiB")
    assert mib < 800, mib
    assert set(results) <= {400, 413, 429, 503, 0}, results
    real.until("all bytes to be given back", lambda: real.metric(router.get("/metrics").text, "sluice_request_bytes") == 0)
