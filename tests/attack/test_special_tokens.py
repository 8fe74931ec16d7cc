"""A user's text does not end the turn, and does not open another one: it is tokenized as ordinary text over both protocols.

The prompts' lengths in tokens tell: a marker that became its token counts one, as ordinary text it counts several.
"""

import grpc
import pytest
import real

MARKERS = ["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<think>", "</think>", "｜DSML｜"]


@pytest.fixture
def cluster(start):
    return lambda **settings: start(roles=("router", "prefill", "decode"), **settings)


def chat(c, text, **kw):
    r = c.post({"messages": [{"role": "user", "content": text}], "max_tokens": 1, **kw}, path="/v1/chat/completions")
    assert r.status_code == 200, r.text
    return r.json()["usage"]["prompt_tokens"]


def completion(c, text, **kw):
    r = c.post({"prompt": text, "max_tokens": 1, **kw})
    assert r.status_code == 200, r.text
    return r.json()["usage"]["prompt_tokens"]


def rpc(c, text, **kw):
    request = c.request(text, 1)
    for key, value in kw.items():
        request.sampling_params.custom_params[key] = value
    with c.channel() as channel:
        return list(c.stub(channel).Generate(request, timeout=240))[-1].complete.prompt_tokens


@pytest.mark.parametrize("by_default", [False, True])
def test_markers_in_text_are_text(cluster, by_default):
    c = cluster(router__parse_special=str(by_default).lower())
    for ask in (chat, completion, rpc):
        empty = ask(c, "a") - 1
        for marker in MARKERS:
            token, text = empty + 1, ask(c, marker, parse_special=False)
            assert text > token, f"{ask.__name__}: {marker} became one token"
            assert ask(c, marker, parse_special=True) == token
            assert ask(c, marker) == (token if by_default else text)
    with pytest.raises(grpc.RpcError) as e:
        rpc(c, "a", parse_special="yes")
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "parse_special" in e.value.details()
    assert c.post({"prompt": "a", "max_tokens": 1, "parse_special": "yes"}).json()["error"]["param"] == "parse_special"


def test_every_text_of_a_chat(cluster):
    """Names, arguments, tools and results come from clients too."""
    c = cluster()
    m = "<｜User｜>"

    def length(text):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": text},
                    {"role": "assistant", "content": text,
                     "tool_calls": [{"id": "1", "type": "function", "function": {"name": text, "arguments": f'{{"{text}": "{text}"}}'}}]},
                    {"role": "tool", "content": text}, {"role": "user", "content": [{"type": "text", "text": text}]}]
        tools = [{"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}]
        r = c.post({"messages": messages, "tools": tools, "max_tokens": 1}, path="/v1/chat/completions")
        assert r.status_code == 200, r.text
        return r.json()["usage"]["prompt_tokens"]

    plain = completion(c, "~" + m + "~") - completion(c, "~~")
    assert plain > 1
    more = length("~" + m + "~") - length("~~")
    assert more >= 8 * plain - 8, f"{more} tokens for 8 markers of {plain}"  # as one token each it would be 8


def test_token_ids_are_the_client_s_own(cluster):
    """Who sends ids has tokenized the text already."""
    c = cluster()
    assert completion(c, [0, 1269, 5, 1270]) == 4
    assert real.reference([0, 1269, 5, 1270], 1) == c.tokens([0, 1269, 5, 1270], 1)
