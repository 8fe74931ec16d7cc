"""The router as a server: keys, TLS, limits, draining, and the deaths of workers. Each test starts a mock cluster."""

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
from clients import PROMPT  # noqa: E402


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
    held = requests.post(c.http + "/v1/completions", json={**body, "max_tokens": 2500}, stream=True, timeout=30)  # until all is seen
    with grpc.insecure_channel(c.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        c.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        r = requests.post(c.http + "/v1/completions", json=body, timeout=30)
        assert r.status_code == 503
        assert requests.get(c.http + "/health", timeout=30).status_code == 503
        assert running.text.rstrip().endswith("data: [DONE]")  # ran to its end
        held.close()
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
