#!/usr/bin/env python3
"""DeepSeek-V3.2 on one node, a GPU for each rank: what tests/gpu/run --only node does apart from the benchmarks.

    node.py serve   --sluice PROGRAM --ranks N [--backend cuda|cpu] [--gpu-bytes BYTES] [--out DIR]
    node.py split   the same, N a multiple of 2
    node.py predict CSV... [--out DIR]

The weights are random and made by the workers (model.load_format dummy), with the dimensions of V3.2: all 61 layers, and
all 256 experts where they fit; else as many experts as fit by `sluice plan`, and if even 8 for each rank are too many, fewer
layers. With --backend cpu they are those of a tiny model, to try the script itself.

serve: one group of N ranks of role both. It answers requests over HTTP with the whole KV cache on the GPUs; then again as a
new cluster with hierarchical caches, whose streams must be the same token by token, log-probabilities included: undisturbed,
and while one rank is killed (SIGKILL) and replaced. split: a prefill group and a decode group of N/2 ranks each, resident and
then hierarchical, again with the same streams. predict: what `sluice bench comm` measured, with the times of the model of
docs/groups.md for the same bytes, and with NCCL. Prints one line per check and writes CSV; exit code 0 only if all passed;
`predict` judges nothing. Needs Python's standard library and mpirun.
"""
import argparse
import concurrent.futures
import csv
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


def load(name, path):
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


cluster, made_up = load("cluster", HERE / "cluster"), load("made_up", HERE / "made_up.py")
TINY = cluster.ROOT / "models/tiny-v32"
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
LAYERS, DENSE, EXPERTS, GROUPS = 61, 3, 256, 8  # of V3.2; experts are in groups
DEVICE_GIB = 8  # for the cache of a rank, here
SPARE_GIB = 4  # what the plan must leave besides: memory of the group, CUDA, NCCL
# docs/groups.md, "A model for 4, 8 and 16 ranks": fitted to two H200s
LATENCY_US, BYTES_PER_US = 5.16, 357.6e3


def config(a, layers, experts):
    """config.json of V3.2, or of the tiny model."""
    if a.backend == "cpu":
        return {**json.loads((TINY / "config.json").read_text()), "quantization_config": FP8, "kv_lora_rank": 128, "vocab_size": 5000}  # more than the tokenizer has, as below
    return {**made_up.config(layers), "quantization_config": FP8, "vocab_size": 129280, "first_k_dense_replace": DENSE,
            "mlp_layer_types": ["dense"] * DENSE + ["sparse"] * (layers - DENSE), "n_routed_experts": experts,
            "num_experts_per_tok": 8, "n_group": GROUPS, "topk_group": 4}


def write_model(a, to, layers, experts):
    to.mkdir(exist_ok=True)
    (to / "config.json").write_text(json.dumps(config(a, layers, experts)))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, to / name)
    return str(to)


def fits(a, to, ranks, layers, experts):
    command = [a.sluice, "plan", "--model", write_model(a, to, layers, experts), "--ranks", str(ranks), "--ranks-per-host", str(ranks),
               "--host-bytes", "1024G", "--indexer", "official", "--row-format", "mla_fp8", "--json"]
    r = subprocess.run(command + (["--gpu-bytes", a.gpu_bytes] if a.gpu_bytes else []), capture_output=True, text=True, timeout=60,
                       check=False)
    if r.returncode:
        raise AssertionError("sluice plan ended with %d: %s" % (r.returncode, r.stderr.strip()[-300:]))
    return json.loads(r.stdout)["cache_bytes"] >= (DEVICE_GIB + SPARE_GIB) << 30


def choose(a, to, ranks):
    """As many experts as fit with all layers, in whole multiples of the groups; else as many layers with 8 experts a rank."""
    if a.backend == "cpu":
        return write_model(a, to, 0, 0), "the tiny model on the CPU: this shows the script alone"
    few = GROUPS * ranks
    sizes = [(LAYERS, e) for e in range(EXPERTS, few - 1, -GROUPS)] + [(n, few) for n in range(LAYERS - 1, DENSE, -1)]
    for layers, experts in sizes:
        if fits(a, to, ranks, layers, experts):
            return write_model(a, to, layers, experts), "%d of %d layers, %d of %d experts, %d ranks" % (
                layers, LAYERS, experts, EXPERTS, ranks)
    raise AssertionError("not even %d layers fit" % (DENSE + 1))


