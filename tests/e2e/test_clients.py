"""Official clients against a cluster: the OpenAI package over HTTP, grpcio with health and reflection over gRPC."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import grpc
import openai
import pytest
import requests

sys.path.insert(0, os.path.dirname(__file__))
import clients  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    c = clients.running() or clients.mock("--eos-every", 0)
    deadline = time.time() + 120
    while requests.get(c.http + "/health", timeout=30).status_code != 200:
        assert time.time() < deadline, "the cluster does not become ready"
        time.sleep(0.05)
    yield c
    c.close()


@pytest.fixture
def own():
    """Makes clusters of the test's own; skipped when a given cluster is tested."""
    made = []

    def make(*args, tls=False):
        if not clients.MOCK.exists():
            pytest.skip(f"{clients.MOCK} is not built")
        c = clients.mock(*args, tls=tls)
        made.append(c)
        deadline = time.time() + 120
        while not tls and requests.get(c.http + "/health", timeout=30).status_code != 200:
            assert time.time() < deadline
            time.sleep(0.02)
        return c

    yield make
    for c in made:
        c.close()


@pytest.fixture
def client(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key=cluster.key, max_retries=0, timeout=240)


@pytest.fixture
def stub(cluster):
    _, services, _ = clients.protocol()
    with grpc.insecure_channel(cluster.grpc) as channel:
        yield services.SglangSchedulerStub(channel)


PROMPT = "The quick brown fox jumps over the lazy dog."


# ---- OpenAI ----


def test_models(client, cluster):
    models = client.models.list().data
    assert [m.id for m in models] == [cluster.model]
    assert client.models.retrieve(cluster.model).owned_by == "sluice"


def test_completion(client, cluster):
    r = client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=8, temperature=0,
                                  extra_body={"ignore_eos": True})
    assert r.object == "text_completion" and len(r.choices) == 1
    assert r.choices[0].finish_reason == "length"
    assert r.usage.completion_tokens == 8
    assert r.usage.total_tokens == r.usage.prompt_tokens + 8


def test_completion_streamed_equals_whole(client, cluster):
    ask = dict(model=cluster.model, prompt=PROMPT, max_tokens=24, temperature=0.8, seed=7, extra_body={"ignore_eos": True})
    whole = client.completions.create(**ask)
    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])
    ends = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert ends[-1] == "length" and set(ends[:-1]) == {None}


def test_chat_streamed_equals_whole(client, cluster):
    ask = dict(model=cluster.model, messages=[{"role": "user", "content": "Hello"}], max_tokens=16, temperature=0,
               extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**ask, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == (whole.choices[0].message.content or "")
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_seed_decides(client, cluster):
    def ask(seed):
        return client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=16, temperature=1.0, seed=seed,
                                         extra_body={"ignore_eos": True}).choices[0].text
    assert ask(3) == ask(3)


def test_several_choices(client, cluster):
    r = client.completions.create(model=cluster.model, prompt=[PROMPT, "Another one"], n=3, max_tokens=5,
                                  extra_body={"ignore_eos": True})
    assert [c.index for c in r.choices] == list(range(6))
    assert r.usage.completion_tokens == 30


def test_prompt_as_ids(client, cluster):
    r = client.completions.create(model=cluster.model, prompt=[65, 66, 67, 68], max_tokens=3,
                                  extra_body={"ignore_eos": True})
    assert r.usage.prompt_tokens == 4


def test_logprobs(client, cluster):
    r = client.chat.completions.create(model=cluster.model, messages=[{"role": "user", "content": "Hi"}], max_tokens=4,
                                       logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True})
    content = r.choices[0].logprobs.content
    assert len(content) == 4
    assert all(t.logprob <= 0 and 1 <= len(t.top_logprobs) <= 2 for t in content)
    r = client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=4, logprobs=1,
                                  extra_body={"ignore_eos": True})
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 4


def test_stop_string(client, cluster):
    ask = dict(model=cluster.model, prompt=PROMPT, max_tokens=40, temperature=0, extra_body={"ignore_eos": True})
    text = client.completions.create(**ask).choices[0].text
    stop = text[10:12]
    r = client.completions.create(**ask, stop=[stop])
    assert r.choices[0].finish_reason == "stop"
    assert r.choices[0].text == text[:text.index(stop)]
    streamed = "".join(c.choices[0].text for c in client.completions.create(**ask, stop=stop, stream=True))
    assert streamed == r.choices[0].text


