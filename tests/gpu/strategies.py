#!/usr/bin/env python3
"""Strategies for models with KV heads on a cluster whose workers share one GPU, or two.

    strategies.py SLUICE [--backend cuda|cpu] [--devices 0,1] [--model DIR] [--only quest,...] [--soak SECONDS] [--csv FILE]
                  [--out DIR]

For each strategy a router, one prefill and two decode workers, in hierarchical mode. Every stream must have the tokens
of one process in resident mode with the same strategy: first undisturbed, then while the decode worker that makes it is
killed (SIGKILL) in the middle of the stream. A strategy that gives the tokens of dense attention has failed, because it
would show nothing. Prompts are several times as long as what a query reads. With --soak, clients then send such requests
for that long to a cluster whose host stores hold few of them; they leave two of five streams in the middle, and compare
the others token by token. Prints one line per check; exit code 0 only if all passed. Needs Python's standard library and
mpirun.
"""
import argparse
import concurrent.futures
import csv
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
loader = importlib.machinery.SourceFileLoader("cluster", str(HERE / "cluster"))
cluster = importlib.util.module_from_spec(importlib.util.spec_from_loader("cluster", loader))
loader.exec_module(cluster)

# Settings of sparse_attention, which are flags of `sluice generate` too.
STRATEGIES = {
    "quest": {"token_budget": 256},
    "snapkv": {"prompt_budget": 256, "output_tokens": 128},
    "rocket_kv": {"prompt_budget": 512, "kernel_size": 7, "topk": 32},
    "cluster_kv": {"token_budget": 256, "cluster_tokens": 16, "cluster_window": 64},
    "pq_cache": {"token_budget": 256},
}
PROMPT, NEW, STREAMS = 1500, 400, 6
SOAK_CLIENTS, SOAK_STORE = 12, "48MiB"


def jobs_of(model, name):
    """Prompts of random words; what a trained model says after them depends on all that it read."""
    words = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    r = random.Random(name)
    return [{"ids": [r.randrange(10, words) for _ in range(PROMPT + 131 * i)], "n": NEW + 11 * i, "sampling": {}}
            for i in range(STREAMS)]


def one_process(a, pool, jobs, flags):
    a.flags = flags
    return list(pool.map(lambda job: cluster.one_process(a, job), jobs))


def killed(c, jobs, seen):
    """What workers tell of their load is older than what they do; only a stream that stands while its worker is stopped is
    sure to be that worker's."""
    for attempt in range(6):
        streams = cluster.Streams(c, jobs)
        streams.streaming(20, len(jobs) // 2)
        victim = c.workers("decode")[attempt % 2]
        os.kill(victim["pid"], signal.SIGSTOP)
        time.sleep(0.2)  # what the router already had arrives
        before = list(streams.progress)
        time.sleep(0.8)  # both together less than cluster.dead_after_ms
        held = sum(0 < b == p < job["n"] for b, p, job in zip(before, streams.progress, jobs))
        os.kill(victim["pid"], signal.SIGKILL if held else signal.SIGCONT)
        streams.check(seen, killed=1 if held else 0)
        if held:
            resumed = c.metric("sluice_stream_resumes_total")
            assert resumed >= 1, "no stream was resumed"
            c.idle()
            return "%s killed while it made %d streams, %d resumed" % (victim["name"], held, resumed)
    raise AssertionError("each time all streams ended before the kill")


class Left(Exception):
    """The client has closed its connection."""


def leave_at(tokens):
    def on_token(n):
        if n >= tokens:
            raise Left()
    return on_token


def soak(c, jobs, seen, seconds):
    end, ended, left, problems = time.monotonic() + seconds, [], [], []

    def client(i):
        r = random.Random(i)
        while time.monotonic() < end and not problems:
            k = r.randrange(len(jobs))
            try:
                got = c.stream(jobs[k]["ids"], jobs[k]["n"], leave_at(r.randrange(1, NEW // 2)) if r.random() < 0.4 else None)
                (ended if got[1:4] == seen[k][1:4] else problems).append("request %d differs" % k)
            except Left:
                left.append(k)
            except Exception as e:
                problems.append("%s: %s" % (type(e).__name__, e))
    threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(SOAK_CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds + 120)
    assert not any(t.is_alive() for t in threads), "a request hangs"
    assert not problems, "%d problems, the first: %s" % (len(problems), problems[0])
    assert ended and left, "%d streams ended, %d were left: this shows nothing" % (len(ended), len(left))
    c.idle()
    return "%d streams as before, %d left in the middle" % (len(ended), len(left))


def scenario(a, report, pool, name, directory):
    keys = STRATEGIES[name]
    flags = [x for k, v in keys.items() for x in ("--" + k.replace("_", "-"), str(v))]
    jobs = jobs_of(a.model, name)
    for job, want in zip(jobs, one_process(a, pool, jobs, ["--algorithm", name] + flags)):
        job["want"] = want
    dense = one_process(a, pool, jobs[:1], ["--algorithm", "dense"])[0]
    seen = []

    def undisturbed():
        assert dense != jobs[0]["want"], "the tokens are those of dense attention"
        return cluster.undisturbed(c, jobs, seen)
    settings = {"model.max_context": 4096, "decode.max_batch": 8, "sparse_attention.algorithm": name,
                "sparse_attention.mode": "hierarchical", **{"sparse_attention." + k: v for k, v in keys.items()}}
    c = cluster.Cluster(a, directory, 1, 2, "default", **settings)
    try:
        ok = report.run("%s: tokens of one process" % name, undisturbed)
        if not (ok and report.run("%s: decode worker killed" % name, lambda: killed(c, jobs, seen))):
            print(c.tail())
    finally:
        c.close()
    if not (a.soak and ok):
        return
    c = cluster.Cluster(a, directory, 1, 2, "default", **{**settings, "kvstore.bytes": SOAK_STORE})
    try:
        if not report.run("%s: %d clients for %d s" % (name, SOAK_CLIENTS, a.soak), lambda: soak(c, jobs, seen, a.soak)):
            print(c.tail())
    finally:
        c.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("sluice")
    p.add_argument("--backend", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--devices", default="0", help="prefill on the first, decode on the last")
    p.add_argument("--model", default=str(ROOT / "models/facts-llama"))
    p.add_argument("--only", default=",".join(STRATEGIES))
    p.add_argument("--soak", type=int, default=0, help="seconds")
    p.add_argument("--csv", default="")
    p.add_argument("--out", default="", help="folder for the clusters' logs")
    p.set_defaults(own_gpu=False, groups=False, by_rank=True, store="256MiB", device_bytes="1GiB")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of mpirun are ended
    a.sluice = str(pathlib.Path(a.sluice).resolve())
    a.devices = [int(d) for d in a.devices.split(",")]
    report = cluster.Report()
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        for name in a.only.split(","):
            try:
                scenario(a, report, pool, name, a.out or directory)
            except Exception as e:
                report.run("%s: start" % name, lambda e=e: (_ for _ in ()).throw(e))
    if a.csv:
        with open(a.csv, "w", newline="") as f:
            csv.writer(f).writerows([["check", "result", "seconds", "note"], *report.rows])
    print("strategies (%s, devices %s): %d passed, %d failed" % (a.backend, a.devices, report.passed, report.failed))
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
