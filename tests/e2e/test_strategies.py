"""Sparse algorithms for models with KV heads on a cluster: a decode worker dies in mid-stream, and every stream has the tokens
that one process gives with the same algorithm."""

import csv
import json
import os
import random
import re
import signal
import subprocess
import time

import pytest

import real
from streams import QUICK, Streams
from test_families import checkpoint

GOLDEN = real.ROOT / "tests" / "golden" / "model" / "llama-bf16"
PROMPT, NEW, STREAMS = 300, 240, 3

# Settings under sparse_attention and the same as flags. Prompts are several times as long as what a query reads.
STRATEGIES = {
    "quest": {"token_budget": 96},
    "double_sparsity": {"token_budget": 64, "heavy_channels": 16},
    "skip_softmax": {"threshold_scale_factor": 120},
    "xattention": {"list_mass": 0.3},
    "snapkv": {"prompt_budget": 96, "window_size": 16, "output_tokens": 64},
    "rocket_kv": {"prompt_budget": 96, "window_size": 16, "kernel_size": 7, "topk": 12},
    "cluster_kv": {"token_budget": 64, "cluster_tokens": 8, "cluster_window": 48, "window_nlist": 4},
    "pq_cache": {"token_budget": 72, "n_subbits": 4},
}
# What snapkv keeps is in host pages only, while rows that are written directly come from the engine's own memory.
SHIPPING = {"snapkv": "direct", "rocket_kv": "direct"}


def calibrated(model, folder):
    text, out = folder / "text", folder / "channels.json"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    subprocess.run([real.SLUICE, "calibrate", "--algorithm", "double_sparsity", "--model", model, "--text", text, "--output", out,
                    "--threads", "1"], check=True, capture_output=True, timeout=120)
    return out


def reference(model, algorithm, settings, ids):
    flags = [x for key, value in settings.items() for x in ("--" + key.replace("_", "-"), str(value))]
    p = subprocess.run([real.SLUICE, "generate", "--model", model, "--ids", ",".join(map(str, ids)), "--max-new-tokens", str(NEW),
                        "--ignore-eos", "--threads", "1", "--json", "--algorithm", algorithm, *flags],
                       capture_output=True, text=True, timeout=300, check=False)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["ids"]


def stopped_in_the_middle(streams, pid):
    """Stops a decode worker as soon as two streams have tokens, and says whether one that has some makes no progress then. What workers
    tell of their load is older than what they do, so only a stopped one is known to hold a stream."""
    while streams.running() and sorted(streams.progress)[-2] < 1:
        time.sleep(0.001)
    os.kill(pid, signal.SIGSTOP)
    if no_progress(streams):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def no_progress(streams, seconds=1):
    """Whether no stream gets a token for that long although one that has begun has not ended. Less than cluster.dead_after_ms."""
    while streams.running():
        before = list(streams.progress)
        time.sleep(seconds)
        if before == streams.progress:
            return any(0 < tokens < NEW for tokens in before)
    return False


def test_lists_longer_than_a_hot_buffer(start, tmp_path):
    """An algorithm that reads everything, and a context of more rows than a hot buffer has: they stay on the device."""
    model, settings = checkpoint(tmp_path / "long", GOLDEN), STRATEGIES["skip_softmax"]
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 131072}))
    ids = [8 + i * 7 % 90 for i in range(PROMPT)]
    c = start(roles=("router", "prefill", "decode"), **QUICK,
              **{"model.path": model, "sparse_attention.algorithm": "skip_softmax", "sparse_attention.mode": "hierarchical",
                 "decode.max_batch": 1, "prefill.max_requests": 1, "kvstore.bytes": "224MiB", "decode.device_bytes": "512MiB"},
              **{f"sparse_attention.{key}": value for key, value in settings.items()})
    c.logged("comp=decode ev=resident algorithm=skip_softmax")
    context = int(c.logged("comp=decode ev=plan").split("max_context=")[1].split()[0])
    assert context > 65534, f"a hot buffer holds {context} tokens: the test shows nothing"
    Streams(c, [(ids, NEW, {})], want=[reference(model, "skip_softmax", settings, ids)]).check()


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_decode_killed_in_mid_stream(start, tmp_path, algorithm):
    model, settings = checkpoint(tmp_path / "tiny-llama", GOLDEN), dict(STRATEGIES[algorithm])
    if algorithm == "double_sparsity":
        settings["channel_config_path"] = calibrated(model, tmp_path)
    make = random.Random(algorithm)
    prompts = [[make.randrange(8, 100) for _ in range(PROMPT + 17 * i)] for i in range(STREAMS)]
    want = [reference(model, algorithm, settings, ids) for ids in prompts]
    assert want[0] != reference(model, "dense", {}, prompts[0]), "the algorithm leaves out nothing: the test shows nothing"

    c = start(**QUICK, **{"model.path": model, "model.max_context": 1024, "sparse_attention.algorithm": algorithm,
                          **({"cluster.shipping": SHIPPING[algorithm]} if algorithm in SHIPPING else {})},
              **{f"sparse_attention.{key}": value for key, value in settings.items()})
    pids = [w["pid"] for w in c.workers("decode")]
    for attempt in range(8):  # the streams of this worker may have ended, or it may have none
        streams = Streams(c, [(ids, NEW, {}) for ids in prompts], want=want)
        held = stopped_in_the_middle(streams, pids[attempt % len(pids)])
        if held:
            os.kill(pids[attempt % len(pids)], signal.SIGKILL)
        streams.check()
        if held:
            break
    assert held, "each time all streams ended before the kill"
    assert real.metric(c.get("/metrics").text, "sluice_stream_resumes_total") >= 1, "no stream was interrupted"
    c.idle()


