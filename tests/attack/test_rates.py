"""The numbers of docs/security.md that bound a connection of HTTP/2, each from both sides: what is just within it is served, what exceeds
it ends the connection. test_frames.py has the same bounds against floods, which exceed all of them at once."""

import socket
import threading
import time

import pytest
import requests

import real
import wire
from test_frames import CHECK, GENERATE, WATCH, frame, longest, router, turns  # noqa: F401

BURST, RATE = 4096, 200  # frames that carry no request
STREAMS, CALLS, CALLS_RATE = 32, 200, 50  # calls without a key in one connection: open, in a burst, in a second
KEY = ("authorization", "Bearer k")


def settled(h2, seconds=0.3):
    """Whether the connection still stands after what was sent has been read."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not h2.gone:
        time.sleep(0.01)
    return not h2.gone


def update(_i):
    """A frame without an answer; of those with one nghttp2 allows fewer at once."""
    return frame(wire.WINDOW, 0, 0, b"\0\0\0\1")


def paced(h2, make, per_second, seconds):
    """Sends frames at a rate; True when the connection was closed meanwhile."""
    begin, sent = time.monotonic(), 0
    while (now := time.monotonic()) - begin < seconds and not h2.gone:
        due = int((now - begin) * per_second)
        try:
            if due > sent:
                h2.send(b"".join(make(i) for i in range(sent, due)))
        except OSError:
            return True
        sent = due
        time.sleep(0.02)
    return h2.gone


def test_frames_of_a_burst_pass_and_those_after_it_have_a_rate(router):  # noqa: F811
    h2 = wire.H2(router.grpc)
    h2.send(b"".join(update(i) for i in range(BURST - 100)))
    assert settled(h2), "a burst is closed"
    assert not paced(h2, update, RATE / 2, 1), "half of the rate is closed"
    assert paced(h2, update, 10 * RATE, 10), "ten times the rate is not closed"


@pytest.mark.parametrize("n", [0, 1, 30, 63])
def test_short_data_counts(router, n):  # noqa: F811
    """DATA of less than 64 bytes, of a call with a key, which may be long."""
    h2 = wire.H2(router.grpc)
    stream = h2.open(GENERATE, KEY)
    h2.data(stream, b"\0" + (7 << 20).to_bytes(4, "big"))
    try:
        for _ in range(BURST + 2000):
            h2.send(frame(wire.DATA, 0, stream, b"\0" * n))
    except OSError:
        pass
    assert not settled(h2, 10), f"{BURST + 2000} frames of {n} bytes"


def test_longer_data_does_not_count(router):  # noqa: F811
    h2 = wire.H2(router.grpc)
    stream = h2.open(GENERATE, KEY)
    h2.data(stream, b"\0" + (7 << 20).to_bytes(4, "big"))
    end, sent = time.monotonic() + 30, 0
    while sent < BURST + 2000 and time.monotonic() < end and not h2.gone:
        if min(h2.window, h2.windows.get(stream, h2.initial)) < 64:  # a shorter frame would count
            time.sleep(0.001)
        else:
            sent += h2.data(stream, b"\0" * 64) == 64
    assert sent == BURST + 2000 and settled(h2) and stream not in h2.trailers
    h2.close()


def test_open_calls_without_a_key(router):  # noqa: F811
    h2 = wire.H2(router.grpc)
    for _ in range(STREAMS):
        h2.open(CHECK)
    assert settled(h2), f"{STREAMS} open calls are closed"
    h2.open(CHECK)
    assert not settled(h2, 10), f"{STREAMS + 1} open calls are not closed"


def call(h2):
    h2.data(h2.open(CHECK), wire.grpc_frame(b""), end=True)


def test_calls_without_a_key_have_a_rate(router):  # noqa: F811
    h2 = wire.H2(router.grpc)
    for i in range(CALLS - 10):
        call(h2)
        real.until("few are open", lambda i=i: len(h2.trailers) > i - STREAMS // 2, every=0.001)
    assert settled(h2) and len(h2.trailers) == CALLS - 10, "a burst is closed"
    end = time.monotonic() + 10
    try:
        while time.monotonic() < end and not h2.gone:  # about eight times the rate
            call(h2)
            time.sleep(0.125 / CALLS_RATE)
    except OSError:
        pass
    assert not settled(h2, 1), "eight times the rate is not closed"


def test_calls_with_a_key_that_are_reset(router):  # noqa: F811
    """They cost a little each, and come for nothing: a connection that does nothing else is closed."""
    h2 = wire.H2(router.grpc)
    try:
        for _ in range(3000):
            stream = h2.open(GENERATE, KEY)
            h2.send(frame(wire.RST, 0, stream, b"\0\0\0\x08"))
    except OSError:
        pass
    assert not settled(h2, 10)


def number(n, bits, first):
    """An integer of HPACK with a prefix of this many bits."""
    most = (1 << bits) - 1
    return bytes([first | n]) if n < most else bytes([first | most]) + wire.varint(n - most)


def literal(name, value, index=False):
    return (b"\x40" if index else b"\0") + number(len(name), 7, 0) + name + number(len(value), 7, 0) + value


LISTS = {  # headers after those of a call; as HTTP/2 counts them each has far more than 16 KiB
    "one long": literal(b"abcde", b"v" * 16400),
    "many": b"".join(literal(b"a%03d" % i, b"v" * 100) for i in range(150)),
    "one again and again": literal(b"abcde", b"v" * 3900, index=True) + b"\xbe" * 11000,
    "a short one again and again": literal(b"a", b"b", index=True) + b"\xbe" * 15000,
    "of the library's own table": b"\x90" * 15000,  # accept-encoding: gzip, deflate
}


def list_of(method, kind, stream):
    """HEADERS and CONTINUATION."""
    block = b"".join(literal(n, v) for n, v in ((b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()), (b":authority", b"x"),
                                                (b"content-type", b"application/grpc"), (b"authorization", b"Bearer k"))) + LISTS[kind]
    parts = [block[i:i + 16000] for i in range(0, len(block), 16000)]
    last = len(parts) - 1
    return b"".join(frame(9 if i else wire.HEADERS, 0 if i < last else wire.END_HEADERS, stream, p) for i, p in enumerate(parts))


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_headers_are_short(router, kind):  # noqa: F811
    """A list that is longer than the server has announced ends the connection, so that a byte that stands for a long header costs nothing."""
    before, all_of_them = turns(router), []
    for method in (CHECK, WATCH, GENERATE, "/x"):
        for first in (b"", wire.H2.frame(wire.HEADERS, wire.END_HEADERS, 1, b"\x83")):  # with a malformed call before it too
            h2 = wire.H2(router.grpc)
            try:
                h2.send(first + b"".join(list_of(method, kind, 2 * i + 3) for i in range(20)))
            except OSError:
                pass
            all_of_them.append(h2)
    for h2 in all_of_them:
        assert not settled(h2, 10)
    took = longest(before, turns(router))
    assert took <= 0.05, f"a turn of up to {took:g} s of CPU"


def test_trailers_of_a_request_are_short(router):  # noqa: F811
    h2 = wire.H2(router.grpc)
    stream = h2.open(GENERATE, KEY)
    h2.send(frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, stream, LISTS["a short one again and again"]))
    assert not settled(h2, 10)


def test_a_list_within_the_limit(router):  # noqa: F811
    h2 = wire.H2(router.grpc)
    stream = h2.open(CHECK, *((f"a{i:03}", "v" * 100) for i in range(110)))  # 15.3 KB
    h2.data(stream, wire.grpc_frame(b""), end=True)
    real.until("an answer", lambda: stream in h2.trailers or h2.gone)
    assert not h2.gone
    h2.close()


# ---- turns ----

def test_calls_of_many_connections_at_once(router):  # noqa: F811
    """Each within its rates, and all together more than a turn may take: the loop reads them in many turns."""
    one = frame(wire.SETTINGS, 0, 0, b"")
    for i in range(900):
        block = b"".join(literal(n, v) for n, v in ((b":method", b"POST"), (b":scheme", b"http"), (b":path", CHECK.encode()), (b":authority", b"x"),
                                                    (b"content-type", b"application/grpc"), (b"authorization", b"Bearer k")))
        one += frame(wire.HEADERS, wire.END_HEADERS, 2 * i + 1, block) + frame(wire.DATA, wire.END_STREAM, 2 * i + 1, wire.grpc_frame(b""))
    sockets = [socket.create_connection(wire.address(router.grpc), timeout=60) for _ in range(48)]
    before = turns(router)
    threads = [threading.Thread(target=s.sendall, args=(wire.PREFACE + one,)) for s in sockets]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    for s in sockets:
        got = 0
        while got < 900 * 9:  # a part of the answers
            part = s.recv(1 << 20)
            assert part, "closed"
            got += len(part)
        s.close()
    took = longest(before, turns(router))
    assert took <= 0.05, f"a turn of up to {took:g} s of CPU"


@pytest.mark.parametrize("path", ["/metrics", "/workers"])
def test_texts_that_many_ask_for_are_made_a_few_times(router, path):  # noqa: F811
    """Of four that are made in a tenth of a second; metrics that are made differ in their counters."""
    n, begin, session = 80, time.monotonic(), requests.Session()
    seen = {session.get(router.http + path, headers={"Authorization": "Bearer k"}, timeout=20).text for _ in range(n)}
    took = time.monotonic() - begin
    assert len(seen) <= 4 * (took / 0.1 + 1) + 1, f"{len(seen)} of {n} in {took:.2f} s"
    print(path, len(seen), "texts in", took)
