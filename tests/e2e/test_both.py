"""Workers of role both: prompts and tokens in the steps of one engine. Whatever happens to a worker, every stream has the tokens of
one process."""

import os
import signal

import real
from streams import QUICK, SAMPLED, Streams, jobs, one_more, streams_when, has

HOT = {"sparse_attention.hot_rows": real.TOPK, "sparse_attention.tail_rows": 1}  # as small as it may be
BOTH = ("router", "both", "both")


def test_two_workers_compute_prompts_and_decode(start):
    """Tokens over HTTP and gRPC, a prefix from the own store, prompts in flight with streams, and kill -9 in mid-stream."""
    c = start(roles=BOTH, config="configs/one-host-both.yaml", **QUICK, **HOT)
    assert {w["role"] for w in c.status()["workers"]} == {"both"}
    ids = real.prompt("both", 700)
    want = real.reference(ids, 40)
    assert c.tokens(ids, 40) == want
    again = c.complete(ids, 40)
    assert list(again.output_ids) == want and again.cached_tokens == 640  # ten pages of its store
    extra = {"ignore_eos": True, "top_k": 50, "return_token_ids": True}
    answer = c.openai().completions.create(model=c.model, prompt=ids, max_tokens=40, temperature=0, extra_body=extra)
    assert answer.usage.completion_tokens == 40 and answer.usage.prompt_tokens_details.cached_tokens == 640

    streams, victim = streams_when(c, "bk", 6, has(c, "both/0", 3), prompt=400, out=150)
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    one_more(c)
    c.idle()
    text = c.get("/metrics").text
    assert real.metric(text, "sluice_worker_failures_total", 'role="both"') == 1
    assert real.metric(c.metrics(2), "sluice_prefill_tokens_total") > 0
