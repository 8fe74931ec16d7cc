"""Bytes of the host stores of real workers are flipped while they run, through /proc/PID/mem: a client gets the right tokens or the
error DATA_LOSS, and the counters say what happened."""

import contextlib
import os
import pathlib
import signal

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


def flip(c, role, step=8192, mask=0x10):
    """One bit in every `step` bytes: several in every page of the tiny checkpoint. The worker is stopped meanwhile, so nothing that it
    writes is overwritten, and no attempt begins in a store that is half damaged."""
    pid = next(w["pid"] for w in c.workers(role))
    begin, n = store_of(pid, role)
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    except PermissionError:
        pytest.skip("this system does not let a process write the memory of another one")
    os.kill(pid, signal.SIGSTOP)
    try:
        data = bytearray(os.pread(memory, n, begin))
        for at in range(step // 2, n, step):
            data[at] ^= mask
        os.pwrite(memory, data, begin)
    finally:
        os.kill(pid, signal.SIGCONT)
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


@pytest.mark.parametrize("at,mask", [(1, 0x10), (400, 0x01)])
def test_pages_of_a_running_request(cluster, at, mask):
    """The patrol finds them, and the request starts again: every token of its stream is right, or it ends with DATA_LOSS because a token
    that was sent is wrong. at: the tokens that it has when the store is damaged."""
    c, n = cluster, 900
    ids = real.prompt("running", 400)
    want = real.reference(ids, n)
    call = real.Call(c, ids, n)
    real.until("tokens", lambda: len(call.so_far) >= at, 60, 0.001)
    before = list(call.so_far)
    flip(c, "decode", mask=mask)
    real.until("the patrol finds it", lambda: damaged(c, "decode", "running") > 0)
    lost = call.right_or_data_loss(want)
    assert before == want[:len(before)], "tokens that were sent before the damage are wrong"
    assert lost == (call.so_far != want[:len(call.so_far)]), "DATA_LOSS, and every token that was sent is right"
    assert (real.metric(c.metrics(RANK["decode"]), "sluice_decode_retractions_total") or 0) > 0
    assert lost == ((real.metric(c.get("/metrics").text, "sluice_repeated_tokens_total", 'result="different"') or 0) > 0)
    for m in (400, 300):
        assert c.tokens(ids[:m], 60) == real.reference(ids[:m], 60)
    c.idle()
