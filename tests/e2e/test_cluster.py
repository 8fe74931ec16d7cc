"""A real cluster gives the tokens that one process gives: over HTTP and gRPC, for one request and for many at once, with and
without a cached prefix."""

import concurrent.futures
import re

import openai
import pytest

import clients
import real

HOT = {"hot_rows": real.TOPK, "tail_rows": 1}  # as small as it may be: nearly every row is swapped in
SAMPLED = {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
TEXT = "The decode worker keeps only a small buffer of rows."


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean):
    c = real.Cluster(tmp_path_factory.mktemp("cluster"), **{"sparse_attention.hot_rows": real.TOPK, "sparse_attention.tail_rows": 1})
    yield c
    assert c.close(), f"mpirun had to be killed:\n{c.tail()}"


@pytest.fixture(autouse=True)
def pages_come_back(request):
    """After every test of the shared cluster all pages are free or cached, and no request is in progress."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").idle()


@pytest.fixture
def client(cluster):
    return cluster.openai()


def ask(c, client, prompt, limit, **kw):
    extra = {"ignore_eos": True, **kw.pop("extra", {})}
    return client.completions.create(model=c.model, prompt=prompt, max_tokens=limit, extra_body=extra, **kw)


# ---- the same tokens ----


@pytest.mark.parametrize("n", [1, 2, 31, 63, 64, 65, 200, 700])
def test_prompt_lengths_by_grpc(cluster, n):
    ids = real.prompt(n, n)
    want = real.reference(ids, 40, mode="resident")
    assert cluster.tokens(ids, 40) == want
    assert cluster.streamed(ids, 40) == want  # now with its prefix cached
    assert real.reference(ids, 40, mode="hierarchical", **HOT) == want


def test_a_thousand_tokens_with_the_smallest_buffer(cluster):
    ids = real.prompt("long", 150)
    want = real.reference(ids, 1200, mode="resident")
    assert real.reference(ids, 1200, mode="hierarchical", **HOT) == want
    before = cluster.workers("decode")
    assert cluster.streamed(ids, 1200) == want
    missed = sum(w["swap_misses"] for w in cluster.workers("decode")) - sum(w["swap_misses"] for w in before)
    assert missed > 1200, "rows were not swapped in; the test shows nothing"


def test_a_thousand_sampled_tokens(cluster):
    ids = real.prompt("sampled", 100)
    want = real.reference(ids, 1100, mode="hierarchical", seed=12345, **SAMPLED, **HOT)
    assert len(set(want)) > 100
    assert cluster.streamed(ids, 1100, seed=12345, **SAMPLED) == want


def test_resident_cluster(start):
    c = start(roles=("router", "prefill", "decode"), **{"sparse_attention.mode": "resident"})
    ids = real.prompt("res", 130)
    want = real.reference(ids, 1000, mode="hierarchical", **HOT)
    assert c.streamed(ids, 1000) == want
    assert c.tokens(ids, 200, seed=5, **SAMPLED) == real.reference(ids, 200, mode="resident", seed=5, **SAMPLED)
    c.idle()


def test_adaptive_cluster(start):
    """About 14 row pages on the device, after scratch and the lists of sampled requests: one request needs more than that, then several
    requests compete for them; the tokens are the same."""
    c = start(roles=("router", "prefill", "decode"),
              **{"sparse_attention.mode": "adaptive", "decode.device_bytes": "10600KiB", "decode.max_batch": 6,
                 "model.max_context": 2048, "sparse_attention.hot_rows": real.TOPK})
    alone = real.prompt("adaptive", 700)
    assert c.tokens(alone, 320) == real.reference(alone, 320)
    assert real.metric(c.metrics(2), "sluice_decode_spills_total") > 0, "nothing was spilled: the test shows nothing"
    prompts = [real.prompt(f"adaptive {i}", 100 + 150 * i) for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda ids: c.tokens(ids, 300), prompts))
    assert got == [real.reference(ids, 300) for ids in prompts]
    c.idle()


def test_hot_rows_by_layer(start):
    layers = [-1, real.TOPK, 0, 3 * real.TOPK, -1]
    c = start(roles=("router", "prefill", "decode"), **{"sparse_attention.hot_rows": str(layers), "sparse_attention.tail_rows": 2})
    ids = real.prompt("by layer", 400)
    assert c.tokens(ids, 300) == real.reference(ids, 300)
    text = c.metrics(2)
    swapped = [sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith(f'sluice_swap_rows_total{{layer="{layer}"')) for layer in range(5)]
    assert swapped[0] == swapped[4] == 0 and all(swapped[1:4]), swapped
    c.idle()


def test_completion_from_text(cluster, client):
    want = real.document(TEXT, 60)
    whole = ask(cluster, client, TEXT, 60, temperature=0)
    assert whole.choices[0].text == want["text"]
    assert whole.usage.prompt_tokens == len(want["prompt_ids"])
    chunks = list(ask(cluster, client, TEXT, 60, temperature=0, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == want["text"]
    assert len(chunks) > 20, "a stream comes in pieces"


def test_completion_from_ids(cluster, client):
    ids = real.prompt("http", 90)
    want = real.document(ids, 50)
    got = ask(cluster, client, ids, 50, temperature=0, logprobs=0)
    assert got.choices[0].text == want["text"] and got.usage.prompt_tokens == 90 and got.usage.completion_tokens == 50


def test_completion_sampled(cluster, client):
    want = real.document(TEXT, 80, seed=99, temperature=0.8, top_p=0.9)
    assert ask(cluster, client, TEXT, 80, temperature=0.8, top_p=0.9, seed=99).choices[0].text == want["text"]
    streamed = ask(cluster, client, TEXT, 80, temperature=0.8, top_p=0.9, seed=99, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == want["text"]
    other = ask(cluster, client, TEXT, 80, temperature=0.8, top_p=0.9, seed=100).choices[0].text
    assert other != want["text"]


def test_chat(cluster, client):
    """The same text streamed and whole; the prompt is what the chat template makes of the messages, so its length tells."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where do the rows live?"}]
    ask_chat = dict(model=cluster.model, messages=messages, max_tokens=40, temperature=0, extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**ask_chat)
    chunks = list(client.chat.completions.create(**ask_chat, stream=True, stream_options={"include_usage": True}))
    def part(name, deltas):
        return "".join(getattr(d, name, None) or "" for d in deltas)
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert part("content", deltas) == (whole.choices[0].message.content or "")
    assert part("reasoning_content", deltas) == (getattr(whole.choices[0].message, "reasoning_content", None) or "")
    assert whole.usage.completion_tokens == 40 and whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 40
    # its template, written out: beginning, system text, user and assistant marks
    template = "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Where do the rows live?<｜Assistant｜></think>"
    want = real.document(template, 40)
    alone = ask(cluster, client, want["prompt_ids"], 40, temperature=0)
    assert alone.choices[0].text == want["text"]
    assert whole.usage.prompt_tokens == len(want["prompt_ids"])
    assert (whole.choices[0].message.content or "") == want["text"]


