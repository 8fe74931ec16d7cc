"""What clients learn of each other through the prefix cache: only what kvstore.share and their salts allow.

Everybody sends the same prompts, over both protocols. `cached_tokens` says what was reused, the events which pages there are;
the answers are the same in every mode.
"""

import hashlib
import threading

import clients
import grpc
import pytest
import real
import requests

KEYS = {"ops": "key-of-ops", "alice": "key-of-alice", "bob": "key-of-bob"}
FILE = "".join(f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()} {'admin' if name == 'ops' else ''}\n"
               for name, key in KEYS.items())
PROMPT, REUSED, N = real.prompt("share", 300), 256, 4
SALT = "salt-that-must-not-be-shown"


@pytest.fixture
def cluster(start, tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text(FILE)
    monkeypatch.setattr(real.Cluster, "key", KEYS["ops"])
    return lambda share: start(roles=("router", "prefill", "decode"), **{"router.keys_file": path, "kvstore.share": share})


def bearer(name):
    return {"Authorization": f"Bearer {KEYS[name]}"}


def http(c, who, ids, salt=None, **kw):
    body = {"model": c.model, "prompt": ids, "max_tokens": N, "ignore_eos": True, "temperature": 0, **kw}
    if salt is not None:
        body["cache_salt"] = salt
    r = requests.post(c.http + "/v1/completions", json=body, timeout=240, headers=bearer(who))
    assert r.status_code == 200, r.text
    return r.json()["choices"][0]["text"], r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def rpc(c, who, ids, salt=None):
    request = c.request(ids, N)
    if salt is not None:
        request.sampling_params.custom_params["cache_salt"] = salt
    with grpc.insecure_channel(c.grpc) as channel:
        call = c.stub(channel).Generate(request, timeout=240, metadata=(("authorization", bearer(who)["Authorization"]),))
        answer = list(call)[-1].complete
    return tuple(answer.output_ids), answer.cached_tokens


def pages_seen(c, channel, enough):
    """(block_hash, token_ids) of what the events say until there are enough, by an admin."""
    _, _, common = clients.protocol()
    events = c.stub(channel).SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1), timeout=120,
                                               metadata=(("authorization", bearer("ops")["Authorization"]),))
    seen = []
    for batch in events:
        seen += [(b.block_hash, tuple(b.token_ids)) for e in batch.events for b in e.stored.blocks]
        if len(seen) >= enough:
            break
    events.cancel()
    return seen


@pytest.mark.parametrize("share", ["all", "tenant", "none"])
def test_nobody_learns_what_others_sent(cluster, share):
    c = cluster(share)
    own = 0 if share == "none" else REUSED     # what the same client reuses of its own prompt
    others = REUSED if share == "all" else 0   # what it reuses of another client's
    answers = {}

    def probe(ask, who, salt=None):
        answer, cached = ask(c, who, PROMPT, salt)
        assert answers.setdefault(ask, answer) == answer
        return cached

    assert probe(http, "alice") == 0
    assert probe(rpc, "bob") == others          # the other protocol: the same rules
    assert probe(http, "bob") == own            # its own prompt of a moment ago
    assert probe(rpc, "alice") == own
    assert probe(http, "alice", SALT) == 0      # a new salt: no pages, not even its own without it
    assert probe(rpc, "alice", SALT) == own
    assert probe(rpc, "bob", SALT) == others    # who knows the salt shares with it as without one
    assert probe(http, "alice", SALT + "2") == 0
    assert probe(http, "bob", "alice") == 0     # a salt does not make it another tenant
    assert answers[rpc] == tuple(real.reference(PROMPT, N))
    text = c.get("/metrics").text + c.text()
    assert SALT not in text and "cache_salt" not in text


def test_events_of_tenants_do_not_meet(cluster):
    """Equal prompts of two tenants have no block in common, and only admins see any."""
    c = cluster("tenant")
    for who in ("alice", "bob"):
        http(c, who, PROMPT)
    with grpc.insecure_channel(c.grpc) as channel:
        seen = pages_seen(c, channel, 8)
        tokens = [t for _, t in seen]
        assert len(seen) == 8 and len({h for h, _ in seen}) == 8 and len(set(tokens)) == 4
        assert all(tokens.count(tuple(PROMPT[64 * i:64 * i + 64])) == 2 for i in range(4))
        _, _, common = clients.protocol()
        with pytest.raises(grpc.RpcError) as e:
            next(c.stub(channel).SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1), timeout=20,
                                                   metadata=(("authorization", bearer("bob")["Authorization"]),)))
        assert e.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_choices_and_recovery_keep_their_pages(cluster):
    """share: none. The choices of one call use its prompt once, and other calls at the same time do not disturb it."""
    c = cluster("none")
    calls = [threading.Thread(target=http, args=(c, who, PROMPT)) for who in ("alice", "bob", "alice")]
    for t in calls:
        t.start()
    body = {"model": c.model, "prompt": PROMPT, "max_tokens": N, "ignore_eos": True, "temperature": 0, "n": 3}
    r = requests.post(c.http + "/v1/completions", json=body, timeout=240, headers=bearer("bob")).json()
    for t in calls:
        t.join()
    assert len({choice["text"] for choice in r["choices"]}) == 1
    c.idle()


def test_without_keys_there_are_no_events(start):
    """Without keys every caller is an admin. Where kvstore.share separates clients, none of them may learn what others sent."""
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.share": "none"})
    _, _, common = clients.protocol()
    with c.channel() as channel:
        with pytest.raises(grpc.RpcError) as e:
            next(c.stub(channel).SubscribeKvEvents(common.SubscribeKvEventsRequest(), timeout=20))
        assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED and "kvstore.share" in e.value.details()


@pytest.mark.parametrize("salt", ["", "x" * 257, 7, ["a"], {"a": 1}, True])
def test_salts_that_are_refused(mock_cluster, salt):
    c = mock_cluster
    r = requests.post(c.http + "/v1/completions", timeout=30,
                      json={"model": c.model, "prompt": [5, 6], "max_tokens": 1, "cache_salt": salt})
    assert r.status_code == 400 and r.json()["error"]["param"] == "cache_salt", r.text
    pb, services, _ = clients.protocol()
    params = pb.SamplingParams(max_new_tokens=1)
    params.custom_params["cache_salt"] = salt
    with grpc.insecure_channel(c.grpc) as channel, pytest.raises(grpc.RpcError) as e:
        list(services.SglangSchedulerStub(channel).Generate(
            pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[5, 6]), sampling_params=params), timeout=30))
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "cache_salt" in e.value.details()


@pytest.fixture(scope="module")
def mock_cluster():
    c = clients.mock()
    yield c
    c.close()
