"""The judgement of the other tests: it finds a router that stalls, and does not take a busy machine for one."""

import os
import signal
import time

import pytest

import honest


def test_a_router_that_stalls_is_found(target):
    """No turn of the router's loop for two seconds, as with heavy work on its thread: each run finds it."""
    t = target()
    with pytest.raises(honest.Late, match="first tokens were late"):
        with t.watched():
            os.kill(t.router_pid, signal.SIGSTOP)
            time.sleep(2 * honest.FLOOR_S)
            os.kill(t.router_pid, signal.SIGCONT)
    with t.watched():
        pass


def test_what_delays_the_twin_too_is_no_stall():
    waits = [(0.2 * i, 0.1) for i in range(20)]
    assert not honest.late([*waits, (10.0, 1.4)], 0.1, [(9.5, 0.1), (11.3, 0.9)])
    assert honest.late([*waits, (10.0, 1.4)], 0.1, [(9.5, 0.1), (11.3, 0.1), (11.5, 5.0)]) == [(1.4, 0.1)]
    assert not honest.late([(1.0, 0.9)], 0.01, [])
    assert honest.late([(1.0, 1.5)], 0.8, []) == []
