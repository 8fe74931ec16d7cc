"""Bodies with Content-Encoding, on every path that takes a body of clients: what is compressed is answered as what is not."""

import gzip
import http.client
import json
import random
import zlib

import pytest

PATHS = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 4, "temperature": 0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "temperature": 0},
    "/v1/responses": {"input": "abc", "max_output_tokens": 4, "temperature": 0},
    "/v1/messages": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "temperature": 0},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "abc"}]},
    "/generate": {"text": "abc", "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [65, 66]},
}
ASK = {"prompt": "abc", "max_tokens": 1}


def send(c, path, body, coding="gzip", chunked=False):
    """Status, the answer as JSON, Accept-Encoding of the answer."""
    h = http.client.HTTPConnection(c.http.split("//")[1], timeout=60)
    headers = {"Authorization": f"Bearer {c.key}", "Content-Type": "application/json"}
    if coding is not None:
        headers["Content-Encoding"] = coding
    data = (body[i:i + 7] for i in range(0, len(body), 7)) if chunked else body
    h.request("POST", path, data, headers, encode_chunked=chunked)
    r = h.getresponse()
    text = r.read()
    h.close()
    return r.status, json.loads(text), r.getheader("Accept-Encoding")


def plain(answer):
    """Without what differs from call to call."""
    drop = ("id", "created", "created_at", "completed_at", "meta_info", "item_id", "metadata")
    if isinstance(answer, dict):
        return {k: plain(v) for k, v in answer.items() if k not in drop and "token" not in k}
    return [plain(v) for v in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("path", PATHS)
def test_answered_as_without(cluster, path):
    asked = PATHS[path] | ({} if path in ("/generate", "/detokenize") else {"model": cluster.model})
    body = json.dumps(asked).encode()
    status, want, _ = send(cluster, path, body, None)
    assert status == 200, want
    whole = gzip.compress(body)
    members = b"".join(gzip.compress(body[i:i + 5]) for i in range(0, len(body), 5))
    for data, coding, chunked in ((whole, "gzip", False), (whole, "x-gzip", True), (members, "GZIP", False)):
        status, got, _ = send(cluster, path, data, coding, chunked)
        assert status == 200 and plain(got) == plain(want), got


def test_other_codings_are_refused_with_the_list(cluster):
    body = json.dumps(ASK | {"model": cluster.model}).encode()
    raw = zlib.compressobj(wbits=-15)
    for coding, data in (("deflate", zlib.compress(body)), ("deflate", raw.compress(body) + raw.flush()), ("identity", body),
                         ("br", body), ("zstd", body), ("gzip, gzip", gzip.compress(gzip.compress(body))), ("", body),
                         ("gzip;q=1", gzip.compress(body)), ("none", body)):
        status, answer, accepted = send(cluster, "/v1/completions", data, coding)
        assert status == 415 and answer["error"]["code"] == "unsupported_content_encoding" and accepted == "gzip", coding
    status, _, accepted = send(cluster, "/cache/job", gzip.compress(b"{}"))
    assert (status, accepted) == (415, "identity")


def test_damaged_bodies(cluster):
    body = json.dumps(ASK | {"model": cluster.model}).encode()
    good, draw = gzip.compress(body), random.Random(3)
    bad = [good[:draw.randrange(len(good))] for _ in range(10)]
    bad += [good + draw.randbytes(draw.randrange(1, 30)) for _ in range(10)]
    bad += [good[:-8] + bytes([good[-8] ^ 1]) + good[-7:], good[:-1] + b"\1", body, b"", good + bytes(9)]
    for data in bad:
        status, answer, _ = send(cluster, "/v1/completions", data)
        assert status == 400 and "gzip" in answer["error"]["message"], (data, answer)
    status, answer, _ = send(cluster, "/v1/messages", b"x" + good)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    assert send(cluster, "/v1/completions", good)[0] == 200


def test_a_body_that_inflates_over_the_limit(own):
    """One byte decides; a bomb is refused whatever its bytes are."""
    c = own("--max-body", 65536)
    body = json.dumps(ASK | {"model": c.model}).encode()
    assert send(c, "/v1/completions", gzip.compress(body + b" " * (65536 - len(body))))[0] == 200
    bomb = gzip.compress(bytes(1 << 20))
    for data in (gzip.compress(body + b" " * (65537 - len(body))), bomb, bomb * 40, gzip.compress(body) + bomb):
        status, answer, _ = send(c, "/v1/completions", data)
        assert status == 413 and answer["error"]["code"] == "request_too_large", answer
    assert send(c, "/v1/messages", bomb)[1]["error"]["type"] == "request_too_large"
    assert send(c, "/v1/completions", gzip.compress(body))[0] == 200