def test_end_of_sequence_ends(cluster):
    """Without ignore_eos the cluster ends a stream at the token at which one process ends it."""
    seen = set()
    for seed in range(6):
        ids = real.prompt(f"eos{seed}", 40)
        want = real.document(ids, 600, ignore_eos=False, seed=seed, temperature=1.3)
        got = cluster.complete(ids, 600, ignore_eos=False, seed=seed, temperature=1.3)
        ended = list(want["ids"])
        assert got.finish_reason == want["finish_reason"]
        assert list(got.output_ids) in (ended, ended[:-1] if got.finish_reason == "stop" else ended)
        seen.add(got.finish_reason)
    assert "stop" in seen, "no request met the end of sequence: choose other prompts"


# ---- many at once ----


def test_many_mixed_requests(cluster):
    jobs = []
    for i in range(40):
        ids = real.prompt(f"mix{i}", [3, 20, 64, 129, 300, 520][i % 6])
        n = [5, 17, 60, 120][i % 4]
        jobs.append((ids, n, {} if i % 3 else {"seed": i, **SAMPLED}))
    want = [real.reference(ids, n, **kw) for ids, n, kw in jobs]
    got = real.in_parallel([lambda j=j: (cluster.streamed if len(j[0]) % 2 else cluster.tokens)(j[0], j[1], **j[2]) for j in jobs])
    wrong = [i for i in range(len(jobs)) if got[i] != want[i]]
    assert not wrong, f"requests {wrong} differ from their own single runs"
    running = {w["name"] for w in cluster.workers("decode") if w["tokens_done"]}
    assert len(running) == 2, "both decode workers must have worked"


