"""Model families under mpirun, with the tokens that one process gives: a chat request to a tiny Llama, and prompts to the golden
checkpoint of each family that `sluice` names."""

import json
import pathlib
import re
import subprocess

import pytest
import real

GOLDEN = real.ROOT / "tests" / "golden" / "model" / "llama-rope3"
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"]
EOT = SPECIAL.index("<|eot_id|>")
NEW = 48

# What Llama 3.1's template makes of the messages below.
MESSAGES = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Where is Oslo? "}]
PROMPT = ("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
          "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nAnswer in one word.<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nWhere is Oslo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")


def checkpoint(folder, golden=GOLDEN):
    """A golden checkpoint with a tokenizer of its vocabulary's size: special tokens, line break, space and printable ASCII."""
    folder.mkdir()
    for file in golden.iterdir():
        (folder / file.name).symlink_to(file)
    letters = ["\u010a", "\u0120", *map(chr, range(0x21, 0x7f))]  # byte-level BPE writes line break and space so
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(SPECIAL)]
    parts = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", **parts}, "decoder": {"type": "ByteLevel", **parts},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(SPECIAL + letters)}, "merges": []}}))
    return folder


def generate(model, *flags):
    p = subprocess.run([real.SLUICE, "generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", str(NEW), "--ignore-eos",
                        "--threads", "1", "--json", *flags], capture_output=True, text=True, timeout=300, check=False)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def test_chat_with_a_llama(start, tmp_path):
    model = checkpoint(pathlib.Path(tmp_path) / "tiny-llama")
    want = generate(model)
    hierarchical = generate(model, "--mode", "hierarchical")  # the default hot rows hold the whole context
    assert want["algorithm"] == "dense" and hierarchical["ids"] == want["ids"]
    assert len(want["prompt_ids"]) > 128 and want["prompt_ids"].count(EOT) == 2

    c = start(roles=("router", "prefill", "decode"), **{"model.path": model, "model.max_context": 512})
    c.model = model.name
    c.logged(r"ev=plan .*algorithm=dense")
    chat = c.openai().chat.completions
    for _ in range(2):  # the second time with the prompt's pages cached
        stream = chat.create(model=c.model, messages=MESSAGES, max_tokens=NEW, temperature=0, stream=True, extra_body={"ignore_eos": True})
        assert "".join(x.choices[0].delta.content or "" for x in stream) == want["text"]
    assert c.tokens(want["prompt_ids"], NEW) == want["ids"]

    # generation_config.json does not name <|eot_id|>; it ends the turn nevertheless
    stopped = chat.create(model=c.model, messages=MESSAGES, max_tokens=NEW, temperature=0, logit_bias={str(EOT): 100})
    assert stopped.choices[0].finish_reason == "stop" and not stopped.choices[0].message.content
    assert stopped.usage.completion_tokens == 1 and stopped.usage.prompt_tokens == len(want["prompt_ids"])
    c.idle()


# The golden checkpoint that stands for a family; every family of the registry has one.
CHECKPOINTS = {"deepseek_v32": "ds-yarn", "glm_moe_dsa": "glm-share", "llama": "llama-odd", "qwen2": "qwen2-mha", "qwen3": "qwen3-yarn",
               "hy_v4": "hy4-share", "axk2": "axk2-light", "deepseek_v4": "v4-flash", "minimax_m3_vl": "m3-vl",
               "qwen4_exp": "qwen4-ngram", "glm5_next": "glm5-flash"}
ALGORITHMS = {"minimax_m3_vl": "msa", "deepseek_v4": "dense", "qwen4_exp": "pooled", "glm5_next": "pooled"}  # others: dsa
STATES = ("deepseek_v4", "glm5_next", "qwen4_exp")  # their layers keep states: test_state_families.py
# Those that the rest of the suite serves with kills, groups and tiers (tiny-v32, facts-llama), or that are the same with other weights.
ELSEWHERE = {"deepseek_v32", "llama", "qwen2", "qwen3"}
ROWS = tuple(sorted(set(CHECKPOINTS) - ELSEWHERE - set(STATES)))  # every other family of the registry


def registry(folder):
    """The families that the program knows, as it lists them when it refuses another one."""
    (folder / "config.json").write_text('{"model_type": "none"}')
    p = subprocess.run([real.SLUICE, "inspect", "--model", folder], capture_output=True, text=True, timeout=60, check=False)
    return set(re.search(r"is not supported \((.*) are\)", p.stderr).group(1).split(", "))


def test_every_family_has_a_checkpoint(tmp_path):
    assert registry(tmp_path) == set(CHECKPOINTS)


@pytest.mark.parametrize("family", sorted(CHECKPOINTS))
def test_the_parts_of_states(family):
    """`sluice inspect` shows what lies in the state of a layer: parts that follow each other up to the bytes of a request."""
    folder = real.ROOT / "tests" / "golden" / "model" / CHECKPOINTS[family]
    p = subprocess.run([real.SLUICE, "inspect", "--model", folder], capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0, p.stderr
    classes = re.findall(r"and (\d+) B of a request\n((?:    .*\n)*)", p.stdout)
    assert classes
    assert any(parts for _, parts in classes) == (family in STATES)
    for bytes_of_request, parts in classes:
        end = 0
        for size, at in re.findall(r"(\d+) B at byte (\d+)", parts):
            assert end <= int(at) < end + 16
            end = int(at) + int(size)
        assert end == int(bytes_of_request)


@pytest.mark.parametrize("family", ROWS)
def test_a_cluster_of_each_family(start, tmp_path, family):
    """Hierarchical, with few hot rows, prompts shipped from another process, and a prefix that is found again."""
    model = checkpoint(pathlib.Path(tmp_path) / family, real.ROOT / "tests" / "golden" / "model" / CHECKPOINTS[family])
    ids = [2 + (7 * i * i + i) % 90 for i in range(150)]
    p = subprocess.run([real.SLUICE, "generate", "--model", model, "--ids", ",".join(map(str, ids)), "--max-new-tokens", str(NEW),
                        "--ignore-eos", "--threads", "1", "--json"], capture_output=True, text=True, timeout=300, check=False)
    assert p.returncode == 0, p.stderr
    want = json.loads(p.stdout)["ids"]
    c = start(roles=("router", "prefill", "decode"), **{"model.path": model, "model.max_context": 512})
    c.model = model.name
    c.logged(rf"ev=plan .*algorithm={ALGORITHMS.get(family, 'dsa')}")
    for _ in range(2):
        assert c.tokens(ids, NEW) == want
    c.idle()
