"""Collectors of traces that are hostile: what they answer, how slowly, how much, or that they take nothing. Requests are served with the
right tokens meanwhile, no turn of the loop is long, the router's memory hardly grows, and every span is counted once in the end."""

import itertools
import pathlib
import socket
import threading
import time

import pytest

import real
import test_loop

GROWS_MIB = 48  # 16 MiB of traces may wait; their messages, and what the allocator keeps
N = 4
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def read_some(c):
    c.settimeout(5)
    try:
        return c.recv(65536)
    except OSError:
        return b""


def answer(*parts, every=0.0, times=1):
    def run(c):
        read_some(c)
        for part in itertools.chain.from_iterable(itertools.repeat(parts, times)):
            c.sendall(part)
            time.sleep(every)
    return run


def never(c):
    time.sleep(20)


def reset(c):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


HOSTILE = {
    "garbage": answer(bytes(range(256)) * 16),
    "zeros": answer(bytes(65536)),
    "no status": answer(b"HTTP/1.1 \r\n\r\n"),
    "a status of many digits": answer(b"HTTP/1.1 " + b"2" * 5000 + b"\r\n\r\n"),
    "another protocol": answer(b"SSH-2.0-x\r\n"),
    "slow": answer(*(bytes([b]) for b in OK), every=0.3),
    "a head without end": answer(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10000),
    "one line without end": answer(b"H" * 65536, times=200),
    "10 MiB": answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n", bytes(10 << 20)),
    "10 MiB that are refused": answer(b"HTTP/1.1 503 x\r\nRetry-After: 999999999\r\n\r\n", bytes(10 << 20)),
    "400": answer(b"HTTP/1.1 400 x\r\n\r\n"), "404": answer(b"HTTP/1.1 404 x\r\n\r\n"), "429": answer(b"HTTP/1.1 429 x\r\n\r\n"),
    "500": answer(b"HTTP/1.1 500 x\r\n\r\n"), "503": answer(b"HTTP/1.1 503 x\r\n\r\n"),
    "a redirection": answer(b"HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/\r\n\r\n"),
    "continue for ever": answer(b"HTTP/1.1 100 Continue\r\n\r\n", times=20000),
    "closes at once": lambda c: None,
    "resets at once": reset,
    "takes and says nothing": never,
    "never accepts": None,
}


class Hostile:
    def __init__(self):
        self.s = socket.create_server(("127.0.0.1", 0), backlog=4)
        self.run, self.calls, self.closed = answer(OK), 0, False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while not self.closed:
            if self.run is None:
                time.sleep(0.05)
                continue
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            self.calls += 1
            threading.Thread(target=self.one, args=(c, self.run), daemon=True).start()

    @staticmethod
    def one(c, run):
        with c:
            try:
                run(c)
            except OSError:
                pass


@pytest.fixture(scope="module")
def collector():
    c = Hostile()
    yield c
    c.closed = True
    c.s.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean, collector):
    c = real.Cluster(tmp_path_factory.mktemp("collectors"), roles=("router", "prefill", "decode"),
                     **{"router.traces": f"http://127.0.0.1:{collector.s.getsockname()[1]}"})
    assert c.tokens(real.prompt("warm", 40), N)
    yield c
    assert c.close(), f"had to be killed:\n{c.tail()}"


def memory(cluster):
    status = pathlib.Path(f"/proc/{cluster.router_pid()}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_collector(cluster, collector, kind):
    collector.run = HOSTILE[kind]
    before, held, calls = test_loop.turns(cluster, "cpu_"), memory(cluster), collector.calls
    ids = real.prompt("traced", 40)
    want = real.reference(ids, N)
    for _ in range(3):
        assert cluster.tokens(ids, N) == want
    if HOSTILE[kind]:
        real.until("the collector is called", lambda: collector.calls > calls)
    assert cluster.tokens(ids, N) == want
    assert test_loop.longest(before, test_loop.turns(cluster, "cpu_")) <= test_loop.LIMIT_S
    assert real.sanitized() or memory(cluster) < held + GROWS_MIB


def test_it_is_used_when_it_is_well_again(cluster, collector):
    """Runs after the others of this file: what waits is sent or given up, and nothing is counted twice."""
    collector.run = answer(OK)
    def spans(result):
        return real.metric(cluster.get("/metrics").text, "sluice_trace_spans_total", f'result="{result}"') or 0
    before = spans("exported")
    cluster.tokens(real.prompt("well", 40), N)
    real.until("spans are exported", lambda: spans("exported") > before, 60)
