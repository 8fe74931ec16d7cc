"""A cluster that is attacked, and its honest clients.

    with target.watched() as honest: attack()

Honest clients stream known prompts all the while, one after the other. At the end of the block: every stream had the tokens of one
process; the first tokens came in time; the router's memory stayed under MEMORY_MIB; no process ended and no worker lost its session.

"In time" is judged so that work which others do on this machine is not taken for a stall of the router, and a stall is not taken for
such work:
 - The twin is a second cluster that is not attacked. One honest client streams from it during the block, from the same Python process
   and on the same processors: what delays the attacked cluster from outside delays the twin too.
 - The first token of a stream is late when it took longer than FLOOR_S and longer than LATENCY times the longest of these: the p99 of
   the cluster before it was attacked, and the times of those streams of the twin that waited for their first token concurrently with it.
 - At most one stream in a hundred may be late, else the block raises Late.
 - A delay of one process alone can still come from outside, but then it does not come each time: conftest.py runs a test that raised
   Late again, and the test fails when each of RUNS runs was late. What an attack causes, it causes each time (test_honest.py).
"""

import contextlib
import pathlib
import resource
import threading
import time

import real
from streams import sampling

LATENCY, FLOOR_S = 2, 1.0
MEMORY_MIB = 800  # docs/security.md states it
QUIET_S = 3
RUNS = 3
DESCRIPTORS, ADDRESS_SPACE_MIB = 1024, 2048  # the soft limits that every process of the cluster starts with


class Late(AssertionError):
    """The cluster served its honest clients too late, as far as one run can tell."""


class Honest:
    """n clients, each with one stream after the other, until stop(). waits: (when asked, seconds until the first token). shares: the
    attack is of the same client to the router, so that its part of the queue may be full; then they ask again."""

    def __init__(self, cluster, n=4, shares=False):
        self.cluster, self.shares = cluster, shares
        self.waits, self.problems, self.done = [], [], 0
        self.stopping = threading.Event()
        self.jobs = [(real.prompt(f"honest{i}", 90 + 31 * i), 40, sampling(i)) for i in range(6)]
        for ids, tokens, kw in self.jobs:
            real.reference(ids, tokens, **kw)
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.stopping.is_set():
            ids, n, kw = self.jobs[(i + self.done) % len(self.jobs)]
            begin, first = time.monotonic(), []

            def on_token(_so_far, begin=begin, first=first):
                if not first:
                    first.append((begin, time.monotonic() - begin))
            try:
                got = self.cluster.streamed(ids, n, 120, on_token=on_token, **kw)
                if got != real.reference(ids, n, **kw):
                    self.problems.append("a stream has other tokens than one process")
            except Exception as e:  # shown by the caller
                if self.shares and "of this client" in str(e):
                    time.sleep(0.2)
                    continue
                self.problems.append(f"{type(e).__name__} after {time.monotonic() - begin:.1f} s: {str(e)[:300]}")
                time.sleep(0.2)
            self.waits += first
            self.done += 1
            time.sleep(0.01)

    def stop(self):
        self.stopping.set()
        for t in self.threads:
            t.join(150)
        assert not any(t.is_alive() for t in self.threads), "an honest client hangs"
        return self


def p99(values):
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else float("inf")


def concurrent(begin, wait, twins):
    """The longest wait of the twin's streams that waited at some moment in which this one did."""
    return max((w for b, w in twins if b < begin + wait and begin < b + w), default=0.0)


def late(waits, quiet, twins):
    """Those of waits that are late, each with what the twin's clients waited concurrently."""
    found = [(wait, concurrent(begin, wait, twins)) for begin, wait in waits]
    return [(wait, twin) for wait, twin in found if wait > max(FLOOR_S, LATENCY * max(quiet, twin))]


class Target:
    """The cluster and what it was like before it was attacked."""

    def __init__(self, directory, twin, **settings):
        self.twin = twin
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limits = [f"--nofile={min(now, DESCRIPTORS) if now > 0 else DESCRIPTORS}:"]
        if not real.sanitized():  # a sanitizer reserves terabytes
            limits.append(f"--as={ADDRESS_SPACE_MIB << 20}:")
        self.cluster = real.Cluster(directory, prefix=["prlimit", *limits], **settings)
        self.router_pid = self.cluster.router_pid()
        self.pids = {w["name"]: w["pid"] for w in self.cluster.workers()}
        honest = Honest(self.cluster)
        time.sleep(QUIET_S)
        honest.stop()
        assert not honest.problems, honest.problems[:3]
        self.quiet = p99([wait for _, wait in honest.waits])
        self.base_mib = self.memory()

    def alive(self):
        """The router and every worker still run."""
        return all(pathlib.Path(f"/proc/{pid}/exe").exists() for pid in (self.router_pid, *self.pids.values()))

    def memory(self):
        status = pathlib.Path(f"/proc/{self.router_pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

    def losses(self):
        text = self.cluster.get("/metrics").text
        return sum(real.metric(text, "sluice_worker_failures_total", f'role="{r}"') or 0 for r in ("prefill", "decode"))

    @contextlib.contextmanager
    def watched(self, at_least=4):
        """Honest clients run during the block and a little after it."""
        lost, twin = self.losses(), Honest(self.twin, 1)
        honest = Honest(self.cluster)
        try:
            real.until("honest clients are served", lambda: honest.done >= 2 and twin.done >= 1)
            yield honest
            done = honest.done
            real.until("honest clients are served after the attack", lambda: honest.done >= done + at_least, 30)
        finally:
            honest.stop()
            twin.stop()
        assert self.cluster.process.poll() is None, f"the cluster ended:\n{self.cluster.tail()}"
        assert not honest.problems, f"{len(honest.problems)} of {honest.done} honest streams failed: {honest.problems[:3]}"
        assert self.memory() < MEMORY_MIB, f"the router took {self.memory():.0f} MiB, {self.base_mib:.0f} when it was quiet"
        assert {w["name"]: w["pid"] for w in self.cluster.workers()} == self.pids, "a worker was lost"
        assert self.losses() == lost, "a worker's session was lost"
        self.in_time(honest, twin)

    def in_time(self, honest, twin):
        assert not twin.problems, f"the cluster that is not attacked failed: {twin.problems[:3]}"
        slow = late(honest.waits, self.quiet, twin.waits)
        if len(slow) > len(honest.waits) // 100:
            shown = ", ".join(f"{wait:.3f} s (twin {other:.3f} s)" for wait, other in sorted(slow, reverse=True)[:5])
            raise Late(f"{len(slow)} of {len(honest.waits)} first tokens were late, quiet p99 {self.quiet:.3f} s: {shown}")
