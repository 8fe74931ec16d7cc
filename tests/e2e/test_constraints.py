"""Structured output against a real cluster of random weights: whatever the model would like to say, the answer is what its schema,
expression, choice, grammar or tool asks for. Schemas are generated. The workers have two steps in flight, as on a GPU. About 10 s of processor time, mostly for the start of the cluster."""

import json
import os
import random
import re
import signal
import threading

import openai
import pytest
import requests

import real

pytestmark = pytest.mark.skipif(not real.LLGUIDANCE and "SL_LLGUIDANCE" not in os.environ,
                                reason="no llguidance; scripts/install-deps installs it")
WORDS = ["red", "green", "deep blue", "été"]


@pytest.fixture(scope="module")
def served(clean, tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("SLUICE_OVERLAP", "1")
        c = real.Cluster(tmp_path_factory.mktemp("constraints"), roles=("router", "prefill", "decode", "both"),
                         **{"cluster.dead_after_ms": 2500})
    yield c
    print(c.tail(60))
    assert c.close()


# ---- schemas, and whether a value follows one ----


def schema(r, depth=2):
    kind = r.choice(["enum", "integer", "boolean", "string", "null", "array", "object"] if depth else ["enum", "integer", "string"])
    if kind == "enum":
        return {"enum": r.sample(WORDS, 2)}
    if kind == "integer":
        low = r.randrange(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + r.randrange(1, 40)}
    if kind == "string":
        return {"type": "string", "pattern": "^[a-e]{1,4}$"}
    if kind == "array":
        return {"type": "array", "items": schema(r, depth - 1), "minItems": 1, "maxItems": 3}
    if kind == "object":
        return record(r, depth)
    return {"type": kind}


def record(r, depth=2):
    names = [f"k{i}" for i in range(r.randrange(1, 4))]
    return {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}, "required": names, "additionalProperties": False}


def follows(v, s):
    if "enum" in s:
        return v in s["enum"]
    if s["type"] == "integer":
        return type(v) is int and s["minimum"] <= v <= s["maximum"]
    if s["type"] == "string":
        return isinstance(v, str) and re.fullmatch(s["pattern"].strip("^$"), v) is not None
    if s["type"] == "array":
        return isinstance(v, list) and 1 <= len(v) <= 3 and all(follows(e, s["items"]) for e in v)
    if s["type"] == "object":
        return isinstance(v, dict) and list(v) == s["required"] and all(follows(v[k], s["properties"][k]) for k in v)
    return v is None if s["type"] == "null" else isinstance(v, bool)


def ask(c, chat=True, **body):
    start = {"messages": [{"role": "user", "content": "hello"}]} if chat else {"prompt": "hello"}
    answer = c.post({**start, "max_tokens": 600, "temperature": 1, "seed": 5, **body},
                    "/v1/chat/completions" if chat else "/v1/completions")
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] in ("stop", "tool_calls"), answer.text
    return choice["message"] if chat else choice["text"]


