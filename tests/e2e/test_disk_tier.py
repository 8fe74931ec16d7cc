"""The disk tier below the store of a decode worker: pages that left memory, also with the process, come back from disk with
the same tokens; a damaged page is computed again; what cannot be used is refused at start, and the message names the key."""

import concurrent.futures
import csv
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

import real

BLOCK = 4096
PAGES = 5
IDS = real.prompt("disk", 64 * PAGES + 9)
N = 70
ALL = (len(IDS) + N - 1) // 64  # pages of a request with its generated tokens


@pytest.fixture
def disk():
    """On the file system of the build, because that of temporary files may have no O_DIRECT."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="disk-tier-", dir=real.ROOT / "build"))
    yield path
    shutil.rmtree(path)


def keys(disk, **more):
    return {"kvstore.disk.path": disk, "kvstore.disk.bytes": "64MiB", **more}


def stored(metrics, at_least):
    def look():
        return (real.metric(metrics(), "sluice_tier_stored_pages_total") or 0) >= at_least
    real.until(f"{at_least} pages on disk", look)


def on_disk(metrics, pages):
    """A page is published after its tokens were sent, and pages are written in any order: less than all of them may lack one in the
    middle, and then the rest is of no use."""
    real.until(f"{pages} pages in the tier", lambda: real.metric(metrics(), "sluice_tier_pages") == pages)


def damage(file, page, page_bytes):
    """Changes a byte of the page in this slot of the first segment."""
    slot = BLOCK + -(-page_bytes // BLOCK) * BLOCK
    with open(file, "r+b") as f:
        f.seek(2 * BLOCK + page * slot + BLOCK + 1000)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 0x10]))
        f.flush()
        os.fsync(f.fileno())


def test_restart_and_damage(start, disk):
    want = real.reference(IDS, N)
    roles = ("router", "prefill", "decode")
    # Each page is a chunk of its own, and the prefill worker fetches it while others are read.
    c = start(roles=roles, **keys(disk, **{"kvstore.bytes": "8MiB"}))

    def ahead(tokens):
        real.until(f"{tokens} tokens fetched while the disk was read",
                   lambda: real.metric(c.metrics(1), "sluice_prefill_reused_tokens_total", 'source="ahead"') == tokens)
        moved = [real.metric(c.metrics(1), "sluice_prefill_moved_tokens_total", f'when="{w}"') for w in ("arriving", "complete")]
        assert moved == [tokens, 0], "every page was moved to the device when it had come, and none a second time"

    def ask(cached):
        r = c.complete(IDS, N)
        assert list(r.output_ids) == want
        assert r.cached_tokens == cached

    def metrics():
        return c.metrics(2)

    ask(0)
    on_disk(metrics, ALL)
    c.flush()
    ask(64 * PAGES)
    assert real.metric(metrics(), "sluice_tier_hit_pages_total") == PAGES
    real.until("the router has the speed of the disk and what is on it",
               lambda: c.worker("decode/0")["disk_rate"] > 0 and c.worker("decode/0")["known_disk_pages"] >= PAGES)
    ahead(64 * PAGES)
    text = real.until("the size of the tier", lambda: metrics() if real.metric(metrics(), "sluice_tier_pages") else None)
    page_bytes = real.metric(text, "sluice_tier_bytes", 'state="used"') / real.metric(text, "sluice_tier_pages")
    c.flush()
    damage(disk / "decode-0" / "pages.sluice", 2, int(page_bytes))
    ask(64 * 2)
    ahead(64 * (PAGES + 2))
    assert real.metric(metrics(), "sluice_tier_miss_pages_total", 'reason="damaged"') == PAGES - 2
    on_disk(metrics, ALL)
    c.idle()
    assert c.close()

    c = start(roles=roles, **keys(disk, **{"decode.max_batch": 1}))
    turn = IDS + want + real.prompt("disk-turn", 20)
    r = c.complete(turn, 20)
    assert r.cached_tokens == (len(IDS) + N - 1) // 64 * 64, "pages with generated tokens are on disk too"
    assert list(r.output_ids) == real.reference(turn, 20)
    ask(64 * PAGES)
    c.idle()
    announced(c, metrics, want)
    lost_file(c, ask, metrics, disk)


def announced(c, metrics, want):
    """A request that waits in the router's queue, because both places of the decode worker are taken, is loaded ahead; also when it is
    cancelled then, which leaves nothing."""
    def ended(how):
        return real.metric(metrics(), "sluice_prefetch_total", f'result="{how}"') or 0
    with c.channel() as channel, concurrent.futures.ThreadPoolExecutor(1) as pool:
        stub = c.stub(channel)

        def queued(call):
            """Starts a request, and waits until it waits and its pages are in memory."""
            c.idle()
            c.flush()
            real.until("the router knows that none is in memory", lambda: c.worker("decode/0")["known_host_pages"] == 0)
            before = real.metric(metrics(), "sluice_tier_hit_pages_total")
            others = [stub.Generate(c.request(real.prompt(f"place{i}", 40), 3000, stream=True), timeout=600) for i in range(2)]
            for o in others:
                next(o)
            call = call()
            real.until("its pages loaded", lambda: real.metric(metrics(), "sluice_tier_hit_pages_total") == before + PAGES)
            assert c.status()["queued"] == 1
            return call, others
        answer, others = queued(lambda: pool.submit(c.complete, IDS, N))
        for o in others:
            o.cancel()
        r = answer.result(60 * real.PATIENCE)
        assert list(r.output_ids) == want and r.cached_tokens == 64 * PAGES
        real.until("a prefetch in time", lambda: ended("in_time") == 1)
        waits, others = queued(lambda: stub.Generate(c.request(IDS, N), timeout=600))
        waits.cancel()
        real.until("a prefetch that was cancelled", lambda: ended("cancelled") == 1)
        for o in others:
            o.cancel()
    c.idle()
    assert ended("late") == ended("skipped") == 0


def lost_file(c, ask, metrics, disk):
    """The file loses its contents while the worker uses it: every read is short. The pages are computed again, and stored again."""
    def descriptors():
        return len(os.listdir(f"/proc/{c.pid('decode/0')}/fd"))
    c.flush()
    before, stored_before = descriptors(), real.metric(metrics(), "sluice_tier_stored_pages_total") or 0
    damaged = real.metric(metrics(), "sluice_tier_miss_pages_total", 'reason="damaged"') or 0
    os.truncate(disk / "decode-0" / "pages.sluice", 0)
    ask(0)
    real.until("the damage counted",
               lambda: real.metric(metrics(), "sluice_tier_miss_pages_total", 'reason="damaged"') == damaged + PAGES)
    stored(metrics, stored_before + ALL)  # the page of the answer was there, and counts too
    c.flush()
    ask(64 * PAGES)
    c.idle()
    real.until("no descriptor is left open", lambda: descriptors() <= before)


def test_kill(start, disk):
    """kill -9 of the decode worker, which then starts again with the pages that it had written."""
    want = real.reference(IDS, N)
    router = start(real.Process, "router")
    start(real.Process, "prefill", 0, router.worker_address)
    d = start(real.Process, "decode", 0, router.worker_address, **keys(disk))
    router.wait_ready(2)
    assert router.tokens(IDS, N) == want
    on_disk(d.metrics, ALL)
    os.killpg(d.process.pid, signal.SIGKILL)
    d.process.wait()
    real.until("the router has noticed", lambda: all(w["name"] != "decode/0" or w["state"] != "ready" for w in router.workers()))
    router.flush()
    d = start(real.Process, "decode", 0, router.worker_address, **keys(disk))
    router.wait_ready(2)
    assert router.tokens(IDS, N) == want
    assert real.metric(d.metrics(), "sluice_tier_hit_pages_total") == PAGES
    router.idle()

    # Killed again while it writes the pages of a request that streams. The request ends on the next process, which has no time to
    # wait for its disk.
    ids = real.prompt("disk-kill", 64 * PAGES + 9)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(router.tokens, ids, N)
        stored(d.metrics, 1)
        os.killpg(d.process.pid, signal.SIGKILL)
        d.process.wait()
        d = start(real.Process, "decode", 0, router.worker_address, **keys(disk, **{"kvstore.load_timeout_ms": 1}))
        assert answer.result(60 * real.PATIENCE) == real.reference(ids, N)
    router.flush()
    assert router.tokens(IDS, N) == want
    router.idle()

    def counted():
        text = d.metrics()
        missed = [real.metric(text, "sluice_tier_miss_pages_total", f'reason="{why}"') or 0 for why in ("late", "room")]
        return (real.metric(text, "sluice_tier_hit_pages_total") or 0) + sum(missed) >= PAGES
    real.until("every page of the disk counted as a hit, or as one that did not come in time", counted)


def test_a_start_with_a_damaged_store(start, disk):
    """The first block of the store is damaged while the worker is down: the next start sets the file aside, says so, serves the right
    tokens and fills a new store."""
    want = real.reference(IDS, N)
    c = start(roles=("router", "prefill", "decode"), **keys(disk))
    assert c.tokens(IDS, N) == want
    stored(lambda: c.metrics(2), PAGES)
    assert c.close()
    file = disk / "decode-0" / "pages.sluice"
    with open(file, "r+b") as f:
        f.seek(20)
        f.write(b"\xff" * 8)
    c = start(roles=("router", "prefill", "decode"), **keys(disk, **{"kvstore.required": "disk"}))
    c.logged(r"ev=set_aside .*pages\.damaged")
    assert c.tokens(IDS, N) == want
    stored(lambda: c.metrics(2), PAGES)
    assert real.metric(c.metrics(2), "sluice_tier_set_aside") == 1
    assert (disk / "decode-0" / "pages.damaged").exists() and file.exists()


REFUSED = {
    "no-size": ({"kvstore.disk.bytes": 0}, r"kvstore\.disk\.bytes: is mandatory"),
    "absent": ({"kvstore.disk.path": "/nowhere/at/all"}, r"kvstore\.disk\.path: /nowhere/at/all: No such file"),
    "too-large": ({"kvstore.disk.bytes": "900TiB"}, r"kvstore\.disk\.bytes: .* the file system has \d+ free"),
    "read-only": ({}, r"kvstore\.disk\.path: .*Read-only file system", 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'),
    "full": ({}, r"kvstore\.disk\.bytes: .* the file system has \d+ free",
             'mount -t tmpfs -o size=80m,mode=700 none "$0" && head -c 40m /dev/zero >"$0"/other'),
    "too-small": ({"kvstore.disk.bytes": 4096}, r"kvstore\.disk\.bytes: .* holds no segment"),
}


def test_a_worker_serves_without_its_disk(start, disk):
    """By default a disk that cannot be used costs the cache only; what another configuration has to mend is refused."""
    c = start(roles=("router", "prefill", "decode"), **keys(disk, **{"kvstore.disk.bytes": "900TiB"}))
    c.logged(r"ev=unusable tier=disk .*kvstore\.disk\.bytes: .* the file system has \d+ free")
    assert c.tokens(IDS, N) == real.reference(IDS, N)
    assert real.metric(c.metrics(2), "sluice_tier_state", 'tier="disk"') == 2


def test_refused_at_start(start, disk):
    """Each of them ends by itself, with the key and the reason. The file systems are real ones, in mount namespaces, where this user
    may make them."""
    may_mount = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    refused = {name: r for name, r in REFUSED.items() if len(r) == 2 or may_mount}
    made = {}
    for name, (more, _, *mounts) in refused.items():
        own = disk / name  # they run concurrently, and a directory is used by one process at a time
        own.mkdir(mode=0o700)
        prefix = ("unshare", "--mount", "sh", "-c", f'{mounts[0]} && exec "$@"', str(own)) if mounts else ()
        made[name] = start(real.Process, "decode", 0, "127.0.0.1:9", prefix=prefix, **keys(own, **{"kvstore.required": "disk", **more}))
    for name, (_, why, *_) in refused.items():
        assert made[name].process.wait(60 * real.PATIENCE) != 0
        made[name].logged(why)
    (disk / "too-large" / "decode-0").chmod(0o770)
    p = start(real.Process, "decode", 0, "127.0.0.1:9", **keys(disk / "too-large", **{"kvstore.required": "disk"}))
    assert p.process.wait(60 * real.PATIENCE) != 0
    p.logged(r"kvstore\.disk\.path: .* can be written by other users")


def test_pressure(start, disk):
    """A store that holds a few requests only, and a disk that evicts too: prompts with common beginnings come and go, and every token
    is right."""
    c = start(roles=("router", "prefill", "decode"), **keys(disk, **{"kvstore.bytes": "2MiB", "kvstore.disk.bytes": "8MiB",
                                                                     "kvstore.write": "write_back"}))
    jobs = [(real.prompt(f"family{i % 5}", 64 * 4) + real.prompt(f"own{i}", 40 + 64 * (i % 2)), 12) for i in range(10)]
    want = [real.reference(ids, n) for ids, n in jobs]
    for _ in range(3):
        got = real.in_parallel([lambda j=j: c.tokens(*j) for j in jobs])
        assert got == want
    c.idle()
    text = c.metrics(2)
    assert real.metric(text, "sluice_tier_hit_pages_total") > 0
    assert real.metric(text, "sluice_kv_evictions_total") > 0


def test_time_to_first_token_by_source(disk):
    """tests/bench/ttft_sources finds every source, and says so by the workers' counters. Its times are not judged here."""
    table = disk / "table.csv"
    p = subprocess.run([sys.executable, real.ROOT / "tests/bench/ttft_sources", "--sluice", real.SLUICE, "--tokens", "320", "--rounds", "4",
                        "--disk", disk, "--csv", table], capture_output=True, text=True, timeout=240, check=False, env=real.environment())
    assert table.exists(), p.stderr
    rows = {r["source"]: r for r in csv.DictReader(table.read_text().splitlines()[1:])}
    for source in ("recompute", "both", "host", "workers", "disk"):
        assert int(rows[source]["samples"]) > 0, p.stderr
        assert float(rows[source]["ttft_ms"]) > 0
    assert float(rows["disk"]["read_ms"]) > 0