def test_many_streams_at_once(cluster):
    client = openai.OpenAI(base_url=cluster.http + "/v1", api_key=cluster.key, max_retries=0, timeout=120)
    results = [None] * 32

    def run(i):
        ask = dict(model=cluster.model, prompt=f"{PROMPT} {i}", max_tokens=12, temperature=0, extra_body={"ignore_eos": True})
        streamed = "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True))
        results[i] = streamed == client.completions.create(**ask).choices[0].text

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(results))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(results)


def active(cluster):
    headers = {"Authorization": f"Bearer {cluster.key}"}
    return requests.get(cluster.http + "/workers", headers=headers, timeout=30).json()["active"]


def cancelled(cluster):
    """Requests that ended because their client left."""
    text = requests.get(cluster.http + "/metrics", timeout=30).text
    return sum(float(line.split()[-1]) for line in text.splitlines()
               if line.startswith("sluice_requests_total{") and 'outcome="cancelled"' in line)


def until_idle(cluster, seconds=60):
    deadline = time.time() + seconds
    while active(cluster):
        assert time.time() < deadline, "a request is still in work"
        time.sleep(0.01)


def test_leaving_a_stream_cancels(client, cluster):
    until_idle(cluster)
    before = cancelled(cluster)
    stream = client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=1500, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    assert active(cluster) == 1
    stream.close()
    until_idle(cluster)
    assert cancelled(cluster) == before + 1


