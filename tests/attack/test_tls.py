"""Certificates of the clients' ports: replaced while the router runs, and asked of clients. The clients are curl, openssl and grpc."""

import signal
import subprocess

import grpc
import pytest
import requests

import clients
import real
import wire

NAME = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]


def openssl(*args):
    return subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def self_signed(directory):
    """A new certificate and its key, in files of always the same names."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
            "-days", 2, *NAME)
    return cert, key


EXPIRED, FUTURE = ("20200101000000Z", "20200102000000Z"), ("20990101000000Z", "20990102000000Z")


def dated(directory, dates):
    """Replaces the certificate by one for the same key that is valid between these dates."""
    cert, key, request, config = (directory / name for name in ("cert.pem", "key.pem", "dated.csr", "ca.cnf"))
    openssl("req", "-new", "-key", key, "-out", request, "-subj", "/CN=localhost")
    (directory / "index").write_text("")
    config.write_text(f"[ca]\ndefault_ca=d\n[d]\ndatabase={directory}/index\nnew_certs_dir={directory}\nrand_serial=yes\n"
                      "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
    openssl("ca", "-batch", "-config", config, "-selfsign", "-keyfile", key, "-in", request, "-out", cert, "-notext",
            "-startdate", dates[0], "-enddate", dates[1])


def below_an_expired_authority(directory):
    """A certificate that is valid now, followed in its file by the one of its authority, which has expired."""
    cert, key, ca, ca_key, request = (directory / name for name in ("cert.pem", "key.pem", "above.pem", "above.key", "leaf.csr"))
    dated(directory, EXPIRED)
    cert.rename(ca)
    key.rename(ca_key)
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=leaf")
    openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", 2, "-out", cert)
    cert.write_bytes(cert.read_bytes() + ca.read_bytes())


def authority(directory, name, extension=""):
    """An authority, and a client certificate that it signed, with this line of OpenSSL's configuration."""
    ca, ca_key = directory / f"{name}-ca.pem", directory / f"{name}-ca.key"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", ca_key, "-out", ca,
            "-days", 2, "-subj", f"/CN={name}")
    cert, key, request = (directory / f"{name}-client{end}" for end in (".pem", ".key", ".csr"))
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", request, "-subj",
            f"/CN=client of {name}")
    extensions = directory / f"{name}.ext"
    extensions.write_text(f"{extension}\n")
    openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", 2, "-out", cert,
            "-extfile", extensions)
    return ca, cert, key


def serial(address, *args):
    """What `openssl s_client` sees: the serial number of the certificate that a new connection gets."""
    host, port = wire.address(address)
    p = subprocess.run(["openssl", "s_client", "-connect", f"{host}:{port}", "-alpn", "h2,http/1.1", *map(str, args)],
                       capture_output=True, text=True, input="", timeout=60)
    return subprocess.run(["openssl", "x509", "-noout", "-serial"], capture_output=True, text=True, input=p.stdout).stdout.strip()


def curl(url, *args):
    """Status code, or the exit status of curl below 0."""
    p = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60", *map(str, args), url + "/health/live"],
                       capture_output=True, text=True)
    return int(p.stdout) if p.returncode == 0 else -p.returncode


def alive(address, ca, cert=None, key=None):
    """One gRPC call over a new connection: whether it is answered."""
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key and key.read_bytes(), cert and cert.read_bytes())
    pb, _, _ = clients.protocol()
    with grpc.secure_channel(address, credentials, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            clients.protocol()[1].SglangSchedulerStub(channel).GetServerInfo(pb.GetServerInfoRequest(), timeout=20)
            return True
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.UNAVAILABLE, e
            return False


@pytest.fixture
def router(start, tmp_path):
    cert, key = self_signed(tmp_path)

    def make(**settings):
        r = start(real.Process, "router", **{"router.tls_cert": cert, "router.tls_key": key, **settings})
        r.hangup = lambda: r.process.send_signal(signal.SIGHUP)
        return r
    return make


def test_reload(router, tmp_path):
    """A new certificate is what new connections get; those that are open, and their streams, go on with the old one."""
    r = router()
    old = serial(r.http)
    assert old and serial(r.grpc) == old
    old_cert = (tmp_path / "old.pem")
    old_cert.write_bytes((tmp_path / "cert.pem").read_bytes())
    credentials = grpc.ssl_channel_credentials(old_cert.read_bytes())
    pb, _, common = clients.protocol()
    with requests.Session() as session, grpc.secure_channel(r.grpc, credentials) as channel:
        assert session.get(r.http + "/health/live", verify=str(old_cert), timeout=30).status_code == 200
        stub = clients.protocol()[1].SglangSchedulerStub(channel)
        events = stub.SubscribeKvEvents(common.SubscribeKvEventsRequest())
        stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=30)
        self_signed(tmp_path)
        r.hangup()
        r.logged(r"ev=tls_loaded .*expires=20", since=r.text().index("ev=listening"))
        new = serial(r.http)
        assert new and new != old and serial(r.grpc) == new
        assert curl(r.http, "--cacert", tmp_path / "cert.pem") == 200 and alive(r.grpc, tmp_path / "cert.pem")
        assert curl(r.http, "--cacert", old_cert) < 0
        # A new connection would not verify with the old certificate.
        assert session.get(r.http + "/health/live", verify=str(old_cert), timeout=30).status_code == 200
        stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=30)
        assert events.is_active()
        events.cancel()


