"""HTTP/2 and gRPC as an outsider sends them: every kind of frame in every state of a stream, messages that say what they are not, deadlines and
headers that can be read in two ways, and one client that would hold everything. All cases are generated. After each, the same router serves."""

import hashlib
import itertools
import random
import re
import socket
import struct
import time

import grpc
import pytest

import clients
import real
import test_requests
import wire
from test_frames import CHECK, GENERATE, WATCH, frame, longest, turns

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
SERVER_INFO = "/sglang.grpc.scheduler.SglangScheduler/GetServerInfo"
LIMIT_S, BUDGET = 0.05, 4 << 20
KEYS = {"honest": "key-of-honest", "loud": "key-of-loud"}
LOUD = ("authorization", f"Bearer {KEYS['loud']}")


@pytest.fixture(scope="module")
def router(tmp_path_factory, clean):
    """Without workers, so that what is admitted ends with UNAVAILABLE; a budget that is soon full."""
    directory = tmp_path_factory.mktemp("streams")
    (directory / "keys").write_text("".join(f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in KEYS.items()))
    r = real.Process(directory, "router", **{
        "router.keys_file": directory / "keys", "router.stage_timeout_ms": 300, "router.client_timeout_ms": 3000, "router.max_request_bytes": BUDGET})
    r.key = KEYS["honest"]
    real.until("it to listen", lambda: r.get("/health/live").status_code == 200)
    yield r
    assert r.close(), "had to be killed"


@pytest.fixture(autouse=True)
def serves_afterwards(router):
    """No turn was long; another client is served; what was held is given back."""
    before = turns(router)
    yield
    assert longest(before, turns(router)) <= LIMIT_S
    assert small(router) == 503  # admitted: there are no workers
    real.until("all bytes are given back", lambda: held(router) == 0)


def held(r):
    return real.metric(r.get("/metrics").text, "sluice_request_bytes")


def small(r):
    return r.post({"prompt": "x " * 200, "max_tokens": 1}).status_code


def literal(name, value):
    out = b"\0"
    for text in (name, value):
        raw = text if isinstance(text, bytes) else text.encode()
        out += (bytes([len(raw)]) if len(raw) < 127 else b"\x7f" + wire.varint(len(raw) - 127)) + raw
    return out


def block(path, *more, key=LOUD):
    return b"".join(literal(n, v) for n, v in (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers"),
        *([key] if key else []), *more))


def call(path, *more, stream=1, end=False, key=LOUD):
    return frame(wire.HEADERS, wire.END_HEADERS | (wire.END_STREAM if end else 0), stream, block(path, *more, key=key))


def message(data, stream=1, end=True):
    return frame(wire.DATA, wire.END_STREAM if end else 0, stream, data)


def sent(r, data, wait=10.0, until=None):
    """Sends the bytes after a greeting; the frames that came: until the connection is closed, or until() is true of them."""
    found, got, end = [], b"", time.monotonic() + wait
    with socket.create_connection(wire.address(r.grpc), timeout=wait) as s:
        try:
            s.sendall(wire.PREFACE + frame(wire.SETTINGS, 0, 0, b"") + data)
            while time.monotonic() < end:
                part = s.recv(1 << 16)
                if not part:
                    return found, True
                got += part
                while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], "big"):
                    n = int.from_bytes(got[:3], "big")
                    found.append((got[3], got[4], int.from_bytes(got[5:9], "big"), got[9:9 + n]))
                    got = got[9 + n:]
                if until and until(found):
                    return found, False
        except TimeoutError:
            pass
        except OSError:
            return found, True
    return found, False


PROBE = frame(wire.PING, 0, 0, b"the end!")


def settled(found):
    """The server has read everything before the probe."""
    return any(kind == wire.PING and flags & wire.ACK and payload == b"the end!" for kind, flags, _, payload in found)


def codes(r):
    """(method, code) → calls that ended so."""
    found = re.findall(r'^sluice_grpc_responses_total\{method="(\w+)",code="(\w+)"\} (\d+)', r.get("/metrics").text, re.M)
    return {(method, code): int(n) for method, code, n in found}


def status(r, data):
    """How the one call of a connection that sends this ended, as the router counts it."""
    before = codes(r)
    sent(r, data + PROBE, until=settled)

    def ended():
        return [code for (method, code), n in codes(r).items() if n > before.get((method, code), 0)]
    found = real.until("the call to end", ended)
    assert len(found) == 1, found
    return found[0]


