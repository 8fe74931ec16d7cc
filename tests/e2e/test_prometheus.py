"""A real Prometheus scrapes a real cluster: every documented metric is there with its type, what must count has counted, and every query
of the dashboard gives data."""

import hashlib
import json
import math
import re
import subprocess
import time

import pytest
import requests
import yaml

import real

ROLES = ("router", "prefill", "decode", "decode")


def documented():
    """(name, type, roles, labels) of every row of docs/metrics.md."""
    rows = []
    for line in (real.ROOT / "docs" / "metrics.md").read_text().splitlines():
        m = re.match(r"\| `([\w:]+)` \| (\w+) \| ([\w, ]+) \| (.*?) \|", line)
        if m:
            rows.append((m[1], m[2], m[3].split(", "), re.findall(r"`(\w+)`", m[4])))
    assert len(rows) > 40, "docs/metrics.md cannot be read"
    return rows


class Prometheus:
    def __init__(self, directory, targets, interval="1s", key=None):
        self.port = real.free_ports(1)
        config = directory / "prometheus.yml"
        # the shipped file with this cluster's addresses
        shipped = yaml.safe_load((real.ROOT / "deploy" / "prometheus.yml").read_text())
        assert [j["job_name"] for j in shipped["scrape_configs"]] == ["sluice-router", "sluice-workers"]
        shipped["global"]["scrape_interval"] = interval
        shipped["rule_files"] = [str(real.ROOT / "deploy" / name) for name in shipped["rule_files"]]
        for job, addresses in zip(shipped["scrape_configs"], targets):
            job["static_configs"] = [{"targets": addresses}]
        if key:  # of an admin: the router shows the series of tenants to no other caller
            shipped["scrape_configs"][0]["authorization"] = {"type": "Bearer", "credentials": key}
        config.write_text(yaml.safe_dump(shipped))
        self.log = directory / "prometheus.log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}",
                                             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=out, stderr=out,
                                            stdin=subprocess.DEVNULL, env=real.environment(), start_new_session=True)

    def get(self, path, **params):
        r = requests.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=params, timeout=60)
        assert r.status_code == 200, f"{path} {params}: {r.text}"
        return r.json()["data"]

    def query(self, text):
        """Its value at the end of the traffic: a slow machine asks late, and rates of silence say nothing."""
        return self.get("query", query=text, time=self.at)["result"]

    def value(self, text):
        result = self.query(text)
        assert len(result) == 1, f"{text}: {result}"
        return float(result[0]["value"][1])

    def scrapes(self, since):
        """The fewest scrapes that any target has had since then."""
        counts = self.get("query", query=f"count_over_time(up[{max(1, math.ceil(time.time() - since))}s])")["result"]
        return min(int(c["value"][1]) for c in counts) if len(counts) == len(ROLES) else 0

    def up(self):
        try:
            return [t for t in self.get("targets")["activeTargets"] if t["health"] == "up"]
        except (requests.RequestException, AssertionError):
            return []

    def close(self):
        self.process.terminate()
        return real.end(self.process, 10)


class Keyed(real.Cluster):
    """With a tenant, so that the metrics of tenants have series."""

    key = "a-key"


@pytest.fixture(scope="module")
def scraped(tmp_path_factory, clean):
    """(prometheus, cluster) after traffic that touches every stage, twice scraped."""
    if not real.have("prometheus"):
        pytest.skip("prometheus is not installed")
    directory = tmp_path_factory.mktemp("prometheus")
    (directory / "keys").write_text(f"tests sha256={hashlib.sha256(Keyed.key.encode()).hexdigest()} admin\n")
    c = Keyed(directory, roles=ROLES,
              **{"router.keys_file": directory / "keys", "sparse_attention.hot_rows": real.TOPK,
                 "sparse_attention.tail_rows": 1, "router.policy": "cache_aware", "kvstore.bytes": "4MiB",
                 "kvstore.quotas": "tests share=0.1 limit=0.6"})
    p = None
    try:
        workers = [f"127.0.0.1:{c.metrics_port + rank}" for rank in range(1, len(ROLES))]
        p = Prometheus(directory, [[c.http.split("//")[1]], workers], key=c.key)
        real.until(f"{len(ROLES)} targets up", lambda: len(p.up()) == len(ROLES), 30, 0.2)
        begun, turn = time.time(), 0
        while p.scrapes(begun) < 6 or turn < 3:  # rates need several scrapes with traffic between
            ids = real.prompt(f"prom{turn % 5}", 200 + turn % 5 * 64)
            real.in_parallel([lambda i=i: c.streamed(ids + [20 + i], 120) for i in range(6)])
            again = real.prompt(f"again{turn}", 150)
            again += c.tokens(again, 60)
            c.tokens(again + [5], 5)  # the next turn: its pages are pulled from the decode worker
            c.post({"prompt": "over HTTP", "max_tokens": 20, "temperature": 0})
            turn += 1
        with pytest.raises(Exception):
            c.tokens(ids, 1800, timeout=0.05)
        c.post({"prompt": "x", "max_tokens": 0})
        c.idle()
        quiet = time.time()
        real.until("the last numbers to be scraped", lambda: p.scrapes(quiet) >= 2, 30, 0.1)
        p.at = time.time()
        yield p, c
    finally:
        stopped = p.close() if p else True
        assert c.close() and stopped


