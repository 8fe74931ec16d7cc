"""Real clusters for the end-to-end tests: mpirun or single processes, their logs, their deaths, and proof that nothing is left.

A Cluster is one run of `mpirun … sluice serve`; a Process is one `sluice router|prefill|decode` without MPI. Ports are free ones
(0 where the program takes 0). Every process carries a mark in its environment, by which the processes of a test are found,
whichever process is their parent. Every wait has a limit that ends what hangs; it is long enough for a slow machine.
"""

import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import grpc
import openai
import requests

import clients

ROOT = clients.ROOT
SLUICE = clients.BUILD / "sluice"
MODEL = ROOT / "models" / "tiny-v32"
MARK = f"SL_E2E={os.getpid()}-{random.getrandbits(48):x}"
# The library that constrains answers; None: scripts/install-deps has not run.
LLGUIDANCE = next((ROOT / ".venv").glob("lib/python3*/site-packages/llguidance/_lib*.so"), None)
PATIENCE = 4  # how many times a limit in the tests is waited: they are written for an idle machine
TOPK = json.loads((MODEL / "config.json").read_text())["index_topk"]


# ---- what is left ----


def marked():
    """Processes (pid → command line) that carry this session's mark."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if MARK.encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command.strip():  # a zombie has none
                    found[int(entry.name)] = command.strip()
        except OSError:
            pass
    return found


def posix_shm():
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def sysv_shm():
    """Ids of System V segments to which no process is attached."""
    if not os.path.exists("/proc/sysvipc/shm"):
        return set()
    lines = pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines if int(line.split()[6]) == 0}


def mapped(name):
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            pass
    return False


class Leftovers:
    """Processes and shared memory that existed before; check() fails on anything new that remains. Other users of the machine do not
    count. Shared memory does not name the process that made it: with SL_E2E_SHARES other tests run concurrently with these, and
    tests/run checks shared memory after all of them."""

    def __init__(self):
        self.shares = "SL_E2E_SHARES" in os.environ
        self.shm, self.sysv = posix_shm(), sysv_shm()

    def found(self):
        left = [f"process {pid}: {command[:120]}" for pid, command in marked().items()]
        if self.shares:
            return left
        left += [f"/dev/shm/{name}" for name in posix_shm() - self.shm if not mapped(name)]
        return left + [f"System V segment {i}" for i in sysv_shm() - self.sysv]

    def check(self, seconds=8):
        deadline = time.monotonic() + seconds * PATIENCE
        while self.found() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = self.found()
        for pid in marked():
            os.kill(pid, signal.SIGKILL)
        assert not left, "still there: " + "; ".join(left)


# ---- small things ----


GIVEN = collections.deque(maxlen=512)  # ports of late; whoever got one may not have bound it yet


def free_ports(n):
    """A port p such that p .. p + n - 1 are free now, and were not given to somebody else just now."""
    for _ in range(200):
        first = random.randrange(20000, 32000)
        held = []
        if any(port in GIVEN for port in range(first, first + n)):
            continue
        try:
            for port in range(first, first + n):
                s = socket.socket()
                held.append(s)
                s.bind(("127.0.0.1", port))
            GIVEN.extend(range(first, first + n))
            return first
        except OSError:
            pass
        finally:
            for s in held:
                s.close()
    raise RuntimeError("no free ports")


def until(what, check, seconds=20, every=0.02):
    """Waits until check() is true and returns its value; fails after the limit, saying what it waited for."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(every)


def listening(pids, others=False):
    """TCP ports on which these processes listen; with others, those on which a process that is none of them does."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        f = line.split()
        if f[3] == "0A" and (f[9] in inodes) != others:
            found.add(int(f[1].split(":")[1], 16))
    return sorted(found)


def in_parallel(calls, limit=300):
    """Runs the calls concurrently and returns their results; the first exception is raised."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(calls))) as pool:
        return [f.result(limit) for f in [pool.submit(c) for c in calls]]


def prompt(seed, n):
    """n token ids without special ones; the same for the same seed."""
    r = random.Random(seed)
    return [r.randrange(10, 1200) for _ in range(n)]


