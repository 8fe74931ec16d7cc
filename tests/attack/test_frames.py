"""HTTP/2 without a key: frames that carry no request, calls that need no key, streams that say nothing. Whatever is sent, the loop's
turns stay short, a connection that sends too much is closed, and callers with a key keep their part of the budget."""

import functools
import socket
import struct
import threading
import time

import pytest

import real
import wire

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
GENERATE = "/sglang.grpc.scheduler.SglangScheduler/Generate"
LIMIT_S = 0.05
FRAMES = 7000


@pytest.fixture(scope="module")
def router(tmp_path_factory, clean):
    r = real.Process(tmp_path_factory.mktemp("frames"), "router", **{"router.stage_timeout_ms": 300, "router.api_key": "k"})
    r.key = "k"
    real.until("it to listen", lambda: r.get("/health/live").status_code == 200)
    yield r
    assert r.close(), "had to be killed"


def turns(r, kind="cpu_"):
    """Upper bound of each bucket → turns in it."""
    found, before = {}, 0
    for line in r.get("/metrics").text.splitlines():
        if line.startswith(f"sluice_router_loop_turn_{kind}seconds_bucket"):
            n = float(line.rsplit(" ", 1)[1])
            found[float(line.split('le="')[1].split('"')[0].replace("+Inf", "inf"))] = int(n - before)
            before = n
    return found


def longest(before, after):
    return max((k for k in after if after[k] > before[k]), default=0)


def frame(kind, flags, stream, payload):
    return wire.H2.frame(kind, flags, stream, payload)


def headers(stream, path=CHECK, end=False):
    block = b""
    for name, value in ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("content-type", "application/grpc")):
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return frame(wire.HEADERS, wire.END_HEADERS | (wire.END_STREAM if end else 0), stream, block)


def chain(i):
    """PRIORITY: each stream depends on the one before."""
    return frame(2, 0, 2 * i + 3, struct.pack(">IB", 2 * i + 1, 16))


# Each makes frame number i. The last ones are parts of a stream that was opened first.
KINDS = {
    "priority chain": chain,
    "priority of one stream": lambda i: frame(2, 0, 3, struct.pack(">IB", 2 * (i % 1000) + 5, 255)),
    "window updates of one byte": lambda i: frame(wire.WINDOW, 0, 0, b"\0\0\0\1"),
    "settings": lambda i: frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535 + i % 2)),
    "empty settings": lambda i: frame(wire.SETTINGS, 0, 0, b""),
    "acknowledged settings": lambda i: frame(wire.SETTINGS, wire.ACK, 0, b""),
    "pings": lambda i: frame(wire.PING, 0, 0, b"12345678"),
    "acknowledged pings": lambda i: frame(wire.PING, wire.ACK, 0, b"12345678"),
    "unknown frames": lambda i: frame(0x50 + i % 16, 0, 0, b""),
    "unknown frames with contents": lambda i: frame(0x50, 0, 1, b"x" * 50),
    "resets of idle streams": lambda i: frame(wire.RST, 0, 2 * i + 1, b"\0\0\0\x08"),
    "goaway": lambda i: frame(wire.GOAWAY, 0, 0, b"\0" * 8),
    "alternative services": lambda i: frame(10, 0, 0, b"\0\0"),
    "priority updates": lambda i: frame(16, 0, 0, struct.pack(">I", 2 * i + 1) + b"u=1"),
    "empty data": lambda i: frame(wire.DATA, 0, 1, b""),
    "padded empty data": lambda i: frame(wire.DATA, 8, 1, b"\0"),
    "window updates of a stream": lambda i: frame(wire.WINDOW, 0, 1, b"\0\0\0\1"),
    "continuations": lambda i: frame(9, 0, 3, b"") if i else frame(wire.HEADERS, 0, 3, b""),
    "calls": lambda i: headers(2 * i + 3, end=True),
    "calls that are reset": lambda i: headers(2 * i + 3) + frame(wire.RST, 0, 2 * i + 3, b"\0\0\0\x08"),
    "calls of no method": lambda i: headers(2 * i + 3, "/x", end=True),
    "calls with a key's method": lambda i: headers(2 * i + 3, GENERATE),
}


@functools.lru_cache(maxsize=None)
def many(kind):
    """What a connection of this kind sends."""
    return wire.PREFACE + frame(wire.SETTINGS, 0, 0, b"") + headers(1) + b"".join(KINDS[kind](i) for i in range(FRAMES))