def test_every_documented_metric_is_scraped(scraped):
    p, c = scraped
    jobs = {"router": [c.http.split("//")[1]], "prefill": [f"127.0.0.1:{c.metrics_port + 1}"],
            "decode": [f"127.0.0.1:{c.metrics_port + r}" for r in (2, 3)], "ranks of groups": []}
    types = {}
    for m in p.get("targets/metadata"):
        types.setdefault((m["metric"], m["target"]["instance"]), m["type"])
    wrong = []
    for name, kind, roles, labels in documented():
        for role in roles:
            for instance in jobs[role]:
                if types.get((name, instance)) != kind:
                    wrong.append(f"{name} of {role} {instance}: type {types.get((name, instance))}, want {kind}")
                    continue
                series = p.get("series", **{"match[]": f'{{__name__="{name + ("_bucket" if kind == "histogram" else "")}",'
                                                       f'instance="{instance}"}}'})
                given = {frozenset(set(s) - {"__name__", "instance", "job", "le"}) for s in series}
                if series and given != {frozenset(labels)}:
                    wrong.append(f"{name} of {role}: labels {given}, documented {labels}")
                if not series and not (labels and kind == "counter"):
                    wrong.append(f"{name} of {role} {instance}: no series")
        if roles == ["ranks of groups"] and any(metric == name for metric, _ in types):
            wrong.append(f"{name}: this cluster has no group")
    assert not wrong, "\n".join(wrong)


def test_no_alert_holds_in_a_healthy_cluster(scraped):
    """Not even for a moment: `for` only hides a wrong expression."""
    p, _ = scraped
    rules = yaml.safe_load((real.ROOT / "deploy" / "prometheus-rules.yml").read_text())
    alerts = [r for g in rules["groups"] for r in g["rules"] if "alert" in r]
    assert len(alerts) > 10
    assert {a["alert"]: p.query(a["expr"]) for a in alerts} == {a["alert"]: [] for a in alerts}


def test_pages_of_a_tenant(scraped):
    """The pages of the router's tenant are counted for it by name, and are at most its part of the store."""
    p, _ = scraped

    def pages(query):
        return {r["metric"]["instance"]: float(r["value"][1]) for r in p.query(query)}
    tenant = pages('sluice_tenant_cached_pages{tenant="tests",tier="host"}')
    total, cached = pages('sluice_kv_pages{state="total",job!="router"}'), pages('sluice_kv_pages{state="cached"}')
    assert tenant and all(0 < n <= 0.6 * total[i] and n == cached[i] for i, n in tenant.items())


def test_nothing_undocumented_is_exported(scraped):
    p, _ = scraped
    known = set()
    for name, kind, _, _ in documented():
        known |= {name} if kind != "histogram" else {name + s for s in ("_bucket", "_sum", "_count")}
    ours = {n for n in p.get("label/__name__/values") if n.startswith(("sluice_", "vllm:"))}
    assert ours <= known, ours - known


# Non-zero after ordinary traffic. Left out is what only counts when something goes wrong.
COUNTED = ["sluice_requests_total", "sluice_prompt_tokens_total", "sluice_cached_prompt_tokens_total", "sluice_generation_tokens_total",
           "sluice_time_to_first_token_seconds_count", "sluice_inter_token_latency_seconds_count", "sluice_request_duration_seconds_count",
           "sluice_request_queue_seconds_count", "sluice_router_overhead_seconds_count", "sluice_http_responses_total",
           "sluice_grpc_responses_total", "sluice_placements_total", "sluice_worker_joins_total",
           'sluice_workers{state="ready"}', 'sluice_transport_bytes_total{op="put"}', 'sluice_transport_bytes_total{op="message"}',
           'sluice_transport_bytes_total{op="get"}', 'sluice_transport_operations_total{op="put",outcome="ok"}',
           'sluice_transport_operations_total{op="message",outcome="ok"}', 'sluice_transport_operations_total{op="get",outcome="ok"}',
           'sluice_transport_peers{job="sluice-router"}', 'sluice_transport_peers{job="sluice-workers"}', "sluice_prefill_tokens_total",
           'sluice_prefill_reused_tokens_total{source="local"}', "sluice_prefill_chunk_seconds_count",
           'sluice_transfers_total{outcome="ok"}', "sluice_transfer_bytes_total", "sluice_transfer_exposed_seconds_count",
           "sluice_decode_step_seconds_count", "sluice_decode_batch_size_count", "sluice_decode_tokens_sent_seconds_count",
           'sluice_router_tokens_written_seconds_count{from="arrival"}', 'sluice_router_tokens_written_seconds_count{from="step"}', "sluice_decode_tokens_total",
           'sluice_tickets_total{outcome="committed"}', 'sluice_device_kv_bytes{state="total"}', 'sluice_swap_rows_total{result="hit"}',
           'sluice_swap_rows_total{result="miss"}', "sluice_swap_evictions_total", "sluice_swap_bytes_total",
           'sluice_kv_pages{state="total"}', 'sluice_kv_pages{state="cached"}', "sluice_kv_arena_bytes",
           "sluice_kv_prefix_queries_tokens_total", "sluice_kv_prefix_hits_tokens_total", "sluice_kv_evictions_total",
           "sluice_build_info", "vllm:cache_config_info", "sluice_request_stage_seconds_count"]