@functools.lru_cache(maxsize=None)
def _generate(args):
    p = subprocess.run([SLUICE, "generate", "--model", MODEL, "--json", "--threads", "1", *args], capture_output=True, text=True,
                       timeout=300, check=False)
    assert p.returncode == 0, f"sluice generate ended with {p.returncode}: {p.stderr} ({args})"
    return json.loads(p.stdout)


def reference(ids, n, **options):
    """The token ids that one process gives. options are flags of `sluice generate` (hot_rows=32 → --hot-rows 32)."""
    return document(ids, n, **options)["ids"]


def document(ids, n, **options):
    args = ["--ids", ",".join(map(str, ids))] if isinstance(ids, (list, tuple)) else ["--prompt", ids]
    args += ["--max-new-tokens", str(n)]
    if options.pop("ignore_eos", True):
        args.append("--ignore-eos")
    for key, value in options.items():
        args += ["--" + key.replace("_", "-"), str(value)]
    return _generate(tuple(args))


# ---- processes ----


class Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Sends the key with every call."""

    def __init__(self, key):
        self.metadata = (("authorization", f"Bearer {key}"),)

    def intercept(self, proceed, details, request):
        return proceed(details._replace(metadata=self.metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept


class Base:
    """Log and HTTP side of anything that runs a router."""

    http = grpc = None
    key = "none"
    model = MODEL.name
    verify = True

    def text(self):
        return self.log.read_text(errors="replace")

    def tail(self, lines=25):
        return "\n".join(self.text().splitlines()[-lines:])

    def logged(self, pattern, seconds=10, since=0):
        """The first line of the log (after `since` characters) that matches."""
        def look():
            return next((line for line in self.text()[since:].splitlines() if re.search(pattern, line)), None)
        try:
            return until(f"a log line {pattern!r}", look, seconds)
        except AssertionError as e:
            raise AssertionError(f"{e}; the log ends:\n{self.tail()}") from None

    def get(self, path, **kw):
        return requests.get(self.http + path, timeout=kw.pop("timeout", 30), verify=self.verify,
                            headers={"Authorization": f"Bearer {self.key}"}, **kw)

    def post(self, body, path="/v1/completions", **kw):
        if isinstance(body, dict):
            body = json.dumps({"model": self.model, **body}).encode()
        return requests.post(self.http + path, data=body, timeout=kw.pop("timeout", 240), verify=self.verify,
                             headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}, **kw)

    def status(self):
        return self.get("/workers").json()

    def workers(self, role=None, state="ready"):
        return [w for w in self.status()["workers"] if (role is None or w["role"] == role) and (state is None or w["state"] == state)]

    def worker(self, name):
        return next((w for w in self.status()["workers"] if w["name"] == name and w["state"] != "dead"), None)

    def find_router(self, seconds=20):
        line = self.logged(r"ev=listening", seconds)
        self.worker_address = re.search(r"workers=(\S+)", line)[1]
        scheme = "https" if "tls=yes" in line else "http"
        self.http = f"{scheme}://" + re.search(r"http=(\S+)", line)[1]
        self.grpc = re.search(r"grpc=(\S+)", line)[1]

    def wait_ready(self, n, seconds=30):
        def ready():
            assert self.process.poll() is None, f"the cluster ended with {self.process.returncode}:\n{self.tail()}"
            try:
                return len(self.workers()) >= n
            except requests.RequestException:
                return False
        try:
            until(f"{n} workers", ready, seconds)
        except AssertionError as e:
            raise AssertionError(f"{e}; the log ends:\n{self.tail()}") from None

    def free_pages(self):
        """Pages that are free or cached (can be had at once), by worker; pages in use are the rest."""
        return {w["name"]: w["free_pages"] + w["cached_pages"] for w in self.workers()}

    def all_pages(self):
        return {w["name"]: w["total_pages"] for w in self.workers()}

    def idle(self, seconds=10):
        """Waits until no request is in work and every page is free or cached again."""
        def settled():
            s = self.status()
            return (not s["active"] and not s["queued"] and
                    all(w["free_pages"] + w["cached_pages"] == w["total_pages"] and not w["placed"] and not w["running"] and
                        not w["waiting"] for w in s["workers"] if w["state"] == "ready"))
        try:
            until("all pages back and nothing in work", settled, seconds)
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.status()}\n{self.tail()}") from None

    def flush(self):
        """Empties the prefix caches."""
        _, _, common = clients.protocol()
        with self.channel() as channel:
            assert self.stub(channel).FlushCache(common.FlushCacheRequest(timeout_s=60), timeout=90).success

    # -- clients --

    def openai(self, timeout=240):
        return openai.OpenAI(base_url=self.http + "/v1", api_key=self.key, max_retries=0, timeout=timeout)

    def channel(self):
        channel = grpc.insecure_channel(self.grpc)
        return channel if self.key == Base.key else grpc.intercept_channel(channel, Bearer(self.key))

    def stub(self, channel):
        return clients.protocol()[1].SglangSchedulerStub(channel)

    def request(self, ids, n, stream=False, seed=None, request_id=None, **params):
        pb, _, _ = clients.protocol()
        p = pb.SamplingParams(max_new_tokens=n, ignore_eos=params.pop("ignore_eos", True), **params)
        if seed is not None:
            p.custom_params["seed"] = seed
        q = pb.GenerateRequest(sampling_params=p, stream=stream)
        if isinstance(ids, str):
            q.tokenized.original_text = ids
        else:
            q.tokenized.input_ids.extend(ids)
        if request_id:
            q.request_id = request_id
        return q

    def complete(self, ids, n, timeout=240, **kw):
        """The GenerateComplete of one request."""
        with self.channel() as channel:
            return list(self.stub(channel).Generate(self.request(ids, n, **kw), timeout=timeout))[-1].complete

    def tokens(self, ids, n, timeout=240, **kw):
        return list(self.complete(ids, n, timeout, **kw).output_ids)

    def streamed(self, ids, n, timeout=240, on_token=None, got=None, **kw):
        """Tokens of a stream, put together from its chunks; they must agree with its final message. got: a list that has them as they
        come, also those of a stream that ends with an error."""
        got = [] if got is None else got
        with self.channel() as channel:
            for r in self.stub(channel).Generate(self.request(ids, n, stream=True, **kw), timeout=timeout):
                if r.WhichOneof("response") == "chunk":
                    got += r.chunk.token_ids
                    if on_token:
                        on_token(len(got))
                else:
                    assert list(r.complete.output_ids) == got, "the chunks are not the final message"
        return got


class Call(threading.Thread):
    """A stream of n tokens that runs concurrently with the test: so_far are the tokens that have come, tokens all of them when it has ended well,
    error (code, details) when it has ended otherwise."""

    def __init__(self, c, ids, n):
        super().__init__(daemon=True)
        self.c, self.ids, self.n, self.tokens, self.so_far, self.error = c, ids, n, None, [], None
        self.start()

    def run(self):
        try:
            self.tokens = self.c.streamed(self.ids, self.n, 240, got=self.so_far)
        except grpc.RpcError as e:
            self.error = e.code(), e.details()

    def right_or_data_loss(self, want):
        """What is promised after damage: every token is right, or the stream ends with DATA_LOSS. True for the latter."""
        self.join(240)
        assert not self.is_alive(), f"the stream has not ended, after {len(self.so_far)} tokens"
        if self.error is None:
            assert self.tokens == want, "a stream that ended well has wrong tokens"
            return False
        assert self.error[0] == grpc.StatusCode.DATA_LOSS, self.error
        return True


def settings_args(settings):
    args = []
    for key, value in settings.items():
        args += ["--set", f"{key}={value}"]
    return args


def environment():
    env = {**os.environ, "OMPI_MCA_orte_tmpdir_base": tempfile.gettempdir()}
    name, _, value = MARK.partition("=")
    env[name] = value
    if LLGUIDANCE:
        env.setdefault("SL_LLGUIDANCE", str(LLGUIDANCE))
    return env


def end(process, seconds):
    """Waits for the end of a process group's leader, killing the group after the limit; True when it ended by itself."""
    try:
        process.wait(seconds * PATIENCE)
        return True
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(10)
        return False


