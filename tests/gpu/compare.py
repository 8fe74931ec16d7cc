#!/usr/bin/env python3
"""Are the times of two builds the same? Runs the decode step of the headline and the cold times of both, alternately,
on the machine that it is started on, and writes one line per figure as CSV. Stage `compare` of tests/gpu/run.

    compare.py BASE NEW CSV [--repeats N] [--quick]

BASE and NEW are folders that tests/gpu/pack filled. Each figure's column `ratio` is the median of NEW over the median
of BASE; the smallest and largest value of each side say how much the figure varies by itself. Exit code 1 if a step of
the headline is more than 1 % slower, or if a cold time is slower beyond what it varies: its fastest run in NEW takes
over 2 % longer than the slowest run in BASE. --quick: few layers, to check that it runs."""
import argparse
import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile

HEADLINE = "bench decode --backend cuda --hot-rows 2048 --shared-host-pages --layout layer_first".split()
STEPS = {  # name of the run: its options
    "fp8": "--host-bytes 24G --batch 70 --modes hierarchical,free_rows --steps 20 --warmup 4".split(),
    "bf16": "--host-bytes 24G --rows mla_bf16 --batch 64 --modes hierarchical --steps 20 --warmup 4".split(),
}
QUICK = {"few-layers": "--layers 6 --steps 6 --warmup 3 --host-bytes 8G".split()}
STEP_LIMIT = 1.01
COLD_LIMIT = 1.02


def run(command, out=None):
    done = subprocess.run(command, stdout=out or subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")


def rows_of(path):
    with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def steps(packed, options, path):
    """{(figure, shape): milliseconds} of one run of the decode benchmark."""
    threads = ["--threads", str(os.cpu_count())]
    run([os.path.join(packed, "sluice"), *HEADLINE, *threads, *options, "--csv", path])
    return {
        ("decode step ms", " ".join(r[k] for k in ("rows", "context", "mode", "profile", "batch"))): float(r["step_ms"])
        for r in rows_of(path)
    }


def cold(packed, path):
    """{(op, shape): microseconds} of one run of the cold times."""
    with open(path, "wb") as out:
        run([os.path.join(packed, "cold"), "--backend", "cuda"], out)
    found = {}
    for r in rows_of(path):
        shape = re.sub(r" [\d.]+ times", "", r["shape"])  # a shape may state what was measured
        seen = sum(1 for op, known in found if op == r["op"] + " us" and known.split(" #")[0] == shape)
        found[r["op"] + " us", f"{shape} #{seen + 1}" if seen else shape] = float(r["us"])
    return found


def measure(builds, repeats, quick):
    """Per build {figure: [values]}. The builds alternate, so that a drift of the machine affects both."""
    found = [{}, {}]
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "run.csv")
        for _ in range(repeats):
            for values, packed in zip(found, builds):
                runs = [steps(packed, options, path) for options in (QUICK if quick else STEPS).values()]
                runs.append(cold(packed, path))
                for figures in runs:
                    for name, value in figures.items():
                        values.setdefault(name, []).append(value)
    return found


def slower(name, base, new):
    if name[0].startswith("decode step"):
        return statistics.median(new) > STEP_LIMIT * statistics.median(base)
    return min(new) > COLD_LIMIT * max(base)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("csv")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    base, new = measure((args.base, args.new), args.repeats, args.quick)
    bad, worst = [], (0.0, "nothing")
    with open(args.csv, "w", encoding="utf-8", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow("figure,shape,base,new,ratio,base_min,base_max,new_min,new_max,verdict".split(","))
        for name in base:
            if name not in new:
                bad.append(f"{name[0]} {name[1]}: missing")
                continue
            b, n = base[name], new[name]
            ratio = statistics.median(n) / statistics.median(b)
            verdict = "slower" if slower(name, b, n) else "ok"
            if verdict == "slower":
                bad.append(f"{name[0]} {name[1]}: {ratio:.3f}")
            worst = max(worst, (ratio, f"{name[0]} {name[1]}"))
            out.writerow([*name, f"{statistics.median(b):.3f}", f"{statistics.median(n):.3f}", f"{ratio:.4f}",
                          f"{min(b):.3f}", f"{max(b):.3f}", f"{min(n):.3f}", f"{max(n):.3f}", verdict])
    for name in base:
        if name in new and name[0].startswith("decode step"):
            print(f"{name[1]}: {statistics.median(base[name]):.3f} -> {statistics.median(new[name]):.3f} ms")
    for line in bad:
        print("FAILED", line)
    print(f"{len(base)} figures, {args.repeats} runs each, {len(bad)} slower; largest ratio {worst[0]:.3f} ({worst[1]})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
