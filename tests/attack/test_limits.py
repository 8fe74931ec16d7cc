"""Limits that the documentation promises for the ports of clients, each of them reached: connections of one address, bytes of all
requests together, time for a body, time without a request, sizes of messages and of answers. Mostly one router without workers."""

import hashlib
import io
import json
import pathlib
import shutil
import socket
import struct
import time
import zipfile

import grpc
import pytest
import requests

import clients
import real
import wire

GENERATE = "/sglang.grpc.scheduler.SglangScheduler/Generate"
LOADS = "/sglang.grpc.scheduler.SglangScheduler/GetLoads"
TOKENIZER = "/sglang.grpc.scheduler.SglangScheduler/GetTokenizer"
CHECK = "/grpc.health.v1.Health/Check"
EXHAUSTED, UNAVAILABLE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def router(start):
    return lambda **settings: start(real.Process, "router", **settings)


def ended(r, protocol, reason):
    """Connections and requests that the router has ended for this reason."""
    return real.metric(r.get("/metrics").text, "sluice_connections_closed_total", f'protocol="{protocol}"', f'reason="{reason}"') or 0


def status(r, method, message):
    """The status of a unary call with these bytes."""
    with grpc.insecure_channel(r.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        try:
            list(channel.unary_stream(method, request_serializer=lambda b: b, response_deserializer=lambda b: b)(message, timeout=60))
            return grpc.StatusCode.OK
        except grpc.RpcError as e:
            return e.code()


# ---- connections of one address ----


def serves(address, source):
    """Whether a connection that comes from this address of the loopback network gets an answer: to an HTTP request, or the frame with
    which an HTTP/2 server begins."""
    try:
        with socket.create_connection(wire.address(address), timeout=60, source_address=(source, 0)) as s:
            http = address.startswith("http")
            s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" if http else
                      wire.PREFACE + wire.H2.frame(wire.SETTINGS, 0, 0, b""))
            return len(s.recv(9)) > 0
    except OSError:
        return False


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_address_takes_only_its_part(router, protocol):
    """Half of all connections. Others are served meanwhile, and what is closed may be opened again."""
    r = router(**{"router.max_connections": 8})
    address = getattr(r, protocol)
    held = wire.silent(address, 4)
    assert len(held) == 4
    real.until("all four to be counted", lambda: not serves(address, "127.0.0.1"))
    assert wire.closed(held) == 0
    assert serves(address, "127.0.0.2")
    held.pop().close()
    real.until("a place to be free again", lambda: serves(address, "127.0.0.1"))
    for s in held:
        s.close()
    if protocol == "grpc":  # libmicrohttpd refuses those of HTTP without a call into the router, so they are not counted
        assert ended(r, "grpc", "limit") >= 1


def test_connections_are_lowered_to_the_descriptors(start):
    """Of 1,024 descriptors 256 are kept for workers and files, and each protocol gets half of the rest."""
    r = start(real.Process, "router", prefix=["prlimit", "--nofile=1024"])
    r.logged(r"ev=connections_limited router.max_connections=4096 lowered_to=384 descriptors=1024")


# ---- bytes of all requests ----


def test_the_budget_refuses_and_keeps_an_eighth_for_small_requests(router):
    """Of 1 MiB, one body that does not end holds almost seven eighths: large requests are refused over both protocols, with a time
    after which to come again, and small ones are admitted."""
    r = router(**{"router.max_request_bytes": "1MiB", "router.stage_timeout_ms": 300})
    size = (1 << 20) * 7 // 8 - 1000
    held = socket.create_connection(wire.address(r.http))
    held.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (size + 1) + b" " * size)

    def in_use():
        return real.metric(r.get("/metrics").text, "sluice_request_bytes")
    real.until("the body to be counted", lambda: in_use() >= size)
    large, small = {"prompt": "x" * 70000, "max_tokens": 1}, {"prompt": "x" * 1000, "max_tokens": 1}
    with socket.create_connection(wire.address(r.http), timeout=60) as s:  # the answer does not wait for the body
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n")
        refused = s.recv(65536)
    assert refused.startswith(b"HTTP/1.1 429") and b"Retry-After: 1\r\n" in refused, refused
    assert r.post(small).status_code == 503  # it was admitted, and there are no workers that could serve it
    many, few = r.request([7] * 70000, 1).SerializeToString(), r.request([7] * 100, 1).SerializeToString()
    assert len(many) > 65536
    assert status(r, GENERATE, many) == EXHAUSTED and status(r, GENERATE, few) == UNAVAILABLE
    held.close()
    real.until("its bytes to be given back", lambda: in_use() == 0)
    too_long = grpc.StatusCode.INVALID_ARGUMENT  # for the model: found after it was admitted
    assert r.post(large).status_code == 400 and status(r, GENERATE, many) == too_long


