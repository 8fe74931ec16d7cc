"""A disk whose reads the kernel never ends (hang_disk.c): requests are computed instead, and SIGTERM ends the worker in bounded time."""

import time

import pytest

import clients
import real
from test_disk_tier import IDS, N, PAGES, disk, keys, stored  # noqa: F401

DOUBLE = clients.MOCK.parent / "libhang_disk.so"


def test_a_worker_ends_although_its_disk_hangs(start, disk, tmp_path):  # noqa: F811
    if not DOUBLE.exists() or real.sanitized():
        pytest.skip(f"{DOUBLE} is not built, or a sanitizer must come first")
    trigger, want, options = tmp_path / "hang", real.reference(IDS, N), keys(disk, **{"kvstore.load_timeout_ms": 1000})
    r = start(real.Process, "router")
    start(real.Process, "prefill", 0, r.worker_address)
    first = start(real.Process, "decode", 0, r.worker_address, **options)
    r.wait_ready(2)
    assert r.tokens(IDS, N) == want
    stored(first.metrics, PAGES)
    assert first.close()
    w = start(real.Process, "decode", 1, r.worker_address, prefix=["env", f"LD_PRELOAD={DOUBLE}", f"HANG_DISK={trigger}"], **options)
    real.until("the second worker", lambda: r.worker("decode/1"))
    trigger.touch()
    real.until("the disk hangs", lambda: not trigger.exists())
    assert r.tokens(IDS, N) == want  # it waits for the disk for a second, and computes
    late = real.metric(w.metrics(), "sluice_tier_load_miss_pages_total", 'reason="late"') or 0
    begin = time.monotonic()
    w.process.terminate()
    assert real.end(w.process, 60), "it had to be killed"
    print(f"{late:.0f} pages were late; the worker ended after {time.monotonic() - begin:.1f} s")
