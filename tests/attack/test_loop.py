"""The router's loop: no admitted input may hold it for 50 ms. The heaviest known inputs, one by one, and the histogram of its turns.
All of them together are in test_all.py.

CPU time is judged: on a machine that others use, the wall time of a turn contains their time. Both histograms are printed.
"""

import functools
import json

import grpc
import pytest
import requests

import clients
import honest
import real
import wire

LIMIT_S = 0.05
GENERATE = "/sglang.grpc.scheduler.SglangScheduler/Generate"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def t(targets):
    _, directories = targets
    target = honest.Target(directories.mktemp("loop"), None, **{"kvstore.bytes": "64MiB"})
    yield target
    assert target.cluster.close()


def turns(cluster, kind):
    """Upper bound of each bucket → turns in it (not cumulative)."""
    name = f"sluice_router_loop_turn_{kind}seconds_bucket"
    found, before = {}, 0
    for line in cluster.get("/metrics").text.splitlines():
        if line.startswith(name):
            n = float(line.rsplit(" ", 1)[1])
            found[float(line.split('le="')[1].split('"')[0].replace("+Inf", "inf"))] = int(n - before)
            before = n
    return found


def show(cluster, what):
    for kind in ("", "cpu_"):
        print(f"{what}, {kind or 'wall_'}seconds: " + ", ".join(f"<={k:g}: {n}" for k, n in turns(cluster, kind).items() if n))
    print(*[line for line in cluster.text().splitlines() if "ev=long_turn" in line], sep="\n")


def call(cluster, message):
    timeout = getattr(cluster, "patience", 200)
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(cluster.grpc, options=unlimited) as plain:
        channel = grpc.intercept_channel(plain, real.Bearer(cluster.key))
        generate = channel.unary_stream(GENERATE, request_serializer=lambda b: b, response_deserializer=lambda b: b)
        try:
            return sum(map(len, generate(message, timeout=timeout)))
        except grpc.RpcError as e:
            return e.code()


def http(path="/v1/completions", **body):
    @functools.lru_cache
    def data():
        return json.dumps({"model": "tiny-v32", **body}).encode()

    def run(cluster):
        answer = cluster.post(data(), path)
        assert answer.status_code in (200, 400, 413, 429, 503), answer.text[:500]
        return answer.status_code, len(answer.content)
    run.data = data
    return run


def leaves(path, **body):
    """What takes a CPU worker minutes: the client leaves when the request has passed everything in the router."""
    def run(cluster):
        try:
            return cluster.post(json.dumps({"model": "tiny-v32", **body}).encode(), path, timeout=3).status_code
        except requests.exceptions.Timeout:
            return "left"
    return run


def rpc(top=0, n=1, tokens=4, text=None, ids=(5, 6, 7), extra=b"", stream=False):
    @functools.lru_cache
    def data():
        pb, _, _ = clients.protocol()
        q = pb.GenerateRequest(sampling_params=pb.SamplingParams(max_new_tokens=tokens, n=n, ignore_eos=True, temperature=1), stream=stream,
                               return_logprob=top > 0, top_logprobs_num=top)
        if text:
            q.tokenized.original_text = text
        else:
            q.tokenized.input_ids.extend(ids)
        return q.SerializeToString() + extra

    def run(cluster):
        return call(cluster, data())
    run.data = data
    return run


def wide_struct(n):
    """custom_params with n fields."""
    pb, _, _ = clients.protocol()
    number = pb.SamplingParams.DESCRIPTOR.fields_by_name["custom_params"].number
    sampling = pb.GenerateRequest.DESCRIPTOR.fields_by_name["sampling_params"].number
    entry = wire.field(1, wire.field(1, b"x") + wire.field(2, b""))
    return wire.field(sampling, wire.field(number, entry * n))


def tools(n):
    return [{"type": "function", "function": {"name": f"f{i}", "description": "d" * 1000, "parameters": {"type": "object"}}}
            for i in range(n)]


WORDS = "word " * 1400000  # 7.0 MB, below router.max_body_bytes
SAY = [{"role": "user", "content": "x"}]
INPUTS = {
    "a body of 7 MB, text": http(prompt=WORDS, max_tokens=4),
    "a body of 8 MB, token ids": http(prompt=[7] * 2600000, max_tokens=4),
    "a body of 6 MB, many small members": http(prompt="x", max_tokens=4, metadata=[{"a": 1}] * 600000),
    "128 prompts of 2,000 tokens": http(prompt=[[5] * 2000] * 128, max_tokens=4),
    "200 requests of 1,000 tokens": http(prompt=[[5] * 1000] * 25, n=8, max_tokens=4),
    "32 answers with logprobs": http(prompt=[5, 6, 7], n=32, logprobs=5, max_tokens=250, ignore_eos=True, temperature=1),
    "32 chat answers with logprobs": http(CHAT, messages=SAY, n=32, logprobs=True, top_logprobs=20, max_tokens=250, ignore_eos=True,
                                          temperature=1),
    "32 chat streams with logprobs": http(CHAT, messages=SAY, n=32, logprobs=True, top_logprobs=20, max_tokens=250, ignore_eos=True,
                                          temperature=1, stream=True),
    "tools, 32 answers": http(CHAT, messages=SAY, tools=tools(2), n=32, max_tokens=4),
    "25 KB of tools, 32 answers, and a client that leaves": leaves(CHAT, messages=SAY, tools=tools(25), n=32, max_tokens=4),
    "6 MiB of tools, 32 streams": http(CHAT, messages=SAY, tools=tools(5500), n=32, max_tokens=4, stream=True),
    "gRPC, a text of 7 MB": rpc(text=WORDS),
    "gRPC, 1,500,000 token ids": rpc(ids=[7] * 1500000),
    "gRPC, a wide Struct": rpc(extra=wide_struct(500000)),
    "gRPC, 32 answers with logprobs": rpc(top=20, n=32, tokens=800),
    "gRPC, 32 streams with logprobs": rpc(top=20, n=32, tokens=400, stream=True),
}


def longest(before, after):
    return max((k for k in after if after[k] > before[k]), default=0)


@pytest.mark.parametrize("name", INPUTS)
def test_one(t, name):
    before = turns(t.cluster, "cpu_")
    result = INPUTS[name](t.cluster)
    after = turns(t.cluster, "cpu_")
    print(f"{name}: {result}, longest turn <= {longest(before, after):g} s of CPU")
    show(t.cluster, name)
    assert longest(before, after) <= LIMIT_S