@pytest.mark.parametrize("seed", range(4))
def test_generated_schemas(served, seed):
    """Streamed and whole, with several choices, log-probabilities and penalties, sampled and greedy."""
    s = record(random.Random(seed))
    client = served.openai()
    body = dict(model=served.model, messages=[{"role": "user", "content": f"hello {seed}"}], max_tokens=900, seed=seed, n=2,
                temperature=seed % 2 * 1.2, logprobs=True, top_logprobs=2, frequency_penalty=seed % 3 * 0.5,
                extra_body={"min_tokens": 400 * (seed % 2)},
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": s, "strict": True}})
    whole = client.chat.completions.create(**body).choices
    streamed = ["", ""]
    ends = [None, None]
    for chunk in client.chat.completions.create(**body, stream=True):
        for c in chunk.choices:
            streamed[c.index] += c.delta.content or ""
            ends[c.index] = c.finish_reason or ends[c.index]
    for i in range(2):
        assert follows(json.loads(whole[i].message.content), s), (whole[i].message.content, s)
        assert streamed[i] == whole[i].message.content and ends[i] == whole[i].finish_reason == "stop"
        assert len(whole[i].logprobs.content) > 3 and whole[i].message.tool_calls is None


SHAPE = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
FORMS = {
    "guided_json": ({"guided_json": SHAPE}, lambda t: follows(json.loads(t), SHAPE)),
    "guided_json as text": ({"guided_json": json.dumps(SHAPE)}, lambda t: follows(json.loads(t), SHAPE)),
    "json_schema": ({"json_schema": json.dumps(SHAPE)}, lambda t: follows(json.loads(t), SHAPE)),
    "guided_regex": ({"guided_regex": "[a-c]{2,4}-[0-9]{1,3}"}, lambda t: re.fullmatch("[a-c]{2,4}-[0-9]{1,3}", t)),
    "regex": ({"regex": "(yes|no)!{1,3}"}, lambda t: re.fullmatch("(yes|no)!{1,3}", t)),
    "guided_choice": ({"guided_choice": WORDS}, lambda t: t in WORDS),
    "guided_grammar": ({"guided_grammar": 'root ::= "1. " move\nmove ::= [a-h] [1-8]'}, lambda t: re.fullmatch("1. [a-h][1-8]", t)),
    "ebnf": ({"ebnf": 'root ::= "a" | "b" "c"'}, lambda t: t in ("a", "bc")),
    "grammar": ({"grammar": "root ::= [0-9]{3}"}, lambda t: re.fullmatch("[0-9]{3}", t)),
    "structured_outputs": ({"structured_outputs": {"choice": WORDS}}, lambda t: t in WORDS),
    "response_format": ({"response_format": {"type": "json_object", "schema": SHAPE}}, lambda t: follows(json.loads(t), SHAPE)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_way_to_say_it(served, name):
    body, right = FORMS[name]
    assert right(ask(served, chat=False, **body)), body
    content = ask(served, **body)["content"]
    assert right(content), content


def test_one_batch_with_others(served):
    """Streams with and without a constraint in the same batches: those without have the tokens of one process, those with one what they
    get alone."""
    free = {k: real.prompt(k, 90) for k in range(5)}
    bound = {k: dict(prompt=f"tell {k}", max_tokens=300, temperature=k % 2, seed=k, presence_penalty=k % 3 * 0.4, regex="([a-e]{3} ){30}[f-h]")
             for k in range(5)}
    alone = {k: ask(served, chat=False, **body) for k, body in bound.items()}
    assert all(re.fullmatch(b["regex"], alone[k]) for k, b in bound.items()), alone
    got, said = {}, {}
    real.in_parallel([lambda k=k: got.update({k: served.tokens(free[k], 150)}) for k in free] +
                     [lambda k=k: said.update({k: ask(served, chat=False, **bound[k])}) for k in bound])
    assert said == alone
    for k, ids in free.items():
        assert got[k] == real.reference(ids, 150)


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {
            "type": "object", "properties": {"where": {"$ref": "#/$defs/place"}}, "required": ["where"], "additionalProperties": False,
            "$defs": {"place": {"enum": ["up", "down"]}}}}},
         {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]


def calls_of(client, **body):
    """The calls of an answer, which are the same streamed."""
    body = dict(messages=[{"role": "user", "content": "hello"}], max_tokens=900, temperature=1, seed=3, tools=TOOLS, **body)
    whole = client.chat.completions.create(**body).choices[0]
    got = {}
    for chunk in client.chat.completions.create(**body, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name, args = got.get(call.index, ("", ""))
            got[call.index] = (name + (call.function.name or ""), args + (call.function.arguments or ""))
        end = chunk.choices[0].finish_reason
    calls = [(t.function.name, t.function.arguments) for t in whole.message.tool_calls]
    assert [got[i] for i in sorted(got)] == calls and whole.finish_reason == end == "tool_calls" and not whole.message.content
    return [(name, json.loads(args)) for name, args in calls]


def test_forced_calls(served):
    client = served.openai()
    named = calls_of(client, model=served.model, tool_choice={"type": "function", "function": {"name": "look"}})
    assert len(named) == 1 and named[0][0] == "look" and named[0][1]["where"] in ("up", "down")
    for name, args in calls_of(client, model=served.model, tool_choice="required", parallel_tool_calls=False):
        assert args.get("where") in ("up", "down") if name == "look" else (name, args) == ("stop", {})


def test_grpc(served):
    """The gateway's constraint; text is made of the tokens by the client."""
    done = served.complete("hello", 300, regex="(yes|no){2}", ignore_eos=False, temperature=1, seed=4)
    assert done.finish_reason == "stop" and 1 < len(done.output_ids) < 8
    again = served.complete("hello", 300, json_schema=json.dumps(SHAPE), ignore_eos=False, temperature=1, seed=4)
    assert again.finish_reason == "stop"


def test_after_the_reasoning(served):
    """Random weights do not end a reasoning part on their own, so a bias makes them; before it the form does not hold."""
    with open(real.MODEL / "tokenizer.json", encoding="utf-8") as f:
        end = next(t["id"] for t in json.load(f)["added_tokens"] if t["content"] == "</think>")
    reasons = 0
    for seed in range(6):
        body = {"chat_template_kwargs": {"thinking": True}, "logit_bias": {str(end): 8}, "max_tokens": 600, "seed": seed,
                "temperature": 1, "messages": [{"role": "user", "content": "hello"}]}
        answer = served.post({**body, "guided_regex": "(yes|no){2}"}, "/v1/chat/completions")
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert re.fullmatch("(yes|no){2}", message["content"]), message
        reasons += bool(message.get("reasoning_content"))
        done = served.complete("hello", 300, regex="(yes|no){2}", ignore_eos=False, temperature=1, seed=seed,
                               logit_bias={str(end): 8}, custom_params={"constraint_after": end})
        after = list(done.output_ids)[list(done.output_ids).index(end) + 1:]
        text = requests.post(served.http + "/detokenize", json={"model": served.model, "tokens": after}, timeout=60).json()["prompt"]
        assert re.fullmatch("(yes|no){2}(<.*)?", text), text
    assert reasons, "no reasoning came: the test shows nothing"


TAG = {"begin": "e=", "schema": {"enum": ["up", "down"]}, "end": ";"}
TAGS = {"type": "structural_tag", "structures": [TAG], "triggers": ["e"]}
TAGS_FORMAT = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["e"], "tags": [
    {"begin": "e=", "content": {"type": "json_schema", "json_schema": TAG["schema"]}, "end": ";"}]}}


