"""What tenants learn of each other's requests, and of the host, over HTTP: ids that a client chose or was given, paths on which other servers
look up, cancel or delete requests, and names of files in anything that is answered."""

import hashlib
import itertools
import json
import pathlib
import re
import threading

import grpc
import pytest
import requests

import clients
import real

KEYS = {"admin": real.Base.key, "one": "key-of-one", "two": "key-of-two"}
NOBODYS = "0123456789abcdef"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, clean):
    directory = tmp_path_factory.mktemp("ids")
    lines = [f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()} {'admin' if name == 'admin' else ''}" for name, key in KEYS.items()]
    (directory / "keys").write_text("\n".join(lines) + "\n")
    c = real.Cluster(directory, roles=("router", "prefill", "decode"), **{"router.keys_file": directory / "keys"})
    c.secrets = [str(directory), str(real.ROOT), "models/tiny-v32", "tokenizer.json: "]
    yield c
    assert c.close(), f"had to be killed:\n{c.tail()}"


def ask(c, tenant, method, path, body=None, **headers):
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    key = {"Authorization": f"Bearer {KEYS[tenant]}"} if tenant else {}
    return requests.request(method, c.http + path, data=data, timeout=60, headers={**key, **headers})


CHAT = {"messages": [{"role": "user", "content": "x"}]}
LONG = {  # an endless stream of each API, as far as the context goes
    "/v1/completions": {"prompt": [5, 6, 7], "max_tokens": 6000, "ignore_eos": True},
    "/v1/chat/completions": {**CHAT, "max_tokens": 6000, "ignore_eos": True},
    "/v1/responses": {"input": "x", "max_output_tokens": 6000, "ignore_eos": True},
    "/v1/messages": {**CHAT, "max_tokens": 6000, "ignore_eos": True},
    "/generate": {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 6000, "ignore_eos": True}},
}


class Stream(threading.Thread):
    """Reads a stream to its end; lines: what has come."""

    def __init__(self, c, tenant, path, given):
        super().__init__(daemon=True)
        body = {"model": c.model, "stream": True, **LONG[path]}
        if path in ("/v1/responses", "/v1/messages"):
            body.pop("ignore_eos")  # not of these APIs; the model of the tests does not end by itself for long
        self.answer = requests.post(c.http + path, json=body, timeout=120, stream=True,
                                    headers={"Authorization": f"Bearer {KEYS[tenant]}", **({"X-Request-Id": given} if given else {})})
        assert self.answer.status_code == 200, self.answer.text
        self.lines = []
        self.id = self.answer.headers["X-Request-Id"]
        self.start()

    def run(self):
        try:
            self.lines += [line for line in self.answer.iter_lines() if line]
        except requests.RequestException as e:
            self.lines.append(str(e).encode())


def abort(c, tenant, name):
    pb, _, _ = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        return c.stub(channel).Abort(pb.AbortRequest(request_id=name), timeout=60, metadata=(("authorization", f"Bearer {KEYS[tenant]}"),)).success


def names_of(stream):
    """The id, and what a client may take for it."""
    plain = re.sub(r"^[a-z]+[-_]", "", stream.id)
    return dict.fromkeys([stream.id, plain, f"chatcmpl-{plain}", f"resp_{plain}", f"msg_{plain}", f"cmpl-{plain}"])


@pytest.mark.parametrize("given", ["", "same"])
@pytest.mark.parametrize("path", LONG)
def test_ids_of_http_belong_to_a_tenant(cluster, path, given):
    """The same id of two tenants, or one that the router gave: neither learns of the other's request or ends it, and each ends its own."""
    c = cluster
    mine = Stream(c, "one", path, given)
    assert not any(abort(c, "two", name) for name in names_of(mine)), "ended by another tenant"
    other = Stream(c, "two", path, given)
    assert mine.id != other.id or given
    assert abort(c, "two", other.id), "its own is not found"
    other.join(60)
    assert not other.is_alive()
    ended = abort(c, "one", mine.id)
    mine.join(60)
    assert not mine.is_alive()
    assert ended == (b"cancelled" in b"".join(mine.lines)), "ended with that of the other tenant"
    assert ended or path in ("/v1/responses", "/v1/messages"), "these may end by themselves before they are aborted"
    assert not abort(c, "one", mine.id)
    c.idle(60)


