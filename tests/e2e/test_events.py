"""KV events over ZeroMQ, read by a subscriber that knows the public format alone: both forms, replay, what is not told, and that
SubscribeKvEvents tells the same pages."""

import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile

import msgpack
import pytest
import zmq

import clients
import real

PAGE = 64
END = (1 << 64) - 1
FIELDS = {"BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
          "BlockRemoved": ("block_hashes", "medium"), "AllBlocksCleared": ()}


def decoded(payload):
    """The events of a batch as maps, whichever form they have."""
    ts, events, rank = msgpack.unpackb(payload)
    assert isinstance(ts, float) and ts > 1.7e9 and rank == 0
    return [e if isinstance(e, dict) else {"type": e[0], **dict(zip(FIELDS[e[0]], e[1:], strict=True))} for e in events]


class Subscriber:
    """What one worker says that it has."""

    def __init__(self, context, port, topic):
        self.socket = context.socket(zmq.SUB)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.socket.subscribe(topic)
        self.topic = topic.encode()
        self.blocks, self.disk, self.batches, self.cleared = {}, {}, {}, 0

    def apply(self, sequence, payload):
        self.batches[sequence] = payload
        for e in decoded(payload):
            assert e["type"] in FIELDS
            if e["type"] == "AllBlocksCleared":
                self.blocks, self.disk = {}, {}
                self.cleared += 1
            elif e["type"] == "BlockRemoved":
                for h in e["block_hashes"]:
                    del self.of(e)[h]
            else:
                assert e["block_size"] == PAGE == len(e["token_ids"]) and e["lora_id"] is None
                assert e["parent_block_hash"] is None or e["parent_block_hash"] in self.blocks, "a parent comes before its children"
                (h,) = e["block_hashes"]
                assert self.of(e) is self.blocks or h not in self.disk, "a page on disk is told once"
                self.of(e)[h] = (e["parent_block_hash"], e["token_ids"])

    def of(self, event):
        """What is known of the medium of the event."""
        return {"cpu": self.blocks, "STORAGE": self.disk}[event["medium"]]

    def until(self, what, check):
        def look():
            while self.socket.poll(0):
                topic, sequence, payload = self.socket.recv_multipart()
                assert topic == self.topic
                self.apply(struct.unpack(">Q", sequence)[0], payload)
            return check()
        return real.until(what, look)

    def chains(self):
        """The tokens of every chain that no other block continues."""
        inner = {parent for parent, _ in self.blocks.values()}
        found = []
        for h in self.blocks.keys() - inner:
            tokens = []
            while h is not None:
                h, page = self.blocks[h]
                tokens = page + tokens
            found.append(tokens)
        return found


def replay(context, port, start, kind=zmq.DEALER, delimiter=True):
    """The batches from `start` on, as they are answered: (sequence, payload)."""
    with context.socket(kind) as s:
        s.linger = 0
        s.connect(f"tcp://127.0.0.1:{port}")
        head = [b""] if delimiter and kind == zmq.DEALER else []
        if kind == zmq.DEALER:
            s.send_multipart([*head, b"no request"])
        s.send_multipart([*head, struct.pack(">Q", start)])
        got = []
        while True:
            assert s.poll(10000 * real.PATIENCE), f"{len(got)} batches, then nothing"
            frames = s.recv_multipart()
            if head:
                assert frames.pop(0) == b""
            sequence, payload = frames
            got.append((struct.unpack(">Q", sequence)[0], payload))
            if kind == zmq.REQ or got[-1][0] == END:
                return got