@pytest.mark.parametrize("name", COUNTED)
def test_it_counts(scraped, name):
    p, _ = scraped
    assert p.value(f"sum({name})") > 0


@pytest.mark.parametrize("stage", ["tokenize", "reserve", "prefill", "transfer", "decode"])
def test_every_stage_is_timed(scraped, stage):
    p, _ = scraped
    assert p.value(f'sluice_request_stage_seconds_count{{stage="{stage}"}}') > 0


def test_sums_agree(scraped):
    """What two processes count of the same thing is the same."""
    p, _ = scraped
    assert p.value("sum(sluice_prefill_tokens_total) + sum(sluice_prefill_reused_tokens_total)") >= p.value("sluice_prompt_tokens_total")
    assert p.value("sluice_generation_tokens_total") > 500
    for page_sum in p.query("sum by (instance) (sluice_kv_pages{state!='total'}) - sum by (instance) (sluice_kv_pages{state='total'})"):
        assert float(page_sum["value"][1]) == 0, f"the states of pages do not add up: {page_sum}"
    assert p.value("sum(sluice_workers{state='ready'})") == 3
    assert p.value("sum(vllm:num_requests_running)") == 0


def dashboard():
    d = json.loads((real.ROOT / "deploy" / "grafana" / "sluice.json").read_text())
    return [(panel["title"], t["expr"].replace("$instance", ".*")) for panel in d["panels"] if panel["type"] != "row" for t in panel["targets"]]


def test_dashboard_is_by_question():
    """Rows are questions, panels do not overlap, and every query follows the variables."""
    d = json.loads((real.ROOT / "deploy" / "grafana" / "sluice.json").read_text())
    rows = [p["title"] for p in d["panels"] if p["type"] == "row"]
    assert d["panels"][0]["type"] == "row" and [r for r in rows if r.endswith("?")] == [
        "Is it fast?", "Is it full?", "Is the host's memory of use?", "Is something broken?"]
    assert {v["name"] for v in d["templating"]["list"]} == {"datasource", "instance"}
    cells = [(x, y) for p in d["panels"] for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
             for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
    assert len(cells) == len(set(cells)) and len({p["id"] for p in d["panels"]}) == len(d["panels"])
    for panel in d["panels"]:
        for t in panel.get("targets", []):
            metrics = re.findall(r"(?:sluice_|vllm:)\w+(\{[^}]*\})?", t["expr"])
            assert all('instance=~"$instance"' in labels for labels in metrics), f"{panel['title']}: {t['expr']}"


@pytest.mark.parametrize("title,query", dashboard(), ids=[f"{t}-{i}" for i, (t, _) in enumerate(dashboard())])
def test_dashboard_query(scraped, title, query):
    p, _ = scraped
    result = p.query(query)
    assert result, f"{title}: {query} gives nothing"
    values = [float(r["value"][1]) for r in result]
    assert any(v == v for v in values), f"{title}: {query} gives only NaN"


def test_dashboard_uses_only_documented_names():
    known = {name for name, _, _, _ in documented()}
    for title, query in dashboard():
        for name in re.findall(r"(?:sluice_|vllm:)\w+", query):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known or name in known, f"{title}: {name}"


def test_dashboard_shows_the_caches():
    """What tells an on-call engineer whether a cache beyond host memory works: every metric about one is on the dashboard."""
    text = " ".join(query for _, query in dashboard())
    about = re.compile(r"sluice_(tier|directory|pull|lend|prefetch|router_prefetches|router_copies|eviction|tenant_cached|tenant_evicted|store"
                       r"|kv_event|kv_evictions)_")
    names = [name for name, _, _, _ in documented() if about.match(name + "_")]
    assert len(names) > 40
    for name in names:
        assert re.search(rf"\b{name}(_bucket|_sum|_count)?\b", text), f"deploy/grafana/sluice.json does not show {name}"


def test_shipped_configuration_is_valid():
    if not real.have("promtool"):
        pytest.skip("promtool is not installed")
    subprocess.run(["promtool", "check", "config", real.ROOT / "deploy" / "prometheus.yml"], check=True, capture_output=True, timeout=120)