LOOKUPS = [("GET", "/v1/responses/ID"), ("DELETE", "/v1/responses/ID"), ("POST", "/v1/responses/ID/cancel"), ("GET", "/v1/responses/ID/input_items"),
           ("GET", "/v1/chat/completions/ID"), ("DELETE", "/v1/chat/completions/ID"), ("GET", "/v1/chat/completions/ID/messages"),
           ("GET", "/v1/completions/ID"), ("GET", "/v1/messages/ID"), ("POST", "/v1/messages/ID/cancel"), ("POST", "/v1/messages/batches/ID/cancel"),
           ("POST", "/abort_request"), ("POST", "/v1/abort"), ("GET", "/trace/ID")]


def test_no_path_tells_whether_an_id_is_there(cluster):
    """A tenant that asks for another one's request, or for its own, is told what it is told of no request, and nothing ends."""
    c = cluster
    streams = {name: Stream(c, "one", "/v1/completions", name) for name in ("chosen", "")}
    for (method, path), tenant in itertools.product(LOOKUPS, ("one", "two")):
        body = {"rid": "ID", "request_id": "ID"} if method == "POST" else None

        def told(name, method=method, path=path, body=body, tenant=tenant):
            r = ask(c, tenant, method, path.replace("ID", name), json.dumps(body).replace("ID", name).encode() if body else None)
            return r.status_code, r.text.replace(name, "ID")
        nobodys = told(NOBODYS)
        assert nobodys[0] in (403, 404, 405), (path, nobodys)
        for s in streams.values():
            assert told(s.id)[0] == nobodys[0] and len(told(s.id)[1]) - len(nobodys[1]) in range(-64, 65), (path, told(s.id), nobodys)
    assert all(s.is_alive() for s in streams.values()), "a stream has ended"
    assert all(abort(c, "one", s.id) for s in streams.values())
    c.idle(60)


def test_an_id_that_another_tenant_uses_is_free(cluster):
    """Over gRPC the id of one's own open request is refused; that of another tenant, over HTTP or gRPC, is not."""
    c = cluster
    held = Stream(c, "one", "/v1/completions", "taken")
    with c.channel() as channel:
        q = c.request([5, 6, 7], 4, request_id="taken")
        done = list(c.stub(channel).Generate(q, timeout=60, metadata=(("authorization", f"Bearer {KEYS['two']}"),)))
    assert len(done[-1].complete.output_ids) == 4
    assert abort(c, "one", "taken")
    held.join(60)


# ---- names of files ----

ROUTES = re.findall(r'\{"(/[^"]*)", "(GET|POST)"', (real.ROOT / "router/http/routes.c").read_text())
WRONG = [None, b"", b"{", b"[]", b"null", b"\xff", {}, {"model": "x"}, {"model": 7}, {"model": "tiny-v32"}, {"model": "../../x"},
         {"model": "tiny-v32", "prompt": 7}, {"model": "tiny-v32", "prompt": [1 << 40]}, {"model": "tiny-v32", "messages": [{}]},
         {"model": "tiny-v32", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"model": "tiny-v32", "input": 7},
         {"model": "tiny-v32", "prompt": "x", "guided_json": {"$ref": "file:///etc/passwd"}}, {"model": "tiny-v32", "prompt": "x", "guided_regex": "("},
         {"model": "tiny-v32", "prompt": "x", "chat_template": "{% include '/etc/passwd' %}"}, {"worker": "x", "tier": "disk"},
         {"model": "tiny-v32", "tokens": [-1]}, {"model": "tiny-v32", "prompt": "x", "lora_path": "/etc"}, {"worker": "decode/0", "tier": "disk"}]