class Cluster(Base):
    """`mpirun -n N sluice serve` on this host. roles as in the config; settings by dotted key; prefix: a program, with its arguments,
    that starts mpirun; program: another one than sluice."""

    def __init__(self, directory, roles=("router", "prefill", "decode", "decode"), config="configs/one-host.yaml", launcher=None,
                 ready=True, prefix=(), program=None, **settings):
        directory = pathlib.Path(directory)
        self.log = directory / f"cluster-{time.monotonic_ns()}.log"
        self.n = len(roles)
        self.metrics_port = free_ports(self.n)
        fixed = {"model.path": "models/tiny-v32", "cluster.roles": "[" + ",".join(roles) + "]", "router.http_port": 0,
                 "router.grpc_port": 0, "metrics.port": self.metrics_port, "kvstore.bytes": "32MiB", "cluster.shipping": "staging"}
        self.settings = {**fixed, **{k.replace("__", "."): v for k, v in settings.items()}}
        command = launcher or ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--enable-recovery", "--oversubscribe",
                               "--bind-to", "none"]
        command = [*prefix, *command, "-n", str(self.n), str(program or SLUICE), "serve", "--config", str(ROOT / config), *settings_args(self.settings)]
        self.command = command
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                            env=environment(), start_new_session=True)
        if ready:
            try:
                self.find_router()
                self.wait_ready(self.n - 1)
            except BaseException:
                self.close()
                raise

    def pid(self, name):
        w = self.worker(name)
        assert w, f"no worker {name}: {self.status()}"
        return w["pid"]

    def router_pid(self):
        """The process of the rank that is the router: the one that is no worker."""
        workers = {w["pid"] for w in self.status()["workers"]}
        ours = [pid for pid, command in marked().items() if command.startswith(str(SLUICE)) and "serve" in command and
                str(self.metrics_port) in command and pid not in workers]
        assert len(ours) == 1, ours
        return ours[0]

    def metrics(self, rank):
        return requests.get(f"http://127.0.0.1:{self.metrics_port + rank}/metrics", timeout=30).text

    def close(self, seconds=20):
        """Ends it in order; False if it had to be killed."""
        if self.process.poll() is None:
            self.process.terminate()
        by_itself = end(self.process, seconds)
        for pid, command in marked().items():  # orphans of a killed mpirun
            if str(self.metrics_port) in command:
                os.kill(pid, signal.SIGKILL)
        return by_itself


