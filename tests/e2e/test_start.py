"""What cannot work is said at the start, before weights are loaded, with the key that has to change; and what a terminal may be shown."""

import pathlib
import socket
import subprocess
import sys

import pytest

import real

sys.path.insert(0, str(real.ROOT / "deploy"))
import client  # noqa: E402


def refused(role, **settings):
    """The last line of a process that must not start, and everything that it wrote."""
    fixed = {"router.http_port": 0, "router.grpc_port": 0, "cluster.router_port": 0 if role == "router" else 1}
    args = real.settings_args({**fixed, **{k.replace("__", "."): v for k, v in settings.items()}})
    p = subprocess.run([real.SLUICE, role, "--config", real.ROOT / "configs/no-mpi.yaml", *args], capture_output=True, text=True,
                       timeout=120, check=False, env=real.environment())
    assert p.returncode not in (0, -6, -11), p.stderr
    return p.stderr.strip().splitlines()[-1], p.stderr


@pytest.fixture
def taken():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


@pytest.mark.parametrize("key", ["router.http_port", "router.grpc_port", "cluster.router_port"])
def test_a_taken_port_of_the_router(taken, key):
    last, _ = refused("router", **{key: taken})
    assert key in last and str(taken) in last and "in use" in last, last


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_taken_port_of_a_worker(taken, role):
    last, text = refused(role, metrics__port=taken)
    assert "metrics.port" in last and "in use" in last, last
    assert "ev=model " not in text, "the weights were loaded before the port was tried"


@pytest.mark.parametrize("settings,key", [
    ({"sparse_attention__hot_rows": real.TOPK - 1}, "sparse_attention.hot_rows"),
    ({"sparse_attention__hot_rows": 70000}, "sparse_attention.hot_rows"),
    ({"sparse_attention__hot_rows": [real.TOPK - 1] * 5}, f"sparse_attention.hot_rows is {real.TOPK - 1} for layer 0"),
    ({"model__path": "/does/not/exist"}, "model.path"),
    ({"sparse_attention__token_budget": 0}, "sparse_attention.token_budget"),
    ({"sparse_attention__algorithm": "quest"}, "sparse algorithm quest: selects by the keys of KV heads"),
    ({"sparse_attention__algorithm": "quest", "sparse_attention__block_tokens": 24}, "sparse_attention: block_tokens 24"),
    ({"sparse_attention__algorithm": "quest", "sparse_attention__token_budget": 1 << 20}, "sparse_attention: token_budget 1048576"),
    ({"sparse_attention__gqa_reduction": "sum"}, "sparse_attention.gqa_reduction"),
])
def test_a_worker_that_cannot_be(settings, key):
    last, text = refused("decode", **settings)
    assert key in last, last
    assert "ev=model " not in text and "ev=loading" not in text, "the weights were loaded before the setting was checked"


def test_a_router_without_a_model():
    last, _ = refused("router", model__path="/does/not/exist")
    assert "model.path" in last and "/does/not/exist" in last, last


def test_only_printable_characters_reach_the_terminal():
    assert client.printable("a\x1b]0;title\x07b\x9b2Jc\nd\te\x7f é") == "a�]0;title�b�2Jc\nd\te� é"
    source = pathlib.Path(real.ROOT / "deploy/quickstart").read_text()
    line = next(line for line in source.splitlines() if line.startswith("printable() "))
    script = f"{line}\nprintf 'a\\033[2Jb\\tc\\n\\177d\\303\\251' | printable"
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert out == b"a[2Jb\tc\nd\xc3\xa9"


# ---- limits of the process ----


@pytest.mark.parametrize("role", ["router", "prefill", "decode"])
def test_too_few_descriptors_are_named(role):
    for n in (32, 40, 48, 64, 100):
        p = subprocess.run(["prlimit", f"--nofile={n}", real.SLUICE, role, "--config", real.ROOT / "configs/no-mpi.yaml"],
                           capture_output=True, text=True, timeout=60, env=real.environment())
        assert p.returncode > 0 and f"(ulimit -n) is {n}," in p.stderr and "at least 128" in p.stderr, (n, p.returncode, p.stderr)


def test_the_least_descriptors_serve(start):
    few = ["prlimit", "--nofile=128"]
    router = start(real.Process, "router", prefix=few)
    for i, role in enumerate(("prefill", "decode")):
        start(real.Process, role, router=router.worker_address, index=i, prefix=few)
    router.wait_ready(2)
    assert router.tokens([5, 6, 7], 8) == real.reference([5, 6, 7], 8)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_little_address_space_is_named_or_enough(start, role):
    """At every limit the process either says why it does not start, or it joins; UCX never ends it."""
    router = start(real.Process, "router")
    for mib in (256, 500, 800, 1000, 1300, 2200, 2500, 2800, 3300, 4000):
        p = start(real.Process, role, index=0, router=router.worker_address, prefix=["prlimit", f"--as={mib << 20}"])
        real.until(f"{role} with {mib} MiB joins or ends", lambda: p.process.poll() is not None or router.workers(role), 20)
        if p.process.poll() is None:
            p.process.terminate()
            assert p.process.wait(60) == 0, (mib, p.process.returncode, p.tail())
            real.until("the worker is gone", lambda: not router.workers(role))
        else:
            last = p.text().strip().splitlines()[-1]
            assert p.process.returncode > 0 and ("(ulimit -v)" in last or "cannot allocate" in last), (mib, p.process.returncode, p.tail())


def test_a_router_with_little_address_space():
    p = subprocess.run(["prlimit", f"--as={700 << 20}", real.SLUICE, "router", "--config", real.ROOT / "configs/no-mpi.yaml"],
                       capture_output=True, text=True, timeout=60, env=real.environment())
    assert p.returncode > 0 and "(ulimit -v) is 700 MiB" in p.stderr, p.stderr


@pytest.mark.parametrize("role", ["router", "prefill", "decode"])
def test_little_shared_memory_is_named(role):
    """UCX keeps its queues in /dev/shm; the last line of a process that cannot start says so, with its size and what is needed."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make mount namespaces")
    script = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    args = real.settings_args({"router.http_port": 0, "router.grpc_port": 0, "cluster.router_port": 0 if role == "router" else 1})
    p = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", real.SLUICE, role, "--config", real.ROOT / "configs/no-mpi.yaml", *args],
                       capture_output=True, text=True, timeout=60, env=real.environment())
    last = p.stderr.strip().splitlines()[-1]
    assert p.returncode > 0 and "/dev/shm has 64 KiB free of 64 KiB" in last and "16 MiB" in last, p.stderr


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_stops_gives_its_port_back_first(start, role):
    """A GPU worker needs seconds to release its memory; a second cluster on the same ports can start meanwhile."""
    router = start(real.Process, "router")
    p = start(real.Process, role, index=0, router=router.worker_address)
    real.until("the worker joins", lambda: router.workers(role))
    port = int(router.workers(role)[0]["metrics"].rsplit(":", 1)[1])
    p.process.terminate()
    p.logged("ev=stopped")
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", port)) != 0, "the port is still open"
    assert p.process.wait(60) == 0