# ---- prefix ----


def test_prefix_is_reused(cluster):
    cluster.flush()
    shared = real.prompt("shared", 256)
    first = cluster.complete(shared + [50, 51, 52], 20)
    assert first.cached_tokens == 0
    for tail in ([60, 61], real.prompt("tail", 100)):
        c = cluster.complete(shared + tail, 30)
        assert c.cached_tokens == 256
        assert list(c.output_ids) == real.reference(shared + tail, 30)
    # only half of the prefix is cached
    c = cluster.complete(shared[:128] + [9] * 70, 20)
    assert c.cached_tokens == 128
    assert list(c.output_ids) == real.reference(shared[:128] + [9] * 70, 20)


def test_whole_prompt_cached_and_page_borders(cluster):
    cluster.flush()
    for n in (64, 128, 192):
        ids = real.prompt(f"border{n}", n)
        want = real.reference(ids, 10)
        assert cluster.tokens(ids, 10) == want
        again = cluster.complete(ids, 10)
        assert list(again.output_ids) == want
        assert again.cached_tokens in (n - 64, n - 1, n), "its pages are there; the last token is computed anew"


def test_kv_events_tell_what_each_worker_holds(cluster):
    """From their first number on: no gap for either worker, and the tokens of every full page of the prompts."""
    _, _, common = clients.protocol()
    prompts = [real.prompt(f"events{i}", 64 * 3 + 5) for i in range(8)]
    real.in_parallel([lambda ids=ids: cluster.tokens(ids, 4) for ids in prompts])
    want = {tuple(ids[at:at + 64]) for ids in prompts for at in (0, 64, 128)}
    seen, hashes, last = set(), {}, {}
    with cluster.channel() as channel:
        events = cluster.stub(channel).SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1), timeout=120)
        for batch in events:
            assert batch.sequence_number == last.get(batch.dp_rank, 0) + 1
            last[batch.dp_rank] = batch.sequence_number
            for stored in (e.stored for e in batch.events if e.WhichOneof("data") == "stored"):
                known = hashes.setdefault(batch.dp_rank, set())
                if stored.WhichOneof("_parent_block_hash"):
                    assert stored.parent_block_hash in known, "a page before the page that it continues"
                known.update(b.block_hash for b in stored.blocks)
                seen.update(tuple(b.token_ids) for b in stored.blocks)
            if seen >= want and len(last) == 2:
                break
        events.cancel()
    assert len(last) == 2, "all requests went to one decode worker"


def test_next_turn_reuses_what_was_generated(cluster):
    cluster.flush()
    ids = real.prompt("turn", 70)
    first = cluster.tokens(ids, 200)
    turn = ids + first + real.prompt("turn2", 30)
    second = cluster.complete(turn, 40)
    assert second.cached_tokens >= 256, f"pages with generated tokens are reused, not only {second.cached_tokens}"
    assert list(second.output_ids) == real.reference(turn, 40)


def test_usage_reports_cached_tokens_over_http(cluster, client):
    cluster.flush()
    ids = real.prompt("usage", 200)
    assert ask(cluster, client, ids, 4).usage.prompt_tokens_details.cached_tokens == 0
    assert ask(cluster, client, ids, 4).usage.prompt_tokens_details.cached_tokens >= 128


def test_prefix_made_by_another_prefill_worker(start):
    """Two prefill workers in turn: the second pulls the pages it does not have and computes only the rest."""
    c = start(roles=("router", "prefill", "prefill", "decode"), **{"router.policy": "round_robin"})
    shared = real.prompt("two", 320)
    first = c.complete(shared + [70], 10)
    assert first.cached_tokens == 0
    for i in range(3):
        ids = shared + real.prompt(f"two{i}", 20 + i)
        r = c.complete(ids, 25)
        assert r.cached_tokens == 320
        assert list(r.output_ids) == real.reference(ids, 25)
    done = {w["name"]: w["tokens_done"] for w in c.workers("prefill")}
    assert all(done.values()), f"both prefill workers must have worked: {done}"
    remote = sum(real.metric(c.metrics(rank), "sluice_prefill_reused_tokens_total", 'source="remote"') or 0 for rank in (1, 2))
    assert remote >= 320, "the second worker must have pulled the prefix"
    c.idle()


