"""HTTP requests that a proxy and the router could divide differently: 400, and the connection is closed, so that nothing of what
follows is taken for a request. And requests that look odd and are in order, which are served."""

import re
import socket

import pytest

import real
import wire

GET, HOST = b"GET /health/live HTTP/1.1\r\n", b"Host: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
NEXT = GET + HOST + b"\r\n"  # what a proxy would have let pass as a part of the request before


@pytest.fixture(scope="module")
def router(tmp_path_factory, clean):
    r = real.Process(tmp_path_factory.mktemp("heads"), "router", **{"router.stage_timeout_ms": 300})
    real.until("it to listen", lambda: r.get("/health/live").status_code == 200)
    yield r
    assert r.close(), "had to be killed"


def answers(r, raw):
    """The status of each answer, and whether the connection was closed after them."""
    with socket.create_connection(wire.address(r.http), timeout=20) as s:
        s.sendall(raw)
        s.settimeout(1)
        got, closed = b"", False
        try:
            while part := s.recv(65536):
                got += part
            closed = True
        except TimeoutError:
            pass
        except ConnectionResetError:
            closed = True
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d{3}) [A-Z][^\r\n]*\r\nDate: ", got)], closed


BAD = {
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths that differ": POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "a length and a coding": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a coding and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a list of codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding with a tab": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a coding in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
    "a negative length": POST + b"Content-Length: -2\r\n\r\n{}",
    "a hexadecimal length": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "an empty length": POST + b"Content-Length: \r\n\r\n{}",
    "a length with a space inside": POST + b"Content-Length: 1 0\r\n\r\n{}",
    "two content codings": POST + b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "no Host": GET + b"\r\n",
    "two Hosts": GET + HOST + b"Host: y\r\n\r\n",
    "the same Host twice": GET + HOST + b"A: b\r\n" + HOST + b"\r\n",
    "a list of Hosts": GET + b"Host: x, y\r\n\r\n",
    "a Host with a path": GET + b"Host: x/y\r\n\r\n",
    "two keys": GET + HOST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two keys of the other kind": GET + HOST + b"X-Api-Key: a\r\nX-Api-Key: b\r\n\r\n",
    "two kinds of keys that differ": GET + HOST + b"Authorization: Bearer a\r\nX-Api-Key: b\r\n\r\n",
    "the other kind first": GET + HOST + b"x-api-key: b\r\nauthorization: bearer a\r\n\r\n",
    "two origins": GET + HOST + b"Origin: http://localhost\r\nOrigin: http://x\r\n\r\n",
    "two request ids": GET + HOST + b"X-Request-Id: a\r\nX-Request-Id: b\r\n\r\n",
    "line feeds only": NEXT.replace(b"\r\n", b"\n"),
    "a line feed after the request line": GET.replace(b"\r\n", b"\n") + HOST + b"\r\n",
    "a line feed after a header": GET + HOST + b"A: b\nC: d\r\n\r\n",
    "a line feed after the last header": GET + HOST + b"A: b\n\r\n",
    "a line feed for the empty line": GET + HOST + b"\n",
    "a carriage return inside a header": GET + HOST + b"A: b\rC: d\r\n\r\n",
    "a zero inside a header": GET + HOST + b"A: b\0c\r\n\r\n",
    "a zero in a name": GET + HOST + b"A\0b: c\r\n\r\n",
    "a bell in a header": GET + HOST + b"A: \7\r\n\r\n",
    "a line that continues": GET + HOST + b"A: b\r\n c\r\n\r\n",
    "a Host that continues": GET + b"A: b\r\nHost: x\r\n\ty\r\n\r\n",
    "a first line that continues": GET + b" A: b\r\n" + HOST + b"\r\n",
    "a continued coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": GET + b"Host : x\r\n\r\n",
    "a tab before the colon": POST + b"Content-Length\t: 2\r\n\r\n{}",
    "a header without a colon": GET + HOST + b"abc\r\n\r\n",
    "a header without a name": GET + HOST + b": b\r\n\r\n",
    "a name with a slash": GET + HOST + b"A/b: c\r\n\r\n",
    "an encoded zero in the path": b"GET /health/live%00x HTTP/1.1\r\n" + HOST + b"\r\n",
    "an encoded zero in the query": b"GET /health/live?a=%00 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a space in the path": b"GET /health/live x HTTP/1.1\r\n" + HOST + b"\r\n",
    "a byte above 127 in the path": b"GET /health/live\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "a control character in the path": b"GET /health\x01 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero in the path": b"GET /health/live\0x HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero after a path and a version": b"GET /health/live\0HTTP/1.1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero in the query": b"GET /health/live?a=\0b HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero for a space": b"GET /health/live\0HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero after the path": b"GET /health/live\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero in the method": b"GET\0X /health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero after the method": b"GET\0 /health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "a zero in the version": b"GET /health/live HTTP/1.1\0x\r\n" + HOST + b"\r\n",
    "a zero before the method": b"\0GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "two spaces after the method": b"GET  /health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "two spaces before the version": b"GET /health/live  HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tab after the method": b"GET\t/health/live HTTP/1.1\r\n" + HOST + b"\r\n",
    "a coding twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding twice in a list": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "a coding with a parameter": POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "a coding in quotes": POST + b"Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "no coding and a length": POST + b"Transfer-Encoding: \r\nContent-Length: 2\r\n\r\n{}",
    "a length with a fraction": POST + b"Content-Length: 2.0\r\n\r\n{}",
    "a length with a vertical tab": POST + b"Content-Length: \x0b2\r\n\r\n{}",
    "a length in other digits": POST + b"Content-Length: \xd9\xa2\r\n\r\n{}",
    "a hexadecimal chunk with a sign": POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk with a plus": POST + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n",
    "a chunk that does not end": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "a Host with a user": GET + b"Host: a@b\r\n\r\n",
    "no version": b"GET /health/live\r\n\r\n",
    "a version of the future": b"GET /health/live HTTP/1.2\r\n" + HOST + b"\r\n",
    "a version of two digits": b"GET /health/live HTTP/1.10\r\n" + HOST + b"\r\n",
    "a chunk of negative size": POST + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a chunk that is no number": POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", BAD)
