"""Groups of ranks that share the routed experts (docs/groups.md): two groups of two CPU processes, started without MPI. Whatever happens
to a rank, every stream has the tokens of one process."""

import json
import os
import re
import shutil
import signal
import time

import real
from streams import QUICK, Streams, all_have, jobs, one_more, retries, streams_when


def rank_of(start, c, role, rank, address, **settings):
    """dead_after_ms is short for prefill ranks, because the test waits for it: one that is lost too early only forms again."""
    quick = {**QUICK, **({"cluster.dead_after_ms": 1200} if role == "prefill" else {})}
    return start(real.Process, role, None, c.worker_address, rank=("0", str(rank), "2"), **quick,
                 **{"cluster.groups": f"[{role}=2@{address}]", **settings})


def without_experts(to, gone):
    """A copy of the model, of the same name, in which every byte of these routed experts is zero."""
    to = to / real.MODEL.name
    shutil.copytree(real.MODEL, to)
    path = to / "model.safetensors"
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, tensor in json.loads(data[8:begin]).items():
        expert = re.search(r"\.experts\.(\d+)\.", name)
        if expert and int(expert[1]) in gone:
            first, end = tensor["data_offsets"]
            assert any(data[begin + first:begin + end])
            data[begin + first:begin + end] = bytes(end - first)
    path.write_bytes(data)
    return to


def formed(process):
    return process.text().count("ev=formed")


def formed_after_losses(process):
    """Whether the group formed again after each loss. How many there were is not asked: on a busy machine a rank may be silent for
    longer than dead_after_ms, and then the group breaks and forms once more."""
    text = process.text()
    return 2 <= text.count("ev=formed") <= 1 + text.count("ev=broken")


def test_two_groups_of_two(start, tmp_path):
    """Tokens of both groups, though rank 1 of the decode group has a checkpoint without rank 0's experts; a rank of the decode group is killed and replaced, one that differs is refused; a rank of the prefill
    group is stopped and continued; a rank of the decode group leaves."""
    c = start(real.Process, "router", **QUICK, **{"router.retries": 20})
    port = real.free_ports(2)
    at = {"prefill": f"127.0.0.1:{port}", "decode": f"127.0.0.1:{port + 1}"}
    half = {"model.path": without_experts(tmp_path / "half", range(4))}  # of 8, which ranks 0 and 1 share
    ranks = {(role, k): rank_of(start, c, role, k, at[role], **(half if (role, k) == ("decode", 1) else {})) for role in at for k in (1, 0)}
    c.wait_ready(4)
    groups = c.get("/workers").json()["groups"]
    assert sorted((g["role"], g["state"], g["ranks"], g["joined"]) for g in groups) == [("decode", "ready", 2, 2), ("prefill", "ready", 2, 2)]

    # One prompt of one step, after which the prefill group rests: what the step exchanged is counted all the same.
    Streams(c, jobs("first", 1, prompt=20, out=2)).check()
    for k in (0, 1):
        text = ranks["prefill", k].metrics()
        assert real.metric(text, "sluice_group_steps_total") == 1
        real.until("the exchanges of the only step", lambda k=k: real.metric(ranks["prefill", k].metrics(), "sluice_group_exchange_bytes_total") > 0)
        assert real.metric(ranks["prefill", k].metrics(), "sluice_group_expert_rows_total", '"all"') > 0

    todo = jobs("gk", 4, prompt=80, out=140)
    streams = Streams(c, todo)
    streams.until_streaming(5, 2)
    victim, other = ranks["decode", 1], ranks["decode", 0]
    victim.process.kill()
    victim.process.wait(60)
    other.logged(r"ev=broken.*rank 1")
    real.until("no worker of the broken group", lambda: not c.workers("decode"))
    lacking = rank_of(start, c, "decode", 1, at["decode"], **{"model.path": without_experts(tmp_path / "other", range(7, 8))})
    assert lacking.process.wait(60 * real.PATIENCE) != 0
    assert "rank 1 of the group" in lacking.text() and "the tensors that it loads have the fingerprint" in lacking.text()
    wrong = rank_of(start, c, "decode", 1, at["decode"], **{"decode.max_batch": 32})
    assert wrong.process.wait(60 * real.PATIENCE) != 0
    assert "its steps have up to 32 tokens, those of rank 0 64 (decode.max_batch)" in wrong.text()
    ranks["decode", 1] = rank_of(start, c, "decode", 1, at["decode"])
    streams.check()
    assert formed_after_losses(other) and c.worker("decode/1")["pid"] == ranks["decode", 1].process.pid

    # Requests that arrive while a rank of the prefill group is stopped wait until the group has formed again.
    os.kill(ranks["prefill", 0].process.pid, signal.SIGSTOP)
    streams = Streams(c, todo)
    ranks["prefill", 1].logged(r"ev=broken")
    os.kill(ranks["prefill", 0].process.pid, signal.SIGCONT)
    streams.check()
    c.wait_ready(4)
    assert all(p.process.poll() is None for p in ranks.values())
    text = other.metrics()
    of_ranks = re.findall(r"\| `(\w+)` \| \w+ \| ranks of groups ", (real.ROOT / "docs" / "metrics.md").read_text())
    assert len(of_ranks) > 10 and [name for name in of_ranks if f"# TYPE {name} " not in text] == []
    assert 2 <= real.metric(text, "sluice_group_formings_total") <= formed(other)
    assert real.metric(text, "sluice_group_exchange_bytes_total") > 0
    assert real.metric(text, "sluice_group_exchange_exposed_seconds_total") > 0
    assert real.metric(text, "sluice_group_exchange_hidden_seconds_total") == 0  # the CPU backend waits
    assert 0 < real.metric(text, "sluice_group_exchange_wait_seconds_total") <= real.metric(text, "sluice_group_exchange_exposed_seconds_total")
    experts, (rows, busiest) = real.metric(text, "sluice_group_experts"), (
        real.metric(text, "sluice_group_expert_rows_total", f'"{e}"') for e in ("all", "busiest"))
    assert experts == 4 and busiest <= rows <= experts * busiest
    slowest, tokens = (real.metric(text, "sluice_group_tokens_total", f'"{r}"') for r in ("slowest", "all"))
    assert slowest <= tokens <= 2 * slowest

    # A rank that is told to end drains the group: what runs on the other one is finished, then the rank leaves.
    resumed, whole = real.metric(c.get("/metrics").text, "sluice_stream_resumes_total"), formed(other)
    streams = Streams(c, todo)
    real.until("both decode ranks at work", every=0.005,
               check=lambda: streams.errors or not streams.running() or all(w["running"] for w in c.workers("decode")))
    ranks["decode", 1].process.terminate()
    streams.check()
    assert ranks["decode", 1].process.wait(30 * real.PATIENCE) == 0
    other.logged(r"ev=broken", since=other.text().rindex("ev=formed"))
    assert other.process.poll() is None
    if formed(other) == whole:  # no rank was silent for too long meanwhile
        assert real.metric(c.get("/metrics").text, "sluice_stream_resumes_total") == resumed