def settings(a, ranks, role_ranks, mode):
    # hot_rows is the longest list, so that rows really are fetched; tail_rows as small as it may be on the tiny model
    return {"model.load_format": "dummy", "model.max_context": a.max_context, "sparse_attention.mode": mode,
            "sparse_attention.hot_rows": config(a, LAYERS, EXPERTS)["index_topk"], "sparse_attention.tail_rows": 1,
            "model.row_format": "mla_fp8", "model.indexer": "official", "decode.max_batch": 8, "prefill.chunk_tokens": 512,
            "router.retries": 20, "router.stage_timeout_ms": 180000, "cluster.dead_after_ms": 5000,
            "cluster.router_port": cluster.free_port(), "metrics.port": cluster.free_port(1 + ranks * len(role_ranks)),
            "cluster.groups": "[%s]" % ",".join("%s=%d@127.0.0.1:%d" % (r, ranks, cluster.free_port()) for r in role_ranks)}


def start(a, report, directory, ranks, roles, mode):
    sizes = (0, 0, "default", ranks) if roles == ["both"] else (ranks, ranks, "default")
    made = []

    def up():
        t0 = time.monotonic()
        made.append(cluster.Cluster(a, directory, *sizes, **settings(a, ranks, roles, mode)))
        for line in made[0].text().splitlines():
            if "ev=formed" in line:
                print("    " + line[line.index("comp="):][:220] if "comp=" in line else "    " + line[:220])
        return "%d ranks ready after %.1f s" % (made[0].n - 1, time.monotonic() - t0)
    report.run("%s, %s: start" % (" and ".join(roles), mode), up)
    return made[0] if made else None


