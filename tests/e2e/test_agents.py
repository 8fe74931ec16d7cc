"""The APIs of agents: OpenAI's Responses and Anthropic's Messages, by their own packages; tokenize, generate, pages about the server.

Every answer is asked for whole and as a stream; what the package puts together from the events must be the whole answer.
"""
import json

import anthropic
import openai
import pytest
import requests

from real import LLGUIDANCE, Cluster

WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Lima"]}}, "required": ["city"], "additionalProperties": False}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    c = Cluster(tmp_path_factory.mktemp("agents"), roles=("router", "both"))
    yield c
    assert c.close()


@pytest.fixture
def messages(real):
    return anthropic.Anthropic(base_url=real.http, api_key="none", max_retries=0, timeout=240).messages


# ---- Anthropic ----

ASK = {"model": "tiny-v32", "max_tokens": 12, "extra_body": {"ignore_eos": True, "temperature": 0}}


def test_message(messages):
    ask = dict(ASK, system="Be brief.", messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    whole = messages.create(**ask)
    assert whole.type == "message" and whole.role == "assistant" and whole.id.startswith("msg-")
    assert whole.stop_reason == "max_tokens" and whole.stop_sequence is None and whole.usage.output_tokens == 12
    assert [b.type for b in whole.content] == ["text"]
    with messages.stream(**ask) as s:
        kinds = [e.type for e in s]
        final = s.get_final_message()
    assert final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12 and kinds[0] == "message_start" and kinds[-1] == "message_stop"
    count = messages.count_tokens(model=ASK["model"], system="Be brief.", messages=ask["messages"]).input_tokens
    assert count == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    again = messages.create(**dict(ask, messages=[{"role": "user", "content": "Hello"}]))
    assert again.content == whole.content


def test_message_stops(messages):
    text = messages.create(**dict(ASK, messages=[{"role": "user", "content": "Hello"}])).content[0].text
    stop = text[4:6]
    cut = messages.create(**dict(ASK, stop_sequences=[stop], messages=[{"role": "user", "content": "Hello"}]))
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
    assert (cut.content[0].text if cut.content else "") == text[:text.index(stop)]


@pytest.mark.skipif(LLGUIDANCE is None, reason="needs llguidance")
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "any", "disable_parallel_tool_use": True}])
def test_message_calls_a_tool(messages, choice):
    ask = {"model": "tiny-v32", "max_tokens": 300, "extra_body": {"temperature": 0}, "tool_choice": choice,
           "tools": [{"name": "weather", "description": "the weather", "input_schema": WEATHER}],
           "messages": [{"role": "user", "content": "Weather?"}]}
    whole = messages.create(**ask)
    with messages.stream(**ask) as s:
        for _ in s:
            pass
        final = s.get_final_message()
    calls = [b for b in whole.content if b.type == "tool_use"]
    if whole.stop_reason != "max_tokens":
        assert whole.stop_reason == "tool_use" and calls and all(c.name == "weather" and c.input["city"] in ("Oslo", "Lima") for c in calls)
    assert [(b.type, getattr(b, "input", None)) for b in final.content] == [(b.type, getattr(b, "input", None)) for b in whole.content]
    if not calls:
        return
    ask["messages"] += [{"role": "assistant", "content": [b.model_dump() for b in whole.content]},
                        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": c.id, "content": "sunny"} for c in calls]}]
    ask["tool_choice"] = {"type": "none"}
    assert messages.create(**dict(ask, max_tokens=4)).usage.output_tokens <= 4


def test_message_errors(real, messages):
    for change, word in (({"messages": []}, "messages"), ({"max_token": 3}, "did you mean max_tokens"), ({"system": 5}, "system"),
                         ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
                         ({"messages": [{"role": "system", "content": "x"}]}, "role"), ({"mcp_servers": [{}]}, "mcp_servers"),
                         ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search")):
        with pytest.raises(anthropic.BadRequestError) as e:
            messages.create(**{"model": "tiny-v32", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}],
                               "extra_body": change})
        assert word in e.value.body["error"]["message"] and e.value.body["error"]["type"] == "invalid_request_error", change
    with pytest.raises(anthropic.NotFoundError):
        messages.create(model="other", max_tokens=4, messages=[{"role": "user", "content": "x"}])


