"""Fixtures of the end-to-end tests. Every module that starts real clusters asserts at its end that nothing is left of them."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
pytest.register_assert_rewrite("streams")
import real  # noqa: E402


@pytest.fixture(scope="module")
def clean():
    """Nothing may stay: no process, no shared memory."""
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