def damage(name):
    def spoil(directory):
        files = {k: (directory / f"{k}.pem").read_bytes() for k in ("cert", "key")}
        self_signed(directory)
        if name == "no_certificate":
            (directory / "cert.pem").write_text("not a certificate\n")
            return "tls_cert.*cert.pem"
        if name == "cut":
            (directory / "cert.pem").write_bytes(files["cert"][:200])
            return "tls_cert.*cert.pem"
        if name == "no_key":
            (directory / "key.pem").unlink()
            return "tls_key.*key.pem"
        if name == "other_key":
            (directory / "cert.pem").write_bytes(files["cert"])
            return "tls_key.*key.pem.*mismatch"
        if name == "expired_authority":
            below_an_expired_authority(directory)
            return "tls_cert.*cert.pem.*certificate 2 expired at 2020-01-02"
        dated(directory, EXPIRED if name == "expired" else FUTURE)
        return "tls_cert.*cert.pem.*certificate 1 " + ("expired at 2020-01-02" if name == "expired" else "is not valid before 2099-01-01")
    return spoil


@pytest.mark.parametrize("name", ["no_certificate", "cut", "no_key", "other_key", "expired", "not_yet_valid", "expired_authority"])
def test_bad_certificate_is_refused(router, tmp_path, name):
    """The log names file and reason, the old certificate is served, and a good one is taken afterwards."""
    r = router()
    old = serial(r.http)
    wanted = damage(name)(tmp_path)
    r.hangup()
    r.logged(r"ev=tls_kept .*" + wanted)
    assert serial(r.http) == old and serial(r.grpc) == old
    self_signed(tmp_path)
    r.hangup()
    real.until("the good one is served", lambda: serial(r.http) != old)
    assert serial(r.grpc) == serial(r.http) != ""


def test_bad_certificate_at_start(tmp_path):
    cert, key = self_signed(tmp_path)
    key.write_text("nothing\n")
    p = subprocess.run([real.SLUICE, "router", "--config", real.ROOT / "configs/one-host.yaml", *real.settings_args(
        {"model.path": real.MODEL, "router.tls_cert": cert, "router.tls_key": key, "router.http_port": 0, "router.grpc_port": 0})],
        capture_output=True, text=True, timeout=60, env=real.environment())
    assert p.returncode and "router.tls_key" in p.stderr and str(key) in p.stderr, p.stderr


@pytest.mark.parametrize("dates, reason", [(EXPIRED, "expired at 2020-01-02"), (FUTURE, "is not valid before 2099-01-01")])
def test_dates_at_start_are_a_warning(start, tmp_path, dates, reason):
    """There is no other certificate to keep, and the clock may be wrong: it is served, and the log names file and date."""
    cert, key = self_signed(tmp_path)
    dated(tmp_path, dates)
    r = start(real.Process, "router", **{"router.tls_cert": cert, "router.tls_key": key})
    r.logged(r"ev=tls_not_valid_now .*router.tls_cert.*cert.pem.*" + reason)
    assert serial(r.http) and serial(r.http) == serial(r.grpc)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_client_certificates(router, tmp_path, version):
    ca, cert, key = authority(tmp_path, "mine")
    _, strange, strange_key = authority(tmp_path, "other")
    server = tmp_path / "cert.pem"
    r = router(**{"router.tls_client_ca": ca})
    tls = ["--cacert", server, *(["--tls-max", "1.2"] if version == "-tls1_2" else ["--tlsv1.3"])]
    assert curl(r.http, *tls, "--cert", cert, "--key", key) == 200
    assert curl(r.http, *tls) < 0
    assert curl(r.http, *tls, "--cert", strange, "--key", strange_key) < 0
    with pytest.raises(requests.exceptions.RequestException):
        requests.get(r.http + "/health/live", verify=str(server), timeout=30)
    assert alive(r.grpc, server, cert, key)
    assert not alive(r.grpc, server)
    assert not alive(r.grpc, server, strange, strange_key)


def test_a_server_s_certificate_is_no_client_s(router, tmp_path):
    """An authority that signs servers, too: whoever holds a server's key is not a client for that, over neither protocol."""
    ca, cert, key = authority(tmp_path, "mine", "extendedKeyUsage=serverAuth")
    server = tmp_path / "cert.pem"
    r = router(**{"router.tls_client_ca": ca})
    assert curl(r.http, "--cacert", server, "--cert", cert, "--key", key) < 0
    assert not alive(r.grpc, server, cert, key)


def test_client_authority_is_replaced(router, tmp_path):
    """After a reload the clients of the new authority are admitted and those of the old one are not, resumed sessions included."""
    ca, cert, key = authority(tmp_path, "mine")
    new_ca, new_cert, new_key = authority(tmp_path, "new")
    server = tmp_path / "cert.pem"
    r = router(**{"router.tls_client_ca": ca})
    assert curl(r.http, "--cacert", server, "--cert", cert, "--key", key) == 200 and alive(r.grpc, server, cert, key)
    for address in (r.http, r.grpc):  # no session is offered for resumption
        host, port = wire.address(address)
        out = subprocess.run(["openssl", "s_client", "-connect", f"{host}:{port}", "-alpn", "h2,http/1.1", "-cert", cert, "-key", key,
                              "-reconnect", "-tls1_2"], capture_output=True, text=True, input="", timeout=60).stdout
        assert "New, TLSv1.2" in out and "Reused" not in out, out
    ca.write_text("nothing here\n")
    r.hangup()
    r.logged(r"ev=tls_kept .*tls_client_ca.*mine-ca.pem")
    assert curl(r.http, "--cacert", server, "--cert", cert, "--key", key) == 200
    ca.write_bytes(new_ca.read_bytes())
    since = len(r.text())
    r.hangup()
    r.logged(r"ev=tls_loaded", since=since)
    assert curl(r.http, "--cacert", server, "--cert", new_cert, "--key", new_key) == 200 and alive(r.grpc, server, new_cert, new_key)
    assert curl(r.http, "--cacert", server, "--cert", cert, "--key", key) < 0 and not alive(r.grpc, server, cert, key)
