"""Logs that are not read: the pipe of stderr is full, and the cluster serves without delay."""

import fcntl
import os

import pytest

import real
from streams import QUICK, Streams, jobs


@pytest.fixture
def full_pipe():
    """Both ends of a pipe that is full and that no process reads."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 512)
    except BlockingIOError:
        pass
    os.set_blocking(write, True)  # who writes a line into it waits for ever
    yield read, write
    os.close(write)
    os.close(read)


def test_full_log_pipes(start, full_pipe):
    read, full = full_pipe
    settings = {**QUICK, "log.level": "debug"}
    ports = real.free_ports(3)
    address = f"127.0.0.1:{ports}"
    r = start(real.Process, "router", out=full, **settings, **{"cluster.router_port": ports, "router.http_port": ports + 1,
                                                                    "router.grpc_port": ports + 2})
    r.http, r.grpc = f"http://127.0.0.1:{ports + 1}", f"127.0.0.1:{ports + 2}"
    workers = [start(real.Process, role, 0, address, out=full, **settings) for role in ("prefill", "decode")]
    r.wait_ready(2)
    Streams(r, jobs("pipe", 12, prompt=150, out=60)).check()
    r.idle()
    workers[0].process.kill()  # what a death has to log blocks no process either
    start(real.Process, "prefill", 1, address, out=full, **settings)
    r.wait_ready(2)
    Streams(r, jobs("pipes", 4, prompt=150, out=30)).check()
    os.set_blocking(read, False)
    assert set(os.read(read, 65536)) == set(b"x"), "there was room in the pipe: the test shows nothing"
    os.set_blocking(read, True)
    seen = b""
    while not all(b"proc=" + name in seen for name in (b"router", b"decode/0", b"prefill/1")):  # now that it is read, each of them writes
        seen += os.read(read, 65536)