def timed(c, jobs, streams_of):
    t0 = time.monotonic()
    got = streams_of()
    seconds = time.monotonic() - t0
    first = sorted(g[4] for g in got)
    tokens = sum(len(g[1]) for g in got)
    c.idle()
    return got, "%d streams, %d tokens in %.1f s, %.0f tokens/s, first token after %.0f ms (median)" % (
        len(jobs), tokens, seconds, tokens / seconds, 1e3 * first[len(first) // 2])


def record(c, jobs, seen):
    """The streams that are compared with: of resident caches."""
    def run():
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            return list(pool.map(lambda j: c.stream(j["ids"], j["n"], **j["sampling"]), jobs))
    got, line = timed(c, jobs, run)
    for job, g in zip(jobs, got):
        assert g[3] == "length" and len(g[2]) == job["n"], "%s after %d of %d tokens" % (g[3], len(g[2]), job["n"])
        assert len(set(g[2])) > 3, "the log-probabilities are %s: this shows nothing" % set(g[2])
        job["want"] = g[0]
    assert len({tuple(g[2]) for g in got}) == len(got), "different prompts have the same stream: this shows nothing"
    seen += got
    return line


def compare(c, jobs, seen, role):
    def run():
        s = cluster.Streams(c, jobs)
        s.check(seen)
        return s.got
    line = timed(c, jobs, run)[1]
    fetched = sum(rows_fetched(c, role, k) for k in range(len(c.workers(role))))
    assert fetched > 0, "no row was fetched from host memory: this shows nothing"
    return "%s; %.0f rows fetched" % (line, fetched)


def rows_fetched(c, role, k):
    text = c.get("/metrics", c.settings["metrics.port"] + c.rank_of(role, k))
    return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
               if l.startswith("sluice_swap_rows_total") and 'result="miss"' in l)


def killed(a, c, jobs, seen, logs):
    line = cluster.replace_rank(a, c, jobs, seen, logs / "node-replacement.log", "both")
    resumed = c.metric("sluice_stream_resumes_total")
    assert resumed >= 1, "no stream was hit: this shows nothing"
    return "%s; %d streams resumed" % (line, resumed)


def jobs_of(a):
    return [{"ids": cluster.prompt("node%d" % i, a.prompt + 37 * (i % 5)), "n": a.tokens + 11 * (i % 4),
             "sampling": {"temperature": 0.9, "top_p": 0.95, "seed": i} if i % 3 == 2 else {}} for i in range(a.requests)]


def scenario(a, report, directory, ranks, roles):
    a.model, size = choose(a, pathlib.Path(directory) / "model", ranks)
    print("model: " + size, flush=True)
    report.rows.append(["model", "", "", size])
    jobs, seen, logs = jobs_of(a), [], a.out or directory
    for mode in ("resident", "hierarchical"):
        c = start(a, report, logs, ranks, roles, mode)
        if not c:
            return
        try:
            if mode == "resident":
                ok = report.run("resident: streams", lambda: record(c, jobs, seen))
            else:
                ok = report.run("hierarchical: the streams of resident", lambda: compare(c, jobs, seen, roles[-1]))
                ok = ok and report.run("hierarchical: metrics", lambda: cluster.counted(c))
            cluster.facts(c)
            if mode == "hierarchical" and ok and roles == ["both"]:
                ok = report.run("hierarchical: a rank killed", lambda: killed(a, c, jobs, seen, pathlib.Path(logs)))
            if not ok:
                print(c.tail(60))
                return
        finally:
            c.close()


def predict(files, out):
    """Rows of `sluice bench comm`: the first way is the group's own choice, the second one NCCL alone."""
    rows = []
    for name in files:
        lines = [l for l in pathlib.Path(name).read_text().splitlines() if l and not l.startswith("#")]
        table = list(csv.DictReader(lines))
        ways = list(dict.fromkeys(r["way"] for r in table))
        for r in table:
            if r["way"] != ways[0] or r["what"] not in ("dispatch", "combine", "combine_each"):
                continue
            other = next((float(x["us"]) for x in table if x["way"] in ways[1:] and
                          (x["what"], x["tokens"]) == (r["what"], r["tokens"])), float("nan"))
            measured, predicted = float(r["us"]), LATENCY_US + float(r["bytes_out"]) / BYTES_PER_US
            rows.append([r["what"], r["ranks"], r["tokens"], r["bytes_out"], "%.2f" % measured, "%.2f" % predicted,
                         "%.3f" % (measured / predicted), r["limit_us"], ways[0], "%.2f" % other, ways[1] if len(ways) > 1 else ""])
    head = ["what", "ranks", "tokens", "bytes_out", "measured_us", "predicted_us", "measured_by_predicted", "limit_us", "way", "other_us",
            "other_way"]
    with open(pathlib.Path(out or ".") / "node-comm.csv", "w", newline="") as f:
        csv.writer(f).writerows([head, *rows])
    print("%-13s %5s %6s %12s %10s %8s %10s" % ("what", "ranks", "tokens", "measured us", "predicted", "ratio", "other us"))
    for r in rows:
        print("%-13s %5s %6s %12s %10s %8s %10s" % (*r[:3], r[4], r[5], r[6], r[9]))
    if not rows:
        print("no row of an exchange")
        return 1
    ratios = sorted(float(r[6]) for r in rows)
    print("%d exchanges: measured is %.2f to %.2f of predicted, median %.2f" % (
        len(rows), ratios[0], ratios[-1], ratios[len(ratios) // 2]))
    return 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("part", choices=["serve", "split", "predict"])
    p.add_argument("files", nargs="*", help="of predict")
    p.add_argument("--sluice")
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--backend", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--gpu-bytes", default="", help="memory of one GPU; default: as sluice plan finds it")
    p.add_argument("--prompt", type=int, default=0, help="tokens of a prompt")
    p.add_argument("--tokens", type=int, default=200, help="tokens of an answer")
    p.add_argument("--requests", type=int, default=0)
    p.add_argument("--store", default="", help="kvstore.bytes of a rank")
    p.add_argument("--device-bytes", default="", help="decode.device_bytes")
    p.add_argument("--out", default="")
    a = p.parse_args()
    if a.part == "predict":
        return predict(a.files, a.out)
    if not a.sluice or a.ranks < 2 or (a.part == "split" and a.ranks % 2):
        p.error("serve and split need --sluice and a number of ranks from 2 on, split an even one")
    tiny = a.backend == "cpu"
    a.prompt = a.prompt or (150 if tiny else 3000)  # longer than what a query reads
    a.requests = a.requests or (4 if tiny else 2 * a.ranks)
    a.store, a.device_bytes = a.store or ("64MiB" if tiny else "4GiB"), a.device_bytes or ("256MiB" if tiny else "%dGiB" % DEVICE_GIB)
    a.max_context = 1024 if tiny else 8192
    a.sluice, a.devices = str(pathlib.Path(a.sluice).resolve()), list(range(a.ranks))
    a.own_gpu, a.groups, a.by_rank, a.start_s = False, True, False, 180
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of mpirun are ended
    report = cluster.Report()
    ranks, roles = (a.ranks, ["both"]) if a.part == "serve" else (a.ranks // 2, ["prefill", "decode"])
    with tempfile.TemporaryDirectory() as directory:
        try:
            scenario(a, report, directory, ranks, roles)
        except Exception as e:
            report.run("%s: model" % a.part, lambda e=e: (_ for _ in ()).throw(e))
    if a.out:
        with open(pathlib.Path(a.out) / ("node-%s.csv" % a.part), "w", newline="") as f:
            csv.writer(f).writerows([["check", "result", "seconds", "note"], *report.rows])
    print("node, %s (%s, %d ranks): %d passed, %d failed" % (a.part, a.backend, a.ranks, report.passed, report.failed))
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
