"""The soak's clients: one thread for each, which sends one request after another and compares every answer."""

import collections
import json
import random
import threading
import time

import grpc
import requests

import clients
import real

SAMPLED = {"temperature": 0.9, "top_p": 0.95}
GRACE_S = 20  # later than its deadline by so much is too late, on a machine that is busy


class Load:
    """go() and pause(): pause returns when every client's request has ended. outcomes counts requests by how they ended."""

    def __init__(self, cluster, n, seed):
        self.cluster, self.seed = cluster, seed
        self.outcomes, self.problems, self.tokens = collections.Counter(), [], 0
        self.through = 0  # requests that ended as they must although another router was killed while they were in flight
        self.lock, self.resting = threading.Lock(), threading.Event()
        self.idle = [threading.Event() for _ in range(n)]
        self.resting.set()
        self.jobs = self.make_jobs(seed)
        self.own = threading.local()  # number: of the router that this thread's client uses
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    @staticmethod
    def make_jobs(seed, n=60):
        """(ids, tokens, sampling): groups share beginnings, so that pages are reused; a tenth of the prompts is long."""
        r, jobs = random.Random(seed), []
        for i in range(n):
            begin = real.prompt(f"soak{seed}.{i % 6}", r.choice([0, 64, 200, 320]))
            rest = real.prompt(f"soak{seed}.own{i}", r.choice([20, 90, 250]) if i % 10 else 900)
            jobs.append((begin + rest, r.choice([1, 8, 40, 120, 250]), {"seed": i, **SAMPLED} if i % 3 == 0 else {}))
        for ids, tokens, kw in jobs:
            real.reference(ids, tokens, **kw)  # computed once, before the load
        return jobs

    @property
    def router(self):
        return self.cluster.routers[self.own.number]

    def go(self):
        self.resting.clear()

    def pause(self, limit=180):
        self.resting.set()
        end = time.monotonic() + limit
        for i, idle in enumerate(self.idle):
            if not idle.wait(max(0.1, end - time.monotonic())):
                self.problem(f"client {i}: its request did not end within {limit} s of the rest")

    def problem(self, text):
        with self.lock:
            self.problems.append(text)
        print(f"problem: {text}", flush=True)

    def count(self, outcome, tokens=0):
        with self.lock:
            self.outcomes[outcome] += 1
            self.tokens += tokens

    def run(self, i):
        r = random.Random(f"{self.seed}.{i}")
        kinds = [self.grpc_stream] * 6 + [self.http_stream] * 4 + [self.samples, self.leave, self.leave, self.abort, self.deadline]
        self.own.number = i % len(self.cluster.routers)
        while True:
            if self.resting.is_set() or self.cluster.router_down[self.own.number].is_set():
                if self.resting.is_set():
                    self.idle[i].set()
                time.sleep(0.05)
                continue
            self.idle[i].clear()
            job, kind, begin = r.choice(self.jobs), r.choice(kinds), time.monotonic()
            try:
                kind(r, job)
                if self.cluster.another_was_killed(self.own.number, begin, time.monotonic()):
                    with self.lock:
                        self.through += 1
            except Exception as e:  # judged here: only the client's own dead router excuses an error
                if self.cluster.had_no_router(self.own.number, begin - 1, time.monotonic()):
                    self.count("lost with the router")
                    time.sleep(0.3)
                else:
                    self.count("failed")
                    self.problem(f"{kind.__name__} of {len(job[0])} + {job[1]} tokens after {time.monotonic() - begin:.1f} s: "
                                 f"{type(e).__name__}: {str(e)[:400]}")

    def compare(self, what, got, job):
        want = real.reference(job[0], job[1], **job[2])
        if got != want:
            at = next((k for k, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            self.problem(f"{what}: wrong token at {at} of {len(want)}, {len(got)} came; prompt of {len(job[0])}, {job[2]}")
            self.count("wrong")
        else:
            self.count(what, len(got))

    # -- what a client does --

    def grpc_stream(self, r, job):
        self.compare("streamed over gRPC", self.router.streamed(job[0], job[1], **job[2]), job)

    def body(self, job, **more):
        return {"prompt": job[0], "max_tokens": job[1], "ignore_eos": True, "temperature": 0, **job[2], **more}

    def http_stream(self, r, job):
        """Text only; compared by the token count and, for greedy ones, by the text of the same request without streaming."""
        answer = self.router.post(self.body(job, stream=True, stream_options={"include_usage": True}), stream=True)
        assert answer.status_code == 200, answer.text[:300]
        text, usage, done = "", None, False
        for line in answer.iter_lines():
            if line == b"data: [DONE]":
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                usage = event.get("usage") or usage
                text += "".join(c["text"] for c in event["choices"])
        assert done and usage and usage["completion_tokens"] == job[1], f"the stream ended early: {usage}"
        want = real.document(job[0], job[1], **job[2])["text"]
        if text != want:
            self.problem(f"HTTP stream: other text than one process; prompt of {len(job[0])}")
            self.count("wrong")
        else:
            self.count("streamed over HTTP", job[1])

    def samples(self, r, job):
        """Several samples of one prompt: the first has the seed itself, the others must be repeatable; here they only have to end."""
        answer = self.router.post(self.body(job, n=3, seed=7, temperature=0.9))
        assert answer.status_code == 200, answer.text[:300]
        assert len(answer.json()["choices"]) == 3 and answer.json()["usage"]["completion_tokens"] == 3 * job[1]
        self.count("three samples")

    def leave(self, r, job):
        """Closes its connection after some tokens, without an abort."""
        if r.random() < 0.5:
            with self.router.post(self.body(job, stream=True), stream=True) as answer:
                for _, _line in zip(range(r.randrange(6)), answer.iter_lines()):
                    pass
        else:
            with self.router.channel() as channel:
                call = self.router.stub(channel).Generate(self.router.request(job[0], job[1], stream=True), timeout=240)
                for _, _message in zip(range(r.randrange(6)), call):
                    pass
                call.cancel()
        self.count("left by the client")

    def abort(self, r, job):
        pb, _, _ = clients.protocol()
        name = f"soak-{r.getrandbits(60):x}"
        with self.router.channel() as channel:
            stub = self.router.stub(channel)
            call = stub.Generate(self.router.request(job[0], job[1], stream=True, request_id=name), timeout=240)
            time.sleep(r.random() * 0.2)
            stub.Abort(pb.AbortRequest(request_id=name), timeout=30)
            try:
                list(call)
            except grpc.RpcError as e:
                if e.code() != grpc.StatusCode.CANCELLED:
                    raise
        self.count("aborted")

    def deadline(self, r, job):
        seconds, begin = r.choice([0.02, 0.2, 1]), time.monotonic()
        try:
            got = self.router.streamed(job[0], job[1], timeout=seconds, **job[2])
            self.compare("streamed within a short deadline", got, job)
        except grpc.RpcError as e:
            if e.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            if time.monotonic() - begin > seconds + GRACE_S:
                raise AssertionError(f"{time.monotonic() - begin:.1f} s with a deadline of {seconds} s") from e
            self.count("past its deadline")