# ---- frames in every state ----

CALL, EMPTY = call(CHECK, key=None), wire.grpc_frame(b"")
STATES = {  # what makes stream 1 so
    "idle": b"", "open": CALL, "open, with a part of a message": CALL + message(b"\0\0", end=False), "ended": CALL + message(EMPTY),
    "ended by headers": call(CHECK, key=None, end=True), "ended by trailers": CALL + frame(wire.HEADERS, 5, 1, literal("a", "b")),
    "reset": CALL + frame(wire.RST, 0, 1, struct.pack(">I", 8)), "refused": call("/x", key=None), "of no method": frame(wire.HEADERS, 4, 1, b"\x82\x86\x84"),
    "malformed": frame(wire.HEADERS, 4, 1, b"\x83"), "watched": call(WATCH, key=None) + message(EMPTY), "within a list": frame(wire.HEADERS, 0, 1, b"\x83"),
}
FRAMES = {
    "data": lambda s: message(b"x", s, False), "data of a zero": lambda s: message(b"\0", s), "no data": lambda s: message(b"", s, False),
    "an end": lambda s: message(b"", s), "padding": lambda s: frame(wire.DATA, 8, s, b"\xff" + b"\0" * 255), "too much padding": lambda s: frame(wire.DATA, 8, s, b"\xff"),
    "headers": lambda s: call(CHECK, stream=s, key=None), "headers and an end": lambda s: call(CHECK, stream=s, key=None, end=True),
    "headers with padding": lambda s: frame(wire.HEADERS, 12, s, b"\x05" + block(CHECK, key=None) + b"\0" * 5), "half of a list": lambda s: frame(wire.HEADERS, 0, s, b"\x83"),
    "trailers": lambda s: frame(wire.HEADERS, 5, s, literal("grpc-status", "0")), "trailers without an end": lambda s: frame(wire.HEADERS, 4, s, literal("a", "b")),
    "pseudo headers as trailers": lambda s: frame(wire.HEADERS, 5, s, literal(":path", "/x")), "a table of no size": lambda s: frame(wire.HEADERS, 4, s, b"\x20\x3f\xe1\x1f" + block(CHECK, key=None)),
    "a table that is too large": lambda s: frame(wire.HEADERS, 4, s, b"\x3f\xe2\x1f\x83"), "an index of nothing": lambda s: frame(wire.HEADERS, 4, s, b"\x80"),
    "an endless number": lambda s: frame(wire.HEADERS, 4, s, b"\x7f" + b"\xff" * 60), "never indexed": lambda s: frame(wire.HEADERS, 5, s, b"\x10\x01a\x7f" + wire.varint(9000) + b"v" * 9127),
    "bad Huffman": lambda s: frame(wire.HEADERS, 4, s, b"\0\x84\xff\xff\xff\xff\x01a"), "priority": lambda s: frame(2, 0, s, struct.pack(">IB", 3, 9)),
    "priority of itself": lambda s: frame(2, 0, s, struct.pack(">IB", s, 9)), "short priority": lambda s: frame(2, 0, s, b"1234"),
    "a reset": lambda s: frame(wire.RST, 0, s, struct.pack(">I", 8)), "a reset without an error": lambda s: frame(wire.RST, 0, s, bytes(4)), "a short reset": lambda s: frame(wire.RST, 0, s, b"123"),
    "settings": lambda s: frame(wire.SETTINGS, 0, s, b""), "settings of nothing known": lambda s: frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 0x1234, 7) * 50),
    "half a setting": lambda s: frame(wire.SETTINGS, 0, 0, b"12345"), "a window of 2^31": lambda s: frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
    "frames of 2^24": lambda s: frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 5, 1 << 24)), "no window": lambda s: frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)),
    "an answer to no settings": lambda s: frame(wire.SETTINGS, wire.ACK, 0, b"") * 2, "a push": lambda s: frame(5, 4, s, struct.pack(">I", 2) + b"\x82"),
    "a ping": lambda s: frame(wire.PING, 0, s, b"12345678"), "a short ping": lambda s: frame(wire.PING, 0, 0, b"1"), "goaway": lambda s: frame(wire.GOAWAY, 0, 0, bytes(8)),
    "a short goaway": lambda s: frame(wire.GOAWAY, 0, 0, b"1"), "window": lambda s: frame(wire.WINDOW, 0, s, struct.pack(">I", 1)), "no more window": lambda s: frame(wire.WINDOW, 0, s, bytes(4)),
    "windows of 2^31": lambda s: frame(wire.WINDOW, 0, s, struct.pack(">I", 0x7fffffff)) * 2, "the window of all": lambda s: frame(wire.WINDOW, 0, 0, struct.pack(">I", 0x7fffffff)) * 2,
    "a continuation": lambda s: frame(9, 4, s, literal("a", "b")), "continuations": lambda s: frame(9, 0, s, b"") * 50, "an unknown kind": lambda s: frame(0xfe, 0xff, s, b"x"),
    "a frame of 2^24": lambda s: b"\xff\xff\xff\0\0" + struct.pack(">I", s) + b"x" * 100, "an even stream": lambda s: call(CHECK, stream=s + 1, key=None),
    "the reserved bit": lambda s: frame(wire.DATA, 0, s | 1 << 31, b"x"),
}