# ---- what the API promises ----


def test_several_choices(cluster, client):
    r = ask(cluster, client, TEXT, 20, n=3, temperature=1.0, seed=8)
    assert [c.index for c in r.choices] == [0, 1, 2] and r.usage.completion_tokens == 60
    assert r.choices[0].text == real.document(TEXT, 20, seed=8, temperature=1.0)["text"]
    assert len({c.text for c in r.choices}) == 3, "choices of one seed differ"
    again = ask(cluster, client, TEXT, 20, n=3, temperature=1.0, seed=8)
    assert [c.text for c in again.choices] == [c.text for c in r.choices]


def test_logprobs(cluster):
    ids = real.prompt("lp", 30)
    pb, _, _ = clients.protocol()
    request = cluster.request(ids, 12)
    request.return_logprob, request.top_logprobs_num = True, 5
    with cluster.channel() as channel:
        r = list(cluster.stub(channel).Generate(request, timeout=30))[-1].complete
    lp = r.output_logprobs
    assert list(lp.token_ids) == list(r.output_ids) and len(lp.token_logprobs) == 12
    for value, token, top in zip(lp.token_logprobs, lp.token_ids, lp.top_logprobs):
        assert len(top.values) == 5 and list(top.values) == sorted(top.values, reverse=True)
        assert top.token_ids[0] == token and abs(top.values[0] - value) < 1e-6 and value <= 0  # greedy: the best one


def test_stop_string_and_stop_token(cluster, client):
    whole = real.document(TEXT, 60)
    stop = whole["text"][30:34]
    r = ask(cluster, client, TEXT, 60, temperature=0, stop=[stop])
    assert r.choices[0].finish_reason == "stop" and r.choices[0].text == whole["text"][:whole["text"].index(stop)]
    token = whole["ids"][25]
    r = cluster.complete(whole["prompt_ids"], 60, stop_token_ids=[token])
    assert r.finish_reason == "stop" and r.matched_token_id == token
    cut = whole["ids"].index(token)
    assert list(r.output_ids) in (whole["ids"][:cut], whole["ids"][:cut + 1])


def test_context_limit(cluster, client):
    """Output ends at the end of the context; a prompt that is longer than the context is refused with this reason."""
    limit = client.models.list().data[0].max_model_len
    assert limit > 1000
    with pytest.raises(openai.BadRequestError) as e:
        ask(cluster, client, [20] * (limit + 1), 1)
    assert e.value.code == "context_length_exceeded" and str(limit) in str(e.value)


def test_prompt_that_fills_the_context(start):
    c = start(roles=("router", "prefill", "decode"), **{"model.max_context": 1024})
    limit = c.openai().models.list().data[0].max_model_len
    assert limit == 1024
    ids = real.prompt("full", limit - 10)
    assert c.tokens(ids, 10) == real.reference(ids, 10)
    r = ask(c, c.openai(), ids, None, temperature=0)
    assert r.usage.completion_tokens == 10 and r.choices[0].finish_reason == "length"
    c.idle()


def test_automatic_layout_and_policy_are_in_the_start_log(cluster):
    cluster.logged("ev=arena .*page_first", 5)  # the cpu backend's
    cluster.logged("ev=plan .*policy=lru", 5)


def test_poisoned_layouts_agree(start):
    """Another page layout: the same tokens."""
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.layout": "layer_first",
                                                        "sparse_attention.hot_rows": real.TOPK, "prefill.chunk_tokens": 48})
    c.logged("ev=arena .*layer_first", 5)
    ids = real.prompt("layout", 500)
    assert c.tokens(ids, 150) == real.reference(ids, 150)
    c.idle()


def test_a_request_is_two_lines_of_the_log(cluster):
    """At the default level: accepted and done, whatever happened between them, in all processes together."""
    cluster.complete(real.prompt("two lines", 200), 30, request_id="two-lines")
    done = cluster.logged(r"ev=request_done .*id=two-lines ")
    rid = re.search(r"rid=(\w+)", done)[1]
    cluster.idle()
    events = [re.search(r"ev=(\w+)", line)[1] for line in cluster.text().splitlines() if f"rid={rid}" in line]
    assert events == ["request_accepted", "request_done"]