def flood(where, kind, result):
    """Sends frames until the other side closes the connection."""
    s = socket.create_connection(wire.address(where), timeout=60)
    try:
        s.sendall(many(kind))
        s.settimeout(20)
        while s.recv(1 << 20):
            pass
        result.append("closed")
    except (ConnectionError, BrokenPipeError):
        result.append("closed")
    except TimeoutError:
        result.append("open")
    finally:
        s.close()


@pytest.mark.parametrize("kind", KINDS)
def test_frames(router, kind):
    """Eight connections at once."""
    before, result = turns(router), []
    threads = [threading.Thread(target=flood, args=(router.grpc, kind, result)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = longest(before, turns(router))
    assert took <= LIMIT_S, f"a turn of up to {took:g} s of CPU"
    assert result == ["closed"] * 8, result
    assert router.get("/health/live").status_code == 200


def test_a_client_may_give_back_window_twice_for_each_frame(router):
    """What clients do whose library acknowledges each frame: no rate is exceeded while answers arrive."""
    h2 = wire.H2(router.grpc)
    for i in range(150):
        stream = h2.open(CHECK)
        h2.data(stream, wire.grpc_frame(b""), end=True)
        for where in (0, stream, 0, stream):
            h2.send(frame(wire.WINDOW, 0, where, b"\0\0\0\x10"))
        h2.send(frame(wire.PING, 0, 0, b"abcdefgh"))
        real.until("the answer", lambda stream=stream: stream in h2.trailers, every=0.001)
    assert not h2.gone  # every call was answered, so the connection was not closed between two of them
    h2.close()


def watch(h2):
    stream = h2.open(WATCH)
    h2.data(stream, wire.grpc_frame(b""), end=True)
    return stream


def test_watches_are_few(router):
    """Of one connection without a key four, of one address sixty-four; others still get an answer."""
    h2 = wire.H2(router.grpc)
    streams = [watch(h2) for _ in range(8)]
    real.until("those above four to end", lambda: sum(s in h2.trailers for s in streams) == 4)
    more = [wire.H2(router.grpc) for _ in range(20)]
    for k in more:
        k.streams = [watch(k) for _ in range(4)]
    real.until("those above sixty-four to end", lambda: sum(s in k.trailers for k in more for s in k.streams) == 20)
    check = h2.open(CHECK)
    h2.data(check, wire.grpc_frame(b""), end=True)
    real.until("an answer", lambda: check in h2.trailers)
    for k in [h2, *more]:
        k.close()


def test_calls_without_a_key_leave_the_budget(start):
    """However many such calls there are, and whatever they send, callers with a key keep fifteen sixteenths of the budget."""
    r = start(real.Process, "router", **{"router.api_key": "k", "router.max_request_bytes": "2MiB", "router.stage_timeout_ms": 300})
    many = [wire.H2(r.grpc) for _ in range(40)]
    for h2 in many:
        try:
            for i in range(30):
                stream = h2.open((CHECK, WATCH, GENERATE)[i % 3])
                h2.data(stream, b"\0\0\0\x0f\xa0" + b"x" * 3000)
        except OSError:
            pass
    for s in wire.silent(r.http, 30):
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 60000)
        s.sendall(b"")
    time.sleep(0.5)
    held = real.metric(r.get("/metrics").text, "sluice_request_bytes")
    assert held <= (2 << 20) / 16, held
    r.key = "k"
    assert r.post({"max_tokens": 1, "prompt": "x " * 20000}).status_code == 503  # admitted: there are no workers
    for h2 in many:
        h2.close()


def test_metrics_of_a_thousand_requests_are_made_a_few_times(router):
    """Pipelined on many connections, of the texts that take long to make."""
    before = turns(router)
    sockets = []
    for i in range(300):
        s = socket.create_connection(wire.address(router.http), timeout=60)
        path = (b"/metrics", b"/workers", b"/v1/models", b"/health")[i % 4] if i % 2 else b"/metrics"
        s.sendall((b"GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n\r\n" % path) * 20)
        sockets.append(s)
    for s in sockets:
        s.settimeout(60)
        got = b""
        while got.count(b"HTTP/1.1 ") < 20:
            part = s.recv(1 << 20)
            assert part, got[-300:]
            got = got[-20:] + part if got.count(b"HTTP/1.1 ") < 1 else got + part
        s.close()
    took = longest(before, turns(router))
    assert took <= LIMIT_S, f"a turn of up to {took:g} s of CPU"
