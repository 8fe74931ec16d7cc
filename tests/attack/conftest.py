"""Fixtures of the attack tests: a cluster at ordinary limits, with honest clients whose streams must stay right while it is attacked,
and its twin, which is not attacked (honest.py)."""

import importlib.util
import pathlib
import sys

import pytest

E2E = pathlib.Path(__file__).resolve().parent.parent / "e2e"
sys.path.insert(0, str(E2E))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
spec = importlib.util.spec_from_file_location("e2e_fixtures", E2E / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
spec.loader.exec_module(e2e)
clean, start, built = e2e.clean, e2e.start, e2e.built

import honest  # noqa: E402
import real  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test in which first tokens were late runs again, with the same fixtures: it fails when every run was late."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    reasons = []
    while len(reasons) < honest.RUNS:
        try:
            pyfuncitem.obj(**arguments)
            return True
        except honest.Late as e:
            reasons.append(str(e))
            print(f"run {len(reasons)}: {e}")
    raise honest.Late(f"late in each of {honest.RUNS} runs: " + "; ".join(reasons))


@pytest.fixture(scope="module")
def twin(tmp_path_factory, clean):
    """The cluster that is not attacked, started when a test needs it."""
    made = []

    def get():
        if not made:
            made.append(real.Cluster(tmp_path_factory.mktemp("twin"), roles=("router", "prefill", "decode")))
        return made[0]
    yield get
    for c in made:
        assert c.close(), f"had to be killed:\n{c.tail()}"


@pytest.fixture(scope="module")
def targets(tmp_path_factory, clean):
    """The module's clusters, by their settings."""
    made = {}
    yield lambda settings: made.setdefault(tuple(sorted(settings.items())), []), tmp_path_factory
    for t in sum(made.values(), []):
        closed = t.cluster.close()
        assert closed or not t.alive(), f"had to be killed:\n{t.cluster.tail()}"
        assert "Sanitizer" not in t.cluster.text(), t.cluster.tail(60)


@pytest.fixture
def target(targets, twin):
    """A cluster with these settings: the one of an earlier test of the module, or another one when an attack has ended that."""
    of, directories = targets

    def make(**settings):
        mine = of(settings)
        if not mine or not mine[-1].alive():
            mine.append(honest.Target(directories.mktemp("attack"), twin(), **settings))
        return mine[-1]
    return make
