"""`sluice cache`: fills, shows, lists, verifies and empties the caches of a running cluster; lists, checks and removes the store of a
stopped worker."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import real

IDS = real.prompt("cache-command", 64 * 3 + 9)
N = 8


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


def flip_byte(file, slot, page_bytes):
    """Changes a byte of the page in this slot of the first segment."""
    with open(file, "r+b") as f:
        f.seek(2 * 4096 + slot * (4096 + -(-page_bytes // 4096) * 4096) + 4096 + 1000)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 1]))


def flip_memory(c):
    """Changes bytes in every page of the host store of the decode worker; False where the system forbids it."""
    pid = c.pid("decode/0")
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:sluice-arena" in line:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            break
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    except PermissionError:
        return False
    data = bytearray(os.pread(memory, end - begin, begin))
    for at in range(4096, len(data), 8192):
        data[at] ^= 0x10
    os.pwrite(memory, data, begin)
    os.close(memory)
    return True


def pages(c, *args):
    return [json.loads(line) for line in sluice("ls", "--router", c.http, "--json", *args).splitlines()]


def answers(c, cached):
    """The prompt has the tokens of one process, and this number of its tokens was cached."""
    r = c.complete(IDS, N)
    assert list(r.output_ids) == real.reference(IDS, N)
    assert r.cached_tokens == cached
    c.idle()


def look_into_a_running_worker(c, own):
    disk, host = pages(c, "--tier", "disk"), pages(c, "--tier", "host")
    assert {p["tier"] for p in pages(c)} == {"host", "disk"} and len(pages(c, "--worker", "decode/0")) == len(host) + len(disk)
    assert sorted(p["prefix_tokens"] for p in host)[-1] == 64 * 3
    assert {p["key"] for p in host} <= {p["key"] for p in disk}
    key = host[0]["key"]
    assert [p["key"] for p in pages(c, "--tier", "disk", "--prefix", key)] == [key]
    text = sluice("ls", "--router", c.http, "--tier", "host", "--prefix", key[:20])
    assert text.startswith(f"decode/0  host    {key}  ends at token ")
    short = subprocess.run([real.SLUICE, "cache", "ls", "--router", c.http, "--limit", "2"], capture_output=True, text=True, check=False)
    assert len(short.stdout.splitlines()) == 2 and "more than 2 pages" in short.stderr
    assert "no tier tape" in sluice("ls", "--router", c.http, "--tier", "tape", code=1)
    assert "no decode worker of this name" in sluice("ls", "--router", c.http, "--worker", "prefill/0", code=1)

    said = sluice("verify", "--router", c.http, "--rate", 1000)
    assert f"decode/0  verify done: {len(host) + len(disk)} pages read" in said and "0 damaged" in said
    if flip_memory(c):
        job = json.loads(sluice("verify", "--router", c.http, "--tier", "host", "--json", code=1))
        assert job["damaged"] == len(host) == job["pages"] and set(job["damaged_keys"]) == {p["key"] for p in host}
        assert not pages(c, "--tier", "host")
        assert real.metric(c.metrics(2), "sluice_store_damaged_pages_total", 'where="verify"') == len(host)
        answers(c, 64 * 3)  # from the disk
    page_bytes = next(t["bytes"] / t["pages"] for t in decode(c)["cache"]["tiers"] if t["pages"])
    flip_byte(own / "pages.sluice", 1, int(page_bytes))
    job = json.loads(sluice("verify", "--router", c.http, "--tier", "disk", "--json", code=1))
    assert job["damaged"] == 1 and job["unreadable"] == 0 and job["state"] == "done"
    assert not pages(c, "--tier", "disk", "--prefix", job["damaged_keys"][0])
    flip_byte(own / "pages.sluice", 1, int(page_bytes))  # the record stays in the file, forgotten, until its place is used again
    assert json.loads(sluice("verify", "--router", c.http, "--status", "--json"))["damaged"] == 1
    assert "verify done" in sluice("verify", "--router", c.http, "--cancel")  # nothing runs
    sluice("drop", "--router", c.http, "--wait", 60)  # prefill workers too
    answers(c, next(p["prefix_tokens"] for p in host if p["key"] == job["damaged_keys"][0]) - 64)

    assert "drop done" in sluice("drop", "--router", c.http, "--tier", "disk")
    assert not pages(c, "--tier", "disk") and pages(c, "--tier", "host")
    sluice("drop", "--router", c.http, "--tier", "host", "--worker", "decode/0")
    assert not pages(c)
    sluice("drop", "--router", c.http, "--wait", 60)
    answers(c, 0)
    real.until("the pages on disk again", lambda: len(pages(c, "--tier", "disk")) >= 3)


def test_running_and_stopped(start, disk, tmp_path):
    c = start(roles=("router", "prefill", "decode"),
              **{"kvstore.bytes": "33MiB", "cluster.shipping": "auto", "kvstore.disk.path": disk, "kvstore.disk.bytes": "64MiB"})
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
    own = disk / "decode-0"
    c.idle()
    look_into_a_running_worker(c, own)
    sluice("drop", "--router", c.http, "--wait", 60)
    c.idle()
    real.until("no cached page", lambda: decode(c)["cached_pages"] == 0)
    assert c.complete(IDS, 1).cached_tokens == 64 * 3, "the disk keeps them"

    for action in ("stat", "ls", "verify", "drop"):
        assert "is in use by a worker" in sluice(action, "--dir", own, code=1)
    c.idle()
    assert c.close()

    listed = json.loads(sluice("ls", "--dir", own, "--json"))
    assert listed["pages"] == len(listed["records"]) >= 3 and listed["room"] > 100
    assert len({r["key"] for r in listed["records"]}) == listed["pages"] - 1, "one page was forgotten and written again"
    assert f"verified     {listed['pages']} pages, 0 damaged" in sluice("verify", "--dir", own)
    stat = json.loads(sluice("stat", "--dir", own, "--json"))
    assert stat["pages"] == listed["pages"] and stat["damaged"] is None
    slot = listed["records"][-1]["slot"]
    flip_byte(own / "pages.sluice", slot, stat["page_bytes"])
    found = json.loads(sluice("verify", "--dir", own, "--json", code=1).split("\n 8 of")[0].rsplit("}", 1)[0] + "}")
    assert found["damaged"] == 1 and [r["slot"] for r in found["records"]] == [slot]
    sluice("drop", "--dir", own)
    assert list(own.iterdir()) == []
