#!/usr/bin/env python3
"""What `tests/gpu/run --only serve` has measured, next to its goals.

    shown.py DIR      DIR has the serve*.csv of that stage; those that are missing are named and count as a missed goal

One line for each goal: the worst figure of all rows that it holds for, and how many rows these are. Exit code 1 if a goal is missed."""
import csv
import pathlib
import sys

SAMPLED = {"greedy", "temperature", "top_p", "top_k", "penalties"}
FILES = {"serve": "16 layers", "serve-many": "256 streams", "serve-long": "61 layers, 64K", "serve-own": "64K, own pages"}


def rows_of(directory):
    """Every row, with the name of its file; a file that is missing has none."""
    for name in FILES:
        path = pathlib.Path(directory) / (name + ".csv")
        if path.exists():
            with open(path, encoding="utf-8") as f:
                for row in csv.DictReader(line for line in f if not line.startswith("#")):
                    yield {"file": name, **row}


def goals():
    """(what, files, whether a row counts, the least number of such rows, column, the largest figure that is well)"""
    for streams in ("1", "16", "64"):
        yield ("served / engine's step, 16 layers, %s streams, five kinds" % streams, {"serve"},
               lambda r, n=streams: r["streams"] == n and r["mode"] in SAMPLED, 5, "ratio", 1.03)
    yield "the same with 5 log-probabilities", {"serve"}, lambda r: r["mode"] == "logprobs", 3, "ratio", 1.06
    yield "served / engine's step, 61 layers, 64K, keep85", {"serve-long"}, lambda r: True, 2, "ratio", 1.02
    yield "256 streams of 8K", {"serve-many"}, lambda r: True, 2, "ratio", 1.05
    yield "256 streams: cores of the router", {"serve-many"}, lambda r: True, 2, "router_cores", 1.0
    yield "device idle between steps", {"serve", "serve-many", "serve-long"}, lambda r: True, 20, "idle_share", 0.02
    yield "end of a step to the sockets, p99, ms", {"serve", "serve-many", "serve-own"}, lambda r: True, 20, "whole_p99_ms", 3.0


def judge(rows):
    """(line, met) of every goal"""
    for what, files, counts, least, column, most in goals():
        figures = [(float(r[column]), r) for r in rows if r["file"] in files and counts(r) and r.get(column)]
        missing = files - {r["file"] for _, r in figures}
        worst, row = max(figures, key=lambda f: f[0], default=(None, None))
        if missing or len(figures) < least:
            yield "%-58s <= %-5g not measured: %d of %d rows %s" % (
                what, most, len(figures), least, ", ".join(FILES[f] for f in sorted(missing))), False
        else:
            yield "%-58s <= %-5g %8.4f  %-6s worst of %d: %s streams, %s, %s tokens/s" % (
                what, most, worst, "met" if worst <= most else "MISSED", len(figures), row["streams"], row["mode"], row["tokens_per_s"]), worst <= most


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: shown.py DIR")
    lines = list(judge(list(rows_of(sys.argv[1]))))
    for line, _ in lines:
        print(line)
    met = sum(ok for _, ok in lines)
    print("%d of %d goals met" % (met, len(lines)))
    return 0 if met == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