def test_a_prefill_rank_is_lost_while_prompts_are_computed(start):
    """Both ranks compute chunks of prompts: one is killed and replaced. Then one is stopped in the middle of them, and the other,
    which waits for it in an exchange of their step, is killed; the group forms again with the continued one and a new one."""
    chunks = {"prefill.chunk_tokens": 32}
    c = start(real.Process, "router", **QUICK, **{"router.retries": 20, "kvstore.share": "none"})
    at = f"127.0.0.1:{real.free_ports(1)}"
    ranks = [rank_of(start, c, "prefill", k, at, **chunks) for k in (0, 1)]
    start(real.Process, "decode", 0, c.worker_address, **QUICK)
    c.wait_ready(3)
    sizes = {"prompt": 900, "out": 12}

    streams, _ = streams_when(c, "pk", 4, all_have(c, "prefill", 1), **sizes)
    ranks[1].process.kill()
    ranks[1].process.wait(60)
    ranks[0].logged(r"ev=broken.*rank 1")
    ranks[1] = rank_of(start, c, "prefill", 1, at, **chunks)
    streams.check()
    assert formed(ranks[0]) == 2 and retries(c) > 0

    c.wait_ready(3)
    streams, _ = streams_when(c, "px", 4, all_have(c, "prefill", 1), **sizes)
    os.kill(ranks[0].process.pid, signal.SIGSTOP)
    time.sleep(0.3)  # less than dead_after_ms: rank 1 has come to its next exchange and has not given up
    waiting = "ev=broken" not in ranks[1].text()
    ranks[1].process.kill()
    ranks[1].process.wait(60)
    os.kill(ranks[0].process.pid, signal.SIGCONT)
    ranks[1] = rank_of(start, c, "prefill", 1, at, **chunks)
    streams.check()
    assert waiting and formed(ranks[0]) == 3 and ranks[0].process.poll() is None
    one_more(c)
