"""Traces: what a collector gets of requests over HTTP and gRPC, by the official protocol code; that they fit the client's trace; that a
death is in them; that no collector, or a bad one, holds anybody up; and `sluice trace`."""

import json
import os
import random
import re
import signal
import subprocess

import pytest
import requests

import real
from collector import Collector
from streams import QUICK, Streams, jobs

# Which span hangs below which, and who does the work.
PARENTS = {"read": "request", "queue": "request", "reserve": "request", "prefill": "request", "decode": "request", "load": "reserve",
           "prompt queue": "prefill", "compute": "prefill", "shipment": "prefill", "check": "prefill", "join": "decode", "steps": "decode"}
BY = {"prompt queue": "sluice-prefill", "compute": "sluice-prefill", "shipment": "sluice-prefill", "load": "sluice-decode",
      "check": "sluice-decode", "join": "sluice-decode", "steps": "sluice-decode"}
SLACK = 20_000_000  # ns: an end that a worker reports is dated when its message arrives


@pytest.fixture(scope="module")
def collector():
    c = Collector()
    yield c
    c.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory, clean, collector):
    c = real.Cluster(tmp_path_factory.mktemp("traces"), **QUICK, **{"router.traces": collector.url})
    try:
        yield c
    finally:
        assert c.close()


def ids():
    return f"{random.getrandbits(128) | 1:032x}", f"{random.getrandbits(64) | 1:016x}"


def check_tree(spans):
    """Every span has its place, and lies within the call."""
    by_id = {s.id: s for s in spans}
    assert len(by_id) == len(spans), "an identity twice"
    root, = (s for s in spans if s.name == "request")
    for s in spans:
        if s is root:
            continue
        parent = by_id.get(s.parent)
        assert parent and parent.name == PARENTS[s.name], (s, parent)
        assert s.service == BY.get(s.name, "sluice-router"), (s, s.service)
        assert root.begin - SLACK <= s.begin and s.end <= root.end + SLACK, (s, s.begin - root.begin, root.end - s.end)
    return root


def arrived(collector, trace, names):
    real.until(f"{names} of {trace}", lambda: names <= {s.name for s in collector.of(trace)})
    return collector.of(trace)


WHOLE = {"request", "read", "queue", "reserve", "prefill", "decode", "prompt queue", "compute", "shipment", "check", "join", "steps"}


