"""`sluice cache`: fills, shows and empties the caches of a running cluster; lists, checks and removes the store of a stopped worker."""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import real

IDS = real.prompt("cache-command", 64 * 3 + 9)


@pytest.fixture
def disk():
    """On the file system of the build, because that of temporary files may have no O_DIRECT."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="cache-command-", dir=real.ROOT / "build"))
    yield path
    shutil.rmtree(path)


def sluice(action, *args, code=0):
    p = subprocess.run([real.SLUICE, "cache", action, *map(str, args)], capture_output=True, text=True, timeout=120, check=False)
    assert p.returncode == code, p.stdout + p.stderr
    return p.stdout if code != 1 or not p.stderr else p.stdout + p.stderr


def decode(c):
    workers = json.loads(sluice("stat", "--router", c.http, "--json"))
    return next(w for w in workers if w["role"] == "decode")


def test_running_and_stopped(start, disk, tmp_path):
    c = start(roles=("router", "prefill", "decode"), **{"kvstore.disk.path": disk, "kvstore.disk.bytes": "64MiB"})
    prompts = tmp_path / "prompts"
    prompts.write_text(json.dumps({"prompt": IDS}) + "\n\n" + "one text that is shorter than a page\n" +
                       json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n")
    said = sluice("warm", "--router", c.http, "--file", prompts, "--parallel", 2)
    assert f"line 1: {len(IDS)} tokens, 0 were cached" in said and "3 prompts" in said and "0 failed" in said
    assert c.complete(IDS, 1).cached_tokens == 64 * 3
    said = sluice("warm", "--router", c.http, "--file", prompts)
    assert f"line 1: {len(IDS)} tokens, {64 * 3} were cached" in said
    prompts.write_text('{"prompt": 1\n{"no": 1}\n')
    said = sluice("warm", "--router", c.http, "--file", prompts, code=1)
    assert "line 1: " in said and 'line 2: has neither "prompt" nor "messages"' in said and "2 failed" in said

    real.until("the pages on disk", lambda: any(t["pages"] >= 3 for t in decode(c)["cache"]["tiers"]))
    cache = decode(c)["cache"]
    tier, = cache["tiers"]
    assert cache["hit_tokens"] == 64 * 3 * 2 and tier["tier"] == "disk" and tier["state"] == "healthy"
    assert tier["miss_pages"]["absent"] >= 3 and tier["lost_pages"]["io"] == 0
    text = sluice("stat", "--router", c.http)
    assert "decode/0  ready" in text and "disk       healthy: " in text and "not found: absent " in text
    sluice("drop", "--router", c.http, "--wait", 60)
    c.idle()
    real.until("no cached page", lambda: decode(c)["cached_pages"] == 0)
    assert c.complete(IDS, 1).cached_tokens == 64 * 3, "the disk keeps them"

    own = disk / "decode-0"
    for action in ("stat", "ls", "verify", "drop"):
        assert "is in use by a worker" in sluice(action, "--dir", own, code=1)
    assert "needs --dir" in subprocess.run([real.SLUICE, "cache", "ls", "--router", c.http], capture_output=True, text=True,
                                           check=False).stderr
    c.idle()
    assert c.close()

    listed = json.loads(sluice("ls", "--dir", own, "--json"))
    assert listed["pages"] == len(listed["records"]) >= 3 and listed["room"] > 100
    assert len({r["key"] for r in listed["records"]}) == listed["pages"]
    assert f"verified     {listed['pages']} pages, 0 damaged" in sluice("verify", "--dir", own)
    stat = json.loads(sluice("stat", "--dir", own, "--json"))
    assert stat["pages"] == listed["pages"] and stat["damaged"] is None
    slot = 4096 + -(-stat["page_bytes"] // 4096) * 4096
    with open(own / "pages.sluice", "r+b") as f:  # the second page of the first segment
        f.seek(2 * 4096 + slot + 4096 + 1000)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 1]))
    found = json.loads(sluice("verify", "--dir", own, "--json", code=1).split("\n 8 of")[0].rsplit("}", 1)[0] + "}")
    assert found["damaged"] == 1 and [r["slot"] for r in found["records"]] == [1]
    sluice("drop", "--dir", own)
    assert list(own.iterdir()) == []
