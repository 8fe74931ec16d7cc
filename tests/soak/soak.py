"""A real cluster under mixed load and injected failures; every token is compared with the undisturbed stream.

    tests/soak/run MINUTES [--of workers|both|groups|both-group] [--routers N] [--seed N] [--clients N] [--report FILE]

The cluster is one router (or N, between which the clients are divided) and workers, each a process of its own on this machine: two
prefill and three decode workers; with --of both three workers of role both; with --of groups a prefill group and a decode group of
two ranks each; with --of both-group a group of role both of two ranks. Stores are too
small for the load, so that pages are evicted and requests are put back. Clients stream over gRPC and HTTP, ask for several samples,
leave in mid-stream, abort and set short deadlines. Meanwhile workers are killed, stopped, drained and replaced, caches are flushed,
strangers write garbage to every port, and sometimes a router is killed; with several routers, one of them at a time is killed
more often, and is away for up to four seconds.

What must hold, and what the exit code says:
  - a stream that ends has the tokens of `sluice generate` for the same prompt, sampling and seed;
  - a request ends as its client asked, or, while its own router is dead, with its connection: no other error, and none later than
    its deadline plus a grace period;
  - with several routers, the death of one has no effect on anything but its own requests: no worker ends, no other router loses a worker's session, and
    the streams of the other routers that were in flight at that moment end as they must;
  - at every rest (load and failures pause every few minutes) all pages are free or cached, no ticket is held, and each process that
    already lived at its first rest has as many descriptors and threads as then, and no more than 1.3 times its memory plus 16 MiB.

It is not part of the test run, because it is meant to run for an hour. --report writes the figures as Markdown.
"""

import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import real  # noqa: E402
from chaos import Chaos  # noqa: E402
from load import Load  # noqa: E402

SETTINGS = {"cluster.dead_after_ms": 3000, "router.retries": 20, "kvstore.bytes": "5MiB",
            "prefill.chunk_tokens": 128, "decode.max_batch": 16, "router.stage_timeout_ms": 60000}
CLUSTERS = {"workers": ("prefill", "prefill", "decode", "decode", "decode"), "both": ("both", "both", "both"),
            "groups": ("prefill", "prefill", "decode", "decode"), "both-group": ("both", "both")}
REST_EVERY_S = 300
WARM_S = 45  # before a process's figures count: by then it has met its peers


