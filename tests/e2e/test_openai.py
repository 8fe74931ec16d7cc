"""The OpenAI package against a cluster over HTTP, and the answers to malformed HTTP requests."""

import json
import os
import socket
import sys
import threading
import time

import openai
import pytest
import requests

sys.path.insert(0, os.path.dirname(__file__))
from clients import PROMPT, active, cancelled, post, until_idle  # noqa: E402


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


# ---- malformed and refused requests ----


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
    ({"model": "%s", "prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ({"model": "%s", "prompt": "x", "max_tokens": "many"}, 400, "max_tokens"),
    ({"model": "%s", "prompt": "x", "max_tokens": 100000000}, 400, "max_tokens"),
    ({"model": "%s", "prompt": "x", "temperature": -1}, 400, "temperature"),
    ({"model": "%s", "prompt": "x", "top_p": 2}, 400, "top_p"),
    ({"model": "%s", "prompt": "x", "n": 0}, 400, "n"),
    ({"model": "%s", "prompt": "x", "stop": [""]}, 400, "stop"),
    ({"model": "%s", "prompt": "x", "stop": [1]}, 400, "stop"),
    ({"model": "%s", "prompt": "x", "logit_bias": {"a": 1}}, 400, "logit_bias"),
    ({"model": "%s", "prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"model": "%s", "prompt": "x", "echo": 1}, 400, "echo"),
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
    for ask in ({"prompt": [65] * (limit + 1), "max_tokens": 1}, {"prompt": "a", "max_tokens": limit}):
        with pytest.raises(openai.BadRequestError) as e:
            client.completions.create(model=cluster.model, **ask)
        assert e.value.code == "context_length_exceeded"
        assert f"this model's maximum context length is {limit} tokens" in e.value.message  # by these words litellm knows it


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
