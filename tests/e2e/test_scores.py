"""Log-probabilities of prompts: echo with logprobs, prompt_logprobs, max_tokens 0, through real workers.

The reference for a position is another path through the server: a request of the tokens before it, whose next token is forced by
logit_bias, has that token's log-probability. Those of a transformers run of the trained checkpoint are in tests/golden/scores.
"""
import json
import os
import random
import signal
import threading

import grpc
import pytest

import clients
from real import ROOT, Cluster, in_parallel, prompt

GOLDEN = ROOT / "tests" / "golden" / "scores"


@pytest.fixture(scope="module", params=[("router", "prefill", "decode"), ("router", "both")], ids=["split", "both"])
def cluster(request, tmp_path_factory):
    c = Cluster(tmp_path_factory.mktemp("scores"), roles=request.param)
    yield c
    assert c.close()


def scored(c, ids, **fields):
    r = c.post({"prompt": ids, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0, **fields})
    assert r.status_code == 200, r.text
    return r.json()


def forced(c, ids, at):
    """The log-probability of token `at`, and the best two, as the output of a request says them."""
    r = c.post({"prompt": ids[:at], "max_tokens": 1, "logprobs": 2, "logit_bias": {str(ids[at]): 100}, "temperature": 0})
    lp = r.json()["choices"][0]["logprobs"]
    return lp["token_logprobs"][0], lp["top_logprobs"][0]


def test_scores_are_those_of_output(cluster):
    """Bit by bit, in the middle and at the ends of pages and chunks; with the prompt in the caches, and without."""
    ids = prompt(7, 300)
    at = sorted({1, 2, 63, 64, 65, 127, 128, 299} | set(random.Random(1).sample(range(1, 300), 8)))
    for _ in range(2):
        first = scored(cluster, ids)["choices"][0]["logprobs"]
        assert len(first["tokens"]) == len(first["token_logprobs"]) == len(first["top_logprobs"]) == len(first["text_offset"]) == 301
        assert first["token_logprobs"][0] is None and first["top_logprobs"][0] is None
        for i in at:
            assert (first["token_logprobs"][i], first["top_logprobs"][i]) == forced(cluster, ids, i), i


