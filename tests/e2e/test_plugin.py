"""Algorithms from shared objects (sparse/plugin.h): the example of the docs is built, chosen by its own keys and run; objects that
cannot be are refused with the reason; and workers with different objects of one name refuse each other."""
import csv
import json
import subprocess
import sys

import pytest

import real
from real import ROOT, SLUICE

sys.path[:0] = [str(ROOT / "docs" / "examples"), str(ROOT / "tests" / "bench")]
import own_plugin  # noqa: E402
import read_lists  # noqa: E402

MODEL = ROOT / "models" / "facts-llama"
SOURCES = {name: ROOT / "docs" / "examples" / f"{name}.c" for name in ("dilated", "key_norm", "sampled")}


def build(folder, name="dilated.so", edit=lambda text: text, of=SOURCES["dilated"]):
    source, out = folder / (name + ".c"), folder / name
    source.write_text(edit(of.read_text(encoding="utf-8")), encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-I", ROOT, "-o", out, source], check=True)
    return out


@pytest.fixture(scope="module")
def dilated(tmp_path_factory):
    return build(tmp_path_factory.mktemp("plugin"))


def run(*args):
    return subprocess.run([SLUICE, *args], capture_output=True, text=True, timeout=300)


def test_the_example_selects_what_it_says(dilated, tmp_path):
    """Its keys come from its table, and its lists are the newest tokens and others at equal distances."""
    config = tmp_path / "config.yaml"
    # The keys of the plug-in may come before it.
    config.write_text(f"sparse_attention:\n  near_percent: 25\n  algorithm: dilated\n  plugin: {dilated}\n")
    p = run("eval", "--model", MODEL, "--config", config, "--tasks", "needle", "--lengths", "256", "--samples", "1", "--budgets", "32", "--algorithms",
            "dilated,dilated:near_percent=100", "--no-bounds", "--csv", tmp_path / "rows.csv", "--dump-lists", tmp_path / "lists")
    assert p.returncode == 0, p.stderr
    rows = {r["algorithm"]: r for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())}
    assert set(rows) == {"dense", "dilated", "dilated:near_percent=100"}
    for answer, lists in read_lists.read(tmp_path / "lists"):
        near = {"dilated": 8, "dilated:near_percent=100": 32}.get(answer["algorithm"])
        for l in lists if near else []:
            n = l.position + 1
            far = [i * (n - near) // (32 - near) for i in range(32 - near)]
            assert list(l.ids) == far + list(range(n - near, n))
    shown = run("config", "--set", "sparse_attention.algorithm=dilated", "--set", f"sparse_attention.plugin={dilated}")
    assert "near_percent: 50" in shown.stdout, shown.stderr  # in any order


def test_the_example_of_ops(tmp_path):
    """Its lists are the gates and a random sample of the others, by its seed and its budget; it runs with latent rows as well."""
    plugin = build(tmp_path, "sampled.so", of=SOURCES["sampled"])
    entries = {"sampled": (1, 0, 1), "sampled:seed=7": (7, 0, 1), "sampled:seed=7:sink_tokens=4:recent_tokens=8": (7, 4, 8), "sampled:sink_tokens=1:recent_tokens=31": (1, 1, 31)}
    for model in (MODEL, ROOT / "models" / "facts-dsa"):
        p = run("eval", "--model", model, "--set", f"sparse_attention.plugin={plugin}", "--tasks", "needle", "--lengths", "256", "--samples", "1", "--budgets", "32",
                "--algorithms", ",".join(entries), "--no-bounds", "--dump-lists", tmp_path / "lists")
        assert p.returncode == 0, p.stderr
        seen = set()
        for answer, lists in read_lists.read(tmp_path / "lists"):
            seed, sinks, recent = entries.get(answer["algorithm"], (0, 0, 0))
            for l in lists if recent else []:
                assert list(l.ids) == own_plugin.sampled(seed, l.position + 1, 32, sinks, recent), (answer["algorithm"], l.position)
                seen.add(answer["algorithm"])
        assert seen == set(entries)
    # Only a window gets what the sinks leave; this budget counts all that is read.
    gates = build(tmp_path, "gates.so", lambda text: text.replace('.budget_key =', '.default_sinks = 4, .default_recent = 8, .budget_key ='), SOURCES["sampled"])
    p = run("eval", "--model", MODEL, "--set", f"sparse_attention.plugin={gates}", "--tasks", "needle", "--lengths", "256", "--samples", "1", "--budgets", "32",
            "--algorithms", "sampled", "--no-bounds", "--dump-lists", tmp_path / "lists")
    assert p.returncode == 0, p.stderr
    found = [(l.position, list(l.ids)) for answer, lists in read_lists.read(tmp_path / "lists") if answer["algorithm"] == "sampled" for l in lists]
    assert found and all(ids == own_plugin.sampled(1, position + 1, 32, 4, 8) for position, ids in found)
    # Its key `seed` is a flag of the command already.
    def ids(*flags):
        p = run("generate", "--model", MODEL, "--plugin", plugin, "--algorithm", "sampled", "--token-budget", "12", "--prompt", "The old frog stands under the table. " * 4,
                "--ignore-eos", "--max-new-tokens", "24", "--json", *flags)
        assert p.returncode == 0, p.stderr
        return json.loads(p.stdout)["ids"]
    assert ids("--seed", "7") == ids() != ids("--sampled-seed", "7")
    p = run("generate", "--model", MODEL, "--plugin", plugin, "--plugin", "other.so", "--algorithm", "sampled", "--prompt", "x")
    assert p.returncode != 0 and "there is one already" in p.stderr, p.stderr
    p = run("generate", "--model", MODEL, "--plugin", plugin, "--algorithm", "sampled", "--token-budget", "32", "--prompt", "x", "--sinks", "4", "--recent", "29")
    assert p.returncode != 0 and "token_budget is 32" in p.stderr, p.stderr


def test_the_example_that_reads_keys(tmp_path):
    """One list for each KV head: ascending, of the budget's length, with the newest token; with a budget of everything it is dense."""
    plugin = build(tmp_path, "key_norm.so", of=SOURCES["key_norm"])
    p = run("eval", "--model", MODEL, "--set", f"sparse_attention.plugin={plugin}", "--tasks", "needle", "--lengths", "256", "--samples", "1",
            "--budgets", "32", "--algorithms", "key_norm", "--no-bounds", "--dump-lists", tmp_path / "lists")
    assert p.returncode == 0, p.stderr
    by_head = {}
    for answer, lists in read_lists.read(tmp_path / "lists"):
        for l in lists if answer["algorithm"] == "key_norm" else []:
            ids = list(l.ids)
            assert len(ids) == 32 and ids == sorted(set(ids)) and ids[-1] == l.position
            by_head.setdefault((l.layer, l.position), []).append(ids)
    assert by_head and all(len(h) == 2 for h in by_head.values()) and any(a != b for a, b in by_head.values())
    text = ["--model", MODEL, "--prompt", "The code of the lamp is 1234. The code of the lamp", "--max-new-tokens", "6", "--json"]
    whole = run("generate", *text, "--plugin", plugin, "--algorithm", "key_norm", "--token-budget", "512")
    dense = run("generate", *text, "--algorithm", "dense")
    assert whole.returncode == 0 and dense.returncode == 0, whole.stderr + dense.stderr
    assert json.loads(whole.stdout)["ids"] == json.loads(dense.stdout)["ids"]


def test_its_flags_and_a_budget_of_everything(dilated):
    """sluice generate gets its options as flags; with a budget of the whole context the result is that of dense."""
    def ids(*flags):
        p = run("generate", "--model", MODEL, "--prompt", "The code of the lamp is 1234. The code of the lamp", "--max-new-tokens", "6", "--json", *flags)
        assert p.returncode == 0, p.stderr
        return p.stdout.split('"output_ids"')[-1] if "output_ids" in p.stdout else p.stdout
    plugin = ["--plugin", dilated, "--algorithm", "dilated"]
    strip = lambda text: [w for w in text.split(",") if "_s\"" not in w and "second" not in w and "hot" not in w and "dilated" not in w]
    assert run("generate", *plugin, "--model", MODEL, "--prompt", "x", "--near-percent", "0").returncode == 1
    assert run("generate", "--plugin", "/nowhere.so", "--model", MODEL, "--prompt", "x").returncode != 0
    assert ids(*plugin, "--token-budget", "4", "--mode", "hierarchical")
    assert strip(ids(*plugin, "--token-budget", "64"))[:3] == strip(ids("--algorithm", "dense"))[:3]


def test_the_strategies_of_this_tree_as_plugins(tmp_path):
    """What an object may call is enough for every kind of strategy: those of this tree, compiled as an object by the public headers, select
    what those of the program do. Scores by ops with metadata in pages, clusters at the end of a prompt, two stages, pages for prompts."""
    entries = {"quest": ":gqa_reduction=softmax:list_mass=0.7", "double_sparsity": ":channel_config_path=" + str(tmp_path / "c.json"), "cluster_kv": "", "rocket_kv": ":prompt_budget=128",
               "xattention": ":list_mass=0.3", "pq_cache": "", "streaming_llm": ""}
    own_plugin.build(tmp_path / "my.so", entries)
    (tmp_path / "text").write_text("The code of the lamp is 1234. The old frog stands under the table. " * 300)
    assert run("calibrate", "--algorithm", "double_sparsity", "--model", MODEL, "--text", tmp_path / "text", "--output", tmp_path / "c.json").returncode == 0
    p = run("eval", "--model", MODEL, "--set", f"sparse_attention.plugin={tmp_path / 'my.so'}", "--tasks", "chain", "--lengths", "400", "--samples", "1",
            "--budgets", "64", "--no-bounds", "--algorithms", ",".join(f"{n}{o},my_{n}{o}" for n, o in entries.items()), "--csv", tmp_path / "rows.csv",
            "--dump-lists", tmp_path / "lists")
    assert p.returncode == 0, p.stderr
    lists, rows = {}, {r["algorithm"]: r for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())}
    for answer, found in read_lists.read(tmp_path / "lists"):
        lists.setdefault(answer["algorithm"], []).extend((l.layer, l.list, l.position, tuple(l.ids)) for l in found)
    for name, keys in entries.items():
        ours, mine = rows[name + keys], rows["my_" + name + keys]
        assert lists["my_" + name + keys] == lists[name + keys] != lists["dense"] or name == "xattention"
        assert {k: v for k, v in ours.items() if k != "algorithm"} == {k: v for k, v in mine.items() if k != "algorithm"}, name
    assert float(rows["xattention:list_mass=0.3"]["tiles"]) < 1


