"""Random weights (model.load_format dummy): a cluster without files of weights, whose tokens are those of one process with the same
config; processes with real weights and such without do not mix."""

import json
import shutil
import subprocess
import sys

import pytest

import real
from streams import QUICK

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
DUMMY = {"model.load_format": "dummy"}


def model(to, **keys):
    """A directory with everything of the usual model but its weights, and with these keys of config.json."""
    to.mkdir()
    for name in FILES:
        shutil.copy(real.MODEL / name, to / name)
    path = to / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return to


def generate(path, ids, n, *more):
    command = [str(real.SLUICE), "generate", "--model", str(path), "--threads", "1", "--json", "--ignore-eos", "--ids",
               ",".join(map(str, ids)), "--max-new-tokens", str(n), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=real.ROOT)


@pytest.mark.parametrize("keys", [{"quantization_config": FP8, "kv_lora_rank": 128}, {}], ids=["fp8", "bf16"])
def test_a_group_has_the_tokens_of_one_process(start, tmp_path, keys):
    """Two ranks of role both, hierarchical; one is killed and replaced."""
    path = model(tmp_path / "tiny-v32", **keys)
    common = {**QUICK, **DUMMY, "model.path": path}
    c = start(real.Process, "router", **common, **{"router.retries": 20})
    at = {"cluster.groups": f"[both=2@127.0.0.1:{real.free_ports(1)}]"}

    def rank(k, **settings):
        return start(real.Process, "both", None, c.worker_address, rank=("0", str(k), "2"), **{**common, **at, **settings})

    ranks = [rank(0), rank(1)]
    c.wait_ready(2)
    for p in [c, *ranks]:
        p.logged("ev=random_weights.*answers have no meaning")
    prompts = [real.prompt(f"dummy{i}", 90 + 40 * i) for i in range(2)]
    want = [json.loads(generate(path, ids, 30, "--load-format", "dummy").stdout)["ids"] for ids in prompts]
    assert want[0] != want[1] and len(set(want[0])) > 3
    assert [c.tokens(ids, 30) for ids in prompts] == want
    if not keys:
        return
    ranks[1].process.kill()
    ranks[1].process.wait(60)
    ranks[0].logged(r"ev=broken.*rank 1")
    real_weights = rank(1, **{"model.path": real.MODEL, "model.load_format": "auto"})
    assert real_weights.process.wait(60 * real.PATIENCE) != 0
    assert "the tensors that it loads have the fingerprint" in real_weights.text()
    ranks[1] = rank(1)
    c.wait_ready(2)
    assert [c.tokens(ids, 30) for ids in reversed(prompts)] == want[::-1]


def test_real_and_random_weights_do_not_mix(start):
    """The same directory, once with its weights and once without: a worker that makes weights is refused by a cluster that reads them."""
    c = start(real.Process, "router", **QUICK)
    worker = start(real.Process, "both", 0, c.worker_address, **QUICK)
    c.wait_ready(1)
    assert "random_weights" not in c.text() + worker.text()
    other = start(real.Process, "both", 1, c.worker_address, **QUICK, **DUMMY, **{"model.row_format": "mla_f32", "model.indexer": "plain"})
    other.logged(r"fingerprint \w+ differs", 15)
    assert other.process.wait(60 * real.PATIENCE) != 0
    ids = real.prompt("mix", 80)
    assert c.tokens(ids, 12) == real.reference(ids, 12)


def test_without_weights_and_without_the_key(start, tmp_path):
    """What is asked for is said: no weights is an error unless they are to be made."""
    path = model(tmp_path / "bare")
    r = generate(path, [5, 6, 7], 4)
    assert r.returncode != 0 and "model.safetensors" in r.stderr, r.stderr
    (path / "config.json").unlink()
    r = generate(path, [5, 6, 7], 4, "--load-format", "dummy")
    assert r.returncode != 0 and "config.json" in r.stderr, r.stderr


@pytest.mark.parametrize("mode", ["resident", "hierarchical"])
@pytest.mark.parametrize("model", ["glm5.3_flash", "qwen3.8_flash_next", "deepseek_v4_flash"])
def test_families_that_keep_states_are_measured_with_prompts_that_count_as_computed(clean, model, mode):
    """`sluice bench serve --cached` of tests/gpu/served: with small dimensions of the family on the CPU, all streams have all tokens."""
    p = subprocess.run([sys.executable, real.ROOT / "tests/gpu/served", "--sluice", real.SLUICE, "--backend", "cpu", "--model", model,
                        "--store", "64MiB", "--device-bytes", "16MiB", "--streams", "3", "--prompt", "700", "--tokens", "400",
                        "--modes", "greedy", "--own-pages", "--seconds", "1", "--whole", "--set", "sparse_attention.mode=" + mode],
                       capture_output=True, text=True, timeout=120, check=False)
    assert p.returncode == 0, p.stdout + p.stderr
    row = [line.split() for line in p.stdout.splitlines() if line.split()[:3] == ["3", "700", "greedy"]]
    assert row and float(row[0][8]) > 0, p.stdout  # tokens/s
