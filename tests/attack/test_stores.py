"""Pages of shared stores that are damaged while requests are served: values of a Redis server and files of a NIXL directory, each kind of
damage alone on every page, then all kinds at random next to requests that run; and a file system that fills up and has room again.

Each request has the tokens of `sluice generate`, whatever is in the store. A damaged page is counted and computed again."""

import os
import pathlib
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import pytest

import clients
import real
import test_shared_tiers as shared

PAGES, N = 4, 6
IDS = real.prompt("damaged", 64 * PAGES + 9)
ROLES = ("router", "prefill", "decode")
STORM_S = 4


class RedisStore:
    """The values as they are, without a library: one command for each connection."""

    tier = "redis"
    harmless = set()

    def __init__(self, directory):
        self.server = shared.Redis(directory)
        self.server.stop()
        text = self.server.config.read_text().replace("maxmemory 64mb", "maxmemory 700mb")
        self.server.config.write_text(text)
        self.server.start()
        self.settings = self.server.keys()

    def ask(self, *words):
        def line(f):
            kind, rest = (text := f.readline())[:1], text[1:-2]
            if kind == b"$":
                return f.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
            return [line(f) for _ in range(int(rest))] if kind == b"*" else rest
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(self.server.socket))
            for command in (("AUTH", shared.Redis.PASSWORD), words):
                parts = [w if isinstance(w, bytes) else str(w).encode() for w in command]
                s.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            with s.makefile("rb") as f:
                line(f)
                return line(f)

    def pages(self):
        return {k: self.ask("GET", k) for k in sorted(self.ask("KEYS", "*")) if self.ask("TYPE", k) == b"string"}

    def put(self, key, data):
        self.ask("SET", key, data)

    def remove(self, key):
        self.ask("DEL", key)

    def clear(self):
        self.ask("FLUSHALL")

    def others(self, key):
        """What is no page at all."""
        return {"a list": lambda: (self.remove(key), self.ask("RPUSH", key, "x")), "a hash": lambda: (self.remove(key), self.ask("HSET", key, "a", "b")),
                "a value of 512 MB": lambda: self.ask("SETRANGE", key, (512 << 20) - 8, "x"), "nothing": lambda: self.remove(key)}

    def close(self):
        self.server.stop()


class NixlStore:
    tier = "nixl"
    harmless = {"its last bit"}  # of the bytes that fill up the last block of a file

    def __init__(self, directory):
        self.path = directory / "pages"
        self.path.mkdir()
        self.settings = {"kvstore.nixl.backend": "POSIX", "kvstore.nixl.library": library(), "kvstore.nixl.path": self.path,
                         "kvstore.nixl.bytes": "64MiB"}

    def pages(self):
        return {p: p.read_bytes() for p in sorted(self.path.glob("*/*/*")) if p.is_file() and not p.is_symlink() and p.stat().st_size < 1 << 20}

    def put(self, key, data):
        self.remove(key)
        key.write_bytes(data)

    def remove(self, key):
        if key.is_dir() and not key.is_symlink():
            shutil.rmtree(key)
        else:
            key.unlink(missing_ok=True)

    def clear(self):
        for p in self.path.glob("*/*/*"):
            self.remove(p)

    def others(self, key):
        def made(make):
            return lambda: (self.remove(key), make())

        def plug():
            with socket.socket(socket.AF_UNIX) as s:
                here = os.getcwd()
                os.chdir(key.parent)
                try:
                    s.bind(key.name)
                finally:
                    os.chdir(here)
        return {"a pipe": made(lambda: os.mkfifo(key)), "a directory": made(key.mkdir), "a link to a device": made(lambda: key.symlink_to("/dev/zero")),
                "a link to a file": made(lambda: key.symlink_to("/etc/passwd")), "a socket": made(plug), "nothing": made(lambda: None),
                "a file of a tebibyte": lambda: os.truncate(key, 1 << 40)}

    def close(self):
        pass


