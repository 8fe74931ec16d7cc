"""No field of a request is ignored without a word.

The fields are those of the packages openai and anthropic: their types say what a request may have, at every depth. Each is sent with
a value of a wrong type, and each object with a member that no type has. What is accepted then is in the list of docs/api.md of
what has no effect; everything else gets 400, and the error names it.
"""

import collections.abc
import json
import re
import types
import typing

import anthropic.types.beta.message_create_params as beta_messages
import anthropic.types.message_count_tokens_params as count_tokens
import anthropic.types.message_create_params as messages
import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as completions
import openai.types.responses.response_create_params as responses
import pytest
import requests
import typing_extensions

from clients import ROOT

CHAT = {"model": "sluice", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
APIS = {
    "/v1/chat/completions": (chat.CompletionCreateParamsBase, CHAT, "chat"),
    "/v1/completions": (completions.CompletionCreateParamsBase, {"model": "sluice", "prompt": "a", "max_tokens": 2}, "completions"),
    "/v1/responses": (responses.ResponseCreateParamsBase, {"model": "sluice", "input": "a", "max_output_tokens": 2}, "Responses"),
    "/v1/messages": (messages.MessageCreateParamsBase, CHAT, "Messages"),
    "/v1/messages?beta=true": (beta_messages.MessageCreateParamsBase, CHAT, "Messages"),
    "/v1/messages/count_tokens": (count_tokens.MessageCountTokensParams, {k: CHAT[k] for k in ("model", "messages")}, "Messages"),
}
NEEDS = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
UNKNOWN = "zz_unknown"
DEPTH, EACH = 6, 3  # of objects in objects; requests with the same place


# ---- what the packages say ----


def bare(t):
    """A type without Required, Annotated and what else is only written around it."""
    while typing.get_origin(t) in (typing.Annotated, typing.Required, typing_extensions.Required, typing.NotRequired, typing_extensions.NotRequired):
        t = typing.get_args(t)[0]
    return bare(t.__value__) if hasattr(t, "__value__") else t


def variants(t):
    t = bare(t)
    if typing.get_origin(t) in (typing.Union, types.UnionType):
        return [v for a in typing.get_args(t) for v in variants(a)]
    return [t]


def is_object(t):
    return isinstance(t, type) and issubclass(t, dict) and hasattr(t, "__total__")


def is_list(t):
    return typing.get_origin(t) in (list, collections.abc.Iterable, collections.abc.Sequence) or "SequenceNotStr" in str(t)


def members(t):
    return typing.get_type_hints(t, include_extras=True)


def smallest(t, depth=0):
    """A value of a type, with what it must have."""
    t = variants(t)[0]
    if typing.get_origin(t) is typing.Literal:
        return typing.get_args(t)[0]
    if is_object(t):
        must = {k: v for k, v in members(t).items() if typing.get_origin(v) in (typing.Required, typing_extensions.Required) or t.__total__}
        return {k: smallest(v, depth + 1) for k, v in must.items()} if depth < 2 * DEPTH else {}
    if is_list(t):
        return [smallest(typing.get_args(t)[0], depth + 1)]
    return {bool: True, int: 1, float: 0.5, str: "x", type(None): None}.get(t, {})


def wrong(t):
    """A JSON value of a type that none of the variants has."""
    kinds = set()
    for v in variants(t):
        if typing.get_origin(v) is typing.Literal:
            kinds |= {type(a) for a in typing.get_args(v)}
        else:
            kinds.add(list if is_list(v) else v if v in (bool, int, float, str) else dict)
    for kind, value in ((dict, {"zz": 1}), (bool, True), (list, [["zz"]]), (str, "zz"), (int, 7777777)):
        if kind not in kinds and not (kind is int and float in kinds):
            return value
    return None


def places(t, place):
    """(place, smallest value around it, type there, whether it is an object that can get one more member)."""
    for v in variants(t):
        if is_object(v):
            base = smallest(v)
            yield place, base, v, True
            for name, of in members(v).items():
                yield place + (name,), base, of, False
                if len(place) < DEPTH:
                    for p, value, inner, more in places(of, place + (name,)):
                        yield p, {**base, name: value}, inner, more
        elif is_list(v):
            for p, value, inner, more in places(typing.get_args(v)[0], place + (0,)):
                yield p, [value], inner, more


def put(value, place, leaf):
    value = json.loads(json.dumps(value))
    at = value
    for p in place[:-1]:
        at = at[p]
    if isinstance(at, list):
        at[0] = leaf
    else:
        at[place[-1]] = leaf
    return value


def bodies(t, base):
    """(place, a body that is wrong there, the same body without the fault)."""
    seen = {}
    for field, of in members(t).items():
        if field == "model":
            continue
        found = [((field,), smallest(of), of, False), *places(of, (field,))]
        for place, value, inner, more in found:
            leaf = 1 if more else wrong(inner)
            at = place + (UNKNOWN,) if more else place
            if leaf is None or seen.get(at, 0) == EACH:
                continue
            seen[at] = seen.get(at, 0) + 1
            whole = {**base, **NEEDS.get(field, {}), field: value}
            yield at, put(whole, at, leaf), whole


# ---- what our tables and our documentation say ----


def tables():
    """(API, place) → names without an effect, as the C sources have them."""
    apis = {"CHAT": ["chat"], "TEXT": ["completions"], "BOTH": ["chat", "completions"], "RESP": ["Responses"], "MSGS": ["Messages"]}
    found = {}
    fields = (ROOT / "router/http/openai_fields.c").read_text()
    for name, of, in re.findall(r'\{"(\w+)", ([A-Z| ]+), OAI_IGNORED', fields):
        for api in [a for macro in of.split(" | ") for a in apis.get(macro, [])]:
            found.setdefault((api, ""), []).append(name)
    source = (ROOT / "router/http/openai_members.c").read_text()
    block = re.search(r'#define TEXT_BLOCK (".*")', source)[1]
    rows = re.findall(r'\{([A-Z| ]+), "([a-z_.\[\]]+)",\s+(?:NULL|"[^"]*"),\s+((?:"[^"]*"\s*)+)\}', source.replace(" TEXT_BLOCK}", " " + block + "}"))
    assert len(rows) > 30
    for of, place, words in rows:
        names = re.findall(r"-(\w+)", words)
        for api in [a for macro in of.split(" | ") for a in apis[macro]] if names else []:
            kept = found.setdefault((api, place), [])
            kept += [n for n in names if n not in kept]
    return found


def listed():
    """The same as docs/api.md lists them."""
    text = (ROOT / "docs/api.md").read_text().split("\n### Fields\n")[1].split("\n### ")[0]
    found = {}
    for apis, place, names in re.findall(r"^\| ([A-Za-z, ]+) \| (?:`([a-z_.\[\]]+)`)? *\| (`.*`) \|$", text, re.M):
        for api in apis.split(", "):
            found[api, place] = re.findall(r"`(\w+)`", names)
    return found


def test_docs_list_what_has_no_effect():
    assert {k: sorted(v) for k, v in listed().items()} == {k: sorted(v) for k, v in tables().items()}


def has_no_effect(api, place, known):
    """Whether the place, or what it is in, is in the list."""
    for n in range(1, len(place) + 1):
        at = ""
        for p in place[:n - 1]:
            at += "[]" if p == 0 else ("." if at else "") + p
        if place[n - 1] in known.get((api, at), []):
            return True
    return False


@pytest.mark.parametrize("path", APIS)
def test_nothing_is_ignored(cluster, path):
    t, base, api = APIS[path]
    known, session, refused, tried, silent, unnamed = listed(), requests.Session(), {}, 0, [], []

    def post(body):
        return session.post(cluster.http + path, json=body, headers={"Authorization": f"Bearer {cluster.key}"}, timeout=60)

    for place, body, whole in bodies(t, base):
        r = post(body)
        tried += 1
        if r.status_code == 200:
            if not has_no_effect(api, place, known):
                silent.append((place, body[place[0]]))
            continue
        assert r.status_code == 400, (body, r.text)
        error = r.json()["error"]
        if place[-1] in error["message"].split(":")[0]:
            assert path.startswith("/v1/messages") or error["param"], error
            continue
        key = json.dumps(whole)  # what holds it is refused by name as it is, or the fault makes its holder another thing
        if key not in refused:
            refused[key] = post(whole).json().get("error", {}).get("message")
        inner = [p for p in place if p != 0]
        if refused[key] is None and not any(name in error["message"] for name in inner[-2:]):
            unnamed.append((place, body[place[0]], error["message"]))
    assert not silent and not unnamed, f"accepted: {silent[:9]}; refused without the name: {unnamed[:9]}"
    assert tried > 15, "the packages have other types now"


# ---- misspelt names ----


MISSPELT = {  # a body with one object at each place
    "/v1/chat/completions": {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "response_format": {"type": "text"},
                             "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                                          {"role": "assistant", "content": "a", "tool_calls": [
                                              {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}],
                             "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": True}}],
                             "tool_choice": {"type": "function", "function": {"name": "f"}}, "chat_template_kwargs": {"enable_thinking": False}},
    "/v1/responses": {"model": "sluice", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "max_output_tokens": 2,
                      "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
                      "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": True}]},
    "/v1/messages": {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "thinking": {"type": "disabled"},
                     "system": [{"type": "text", "text": "a"}], "output_config": {"effort": "low"},
                     "tools": [{"name": "f", "description": "d", "input_schema": {}}], "tool_choice": {"type": "auto"}},
}


