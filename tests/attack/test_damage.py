"""Bytes of the host stores of real workers are flipped while they run, through /proc/PID/mem: what follows has the right tokens, and
the counters say what happened."""

import contextlib
import os
import pathlib
import threading

import pytest

import real

STORE = 33  # MiB: no other mapping of a worker has this size
RANK = {"prefill": 1, "decode": 2}


def store_of(pid, role):
    """(address, bytes) of a worker's host store: a memfd on a decode worker (a prefill worker maps that one too), a private mapping of
    its size on a prefill worker."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
        shared = "memfd:sluice-arena" in line
        if "rw" in line and (shared if role == "decode" else not shared and STORE - 1 << 20 < end - begin <= STORE << 20):
            return begin, end - begin
    raise AssertionError(f"no store of {STORE} MiB in {role} process {pid}")


def flip(c, role, step=8192):
    """One bit in every `step` bytes: several in every page of the tiny checkpoint."""
    pid = next(w["pid"] for w in c.workers(role))
    begin, n = store_of(pid, role)
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    except PermissionError:
        pytest.skip("this system does not let a process write the memory of another one")
    try:
        data = bytearray(os.pread(memory, n, begin))
        for at in range(step // 2, n, step):
            data[at] ^= 0x10
        os.pwrite(memory, data, begin)
    finally:
        os.close(memory)


def damaged(c, role, where="reused"):
    return real.metric(c.metrics(RANK[role]), "sluice_store_damaged_pages_total", f'where="{where}"') or 0


@contextlib.contextmanager
def counted(c, role):
    before = damaged(c, role)
    yield
    real.until("the damage is counted", lambda: damaged(c, role) > before)


@pytest.fixture
def cluster(start):
    return start(roles=("router", "prefill", "decode"), **{"kvstore.bytes": f"{STORE}MiB", "cluster.shipping": "auto"})


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_published_pages(cluster, role):
    """12 of 12: a prompt that was served before, and its next turn, have the tokens of one process."""
    c = cluster
    for i in range(6):
        ids = real.prompt(f"damage{role}{i}", 260 + 70 * i)
        answer = c.tokens(ids, 80)
        assert answer == real.reference(ids, 80)
        flip(c, role)
        with counted(c, role):
            assert c.tokens(ids, 80) == answer
        flip(c, role)
        turn = ids + answer + real.prompt(f"turn{i}", 40)
        with counted(c, role):
            assert c.tokens(turn, 30) == real.reference(turn, 30)
    c.idle()


def test_pages_of_a_running_request(cluster):
    """The patrol finds them: the request starts again, and what comes after it is right."""
    c = cluster
    ids, got, begun = real.prompt("running", 400), [], threading.Event()
    stream = threading.Thread(target=lambda: got.append(c.streamed(ids, 900, on_token=lambda _: begun.set())), daemon=True)
    stream.start()
    assert begun.wait(60)
    flip(c, "decode")
    real.until("the patrol finds it", lambda: damaged(c, "decode", "running") > 0)
    stream.join(240)
    assert got and len(got[0]) == 900, "the stream did not end"
    assert (real.metric(c.metrics(RANK["decode"]), "sluice_decode_retractions_total") or 0) > 0
    for n in (400, 300):
        assert c.tokens(ids[:n], 60) == real.reference(ids[:n], 60)
    c.idle()