def test_leaving_while_waiting_cancels(cluster):
    until_idle(cluster)
    before = cancelled(cluster)
    host, port = cluster.http.split("//")[1].split(":")
    body = json.dumps({"model": cluster.model, "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True}).encode()
    s = socket.create_connection((host, int(port)))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
              % (cluster.key.encode(), len(body)) + body)
    deadline = time.time() + 60
    while not active(cluster):
        assert time.time() < deadline
    s.close()
    until_idle(cluster)
    assert cancelled(cluster) == before + 1


# ---- HTTP errors ----


def post(cluster, body, path="/v1/completions", **kw):
    headers = {"Authorization": f"Bearer {cluster.key}", "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(cluster.http + path, data=data, headers=headers, timeout=120, **kw)


BAD = [
    (b"{", 400, None),
    (b"[]", 400, None),
    (b"\xff\xfe{}", 400, None),
    (b'{"model": "%s", "prompt": "\xff\xfe"}', 400, None),
    ({"prompt": "x"}, 400, "model"),
    ({"model": "no-such-model", "prompt": "x"}, 404, "model"),
    ({"model": "%s"}, 400, "prompt"),
    ({"model": "%s", "prompt": ""}, 400, "prompt"),
    ({"model": "%s", "prompt": []}, 400, "prompt"),
    ({"model": "%s", "prompt": {"a": 1}}, 400, "prompt"),
    ({"model": "%s", "prompt": [-1]}, 400, "prompt"),
    ({"model": "%s", "prompt": [99999999]}, 400, "prompt"),
    ({"model": "%s", "prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ({"model": "%s", "prompt": "x", "max_tokens": "many"}, 400, "max_tokens"),
    ({"model": "%s", "prompt": "x", "max_tokens": 100000000}, 400, "max_tokens"),
    ({"model": "%s", "prompt": "x", "temperature": -1}, 400, "temperature"),
    ({"model": "%s", "prompt": "x", "top_p": 2}, 400, "top_p"),
    ({"model": "%s", "prompt": "x", "n": 0}, 400, "n"),
    ({"model": "%s", "prompt": "x", "stop": [""]}, 400, "stop"),
    ({"model": "%s", "prompt": "x", "stop": [1]}, 400, "stop"),
    ({"model": "%s", "prompt": "x", "logit_bias": {"a": 1}}, 400, "logit_bias"),
    ({"model": "%s", "prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"model": "%s", "prompt": "x", "echo": True}, 400, "echo"),
]


@pytest.mark.parametrize("body,code,param", BAD, ids=[str(b[0])[:40] for b in BAD])
def test_bad_request(cluster, body, code, param):
    if isinstance(body, bytes):
        body = body.replace(b"%s", cluster.model.encode())
    else:
        body = {k: cluster.model if v == "%s" else v for k, v in body.items()}
    r = post(cluster, body)
    assert r.status_code == code, r.text
    assert r.headers["Content-Type"].startswith("application/json")
    error = r.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert error["message"] and error["param"] == param


def test_prompt_longer_than_the_context(client, cluster):
    limit = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model=cluster.model, prompt=[65] * (limit + 1), max_tokens=1)
    assert e.value.code == "context_length_exceeded"


def test_bad_chat(cluster):
    for messages in ([], "hi", [{"content": "x"}], [{"role": "user", "content": 5}]):
        r = post(cluster, {"model": cluster.model, "messages": messages}, "/v1/chat/completions")
        assert r.status_code == 400 and r.json()["error"]["message"], messages


def test_unknown_path_and_method(cluster):
    headers = {"Authorization": f"Bearer {cluster.key}"}
    r = requests.get(cluster.http + "/v1/nothing", headers=headers, timeout=30)
    assert r.status_code == 404 and r.json()["error"]["code"] == "not_found"
    r = requests.get(cluster.http + "/v1/completions", headers=headers, timeout=30)
    assert r.status_code == 405 and r.headers["Allow"] == "POST"
    assert requests.delete(cluster.http + "/health", timeout=30).status_code == 405
    assert requests.head(cluster.http + "/health", timeout=30).status_code == 200


def test_metrics_are_there(client, cluster):
    client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=2, extra_body={"ignore_eos": True})
    text = requests.get(cluster.http + "/metrics", timeout=30).text
    for name in ("sluice_requests_total", "sluice_time_to_first_token_seconds_bucket", "sluice_generation_tokens_total",
                 "sluice_workers", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert name in text
    line = [x for x in text.splitlines() if x.startswith('sluice_requests_total{api="completions",outcome="length"}')]
    assert line and float(line[0].split()[-1]) >= 1


# ---- HTTP servers of the test's own ----


def test_api_key(own):
    c = own("--api-key", "s3cret")
    for key in (None, "wrong", "s3cre", "s3crett"):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        r = requests.post(c.http + "/v1/completions", json={"model": "sluice", "prompt": "x"}, headers=headers, timeout=30)
        assert r.status_code == 401 and r.json()["error"]["code"] == "invalid_api_key"
    assert requests.get(c.http + "/health", timeout=30).status_code == 200
    good = openai.OpenAI(base_url=c.http + "/v1", api_key="s3cret", max_retries=0)
    assert good.completions.create(model="sluice", prompt="x", max_tokens=2).usage.completion_tokens == 2
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=c.http + "/v1", api_key="no", max_retries=0).models.list()
    pb, services, _ = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        s = services.SglangSchedulerStub(channel)
        with pytest.raises(grpc.RpcError) as e:
            s.GetModelInfo(pb.GetModelInfoRequest())
        assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer s3cret"),)
        assert s.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata).served_model_name == "sluice"


def test_oversized_body(own):
    c = own("--max-body", 4096)
    r = requests.post(c.http + "/v1/completions", data=b"x" * 5000, timeout=30)
    assert r.status_code == 413 and r.json()["error"]["code"] == "request_too_large"
    r = requests.post(c.http + "/v1/completions", data=iter([b"x" * 3000, b"y" * 3000]), timeout=30)  # chunked
    assert r.status_code == 413
    pb, services, _ = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[65] * 5000))
        with pytest.raises(grpc.RpcError) as e:
            list(services.SglangSchedulerStub(channel).Generate(request))
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_half_sent_request_is_closed(own):
    c = own("--idle-timeout", 1)
    host, port = c.http.split("//")[1].split(":")
    for start in (b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
        s = socket.create_connection((host, int(port)), timeout=240)
        s.sendall(start)
        begin = time.time()
        while s.recv(4096):
            pass
        assert 0.5 < time.time() - begin < 25  # and not the 30 s that are usual
        s.close()
    assert requests.get(c.http + "/health", timeout=30).status_code == 200


def test_not_http_at_all(own):
    c = own()
    for address in (c.http.split("//")[1], c.grpc):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as s:
            s.sendall(bytes(range(256)) * 20)
            s.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not s.recv(4096):
                        break
                except ConnectionResetError:
                    break
    assert requests.get(c.http + "/health", timeout=30).status_code == 200


def test_full_queue_is_429(own):
    c = own("--max-batch", 1, "--max-queue", 1, "--step-us", 20000, "--decode", 1)
    body = {"model": "sluice", "prompt": PROMPT, "max_tokens": 60, "stream": True}
    long = {**body, "max_tokens": 1500}  # half a minute: until they are closed below
    streams = [requests.post(c.http + "/v1/completions", json=long, stream=True, timeout=30) for _ in range(2)]
    waiting = []
    t = threading.Thread(target=lambda: waiting.append(requests.post(c.http + "/v1/completions", json=body, timeout=120)))
    t.start()
    deadline = time.time() + 60
    while requests.get(c.http + "/workers", timeout=30).json()["queued"] < 1:
        assert time.time() < deadline
    r = requests.post(c.http + "/v1/completions", json=body, timeout=30)
    assert r.status_code == 429 and r.json()["error"]["code"] == "rate_limit_exceeded"
    pb, services, _ = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        with pytest.raises(grpc.RpcError) as e:
            list(services.SglangSchedulerStub(channel).Generate(
                pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[65]))))
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    [s.close() for s in streams]
    t.join()
    assert waiting[0].status_code == 200