def tagged(text, cut=True):
    """Every e begins a tag; the last one may be cut."""
    parts = text.split("e")
    whole = re.compile('=(\\s*"(up|down)"\\s*);[^e]*', re.S)
    assert all(whole.fullmatch("".join(p)) for p in parts[1:-1]), text
    assert len(parts) < 2 or whole.fullmatch(parts[-1]) or (cut and ";" not in parts[-1]), text
    return len(parts) - 1


@pytest.mark.parametrize("field", ["response_format", "format", "structured_outputs", "structural_tag", "text", "grpc"])
def test_structural_tags(served, field):
    found = 0
    for seed in range(6):
        if field == "grpc":
            ids = list(served.complete("say", 150, structural_tag=json.dumps(TAGS), temperature=1, seed=seed, ignore_eos=False).output_ids)
            text = requests.post(served.http + "/detokenize", json={"model": served.model, "tokens": ids}, timeout=60).json()["prompt"].split("<｜")[0]  # the end
        else:
            body = {"response_format": {"response_format": TAGS}, "format": {"response_format": TAGS_FORMAT},
                    "structured_outputs": {"structured_outputs": {"structural_tag": json.dumps(TAGS)}},
                    "structural_tag": {"structural_tag": TAGS_FORMAT}, "text": {"structural_tag": json.dumps(TAGS)}}[field]
            r = served.post({"prompt": "say", "max_tokens": 150, "temperature": 1, "seed": seed, **body})
            assert r.status_code == 200, r.text
            text = r.json()["choices"][0]["text"]
        found += tagged(text)
    assert found, "no tag was begun: the test shows nothing"


