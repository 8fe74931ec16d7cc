"""Memory of a decode worker that is damaged while requests run: a client gets the right tokens or the error DATA_LOSS, and no row that was
computed from damaged rows comes back from a storage tier, also after a restart."""

import os
import re
import signal

import pytest

import real
from test_disk_tier import disk, keys, stored  # noqa: F401

PROMPT, OUT = 200, 560  # long enough that the damage comes before the end


def flip(pid, step=512):
    """One bit in every `step` bytes of the store of the worker, whatever is there."""
    with open(f"/proc/{pid}/maps") as f:
        spans = [re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line) for line in f if "sluice-arena" in line]
    assert spans, "the store is not found"
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    os.kill(pid, signal.SIGSTOP)  # nothing that it writes meanwhile is overwritten
    try:
        for m in filter(None, spans):
            begin, end = (int(x, 16) for x in m.groups())
            data = bytearray(os.pread(memory, end - begin, begin))
            for at in range(131, len(data), step):
                data[at] ^= 0x10
            os.pwrite(memory, bytes(data), begin)
    finally:
        os.kill(pid, signal.SIGCONT)
        os.close(memory)


@pytest.mark.parametrize("at, verify", [(5, "always"), (70, "rows"), (190, "always")])
def test_rows_of_running_requests(start, disk, at, verify):  # noqa: F811
    """at: the tokens that the first request has when the store is damaged. verify rows: the damage is found when a step fetches the
    rows, before its tokens are sent, so every stream is right to its end; the patrol is too slow to find it."""
    options = keys(disk, **{"kvstore.bytes": "8MiB", "cluster.shipping": "direct", "kvstore.verify": verify})
    if verify == "rows":
        options["kvstore.patrol_rate"] = "1MiB"
    roles = ("router", "prefill", "decode")
    c = start(roles=roles, **options)
    prompts = [real.prompt(f"damage{at}.{i}", PROMPT + 40 * i) for i in range(3)]
    want = [real.reference(ids, OUT) for ids in prompts]
    calls = [real.Call(c, ids, OUT) for ids in prompts]
    real.until("tokens", lambda: max(len(t.so_far) for t in calls) >= at, 60, 0.001)
    flip(c.pid("decode/0"))
    for t in calls:
        t.join(240)
    c.logged("ev=page_damaged")
    lost = sum(t.right_or_data_loss(tokens) for t, tokens in zip(calls, want))
    if verify == "rows":
        assert not lost, "a wrong token was sent"
        assert real.metric(c.metrics(2), "sluice_store_damaged_pages_total", 'where="fetched"') > 0
    c.idle()
    turns = [ids + tokens + real.prompt(f"turn{i}", 30) for i, (ids, tokens) in enumerate(zip(prompts, want))]
    answers = [real.reference(ids, 12) for ids in turns]
    assert [c.tokens(ids, 12) for ids in turns] == answers
    stored(lambda: c.metrics(2), 3)
    assert c.close()
    c = start(roles=roles, **options)
    assert [c.tokens(ids, 12) for ids in turns] == answers
    assert real.metric(c.metrics(2), "sluice_tier_hit_pages_total") > 0, "nothing came from the disk: the test shows nothing"
