#!/usr/bin/env python3
"""Compiles strategies of this tree as one plug-in (sparse/plugin.h), where strategy NAME is called my_NAME.

    own_plugin.py OUT.so [NAME...]      default: all that STRATEGIES names

What a plug-in may call is enough for a strategy if its plug-in does what the built-in one does: the tests compare the two. It needs a
C compiler.
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Scores by ops with metadata in pages, labels, clusters at the end of a prompt, two stages, pages for prompts, no metadata.
STRATEGIES = ("quest", "double_sparsity", "cluster_kv", "rocket_kv", "xattention", "pq_cache", "streaming_llm")


def source(name):
    """The file of a strategy with its name and its symbol changed."""
    text = (ROOT / "sparse" / "algorithms" / f"{name}.c").read_text(encoding="utf-8")
    return (f"#define sl_algo_{name} my_{name}\n" + text.replace(f'.name = "{name}"', f'.name = "my_{name}"')
            + f"\nextern const sl_algo_desc my_{name};\n")


def sampled(seed, n, budget, sinks, recent):
    """The list of docs/examples/sampled.c for a query that sees n tokens, by another program."""
    def number(i):
        x = ((i + 1) * 0x9e3779b97f4a7c15 + seed) % 2**64
        for _ in range(2):
            x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93 % 2**64
        return x >> 40
    if n <= budget:
        return list(range(n))
    forced = set(range(sinks)) | set(range(n - recent, n))
    others = sorted((i for i in range(n) if i not in forced), key=lambda i: (-number(i), i))
    return sorted(forced | set(others[:budget - len(forced)]))


def build(out, names=STRATEGIES):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        table = folder / "table.c"
        table.write_text('#include "sparse/plugin.h"\n' + "".join(f"extern const sl_algo_desc my_{n};\n" for n in names)
                         + "static const sl_algo_desc *const all[] = {" + "".join(f"&my_{n}, " for n in names) + "NULL};\nSL_PLUGIN(all);\n")
        for name in names:
            (folder / f"{name}.c").write_text(source(name), encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-I", ROOT, "-o", out, table, *(folder / f"{n}.c" for n in names)], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build(sys.argv[1], sys.argv[2:] or STRATEGIES)
