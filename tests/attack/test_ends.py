"""Clients that end their side of a connection, together with what they send or later, or break it off; and queries, which no path takes.

The end of the client's side must be seen whatever came before it: the timeouts of connections are ten minutes here, so what closes one is that
its end was seen. A request that was complete when the end came and that is answered in the same turn of the loop has its answer. One that waits
for tokens, for the thread pool or for another turn is cancelled: a client that ends its side is taken for one that leaves (docs/operations.md)."""

import itertools
import json
import socket
import struct
import time

import pytest

import real
import wire

HOST = b"Host: x\r\n"
GET = b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n"


def post(fields, missing=0):
    data = json.dumps({"model": "tiny-v32", "prompt": [5, 6, 7], "ignore_eos": True, **fields}).encode()
    return b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (len(data) + missing) + data


CHUNKS = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
# Bytes before the end, and the answers that an end of the client's side alone leaves.
SENT = {
    "nothing": (b"", 0),
    "a request": (GET, 1),
    "three requests": (GET * 3, 3),
    "a page that is made": (GET.replace(b"/health/live", b"/metrics"), 1),
    "no path": (GET.replace(b"/health/live", b"/nothing"), 1),
    "a part of the first line": (GET[:9], 0),
    "a part of a head": (GET[:-2], 0),
    "a request and a part of one": (GET + GET[:-2], 1),
    "a head that is refused": (GET.replace(b"Host", b"Host "), 1),
    "a head whose body is refused": (post({}).replace(b"Length: ", b"Length: 99999999999"), 1),
    "a head without its body": (post({}, 10).split(b"{")[0], 0),
    "a part of a body": (post({}, 1000), 0),
    "a long part of a body": (post({"user": "x" * 300000}, 10), 0),
    "chunks that do not end": (CHUNKS + b"2\r\n{}\r\n", 0),
    "a part of a chunk": (CHUNKS + b"20\r\n{}", 0),
    "chunks": (CHUNKS + b"2\r\n{}\r\n0\r\n\r\n", 1),
    "a body that is refused": (post({"max_tokens": -1}), 1),
    "a completion": (post({"max_tokens": 3000}), None),  # it may be cancelled before or after its first byte
    "a stream": (post({"max_tokens": 3000, "stream": True}), None),
    "a request and a stream": (GET + post({"max_tokens": 3000, "stream": True}), None),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean):
    c = real.Cluster(tmp_path_factory.mktemp("ends"), roles=("router", "prefill", "decode"),
                     **{"kvstore.bytes": "64MiB", "router.client_timeout_ms": 600000})
    yield c
    assert c.close(), f"had to be killed:\n{c.tail()}"


def connections(cluster):
    """But the one that asks."""
    return real.metric(cluster.get("/metrics").text, "sluice_connections", 'protocol="http"') - 1


def ended(cluster, raw, pause, reset):
    """What the server sent until it closed a connection on which this was sent and ended."""
    with socket.create_connection(wire.address(cluster.http), timeout=60) as s:
        if not pause:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # the end travels with the last bytes
        s.sendall(raw)
        time.sleep(pause)
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return None
        s.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while part := s.recv(65536):
                got += part
        except ConnectionResetError:  # the server did not read all bytes
            pass
        return got


@pytest.mark.parametrize("kind,pause,reset", list(itertools.product(SENT, (0, 0.3), (False, True))))
def test_an_end_is_seen(cluster, kind, pause, reset):
    raw, answers = SENT[kind]
    cluster.idle()
    got = ended(cluster, raw, pause, reset)
    if got is not None and answers is not None:
        assert got.count(b"HTTP/1.1 ") == answers, got[:300]
    real.until("the connection is gone", lambda: not connections(cluster))
    cluster.idle()


def test_many_ends_at_once(cluster):
    """More than one sweep tells. 64 are answered in a turn; those that would wait for another one have left."""
    held = [socket.create_connection(wire.address(cluster.http), timeout=60) for _ in range(300)]
    for s in held:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        s.sendall(GET)
        s.shutdown(socket.SHUT_WR)
    answered = 0
    for s in held:
        got = b""
        while part := s.recv(65536):
            got += part
        answered += got.startswith(b"HTTP/1.1 200")
        s.close()
    assert answered >= 64
    real.until("all connections are gone", lambda: not connections(cluster))


QUERIES = {
    "a thousand pairs": b"&".join(b"a%d=b" % i for i in range(1000)),
    "ten thousand pairs": b"a=b&" * 10000,
    "empty names": b"=b&" * 3000,
    "names without values": b"a&" * 5000,
    "only separators": b"&" * 30000,
    "only equal signs": b"=" * 20000,
    "a long value": b"a=" + b"b" * 50000,
    "a long name": b"b" * 50000 + b"=a",
    "question marks": b"?" * 5000,
    "encoded bytes": b"%26%3d%ff" * 2000,
    "half an encoded byte": b"a=%f&b=%",
    "a query and no more": b"",
    "plus signs": b"a=+&" * 4000,
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("request_of", [GET, GET.replace(b"GET", b"HEAD"), post({"max_tokens": -1})], ids=["GET", "HEAD", "POST"])
def test_a_query_changes_nothing(cluster, request_of, query):
    """The answer is that without a query, and the next request on the connection is served."""
    line, rest = request_of.split(b" HTTP/1.1\r\n", 1)
    want = 400 if line.startswith(b"POST") else 200
    got = ended(cluster, line + b"?" + QUERIES[query] + b" HTTP/1.1\r\n" + rest + GET, 0, False)
    assert got.startswith(b"HTTP/1.1 %d" % want) and got.count(b"HTTP/1.1 ") == 2, got[:300]


@pytest.mark.parametrize("where", ["line", "query", "header", "cookie"])
def test_a_head_that_is_too_long_is_answered(cluster, where):
    """Whatever fills it, at sizes around every bound of the library: it is answered, or served, and its connection does not stay."""
    for n in range(1000, 70000, 3900):
        fill = b"b" * n
        raw = {"line": GET.replace(b"/live", b"/" + fill), "query": GET.replace(b"/live", b"/live?" + fill),
               "header": GET.replace(HOST, HOST + b"A: " + fill + b"\r\n"),
               "cookie": GET.replace(HOST, HOST + b"Cookie: " + b"a=b; " * (n // 50) + fill + b"\r\n")}[where]
        got = ended(cluster, raw, 0.001, False)
        assert got[9:12] in (b"200", b"404", b"414", b"431"), (n, got[:300])
    real.until("all connections are gone", lambda: not connections(cluster))
