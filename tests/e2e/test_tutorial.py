"""The tutorial: every block of commands that it shows is run in the order of the page, as a reader would, with free ports instead of
the ports that it names; every file of YAML that it shows is a configuration."""

import os
import re
import signal
import subprocess

import pytest
import yaml

import real

PAGE = real.ROOT / "docs" / "tutorial.md"
PORTS = ("8080", "50051", "7300", "9400", "9401", "9402", "9403")


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def commands(tmp_path):
    """A folder with the repository's files, in which configurations have free ports, and a function that replaces them in a text."""
    # each port of the page gets a row of free ones, because ranks count on from theirs
    new = {p: str(real.free_ports(8)) for p in PORTS}

    def moved(text):
        return re.sub("|".join(PORTS), lambda m: new[m[0]], text)
    for name in ("models", "tests", "simulate"):
        (tmp_path / name).symlink_to(real.ROOT / name)
    (tmp_path / "configs").mkdir()
    for f in (real.ROOT / "configs").glob("*.yaml"):
        text = moved(f.read_text())
        if f.name == "no-mpi.yaml":
            text += f"router:\n  http_port: {new['8080']}\n  grpc_port: {new['50051']}\n"
        (tmp_path / "configs" / f.name).write_text(text)
    return moved


def test_the_tutorial(commands, tmp_path, clean):
    script = "set -eo pipefail\n" + "\n".join(f"echo '== block {i}'\n{commands(b)}" for i, b in enumerate(blocks("sh")))
    if os.geteuid() != 0:
        script = script.replace("--allow-run-as-root ", "")
    (tmp_path / "script").write_text(script)
    env = {**real.environment(), "PATH": f"{real.SLUICE.parent}:{os.environ['PATH']}"}
    p = subprocess.Popen(["bash", "script"], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        out, _ = p.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGTERM)
        out, _ = p.communicate(timeout=30)
    if p.returncode:  # what the script left running
        for pid, command in real.marked().items():
            if str(tmp_path) in os.readlink(f"/proc/{pid}/cwd"):
                os.kill(pid, signal.SIGTERM)
    logs = "".join(f"--- {f.name}\n{f.read_text()[-1500:]}" for f in tmp_path.glob("*.log"))
    assert p.returncode == 0, out + logs
    assert "Dora Cole likes the colour red" in out and "requests that fit" in out and "0 wrong" in out and "errors of the last hour" in out, out
    # with the cache in host memory the tokens are those with it on the device
    assert len(re.findall(r"^ids: (.*)", out, re.MULTILINE)) == 2 and len(set(re.findall(r"^ids: (.*)", out, re.MULTILINE))) == 1, out


def test_its_configuration_exists(tmp_path):
    for i, text in enumerate(blocks("yaml")):
        path = tmp_path / f"{i}.yaml"
        (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef\n")
        path.write_text(text.replace("/etc/sluice/cluster-secret", str(tmp_path / "secret")))
        r = subprocess.run([real.SLUICE, "config", "--config", path], capture_output=True, text=True, timeout=30, check=False)
        assert r.returncode == 0, r.stderr
        assert yaml.safe_load(r.stdout)["cluster"]["router_host"] == "10.0.0.1"
