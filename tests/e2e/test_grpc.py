"""grpcio against a cluster: generation, abort and cancel, information, KV events, health and reflection."""

import concurrent.futures
import os
import sys
import threading
import time

import grpc
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import clients  # noqa: E402
from clients import active, cancelled, until_idle  # noqa: E402


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
    """The same tokens. HTTP returns no ids, but a stop token is an id: each request over HTTP stops where gRPC's tokens say."""
    ids = list(list(generate(stub, IDS, 12))[0].complete.output_ids)
    assert len(ids) == 12
    for id in sorted(set(ids)):
        http = client.completions.create(model=cluster.model, prompt=IDS, max_tokens=12, temperature=0,
                                         extra_body={"ignore_eos": True, "stop_token_ids": [id]})
        assert http.usage.completion_tokens == ids.index(id) + 1, (id, ids)
        assert http.choices[0].finish_reason == "stop"


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
    assert model.model_path == model.tokenizer_path == cluster.model  # not where the files are
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


def numbers(batches):
    """Of each rank, in the order of arrival."""
    found = {}
    for b in batches:
        found.setdefault(b.dp_rank, []).append(b.sequence_number)
    return found


def read_until(events, enough):
    got = []
    for batch in events:
        got.append(batch)
        if enough(got):
            return got
    raise AssertionError(f"the stream of events ended after {len(got)} batches")


def test_kv_events_of_two_workers(own):
    """Each worker's numbers have no gap, an old one can be asked for again, and a lost worker is announced."""
    c = own("--decode", 2, "--step-us", 200)
    _, services, common = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        stub = services.SglangSchedulerStub(channel)

        def subscribe(start=0):
            return stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=start), timeout=120)

        live = subscribe(1)
        prompts = [[40 + i] * 130 for i in range(40)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda ids: list(generate(stub, ids, 4)), prompts))
        pages = {tuple(p[:64]) for p in prompts}
        first = read_until(live, lambda got: {tuple(b.token_ids) for g in got for e in g.events for b in e.stored.blocks} >= pages)
        ranks = numbers(first)
        assert len(ranks) == 2
        for rank, seen in ranks.items():
            assert seen == list(range(1, len(seen) + 1)), f"rank {rank}: {seen}"
        for batch in first:
            for e in batch.events:
                blocks = e.stored.blocks
                assert all(len(b.token_ids) == b.block_size == 64 for b in blocks)
        again = read_until(subscribe(3), lambda got: len(got) == sum(len(seen) - 2 for seen in ranks.values()))
        assert numbers(again) == {rank: seen[2:] for rank, seen in ranks.items()}
        loads = stub.GetLoads(clients.protocol()[0].GetLoadsRequest()).loads
        assert {load.dp_rank for load in loads} == set(ranks)
        c.command("kill 1")  # worker 0 is the prefill worker
        last = read_until(live, lambda got: any(e.WhichOneof("data") == "cleared" for e in got[-1].events))[-1]
        assert last.sequence_number == ranks[last.dp_rank][-1] + 1
        live.cancel()


def test_kv_events_that_are_lost_are_announced(own):
    """A subscriber that comes when the router does not keep the first batches any more."""
    c = own("--decode", 1, "--step-us", 0, "--prefill-us", 0)
    _, services, common = clients.protocol()
    with grpc.insecure_channel(c.grpc) as channel:
        stub = services.SglangSchedulerStub(channel)
        pages = 0
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def make(i):
                list(generate(stub, [(i >> 8) % 250 + 1, i % 250 + 1] * 1950, 1))
            while pages < 66000:  # 16 MiB of batches: 58,254 pages of 288 bytes
                list(pool.map(make, range(pages // 60, pages // 60 + 80)))
                pages += 80 * 60
        events = stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1), timeout=120)
        first, second = next(events), next(events)
        assert [e.WhichOneof("data") for e in first.events] == ["cleared"]
        assert first.sequence_number > 1 and second.sequence_number == first.sequence_number + 1
        assert [e.WhichOneof("data") for e in second.events][-1] == "stored"
        events.cancel()


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