def names(value, place=()):
    """Every member at every depth, but those of a schema."""
    if isinstance(value, list):
        for i, v in enumerate(value):
            yield from names(v, place + (i,))
    if isinstance(value, dict):
        for k, v in value.items():
            yield place + (k,)
            yield from names(v, place + (k,))


def renamed(value, place, name):
    value = json.loads(json.dumps(value))
    at = value
    for p in place[:-1]:
        at = at[p]
    at[name] = at.pop(place[-1])
    return value


def edits(name):
    half = len(name) // 2
    yield name[:half] + name[half + 1:]
    yield name[:half] + name[half] + name[half:]
    yield name[:half - 1] + name[half] + name[half - 1] + name[half + 1:]
    yield name[:half] + ("q" if name[half] != "q" else "k") + name[half + 1:]


@pytest.mark.parametrize("path", MISSPELT)
def test_misspelt_members_get_the_near_name(cluster, path):
    """One edit of every name: the error names what was sent, and suggests what was meant."""
    every = {p[-1] for p in names(MISSPELT[path])}
    for place in names(MISSPELT[path]):
        for name in edits(place[-1]):
            if name in every or len(place[-1]) < 4:
                continue
            r = requests.post(cluster.http + path, json=renamed(MISSPELT[path], place, name), timeout=60)
            message = r.json()["error"]["message"]
            assert r.status_code == 400 and name in message and f"did you mean {place[-1]}?" in message, (place, name, message)


def test_generate_parameters(cluster):
    """sampling_params of /generate: misspelt ones get the near name, and what is null, there and in the body, is not given."""
    for name in ("temperature", "max_new_tokens", "stop_token_ids", "sampling_seed"):
        for wrong in edits(name):
            r = requests.post(cluster.http + "/generate", json={"text": "a", "sampling_params": {wrong: 1}}, timeout=60)
            message = r.json()["error"]["message"]
            assert r.status_code == 400 and wrong in message and f"did you mean {name}?" in message, message
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1, "stop_regex": None}, "lora_path": None, "of_the_next_version": None}
    assert requests.post(cluster.http + "/generate", json=body, timeout=60).status_code == 200