class SoakCluster:
    """The processes: names stay, processes come and go. Each of `routers` answers like a real.Cluster."""

    def __init__(self, directory, n_routers=1, of="workers"):
        self.directory, self.roles = directory, CLUSTERS[of]
        # where rank 0 of the group of a role listens
        self.groups = {role: f"127.0.0.1:{real.free_ports(1)}" for role in sorted(set(self.roles))} if "group" in of else {}
        self.lock = threading.RLock()
        self.ports = [{f"{key}_port": real.free_ports(1) for key in ("router.http", "router.grpc", "cluster.router")}
                      for _ in range(n_routers)]
        self.addresses = ",".join(f"127.0.0.1:{p['cluster.router_port']}" for p in self.ports)
        self.workers = {}
        self.routers = [None] * n_routers
        self.born = {}  # pid: when
        self.router_down = [threading.Event() for _ in range(n_routers)]
        self.router_deaths = [[] for _ in range(n_routers)]  # (from, until), monotonic seconds
        self.killed_at = [[] for _ in range(n_routers)]
        self.logs = []
        for i in range(n_routers):
            self.start_router(i)
        counts = collections.Counter()
        for role in self.roles:
            self.start_worker(role, counts[role])
            counts[role] += 1
        self.wait_ready()

    def wait_ready(self):
        """Until every router has every worker."""
        for router in self.routers:
            router.wait_ready(len(self.roles), 60)

    def start_router(self, i):
        self.routers[i] = real.Process(self.directory, "router", **SETTINGS, **self.ports[i])
        self.logs.append(self.routers[i].log)
        self.born[self.routers[i].process.pid] = time.monotonic()

    def start_worker(self, role, index):
        with self.lock:
            own = {"cluster.routers": self.addresses, **({"decode.device_bytes": "256MiB"} if role == "both" else {})}
            rank = None
            if role in self.groups:
                rank, own[f"{role}.group_address"] = ("0", str(index), str(self.roles.count(role))), self.groups[role]
            p = real.Process(self.directory, role, None if rank else index, rank=rank, **SETTINGS, **own)
            self.workers[role, index] = p
            self.logs.append(p.log)
            self.born[p.process.pid] = time.monotonic()

    def kill_router(self, i):
        """Its requests in flight lose their connection: the one loss that is allowed, and only to its own clients."""
        self.router_down[i].set()
        self.killed_at[i].append(time.monotonic())
        self.routers[i].process.kill()
        self.routers[i].process.wait()

    def bring_router_back(self, i):
        with self.lock:
            self.start_router(i)
        self.routers[i].wait_ready(1, 60)
        self.router_deaths[i].append((self.killed_at[i][-1], time.monotonic() + 1))
        self.router_down[i].clear()

    def had_no_router(self, i, begin, end):
        return self.router_down[i].is_set() or any(a <= end and b >= begin for a, b in list(self.router_deaths[i]))

    def another_was_killed(self, i, begin, end):
        """Whether a router that is not number i was killed in this time."""
        return any(begin <= at <= end for k, times in enumerate(self.killed_at) if k != i for at in list(times))

    def settled(self):
        """Whether every router has a session with exactly the worker processes that run now."""
        living = {p.process.pid for p in self.workers.values()}
        return all({w["pid"] for w in router.status()["workers"] if w["state"] != "dead"} == living and
                   len(router.workers()) == len(living) for router in self.routers)

    def everybody(self):
        with self.lock:
            return {**{f"router/{i}": p for i, p in enumerate(self.routers)}, **{f"{r}/{i}": p for (r, i), p in self.workers.items()}}

    def close(self):
        stuck = []
        for name, p in reversed(list(self.everybody().items())):
            if p.process.poll() is None and not p.close():
                stuck.append(name)
        return stuck


