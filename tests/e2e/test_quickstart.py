"""deploy/quickstart, as a new user runs it: what it prints, and that nothing stays."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

import real

MODEL = real.ROOT / "models" / "facts-dsa"
QUICKSTART = real.ROOT / "deploy" / "quickstart"


@pytest.fixture(autouse=True)
def release_build(clean):
    if real.SLUICE.resolve() != (real.ROOT / "build" / "release" / "sluice").resolve():
        pytest.skip("quickstart runs build/release; another build is tested")


def begin(*args):
    return subprocess.Popen([QUICKSTART, *args], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=real.environment(), start_new_session=True)


def test_it_runs_and_reports(tmp_path):
    p = begin()
    try:
        out, _ = p.communicate(timeout=400)
    finally:
        real.end(p, 0.1)
    assert p.returncode == 0, out
    assert re.search(r"ready after [\d.]+ s: 3 workers", out), out
    for what, times in (("HTTP chat completion", 2), ("gRPC Generate", 1)):
        lines = re.findall(rf"{what}: (\d+) tokens, TTFT ([\d.]+) ms, inter-token latency ([\d.]+) ms \(\w+\), ([\d.]+) tokens/s", out)
        assert len(lines) == times and all(float(x) > 0 for line in lines for x in line), out
    answers = [q["answer"] for q in json.loads((MODEL / "questions.json").read_text(encoding="utf-8"))[:2]]
    assert re.findall(r"assistant: (.*)", out) == answers
    prompts = [[int(n) for n in line] for line in re.findall(r"of the prompt's (\d+) tokens (\d+) were cached", out)]
    assert prompts[0][0] > 3800 and prompts[0][1] == 0 and prompts[1][1] > 3800, out
    hits = re.search(r"swap-in hit rate ([\d.]+) % \((\d+) hits, (\d+) misses", out)
    assert hits and int(hits[2]) > 0, out
    assert "metrics: http://" in out and "stopped: no process, no shared memory left" in out
    ids = re.search(r"token ids: ([\d ]+)", out)[1].split()
    assert [int(i) for i in ids] == real.reference(list(range(10, 74)), 64, model=MODEL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_keep_until_ctrl_c(how):
    p = begin("--keep")
    seen = ""
    try:
        deadline = time.monotonic() + 400
        while "Ctrl-C stops it" not in seen:
            assert time.monotonic() < deadline, seen
            line = p.stdout.readline()
            assert line, f"it ended with {p.wait()}: {seen}"
            seen += line
        time.sleep(1.5)
        assert p.poll() is None, "it did not keep running"
        assert real.marked(), "the cluster is not there"
        os.killpg(p.pid, how)  # what a terminal does with Ctrl-C: the whole foreground group
        out, _ = p.communicate(timeout=120)
    finally:
        real.end(p, 0.1)
    assert "stopped: no process, no shared memory left" in out, out
    assert p.returncode == 130


def test_wrong_setting_says_so():
    p = begin("--set", "kvstore.bytez=1")
    try:
        out, _ = p.communicate(timeout=400)
    finally:
        real.end(p, 0.1)
    assert p.returncode != 0 and "bytez" in out, out


def test_a_cluster_that_cannot_start_says_why():
    p = begin("--set", "model.path=/nowhere")
    try:
        out, _ = p.communicate(timeout=400)
    finally:
        real.end(p, 0.1)
    assert p.returncode != 0 and "/nowhere" in out, out
