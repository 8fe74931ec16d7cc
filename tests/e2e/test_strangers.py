"""Strangers at a real cluster: workers of another cluster, bytes that are not a request, clients without the key. All are refused,
and the cluster serves its own clients at the same time."""

import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time

import grpc
import pytest
import requests

import real
from streams import QUICK, Streams, jobs, one_more

NO_GATES = "the kernel takes no socket filter"  # said by a process that may not attach one


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


def test_other_row_format_is_refused(start, cluster):
    refused(start, cluster, "decode", r"fingerprint \w+ differs|geometry differs", **{"model.row_format": "mla_bf16"})


def test_other_page_layout_is_served(start, cluster):
    """Layouts may differ, because puts are mapped: the worker joins and its tokens are right."""
    p = start(real.Process, "decode", 9, cluster.worker_address, **{"kvstore.layout": "layer_first"})
    real.until("the worker", lambda: cluster.worker("decode/9"), 20)
    def served():
        ids = real.prompt(f"layout {random.random()}", 150)
        assert cluster.tokens(ids, 30) == real.reference(ids, 30)
        return real.metric(p.metrics(), "sluice_decode_tokens_total")
    real.until("tokens of the worker with another layout", served, 60)
    assert p.close() and p.process.returncode == 0
    real.until("it to leave", lambda: cluster.worker("decode/9") is None, 20)


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


def until_shut(ports, pids):
    """No stranger reaches UCX's own sockets. Another process may listen on the same number at another address: then a connection says
    nothing about UCX's socket."""
    def still_open():
        return [p for p in ports & set(real.listening(pids)) - set(real.listening(pids, others=True)) if reachable(p)]
    try:
        real.until("UCX's own ports to be shut", lambda: not still_open(), 60, 0.5)
    except AssertionError as e:
        raise AssertionError(f"{e}: {still_open()} of {ports}") from None


def test_garbage_on_every_port(cluster):
    """Every port of every process: those for clients, those for workers, and UCX's own, which no stranger reaches."""
    workers = sorted(w["pid"] for w in cluster.workers())
    pids = workers + [cluster.router_pid()]
    ports, doors, public = set(real.listening(pids)), worker_ports(cluster), public_ports(cluster, pids)
    assert doors | public <= ports
    others = ports - doors - public
    assert len(others) >= len(pids) + 3, f"every process has a data socket, three have a listener of UCX: {others}"
    gates = NO_GATES not in cluster.text()
    if gates:
        until_shut(others, pids)
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


def knock(port, version=2):
    """What a worker says at a door (docs/protocol.md)."""
    body = struct.pack("<HH", 0, port) + bytes(range(32)) + bytes(32)
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
    """Strangers where only workers should connect, while the cluster works: it continues to work, and nothing is left of them."""
    c = start(**QUICK, **{"cluster.connect_timeout_ms": 1000})
    workers = sorted(w["pid"] for w in c.workers())
    pids, doors, rng = workers + [c.router_pid()], sorted(worker_ports(c)), random.Random(5)
    Streams(c, jobs("warm", 8, prompt=100, out=30)).check()  # everybody who has to has met
    c.idle()
    before, begin = {pid: resources(pid) for pid in pids}, time.monotonic()
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
    lines = c.text().count("ev=turned_away")
    assert lines <= len(doors) * (time.monotonic() - begin + 2), f"{lines} lines of more than 6,000 strangers at {len(doors)} ports"
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
    others = set(real.listening(pids)) - set(doors) - public_ports(c, pids)
    if NO_GATES not in c.text():
        until_shut(others, pids)
    one_more(c)


def test_half_sent_requests(cluster):
    """Many connections that stop in the middle of a request and stay open do not keep other clients from being served."""
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
