"""Two versions side by side: every worker of a cluster is replaced by one of another version, one after the other, while clients
stream; no request is lost, and every token is that of a cluster that was left alone."""

import re
import subprocess
import threading

import pytest

import real

OTHER = "0.9.9"  # as long as the version of this tree, which it replaces in a copy of the program


def version():
    return re.search(r'SL_VERSION "(.*)"', (real.ROOT / "base" / "version.h").read_text())[1]


@pytest.fixture(scope="module")
def other_program(tmp_path_factory):
    """The program as another version whose messages have the same number."""
    assert len(OTHER) == len(version()) and OTHER != version()
    path = tmp_path_factory.mktemp("other") / "sluice"
    path.write_bytes(real.SLUICE.read_bytes().replace(version().encode(), OTHER.encode()))
    path.chmod(0o755)
    return path


def test_the_rule_is_printed(other_program):
    number = re.search(r"#define SL_MSG_VERSION (\d+)", (real.ROOT / "base" / "msg.h").read_text())[1]
    for program, v in ((real.SLUICE, version()), (other_program, OTHER)):
        assert subprocess.run([program, "version"], capture_output=True, text=True, check=True, timeout=30).stdout == \
            f"sluice {v}, messages {number}\n"
    page = (real.ROOT / "docs" / "operations.md").read_text()
    assert f"(`sluice {version()}, messages {number}`)" in page, "docs/operations.md shows another number"


def start(directory, role, index, router, program=None, monkeypatch=None):
    if program:
        monkeypatch.setattr(real, "SLUICE", program)
    try:
        return real.Process(directory, role, index=index, router=router.workers_at if router else None)
    finally:
        if program:
            monkeypatch.undo()


def builds(processes):
    return {re.search(r'sluice_build_info\{version="([^"]*)"', p.metrics())[1] for p in processes}


def test_every_worker_is_replaced_under_load(other_program, tmp_path, clean, monkeypatch):
    router = real.Process(tmp_path, "router")
    running = []
    try:
        router.find_router()
        router.workers_at = re.search(r"ev=listening workers=(\S+)", router.text())[1]
        old = [start(tmp_path, "prefill", 0, router), start(tmp_path, "decode", 0, router)]
        running += old
        router.wait_ready(2)
        wanted = {i: router.tokens(real.prompt(f"up{i}", 100 + i), 120) for i in range(4)}
        stop, wrong, done = threading.Event(), [], [0]

        def client(i):
            while not stop.is_set():
                try:
                    if router.tokens(real.prompt(f"up{i}", 100 + i), 120) != wanted[i]:
                        wrong.append("other tokens")
                    done[0] += 1
                except Exception as e:  # noqa: BLE001 - whatever a client meets is a lost request
                    wrong.append(repr(e))
        clients = [threading.Thread(target=client, args=(i,)) for i in wanted]
        for t in clients:
            t.start()
        new = [start(tmp_path, role, 1, router, other_program, monkeypatch) for role in ("prefill", "decode")]
        running += new
        router.wait_ready(4)
        assert builds(running) == {version(), OTHER}
        before = done[0]
        for p in old:
            assert p.close(60), "an old worker did not drain"
            running.remove(p)
        real.until("requests on the new workers alone", lambda: done[0] >= before + 8, 60, 0.1)
        stop.set()
        for t in clients:
            t.join(60)
        assert not wrong and builds(running) == {OTHER}, wrong[:3]
    finally:
        ended = [p.close() for p in running] + [router.close()]
    assert all(ended)