IDS, TEXT = [7] * 1500, "ab " * 4000
NEVER_FIT = {  # of 1 MiB, in requests of a few KiB: what an answer shows of its prompts, and what choices copy
    "prompt_logprobs": ("/v1/completions", {"prompt": IDS, "prompt_logprobs": 20, "n": 8}),
    "prompt_logprobs of many prompts": ("/v1/completions", {"prompt": [IDS[:200]] * 10, "prompt_logprobs": 5, "n": 16}),
    "prompt_logprobs of a chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], "prompt_logprobs": 20}),
    "echo with logprobs": ("/v1/completions", {"prompt": IDS, "echo": True, "logprobs": 5, "n": 16}),
    "echo": ("/v1/completions", {"prompt": TEXT, "echo": True, "n": 64}),
    "echo in a stream of many prompts": ("/v1/completions", {"prompt": [TEXT] * 40, "echo": True, "stream": True}),
    "scores of /generate": ("/generate", {"input_ids": IDS * 6, "return_logprob": True, "logprob_start_len": 0,
                                          "sampling_params": {"max_new_tokens": 1}}),
    "choices": ("/v1/completions", {"prompt": IDS, "n": 128, "logit_bias": {str(i): 1 for i in range(300)}}),
    "prompts": ("/v1/completions", {"prompt": ["x"] * 200, "stop": ["s" * 500] * 4}),
    "a body": ("/v1/completions", {"prompt": "x", "user": "y" * 950000}),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory, clean):
    r = real.Process(tmp_path_factory.mktemp("small"), "router", **{
        "router.max_request_bytes": "1MiB", "router.stage_timeout_ms": 300, "model.max_context": 100000})
    real.until("it to listen", lambda: r.get("/health/live").status_code == 200)
    r.logged(r"ev=bodies_limited router.max_body_bytes=8388608 lowered_to=917504")
    yield r
    assert r.close(), "had to be killed"


@pytest.mark.parametrize("kind", NEVER_FIT)
def test_what_never_fits_is_not_asked_to_come_again(small, kind):
    """400 (a body: 413), without a time after which to come again, while the router is quiet and before anything is computed."""
    path, body = NEVER_FIT[kind]
    body = body if path == "/generate" else {"max_tokens": 1, **body}
    answer = small.post(body, path)
    assert answer.status_code == (413 if kind == "a body" else 400), answer.text[:300]
    assert "max_request_bytes" in answer.text or "max_body_bytes" in answer.text, answer.text[:300]
    assert "Retry-After" not in answer.headers
    real.until("all bytes to be given back", lambda: real.metric(small.get("/metrics").text, "sluice_request_bytes") == 0)


@pytest.mark.parametrize("n", [1, 8])
def test_what_fits_is_admitted(small, n):
    """The same shapes, shorter: they wait for workers, of which there are none."""
    for body in ({"prompt": IDS[:100], "prompt_logprobs": 5, "n": n}, {"prompt": "ab " * 30, "echo": True, "logprobs": 5, "n": n}):
        assert small.post({"max_tokens": 1, **body}).status_code == 503


def test_a_call_that_never_fits_over_grpc(small):
    q = small.request(IDS, 1)
    q.sampling_params.n = 128
    for i in range(300):
        q.sampling_params.logit_bias[str(i)] = 1.0
    assert status(small, GENERATE, q.SerializeToString()) == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method, most", [(CHECK, 4 << 10), (LOADS, 64 << 10)])
def test_other_messages_are_small(router, method, most):
    """Only Generate takes messages of up to router.max_body_bytes."""
    r = router()
    assert status(r, method, wire.field(15, b"x" * (most + 1))) == EXHAUSTED
    assert status(r, method, wire.field(15, b"x" * (most - 10))) != EXHAUSTED  # a field that the method does not know


def test_a_call_has_a_bounded_number_of_requests(router):
    """128 samples of a prompt, and 1,024 requests altogether: refused before anything is queued."""
    r = router(**{"router.stage_timeout_ms": 300})
    for prompts, n, status_ in ((1, 129, 400), (9, 128, 400), (1, 128, 503)):
        answer = r.post({"prompt": ["x"] * prompts, "n": n, "max_tokens": 1})
        assert answer.status_code == status_, answer.text
        assert status_ == 503 or answer.json()["error"]["param"] == "n"


# ---- time ----


def test_a_body_has_its_time_however_steadily_it_comes(router):
    r = router(**{"router.client_timeout_ms": 1000})
    s = socket.create_connection(wire.address(r.http))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    h2 = wire.H2(r.grpc)
    stream = h2.open(GENERATE)
    h2.data(stream, b"\0" + (1 << 20).to_bytes(4, "big"))

    def trickle():
        try:
            s.sendall(b" ")
            h2.data(stream, b" ")
        except OSError:
            pass
        return wire.closed([s]) and stream in h2.trailers
    real.until("both to be ended", trickle, every=0.1)
    assert ended(r, "http", "receive") == 1 and ended(r, "grpc", "receive") == 1
    h2.close()


def test_a_connection_without_a_request_is_closed(router):
    """Both have been served before, so it is not the time for a handshake, which is a twelfth."""
    r = router(**{"router.client_timeout_ms": 900})
    s = socket.create_connection(wire.address(r.http), timeout=60)
    s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert s.recv(65536).startswith(b"HTTP/1.1 200")
    h2 = wire.H2(r.grpc)
    real.until("both to be closed", lambda: wire.closed([s]) and h2.gone)
    assert ended(r, "grpc", "idle") == 1