def test_no_answer_names_a_file(cluster):
    """Every path with every method and many wrong bodies, for every caller."""
    c, found, told = cluster, [], 0
    assert len(ROUTES) > 25
    for (path, method), tenant in itertools.product(ROUTES, ("one", "admin", None)):
        for p in (path, path + "x", path + "/../../etc/passwd"):
            for body in WRONG if method == "POST" and p == path else WRONG[:1]:
                r = ask(c, tenant, method, p, body)
                told += 1
                whole = r.text + str(r.headers)
                found += [(method, p, body, tenant, s) for s in c.secrets if s in whole]
    print(told, "answers")
    assert not found, found[:5]


def test_no_answer_over_grpc_names_a_file(cluster):
    c, found = cluster, []
    pb, _, common = clients.protocol()
    methods = [f"/{s.full_name}/{m.name}" for s in pb.DESCRIPTOR.services_by_name.values() for m in s.methods]
    assert len(methods) >= 8
    for method, tenant, data in itertools.product(methods, KEYS, (b"", b"\xff", b"\x0a\x02ab", b"\x12\x03\x0a\x01x", b"\x22\x04\x0a\x02\xff\xff")):
        if method.endswith(("GetTokenizer", "SubscribeKvEvents")):  # a file that is asked for; a stream without an end
            continue
        with grpc.insecure_channel(c.grpc) as channel:
            call = channel.unary_stream(method, request_serializer=lambda b: b, response_deserializer=lambda b: b)
            try:
                whole = b"".join(call(data, timeout=20, metadata=(("authorization", f"Bearer {KEYS[tenant]}"),))).decode(errors="replace")
            except grpc.RpcError as e:
                whole = f"{e.details()} {e.trailing_metadata()}"
        found += [(method, tenant, data, s) for s in c.secrets if s in whole]
    assert not found, found[:5]


# ---- fields that are long, nested or misspelt ----

@pytest.mark.parametrize("path", [p for p in LONG if p != "/generate"])
def test_misspelt_fields_of_rows(cluster, path):
    """A field, or a member or value of a nested one, that is misspelt is refused by name: it is never taken for one that is not there."""
    c = cluster
    base = {"model": c.model, **LONG[path]}
    base.pop("ignore_eos", None)
    base["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 2
    plain = ask(c, "one", "POST", path, base)
    assert plain.status_code == 200, plain.text
    misspelt = [{"stream": True, "stream_options": {"include_usag": True}}, {"response_format": {"type": "json_objct"}}, {"user": {"a": 1}},
                {"tools": [{"type": "function", "functon": {"name": "f"}}]}, {"tool_choice": {"type": "functio"}}, {"usr": "x"}, {"n": "1"},
                {"messages": [{"role": "user", "contnt": "x"}]}, {"input": [{"role": "user", "contnt": "x"}]}, {"max_token": 4}]
    for wrong in misspelt:
        r = ask(c, "one", "POST", path, {**base, **wrong})
        name = list(wrong)[-1]
        assert r.status_code == 400 and name in r.text, (wrong, r.status_code, r.text)


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 7 << 20])
@pytest.mark.parametrize("path", [p for p in LONG if p != "/generate"])
def test_long_names_of_users(cluster, path, size):
    """`user`, or what this API has for it, of any length: served or refused, in no log, and nothing is left."""
    c = cluster
    base = {"model": c.model, **LONG[path]}
    base.pop("ignore_eos", None)
    base["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 2
    name = "u" * size
    base |= {"metadata": {"user_id": name}} if path == "/v1/messages" else {"user": name}
    r = ask(c, "one", "POST", path, base)
    assert r.status_code in (200, 400, 413), r.text[:200]
    real.until("all bytes are given back", lambda: real.metric(c.get("/metrics").text, "sluice_request_bytes") == 0, 60)
    assert "u" * 200 not in pathlib.Path(c.log).read_text(errors="replace")