@pytest.mark.parametrize("command", [["tests/bench/strategies", "table", "docs/bench/h200-strategies.csv"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/cpu-strategies-512.csv", "--budgets", "64,128"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/cpu-strategies-mass.csv", "--bytes"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/cpu-strategies-budgets.csv", "--bytes"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/cpu-strategies-4096.csv", "--bytes"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/cpu-xattention.csv"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/cpu-xattention-2048.csv"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/h200-xattention-4104.csv"],
                                     ["tests/bench/eval_model", "tables", "docs/bench/h200-xattention-7944.csv"]], ids=lambda c: c[2])
def test_the_curves_of_the_page(command):
    """docs/strategies.md has the figures that were measured."""
    p = subprocess.run([*command, "--check", "docs/strategies.md"], cwd=real.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0, p.stdout + p.stderr


def test_the_memory_of_the_page():
    """The command that the page gives prints the page's row of memory at the start."""
    page = " ".join((real.ROOT / "docs" / "strategies.md").read_text(encoding="utf-8").split())
    command = re.search(r"`sluice (plan --preset llama3_8b [^`]*--algorithm) NAME`", page)[1].split()
    names = re.search(r"\| MiB \| (quest [^\n]*?) \| \|---", page)[1].split(" | ")
    figures = re.search(r"at the start, for all requests \| (.*?) \| \|", page)[1].split(" | ")
    assert len(names) == len(figures) == 5
    for name, figure in zip(names, figures):
        p = subprocess.run([real.SLUICE, *command, name], capture_output=True, text=True, timeout=60, check=True)
        assert f"{float(re.search(name + r' takes ([0-9.]+) MiB', p.stdout)[1]):,.0f}" == figure, (name, p.stdout)


NAMES = "streaming_llm,pq_cache,cluster_kv,snapkv:kernel_size=7:pooling=maxpool,quest,double_sparsity,rocket_kv,exact_topk,random"


def test_the_picture_and_the_times_of_the_page():
    """The picture by tokens and by bytes is that of the rows, and so are the times to the first token of xattention."""
    subprocess.run(["tests/bench/eval_model", "draw", "docs/bench/cpu-strategies-512.csv", "docs/bench/strategies-bytes.svg", "--names", NAMES, "--check"],
                   cwd=real.ROOT, check=True, timeout=60)
    page = (real.ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert "![accuracy over tokens and over bytes](bench/strategies-bytes.svg)" in page and NAMES in page
    lines = (real.ROOT / "docs" / "bench" / "h200-xattention-ttft.csv").read_text(encoding="utf-8").splitlines()
    rows = [r for r in csv.DictReader(l for l in lines if not l.startswith("#")) if r["tokens"] == "65536"]
    assert len(rows) == 7
    for r in rows:
        name = r["algorithm"].replace("xattention:list_mass=", "`list_mass` ").replace("dense", "`dense`")
        want = f"| {name} | {100 * float(r['tiles_read']):.0f} | {float(r['ttft_ms']):,.0f} | "
        of = float(r["of_dense"])
        assert want + f"{of:.2f}" in page or (of == 1 and want + "1 |" in page), want