@pytest.mark.parametrize("transport", ["loopback", "ucx"])
def test_worker_deaths_do_not_show(own, transport):
    c = own("--decode", 3, "--prefill", 2, "--step-us", 5000, "--transport", transport)
    client = openai.OpenAI(base_url=c.http + "/v1", api_key="x", max_retries=0, timeout=240)
    ask = dict(model="sluice", max_tokens=80, temperature=0)
    want = [client.completions.create(**ask, prompt=f"{PROMPT} {i}").choices[0].text for i in range(12)]
    got = [None] * len(want)

    def run(i):
        got[i] = "".join(x.choices[0].text for x in client.completions.create(**ask, prompt=f"{PROMPT} {i}", stream=True))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(want))]
    [t.start() for t in threads]
    time.sleep(0.1)
    c.command("kill 0")
    time.sleep(0.1)
    c.command("kill 2")
    [t.join() for t in threads]
    assert got == want


def test_drain(own):
    c = own("--step-us", 10000)
    pb, services, _ = clients.protocol()
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    body = {"model": "sluice", "prompt": PROMPT, "max_tokens": 100, "stream": True}
    running = requests.post(c.http + "/v1/completions", json=body, stream=True, timeout=30)
    with grpc.insecure_channel(c.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        c.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        r = requests.post(c.http + "/v1/completions", json=body, timeout=30)
        assert r.status_code == 503
        assert requests.get(c.http + "/health", timeout=30).status_code == 503
        assert running.text.rstrip().endswith("data: [DONE]")  # ran to its end
    assert c.wait() == 0


def test_tls(own, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    c = own("--tls-cert", cert, "--tls-key", key, tls=True)
    deadline = time.time() + 120
    while requests.get(c.http + "/health", verify=str(cert), timeout=30).status_code != 200:
        assert time.time() < deadline
    r = requests.post(c.http + "/v1/completions", json={"model": "sluice", "prompt": "x", "max_tokens": 200, "stream": True},
                      verify=str(cert), timeout=30)
    assert r.status_code == 200 and r.text.rstrip().endswith("[DONE]")
    pb, services, _ = clients.protocol()
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    with grpc.secure_channel(c.grpc.replace("127.0.0.1", "localhost"), credentials) as channel:
        request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[65] * 100), stream=True,
                                     sampling_params=pb.SamplingParams(max_new_tokens=200))
        assert list(services.SglangSchedulerStub(channel).Generate(request))[-1].complete.completion_tokens == 200


# ---- gRPC ----


