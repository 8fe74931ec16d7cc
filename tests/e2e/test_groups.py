"""Groups of ranks that share the routed experts (docs/groups.md): two groups of two CPU processes, started without MPI. Whatever happens
to a rank, every stream has the tokens of one process."""

import os
import signal

import real
from streams import QUICK, Streams, jobs


def rank_of(start, c, role, rank, address, **settings):
    return start(real.Process, role, None, c.worker_address, rank=("0", str(rank), "2"), **QUICK,
                 **{f"{role}.group_address": address, **settings})


def formed(process):
    return process.text().count("ev=formed")


def test_two_groups_of_two(start):
    """Tokens of both groups; a rank of the decode group is killed, replaced, and later stopped and continued; a rank that differs
    is refused. No process but the killed one ends."""
    c = start(real.Process, "router", **QUICK, **{"router.retries": 20})
    port = real.free_ports(2)
    at = {"prefill": f"127.0.0.1:{port}", "decode": f"127.0.0.1:{port + 1}"}
    ranks = {(role, k): rank_of(start, c, role, k, at[role]) for role in at for k in (1, 0)}
    c.wait_ready(4)

    streams = Streams(c, jobs("gk", 6, prompt=80, out=300))
    streams.until_streaming(5, 2)
    victim, other = ranks["decode", 1], ranks["decode", 0]
    victim.process.kill()
    victim.process.wait(60)
    other.logged(r"ev=broken.*rank 1")
    real.until("no worker of the broken group", lambda: not c.workers("decode"))
    wrong = rank_of(start, c, "decode", 1, at["decode"], **{"decode.max_batch": 32})
    assert wrong.process.wait(60 * real.PATIENCE) != 0
    assert "its steps have up to 32 tokens, those of rank 0 64 (decode.max_batch)" in wrong.text()
    ranks["decode", 1] = rank_of(start, c, "decode", 1, at["decode"])
    streams.check()
    assert formed(other) == 2 and c.worker("decode/1")["pid"] == ranks["decode", 1].process.pid

    streams = Streams(c, jobs("gs", 4, prompt=80, out=200))
    streams.until_streaming(5, 2)
    zero = ranks["prefill", 0]
    os.kill(zero.process.pid, signal.SIGSTOP)
    ranks["prefill", 1].logged(r"ev=broken")
    os.kill(zero.process.pid, signal.SIGCONT)
    streams.check()
    c.wait_ready(4)
    assert all(p.process.poll() is None for p in ranks.values())
    c.idle()
