"""The newer paths of the HTTP front, attacked as the older ones are: bodies that are small when they are sent and large when they are worked
on, answers that repeat what was sent, and what callers without a key can ask for."""

import concurrent.futures
import json
import socket

import pytest

import honest
import real
import test_loop
import wire

MIB = 1 << 20


@pytest.fixture(scope="module")
def router(tmp_path_factory, clean):
    """There are no workers: what was admitted ends with 503."""
    directory = tmp_path_factory.mktemp("surfaces")
    (directory / "key").write_text(real.Base.key)
    r = real.Process(directory, "router", **{"router.stage_timeout_ms": 300, "model.max_context": 2000000, "router.api_key_file": directory / "key"})
    real.until("it to listen", lambda: r.get("/health/live").status_code == 200)
    yield r
    assert r.close(), "had to be killed"


def alternating(n):
    """Messages whose blocks become a message each."""
    use = {"type": "tool_use", "id": "", "name": "", "input": {}}
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "a"}, use] * n}]


def tool_results(n):
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": ""}] * n}]


def items(n):
    call = {"type": "function_call", "call_id": "", "name": "", "arguments": ""}
    return [{"role": "user", "content": ""}, call] * n


SAY = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
BODIES = {
    "messages, blocks of text": ("/v1/messages", lambda: {"max_tokens": 4, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}] * 100000}]}),
    "messages, calls": ("/v1/messages", lambda: {"max_tokens": 4, "messages": alternating(90000)}),
    "messages, results": ("/v1/messages", lambda: {"max_tokens": 4, "messages": tool_results(180000)}),
    "messages, short ones": ("/v1/messages", lambda: {"max_tokens": 4, "messages": [{"role": "user", "content": ""}] * 250000}),
    "messages, tools": ("/v1/messages", lambda: {**SAY, "tools": [{"name": "f"}] * 500000}),
    "count_tokens, calls": ("/v1/messages/count_tokens", lambda: {"messages": alternating(90000)}),
    "responses, items": ("/v1/responses", lambda: {"input": items(70000)}),
    "responses, metadata": ("/v1/responses", lambda: {"input": "x", "metadata": {f"k{i}": "" for i in range(400000)}}),
    "responses, metadata, a stream": ("/v1/responses", lambda: {
        "input": "x", "stream": True, "metadata": {f"k{i}": "" for i in range(400000)}}),
    "responses, tools that are not used": ("/v1/responses", lambda: {"input": "x", "tool_choice": "none", "tools": [
        {"type": "function", "name": "f"}] * 200000}),
    "generate, ids": ("/generate", lambda: {"input_ids": [7] * 2600000}),
    "tokenize, short words": ("/tokenize", lambda: {"prompt": "a " * 4000000}),
    "tokenize, strings": ("/tokenize", lambda: {"prompt": "\u0001\u00e9" * 1000000, "return_token_strs": True}),
    "detokenize, a million ids": ("/detokenize", lambda: {"tokens": [7] * 1000000}),
    "detokenize, as many as fit": ("/detokenize", lambda: {"tokens": [7] * 4000000}),
    "completions, echo of ids": ("/v1/completions", lambda: {"prompt": [7] * 500000, "echo": True, "n": 128, "max_tokens": 1, "stream": True}),
    "completions, prompt_logprobs": ("/v1/completions", lambda: {"prompt": [7] * 500000, "prompt_logprobs": 20, "n": 128, "max_tokens": 1}),
}


def data_of(make):
    return json.dumps({"model": "tiny-v32", **make()}, separators=(",", ":"), ensure_ascii=False).encode()


def peak(r):
    text = open(f"/proc/{r.process.pid}/status").read()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1024


def given_back(r):
    real.until("all bytes to be given back", lambda: real.metric(r.get("/metrics").text, "sluice_request_bytes") == 0)


