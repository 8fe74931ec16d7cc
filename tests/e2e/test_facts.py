"""models/facts-llama and models/facts-dsa, small trained checkpoints, answer questions about texts: what random weights cannot
show. tests/e2e/test_quickstart.py asks the second one about a long document."""
import json
import subprocess

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


def test_answer_with_a_budget():
    """Queries read 96 of some 300 tokens, from a hot buffer of twice as many."""
    text = answer("several", "--algorithm", "quest", "--token-budget", "96", "--mode", "hierarchical")
    assert EXAMPLES["several"]["answer"] in text and "algorithm: quest" in text


def test_a_cluster_answers_with_a_budget(start):
    """The same answer through prefill and decode workers, with the prompt's pages and their bounds sent, then cached."""
    budget = {"sparse_attention.algorithm": "quest", "sparse_attention.token_budget": 96}
    c = start(roles=("router", "prefill", "decode"), **{"model.path": MODEL, "model.max_context": 1024, **budget})
    c.model = MODEL.name
    c.logged(r"ev=plan mode=hierarchical algorithm=quest .*hot_rows=192")
    for _ in range(2):
        got = c.openai().chat.completions.create(model=c.model, temperature=0, max_tokens=60,
                                                 messages=[{"role": "user", "content": EXAMPLES["several"]["user"]}])
        assert got.choices[0].message.content.strip() == EXAMPLES["several"]["answer"]
    c.idle()