def test_a_request_over_http(traced, collector):
    trace, parent = ids()
    a = requests.post(traced.http + "/v1/completions", timeout=60, json={"model": "tiny-v32", "prompt": "x" * 200, "max_tokens": 20, "ignore_eos": True},
                      headers={"traceparent": f"00-{trace}-{parent}-01", "tracestate": "vendor=a:b,other=1", "X-Request-Id": "my-own-id"})
    assert a.status_code == 200, a.text
    spans = arrived(collector, trace, WHOLE)
    root = check_tree(spans)
    assert {s.name for s in spans} - {"load"} == WHOLE and len(spans) in (len(WHOLE), len(WHOLE) + 1), spans
    assert root.parent == parent and root.service == "sluice-router" and root.kind == 2
    assert {s.state for s in spans} == {"vendor=a:b,other=1"}
    assert not any(s.failed for s in spans)
    usage, known = a.json()["usage"], root.attributes
    assert (known["gen_ai.usage.input_tokens"], known["gen_ai.usage.output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert known["gen_ai.request.id"] == "my-own-id" and known["gen_ai.request.model"] == "tiny-v32" and known["sluice.outcome"] == "finished"
    assert 0 < known["gen_ai.latency.time_to_first_token"] <= known["gen_ai.latency.e2e"] <= (root.end - root.begin) / 1e9 + 1e-6
    one = {s.name: s for s in spans}
    assert one["compute"].attributes["sluice.tokens"] + one["compute"].attributes["sluice.cached_tokens"] == usage["prompt_tokens"]
    assert one["shipment"].attributes["sluice.bytes"] > 0 and one["decode"].attributes["sluice.tokens"] == 20
    assert one["steps"].attributes["sluice.misses"] + one["steps"].attributes["sluice.hits"] > 0
    assert re.fullmatch("prefill/0", one["compute"].worker) and re.fullmatch(r"decode/[01]", one["steps"].worker)
    # each stage of the router begins where the one before it has ended
    for before, after in (("queue", "reserve"), ("reserve", "prefill"), ("prefill", "decode")):
        assert one[before].end == one[after].begin, (before, after)


def test_a_request_over_grpc_with_several_answers(traced, collector):
    trace, parent = ids()
    with traced.channel() as channel:
        asked = traced.request(real.prompt("traced", 150), 12)
        asked.sampling_params.n = 2
        for _ in traced.stub(channel).Generate(asked, timeout=60, metadata=[("traceparent", f"00-{trace}-{parent}-01")]):
            pass
    spans = arrived(collector, trace, WHOLE)
    root = check_tree(spans)
    assert root.parent == parent and root.attributes["sluice.choices"] == 2
    for name in ("queue", "reserve", "prefill", "decode"):
        assert sorted(s.attributes["sluice.choice"] for s in spans if s.name == name) == [0, 1], name


def trace_command(c, *args):
    return subprocess.run([str(real.SLUICE), "trace", *args, "--router", c.http], capture_output=True, text=True, timeout=60, check=False)


def test_the_client_decides_and_the_command_shows_all(traced, collector, tmp_path):
    trace, parent = ids()
    a = requests.post(traced.http + "/v1/chat/completions", timeout=60, headers={"traceparent": f"00-{trace}-{parent}-00"},
                      json={"model": "tiny-v32", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True})
    own = a.json()["id"]
    asked = traced.post({"prompt": "y" * 100, "max_tokens": 4, "ignore_eos": True}).json()["id"]
    real.until("the one that is sampled", lambda: [s for s in collector.spans if s.attributes.get("gen_ai.request.id") == asked])
    assert not collector.of(trace), "the client did not want this one"
    out = tmp_path / "trace.json"
    done = trace_command(traced, own, "--output", str(out))
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    events = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert WHOLE <= {e["name"] for e in events}
    call, = (e for e in events if e["name"] == "request")
    assert call["args"]["trace_id"] == trace and call["args"]["request_id"] == own and call["ts"] == 0
    assert all(0 <= e["ts"] and e["ts"] + e["dur"] <= call["dur"] + SLACK / 1e3 for e in events)
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    assert set(names) == {e["pid"] for e in events} and names[0] == "router"
    # by the trace, and by the rid of the log, it is the same
    rid = re.search(rf"ev=request_done .*rid=([0-9a-f]+).* id={re.escape(own)}", traced.text()) or \
        re.search(rf"rid=([0-9a-f]{{16}})[^\n]* id={re.escape(own)}", traced.text())
    assert trace_command(traced, trace).stdout == trace_command(traced, rid[1]).stdout == out.read_text()
    for wrong in ("cmpl-unknown", "../metrics", "", "a" * 200):
        done = trace_command(traced, wrong)
        assert done.returncode and done.stderr.startswith("sluice trace: "), (wrong, done)


def test_malformed_contexts_are_ignored(traced, collector):
    trace, parent = ids()
    good = f"00-{trace}-{parent}-01"
    for bad in (good[:-1], good + "-x", good.upper().replace("X", "x"), "ff" + good[2:], good.replace(trace, "0" * 32), good.replace(parent, "0" * 16),
                "00_" + good[3:], "\u00e9" * 55, "", "x" * 4000):
        if bad == good:
            continue
        a = requests.post(traced.http + "/v1/completions", timeout=60, headers={"traceparent": bad.encode("latin-1"), "tracestate": "a=b"},
                          json={"model": "tiny-v32", "prompt": "z", "max_tokens": 1})
        assert a.status_code == 200, (bad, a.text)
        root, = real.until("its trace", lambda: [s for s in collector.spans if s.attributes.get("gen_ai.request.id") == a.json()["id"]])
        assert not root.parent and not root.state and root.trace not in (trace, "0" * 32), bad


def test_two_lines_of_log_for_each_request(traced):
    a = traced.post({"prompt": "two lines", "max_tokens": 16, "ignore_eos": True})
    rid = re.search(rf"rid=([0-9a-f]{{16}})[^\n]* id={re.escape(a.json()['id'])}", real.until(
        "the last line", lambda: traced.text() if re.search(rf"ev=request_done[^\n]* id={re.escape(a.json()['id'])}", traced.text()) else None))[1]
    lines = [line for line in traced.text().splitlines() if rid in line or a.json()["id"] in line]
    assert [re.search(r"ev=(\w+)", line)[1] for line in lines] == ["request_accepted", "request_done"], lines


def test_a_death_is_in_the_trace(start, collector):
    c = start(**QUICK, **{"router.traces": collector.url})
    before = len(collector.spans)
    streams = Streams(c, jobs("dead", 6, prompt=100, out=500))
    streams.until_streaming(tokens=20, requests_=6)
    victim = max(c.workers("decode"), key=lambda w: w["running"])
    os.kill(victim["pid"], signal.SIGKILL)
    streams.check()
    real.until("all traces", lambda: sum(s.name == "request" for s in collector.spans[before:]) >= 6)
    new = collector.spans[before:]
    hit = {s.trace for s in new if s.failed}
    assert hit, "no stream was on it: the test shows nothing"
    for trace in hit:
        spans = collector.of(trace)
        root = check_tree(spans)
        assert not root.failed and root.attributes["sluice.retries"] >= 1
        lost, = (s for s in spans if s.name == "decode" and s.failed)
        assert lost.message == "decode worker lost" and lost.attributes["sluice.attempt"] == 1
        again, = (s for s in spans if s.name == "decode" and not s.failed)
        assert again.attributes["sluice.attempt"] == 2 and again.begin >= lost.end
        assert {s.worker for s in spans if s.name == "steps"} == {"decode/0", "decode/1"}


def counts(c):
    text = c.get("/metrics").text
    return {r: real.metric(text, "sluice_trace_spans_total", f'result="{r}"') for r in ("exported", "dropped", "failed")}


@pytest.mark.parametrize("how", ["absent", "silent", "wrong"])
def test_a_bad_collector_holds_nobody_up(start, how):
    port = real.free_ports(1)
    bad = None if how == "absent" else Collector(port, {"silent": None, "wrong": 400}[how])
    c = start(roles=("router", "prefill", "decode"), **QUICK, **{"router.traces": f"http://127.0.0.1:{port}"})
    try:
        for i in range(3):
            ids_ = real.prompt(f"bad{i}", 60)
            assert c.tokens(ids_, 10) == real.reference(ids_, 10)
        c.logged("ev=traces_refused", seconds=20)
        assert c.get("/health").status_code == 200 and counts(c)["exported"] == 0
        if how == "wrong":  # sending the same again would not help
            real.until("given up", lambda: counts(c)["failed"] > 0)
        if bad:
            bad.close()
        bad = Collector(port)
        a = c.post({"prompt": "now", "max_tokens": 2}).json()["id"]
        real.until("the traces that still wait, or this one",
                   lambda: any(s.attributes.get("gen_ai.request.id") == a for s in bad.spans), seconds=40)
        real.until("counted", lambda: counts(c)["exported"] == len(bad.spans))
        c.logged("ev=traces_taken")
    finally:
        if bad:
            bad.close()


def test_sampling(start):
    """A hundred requests at 0.3: a part arrives, whole traces only; and what waits when the router ends is sent."""
    some = Collector()
    c = start(roles=("router", "prefill", "decode"), **QUICK, **{"router.traces": some.url + " sample=0.3"})
    for i in range(100):
        c.post({"prompt": [5, 6, 7], "max_tokens": 1})
    assert c.close()
    traces = {s.trace for s in some.spans}
    assert 8 <= len(traces) <= 60, len(traces)  # other numbers come once in 10^7 runs
    for t in traces:
        check_tree(some.of(t))
    some.close()


def test_the_endpoint_is_checked_at_start(tmp_path, clean):
    for url, says in (("https://collector:4318", "TLS"), ("collector:4318", "http://"), ("http://", "host"), ("http://h:0", "port"),
                      ("http://h:1x", "port"), ("http://[::1", "malformed"), ("http://h /x", "sample"), ("http://h sample=2", "sample"), ("http://h sample=nan", "sample")):
        p = subprocess.run([str(real.SLUICE), "router", "--config", str(real.ROOT / "configs/no-mpi.yaml"), "--set", f"router.traces={url}",
                            "--set", f"model.path={real.MODEL}", "--set", "router.http_port=0", "--set", "router.grpc_port=0", "--set", "cluster.router_port=0"],
                           capture_output=True, text=True, timeout=60, check=False)
        assert p.returncode and "router.traces" in p.stdout + p.stderr and says in p.stdout + p.stderr, (url, p.stdout, p.stderr)