@pytest.mark.parametrize("state", STATES)
def test_every_frame_in_every_state(router, state):
    """For the stream, for another one, and for stream 0: afterwards the connection answers, or it is closed; it never hangs."""
    for name, which in itertools.product(FRAMES, (1, 0, 7)):
        found, gone = sent(router, STATES[state] + FRAMES[name](which) + PROBE, until=settled)
        half = state == "within a list" or name in ("half of a list", "continuations", "a frame of 2^24")
        assert gone or settled(found) or half, f"{name} for {which}: {found}"


def test_random_frames(router):
    """Any frames after each other, on few streams."""
    dice = random.Random(24)
    for trial in range(150):
        data = b"".join(dice.choice(list(FRAMES.values()))(dice.choice((1, 1, 3, 5, 0))) if dice.random() < 0.7 else dice.choice(list(STATES.values()))
                        for _ in range(dice.randrange(2, 30)))
        sent(router, data + PROBE, wait=0.5, until=settled)


# ---- calls that can be read in two ways ----

MESSAGE = wire.grpc_frame(clients.protocol()[0].GenerateRequest(request_id="x").SerializeToString())
TIMEOUTS = {
    "0n": "DEADLINE_EXCEEDED", "0S": "DEADLINE_EXCEEDED", "00000000H": "DEADLINE_EXCEEDED", "1n": "DEADLINE_EXCEEDED", "99999999H": "INVALID_ARGUMENT",
    "99999999n": "INVALID_ARGUMENT", **dict.fromkeys(("100000000S", "1", "S", "-1S", "+1S", "1.5S", "1s", "1x", "1S1", "0x1S", "1e3S", "9" * 100 + "n"),
                                                     "malformed")}


@pytest.mark.parametrize("text", TIMEOUTS)
def test_deadlines(router, text):
    """What is no number of at most eight digits and a unit is refused by name; zero has passed. The message has no prompt."""
    want = TIMEOUTS[text]
    got = status(router, call(GENERATE, ("grpc-timeout", text)) + message(MESSAGE))
    assert got == ("INVALID_ARGUMENT" if want == "malformed" else want)


GOOD, BAD = LOUD, ("authorization", "Bearer nobody")
TWICE = {  # the call would be admitted with either of the two
    "a good key and a bad one": ((GOOD, BAD), "UNAUTHENTICATED"), "a bad key and a good one": ((BAD, GOOD), "UNAUTHENTICATED"),
    "keys of two tenants": ((GOOD, ("authorization", f"Bearer {KEYS['honest']}")), "UNAUTHENTICATED"),
    "an empty key and a good one": ((("authorization", ""), GOOD), "UNAUTHENTICATED"), "a key twice": ((GOOD, GOOD), "UNAUTHENTICATED"),
    "two deadlines": ((GOOD, ("grpc-timeout", "5S"), ("grpc-timeout", "9S")), "INVALID_ARGUMENT"),
    "two encodings": ((GOOD, ("grpc-encoding", "identity"), ("grpc-encoding", "gzip")), "UNIMPLEMENTED"),
    "a key that is too long": ((("authorization", "Bearer " + "k" * 8000),), "UNAUTHENTICATED"), "binary": (((GOOD[0], b"Bearer \xff\xfe"),), "UNAUTHENTICATED"),
    "a list of keys": (((GOOD[0], GOOD[1] + ", " + BAD[1]),), "UNAUTHENTICATED"), "compressed": ((GOOD, ("grpc-encoding", "gzip")), "UNIMPLEMENTED"),
}


