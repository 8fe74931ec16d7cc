"""models/facts-llama and models/facts-dsa, small trained checkpoints, answer questions about texts: what random weights cannot
show. tests/e2e/test_quickstart.py asks the second one about a long document."""
import csv
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from real import ROOT, SLUICE

MODEL = ROOT / "models" / "facts-llama"
DSA = ROOT / "models" / "facts-dsa"


def examples(model):
    return {e["task"]: e for e in json.loads((model / "examples.json").read_text(encoding="utf-8"))}


EXAMPLES = examples(MODEL)


def answer(task, *flags):
    prompt = ("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
              f"{EXAMPLES[task]['user']}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")
    p = subprocess.run([SLUICE, "generate", "--model", MODEL, "--prompt", prompt, "--max-new-tokens", "60", *flags],
                       capture_output=True, text=True, check=True, timeout=300)
    assert "finish: stop" in p.stdout
    return p.stdout


@pytest.mark.parametrize("rows", ["gqa_f32", "gqa_bf16"])
@pytest.mark.parametrize("task", ["chain", "several"])  # "persons" has 4,000 tokens, which takes 7 s on one CPU
def test_answer_of_the_trained_checkpoint(task, rows):
    assert EXAMPLES[task]["answer"] in answer(task, "--row-format", rows)


@pytest.mark.parametrize("task", ["chain", "early"])
@pytest.mark.parametrize("flags", [["--row-format", "mla_f32"], ["--row-format", "mla_fp8", "--mode", "hierarchical"]], ids=["f32", "fp8"])
def test_answer_of_the_trained_dsa_checkpoint(task, flags):
    """Of some 300 tokens each query attends to 256."""
    example = examples(DSA)[task]
    p = subprocess.run([SLUICE, "generate", "--model", DSA, "--max-new-tokens", "60", *flags, "--prompt",
                        f"<｜begin▁of▁sentence｜><｜User｜>{example['user']}<｜Assistant｜></think>"],
                       capture_output=True, text=True, check=True, timeout=300)
    assert "finish: stop" in p.stdout and example["answer"] in p.stdout


def test_the_trained_mtp_layer_drafts_what_the_model_says():
    """Most drafts stand, and the answers are those without drafts (all kinds: tests/bench/draft_acceptance)."""
    def say(task, *flags):
        p = subprocess.run([SLUICE, "generate", "--model", DSA, "--max-new-tokens", "60", "--json", *flags, "--prompt",
                            f"<｜begin▁of▁sentence｜><｜User｜>{examples(DSA)[task]['user']}<｜Assistant｜></think>"],
                           capture_output=True, text=True, check=True, timeout=300)
        return json.loads(p.stdout)

    for sampling in ([], ["--temperature", "0.7", "--top-p", "0.95", "--seed", "2"]):
        drafted = [(say(task, *sampling), say(task, "--draft-tokens", "2", *sampling)) for task in ("several", "early")]
        assert all(plain["ids"] == other["ids"] for plain, other in drafted)
        assert sum(o["drafts"]["accepted"] for _, o in drafted) >= 0.8 * sum(o["drafts"]["drafted"] for _, o in drafted)


def test_answer_with_a_budget():
    """Queries read 96 of some 300 tokens, from a hot buffer of twice as many."""
    text = answer("several", "--algorithm", "quest", "--token-budget", "96", "--mode", "hierarchical")
    assert EXAMPLES["several"]["answer"] in text and "algorithm: quest" in text


