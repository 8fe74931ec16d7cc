"""Shared by the tests of failures: streams in flight against a real cluster, each compared with the tokens of one process."""

import threading
import time

import real

QUICK = {"cluster.dead_after_ms": 2500}  # a busy machine is no dead worker
SAMPLED = [{"temperature": 0.9, "top_p": 0.95}, {"temperature": 1.0}, {"temperature": 0.9, "top_k": 20}, {"temperature": 1.2, "min_p": 0.05},
           {"temperature": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.4}, {"temperature": 0.8, "repetition_penalty": 1.3}]


def sampling(i):
    """Of request i: two of three are sampled, in each way that `sluice generate` has."""
    return {"seed": i, **SAMPLED[(i - i // 3 - 1) % len(SAMPLED)]} if i % 3 else {}


def jobs(tag, n, prompt=300, out=200):
    """(ids, tokens wanted, sampling) of n requests."""
    return [(real.prompt(f"{tag}{i}", prompt + 13 * (i % 7)), out + 11 * (i % 5), sampling(i)) for i in range(n)]


class Streams:
    """Requests in flight, each on its own thread; progress[i] is the number of tokens that request i has received.
    want: the tokens of each request; None: those of the usual model in one process."""

    def __init__(self, cluster, todo, timeout=300, want=None):
        self.todo, self.got, self.errors = todo, [None] * len(todo), []
        self.progress = [0] * len(todo)
        self.want = want or [real.reference(ids, n, **kw) for ids, n, kw in todo]
        self.threads = [threading.Thread(target=self.run, args=(cluster, i, timeout), daemon=True) for i in range(len(todo))]
        for t in self.threads:
            t.start()

    def run(self, cluster, i, timeout):
        ids, n, kw = self.todo[i]

        def on_token(so_far):
            self.progress[i] = so_far

        try:
            self.got[i] = cluster.streamed(ids, n, timeout, on_token=on_token, **kw)
        except Exception as e:  # shown by check
            self.errors.append(f"request {i}: {e}")

    def until_streaming(self, tokens=1, requests_=1, seconds=30):
        real.until("streams in progress", lambda: self.errors or sum(p >= tokens for p in self.progress) >= requests_, seconds, 0.002)

    def until_all_go_on(self, tokens, seconds=60):
        """Every stream that has not ended receives this many more tokens, or ends."""
        before = list(self.progress)

        def gone_on():
            return self.errors or all(p >= b + tokens or not t.is_alive() for p, b, t in zip(self.progress, before, self.threads))
        real.until("every stream to go on", gone_on, seconds, 0.01)

    def running(self):
        return any(t.is_alive() for t in self.threads)

    def check(self, limit=320):
        deadline = time.monotonic() + limit
        for t in self.threads:
            t.join(max(0.1, deadline - time.monotonic()))
        hanging = [i for i, t in enumerate(self.threads) if t.is_alive()]
        assert not hanging, f"requests {hanging} hang"
        assert not self.errors, self.errors
        wrong = [i for i in range(len(self.todo)) if self.got[i] != self.want[i]]
        assert not wrong, "; ".join(f"request {i} differs from token {first_difference(self.got[i], self.want[i])} on" for i in wrong)


def streams_when(c, tag, n, state, **sizes):
    """Starts n streams and waits until state() is true while they run; returns them and what state() returned. On a busy machine
    all of them may end before state() was called: then they are checked, and n others are started."""
    for wave in range(8):
        streams = Streams(c, jobs(f"{tag}.{wave}.", n, **sizes))
        while streams.running():
            if value := state():
                return streams, value
            time.sleep(0.002)
        streams.check()
    raise AssertionError("eight times all streams ended before their state was seen")


def first_difference(a, b):
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def retries(c):
    return real.metric(c.get("/metrics").text, "sluice_request_retries_total") or 0


def one_more(c, tag="after"):
    """The cluster serves one more request."""
    ids = real.prompt(tag, 150)
    assert c.tokens(ids, 20) == real.reference(ids, 20)


def has(c, name, placed):
    """A function that returns the worker if at least `placed` requests are placed on it, otherwise None."""
    def busy():
        w = c.worker(name)
        return w if w and w["placed"] >= placed else None
    return busy


def all_have(c, role, placed):
    return lambda: all(w["placed"] >= placed for w in c.workers(role))