class Process(Base):
    """One `sluice ROLE` without MPI. A router (role == "router") answers like a cluster. out: a descriptor that gets its output in
    place of the log file; then a router's ports must be among the settings, and http and grpc are for the caller to set. rank: group,
    rank and ranks of a worker that is a rank of a group."""

    def __init__(self, directory, role, index=None, router=None, config="configs/no-mpi.yaml", prefix=(), out=None, rank=None, **settings):
        self.log = pathlib.Path(directory) / f"{role}-{time.monotonic_ns()}.log"
        self.role = role
        settings = {k.replace("__", "."): v for k, v in settings.items()}
        fixed = {"kvstore.bytes": "32MiB", "metrics.port": free_ports(1), "cluster.shipping": "staging"}
        if role == "router":
            fixed.update({"cluster.router_port": 0, "router.http_port": 0, "router.grpc_port": 0})
        if router:
            host, port = router.rsplit(":", 1)
            fixed.update({"cluster.router_host": host, "cluster.router_port": port})
        self.settings = {**fixed, **settings}
        command = [*prefix, str(SLUICE), role, "--config", str(ROOT / config), *settings_args(self.settings)]
        if index is not None:
            command += ["--index", str(index)]
        if rank:
            command += ["--group", rank[0], "--rank", rank[1], "--ranks", rank[2]]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log if out is None else out,
                                            stderr=subprocess.STDOUT, env=environment(), start_new_session=True)
        if role == "router" and out is None:
            try:
                self.find_router()
            except BaseException:
                self.close()
                raise

    def metrics(self):
        return requests.get(f"http://127.0.0.1:{self.settings['metrics.port']}/metrics", timeout=30).text

    def close(self, seconds=15):
        if self.process.poll() is None:
            self.process.terminate()
        return end(self.process, seconds)


def metric(text, name, *labels):
    """Sum of a metric's values over the label sets that contain all labels; None when there is none."""
    values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
              if re.match(re.escape(name) + r"[{ ]", line) and all(label in line for label in labels)]
    return sum(values) if values else None


@functools.lru_cache(maxsize=None)
def sanitized():
    """Whether the program was built with a sanitizer that reserves address space."""
    program = SLUICE.read_bytes()
    return b"__asan_init" in program or b"__tsan_init" in program


def have(program):
    return shutil.which(program) is not None