# ---- answers ----


def test_an_answer_of_many_megabytes_is_sent_whole(router, tmp_path):
    """The tokenizer's files, 6 MiB of them: in parts that a client at its default limits takes, and complete."""
    model = tmp_path / "model"
    shutil.copytree(real.MODEL, model)
    text = (model / "tokenizer.json").read_bytes()
    (model / "tokenizer.json").write_bytes(text + b" " * (6 << 20))
    r = router(**{"model.path": model})
    _, _, common = clients.protocol()
    with grpc.insecure_channel(r.grpc) as channel:
        parts = list(r.stub(channel).GetTokenizer(common.GetTokenizerRequest(), timeout=120))
    whole = b"".join(p.data for p in parts)
    assert len(whole) > 6 << 20 and parts[-1].sha256 == hashlib.sha256(whole).hexdigest()
    with zipfile.ZipFile(io.BytesIO(whole)) as z:
        assert z.testzip() is None and z.read("tokenizer.json") == (model / "tokenizer.json").read_bytes()


def resident(r):
    status_ = pathlib.Path(f"/proc/{r.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status_.splitlines() if line.startswith("VmRSS:")) / 1024


def held(r):
    return real.metric(r.get("/metrics").text, "sluice_request_bytes")


def test_many_readers_of_the_tokenizer_share_one_archive(router, tmp_path):
    """256 calls at once whose clients read nothing: an archive of 6 MiB for all of them, and what waits for each is counted."""
    model = tmp_path / "model"
    shutil.copytree(real.MODEL, model)
    text = (model / "tokenizer.json").read_bytes()
    (model / "tokenizer.json").write_bytes(text + b" " * (6 << 20))
    r = router(**{"model.path": model})
    before, connections = resident(r), [wire.H2(r.grpc) for _ in range(8)]
    for h2 in connections:
        for _ in range(32):
            h2.data(h2.open(TOKENIZER), wire.grpc_frame(b""), end=True)
    real.until("all calls to wait", lambda: held(r) > 64 << 10)
    most = 0
    for _ in range(20):
        assert held(r) <= 256 << 20
        most = max(most, resident(r) - before)
        time.sleep(0.05)
    assert most < 150, f"{most:.0f} MiB"
    _, _, common = clients.protocol()
    with grpc.insecure_channel(r.grpc) as channel:  # who reads is served meanwhile
        assert sum(len(p.data) for p in r.stub(channel).GetTokenizer(common.GetTokenizerRequest(), timeout=120)) > 6 << 20
    for h2 in connections:
        h2.close()
    real.until("all bytes to be given back", lambda: held(r) == 0)


@pytest.mark.parametrize("leaves", ["closes", "resets"])
def test_bodies_that_are_left_are_freed_at_once(router, leaves):
    """7 of 8 MB of a body, on 12 connections of HTTP and 12 streams of gRPC, whose client goes: nothing waits for a time to pass."""
    r = router(**{"router.client_timeout_ms": 600000})
    plain = [socket.create_connection(wire.address(r.http)) for _ in range(12)]
    for s in plain:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" + b" " * 7000000)
    streams = [(h2, h2.open(GENERATE)) for h2 in [wire.H2(r.grpc) for _ in range(12)]]
    for h2, stream in streams:
        h2.data(stream, b"\0" + (7 << 20).to_bytes(4, "big") + b" " * 60000)
    real.until("the bodies to be held", lambda: held(r) >= 12 * 7000000)
    for s in plain:
        if leaves == "resets":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    for h2, stream in streams:
        if leaves == "resets":
            h2.send(h2.frame(wire.RST, 0, stream, b"\0\0\0\x08"))
        else:
            h2.close()
    real.until("all bytes to be given back", lambda: held(r) == 0, 20)
    assert all(not h2.gone for h2, _ in streams) or leaves == "closes"


def test_an_aborted_request_is_no_success():
    """Abort over gRPC of a request that came over HTTP: its stream ends with an error event, without [DONE]."""
    if not clients.MOCK.exists():
        pytest.skip(f"{clients.MOCK} is not built")
    c = clients.mock("--eos-every", 0)
    try:
        real.until("it to be ready", lambda: requests.get(c.http + "/health", timeout=30).status_code == 200)
        pb, services, _ = clients.protocol()
        with grpc.insecure_channel(c.grpc) as channel:
            answer = clients.post(c, {"model": c.model, "prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}, stream=True)
            lines = (line for line in answer.iter_lines() if line)
            name = json.loads(next(lines)[6:])["id"]
            assert services.SglangSchedulerStub(channel).Abort(pb.AbortRequest(request_id=name), timeout=60).success
            rest = list(lines)
        assert b"data: [DONE]" not in rest
        assert json.loads(rest[-1][6:])["error"]["code"] == "request_cancelled"
    finally:
        c.close()