def library():
    """NIXL's where it is installed, else the double of the unit tests, which reads and writes real files."""
    try:
        return shared.nixl_library()
    except pytest.skip.Exception:
        double = clients.BUILD / "tests/unit/kvstore/libfake_nixl.so"
        if not double.exists():
            raise
        return double


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:]


# What becomes of a page, from it and from one of another place in the prompt.
BYTES = {
    "its first bit": lambda d, o: flipped(d, 0), "a bit of its head": lambda d, o: flipped(d, 21), "a bit of its rows": lambda d, o: flipped(d, len(d) // 2),
    "its last bit": lambda d, o: flipped(d, len(d) - 1), "empty": lambda d, o: b"", "one byte": lambda d, o: d[:1], "half": lambda d, o: d[:len(d) // 2],
    "a byte less": lambda d, o: d[:-1], "a byte more": lambda d, o: d + b"\0", "twice": lambda d, o: d + d, "zeros": lambda d, o: bytes(len(d)),
    "another page": lambda d, o: o, "the head of another page": lambda d, o: o[:64] + d[64:], "the rows of another page": lambda d, o: d[:64] + o[64:],
    "a text": lambda d, o: b"-ERR\r\n$5\r\nhello\r\n" * 100,
}


@pytest.fixture(params=[RedisStore, NixlStore])
def store(request):
    if request.param is RedisStore and not real.have("redis-server"):
        pytest.skip("there is no redis-server")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))  # short, because the path of a Unix socket is
    made = request.param(directory)
    yield made
    made.close()
    shutil.rmtree(directory)


def damage_all(store, kind, good):
    keys = list(good)
    for i, key in enumerate(keys):
        if kind in BYTES:
            store.put(key, BYTES[kind](good[key], good[keys[i - 1]]))
        else:
            store.others(key)[kind]()


def peak_mib(cluster):
    return max(int(line.split()[1]) for w in cluster.workers() for line in pathlib.Path(f"/proc/{w['pid']}/status").read_text().splitlines()
               if line.startswith("VmHWM")) >> 10


def test_every_kind_of_damage(start, store):
    c = start(roles=ROLES, **store.settings)
    want, counted, used = real.reference(IDS, N), {}, []

    def missed():
        text = c.metrics(2)
        return {r: real.metric(text, "sluice_tier_miss_pages_total", f'tier="{store.tier}"', f'reason="{r}"') or 0 for r in ("damaged", "absent", "io")}

    def stored():
        real.until("all pages are in the store", lambda: len(store.pages()) == PAGES)
        return store.pages()
    assert c.tokens(IDS, N) == want
    good = stored()
    some = next(iter(good))
    for kind in (*BYTES, *store.others(some)):
        before = missed()
        damage_all(store, kind, good)
        c.flush()
        r = c.complete(IDS, N)
        assert list(r.output_ids) == want, kind
        after = missed()
        counted[kind] = {k: int(after[k] - before[k]) for k in after if after[k] > before[k]}
        if r.cached_tokens:
            used.append(kind)
        else:
            assert counted[kind], kind
        c.idle()
        store.clear()
        for key, data in good.items():  # the worker has not lost its way: what is right again is used again
            store.put(key, data)
        c.flush()
        r = c.complete(IDS, N)
        assert list(r.output_ids) == want and r.cached_tokens == 64 * PAGES, (kind, r.cached_tokens)
    print(f"{store.tier}: used {used}, {len(good[some])} bytes")
    assert set(used) <= store.harmless, used
    print(f"{store.tier}: missed {counted}; workers had {peak_mib(c)} MiB at most")
    assert peak_mib(c) < 800  # none of them took in a page of 512 MB
    c.idle()


