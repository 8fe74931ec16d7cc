"""Requests that are legal bytes and cost more than they should: depth, size, copies, numbers."""

import concurrent.futures
import json

import grpc
import pytest
import requests

import clients
import wire
from streams import one_more

GENERATE = "/sglang.grpc.scheduler.SglangScheduler/Generate"
CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture
def t(target):
    return target()


def raw_call(cluster, method, message, timeout=30):
    """The status of a unary call with these bytes."""
    with grpc.insecure_channel(cluster.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        try:
            list(channel.unary_stream(method, request_serializer=lambda b: b, response_deserializer=lambda b: b)(message, timeout=timeout))
            return grpc.StatusCode.OK
        except grpc.RpcError as e:
            return e.code()


def nested_struct(depth):
    """google.protobuf.Value inside itself: a ListValue in a Value in a ListValue…"""
    value = b""
    for _ in range(depth):
        value = wire.field(6, wire.field(1, value))  # Value.list_value = 6, ListValue.values = 1
    entry = wire.field(1, b"x") + wire.field(2, value)
    return wire.field(1, entry)  # Struct.fields


def with_custom_params(depth):
    pb, _, _ = clients.protocol()
    number = pb.SamplingParams.DESCRIPTOR.fields_by_name["custom_params"].number
    sampling = pb.GenerateRequest.DESCRIPTOR.fields_by_name["sampling_params"].number
    base = pb.GenerateRequest(request_id=f"deep{depth}")
    base.tokenized.input_ids.extend([1, 2, 3])
    return base.SerializeToString() + wire.field(sampling, wire.field(number, nested_struct(depth)))


@pytest.mark.parametrize("depth", [200, 3000, 30000])
def test_deep_protobuf_is_refused(t, depth):
    with t.watched():
        assert raw_call(t.cluster, GENERATE, with_custom_params(depth)) == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("depth", [200, 100000])
def test_deep_json_is_refused(t, depth):
    body = b'{"model": "tiny-v32", "prompt": ' + b"[" * depth + b"]" * depth + b"}"
    with t.watched():
        assert t.cluster.post(body).status_code == 400


def test_copies_are_counted_before_they_are_made(t):
    """1 MiB of tools with n = 32, and 128 prompts times 128: refused or served, without holding the loop."""
    tools = [{"type": "function", "function": {"name": f"f{i}", "description": "d" * 1000, "parameters": {"type": "object"}}}
             for i in range(900)]
    messages = [{"role": "user", "content": "x"}]
    chat = json.dumps({"model": "tiny-v32", "messages": messages, "tools": tools, "n": 32, "max_tokens": 4}).encode()
    many = {"prompt": [[1, 2, 3]] * 128, "n": 128, "max_tokens": 4}
    with t.watched():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(t.cluster.post, chat, "/v1/chat/completions") for _ in range(4)] + [pool.submit(t.cluster.post, many)]
            codes = [a.result().status_code for a in answers]
        assert all(c in (200, 400, 413, 429) for c in codes), codes
        assert codes[-1] in (400, 429)


def test_long_texts_do_not_hold_the_loop(t):
    pb, _, _ = clients.protocol()
    q = pb.GenerateRequest(request_id="text")
    q.tokenized.original_text = "word " * (7 << 18)  # 7.3 MiB
    message = q.SerializeToString()
    with t.watched():
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            codes = list(pool.map(lambda _: raw_call(t.cluster, GENERATE, message, 100), range(3)))
    assert all(c in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED) for c in codes), codes


def turns(cluster):
    """(turns of the router's loop, a function that gives how many of them took longer than a bound of the histogram)."""
    text = cluster.get("/metrics").text
    buckets = {float(line.split('le="')[1].split('"')[0]): float(line.rsplit(" ", 1)[1])
               for line in text.splitlines() if line.startswith("sluice_router_loop_turn_seconds_bucket") and "+Inf" not in line}
    total = float(next(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("sluice_router_loop_turn_seconds_count")))
    return total, lambda bound: total - buckets[bound]