# ---- Responses ----


def test_response(real):
    client = real.openai()
    ask = dict(model="tiny-v32", input="Hello", instructions="Be brief.", max_output_tokens=12, temperature=0, extra_body={"ignore_eos": True})
    whole = client.responses.create(**ask)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens" and whole.instructions == "Be brief."
    assert whole.usage.output_tokens == 12 and whole.output_text
    events = list(client.responses.create(**ask, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:4]] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    with client.responses.stream(**ask) as s:
        assert s.get_final_response is not None
        for _ in s:
            pass
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    assert client.responses.create(**dict(ask, input=items, instructions=None)).output_text == whole.output_text


@pytest.mark.skipif(LLGUIDANCE is None, reason="needs llguidance")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_response_calls_a_tool(real, choice):
    client = real.openai()
    ask = dict(model="tiny-v32", input=[{"role": "user", "content": "Weather?"}], max_output_tokens=300, temperature=0, tool_choice=choice,
               parallel_tool_calls=False, tools=[{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}])
    whole = client.responses.create(**ask)
    events = list(client.responses.create(**ask, stream=True))
    calls = [i for i in whole.output if i.type == "function_call"]
    streamed = [i for i in events[-1].response.output if i.type == "function_call"]
    assert [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in streamed]
    assert whole.status == "completed" and len(calls) == 1 and json.loads(calls[0].arguments)["city"] in ("Oslo", "Lima")
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done[0].arguments == calls[0].arguments == "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    again = ask["input"] + [calls[0].model_dump(), {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"}]
    assert client.responses.create(model="tiny-v32", input=again, max_output_tokens=3).usage.output_tokens <= 3


@pytest.mark.skipif(LLGUIDANCE is None, reason="needs llguidance")
def test_response_of_a_schema(real):
    text = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}}
    r = real.openai().responses.create(model="tiny-v32", input="x", text=text, max_output_tokens=200, temperature=0)
    assert json.loads(r.output_text)["city"] in ("Oslo", "Lima")


def test_response_errors(real):
    client = real.openai()
    for change, word in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": []}, "input"), ({"imput": "x"}, "imput"),
                         ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"), ({"background": True}, "background"),
                         ({"tools": [{"type": "web_search"}]}, "web_search"), ({"conversation": "c"}, "conversation"),
                         ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input_image")):
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(**{"model": "tiny-v32", "input": "x", "max_output_tokens": 4, "extra_body": change})
        assert word in e.value.body["message"], change


# ---- tokens, /generate, pages ----


def test_tokenize(real):
    for text in ("Hello", "", "Grüße, \"Welt\"  你好 <｜User｜>", " x" * 50000):
        r = real.post({"prompt": text, "add_special_tokens": False}, "/tokenize").json()
        assert r["count"] == len(r["tokens"]) and r["max_model_len"] > 0 and r["token_strs"] is None
        assert real.post({"tokens": r["tokens"]}, "/detokenize").json() == {"prompt": text}
    chat = real.post({"messages": [{"role": "user", "content": "Hello"}], "return_token_strs": True}, "/tokenize").json()
    assert len(chat["token_strs"]) == chat["count"]
    usage = real.post({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}, "/v1/chat/completions").json()["usage"]
    assert usage["prompt_tokens"] == chat["count"]
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"prompt": "a", "messages": []}), ("/detokenize", {"tokens": [-1]}),
                       ("/detokenize", {"tokens": "a"}), ("/detokenize", {"tokens": [1 << 40]}), ("/tokenize", {"promt": "a"})):
        assert real.post(body, path).status_code == 400, body
    assert set(real.get("/tokenizer_info").json()) >= {"bos_token", "eos_token", "pad_token", "chat_template"}