def test_answer_with_calibrated_channels(tmp_path):
    """A file that `sluice calibrate` made serves its model; a file of another model is refused with file and key."""
    text, out = tmp_path / "text", tmp_path / "channels.json"
    text.write_text(" ".join(e["user"] for t, e in EXAMPLES.items() if t != "persons"), encoding="utf-8")
    p = subprocess.run([SLUICE, "calibrate", "--algorithm", "double_sparsity", "--model", MODEL, "--text", text,
                        "--output", out, "--block", "128"], capture_output=True, text=True, check=True, timeout=300)
    assert "6 layers, 2 KV heads, 64 channels ranked by qk" in p.stdout
    flags = ["--algorithm", "double_sparsity", "--channel-config-path", out, "--token-budget", "96"]
    got = answer("several", *flags, "--mode", "hierarchical")
    assert EXAMPLES["several"]["answer"] in got and "algorithm: double_sparsity" in got
    other = json.loads(out.read_text(encoding="utf-8")) | {"num_layers": 32}
    out.write_text(json.dumps(other), encoding="utf-8")
    p = subprocess.run([SLUICE, "generate", "--model", MODEL, "--ids", "1,2,3", *flags], capture_output=True, text=True,
                       check=False, timeout=60)
    assert p.returncode == 1 and f"channel_config_path: {out}.num_layers: 32, but the model has 6" in p.stderr


def test_a_cluster_answers_with_a_budget(start, tmp_path):
    """The same answer through prefill and decode workers, with the prompt's pages and their bounds sent, then cached."""
    budget = {"sparse_attention.algorithm": "quest", "sparse_attention.token_budget": 96}
    c = start(roles=("router", "prefill", "decode"), **{"model.path": MODEL, "model.max_context": 1024, **budget})
    c.model = MODEL.name
    c.logged(r"ev=plan mode=hierarchical algorithm=quest .*hot_rows=192")
    for _ in range(2):
        got = c.openai().chat.completions.create(model=c.model, temperature=0, max_tokens=60,
                                                 messages=[{"role": "user", "content": EXAMPLES["several"]["user"]}])
        assert got.choices[0].message.content.strip() == EXAMPLES["several"]["answer"]
    evaluate_over_http(c, tmp_path)
    c.idle()


def evaluate(folder, *flags):
    """The table of `sluice eval` and the rows of its CSV, for one document per task, of 256 tokens."""
    p = subprocess.run([SLUICE, "eval", "--lengths", "256", "--documents", "1", "--csv", folder / "rows.csv", *flags], capture_output=True,
                       text=True, check=True, timeout=300)
    return p.stdout, list(csv.DictReader((folder / "rows.csv").read_text().splitlines()))


def evaluate_over_http(cluster, folder):
    table, rows = evaluate(folder, "--url", f"quest-96={cluster.http}", "--documents-style", "facts", "--tasks", "needle")
    assert [(r["algorithm"], r["right"], r["mass"]) for r in rows] == [("quest-96", "1", "")]
    assert 100 < int(rows[0]["prompt_tokens"]) <= 192 and "quest-96" in table


def test_eval_of_the_trained_checkpoint(tmp_path):
    """Dense is right, a window that does not reach the codes is not, and the share of attention grows with the budget."""
    table, rows = evaluate(tmp_path, "--model", MODEL, "--tasks", "needle,several", "--budgets", "32,128", "--algorithms",
                           "quest,streaming_llm", "--svg", tmp_path / "plot.svg")
    got = {(r["task"], r["algorithm"], r["budget"]): r for r in rows}
    assert len(got) == 2 * 9 and table.count("streaming_llm") == 2
    assert got["needle", "dense", ""]["accuracy"] == got["several", "dense", ""]["accuracy"] == "1.0000"
    assert got["needle", "quest", "128"]["accuracy"] == "1.0000" and got["several", "streaming_llm", "32"]["accuracy"] == "0.0000"
    mass = [float(got["needle", a, b]["mass"]) for a, b in (("quest", "32"), ("quest", "128"), ("dense", ""))]
    assert 0 < mass[0] < mass[1] < mass[2] == 1
    for budget, quest in (("32", mass[0]), ("128", mass[1])):  # every strategy lies between the best list and one that is drawn
        best, drawn = (got["needle", a, budget] for a in ("exact_topk", "random"))
        assert float(drawn["mass"]) < quest < float(best["mass"]) and best["accuracy"] == "1.0000"
    assert got["needle", "random", "32"]["accuracy"] == "0.0000"
    assert int(got["needle", "quest", "32"]["row_bytes"]) * 4 == int(got["needle", "quest", "128"]["row_bytes"])
    assert (tmp_path / "plot.svg").read_text().count("<circle") > 2