@pytest.mark.parametrize("name", BODIES)
def test_bodies(router, name):
    """Twice at once: served or refused, no turn of the loop is long, the memory stays bounded, and nothing is left."""
    path, make = BODIES[name]
    data = data_of(make)
    before = test_loop.turns(router, "cpu_")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: router.post(data, path), range(2)))
    longest = test_loop.longest(before, test_loop.turns(router, "cpu_"))
    print(f"{name}: {len(data) / MIB:.1f} MiB, {[(a.status_code, a.text[:100]) for a in answers]}, {peak(router):.0f} MiB, turn <= {longest:g} s")
    assert {a.status_code for a in answers} <= {200, 400, 413, 429, 503}
    given_back(router)
    assert peak(router) < honest.MEMORY_MIB or real.sanitized()
    assert longest <= test_loop.LIMIT_S


def test_bodies_that_grow_at_once(router):
    """Long bodies that arrive together, whose buffers become larger in the same turns: no turn is long, and none loses a byte."""
    before = test_loop.turns(router, "cpu_")
    bodies = [json.dumps({"prompt": chr(97 + i) * (600000 + 7 * i)}).encode() for i in range(16)]

    def send(i):
        answer = router.post(bodies[i], "/tokenize")
        return answer.json()["count"] if answer.status_code == 200 else answer.status_code
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(send, range(len(bodies))))
    longest = test_loop.longest(before, test_loop.turns(router, "cpu_"))
    print(f"{together}: turn <= {longest:g} s")
    alone = [send(i) for i in range(4)]
    assert all(got in (want, 429) for got, want in zip(together, alone)) and any(got > 503 for got in together)
    assert longest <= test_loop.LIMIT_S


KEYLESS = ["GET /", "GET /page.css", "GET /page.js", "GET /ping", "POST /ping", "GET /version", "GET /health", "GET /nothing",
           "OPTIONS /v1/messages"]


@pytest.mark.parametrize("what", KEYLESS)
def test_without_a_key(router, what):
    """2,000 requests of a kind over 100 connections hold nothing, and no turn of the loop is long."""
    before = test_loop.turns(router, "cpu_")
    method, path = what.split()
    request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 0\r\n\r\n".encode()
    held = wire.silent(router.http, 100)
    for s in held:
        s.sendall(request * 20)
    for s in held:
        s.settimeout(20)
        assert s.recv(1 << 16).startswith(b"HTTP/1.1 ")
    for s in held:
        s.close()
    longest = test_loop.longest(before, test_loop.turns(router, "cpu_"))
    print(f"{what}: turn <= {longest:g} s, {peak(router):.0f} MiB")
    given_back(router)
    assert longest <= test_loop.LIMIT_S and (peak(router) < honest.MEMORY_MIB or real.sanitized())


GETS = ["/tokenizer_info", "/overview", "/server_info"]


@pytest.mark.parametrize("path", sorted({path for path, _ in BODIES.values()}) + GETS)
def test_a_key_is_needed(router, path):
    with socket.create_connection(wire.address(router.http), timeout=20) as s:
        method = "GET" if path in GETS else "POST"
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert s.recv(4096).startswith(b"HTTP/1.1 401")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean):
    c = real.Cluster(tmp_path_factory.mktemp("answers"))
    yield c
    assert c.close(), f"had to be killed:\n{c.tail()}"


def test_long_members_are_repeated_once(cluster):
    """The answer of /v1/responses repeats what was sent: a document everything, the events of a stream, of which three do, only what is short."""
    body = {"model": "tiny-v32", "input": "x", "max_output_tokens": 2, "metadata": {"long": "\u0001" * 600000}, "user": "short"}
    whole = cluster.post(json.dumps(body).encode(), "/v1/responses").json()
    assert whole["metadata"] == body["metadata"] and whole["user"] == "short"
    before = test_loop.turns(cluster, "cpu_")
    text = cluster.post(json.dumps({**body, "stream": True}).encode(), "/v1/responses").text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    shown = [e["response"] for e in events if "response" in e]
    assert [e["status"] for e in shown][:2] == ["in_progress"] * 2 and shown[-1]["status"] in ("completed", "incomplete")
    assert all(e["metadata"] == {} and e["user"] == "short" for e in shown), [len(str(e)) for e in shown]
    assert test_loop.longest(before, test_loop.turns(cluster, "cpu_")) <= test_loop.LIMIT_S