def test_longest_turn_is_shown_and_short(t):
    """After all of the above: no turn of the router's loop took over a second, and one in a thousand over 50 ms. A turn also lasts
    while its thread waits for a processor. The twin, whose clients ran concurrently with the attacks, shows how often that happened."""
    (total, longer), (others, twins) = turns(t.cluster), turns(t.twin)
    for name, n, over in (("attacked", total, longer), ("twin", others, twins)):
        bounds = (0.001, 0.01, 0.05, 0.1, 0.25, 1.0, 2.5)
        print(f"{name}: {n:.0f} turns, " + ", ".join(f"{over(b):.0f} over {b * 1000:g} ms" for b in bounds))
    assert total > 100
    assert longer(1.0) <= twins(0.25), "a turn took over a second"
    assert longer(0.05) <= total * (0.001 + 4 * twins(0.05) / others)


@pytest.mark.parametrize("field, value", [("repetition_penalty", 1e-44), ("repetition_penalty", 1e300), ("temperature", 1e-300),
                                          ("presence_penalty", 1e39), ("logit_bias", {"5": 1e300})])
def test_impossible_numbers_are_the_clients_fault(t, field, value):
    with t.watched(at_least=1):
        answer = t.cluster.post({"prompt": [5, 6, 7], "max_tokens": 4, field: value})
    assert answer.status_code in (200, 400), answer.text
    text = t.cluster.get("/metrics").text
    assert not [line for line in text.splitlines() if line.startswith("sluice_request_retries_total") and not line.endswith(" 0")]


@pytest.mark.parametrize("body", [{"guided_json": {"type": "object"}, "regex": "a"}, {"structured_outputs": {"json": 5}},
                                  {"guided_choice": [5]}, {"guided_regex": {}}, {"guided_grammar": "x" * 40000}, {"echo": "yes"},
                                  {"stream": True, "prompt_logprobs": 1}, {"max_token": 1}])
def test_what_is_not_served_is_refused_by_name(t, body):
    name = list(body)[-1]
    for path, prompt in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
        answer = t.cluster.post({**prompt, "max_tokens": 1, **body}, path)
        assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(name), answer.text


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "g"}}, {"type": "function"}, "f", 5])
def test_forced_tools_that_do_not_exist_are_refused(t, choice):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    answer = t.cluster.post({"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice, "max_tokens": 1},
                            "/v1/chat/completions")
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("tool_choice")


def test_timeouts_beyond_32_bits(t):
    """A timeout of 99999999 hours does not overflow into a deadline of a few milliseconds."""
    with grpc.insecure_channel(t.cluster.grpc) as channel:
        q = t.cluster.request([5, 6, 7], 4)
        call = t.cluster.stub(channel).Generate(q, metadata=[], timeout=4294967 + 0.2)
        assert list(call)[-1].complete.output_ids


def test_what_can_never_fit_is_not_asked_to_come_again(t):
    """More tokens than any store holds: 400, not 429."""
    answer = t.cluster.post({"prompt": [5] * 200000, "max_tokens": 4})
    assert answer.status_code == 400 and "Retry-After" not in answer.headers


def test_ids_cannot_forge_log_lines(t):
    name = 'x" outcome=stop rid=0000 \n ts=2026 level=error proc=router ev=forged '
    with grpc.insecure_channel(t.cluster.grpc) as channel:
        try:
            list(t.cluster.stub(channel).Generate(t.cluster.request([5, 6, 7], 2, request_id=name), timeout=30))
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.INVALID_ARGUMENT
    one_more(t.cluster, "forged")  # all lines about the request before are in the log now
    assert not [line for line in t.cluster.text().splitlines()
                if line.startswith(" ts=2026") or " ev=forged" in line.replace('\\"', "").split('id="')[0]]


def test_the_tokenizer_is_sent_whole(t):
    """Answers above 4 MiB go out in parts."""
    pb, _, common = clients.protocol()
    with grpc.insecure_channel(t.cluster.grpc, options=[("grpc.max_receive_message_length", -1)]) as channel:
        chunks = list(t.cluster.stub(channel).GetTokenizer(common.GetTokenizerRequest(), timeout=60))
    assert chunks


def test_health_answers_without_a_key_while_busy(t):
    assert raw_call(t.cluster, CHECK, b"") == grpc.StatusCode.OK
    assert requests.get(t.cluster.http + "/health", timeout=10).status_code == 200