def test_snapkv_keeps_what_the_end_of_the_prompt_asks_for(tmp_path):
    """128 tokens of some 440 are enough for a question at the end, and have no answer to one that came before the text."""
    _, rows = evaluate(tmp_path, "--model", MODEL, "--tasks", "needle,early", "--lengths", "512", "--documents", "2", "--budgets", "128",
                       "--algorithms", "snapkv:kernel_size=7:pooling=maxpool", "--no-bounds")
    got = {(r["task"], r["budget"]): r["right"] for r in rows}
    assert got == {("needle", ""): "2", ("early", ""): "2", ("needle", "128"): "2", ("early", "128"): "0"}


def test_clusters_and_codes_find_what_a_question_asks_for(tmp_path):
    """A fourth of the tokens is enough wherever the question is, because every query selects anew."""
    _, rows = evaluate(tmp_path, "--model", MODEL, "--tasks", "needle,early", "--lengths", "512", "--documents", "2", "--budgets", "128",
                       "--algorithms", "cluster_kv:cluster_tokens=8,pq_cache:n_subvec=8", "--no-bounds")
    got = {(r["task"], r["algorithm"].split(":")[0]): r["right"] for r in rows}
    assert got == {(task, a): "2" for task in ("needle", "early") for a in ("dense", "cluster_kv", "pq_cache")}