def test_ignore_eos(served):
    """The form holds up to the end of the answer, and as many tokens come as were asked for."""
    for seed in range(4):
        q = {"prompt": "go on", "temperature": 1, "seed": seed, "guided_regex": "(yes|no){2}[0-9]"}
        short = served.post({**q, "max_tokens": 60}).json()["choices"][0]
        long = served.post({**q, "max_tokens": 60, "ignore_eos": True}).json()
        assert short["finish_reason"] == "stop" and re.fullmatch("(yes|no){2}[0-9]", short["text"])
        assert long["choices"][0]["text"].startswith(short["text"]) and long["usage"]["completion_tokens"] == 60
        assert long["choices"][0]["finish_reason"] == "length"


REFUSED = {
    "no regex": ({"regex": "(a"}, "regex"),
    "no schema": ({"guided_json": {"type": "nothing"}}, "guided_json"),
    "no grammar": ({"grammar": "root ::= missing"}, "grammar"),
    "hostile": ({"guided_json": {"$ref": "#/a0", **{f"a{i}": {"anyOf": [{"$ref": f"#/a{i + 1}"}] * 2} for i in range(300)},
                                 "a300": {"type": "integer"}}}, "guided_json"),
    "too large": ({"guided_json": {"enum": ["x" * 40000]}}, "guided_json"),
    "two": ({"regex": "a", "guided_choice": ["a"]}, "regex"),
    "no tags": ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format"),
    "another type of tags": ({"structural_tag": {"format": {"type": "any_text"}}}, "structural_tag"),
    "misspelt": ({"max_token": 3}, "max_token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(served, name):
    body, field = REFUSED[name]
    answer = served.post({"prompt": "hello", "max_tokens": 3, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field, error
    assert name != "misspelt" or "max_tokens" in error["message"]
    with pytest.raises(openai.BadRequestError):
        served.openai().completions.create(model=served.model, prompt="hello", max_tokens=3, extra_body=body)


LONG = {"guided_regex": "([a-e]{3} ){40}[f-h]"}
KILLED = [LONG, LONG, {**LONG, "ignore_eos": True}, {"structural_tag": TAGS}]


def test_a_killed_worker_changes_nothing(served):
    """kill -9 of a worker that decodes constrained streams: the texts are those of before. The last test: a worker is missing afterwards."""
    def texts(out, k, begun=None):
        q = dict(model=served.model, prompt=f"tell {k}", max_tokens=300, temperature=1, seed=k, extra_body=KILLED[k])
        for chunk in served.openai().completions.create(**q, stream=True):
            out[k] = out.get(k, "") + (chunk.choices[0].text if chunk.choices else "")
            if begun and len(out[k]) > 20:
                begun.set()

    want, got, begun = {}, {}, threading.Event()
    real.in_parallel([lambda k=k: texts(want, k) for k in range(4)])
    assert all(re.match("([a-e]{3} ){40}[f-h]", want[k]) for k in (0, 1, 2)) and tagged(want[3]), want
    threads = [threading.Thread(target=texts, args=(got, k, begun)) for k in range(4)]
    for t in threads:
        t.start()
    assert begun.wait(120)
    os.kill(served.pid("decode/0"), signal.SIGKILL)
    for t in threads:
        t.join(240)
    assert got == want
