"""Two routers at once on the same workers: both serve, and what becomes of one (killed, stopped, a stranger) touches no stream of the
other; afterwards all pages are back. tests/unit/worker/test_routers.c has the same with the workers' states in view."""

import os
import re
import signal

import pytest

import real
from streams import QUICK, Streams, jobs, one_more, retries

SOON = {"cluster.dead_after_ms": 1500}


class Pair:
    """Two routers, one prefill and two decode workers, each a process of its own."""

    def __init__(self, start, **settings):
        self.start, self.settings = start, settings
        self.ports = [real.free_ports(1), real.free_ports(1)]
        self.list = ",".join(f"127.0.0.1:{p}" for p in self.ports)
        self.routers = [self.router(0), self.router(1)]
        self.workers = {name: start(real.Process, name.split("/")[0], int(name[-1]), **settings, **{"cluster.routers": self.list})
                        for name in ("prefill/0", "decode/0", "decode/1")}
        for r in self.routers:
            r.wait_ready(3)

    def router(self, i):
        return self.start(real.Process, "router", **self.settings, **{"cluster.router_port": self.ports[i]})

    def settled(self):
        for r in self.routers:
            r.idle(30)
        assert all(w.process.poll() is None for w in self.workers.values()), "a worker ended"


def at_both(p, todo_a, todo_b):
    """Streams at both routers that really run concurrently: what they must be is computed before the first begins."""
    for ids, n, kw in todo_a + todo_b:
        real.reference(ids, n, **kw)
    return Streams(p.routers[0], todo_a), Streams(p.routers[1], todo_b)


def test_one_router_is_killed_in_mid_stream_and_comes_back(start):
    p = Pair(start, **QUICK)
    a, b = p.routers
    of_a, of_b = at_both(p, jobs("ka", 6, out=900), jobs("kb", 8, out=300))
    of_a.until_streaming(requests_=3)
    of_b.until_streaming(requests_=3)
    assert of_a.running() and of_b.running()
    a.process.kill()
    a.process.wait(60)
    of_b.check()
    assert retries(b) == 0, "a request of the other router began again"
    for t in of_a.threads:
        t.join(60)
    assert of_a.errors, "its clients lose their connection"
    one_more(b)
    p.routers[0] = a = p.router(0)
    a.wait_ready(3)
    one_more(a, "again")
    p.settled()


def test_full_load_of_both_on_few_pages(start):
    """A store far too small for all at once, long prompts among short ones at both routers: every stream is right, none starves."""
    p = Pair(start, **QUICK, **{"kvstore.bytes": "4MiB"})
    a = p.routers[0]
    total = a.worker("decode/0")["total_pages"]
    long = [(real.prompt(f"long{i}", 64 * total * 3 // 4), 20, {}) for i in range(2)]
    of_a, of_b = at_both(p, long[:1] + jobs("fa", 12, prompt=64, out=300), jobs("fb", 12, prompt=64, out=300) + long[1:])
    of_a.check()
    of_b.check()
    p.settled()


def test_one_router_is_stopped_and_continues(start):
    """SIGSTOP: the workers give it up, its requests' pages come back, and nothing at the other router changes."""
    p = Pair(start, **SOON)
    a, b = p.routers
    of_a, of_b = at_both(p, jobs("sa", 4, out=1500), jobs("sb", 6, out=300))
    of_a.until_streaming(requests_=2)
    of_b.until_streaming(requests_=2)
    os.kill(a.process.pid, signal.SIGSTOP)
    try:
        of_b.check()
        assert retries(b) == 0
        one_more(b)
        b.idle(30)  # the requests of the stopped router have been ended on the workers
    finally:
        os.kill(a.process.pid, signal.SIGCONT)
    a.wait_ready(3)
    one_more(a, "again")
    for t in of_a.threads:
        t.join(120)
    p.settled()


def test_sighup_ends_nobody(start):
    """Routers read their files again; a worker that gets the signal, too, for instance from a service manager, continues to run."""
    p = Pair(start, **QUICK)
    of_a, of_b = at_both(p, jobs("ha", 3, out=200), jobs("hb", 3, out=200))
    of_a.until_streaming(requests_=1)
    for process in [*p.routers, *p.workers.values()]:
        os.kill(process.process.pid, signal.SIGHUP)
    of_a.check()
    of_b.check()
    assert retries(p.routers[0]) == 0 and retries(p.routers[1]) == 0
    p.settled()


def test_a_worker_that_stops_tells_both(start):
    p = Pair(start, **QUICK)
    both = at_both(p, jobs("w0", 6, out=200), jobs("w1", 6, out=200))
    for s in both:
        s.until_streaming(requests_=2)
    leaver = p.workers.pop("decode/1")
    leaver.process.terminate()
    for s in both:
        s.check()
    assert leaver.process.wait(60) == 0  # not close(): a second SIGTERM ends a process that still drains
    for r in p.routers:
        real.until("it to leave", lambda r=r: not r.worker("decode/1"), 20)
        one_more(r)
    p.settled()


def test_a_stranger_among_the_routers(start, tmp_path):
    """Workers prove the secret to every router and ask every router for it: who has another one, or none, gets no worker."""
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_text("9f2c41d06a7b38e5c1d4f0a97be36285\n")
    other.write_text("another secret of another cluster\n")
    ours = {**QUICK, "cluster.secret_file": secret}
    routers = [start(real.Process, "router", **s) for s in (ours, ours, {**QUICK, "cluster.secret_file": other}, QUICK)]
    addresses = ",".join(r.worker_address for r in routers)
    workers = [start(real.Process, role, 0, **ours, **{"cluster.routers": addresses}) for role in ("prefill", "decode")]
    for r in routers[:2]:
        r.wait_ready(2)
        one_more(r)
    for w in workers:
        w.logged("ev=router_unreachable .*cluster.secret_file: another secret", 20)
        w.logged("the door does not prove the secret of cluster.secret_file", 20)
    assert not routers[2].workers() and not routers[3].workers()


@pytest.mark.skipif(not real.have("mpirun"), reason="no mpirun")
def test_two_routers_under_one_mpirun(start):
    c = start(roles=("router", "router", "prefill", "decode"), ready=False, **QUICK)
    found = {}
    for i in range(2):
        line = c.logged(rf"proc=router/{i} .*ev=listening", 30)
        found[i] = r = real.Base()
        r.process, r.log = c.process, c.log
        r.http, r.grpc = "http://" + re.search(r"http=(\S+)", line)[1], re.search(r"grpc=(\S+)", line)[1]
    for i, r in found.items():
        r.wait_ready(2)
        ids = real.prompt(f"mpi{i}", 150)
        assert r.tokens(ids, 20) == real.reference(ids, 20)
    for r in found.values():
        r.idle()
    assert c.close(20)
