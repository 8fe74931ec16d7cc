#!/usr/bin/env python3
"""Models with grouped-query attention on a GPU.

    gqa.py SLUICE [JOBS [EQUAL]]

By `sluice generate`:

- The golden checkpoints of tests/golden/model: resident mode must give the greedy tokens of transformers.
- For each of these, every strategy that has no calibration file: hierarchical mode with hot rows that just hold a
  selection gives the tokens of resident mode, over 200 tokens, with stale rows filled with NaN.
- models/facts-llama answers questions about texts, resident and hierarchical, in every row format, as it does on the
  CPU; also with channels that `sluice calibrate` makes here.

With EQUAL, the program of tests/gpu/equal.c: logits of hierarchical decode equal to those of resident decode bit by bit,
for every strategy, with the dimensions of Llama 3.1 8B and Qwen3 8B, over 1,000 steps.

Prints one line per failure and a count; exit code 1 if a comparison failed. Needs only Python.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from golden import LONG, ROOT, config_of, generate, safetensors

GPU = ["--backend", os.environ.get("SL_BACKEND", "cuda")] # $SL_BACKEND: cpu, to try this program
FACTS = ROOT / "models/facts-llama"
# Strategy, row format, and what holds its selection. The answers of transformers are float32; these are not compared
# with them.
STRATEGIES = [
    ("dense", "gqa_f32", []),
    ("cluster_kv", "gqa_bf16", ["--token-budget", "64", "--cluster-tokens", "4", "--cluster-window", "16", "--hot-rows", "80"]),
    ("pq_cache", "gqa_fp8", ["--token-budget", "64", "--n-subbits", "4", "--hot-rows", "64"]),
    ("quest", "gqa_bf16", ["--token-budget", "64", "--hot-rows", "64"]),
    ("quest", "gqa_f32", ["--token-budget", "64", "--block-tokens", "8", "--list-scope", "request", "--hot-rows", "64"]),
    ("streaming_llm", "gqa_fp8", ["--sinks", "4", "--recent", "44", "--hot-rows", "48"]),
    ("snapkv", "gqa_bf16", ["--prompt-budget", "48", "--window-size", "8", "--output-tokens", "16", "--hot-rows", "64"]),
    ("rocket_kv", "gqa_fp8", ["--prompt-budget", "64", "--window-size", "8", "--topk", "12", "--hot-rows", "48"]),
    ("skip_softmax", "gqa_bf16", ["--threshold-scale-factor", "20"]),
    ("xattention", "gqa_bf16", ["--list-mass", "0.5"]),
    ("xattention", "gqa_fp8", ["--list-mass", "0.3"]),
]

KINDS = ["quest", "quest shared", "double_sparsity", "snapkv", "rocket_kv", "cluster_kv", "pq_cache", "streaming_llm", "dense",
         "skip_softmax", "xattention"]


def first_difference(got, want):
    if got == want:
        return None
    return "token %d differs" % next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))


def golden(sluice, model, ids, greedy):
    yield "goldens", first_difference(
        generate(sluice, model, ids, len(greedy), GPU + ["--row-format", "gqa_f32", "--act", "f32"]), greedy)


def strategy(sluice, model, ids, algorithm, rows, keys):
    flags = GPU + ["--algorithm", algorithm, "--row-format", rows, "--act", "f32" if rows == "gqa_f32" else "bf16"] + keys
    resident = generate(sluice, model, ids, LONG, flags)
    hier = generate(sluice, model, ids, LONG, flags + ["--mode", "hierarchical", "--tail-rows", "16", "--poison"])
    yield "hierarchical = resident, %s %s" % (algorithm, rows), first_difference(hier, resident)


def blocks_of(config):
    """The selection of a model whose index keys choose blocks, with no more hot rows than it takes."""
    old = config.get("sparse_attention_config", {})
    block = old.get("sparse_block_size", config.get("index_block_size"))
    if not block:
        return []
    hot = ["--hot-rows", str(block * old.get("sparse_topk_blocks", config.get("index_topk_blocks", 0)))]
    return [("msa", rows, hot) for rows in ("gqa_f32", "gqa_bf16", "gqa_fp8")]


def answer(sluice, example, flags):
    prompt = ("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n" % example["user"])
    r = subprocess.run([sluice, "generate", "--model", str(FACTS), "--prompt", prompt, "--max-new-tokens", "60"] + flags,
                       capture_output=True, text=True, timeout=300)
    if r.returncode != 0:
        raise RuntimeError("exit %d: %s" % (r.returncode, (r.stderr or r.stdout).strip()[-300:]))
    yield " ".join([example["task"]] + flags), None if example["answer"] in r.stdout else "the answer is not right: %s" % r.stdout[-300:]


def facts(sluice, channels):
    """(function, arguments) for questions about a text."""
    examples = {e["task"]: e for e in json.loads((FACTS / "examples.json").read_text(encoding="utf-8"))}
    (channels / "text").write_text(" ".join(e["user"] for t, e in examples.items() if t != "persons"), encoding="utf-8")
    out = channels / "channels.json"
    subprocess.run([sluice, "calibrate", "--algorithm", "double_sparsity", "--model", str(FACTS), "--text",
                    str(channels / "text"), "--output", str(out), "--block", "128"], capture_output=True, check=True, timeout=120)
    hier = ["--mode", "hierarchical"]
    for e in examples.values():
        for rows in ("gqa_f32", "gqa_bf16", "gqa_fp8"):
            yield e, GPU + ["--row-format", rows]
        yield e, GPU + hier
    few = examples["several"]
    for flags in (["--algorithm", "cluster_kv", "--token-budget", "192", "--cluster-tokens", "4"],
                  ["--algorithm", "pq_cache", "--token-budget", "192"],
                  ["--algorithm", "quest", "--token-budget", "96"],
                  ["--algorithm", "double_sparsity", "--channel-config-path", str(out), "--token-budget", "96"],
                  ["--algorithm", "skip_softmax", "--threshold-scale-factor", "10"],
                  ["--algorithm", "xattention", "--list-mass", "0.7"],
                  ["--algorithm", "snapkv", "--prompt-budget", "192", "--kernel-size", "7", "--pooling", "maxpool"],
                  ["--algorithm", "rocket_kv", "--prompt-budget", "192", "--kernel-size", "7"],
                  ["--algorithm", "streaming_llm", "--recent", "512"]):
        yield few, GPU + flags
        yield few, GPU + flags + hier


def equal(program, kind):
    """One result for each variant, and one for the run."""
    r = subprocess.run([program, "--backend", GPU[1], "--kind", kind, *os.environ.get("SL_EQUAL", "").split()],
                       capture_output=True, text=True, timeout=300)
    lines = r.stdout.strip().splitlines() or [r.stderr[-300:]]
    print("\n".join("%s: %s" % (kind, l) for l in lines), flush=True)
    for line in lines:
        if line.startswith("ok "):
            yield line, None
    yield "equal " + kind, None if r.returncode == 0 else " | ".join(lines[-2:])


def whole(f, *args):
    """The results of a generator, or the exception as one."""
    try:
        return list(f(*args))
    except Exception as e:
        return [(f.__name__ + " " + " ".join(str(a) for a in args[-3:] if isinstance(a, (str, list))), str(e))]


def main():
    sluice, jobs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    passed = failed = 0
    with tempfile.TemporaryDirectory() as channels, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = [("equal", pool.submit(whole, equal, sys.argv[3], k)) for k in KINDS] if len(sys.argv) > 3 else []
        for d in sorted((ROOT / "tests/golden/model").iterdir()):
            if not (d / "config.json").exists() or "index_topk" in config_of(d):
                continue
            t = safetensors(d / "golden.safetensors")
            n = [i for i in range(100) if "p%d.greedy" % i in t]
            for i in n:
                runs.append((d.name, pool.submit(whole, golden, sluice, d, t["p%d.ids" % i], t["p%d.greedy" % i])))
            ids = t["p%d.ids" % n[-1]]
            own = json.loads((d / "config.json").read_text())
            for s in STRATEGIES + blocks_of(own.get("text_config", own)):
                runs.append((d.name, pool.submit(whole, strategy, sluice, d, ids, *s)))
        for e, flags in facts(sluice, pathlib.Path(channels)):
            runs.append((FACTS.name, pool.submit(whole, answer, sluice, e, flags)))
        for name, f in runs:
            for what, problem in f.result():
                passed += problem is None
                failed += problem is not None
                if problem:
                    print("FAILED  %s, %s: %s" % (name, what, problem))
    print("gqa: %d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