@pytest.mark.parametrize("kind", TWICE)
def test_headers_that_a_proxy_reads_differently(router, kind):
    headers, want = TWICE[kind]
    assert status(router, call(GENERATE, *headers, key=None) + message(MESSAGE)) == want


PREFIXES = {  # the bytes of a whole stream
    "nothing": b"", "a byte": b"\0", "four bytes": b"\0\0\0\0", "a length that is too long": b"\0\0\0\1\0" + b"x", "too short": b"\0\0\0\0\1xx",
    "two messages": wire.grpc_frame(b"") * 2, "many messages": wire.grpc_frame(b"") * 800, "a message and a byte": wire.grpc_frame(b"") + b"x",
    "compressed": b"\1\0\0\0\1x", "a compressed bomb": b"\1\0\0\x20\0" + b"\x1f\x8b" + b"\0" * 8190, "flag 2": b"\2\0\0\0\1x", "flag 255": b"\xff\0\0\0\1x",
    "4 GiB": b"\0\xff\xff\xff\xffx", "2 GiB": b"\0\x80\0\0\0x", "more than a body may have": b"\0" + (9 << 20).to_bytes(4, "big") + b"x",
}


@pytest.mark.parametrize("path", [GENERATE, CHECK, WATCH, REFLECTION, SERVER_INFO])
def test_lengths_of_messages(router, path):
    """A stream that is not one whole message of the method ends with an error; a stream of reflection may have several, or none."""
    for kind, data in PREFIXES.items():
        got = status(router, call(path) + message(data))
        fine = path == REFLECTION and kind in ("nothing", "two messages", "many messages")
        assert got in (("OK",) if fine else ("INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED")), f"{kind}: {got}"


def varints(number, *values):
    """A packed list."""
    return wire.field(number, b"".join(v if isinstance(v, bytes) else wire.varint(v) for v in values))


def hostile():
    """name → bytes of a GenerateRequest that is none, or asks for nothing possible."""
    pb, _, _ = clients.protocol()
    q, p, t = pb.GenerateRequest.DESCRIPTOR.fields_by_name, pb.SamplingParams.DESCRIPTOR.fields_by_name, pb.TokenizedInput.DESCRIPTOR.fields_by_name
    good = pb.GenerateRequest(request_id="x", sampling_params=pb.SamplingParams(max_new_tokens=1))
    ids, text, sampling = q["tokenized"].number, t["original_text"].number, q["sampling_params"].number
    found = {}
    for wrong in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80", b"a\0b", b"\0"):  # no UTF-8, or a zero
        for name, where in (("request_id", lambda v: wire.field(q["request_id"].number, v)), ("text", lambda v: wire.field(ids, wire.field(text, v))),
                            ("stop", lambda v: wire.field(sampling, wire.field(p["stop"].number, v))), ("regex", lambda v: wire.field(sampling, wire.field(p["regex"].number, v))),
                            ("logit_bias", lambda v: wire.field(sampling, wire.field(p["logit_bias"].number, wire.field(1, v)))),
                            ("custom_params", lambda v: wire.field(sampling, wire.field(p["custom_params"].number, wire.field(1, wire.field(1, v)))))):
            found[f"{name} {wrong!r}"] = good.SerializeToString() + where(wrong) if name != "text" else where(wrong)
    found |= {f"a group, kind {k}": bytes([2 << 3 | k]) + b"x" for k in (3, 4, 6, 7)}
    found |= {"field 0": b"\2\1x", "a number of 11 bytes": b"\x08" + b"\xff" * 11, "a length of 2^64 - 1": b"\x0a" + b"\xff" * 9 + b"\1", "a length beyond": b"\x0a\x7fx",
              "half a number": b"\x08\x80", "bad packed ids": wire.field(ids, varints(t["input_ids"].number, b"\xff" * 12)), "ids beyond": wire.field(ids, varints(t["input_ids"].number, 1 << 31)),
              "a message twice": wire.field(sampling, b"") * 2, "40,000 unknown fields": good.SerializeToString() + wire.field(500, b"") * 40000,
              "a million unknown numbers": good.SerializeToString() + b"\xf8\x3f\1" * 1000000, "100,000 of one choice": wire.field(sampling, wire.field(p["regex"].number, b"a") * 100000),
              "100,000 stops": wire.field(sampling, wire.field(p["stop"].number, b"a") * 100000), "100,000 biases": wire.field(sampling, wire.field(p["logit_bias"].number, b"") * 100000),
              "deep": test_requests.with_custom_params(2000), "a string as a message": wire.field(sampling, b"no message"), "a number as a message": bytes([sampling << 3, 1])}
    return found


