"""Rows are written directly into the decode worker's memory (cluster.shipping); the other end-to-end tests ship by puts. The same
promises hold: whichever process dies or hangs, and at any moment, the tokens are those of one process and all pages are released."""

import os
import signal

import real
from streams import QUICK, Streams, all_have, has, jobs, one_more, retries, streams_when

DIRECT = {**QUICK, "cluster.shipping": "direct"}


def test_auto_is_direct_on_one_host(start):
    c = start(**{"cluster.shipping": "auto"})
    Streams(c, jobs("da", 6, prompt=200, out=60)).check()
    c.logged("comp=prefill.*ev=shipping path=direct")
    shipped = (real.metric(c.metrics(1), "sluice_transport_bytes_total", 'op="put"')
               or real.metric(c.metrics(1), "sluice_transfer_bytes_total"))
    assert shipped > 6 * 200 * 1000
    c.idle()


def test_prefill_killed_while_writing(start):
    c = start(roles=("router", "prefill", "prefill", "decode"), **DIRECT, **{"prefill.chunk_tokens": 32})
    streams, victim = streams_when(c, "dpk", 14, has(c, "prefill/0", 4), prompt=800, out=20)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    assert retries(c) >= 1, "no stream was interrupted: the test shows nothing"
    one_more(c)
    c.idle()


def test_decode_killed_while_rows_arrive(start):
    c = start(**DIRECT, **{"prefill.chunk_tokens": 16})
    pid = c.pid("decode/0")
    streams, _ = streams_when(c, "ddk", 10, all_have(c, "decode", 3), prompt=600, out=20)
    os.kill(pid, signal.SIGKILL)
    streams.check()
    assert retries(c) >= 1
    one_more(c)
    c.idle()


def test_prefill_hangs_and_comes_back(start):
    c = start(roles=("router", "prefill", "prefill", "decode", "decode"), **DIRECT, **{"prefill.chunk_tokens": 32})
    pid = c.pid("prefill/0")
    streams, _ = streams_when(c, "dph", 12, has(c, "prefill/0", 3), prompt=600, out=60)
    os.kill(pid, signal.SIGSTOP)
    try:
        real.until("the hang seen", lambda: not c.worker("prefill/0"), 15)
        streams.check()
    finally:
        os.kill(pid, signal.SIGCONT)
    real.until("the worker to join again", lambda: c.worker("prefill/0"), 20)
    Streams(c, jobs("dphafter", 8, prompt=200, out=40)).check()
    c.idle()
    assert c.worker("prefill/0")["pid"] == pid


def test_client_leaves_while_rows_are_written(start):
    c = start(**DIRECT, **{"prefill.chunk_tokens": 16})
    for i in range(6):
        with c.channel() as channel:
            call = c.stub(channel).Generate(c.request(real.prompt(f"dc{i}", 500), 5000, stream=True), timeout=240)
            real.until("its pages taken", lambda: sum(w["placed"] for w in c.workers("decode")), 20, 0.002)
            call.cancel()
    Streams(c, jobs("dcafter", 6, prompt=200, out=40)).check()
    c.idle()


def test_gpu_path_is_refused_with_the_reason(start):
    p = start(real.Process, "prefill", 0, "127.0.0.1:9", **{"cluster.shipping": "gpu"})
    assert p.process.wait(30 * real.PATIENCE) != 0
    p.logged("cluster.shipping is gpu, but transport ucx cannot move GPU memory")
