"""Tenants: keys by hash, rates that say when to come back, rights, and a reload of the file that may be wrong."""

import hashlib
import os
import signal

import clients
import grpc
import pytest
import real
import requests

ADMIN, CHAT, SMALL = real.Cluster.key, "key-of-chat", "key-of-small"


def line(name, key, words=""):
    return f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()} {words}\n"


FILE = "# keys\n" + line("ops", ADMIN, "admin") + line("chat", CHAT, "weight=2") + \
    line("small", SMALL, "requests_per_minute=2 tokens_per_minute=500 concurrency=2")


@pytest.fixture
def cluster(start, tmp_path):
    path = tmp_path / "keys"
    path.write_text(FILE)
    c = start(roles=("router", "prefill", "decode"), **{"router.keys_file": path})
    c.keys = path
    return c


def post(c, key, n_prompt=20, **kw):
    body = {"model": c.model, "prompt": real.prompt("tenant", n_prompt), "max_tokens": 4, "ignore_eos": True, **kw}
    return requests.post(c.http + "/v1/completions", json=body, timeout=60, headers={"Authorization": f"Bearer {key}"} if key else {})


def test_rates_and_rights(cluster):
    c = cluster
    assert [post(c, k).status_code for k in (None, "wrong", ADMIN + "x")] == [401] * 3
    assert [post(c, k).status_code for k in (ADMIN, CHAT, SMALL)] == [200] * 3
    assert post(c, SMALL, n=3).status_code == 400      # more than its concurrency: never, so not 429
    assert post(c, SMALL, n_prompt=600).status_code == 400
    assert post(c, SMALL).status_code == 200
    refused = post(c, SMALL)
    assert refused.status_code == 429 and 1 <= int(refused.headers["Retry-After"]) <= 60, refused.text
    assert post(c, CHAT).status_code == 200            # the others do not notice
    with c.channel() as channel:                       # over gRPC it is told the same
        small = (("authorization", f"Bearer {SMALL}"),)
        with pytest.raises(grpc.RpcError) as e:
            list(c.stub(channel).Generate(c.request(real.prompt("tenant", 20), 4), timeout=60, metadata=small))
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 1000 <= int(dict(e.value.trailing_metadata())["grpc-retry-pushback-ms"]) <= 60000
        with pytest.raises(grpc.RpcError) as e:        # what never passes is not to be tried again
            c.stub(channel).Abort(clients.protocol()[0].AbortRequest(request_id="x" * 70000), timeout=60, metadata=small)
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(e.value.trailing_metadata())["grpc-retry-pushback-ms"] == "-1"
        with pytest.raises(grpc.RpcError) as e:        # errors that a retry does not mend say nothing
            admin = (("authorization", f"Bearer {ADMIN}"),)
            list(c.stub(channel).Generate(c.request(real.prompt("tenant", 40000), 4), timeout=60, metadata=admin))
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "grpc-retry-pushback-ms" not in dict(e.value.trailing_metadata())
    bearer = {"Authorization": f"Bearer {CHAT}"}
    assert requests.get(c.http + "/workers", headers=bearer, timeout=30).status_code == 403
    assert c.get("/workers").status_code == 200
    text = c.get("/metrics").text
    assert real.metric(text, "sluice_tenant_calls_total", 'tenant="small",result="refused"') == 4
    assert real.metric(text, "sluice_tenant_tokens_total", 'tenant="small",kind="output"') == 8
    _, _, common = clients.protocol()
    with c.channel() as channel:
        for key, code in ((CHAT, grpc.StatusCode.PERMISSION_DENIED), ("wrong", grpc.StatusCode.UNAUTHENTICATED)):
            with pytest.raises(grpc.RpcError) as e:
                c.stub(channel).FlushCache(common.FlushCacheRequest(), metadata=(("authorization", f"Bearer {key}"),), timeout=20)
            assert e.value.code() == code
            with pytest.raises(grpc.RpcError) as e:  # the events carry tokens of other tenants
                next(c.stub(channel).SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1), timeout=20,
                                                       metadata=(("authorization", f"Bearer {key}"),)))
            assert e.value.code() == code


def test_series_of_tenants_are_for_admins(cluster):
    """On /metrics without a key, with a wrong one, and with that of a tenant: everything else, but nothing of tenants."""
    def seen(key):
        text = requests.get(cluster.http + "/metrics", timeout=30, headers={"Authorization": f"Bearer {key}"} if key else {}).text
        assert "sluice_requests_total" in text
        return "sluice_tenant_" in text
    post(cluster, CHAT)
    assert [seen(key) for key in (None, "wrong", CHAT, ADMIN, None)] == [False, False, False, True, False]


def test_ids_belong_to_a_tenant(cluster):
    """Two tenants with the same id: both are served, neither learns of the other's, and each aborts its own only."""
    c = cluster
    pb, _, _ = clients.protocol()

    def metadata(key):
        return (("authorization", f"Bearer {key}"),)

    def abort(stub, key, name):
        return stub.Abort(pb.AbortRequest(request_id=name), timeout=60, metadata=metadata(key)).success

    def rest(stream):
        """How many messages an aborted stream still had."""
        n = 0
        try:
            for _ in stream:
                n += 1
        except grpc.RpcError:
            pass
        return n
    with c.channel() as channel:
        stub = c.stub(channel)
        requests_ = [c.request(real.prompt("ids", 30), 4000) for _ in range(3)]
        for q in requests_:
            q.request_id, q.stream = "same", True
        mine = stub.Generate(requests_[0], timeout=120, metadata=metadata(CHAT))
        next(mine)
        other = stub.Generate(requests_[1], timeout=120, metadata=metadata(ADMIN))
        next(other)
        with pytest.raises(grpc.RpcError) as e:  # one's own is in use
            next(stub.Generate(requests_[2], timeout=120, metadata=metadata(CHAT)))
        assert e.value.code() == grpc.StatusCode.ALREADY_EXISTS
        assert abort(stub, ADMIN, "same")        # its own first
        assert rest(other) < 3000
        next(mine)                               # that of the other tenant continues
        assert abort(stub, CHAT, "same")
        assert rest(mine) < 3000
        assert not abort(stub, CHAT, "same")


def test_reload(cluster):
    c = cluster

    def reload(text, event):
        seen = c.text().count(event)
        c.keys.write_text(text)
        os.kill(c.router_pid(), signal.SIGHUP)
        real.until(event, lambda: c.text().count(event) > seen)

    reload(FILE + "broken line\n", "ev=keys_kept")
    assert post(c, CHAT).status_code == 200
    reload(line("ops", ADMIN, "admin"), "ev=keys_loaded")
    assert post(c, CHAT).status_code == 401
    reload(FILE, "ev=keys_loaded")
    assert post(c, CHAT).status_code == 200