def test_hostile_messages(router):
    """Refused as the client's fault, by name; what is only long may also be too much."""
    for kind, data in hostile().items():
        code = grpc_code(router, data)
        assert code in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"), f"{kind}: {code}"


def grpc_code(r, data):
    with grpc.insecure_channel(r.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        generate = channel.unary_stream(GENERATE, request_serializer=lambda b: b, response_deserializer=lambda b: b)
        try:
            return "OK" if list(generate(data, timeout=20, metadata=[LOUD])) else "nothing"
        except grpc.RpcError as e:
            return e.code().name


# ---- one client that would hold everything ----

def filled(r, path, body, connections, streams=200, settings=b""):
    """Connections of one client with streams that stay."""
    sockets, one = [], b"".join(call(path, stream=2 * i + 1) + body(2 * i + 1) for i in range(streams))
    for _ in range(connections):
        s = socket.create_connection(wire.address(r.grpc), timeout=20)
        s.sendall(wire.PREFACE + frame(wire.SETTINGS, 0, 0, settings) + one)
        sockets.append(s)
    real.until("something to be held", lambda: held(r) > 0)
    return sockets


NO_WINDOW = struct.pack(">HI", 4, 0)
HOLDERS = {
    "headers": (GENERATE, lambda s: b"", b""), "a part of a message": (GENERATE, lambda s: message(b"\0\0\x6f\xff\xff" + b"x" * 5000, s, False), b""),
    "watches": (WATCH, lambda s: message(EMPTY, s), b""), "reflection that says nothing": (REFLECTION, lambda s: b"", b""),
    "reflection that is not read": (REFLECTION, lambda s: message(wire.grpc_frame(wire.field(3, b"sglang_scheduler.proto")) * 4, s, False), NO_WINDOW),
    "answers that are not read": (SERVER_INFO, lambda s: message(EMPTY, s), NO_WINDOW),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_one_client_leaves_room_for_others(router, kind):
    """Ten connections of a tenant with 200 streams each, which would hold twice the budget. Another tenant is served meanwhile, and afterwards they
    have been ended, without their doing."""
    path, body, settings = HOLDERS[kind]
    sockets = filled(router, path, body, 10, settings=settings)
    for _ in range(5):
        assert small(router) == 503
        assert held(router) <= BUDGET / 2
        time.sleep(0.1)
    real.until("an end to all streams but 64 watches", lambda: held(router) <= (BUDGET / 16 if path == WATCH else 0))
    for s in sockets:
        s.close()


def test_large_bodies_of_one_client_leave_room_for_a_large_one(router):
    """Three quarters of the budget, when they are several; one alone may have seven eighths."""
    def sending(key, length):
        s = socket.create_connection(wire.address(router.http), timeout=20)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length + 1}\r\n\r\n".encode() + b" " * length)
        return s
    sockets = [sending(KEYS["loud"], 390000) for _ in range(12)]
    real.until("most to be held", lambda: held(router) > BUDGET / 2)
    time.sleep(0.3)
    before = held(router)
    assert before <= BUDGET * 3 / 4
    sockets.append(sending(KEYS["honest"], 300000))
    real.until("another client's to be held", lambda: held(router) >= before + 300000)
    for s in sockets:
        s.close()


def test_symbols_that_many_ask_for(router):
    """Reflection, as many questions as a turn may read."""
    h2 = wire.H2(router.grpc)
    stream = h2.open(REFLECTION, LOUD)
    asked = wire.grpc_frame(wire.field(4, b"sglang.grpc.scheduler.SamplingParams.zz")) * 80
    end = time.monotonic() + 2
    while time.monotonic() < end and stream not in h2.trailers and not h2.gone:
        h2.data(stream, asked)
    h2.close()