def test_two_readings(router, kind):
    status, closed = answers(router, BAD[kind] + NEXT)
    assert set(status) == {400} and closed, (status, closed)


def test_a_space_before_the_method(router):
    """The library closes the connection without a word."""
    assert answers(router, b" " + NEXT + NEXT) == ([], True)


@pytest.mark.parametrize("raw", [POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
                                 POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n{}"], ids=["length", "chunk"])
def test_a_size_that_no_number_holds(router, raw):
    status, closed = answers(router, raw + NEXT)
    assert set(status) in ({400}, {413}) and closed, (status, closed)


@pytest.mark.parametrize("raw", [b"2\r\n{}\r\n0\r\n\r\n", b"2;a=b\r\n{}\r\n0\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n", b"2\n{}\n0\n\n"],
                         ids=["plain", "extension", "trailer", "line feeds"])
def test_nothing_follows_a_chunked_body(router, raw):
    """However its chunks are read: there is one answer, and the connection ends with it."""
    status, closed = answers(router, POST + b"Transfer-Encoding: chunked\r\n\r\n" + raw + NEXT)
    assert status == [400] and closed, (status, closed)  # {} is no request


GOOD = {
    "two in a row": (NEXT + NEXT, [200, 200]),
    "many headers": (GET + HOST + b"".join(b"A%d: %s\r\n" % (i, b"v" * 200) for i in range(200)) + b"\r\n" + NEXT, [200, 200]),
    "spaces around values": (GET + b"Host:  x \r\nA:b\r\nB:\t c \r\nEmpty:\r\n\r\n" + NEXT, [200, 200]),
    "cookies": (GET + HOST + b"Cookie: a=b; c=\"d\"\r\nA: b\r\n\r\n" + NEXT, [200, 200]),
    "a Host with a port": (GET + b"Host: [::1]:8000\r\n\r\n" + NEXT, [200, 200]),
    "a body where none is wanted": (GET + HOST + b"Content-Length: 5\r\n\r\nabcde" + NEXT, [200, 200]),
    "a body": (POST + b"Content-Length: 2\r\n\r\n{}" + NEXT, [400, 200]),
    "both kinds of keys": (GET + HOST + b"Authorization: Bearer a\r\nX-Api-Key: a\r\n\r\n" + NEXT, [200, 200]),
    "an encoded space": (b"GET /x%20y?a=%2f HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT, [404, 200]),
}


@pytest.mark.parametrize("kind", GOOD)
def test_one_reading(router, kind):
    raw, want = GOOD[kind]
    status, closed = answers(router, raw)
    assert status == want and not closed, (status, closed)


def test_an_old_client_is_served(router):
    assert answers(router, b"GET /health/live HTTP/1.0\r\n\r\n") == ([200], True)


def test_a_head_that_comes_byte_by_byte(router):
    with socket.create_connection(wire.address(router.http), timeout=20) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(NEXT)):
            s.sendall(NEXT[i:i + 1])
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