def generate(stub, ids, n_tokens, **kw):
    pb, _, _ = clients.protocol()
    params = dict(max_new_tokens=n_tokens, ignore_eos=True)
    params.update(kw.pop("params", {}))
    return stub.Generate(pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids),
                                            sampling_params=pb.SamplingParams(**params), **kw), timeout=240)


IDS = [72, 101, 108, 108, 111] * 20


def test_generate(stub):
    replies = list(generate(stub, IDS, 6))
    assert len(replies) == 1
    c = replies[0].complete
    assert len(c.output_ids) == 6 and c.finish_reason == "length"
    assert (c.prompt_tokens, c.completion_tokens) == (100, 6)


def test_generate_streamed_equals_whole(stub):
    whole = list(generate(stub, IDS, 30))[0].complete
    replies = list(generate(stub, IDS, 30, stream=True, request_id="stream-1"))
    assert {r.request_id for r in replies} == {"stream-1"}
    chunks = [r.chunk for r in replies[:-1]]
    assert [t for c in chunks for t in c.token_ids] == list(whole.output_ids)
    assert chunks[-1].completion_tokens == 30
    assert list(replies[-1].complete.output_ids) == list(whole.output_ids)


def test_generate_agrees_with_http(stub, client, cluster):
    http = client.completions.create(model=cluster.model, prompt=IDS, max_tokens=12, temperature=0, logprobs=0,
                                     extra_body={"ignore_eos": True})
    rpc = list(generate(stub, IDS, 12))[0].complete
    assert len(http.choices[0].logprobs.tokens) == len(rpc.output_ids)


def test_generate_samples_and_logprobs(stub):
    replies = list(generate(stub, IDS, 4, params={"n": 3, "temperature": 1.0}, return_logprob=True, top_logprobs_num=2))
    assert sorted(r.complete.index for r in replies) == [0, 1, 2]
    for r in replies:
        assert list(r.complete.output_logprobs.token_ids) == list(r.complete.output_ids)
        assert len(r.complete.output_logprobs.top_logprobs) == 4


def test_generate_seed(stub):
    from google.protobuf import struct_pb2
    seed = struct_pb2.Struct()
    seed["seed"] = 11
    a, b = (list(generate(stub, IDS, 16, params={"temperature": 1.0, "custom_params": seed}))[0] for _ in range(2))
    assert list(a.complete.output_ids) == list(b.complete.output_ids)


@pytest.mark.parametrize("change,code", [
    (dict(tokenized=None), "INVALID_ARGUMENT"),
    (dict(ids=[2**31 - 1]), "INVALID_ARGUMENT"),
    (dict(params=dict(max_new_tokens=0)), "INVALID_ARGUMENT"),
    (dict(params=dict(temperature=-1)), "INVALID_ARGUMENT"),
    (dict(params=dict(top_p=1.5)), "INVALID_ARGUMENT"),
    (dict(params=dict(regex="a+")), "UNIMPLEMENTED"),
    (dict(lora_id="x"), "UNIMPLEMENTED"),
    (dict(top_logprobs_num=1000), "INVALID_ARGUMENT"),
])
def test_generate_errors(stub, change, code):
    pb, _, _ = clients.protocol()
    params = dict(max_new_tokens=2)
    params.update(change.pop("params", {}))
    ids = change.pop("ids", IDS)
    request = dict(tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=pb.SamplingParams(**params))
    request.update(change)
    with pytest.raises(grpc.RpcError) as e:
        list(stub.Generate(pb.GenerateRequest(**request), timeout=30))
    assert e.value.code().name == code and e.value.details()


def test_generate_not_a_message(cluster):
    with grpc.insecure_channel(cluster.grpc) as channel:
        call = channel.unary_unary("/sglang.grpc.scheduler.SglangScheduler/Abort", lambda b: b, lambda b: b)
        with pytest.raises(grpc.RpcError) as e:
            call(b"\xff\xff\xff\xff", timeout=240)
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        call = channel.unary_unary("/sglang.grpc.scheduler.SglangScheduler/Nothing", lambda b: b, lambda b: b)
        with pytest.raises(grpc.RpcError) as e:
            call(b"", timeout=240)
        assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_cancel(stub, cluster):
    until_idle(cluster)
    before = cancelled(cluster)
    call = generate(stub, IDS, 1500, stream=True)
    next(call)
    assert active(cluster) == 1
    call.cancel()
    until_idle(cluster)
    assert cancelled(cluster) == before + 1


