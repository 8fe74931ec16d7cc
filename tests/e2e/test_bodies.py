"""Bodies: those with Content-Encoding, on every path that takes a body of clients, and those that load scripts send."""

import gzip
import http.client
import json
import os
import random
import sys
import zlib

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from clients import post  # noqa: E402

PATHS = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 4, "temperature": 0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "temperature": 0},
    "/v1/responses": {"input": "abc", "max_output_tokens": 4, "temperature": 0},
    "/v1/messages": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "temperature": 0},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "abc"}]},
    "/generate": {"text": "abc", "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [65, 66]},
}
ASK = {"prompt": "abc", "max_tokens": 1}
CHAT, STREAM, USAGE = [{"role": "user", "content": "abc"}], {"stream": True}, {"stream_options": {"include_usage": True}}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "abc"}]}]
# What load scripts send by default: guidellm 0.8.1, aiperf 0.13.0, evalscope perf 1.14.1, sglang.bench_serving 0.5.23, vllm bench serve 0.33.0.
SCRIPTS = {
    "guidellm chat": ("/v1/chat/completions", STREAM | {
        "messages": CHAT, "max_completion_tokens": 4, "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "guidellm text": ("/v1/completions", STREAM | {
        "prompt": "abc", "max_tokens": 4, "ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "guidellm responses": ("/v1/responses", STREAM | {"input": "abc", "max_output_tokens": 4, "ignore_eos": True}),
    "aiperf chat": ("/v1/chat/completions", STREAM | USAGE | {"messages": CHAT, "max_completion_tokens": 4}),
    "aiperf text": ("/v1/completions", STREAM | USAGE | {"prompt": "abc", "max_tokens": 4}),
    "evalscope chat": ("/v1/chat/completions", STREAM | USAGE | {"messages": CHAT, "max_tokens": 4, "min_tokens": 4, "temperature": 0.0}),
    "evalscope text": ("/v1/completions", STREAM | USAGE | {"prompt": "abc", "max_tokens": 4, "min_tokens": 4, "temperature": 0.0}),
    "sglang": ("/generate", STREAM | {
        "text": "abc", "sampling_params": {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True}, "lora_path": None,
        "return_logprob": False, "return_routed_experts": False, "logprob_start_len": -1}),
    "sglang-oai": ("/v1/completions", STREAM | {"prompt": "abc", "temperature": 0.0, "best_of": 1, "max_tokens": 4, "ignore_eos": True}),
    "sglang-oai-chat": ("/v1/chat/completions", STREAM | {"messages": CHAT, "temperature": 0.0, "max_completion_tokens": 4, "ignore_eos": True}),
    "vllm text": ("/v1/completions", STREAM | USAGE | {
        "prompt": "abc", "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None, "ignore_eos": True, "temperature": 0.0}),
    "vllm chat": ("/v1/chat/completions", STREAM | USAGE | {"messages": PARTS, "max_completion_tokens": 4, "ignore_eos": True}),
}


def send(c, path, body, coding="gzip", chunked=False):
    """Status, the answer as JSON, Accept-Encoding of the answer."""
    h = http.client.HTTPConnection(c.http.split("//")[1], timeout=60)
    headers = {"Authorization": f"Bearer {c.key}", "Content-Type": "application/json"}
    if coding is not None:
        headers["Content-Encoding"] = coding
    data = (body[i:i + 7] for i in range(0, len(body), 7)) if chunked else body
    h.request("POST", path, data, headers, encode_chunked=chunked)
    r = h.getresponse()
    text = r.read()
    h.close()
    return r.status, json.loads(text), r.getheader("Accept-Encoding")


def plain(answer):
    """Without what differs from call to call."""
    drop = ("id", "created", "created_at", "completed_at", "meta_info", "item_id", "metadata")
    if isinstance(answer, dict):
        return {k: plain(v) for k, v in answer.items() if k not in drop and "token" not in k}
    return [plain(v) for v in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("path", PATHS)
def test_answered_as_without(cluster, path):
    asked = PATHS[path] | ({} if path in ("/generate", "/detokenize") else {"model": cluster.model})
    body = json.dumps(asked).encode()
    status, want, _ = send(cluster, path, body, None)
    assert status == 200, want
    whole = gzip.compress(body)
    members = b"".join(gzip.compress(body[i:i + 5]) for i in range(0, len(body), 5))
    for data, coding, chunked in ((whole, "gzip", False), (whole, "x-gzip", True), (members, "GZIP", False)):
        status, got, _ = send(cluster, path, data, coding, chunked)
        assert status == 200 and plain(got) == plain(want), got


def test_other_codings_are_refused_with_the_list(cluster):
    body = json.dumps(ASK | {"model": cluster.model}).encode()
    raw = zlib.compressobj(wbits=-15)
    for coding, data in (("deflate", zlib.compress(body)), ("deflate", raw.compress(body) + raw.flush()), ("identity", body),
                         ("br", body), ("zstd", body), ("gzip, gzip", gzip.compress(gzip.compress(body))), ("", body),
                         ("gzip;q=1", gzip.compress(body)), ("none", body)):
        status, answer, accepted = send(cluster, "/v1/completions", data, coding)
        assert status == 415 and answer["error"]["code"] == "unsupported_content_encoding" and accepted == "gzip", coding
    status, _, accepted = send(cluster, "/cache/job", gzip.compress(b"{}"))
    assert (status, accepted) == (415, "identity")


def test_damaged_bodies(cluster):
    body = json.dumps(ASK | {"model": cluster.model}).encode()
    good, draw = gzip.compress(body), random.Random(3)
    bad = [good[:draw.randrange(len(good))] for _ in range(10)]
    bad += [good + draw.randbytes(draw.randrange(1, 30)) for _ in range(10)]
    bad += [good[:-8] + bytes([good[-8] ^ 1]) + good[-7:], good[:-1] + b"\1", body, b"", good + bytes(9)]
    for data in bad:
        status, answer, _ = send(cluster, "/v1/completions", data)
        assert status == 400 and "gzip" in answer["error"]["message"], (data, answer)
    status, answer, _ = send(cluster, "/v1/messages", b"x" + good)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    assert send(cluster, "/v1/completions", good)[0] == 200


def test_a_body_that_inflates_over_the_limit(own):
    """One byte decides; a bomb is refused whatever its bytes are."""
    c = own("--max-body", 65536)
    body = json.dumps(ASK | {"model": c.model}).encode()
    assert send(c, "/v1/completions", gzip.compress(body + b" " * (65536 - len(body))))[0] == 200
    bomb = gzip.compress(bytes(1 << 20))
    for data in (gzip.compress(body + b" " * (65537 - len(body))), bomb, bomb * 40, gzip.compress(body) + bomb):
        status, answer, _ = send(c, "/v1/completions", data)
        assert status == 413 and answer["error"]["code"] == "request_too_large", answer
    assert send(c, "/v1/messages", bomb)[1]["error"]["type"] == "request_too_large"
    assert send(c, "/v1/completions", gzip.compress(body))[0] == 200


@pytest.mark.parametrize("script", SCRIPTS)
def test_load_scripts(cluster, script):
    """The stream ends as the script expects; usage comes where it was asked for."""
    path, body = SCRIPTS[script]
    r = post(cluster, body | ({} if path == "/generate" else {"model": cluster.model}), path)
    assert r.status_code == 200, r.text
    events = [json.loads(line[6:]) for line in r.text.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        assert events[-1]["response"]["usage"]["output_tokens"] == 4
        return
    assert r.text.endswith("data: [DONE]\n\n")
    if path == "/generate":
        assert events[-1]["meta_info"]["completion_tokens"] == 4
    elif "stream_options" in body:
        assert events[-1]["usage"]["completion_tokens"] == 4