def facts(pid):
    """What a process holds: descriptors, threads, resident MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    field = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(field["Threads"]), "mib": int(field["VmRSS"]) / 1024}


class Rests:
    """What processes hold when nothing is in work, and what has grown since the first rest of each."""

    def __init__(self, cluster):
        self.cluster, self.first, self.last, self.problems, self.count = cluster, {}, {}, [], 0

    def take(self):
        self.count += 1
        try:
            self.cluster.wait_ready()
            for router in self.cluster.routers:
                router.idle(60)
        except AssertionError as e:
            self.problems.append(f"rest {self.count}: {str(e)[:600]}")
        for name, p in self.cluster.everybody().items():
            if p.process.poll() is not None:
                self.problems.append(f"rest {self.count}: {name} ended with {p.process.returncode}")
                continue
            now, key = facts(p.process.pid), (name, p.process.pid)
            if time.monotonic() - self.cluster.born[p.process.pid] < WARM_S:
                continue
            first = self.first.setdefault(key, now)
            self.last[key] = now
            if now["descriptors"] > first["descriptors"] + 8:
                self.problems.append(f"rest {self.count}: {name} has {now['descriptors']} descriptors, {first['descriptors']} at first")
            if now["threads"] > first["threads"] + 4:
                self.problems.append(f"rest {self.count}: {name} has {now['threads']} threads, {first['threads']} at first")
            if now["mib"] > 1.3 * first["mib"] + 16:
                self.problems.append(f"rest {self.count}: {name} holds {now['mib']:.0f} MiB, {first['mib']:.0f} at first")
            for state in ("reserved", "filling", "draining"):
                if name.startswith(("decode", "both")) and real.metric(p.metrics(), "sluice_tickets", f'state="{state}"'):
                    self.problems.append(f"rest {self.count}: {name} still has a ticket in state {state}")


def report(path, a, load, chaos, rests, seconds, problems):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=real.ROOT, capture_output=True, text=True, check=False).stdout.strip()
    lines = ["# Soak", "", f"`tests/soak/run {a.minutes:g} --of {a.of} --routers {a.routers} --seed {a.seed} --clients {a.clients}`, commit {commit}, {os.cpu_count()} cores, "
             f"{seconds / 60:.1f} minutes: {'passed' if not problems else f'{len(problems)} problems'}.", "", "| requests | number |", "|---|---|"]
    lines += [f"| {what} | {n} |" for what, n in sorted(load.outcomes.items())]
    lines += [f"| tokens compared | {load.tokens} |", "", "| injected | number |", "|---|---|"]
    lines += [f"| {what} | {n} |" for what, n in sorted(chaos.done.items())]
    if a.routers > 1:
        lines += ["", f"{load.through} requests were in flight at another router when a router was killed, and all of them are among the "
                  "requests above. From a router's start until all workers had joined it: "
                  f"{min(chaos.rejoined, default=0):.1f} to {max(chaos.rejoined, default=0):.1f} s."]
    lines += ["", f"{rests.count} rests. Processes that lived through more than one rest, at their first and last:", "",
              "| process | descriptors | threads | MiB |", "|---|---|---|---|"]
    for key, first in rests.first.items():
        last = rests.last[key]
        if last is not first:
            lines.append(f"| {key[0]} | {first['descriptors']} → {last['descriptors']} | {first['threads']} → {last['threads']} | "
                         f"{first['mib']:.0f} → {last['mib']:.0f} |")
    if problems:
        lines += ["", "Problems:", ""] + [f"- {p}" for p in problems[:50]]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def soak(a):
    problems, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sluice-soak-") as directory:
        cluster = SoakCluster(directory, a.routers, a.of)
        load, chaos, rests = Load(cluster, a.clients, a.seed), Chaos(cluster, a.seed), Rests(cluster)
        load.go()
        time.sleep(WARM_S)
        load.pause()
        rests.take()
        end = time.monotonic() + a.minutes * 60  # of load with failures: a slow start takes nothing from it
        while time.monotonic() < end and not (load.problems and a.stop):
            load.go()
            chaos.go()
            rest_at = min(end, time.monotonic() + min(REST_EVERY_S, a.minutes * 15))
            while time.monotonic() < rest_at and not (load.problems and a.stop):
                time.sleep(min(20, max(0.1, rest_at - time.monotonic())))
                print(f"{time.monotonic() - begin:6.0f} s  {dict(sorted(load.outcomes.items()))}  tokens {load.tokens}  "
                      f"injected {sum(chaos.done.values())}  problems {len(load.problems)}", flush=True)
            chaos.pause()
            load.pause()
            rests.take()
        problems = load.problems + chaos.problems + rests.problems + ([] if chaos.done else ["nothing was injected"])
        if a.routers > 1 and not load.through:
            problems.append("no request was in flight at another router when a router was killed: the run was too short to show anything")
        problems += [f"{name} had to be killed at the end" for name in cluster.close()]
        for log in cluster.logs:
            text = log.read_text(errors="replace")
            problems += [f"{log.name}: {word}" for word in ("Sanitizer", "panic", "Assertion") if word in text]
        if problems:
            keep = pathlib.Path(tempfile.mkdtemp(prefix="sluice-soak-logs-"))
            for log in cluster.logs:
                (keep / log.name).write_bytes(log.read_bytes())
            print(f"logs: {keep}")
    seconds = time.monotonic() - begin
    if a.report:
        report(a.report, a, load, chaos, rests, seconds, problems)
    for p in problems[:50]:
        print(f"problem: {p}")
    print(f"{seconds:.0f} s, {sum(load.outcomes.values())} requests, {load.tokens} tokens compared, "
          f"{sum(chaos.done.values())} injected, {len(problems)} problems")
    return 1 if problems else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("minutes", type=float)
    p.add_argument("--of", choices=sorted(CLUSTERS), default="workers", help="which workers")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--routers", type=int, default=1, help="routers at once; the clients are divided between them")
    p.add_argument("--clients", type=int, default=10, help="requests at once")
    p.add_argument("--disk", help="directory in which the decode workers also keep pages")
    p.add_argument("--report", help="file for the figures, Markdown")
    p.add_argument("--stop", action="store_true", help="end at the first wrong answer")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    args = p.parse_args()
    if args.disk:
        SETTINGS.update({"kvstore.disk.path": args.disk, "kvstore.disk.bytes": "64MiB"})
    sys.exit(soak(args))


if __name__ == "__main__":
    main()
