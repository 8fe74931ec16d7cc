"""Workers of role both: prompts and tokens in the steps of one engine. Whatever happens to a worker, every stream has the tokens of
one process."""

import os
import re
import signal

import real
from streams import QUICK, Streams, has, one_more, streams_when
from test_families import checkpoint
from test_strategies import GOLDEN, NEW, reference

HOT = {"sparse_attention.hot_rows": real.TOPK, "sparse_attention.tail_rows": 1}  # as small as it may be
BOTH = ("router", "both", "both")


def shown():
    """The metrics that the dashboard shows, without those that only tenants make."""
    names = set(re.findall(r"sluice_\w+", (real.ROOT / "deploy" / "grafana" / "sluice.json").read_text()))
    assert len(names) > 40
    return {re.sub(r"_(bucket|sum|count)$", "", n) for n in names if not n.startswith("sluice_tenant_")}


def typed(text):
    return set(re.findall(r"^# TYPE (\w+) ", text, re.M))


def test_two_workers_compute_prompts_and_decode(start):
    """Tokens over HTTP and gRPC, a prefix from the own store, prompts in flight with streams, and kill -9 in mid-stream."""
    c = start(roles=BOTH, config="configs/one-host-both.yaml", **QUICK, **HOT)
    assert {w["role"] for w in c.status()["workers"]} == {"both"}
    ids = real.prompt("both", 700)
    want = real.reference(ids, 40)
    assert c.tokens(ids, 40) == want
    again = c.complete(ids, 40)
    assert list(again.output_ids) == want and again.cached_tokens == 640  # ten pages of its store
    extra = {"ignore_eos": True, "top_k": 50}
    answer = c.openai().completions.create(model=c.model, prompt=ids, max_tokens=40, temperature=0, extra_body=extra)
    assert answer.usage.completion_tokens == 40 and answer.usage.prompt_tokens_details.cached_tokens == 640

    streams, victim = streams_when(c, "bk", 4, has(c, "both/0", 2), prompt=400, out=100)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    one_more(c)
    c.idle()
    text = c.get("/metrics").text
    assert real.metric(text, "sluice_worker_failures_total", 'role="both"') == 1
    assert real.metric(c.metrics(2), "sluice_prefill_tokens_total") > 0


def test_prompts_that_are_cut_at_pages(start, tmp_path):
    """Steps of both kinds under xattention, whose prompts are computed by whole pages while others decode, in less than a page's time."""
    model = checkpoint(tmp_path / "tiny-llama", GOLDEN)
    prompts = [[8 + (i * k + k) % 90 for i in range(230 + 50 * k)] for k in range(1, 4)]
    want = [reference(model, "xattention", {"list_mass": 0.3}, ids) for ids in prompts]
    assert want[2] != reference(model, "dense", {}, prompts[2]), "nothing is left out: the test shows nothing"
    c = start(roles=BOTH[:2], **QUICK, **{"model.path": model, "model.max_context": 1024, "sparse_attention.algorithm": "xattention",
                                          "sparse_attention.list_mass": 0.3, "both.max_stall_ms": 1, "prefill.chunk_tokens": 100})
    Streams(c, [(ids, NEW, {}) for ids in prompts], want=want).check()
    Streams(c, [(ids, NEW, {}) for ids in prompts], want=want).check()  # from its own pages
    assert real.metric(c.metrics(1), "sluice_kv_prefix_hits_tokens_total") >= 3 * 192
    c.idle()


def test_a_group_of_two_restarts_with_its_disk(start, tmp_path):
    """Two ranks that share the routed experts: steps of both contain prompts and tokens. A rank is killed in mid-stream and replaced;
    then both start again and find the pages that they had written to disk."""
    pages, port = 5, real.free_ports(1)
    ids = real.prompt("both-group", 64 * pages + 9)
    c = start(real.Process, "router", **QUICK, **{"router.retries": 20})

    def rank(k):
        return start(real.Process, "both", None, c.worker_address, rank=("0", str(k), "2"), **QUICK, **HOT,
                     **{"decode.device_bytes": "256MiB", "cluster.groups": f"[both=2@127.0.0.1:{port}]",
                        "kvstore.disk.path": tmp_path, "kvstore.disk.bytes": "64MiB"})

    ranks = [rank(0), rank(1)]
    c.wait_ready(2)
    want = real.reference(ids, 30)
    assert c.tokens(ids, 30) == want
    missing = shown() - typed(c.get("/metrics").text) - typed(ranks[0].metrics())
    assert not missing, f"the dashboard shows what neither a router nor a rank of role both has: {missing}"
    streams, _ = streams_when(c, "bg", 3, lambda: all(w["placed"] for w in c.workers("both")), prompt=100, out=90)
    ranks[1].process.kill()
    ranks[1].process.wait(60)
    ranks[1] = rank(1)
    streams.check()

    def stored():
        return sum(real.metric(r.metrics(), "sluice_tier_pages", 'tier="disk"') for r in ranks) >= pages

    real.until("the pages are on disk", stored)
    for r in ranks:
        assert r.close()
    ranks = [rank(0), rank(1)]
    real.until("both ranks again", lambda: len([w for w in c.workers("both") if w["state"] == "ready"]) == 2)
    again = c.complete(ids, 30)
    assert list(again.output_ids) == want and again.cached_tokens == 64 * pages
    assert sum(real.metric(r.metrics(), "sluice_tier_hit_pages_total") for r in ranks) == pages