def test_generate(real):
    ids = real.post({"prompt": "Hello"}, "/tokenize").json()["tokens"]
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    whole = real.post(json.dumps({"text": "Hello", "sampling_params": params, "return_logprob": True, "logprob_start_len": 0}).encode(), "/generate").json()
    assert whole["meta_info"]["completion_tokens"] == 8 == len(whole["meta_info"]["output_token_logprobs"])
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 8} and len(whole["meta_info"]["input_token_logprobs"]) == len(ids)
    r = real.post(json.dumps({"input_ids": ids, "sampling_params": params, "stream": True}).encode(), "/generate")
    events = [json.loads(line[6:]) for line in r.text.splitlines() if line.startswith("data: {")]
    assert r.text.endswith("data: [DONE]\n\n") and events[-1]["text"] == whole["text"]
    assert all(b["text"].startswith(a["text"]) for a, b in zip(events, events[1:]))
    for body in ({}, {"text": "a", "input_ids": [1]}, {"text": "a", "sampling_params": {"max_tokens": 3}}, {"text": ["a", "b"]}):
        assert real.post(json.dumps(body).encode(), "/generate").status_code == 400, body


def test_pages(real):
    assert real.get("/version").json()["version"] and real.get("/ping").status_code == 200 and real.post(b"", "/ping").status_code == 200
    info = real.get("/get_server_info").json()
    assert info["decode_workers"] == 1 and info["internal_states"][0].get("avg_spec_accept_length") is None  # as SGLang's load script reads it
    assert real.get("/get_model_info").json()["served_model_name"] == "tiny-v32"
    for path, near in (("/v1/chat/completion", "/v1/chat/completions"), ("/chat/completions", "/v1/chat/completions"), ("/v1/tokenize", "/tokenize"),
                       ("/heath", "/health")):
        r = real.get(path)
        assert r.status_code == 404 and path in r.json()["error"]["message"] and near in r.json()["error"]["message"], r.text
    r = requests.get(real.http + "/%0d%0aX:1/" + "a" * 90, timeout=30)
    assert r.status_code == 404 and "X:1" in r.text and "\r" not in r.text


def test_stop_reason(real):
    """null where the model ends by itself or the length does; the id that the request names."""
    r = real.post({"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0, "ignore_eos": True, "logprobs": 0}).json()["choices"][0]
    assert r["stop_reason"] is None
    first = real.post({"prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0, "ignore_eos": True, "prompt_logprobs": 0, "logprobs": 1})
    assert first.status_code == 200
    ids = [i for i in range(0, 1200, 16)]
    named = real.post({"prompt": [5, 6, 7], "max_tokens": 200, "temperature": 1.5, "seed": 3, "stop_token_ids": ids[:64]}).json()["choices"][0]
    assert named["finish_reason"] == "length" or named["stop_reason"] in ids + [None]


def test_request_id(real):
    body = json.dumps({"model": real.model, "prompt": "a", "max_tokens": 1}).encode()
    for given, back in (("job-7:a.b_C", True), ("x" * 63, True), ("x" * 64, False), ("a b", False), ("<x>", False)):
        for data in (body, b"{}"):  # an answer, and a refusal
            r = requests.post(real.http + "/v1/completions", data=data, headers={"X-Request-Id": given}, timeout=60)
            assert (r.headers.get("X-Request-Id") == given) == back, given
    real.logged(r"id=job-7:a\.b_C")
    assert requests.post(real.http + "/v1/completions", data=body, timeout=60).headers["X-Request-Id"].startswith("cmpl-")


def test_origins(real):
    """Without a key, scripts of pages of this host may read answers, and those of other pages may not."""
    path = real.http + "/v1/chat/completions"
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    for origin in ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443"):
        r = requests.options(path, headers={"Origin": origin, **ask}, timeout=30)
        assert r.status_code == 204 and r.headers["Access-Control-Allow-Origin"] == origin and "POST" in r.headers["Access-Control-Allow-Methods"]
        assert "Authorization" in r.headers["Access-Control-Allow-Headers"]
        for _ in range(8):  # also the answers that several callers share
            r = requests.get(real.http + "/v1/models", headers={"Origin": origin}, timeout=30)
            assert r.status_code == 200 and r.headers["Access-Control-Allow-Origin"] in ("*", origin)
    for origin in ("http://example.com", "http://localhost.example.com", "http://example.com/://localhost", "null", "http://127.0.0.1.example.com", "http://localhost@x"):
        assert requests.options(path, headers={"Origin": origin, **ask}, timeout=30).status_code == 405
        for _ in range(8):
            assert "Access-Control-Allow-Origin" not in requests.get(real.http + "/v1/models", headers={"Origin": origin}, timeout=30).headers
