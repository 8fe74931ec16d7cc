"""models/facts-llama, a small trained checkpoint, answers questions about texts: what random weights cannot show."""
import json
import subprocess

import pytest

from real import ROOT, SLUICE

MODEL = ROOT / "models" / "facts-llama"
EXAMPLES = {e["task"]: e for e in json.loads((MODEL / "examples.json").read_text(encoding="utf-8"))}


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