def test_rocket_kv_reads_among_what_the_end_of_the_prompt_asks_for(tmp_path):
    """As snapkv; a quarter of what is kept is enough for the question at the end."""
    _, rows = evaluate(tmp_path, "--model", MODEL, "--tasks", "needle,early", "--lengths", "512", "--documents", "2", "--budgets", "64",
                       "--algorithms", "rocket_kv:prompt_budget=192:kernel_size=7", "--no-bounds")
    got = {(r["task"], r["budget"]): r["right"] for r in rows}
    assert got == {("needle", ""): "2", ("early", ""): "2", ("needle", "64"): "2", ("early", "64"): "0"}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_eval_prints_what_it_has_when_interrupted(sent, tmp_path):
    p = subprocess.Popen([SLUICE, "eval", "--model", MODEL, "--lengths", "256", "--samples", "100000", "--tasks", "needle", "--algorithms",
                          "dense", "--csv", tmp_path / "rows.csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "dense" in p.stderr.readline()  # the first line of progress: documents were answered
    p.send_signal(sent)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 1 and "interrupted after" in err and "100.0" in out
    assert [r["accuracy"] for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())] == ["1.0000"]


def test_the_csv_of_a_killed_eval_has_every_row_that_was_complete(tmp_path):
    rows = tmp_path / "rows.csv"
    p = subprocess.Popen([SLUICE, "eval", "--model", MODEL, "--lengths", "256", "--samples", "1", "--tasks", "needle,several,multikey,persons",
                          "--algorithms", "quest", "--csv", rows], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while p.poll() is None and (not rows.exists() or rows.read_text().count("\n") < 3):
        time.sleep(0.01)
    p.kill()
    p.wait()
    text = rows.read_text()
    got = list(csv.DictReader(text.splitlines()))
    assert len(got) >= 2 and text.endswith("\n") and [r["task"] for r in got[:2]] == ["needle", "several"]


def lines(path, *objects):
    path.write_text("".join(json.dumps(o) + "\n" for o in objects))
    return path


def test_eval_of_own_documents(tmp_path):
    """The same question as own line, as RULER's and as LongBench's; a choice; and one that is wrong."""
    e = EXAMPLES["several"]
    code = e["answer"].rstrip(".").split(" ")[-1]
    ruler = tmp_path / "qa_1"
    ruler.mkdir()
    own = lines(tmp_path / "own.jsonl", {"prompt": e["user"], "answers": [e["answer"]], "scorer": "exact"},
                {"prompt": e["user"], "answers": ["nothing"], "scorer": "exact", "color": 1},
                {"prompt": e["user"], "answers": [code], "scorer": "contains"})
    lines(ruler / "validation.jsonl", {"index": 0, "input": e["user"], "outputs": [code, "x"], "length": 400, "answer_prefix": ""})
    lines(tmp_path / "hotpotqa.jsonl", {"input": "", "context": e["user"], "answers": [e["answer"]], "length": 1, "dataset": "hotpotqa",
                                        "language": "en", "all_classes": None, "_id": "1"})
    p = subprocess.run([SLUICE, "eval", "--model", MODEL, "--tasks", tmp_path, "--max-new-tokens", "60", "--budgets", "64", "--algorithms", "quest",
                        "--no-bounds", "--csv", tmp_path / "rows.csv"], capture_output=True, text=True, check=True, timeout=300)
    got = {(r["task"], r["algorithm"]): r for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())}
    assert {t for t, _ in got} == {"own", "qa_1", "hotpotqa"} and "fields that are not read: color" in p.stderr
    assert [got[t, "dense"]["accuracy"] for t in ("own", "qa_1", "hotpotqa")] == ["0.6667", "1.0000", "1.0000"]
    assert got["own", "dense"]["right"] == "2" and got["own", "dense"]["documents"] == "3"
    # Cut, skipped and refused where they do not fit.
    short = [SLUICE, "eval", "--model", MODEL, "--tasks", own, "--max-new-tokens", "60", "--lengths", "200", "--algorithms", "dense"]
    p = subprocess.run(short, capture_output=True, text=True, timeout=300)
    assert p.returncode == 1 and "own.jsonl:1: prompt and answer have" in p.stderr and "--too-long" in p.stderr
    p = subprocess.run([*short, "--too-long", "skip"], capture_output=True, text=True, timeout=300)
    assert p.returncode == 1 and "every question is longer than 200" in p.stderr
    subprocess.run([*short, "--too-long", "cut", "--csv", tmp_path / "cut.csv"], check=True, capture_output=True, timeout=300)
    (cut,) = csv.DictReader((tmp_path / "cut.csv").read_text().splitlines())
    assert 130 <= int(cut["prompt_tokens"]) <= 140 and cut["documents"] == "3"
    p = subprocess.run([SLUICE, "eval", "--model", MODEL, "--tasks", lines(tmp_path / "bad.jsonl", {"prompt": "q", "scorer": "exact"})],
                       capture_output=True, text=True, timeout=300)
    assert p.returncode == 1 and "bad.jsonl:1: field \"answers\" is missing" in p.stderr


def test_keys_of_several_strategies(tmp_path):
    """--set holds for every strategy that reads the key: the command of docs/strategies.md, with a calibration for one of them."""
    text, channels = tmp_path / "text", tmp_path / "channels.json"
    text.write_text(" ".join(e["user"] for e in EXAMPLES.values()))
    subprocess.run([SLUICE, "calibrate", "--algorithm", "double_sparsity", "--model", MODEL, "--text", text, "--output", channels, "--block", "64"],
                   check=True, capture_output=True, timeout=300)
    _, rows = evaluate(tmp_path, "--model", MODEL, "--tasks", "needle", "--budgets", "64", "--algorithms", "quest,double_sparsity", "--no-bounds",
                       "--set", f"sparse_attention.channel_config_path={channels}", "--set", "sparse_attention.block_tokens=8")
    assert {r["algorithm"]: r["right"] for r in rows} == {"dense": "1", "quest": "1", "double_sparsity": "1"}


def test_the_table_of_a_model_from_a_directory(tmp_path):
    """The script for models of users, with the trained checkpoint: every strategy is there, and both tables have it."""
    subprocess.run([ROOT / "tests" / "bench" / "eval_model", "run", SLUICE, MODEL, tmp_path / "out", "--lengths", "256", "--budgets", "96", "--samples",
                    "1", "--block", "128", "--tasks", "needle"], check=True, capture_output=True, timeout=600)
    tables = (tmp_path / "out" / "tables.md").read_text()
    for name in ("quest", "double_sparsity", "snapkv", "rocket_kv", "cluster_kv", "pq_cache", "streaming_llm"):
        assert tables.count(f"| {name} |") == 2, name
    assert "| exact_topk | 100 (21 to 100) |" in tables and "skip_softmax" in tables
    assert (tmp_path / "out" / "plot.svg").read_text().startswith("<?xml")


def test_dumped_lists_are_those_of_the_strategy(tmp_path):
    """The reader of the docs sees every list: its length is the budget, dense has everything, the masses are those of the table, and scores are those
    by which units were selected: what a longer list has besides has lower ones. A file that is cut anywhere is read as far as it goes."""
    sys.path.insert(0, str(ROOT / "docs" / "examples"))
    import read_lists
    subprocess.run([SLUICE, "eval", "--model", MODEL, "--tasks", "needle", "--lengths", "256", "--samples", "1", "--budgets", "48,96", "--algorithms",
                    "quest,pq_cache", "--csv", tmp_path / "rows.csv", "--dump-lists", tmp_path / "lists"], check=True, capture_output=True, timeout=300)
    rows = {(r["algorithm"], int(r["budget"] or 0)): r for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())}
    seen = dict()
    for answer, lists in read_lists.read(tmp_path / "lists"):
        assert answer["task"] == "needle" and answer["document"] == 0 and answer["length"] == 256
        seen[answer["algorithm"], answer["budget"]] = lists
    assert set(seen) == {("dense", 0)} | {(a, n) for a in ("quest", "pq_cache", "exact_topk", "random") for n in (48, 96)}
    for (name, budget), lists in seen.items():
        assert abs(sum(l.mass for l in lists) / len(lists) - float(rows[name, budget]["mass"])) < 1e-4
        for l in lists:
            assert list(l.ids) == sorted(set(l.ids)) and abs(sum(l.shares) - l.mass) < 1e-4
            assert len(l.ids) * l.unit_tokens == (budget or l.position + 1)
            scored = [i for i, s in zip(l.ids, l.scores) if s == s]
            n = l.position // l.unit_tokens
            assert scored == {"quest": [i for i in l.ids if 0 < i < n], "pq_cache": [i for i in l.ids if 32 <= i <= n - (budget - 32) // 2]}.get(name, [])
    assert {(l.layer, l.list) for l in seen["quest", 48]} == {(layer, head) for layer in range(6) for head in range(2)}
    assert {l.unit_tokens for l in seen["quest", 48]} == {16}
    for short, long in list(zip(seen["quest", 48], seen["quest", 96]))[:2]:  # the first step's first layer has the same queries with every budget
        best, others = ({i: s for i, s in zip(l.ids, l.scores) if s == s} for l in (short, long))
        assert len(best) == 1 and all(others[i] == s for i, s in best.items())
        assert max(s for i, s in others.items() if i not in short.ids) <= min(best.values())
    for l in seen["pq_cache", 96]:  # softmax, summed over the four query heads of a list
        assert 0 < sum(s for s in l.scores if s == s) <= 4.001
    whole = (tmp_path / "lists").read_bytes()
    for n in (*range(15, 400), len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:n])
        assert sum(len(lists) for _, lists in read_lists.read(tmp_path / "cut")) <= sum(map(len, seen.values())) - (n == len(whole) - 1)
    for bad in (b"", whole[:14], b"sluice-lists 1\n" + whole[15:]):
        (tmp_path / "cut").write_bytes(bad)
        p = subprocess.run([sys.executable, ROOT / "docs" / "examples" / "read_lists.py", tmp_path / "cut"], capture_output=True, text=True)
        assert p.returncode == 1 and "cut: not a file of lists" in p.stderr and "Traceback" not in p.stderr


def test_a_calibration_of_another_fine_tune_is_refused(tmp_path):
    """The same shape and names: only the weights of queries and keys say that the file is for another model."""
    text, file, tuned = tmp_path / "text", tmp_path / "channels.json", tmp_path / "tuned"
    text.write_text(" ".join(e["user"] for e in EXAMPLES.values()))
    subprocess.run([SLUICE, "calibrate", "--algorithm", "double_sparsity", "--model", MODEL, "--text", text, "--output", file, "--block", "64"],
                   check=True, capture_output=True, timeout=300)
    shutil.copytree(MODEL, tuned)
    weights = tuned / "model.safetensors"
    data = bytearray(weights.read_bytes())
    head = int.from_bytes(data[:8], "little")
    first, end = json.loads(data[8:8 + head])["model.layers.2.self_attn.k_proj.weight"]["data_offsets"]
    data[8 + head + end - 1] ^= 1  # the least that can differ: one bit of the last key weight
    weights.write_bytes(data)

    def generate(model, channels):
        return subprocess.run([SLUICE, "generate", "--model", model, "--prompt", "The code of the lamp", "--max-new-tokens", "1", "--algorithm",
                               "double_sparsity", "--channel-config-path", channels], capture_output=True, text=True, timeout=300)

    assert generate(MODEL, file).returncode == 0
    p = generate(tuned, file)
    assert p.returncode == 1 and "channel_config_path" in p.stderr and "model_print" in p.stderr and "another model or fine-tune" in p.stderr
    without = json.loads(file.read_text())
    del without["model_print"]  # as SGLang's files are
    older = tmp_path / "older.json"
    older.write_text(json.dumps(without))
    p = generate(tuned, older)
    assert p.returncode == 0 and "does not say for which weights" in p.stderr


def test_eval_of_any_text(tmp_path):
    """Without questions: with the whole window as budget every next token is that of dense attention; with less, fewer are."""
    text = tmp_path / "text.txt"
    text.write_text(" ".join(e["user"] for e in EXAMPLES.values()))
    p = subprocess.run([SLUICE, "eval", "--model", MODEL, "--text", text, "--lengths", "256", "--measured", "32", "--samples", "2", "--budgets",
                        "32,240", "--algorithms", "quest", "--csv", tmp_path / "rows.csv"],
                       capture_output=True, text=True, check=True, timeout=300)
    got = {(r["algorithm"], r["budget"]): r for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())}
    assert "perplexity" in p.stdout and all(r["tokens"] == "64" and r["documents"] == "2" and r["right"] == "" for r in got.values())
    assert got["dense", ""]["accuracy"] == "1.0000" and float(got["dense", ""]["kl"]) == 0
    kl = [float(got[a, b]["kl"]) for a, b in (("quest", "240"), ("exact_topk", "32"), ("quest", "32"), ("random", "32"))]
    assert 0 < kl[0] < kl[1] < kl[2] < kl[3]
    assert float(got["random", "32"]["accuracy"]) < float(got["quest", "240"]["accuracy"])


def test_eval_says_which_rows_it_leaves_out(tmp_path):
    p = subprocess.run([SLUICE, "eval", "--model", MODEL, "--tasks", "needle", "--lengths", "192,256", "--samples", "1", "--budgets", "64,192", "--algorithms",
                        "quest", "--no-bounds", "--csv", tmp_path / "rows.csv"], capture_output=True, text=True, check=True, timeout=300)
    got = [(r["length"], r["algorithm"], r["budget"]) for r in csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())]
    assert len(got) == 5 and ("256", "quest", "192") in got and ("192", "quest", "192") not in got
    assert "quest: no row for 192 tokens, because lists of 192 hold them all" in p.stderr and p.stderr.count("no row") == 1
