"""Clients against clients: one call that fills the queue, long prompts among short ones, samples by the hundred."""

import concurrent.futures
import os
import signal
import threading
import time

import pytest

import real


def test_one_call_does_not_fill_the_queue(target):
    """8 prompts times n = 128 never fit the queue and are refused as such; calls that would fill it are not admitted."""
    t = target(**{"router.max_queue": 64})
    body = {"prompt": [real.prompt(f"fill{i}", 200) for i in range(8)], "max_tokens": 20, "ignore_eos": True, "temperature": 1}
    with t.watched():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            never = [pool.submit(t.cluster.post, {**body, "n": 128}) for _ in range(4)]
            full = [pool.submit(t.cluster.post, {**body, "n": 6}) for _ in range(4)]
            assert [a.result().status_code for a in never] == [400] * 4
            answers = [a.result() for a in full]
    codes = [a.status_code for a in answers]
    assert all(c in (200, 429) for c in codes) and 200 in codes and 429 in codes, codes
    assert all(1 <= int(a.headers["Retry-After"]) <= 60 for a in answers if a.status_code == 429)


def test_a_long_prompt_does_not_starve(start):
    """A prompt of 1,500 tokens is served while short ones fill the store."""
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.bytes": "4MiB", "decode.max_batch": 8})
    stop, done, errors = threading.Event(), [0], []

    def short(i):
        k = 0
        while not stop.is_set():
            k += 1
            try:
                c.tokens(real.prompt(f"s{i}.{k}", 150), 100)
                done[0] += 1
            except Exception as e:  # shown below
                errors.append(str(e)[:200])

    threads = [threading.Thread(target=short, args=(i,), daemon=True) for i in range(8)]
    for th in threads:
        th.start()
    try:
        real.until("short ones are served", lambda: done[0] >= 10)
        begin, before = time.monotonic(), done[0]
        ids = real.prompt("long", 1450)
        assert c.tokens(ids, 30, timeout=100) == real.reference(ids, 30)
        print(f"the long prompt took {time.monotonic() - begin:.1f} s, {done[0] - before} short ones meanwhile")
    finally:
        stop.set()
        for th in threads:
            th.join(120)
    assert not errors, errors[:3]
    c.idle()


def test_short_prompts_do_not_wait_for_long_ones(start):
    """Chunks of several prompts share a step: a short prompt gets its first token soon while four long ones are computed. Soon is 12
    times what it takes alone and a quarter of a second, or, because a busy machine computes more slowly, a third of what a long prompt
    takes concurrently with it: served in the order of arrival, a short prompt waits as long as a long one."""
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.bytes": "64MiB", "prefill.chunk_tokens": 256})

    def ttft(ids):
        begin, first = time.monotonic(), []
        c.streamed(ids, 4, on_token=lambda _: first.append(time.monotonic() - begin))
        return first[0]

    def measured(turn):
        """Medians in seconds: the first token alone, the first token concurrently with four long prompts, a long prompt."""
        alone = sorted(ttft(real.prompt(f"alone{turn}.{i}", 64)) for i in range(5))[2]
        stop, begun, took = threading.Event(), [], []

        def long(i):
            k = 0
            while not stop.is_set():
                k += 1
                begun.append(i)
                begin = time.monotonic()
                c.tokens(real.prompt(f"l{turn}.{i}.{k}", 1200), 2)
                took.append(time.monotonic() - begin)

        threads = [threading.Thread(target=long, args=(i,), daemon=True) for i in range(4)]
        for th in threads:
            th.start()
        try:
            real.until("every long client to be at its second prompt", lambda: all(begun.count(i) > 1 for i in range(4)))
            among = sorted(ttft(real.prompt(f"among{turn}.{i}", 64)) for i in range(11))[5]
        finally:
            stop.set()
            for th in threads:
                th.join(120)
        each = sorted(took)[len(took) // 2]
        print(f"TTFT of 64 tokens: alone {alone * 1000:.0f} ms, concurrently with four prompts of 1,200 tokens, which take "
              f"{each * 1000:.0f} ms each, {among * 1000:.0f} ms")
        c.idle()
        return alone, among, each

    for turn in range(4):  # other work on this machine can slow one measurement, an order that starves short prompts slows each of them
        alone, among, each = measured(turn)
        if among < max(12 * alone + 0.25, each / 3):
            return
    raise AssertionError(f"four times too late, the last time {among:.3f} s, alone {alone:.3f} s, a long prompt {each:.3f} s")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_requests_wait_for_a_replacement(start, role):
    """The last worker of a role dies with requests queued: they wait for stage_timeout_ms, and a replacement serves them."""
    settings = {"cluster.dead_after_ms": 2500, "router.stage_timeout_ms": 120000}
    c = start(roles=("router", "prefill", "decode"), **settings)
    ids = real.prompt("wait", 120)
    real.reference(ids, 20)
    os.kill(c.pid(f"{role}/0"), signal.SIGKILL)
    real.until("its loss is seen", lambda: not c.workers(role))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(c.tokens, ids, 20) for _ in range(4)]
        real.until("all four to wait", lambda: c.status()["queued"] + c.status()["active"] >= 4)
        start(real.Process, role, 7, c.worker_address, **settings)
        assert [a.result(240) for a in asked] == [real.reference(ids, 20)] * 4
