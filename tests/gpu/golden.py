#!/usr/bin/env python3
"""Compares greedy tokens of the golden checkpoints that `sluice generate` produces on a GPU with those of transformers
and of the CPU.

    golden.py SLUICE [JOBS]

For every directory of tests/golden/model and every prompt with 64 greedy tokens: resident mode on the GPU must give
these tokens, and hierarchical mode must give what resident mode gives, token by token, for 200 tokens. In hierarchical
mode the hot buffer is as small as the selection, stale rows are filled with NaN, and both policies are tested. Where a
checkpoint has an MTP layer, drafts of 1 to 4 tokens must not change a token, greedy and sampled, in both modes. Prints
one line per failure and a count; exit code 1 if a comparison failed. Needs only Python.
"""
import concurrent.futures
import json
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The answers were computed in float32 on dequantised weights.
PLAIN = ["--indexer", "plain", "--row-format", "mla_f32", "--act", "f32"]
# There are no greedy goldens for other rows and indexers: for those, results of the GPU are compared with each other.
OFFICIAL = ["--indexer", "official", "--row-format", "mla_fp8", "--act", "bf16"]
LONG = 200


def safetensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    out = {}
    for name, t in head.items():
        if t["dtype"] in ("I32", "I64"):
            a, b = t["data_offsets"]
            raw = data[8 + n + a:8 + n + b]
            out[name] = list(struct.unpack("<%d%s" % (len(raw) // (4 if t["dtype"] == "I32" else 8),
                                                     "i" if t["dtype"] == "I32" else "q"), raw))
    return out


def config_of(model):
    """The keys of the text part."""
    config = json.loads((model / "config.json").read_text())
    return {**config, **config.get("text_config", {})}


def generate(sluice, model, ids, count, extra):
    cmd = [sluice, "generate", "--model", str(model), "--ids", ",".join(map(str, ids)), "--max-new-tokens", str(count),
           "--ignore-eos", "--json"] + extra
    r = subprocess.run(cmd, capture_output=True, text=True, timeout=300)
    if r.returncode != 0:
        raise RuntimeError("exit %d: %s" % (r.returncode, (r.stderr or r.stdout).strip()[-300:]))
    return json.loads(r.stdout)["ids"]


def check_drafts(sluice, model, prompt, ids, topk):
    for sampling in ([], ["--temperature", "0.8", "--top-p", "0.9", "--seed", "5"]):
        flags = PLAIN + ["--backend", "cuda"] + sampling
        try:
            want = generate(sluice, model, ids, LONG, flags)
        except Exception as e:
            yield "without drafts", str(e)
            continue
        for n in (1 + prompt % 2, 3 + prompt % 2):
            for mode in ([], ["--mode", "hierarchical", "--hot-rows", str(topk * (n + 1)), "--tail-rows", "16", "--poison"]):
                what = "%d drafts, %s, %s" % (n, "hierarchical" if mode else "resident", "sampled" if sampling else "greedy")
                try:
                    got = generate(sluice, model, ids, LONG, flags + mode + ["--draft-tokens", str(n)])
                    yield what, None if got == want else "differs"
                except Exception as e:
                    yield what, str(e)


def check(sluice, name, model, prompt, ids, greedy):
    """Yields (what, problem or None)."""
    gpu = ["--backend", "cuda"]
    try:
        if "quantization_config" in json.loads((model / "config.json").read_text()):
            # F8 activations are on wherever weights are F8, the goldens are without: the CPU's tokens instead.
            greedy = generate(sluice, model, ids, len(greedy), PLAIN)
        got = generate(sluice, model, ids, len(greedy), PLAIN + gpu)
        same = got == greedy
        at = next((i for i, (a, b) in enumerate(zip(got, greedy)) if a != b), min(len(got), len(greedy)))
        yield "goldens", None if same else "token %d differs" % at
    except Exception as e:
        if "is not aligned to 16 bytes" not in str(e):
            yield "goldens", str(e)
    config = config_of(model)
    topk = config["index_topk"]
    hot = topk + config.get("index_kpool", 0)  # the open unit is read too
    if config.get("num_nextn_predict_layers") and "p0.drafts" in safetensors(model / "golden.safetensors"):
        yield from check_drafts(sluice, model, prompt, ids, topk)
    for conv in (PLAIN, OFFICIAL):
        try:
            resident = generate(sluice, model, ids, LONG, conv + gpu)
        except Exception as e:
            # refused with the reason: sizes that the convention lacks, groups of odd sizes (docs/families.md, DeepSeek-V4)
            if "cannot run it" not in str(e) and "is not aligned to 16 bytes" not in str(e):
                yield "resident " + conv[1], str(e)
            continue
        for policy in ("lru", "clock"):
            what = "hierarchical = resident, %s, %s" % (conv[1], policy)
            try:
                hier = generate(sluice, model, ids, LONG, conv + gpu + ["--mode", "hierarchical", "--policy", policy,
                                                                        "--hot-rows", str(hot), "--tail-rows", "8",
                                                                        "--poison"])
                at = next((i for i, (a, b) in enumerate(zip(hier, resident)) if a != b), None)
                yield what, None if hier == resident else "token %s differs" % at
            except Exception as e:
                yield what, str(e)


def main():
    sluice = sys.argv[1]
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    work, left_out = [], []
    for d in sorted((ROOT / "tests/golden/model").iterdir()):
        if not (d / "golden.safetensors").exists():
            continue
        model = d if (d / "config.json").exists() else ROOT / "models" / d.name
        if "index_topk" not in config_of(model):
            left_out.append(d.name)
            continue
        t = safetensors(d / "golden.safetensors")
        i = 0
        while "p%d.ids" % i in t:
            if "p%d.greedy" % i in t:
                work.append((d.name, model, i, t["p%d.ids" % i], t["p%d.greedy" % i]))
            i += 1
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = [(w, pool.submit(lambda w=w: list(check(sluice, *w)))) for w in work]
        for w, f in runs:
            for what, problem in f.result():
                passed += problem is None
                failed += problem is not None
                if problem:
                    print("FAILED  %s prompt %d (%d tokens), %s: %s" % (w[0], w[2], len(w[3]), what, problem))
    if left_out:
        print("tests/gpu/gqa.py compares: " + ", ".join(left_out))
    print("goldens: %d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