def test_deadline(stub, cluster):
    pb, _, _ = clients.protocol()
    until_idle(cluster)
    request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=IDS), stream=True,
                                 sampling_params=pb.SamplingParams(max_new_tokens=3000, ignore_eos=True))
    with pytest.raises(grpc.RpcError) as e:
        list(stub.Generate(request, timeout=0.3))
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    until_idle(cluster)


def test_abort(stub, cluster):
    pb, _, _ = clients.protocol()
    call = generate(stub, IDS, 1500, stream=True, request_id="to-abort")
    next(call)
    with pytest.raises(grpc.RpcError) as e:
        list(generate(stub, IDS, 5, request_id="to-abort"))
    assert e.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert stub.Abort(pb.AbortRequest(request_id="to-abort", reason="test")).success
    assert list(call)[-1].complete.finish_reason == "abort"
    assert not stub.Abort(pb.AbortRequest(request_id="to-abort")).success


def test_info(stub, cluster):
    pb, _, common = clients.protocol()
    assert stub.HealthCheck(pb.HealthCheckRequest()).healthy
    model = stub.GetModelInfo(pb.GetModelInfoRequest())
    assert model.served_model_name == cluster.model and model.max_context_length > 0 and model.vocab_size > 0
    assert stub.GetServerInfo(pb.GetServerInfoRequest()).uptime_seconds > 0
    loads = stub.GetLoads(pb.GetLoadsRequest())
    assert loads.dp_rank_count == len(loads.loads) >= 1
    until_idle(cluster)
    assert stub.FlushCache(common.FlushCacheRequest(timeout_s=5)).success


def test_kv_events(stub, cluster):
    _, _, common = clients.protocol()
    until_idle(cluster)
    stub.FlushCache(common.FlushCacheRequest(timeout_s=5))
    events = stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(), timeout=120)
    enough = threading.Event()

    def make_pages():  # again and again, because nothing tells when the subscription has begun
        turn = 0
        while not enough.wait(0.1):
            turn += 1
            list(generate(stub, [(int(time.time()) + turn) % 200] + IDS * 2, 4))

    maker = threading.Thread(target=make_pages)
    maker.start()
    stored = []
    try:
        for batch in events:
            stored += [e.stored for e in batch.events if e.WhichOneof("data") == "stored"]
            if len(stored) >= 3:
                break
    finally:
        enough.set()
        maker.join()
    events.cancel()
    assert all(b.block_size == 64 for s in stored for b in s.blocks)


def test_standard_health(cluster):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    with grpc.insecure_channel(cluster.grpc) as channel:
        h = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        assert h.Check(health_pb2.HealthCheckRequest()).status == serving
        name = "sglang.grpc.scheduler.SglangScheduler"
        assert h.Check(health_pb2.HealthCheckRequest(service=name)).status == serving
        with pytest.raises(grpc.RpcError) as e:
            h.Check(health_pb2.HealthCheckRequest(service="nothing"))
        assert e.value.code() == grpc.StatusCode.NOT_FOUND
        assert set(h.List(health_pb2.HealthListRequest()).statuses) == {"", name}
        watch = h.Watch(health_pb2.HealthCheckRequest(service="nothing"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(cluster, version):
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    from grpc_reflection.v1alpha import reflection_pb2 as r
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    with grpc.insecure_channel(cluster.grpc) as channel:
        call = channel.stream_stream(path, r.ServerReflectionRequest.SerializeToString,
                                     r.ServerReflectionResponse.FromString)
        replies = list(call(iter([r.ServerReflectionRequest(list_services=""),
                                  r.ServerReflectionRequest(file_containing_symbol="no.such.Thing")]), timeout=60))
        names = {s.name for s in replies[0].list_services_response.service}
        assert {"sglang.grpc.scheduler.SglangScheduler", "grpc.health.v1.Health"} <= names
        assert replies[1].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        if version == "v1alpha":
            pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
            service = pool.FindServiceByName("sglang.grpc.scheduler.SglangScheduler")
            assert "Generate" in {m.name for m in service.methods}
