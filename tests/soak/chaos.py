"""The failures that the soak injects: one after another, chosen at random."""

import collections
import os
import random
import signal
import socket
import threading
import time

import grpc
import requests

import clients
import real

GARBAGE = [os.urandom(4096), b"\0" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"SLUICEDR" + os.urandom(200), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 300]


class Chaos:
    """go() and pause(): pause returns when everybody is back. done counts what was injected."""

    def __init__(self, cluster, seed):
        self.cluster, self.r = cluster, random.Random(f"chaos{seed}")
        self.done, self.problems = collections.Counter(), []
        self.rejoined = []  # seconds from a router's start until it had all workers
        self.resting, self.idle = threading.Event(), threading.Event()
        self.resting.set()
        self.idle.set()
        threading.Thread(target=self.run, daemon=True).start()

    def go(self):
        self.idle.clear()
        self.resting.clear()

    def pause(self):
        self.resting.set()
        self.idle.wait(120)

    def run(self):
        kinds = [self.kill] * 4 + [self.stop] * 3 + [self.drain] * 2 + [self.flush, self.strangers, self.two_at_once]
        kinds += [self.one_of_several_routers] * 4 if len(self.cluster.routers) > 1 else [self.router]
        while True:
            if self.resting.is_set():
                self.idle.set()
                time.sleep(0.1)
                continue
            time.sleep(self.r.uniform(1, 6))
            if self.resting.is_set():
                continue
            kind = self.r.choice(kinds)
            try:
                kind()
            except (requests.RequestException, grpc.RpcError, OSError, AssertionError) as e:
                self.problems.append(f"{kind.__name__}: {type(e).__name__}: {str(e)[:300]}")

    def anyone(self, role=None):
        return self.r.choice([k for k in self.cluster.workers if role in (None, k[0])])

    def again(self, key, pause):
        time.sleep(pause)
        self.cluster.start_worker(*key)
        self.cluster.wait_ready()

    def kill(self):
        key = self.anyone()
        self.cluster.workers[key].process.kill()
        self.cluster.workers[key].process.wait()
        self.done[f"kill -9 of a {key[0]} worker"] += 1
        self.again(key, self.r.choice([0, 0, 1, 3]))

    def two_at_once(self):
        keys = {self.anyone(role) for role in sorted({role for role, _ in self.cluster.workers})}
        if len(keys) == 1:
            keys |= {self.anyone()}
        for key in keys:
            self.cluster.workers[key].process.kill()
        for key in keys:
            self.cluster.workers[key].process.wait()
            self.cluster.start_worker(*key)
        self.done["kill -9 of " + ("two workers" if len(keys) > 1 else "a worker") + " at once"] += 1
        self.cluster.wait_ready()

    def stop(self):
        """SIGSTOP: shorter than dead_after_ms, or longer, so that it is taken for dead and comes back."""
        key, seconds = self.anyone(), self.r.choice([0.5, 1.5, 5])
        process = self.cluster.workers[key].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        self.done[f"SIGSTOP of a {key[0]} worker for {seconds} s"] += 1
        self.cluster.wait_ready()

    def drain(self):
        key = self.anyone()
        p = self.cluster.workers[key]
        p.process.terminate()
        self.done[f"SIGTERM of a {key[0]} worker"] += 1
        if not real.end(p.process, 20):
            self.problems.append(f"{key} did not end after SIGTERM")
        self.again(key, 0)

    def flush(self):
        """A flush is refused while requests run that do not end in time; this answer is accepted too."""
        _, _, common = clients.protocol()
        router = self.r.choice(self.cluster.routers)
        with router.channel() as channel:
            done = router.stub(channel).FlushCache(common.FlushCacheRequest(timeout_s=1), timeout=30).success
        self.done["caches flushed" if done else "flush refused while requests ran"] += 1

    def strangers(self):
        pids = [p.process.pid for p in self.cluster.everybody().values()]
        for port in real.listening(pids):
            for data in self.r.sample(GARBAGE, 3):
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as s:
                        s.sendall(data)
                        s.settimeout(0.05)
                        s.recv(65536)
                except OSError:
                    pass
        self.done["garbage to every port"] += 1

    def router(self):
        if self.r.random() < 0.4:
            self.cluster.kill_router(0)
            self.cluster.bring_router_back(0)
            self.cluster.wait_ready()
            self.done["kill -9 of the router"] += 1

    def one_of_several_routers(self):
        """Kills one router and starts it again at the same ports, at once or after some seconds. No worker may end, and no other
        router may lose a worker's session: nothing else is injected meanwhile, so a loss would be the dead router's doing. The
        streams of the other routers are judged by their clients (load.py)."""
        c, i = self.cluster, self.r.randrange(len(self.cluster.routers))
        real.until("all routers to know the workers that live", c.settled, 60)
        others = [(k, router, sessions(router)) for k, router in enumerate(c.routers) if k != i]
        workers = {key: p.process.pid for key, p in c.workers.items()}
        c.kill_router(i)
        try:
            time.sleep(self.r.choice([0, 1, 4]))
        finally:
            begin = time.monotonic()
            c.bring_router_back(i)
        c.wait_ready()
        self.rejoined.append(time.monotonic() - begin)
        self.done["kill -9 of one of the routers"] += 1
        ended = [f"{role}/{n}" for (role, n), p in c.workers.items() if p.process.poll() is not None or p.process.pid != workers[role, n]]
        if ended:
            self.problems.append(f"after the death of router {i}: {ended} ended")
        for k, router, before in others:
            if sessions(router) != before:
                self.problems.append(f"the death of router {i} cost router {k} workers: (joined, lost) was {before}, is {sessions(router)}")


def sessions(router):
    """How many workers have joined this router, and how many it has lost, since it was started."""
    text = router.get("/metrics").text
    return tuple(real.metric(text, f"sluice_worker_{what}_total") or 0 for what in ("joins", "failures"))