def test_a_storm_of_damage(start, store):
    c = start(roles=ROLES, **store.settings)
    jobs = [(real.prompt(f"base{i % 3}", 64 * 2) + real.prompt(f"own{i}", 70), N) for i in range(6)]
    want = [real.reference(*job) for job in jobs]
    for job, tokens in zip(jobs, want):
        assert c.tokens(*job) == tokens
    real.until("pages in the store", lambda: len(store.pages()) >= 6)
    good, stop, wrong, served = store.pages(), threading.Event(), [], [0]

    def client(i):
        while not stop.is_set():
            i = (i + 1) % len(jobs)
            got = c.tokens(*jobs[i])
            served[0] += 1
            if got != want[i]:
                wrong.append((i, got))
    threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(3)]
    for t in threads:
        t.start()
    dice, end = random.Random(24), time.monotonic() + STORM_S
    while time.monotonic() < end or served[0] < 12:
        key, other = dice.sample(list(good), 2)
        kind = dice.choice([k for k in (*BYTES, *store.others(key)) if "512" not in k])
        try:
            store.put(key, BYTES[kind](good[key], good[other])) if kind in BYTES else store.others(key)[kind]()
        except OSError:  # the worker has just put its own page there
            pass
        if dice.random() < 0.2:
            try:
                c.flush()
            except AssertionError:  # requests run
                pass
        time.sleep(0.01)
    stop.set()
    for t in threads:
        t.join(120)
    assert not wrong and served[0] >= 12, (wrong[:2], served)
    c.idle()
    for job, tokens in zip(jobs, want):  # what was published meanwhile is right
        assert c.tokens(*job) == tokens
    c.idle()


@pytest.mark.parametrize("tier", ["nixl", "disk"])
def test_a_file_system_that_fills_up(start, tmp_path, tier):
    """Served meanwhile; and pages are stored again when there is room again. The file of the disk tier is allocated whole, so another
    program that fills its file system changes nothing."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    where = tmp_path / "full"
    where.mkdir()
    size = {"nixl": "4m", "disk": "40m"}[tier]
    image = tmp_path / "image"
    with open(image, "wb") as f:
        f.truncate({"4m": 4, "40m": 40}[size] << 20)
    if tier == "disk":  # tmpfs has no O_DIRECT everywhere
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    mount = f"mount -o loop {image} {where}" if tier == "disk" else f"mount -t tmpfs -o size={size} none {where}"
    keys = {"nixl": {"kvstore.nixl.backend": "POSIX", "kvstore.nixl.path": where, "kvstore.nixl.bytes": "64MiB"},
            "disk": {"kvstore.disk.path": where, "kvstore.disk.bytes": "24MiB"}}[tier]
    if tier == "nixl":
        keys["kvstore.nixl.library"] = library()
    r = start(real.Process, "router")
    start(real.Process, "prefill", 0, r.worker_address)
    w = start(real.Process, "decode", 0, r.worker_address, prefix=("unshare", "--mount", "sh", "-c", f'{mount} && chmod 700 {where} && exec "$@"', "sh"), **keys)
    r.wait_ready(2)
    pid = next(x["pid"] for x in r.workers("decode"))
    inside = pathlib.Path(f"/proc/{pid}/root{where}")

    def served(name, n=3):
        for i in range(n):
            ids = real.prompt(f"{name}{i}", 64 * 3 + 5)
            assert r.tokens(ids, N) == real.reference(ids, N)

    def stored():
        return real.metric(w.metrics(), "sluice_tier_stored_pages_total", f'tier="{tier}"') or 0
    served("before")
    real.until("pages are stored", lambda: stored() >= 3)
    with open(inside / "filler", "wb", buffering=0) as f:
        try:
            while f.write(bytes(4096)):
                pass
        except OSError:
            pass
    served("full", 6)
    while_full = stored()
    os.unlink(inside / "filler")

    def again():
        served(f"after{time.monotonic()}", 1)
        return stored() > while_full
    real.until("pages are stored again", again, 30)
    print(f"{tier}: {while_full} pages when it was full, {stored()} after it; health {real.metric(w.metrics(), 'sluice_tier_state')}")
