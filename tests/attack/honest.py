"""A cluster that is attacked, and its honest clients.

    with target.watched() as honest: attack()

Honest clients stream known prompts all the while, one after the other. At the end of the block: every stream had the tokens of one
process; the p99 of the time to the first token is within LATENCY times the one of the quiet cluster (or FLOOR_S, because attackers
and cluster share this machine's two cores); the router's memory stayed under MEMORY_MIB; no process ended and no worker lost its session.
"""

import contextlib
import pathlib
import resource
import threading
import time

import real
from streams import SAMPLED

LATENCY, FLOOR_S, MEMORY_MIB = 2, 1.0, 600
QUIET_S = 3
DESCRIPTORS = 1024  # the soft limit that processes start with


class Honest:
    """Four clients, each with one stream after the other, until stop()."""

    def __init__(self, cluster, key=None, n=4):
        self.cluster, self.key = cluster, key
        self.first, self.problems, self.done = [], [], 0
        self.stopping = threading.Event()
        self.jobs = [(real.prompt(f"honest{i}", 90 + 31 * i), 40, {"seed": i, **SAMPLED} if i % 2 else {}) for i in range(6)]
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
                    first.append(time.monotonic() - begin)
            try:
                got = self.cluster.streamed(ids, n, 120, on_token=on_token, **kw)
                if got != real.reference(ids, n, **kw):
                    self.problems.append("a stream has other tokens than one process")
            except Exception as e:  # shown by the caller
                self.problems.append(f"{type(e).__name__} after {time.monotonic() - begin:.1f} s: {str(e)[:300]}")
                time.sleep(0.2)
            self.first += first
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


class Target:
    """The cluster and what it was like before it was attacked."""

    def __init__(self, directory, **settings):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, DESCRIPTORS), hard))
        try:
            self.cluster = real.Cluster(directory, **settings)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.router_pid = self.cluster.router_pid()
        self.pids = {w["name"]: w["pid"] for w in self.cluster.workers()}
        honest = Honest(self.cluster)
        time.sleep(QUIET_S)
        honest.stop()
        assert not honest.problems, honest.problems[:3]
        self.quiet = p99(honest.first)
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
        lost, honest = self.losses(), Honest(self.cluster)
        try:
            real.until("honest clients are served", lambda: honest.done >= 2)
            yield honest
            done = honest.done
            real.until("honest clients are served after the attack", lambda: honest.done >= done + at_least, 30)
        finally:
            honest.stop()
        assert self.cluster.process.poll() is None, f"the cluster ended:\n{self.cluster.tail()}"
        assert not honest.problems, f"{len(honest.problems)} of {honest.done} honest streams failed: {honest.problems[:3]}"
        assert self.memory() < MEMORY_MIB, f"the router took {self.memory():.0f} MiB, {self.base_mib:.0f} when it was quiet"
        assert {w["name"]: w["pid"] for w in self.cluster.workers()} == self.pids, "a worker was lost"
        assert self.losses() == lost, "a worker's session was lost"
        allowed = max(FLOOR_S, LATENCY * self.quiet)
        assert p99(honest.first) <= allowed, f"p99 of the first token {p99(honest.first):.3f} s, quiet {self.quiet:.3f} s"