def whole_pages(ids):
    return ids[:len(ids) // PAGE * PAGE]


@pytest.fixture
def disk():
    """On the file system of the build, because that of temporary files may have no O_DIRECT."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="events-", dir=real.ROOT / "build"))
    yield path
    shutil.rmtree(path)


def pages_on_disk(context, port, router, worker, subscriber):
    """They are told with the same tokens, also to somebody who comes later, and leave by themselves."""
    later = Subscriber(context, port, subscriber.topic.decode())
    later.until("all pages again", lambda: later.disk and later.disk == later.blocks == subscriber.blocks)
    subprocess.run([real.SLUICE, "cache", "drop", "--router", router.http, "--tier", "disk", "--worker", worker], check=True,
                   capture_output=True, timeout=60)
    for s in (subscriber, later):
        s.until("the end of the pages on disk", lambda s=s: not s.disk)
        assert s.blocks


def test_two_workers(start, disk):
    port = real.free_ports(4)
    keys = {"events.zmq.endpoint": f"tcp://127.0.0.1:{port}", "events.zmq.replay_endpoint": f"tcp://127.0.0.1:{port + 2}"}
    router = start(real.Process, "router", **{"router.policy": "round_robin"})
    start(real.Process, "prefill", 0, router.worker_address)
    on_disk = {"kvstore.disk.path": disk, "kvstore.disk.bytes": "64MiB"}
    workers = [start(real.Process, "decode", i, router.worker_address, **{**keys, "events.zmq.form": form, **(on_disk if i else {})})
               for i, form in enumerate(("map", "array"))]
    router.wait_ready(3)

    def ask(name, n, **kw):
        ids = real.prompt(name, 64 * 3 + 9)
        return whole_pages(ids + router.tokens(ids, n, **kw)[:-1])

    asked = [ask(f"events{i}", 70) for i in range(2)]
    router.idle()
    with zmq.Context() as context:
        subs = [Subscriber(context, port + i, f"kv@decode/{i}@tiny-v32") for i in range(2)]
        for s in subs:  # pages that are older than the subscription
            s.until("the pages of the first request", lambda s=s: len(s.blocks) == 4)
        assert sorted(c for s in subs for c in s.chains()) == sorted(asked)
        asked += [ask(f"events{i}", 70) for i in range(2, 4)]
        asked.append(ask("events0", 70))
        for s in subs:
            s.until("the pages of the second request", lambda s=s: len(s.blocks) == 8)
            assert sorted(s.batches) == list(range(min(s.batches), max(s.batches) + 1))
        assert sorted(c for s in subs for c in s.chains()) == sorted(asked[:4])
        subs[1].until("the pages on disk", lambda: subs[1].disk == subs[1].blocks)
        same_as_grpc(router, subs)
        no_salted(router, subs)
        replays(context, port + 2, subs)
        pages_on_disk(context, port + 1, router, "decode/1", subs[1])
        router.flush()
        for s in subs:
            s.until("the end of all pages", lambda s=s: not s.blocks)
        text = workers[0].metrics()
        assert real.metric(text, "sluice_kv_event_batches_published_total") >= len(subs[0].batches)
        assert real.metric(text, "sluice_kv_event_batches_lost_total") == 0
        assert real.metric(text, "sluice_kv_event_resends_total") == 1
        cleared = subs[0].cleared
        workers[0].process.send_signal(signal.SIGTERM)
        subs[0].until("the last word", lambda: subs[0].cleared > cleared)
        for s in subs:
            s.socket.close(0)


def same_as_grpc(router, subs):
    _, _, common = clients.protocol()
    with router.channel() as channel:
        events = router.stub(channel).SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1), timeout=60)
        want, want_disk = {h: block for s in subs for h, block in s.blocks.items()}, set(subs[1].disk)
        got, got_disk = {}, set()
        for batch in events:
            for e in batch.events:
                for b in e.stored.blocks:
                    if b.HasField("cache_level"):
                        assert b.cache_level == 2 and not b.token_ids
                        got_disk.add(b.block_hash % (1 << 64))
                        continue
                    parent = e.stored.parent_block_hash % (1 << 64) if e.stored.HasField("parent_block_hash") else None
                    got[b.block_hash % (1 << 64)] = (parent, list(b.token_ids))
            if len(got) >= len(want) and len(got_disk) >= len(want_disk):
                break
        events.cancel()
    assert got == want and got_disk == want_disk


def no_salted(router, subs):
    before = [len(s.batches) for s in subs]
    for i in range(2):  # one for each worker
        r = router.post({"prompt": real.prompt(f"salted{i}", 64 * 3), "max_tokens": 4, "cache_salt": "a long and secret salt"})
        assert r.status_code == 200
    router.idle()
    assert [len(s.until("nothing", lambda s=s: s.batches)) for s in subs] == before


def replays(context, port, subs):
    for i, s in enumerate(subs):
        last = max(s.batches)
        for delimiter in (True, False):
            got = replay(context, port + i, 0, delimiter=delimiter)
            assert [q for q, _ in got] == [*range(last + 1), END] and got[-1][1] == b""
            assert all(payload == s.batches[q] for q, payload in got if q in s.batches)
            assert {e["type"] for e in decoded(got[0][1])} == {"AllBlocksCleared"}, "a process begins with nothing"
        assert [q for q, _ in replay(context, port + i, last)] == [last, END]
        assert [q for q, _ in replay(context, port + i, last + 1)] == [END]
        assert replay(context, port + i, last, kind=zmq.REQ)[0] == (last, s.batches[last])


@pytest.mark.parametrize("form", ["map", "array"])
def test_encoder(form):
    """Everything that the encoder of the program can write, read by another implementation."""
    out = subprocess.run([clients.BUILD / "tests" / "unit" / "events" / "event_samples", form], capture_output=True, check=True,
                         timeout=60).stdout.splitlines()
    assert len(out) > 100
    for line in out:
        payload, want = (bytes.fromhex(part.decode()) for part in line.split(b" "))
        hash_, parent, first, n, *tokens = struct.unpack(f"<QQBI{(len(want) - 21) // 4}i", want)
        stored, removed, cleared = decoded(payload)
        assert stored == {"type": "BlockStored", "block_hashes": [hash_], "parent_block_hash": None if first else parent,
                          "token_ids": tokens, "block_size": n, "lora_id": None, "medium": "m" * (n % 300 if n % 300 < 255 else 255)}
        assert removed == {"type": "BlockRemoved", "block_hashes": [parent], "medium": ""}
        assert cleared == {"type": "AllBlocksCleared"}


def test_refused_at_start(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = {
            "tcp://127.0.0.1": (r"events\.zmq\.endpoint: \"tcp://127\.0\.0\.1\": worker 0 needs a port"),
            "pgm://127.0.0.1:9": r"events\.zmq\.endpoint: .* is neither tcp://HOST:PORT nor ipc://PATH",
            "tcp://*:9999": r"events\.zmq\.endpoint is \"tcp://\*:9999\", which other hosts reach",
            f"tcp://127.0.0.1:{port}": rf"events\.zmq\.endpoint \"tcp://127\.0\.0\.1:{port}\": Address already in use",
        }
        made = {e: start(real.Process, "decode", 0, "127.0.0.1:9", **{"events.zmq.endpoint": e}) for e in refused}
        for endpoint, why in refused.items():
            assert made[endpoint].process.wait(60 * real.PATIENCE) != 0
            made[endpoint].logged(why)
