"""Decode workers with different values of kvstore.verify work together: what one reads from the other is right, and damage is found by the
one that looks for it."""

import pytest

import real
from test_damage import flip

PAGES, N = 4, 20
AUTO = {"cluster.shipping": "auto"}  # the store is a memfd, which flip() finds


def worker(start, r, i, verify):
    return start(real.Process, "decode", i, r.worker_address, **{"kvstore.verify": verify, **AUTO})


@pytest.mark.parametrize("one, other", [("always", "rows"), ("rows", "sampled"), ("off", "always")])
def test_two_values(start, one, other):
    """One worker computes, the other one needs the same pages, in turns."""
    r = start(real.Process, "router", **{"router.policy": "round_robin"})
    start(real.Process, "prefill", 0, r.worker_address, **AUTO)
    workers = [worker(start, r, 0, one), worker(start, r, 1, other)]
    r.wait_ready(3)
    for k in range(2):
        ids = real.prompt(f"mixed{one}{other}{k}", 64 * PAGES + 9)
        want = real.reference(ids, N)
        for _ in range(4):  # both workers serve it, and each serves it again
            assert r.tokens(ids, N) == want
        turn = ids + want + real.prompt(f"turn{k}", 30)
        for _ in range(2):
            assert r.tokens(turn, N) == real.reference(turn, N)
    pulled = [real.metric(w.metrics(), "sluice_pull_pages_total") or 0 for w in workers]
    print(one, other, pulled)
    assert sum(pulled) > 0, "neither has read a page of the other: the test shows nothing"
    if one != "off":
        for w in workers:
            flip(w.process.pid)
        for _ in range(2):  # damage is found by each of them, and nothing wrong is served
            assert r.tokens(ids, N) == want
        assert sum(real.metric(w.metrics(), "sluice_store_damaged_pages_total") or 0 for w in workers) > 0
    r.idle()
