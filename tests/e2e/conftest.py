"""Fixtures of the end-to-end tests. Every module that starts real clusters checks at its end that no process and no shared
memory of them remains. The fixtures for official clients (cluster, own, client, stub) use mock workers, see clients.py."""

import os
import pathlib
import sys
import time

import grpc
import openai
import pytest
import requests

sys.path.insert(0, os.path.dirname(__file__))
pytest.register_assert_rewrite("streams")
import clients  # noqa: E402
import real  # noqa: E402


@pytest.fixture(scope="module")
def clean():
    """After the module, no process and no shared memory of its clusters may remain."""
    before = real.Leftovers()
    yield before
    before.check()


@pytest.fixture
def start(clean, tmp_path):
    """Starts clusters and processes of the test's own; closes them, latest first, and prints the logs when the test failed."""
    made = []

    def make(kind=real.Cluster, *args, **kw):
        c = kind(tmp_path, *args, **kw)
        made.append(c)
        return c

    yield make
    stuck = [c for c in reversed(made) if not c.close()]
    for c in made:
        print(f"---- {c.log.name}\n{c.tail(60)}")
    for log in pathlib.Path(tmp_path).glob("*.log"):
        assert "AddressSanitizer" not in log.read_text(errors="replace"), log.read_text(errors="replace")[-4000:]
    assert not stuck, f"had to be killed: {[c.log.name for c in stuck]}"


@pytest.fixture(autouse=True)
def built():
    if not real.SLUICE.exists():
        pytest.skip(f"{real.SLUICE} is not built")


@pytest.fixture(scope="module")
def cluster():
    c = clients.running() or clients.mock("--eos-every", 0)
    deadline = time.time() + 120
    while requests.get(c.http + "/health", timeout=30).status_code != 200:
        assert time.time() < deadline, "the cluster does not become ready"
        time.sleep(0.05)
    yield c
    c.close()


@pytest.fixture
def own():
    """Starts mock clusters that belong to one test; the test is skipped when the mock cluster is not built."""
    made = []

    def make(*args, tls=False):
        if not clients.MOCK.exists():
            pytest.skip(f"{clients.MOCK} is not built")
        c = clients.mock(*args, tls=tls)
        made.append(c)
        deadline = time.time() + 120
        while not tls and requests.get(c.http + "/health", timeout=30).status_code != 200:
            assert time.time() < deadline
            time.sleep(0.02)
        return c

    yield make
    for c in made:
        c.close()


@pytest.fixture
def client(cluster):
    return openai.OpenAI(base_url=cluster.http + "/v1", api_key=cluster.key, max_retries=0, timeout=240)


@pytest.fixture
def stub(cluster):
    _, services, _ = clients.protocol()
    with grpc.insecure_channel(cluster.grpc) as channel:
        yield services.SglangSchedulerStub(channel)
