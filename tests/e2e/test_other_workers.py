"""Pages in the host memory of another decode worker are read from there instead of computed; a worker that hangs or dies
meanwhile costs time, and never a token."""
import concurrent.futures
import os
import signal

import real

PAGES = 5
N = 20
DECODE = (2, 3)  # ranks


def total(c, name, *labels):
    return sum(real.metric(c.metrics(rank), name, *labels) or 0 for rank in DECODE)


def holder(c, before):
    """The decode worker, by name, that has served one more request than before."""
    counts = served(c)
    return next(f"decode/{i}" for i in range(2) if counts[i] > before[i])


def served(c):
    return [real.metric(c.metrics(rank), "sluice_decode_tokens_total") or 0 for rank in DECODE]


def test_pages_of_another_worker(start):
    c = start(**{"router.policy": "round_robin", "kvstore.load_timeout_ms": 1000})  # every second request: the other one

    def ids(name):
        return real.prompt(f"other-{name}", 64 * PAGES + 9)

    want = {name: real.reference(ids(name), N) for name in ("read", "stopped", "killed")}
    first = c.complete(ids("read"), N)
    assert first.cached_tokens == 0
    second = c.complete(ids("read"), N)
    assert list(first.output_ids) == list(second.output_ids) == want["read"]
    assert second.cached_tokens == 64 * PAGES
    real.until("the pages that were read", lambda: total(c, "sluice_pull_pages_total") == PAGES)
    real.until("no page is lent any more", lambda: total(c, "sluice_lend_leases") == 0)

    # The owner is stopped: the request waits for a bounded time and is computed.
    before = served(c)
    assert c.tokens(ids("stopped"), N) == want["stopped"]
    owner = real.until("the counters of the worker", lambda: served(c) != before and holder(c, before))
    os.kill(c.pid(owner), signal.SIGSTOP)
    try:
        late = c.complete(ids("stopped"), N)
    finally:
        os.kill(c.pid(owner), signal.SIGCONT)
    assert list(late.output_ids) == want["stopped"]
    c.wait_ready(3)
    reader = DECODE[1 - int(owner[-1])]
    assert (real.metric(c.metrics(reader), "sluice_pull_miss_pages_total", 'reason="peer"') or 0) + \
        (real.metric(c.metrics(reader), "sluice_pull_miss_pages_total", 'reason="late"') or 0) > 0

    # The owner dies concurrently with requests that need its pages.
    before = served(c)
    assert c.tokens(ids("killed"), N) == want["killed"]
    owner = real.until("the counters of the worker", lambda: served(c) != before and holder(c, before))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(c.tokens, ids("killed"), N) for _ in range(4)]
        os.kill(c.pid(owner), signal.SIGKILL)
        assert all(a.result(60) == want["killed"] for a in answers)
    c.idle()
