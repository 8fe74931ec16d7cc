"""Connections that cost the attacker nothing: silent ones, bodies that never end, readers that do not read."""

import socket
import ssl
import time

import pytest

import real
import wire

CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture
def t(target):
    return target()


def test_silent_sockets_on_http(t):
    with t.watched():
        held = wire.silent(t.cluster.http, 1100)
        assert real.until("a probe is answered", lambda: t.cluster.get("/health").status_code == 200)
        time.sleep(2)
    for s in held:
        s.close()


def test_silent_sockets_on_grpc(t):
    with t.watched():
        held = wire.silent(t.cluster.grpc, 1100)
        time.sleep(2)
    for s in held:
        s.close()


@pytest.mark.parametrize("where", ["http", "grpc"])
def test_silent_sockets_are_closed(t, where):
    """No byte, or half a preface: gone after the handshake's time."""
    held = wire.silent(getattr(t.cluster, where), 3)
    held[1].sendall(b"PRI * HT")
    held[2].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
    real.until("all three are closed", lambda: wire.closed(held) == 3, 15)


def test_bodies_without_a_key_are_small(t):
    """Health/Check needs no key: 100 streams with 8 MiB each must not be kept."""
    before = t.memory()
    with t.watched():
        conns = [wire.H2(t.cluster.grpc) for _ in range(10)]
        part = b"\0" * 16384
        for c in conns:
            streams = [c.open(CHECK) for _ in range(10)]
            end = time.monotonic() + 3
            while time.monotonic() < end and not c.gone:
                try:
                    if not sum(c.data(s, part) for s in streams if s not in c.trailers):
                        break
                except OSError:
                    break
        assert t.memory() - before < 64, f"{t.memory() - before:.0f} MiB kept for streams without a key"
        for c in conns:
            c.close()


def test_http_body_that_trickles(t):
    """Headers, then a byte from time to time: closed after a bound on the whole request, not only between bytes."""
    s = socket.create_connection(wire.address(t.cluster.http))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    with t.watched():
        begin = time.monotonic()
        while time.monotonic() - begin < 5:
            s.sendall(b" ")
            time.sleep(0.2)
    s.close()


def test_reader_that_does_not_read(target):
    """A stream whose client does not read: the router keeps a bounded part, then ends it; the others do not notice. Twelve samples,
    because the kernel takes the first megabytes."""
    t = target(**{"router.max_request_bytes": "16MiB", "kvstore.bytes": "64MiB"})
    def ended():
        return real.metric(t.cluster.get("/metrics").text, "sluice_connections_closed_total", 'reason="unread"') or 0
    before, unread = t.memory(), ended()
    body = b'{"model":"tiny-v32","prompt":[5,6,7],"max_tokens":1500,"ignore_eos":true,"stream":true,"logprobs":5,"n":12,"temperature":1}'
    with t.watched():
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting, so that the window stays small
        s.connect(wire.address(t.cluster.http))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        real.until("the stream is ended", lambda: ended() == unread + 1, 20)
        assert t.memory() - before < 32, f"{t.memory() - before:.0f} MiB kept for a client that does not read"
    s.close()
    t.cluster.idle()


def tls_version(address, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(address, timeout=10) as raw:
        with context.wrap_socket(raw) as s:
            return s.version()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_only_tls_1_2_and_1_3(start, tmp_path, protocol):
    import subprocess
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"], check=True, capture_output=True)
    r = start(real.Process, "router", **{"router.tls_cert": tmp_path / "cert.pem", "router.tls_key": tmp_path / "key.pem"})
    address = wire.address(getattr(r, protocol))
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            tls_version(address, old)
    assert tls_version(address, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    assert tls_version(address, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
