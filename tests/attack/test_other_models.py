"""Pages and processes of another model, which differs in one weight and in nothing else: over every way on which pages travel. None of its pages is
used, each is counted, and such a process is refused by name."""

import pathlib
import shutil
import tempfile

import pytest

import real
import test_shared_tiers as shared
import test_stores

PAGES, N = 3, 6
IDS = real.prompt("of-two-models", 64 * PAGES + 9)
ROLES = ("router", "prefill", "decode")
HEADER, CRC_AT = 96, 92  # kvstore/page_record.c


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    made = shared.other_checkpoint(tmp_path_factory.mktemp("other"))
    return made.rename(made.parent / real.MODEL.name)  # with the name that the cluster serves: only its weights say that it is another one


@pytest.fixture(params=[test_stores.RedisStore, test_stores.NixlStore])
def store(request):
    if request.param is test_stores.RedisStore and not real.have("redis-server"):
        pytest.skip("there is no redis-server")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))  # short, because the path of a Unix socket is
    made = request.param(directory)
    yield made
    made.close()
    shutil.rmtree(directory)


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def sealed(head):
    """With the checksum that fits."""
    return head[:CRC_AT] + crc32c(head[:CRC_AT]).to_bytes(4, "little")


# What lies under the name of a page of this model: from that page and from one of the other model.
FORGED = {
    "a page of the other model": lambda ours, theirs: theirs,
    "with our key": lambda ours, theirs: sealed(theirs[:16] + ours[16:32] + theirs[32:HEADER]) + theirs[HEADER:],
    "our page with its stamp": lambda ours, theirs: sealed(ours[:32] + theirs[32:48] + ours[48:HEADER]) + ours[HEADER:],
    "our page with its format and stamp": lambda ours, theirs: sealed(ours[:32] + theirs[32:48] + bytes(16) + ours[64:HEADER]) + ours[HEADER:],
    "its rows below our head": lambda ours, theirs: ours[:HEADER] + theirs[HEADER:],
}


def test_pages_in_a_shared_store(start, store, other):
    theirs = start(roles=ROLES, **store.settings, **{"model.path": other})
    assert theirs.complete(IDS, N).cached_tokens == 0
    real.until("pages of the other model", lambda: len(store.pages()) == PAGES)
    foreign = list(store.pages().values())
    assert theirs.close()
    c, want = start(roles=ROLES, **store.settings), real.reference(IDS, N)

    def asked():
        r = c.complete(IDS, N)
        assert list(r.output_ids) == want
        return r.cached_tokens

    def damaged():
        return real.metric(c.metrics(2), "sluice_tier_miss_pages_total", f'tier="{store.tier}"', 'reason="damaged"') or 0
    assert asked() == 0, "a page of the other model was found by its own name"
    real.until("pages of both", lambda: len(store.pages()) == 2 * PAGES)
    good = {k: v for k, v in store.pages().items() if v not in foreign}
    assert len(good) == PAGES and all(a[32:48] != b[32:48] for a, b in zip(good.values(), foreign))
    for kind, forge in FORGED.items():
        for key, page in zip(good, foreign):
            store.put(key, forge(good[key], page))
        before = damaged()
        c.flush()
        assert asked() == 0, kind
        assert damaged() > before, f"{kind}: not counted"
        for key, page in good.items():
            store.put(key, page)
        c.flush()
        assert asked() == 64 * PAGES, "what is right again is used again"
    c.idle()


def test_pages_on_disk(start, other, tmp_path):
    """The store of a worker of the other model is refused by name, and stays as it is; the worker serves without it."""
    keys = {"kvstore.disk.path": tmp_path, "kvstore.disk.bytes": "24MiB"}
    theirs = start(roles=ROLES, **keys, **{"model.path": other})
    assert theirs.complete(IDS, N).cached_tokens == 0
    shared.stored(theirs, "disk", PAGES)
    assert theirs.close()
    file = next(tmp_path.rglob("pages.sluice"))
    before = file.read_bytes()
    r = start(real.Process, "router")
    start(real.Process, "prefill", 0, r.worker_address)
    w = start(real.Process, "decode", 0, r.worker_address, **keys)
    w.logged(r"ev=unusable tier=disk .*fingerprint: the store belongs to model", 20)
    r.wait_ready(2)
    assert list((answer := r.complete(IDS, N)).output_ids) == real.reference(IDS, N) and answer.cached_tokens == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize("role", ["prefill", "decode", "both"])
def test_workers(start, other, role):
    """Which would ship pages, or give them to others: refused by name, before it has any."""
    r = start(real.Process, "router")
    start(real.Process, "prefill", 0, r.worker_address)
    start(real.Process, "decode", 0, r.worker_address)
    r.wait_ready(2)
    stranger = start(real.Process, role, 1, r.worker_address, **{"model.path": other})
    stranger.logged(r"fingerprint \w+ differs", 20)
    assert stranger.process.wait(60 * real.PATIENCE) != 0
    assert len(r.workers()) == 2 and r.tokens(IDS, N) == real.reference(IDS, N)