def test_batches_choices_and_both_kinds(cluster):
    prompts = [prompt(s, n) for s, n in ((1, 2), (2, 65), (3, 1), (4, 200))]
    many = scored(cluster, prompts, n=2, prompt_logprobs=1)
    assert many["usage"]["prompt_tokens"] == 268 and len(many["choices"]) == 8
    for choice in many["choices"]:
        ids = prompts[choice["index"] // 2]
        assert len(choice["logprobs"]["tokens"]) == len(ids) + 1 and choice["logprobs"]["token_logprobs"][0] is None
        assert choice["prompt_logprobs"][0] is None and len(choice["prompt_logprobs"]) == len(ids)
        alone = scored(cluster, ids)["choices"][0]["logprobs"]
        assert choice["logprobs"]["token_logprobs"][:-1] == alone["token_logprobs"][:-1]
        for i, entry in enumerate(choice["prompt_logprobs"][1:], 1):
            own = entry[str(ids[i])]
            assert own["logprob"] == alone["token_logprobs"][i] and own["rank"] in (1, None)
            best = min((e for e in entry.values() if e["rank"]), key=lambda e: e["rank"])
            assert best["rank"] == 1 and best["logprob"] == max(alone["top_logprobs"][i].values())


def test_grpc_says_the_same(cluster):
    """From every kind of place on: the numbers of HTTP, and the best of each; none by default; refused where HTTP refuses them."""
    with cluster.channel() as channel:
        grpc_as_http(cluster, cluster.stub(channel), clients.protocol()[0])


def grpc_as_http(cluster, stub, pb):
    for ids in (prompt(8, 2), prompt(9, 200)):
        http = scored(cluster, ids)["choices"][0]["logprobs"]
        best = cluster.post({"prompt": ids, "max_tokens": 0, "prompt_logprobs": 2}).json()["choices"][0]["prompt_logprobs"]
        for start in sorted({1, len(ids) // 2, len(ids) - 1}):
            for top in (0, 2):
                (c,) = [r.complete for r in stub.Generate(asked(pb, ids, logprob_start_len=start, top_logprobs_num=top), timeout=120)]
                got = c.input_logprobs
                assert list(got.token_ids) == ids[start:] and len(c.output_ids) == len(c.output_logprobs.token_logprobs) == 1
                assert [v.value for v in got.token_logprobs] == http["token_logprobs"][start:-1]
                assert len(got.top_logprobs) == (len(ids) - start if top else 0)
                for t, entry in zip(got.top_logprobs, best[start:]):
                    want = sorted((e["rank"], e["logprob"], int(i)) for i, e in entry.items() if e["rank"])[:2]
                    assert [(v, i) for v, i in zip(t.values, t.token_ids)] == [w[1:] for w in want]
    for start in (0, -1):
        (c,) = [r.complete for r in stub.Generate(asked(pb, ids, logprob_start_len=start), timeout=120)]
        assert not c.HasField("input_logprobs") and c.HasField("output_logprobs")
    many = [r.complete for r in stub.Generate(asked(pb, ids, n=3, logprob_start_len=1), timeout=120)]
    assert {c.index: len(c.input_logprobs.token_ids) for c in many} == {0: len(ids) - 1, 1: 0, 2: 0}
    for code, what, fields in (("UNIMPLEMENTED", "stream", dict(stream=True, logprob_start_len=1)),
                               ("INVALID_ARGUMENT", "200 tokens", dict(logprob_start_len=len(ids))),
                               ("INVALID_ARGUMENT", "-1", dict(logprob_start_len=-2))):
        with pytest.raises(grpc.RpcError) as e:
            list(stub.Generate(asked(pb, ids, **fields), timeout=120))
        assert e.value.code().name == code and "logprob_start_len" in e.value.details() and what in e.value.details()


def asked(pb, ids, n=1, **fields):
    params = pb.SamplingParams(max_new_tokens=1, n=n)
    return pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=params, return_logprob=True, **fields)


def test_echo_of_text_and_no_output(cluster):
    text = "Grüße, \"Welt\" \\ \u4f60\u597d 1234 "
    r = cluster.post({"prompt": text, "echo": True, "max_tokens": 0}).json()
    assert r["choices"][0]["text"] == text and r["choices"][0]["finish_reason"] == "length"
    assert r["usage"]["completion_tokens"] == 0 and r["choices"][0]["logprobs"] is None
    plain = cluster.post({"prompt": text, "max_tokens": 5, "temperature": 0, "ignore_eos": True}).json()["choices"][0]["text"]
    both = cluster.post({"prompt": text, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "echo": True}).json()["choices"][0]["text"]
    assert both == text + plain
    r = cluster.post({"prompt": text, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "echo": True, "stream": True})
    parts = [json.loads(line[6:]) for line in r.text.splitlines() if line.startswith("data: {")]
    assert "".join(p["choices"][0]["text"] for p in parts) == both
    r = cluster.post({"prompt": text, "echo": True, "max_tokens": 0, "logprobs": 1}).json()["choices"][0]
    assert len(r["logprobs"]["tokens"]) == r["logprobs"]["token_logprobs"].__len__() and r["text"] == text
    chat = cluster.post({"messages": [{"role": "user", "content": text}], "max_tokens": 2, "prompt_logprobs": 0}, "/v1/chat/completions").json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] and chat["prompt_logprobs"][0] is None


def test_scores_survive_a_kill(tmp_path):
    """Workers die while they score: what arrives is what an undisturbed run says."""
    with_killing(tmp_path, ("router", "prefill", "prefill", "decode", "decode"), ("prefill/1", "decode/3"))


def with_killing(tmp_path, roles, names):
    c = Cluster(tmp_path, roles=roles)
    try:
        prompts = [prompt(20 + i, 700) for i in range(6)]
        want = [scored(c, p)["choices"][0]["logprobs"] for p in prompts]
        for name in names:
            worker = c.worker(name) or c.workers("prefill" if "prefill" in name else "decode")[0]
            timer = threading.Timer(0.15, os.kill, (worker["pid"], signal.SIGKILL))
            timer.start()
            got = in_parallel([lambda p=p: scored(c, p)["choices"][0]["logprobs"] for p in prompts])
            timer.join()
            assert got == want, name
    finally:
        c.close()


def float32_copy(model, to):
    """The checkpoint with float32 weights of the same values, which workers compute in float32, as transformers did."""
    to.mkdir()
    for f in model.iterdir():
        if f.suffix == ".json":
            text = f.read_text(encoding="utf-8")
            (to / f.name).write_text(text.replace('"dtype": "bfloat16"', '"dtype": "float32"'), encoding="utf-8")
    data = (model / "model.safetensors").read_bytes()
    head = 8 + int.from_bytes(data[:8], "little")
    names, body = json.loads(data[8:head]), bytearray()
    for name, t in names.items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", name
        first, end = t["data_offsets"]
        raw, wide = data[head + first:head + end], bytearray(2 * (end - first))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        t.update(dtype="F32", data_offsets=[len(body), len(body) + len(wide)])
        body += wide
    header = json.dumps(names).encode()
    (to / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    return to


def test_scores_of_the_trained_checkpoint(tmp_path):
    """Each token within 1e-3 of transformers, and so the choice of every answer; wrong answers are the unlikely ones."""
    golden = json.loads((GOLDEN / "facts-llama.json").read_text(encoding="utf-8"))["texts"]
    model = float32_copy(ROOT / "models" / "facts-llama", tmp_path / "facts")
    c = Cluster(tmp_path, roles=("router", "both"), model__path=model, model__served_name="facts", decode__max_batch=4,
                model__max_context=1024)
    c.model = "facts"
    try:
        sums = []
        answers = c.post({"prompt": [t["ids"] for t in golden], "echo": True, "logprobs": 1, "max_tokens": 0}).json()["choices"]
        for text, answer in zip(golden, answers):
            got, best = answer["logprobs"]["token_logprobs"][1:], [max(t.values()) for t in answer["logprobs"]["top_logprobs"][1:]]
            assert len(got) == len(text["logprobs"])
            assert max(abs(a - b) for a, b in zip(got, text["logprobs"])) < 1e-3
            assert max(abs(a - b) for a, b in zip(best, text["best"])) < 1e-3
            sums.append(sum(got[text["context"] - 1:]))
        assert all(right > -1 and wrong < -50 for right, wrong in zip(sums[::2], sums[1::2])), sums
    finally:
        c.close()