BAD = {
    "an older table": (lambda t: t.replace("SL_PLUGIN(algorithms);", "const sl_plugin sluice_plugin = {0, SL_PLUGIN_SIZES_HERE, algorithms};"),
                       "version 0 of plug-ins"),
    "other headers": (lambda t: t.replace("SL_PLUGIN(algorithms);", "const sl_plugin sluice_plugin = {SL_PLUGIN_VERSION, {8}, algorithms};"),
                      "compiled with headers of another version"),
    "no symbol": (lambda t: t.replace("SL_PLUGIN(algorithms);", "extern const void *used; const void *used = algorithms;"),
                  "does not define sluice_plugin"),
    "no algorithms": (lambda t: t.replace("{&dilated, NULL}", "{NULL}"), "has no algorithms"),
    "twice the same": (lambda t: t.replace("{&dilated, NULL}", "{&dilated, &dilated, NULL}"), "two algorithms dilated"),
    "a taken name": (lambda t: t.replace('.name = "dilated"', '.name = "quest"'), "quest exists already"),
    "no name": (lambda t: t.replace('.name = "dilated",\n                              .desc', '.name = "My Algo",\n                              .desc'),
                "not a word of small letters"),
    "no retrieve": (lambda t: t.replace(".retrieve = retrieve", ".once = NULL").replace("static sl_status retrieve", "sl_status retrieve(sl_algo *, const sl_algo_call *, int32_t, int32_t, int32_t *, sl_err *); sl_status retrieve"),
                    "has no retrieve"),
    "pages without a prompt": (lambda t: t.replace(".retrieve = retrieve", ".retrieve = retrieve, .prompt_lists = (sl_status (*)(sl_algo *, "
                                                   "const sl_algo_call *, int32_t, int32_t, sl_gqa_prompt_lists *, sl_err *))(void *)retrieve"),
                               "has prompt_lists, which need prompt, reads_all and needs_kv_heads"),
    "another section": (lambda t: t.replace('.section = "sparse_attention"', '.section = "kvstore"'), "section must be sparse_attention"),
    "a bad default": (lambda t: t.replace('"50", 1, 100', '"0", 1, 100'), "options of dilated"),
    "a key twice": (lambda t: t.replace("near_percent, SL_OPTION_INT", "token_budget, SL_OPTION_INT"), "two options token_budget"),
    "a field of another type": (lambda t: t.replace("near_percent, SL_OPTION_INT", "near_percent, SL_OPTION_FLOAT"), "option near_percent has 4 bytes, and its type 8"),
    "a field outside": (lambda t: t.replace(".bytes = sizeof(dilated_options)", ".bytes = 6"), "option near_percent is outside of the values"),
    "a field far outside": (lambda t: t.replace("SL_OPTION(dilated_options, near_percent", "SL_OPTION(far, near_percent")
                            .replace("static const sl_option rows[]", "typedef struct far { char a[100000]; int near_percent; } far;\nstatic const sl_option rows[]"),
                            "option near_percent is outside of the values"),
    "an enumeration of nothing": (lambda t: t.replace("near_percent, SL_OPTION_INT", "near_percent, SL_OPTION_ENUM"), "an enumeration without names"),
    "a type that does not exist": (lambda t: t.replace("near_percent, SL_OPTION_INT", "near_percent, 77"), "type 77 does not exist"),
    "options without rows": (lambda t: t.replace(".rows = rows", ".rows = sizeof rows ? NULL : rows"), "options without rows"),
    "a budget without options": (lambda t: t.replace(".options = &table", ".options = sizeof table ? NULL : &table"), "budget_key token_budget is none of its options"),
    "a budget that is no option": (lambda t: t.replace('.budget_key = "token_budget"', '.budget_key = "topk"'), "budget_key topk is none of its options"),
    "a key with other bounds": (lambda t: t.replace('"1024", 1,', '"1024", 2,'), "option token_budget is"),
    "a key of the configuration": (lambda t: t.replace("token_budget", "min_tokens"), "option min_tokens: the configuration has a key"),
    "a function that does not exist": (lambda t: t.replace("(void)be;", "(void)be; extern void sl_no_such(void); sl_no_such();"), "sl_no_such"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_is_refused(what, tmp_path):
    edit, says = BAD[what]
    text = SOURCES["dilated"].read_text(encoding="utf-8")
    assert edit(text) != text, "the example has changed"
    bad = build(tmp_path, "bad.so", edit)
    p = run("config", "--set", f"sparse_attention.plugin={bad}")
    assert p.returncode not in (0, -6, -11) and says in p.stderr and "bad.so" in p.stderr, p.stderr


def test_what_is_no_object_is_refused(tmp_path):
    text = tmp_path / "text.so"
    text.write_text("not an object" * 100)
    for path, says in ((text, "invalid ELF header"), (tmp_path / "none.so", "No such file"), (tmp_path, "")):
        p = run("config", "--set", f"sparse_attention.plugin={path}")
        assert p.returncode == 1 or p.returncode == 2
        assert says in p.stderr and "sparse_attention.plugin" in p.stderr


def test_workers_with_different_objects_refuse_each_other(dilated, start, tmp_path):
    """The same source and name, compiled differently: pages and workers do not match. With one object they serve."""
    keys = {"model.path": MODEL, "model.max_context": 512, "sparse_attention.plugin": dilated, "sparse_attention.algorithm": "dilated",
            "sparse_attention.token_budget": 96}
    other = build(tmp_path, "dilated.so", lambda text: text.replace("others at equal", "more at equal"))
    c = start(roles=("router", "prefill", "decode"), **keys)
    c.model = MODEL.name
    ask = lambda: c.openai().chat.completions.create(model=c.model, temperature=0, max_tokens=4, messages=[{"role": "user", "content": "The lamp"}])
    before = ask().choices[0].message.content
    p = start(real.Process, "decode", 9, c.worker_address, **{**keys, "sparse_attention.plugin": other})
    p.logged(r"geometry differs|fingerprint \w+ differs", 15)
    p.process.wait(60)
    assert p.process.returncode != 0 and c.worker("decode/9") is None and ask().choices[0].message.content == before


if __name__ == "__main__":
    pytest.main([__file__])
