"""Stores that several clusters share: what one cluster computed, another reads from a Redis server, a NIXL directory or a bucket of a
server that speaks S3's protocol, with the same tokens; a cluster of another checkpoint never does; the server stops and starts, and requests finish with the right tokens."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

import pytest

import real

PAGES = 5
IDS = real.prompt("shared", 64 * PAGES + 9)
N = 8
ROLES = ("router", "prefill", "decode")


class Redis:
    """A redis-server without persistence, with a password, on a Unix socket."""

    PASSWORD = "correct-horse-of-the-tests"

    def __init__(self, directory):
        self.socket = directory / "redis.sock"
        self.config = directory / "redis.conf"
        self.password_file = directory / "password"
        self.password_file.write_text(self.PASSWORD + "\n")
        self.config.write_text(f"port 0\nunixsocket {self.socket}\nsave \"\"\nmaxmemory 64mb\nmaxmemory-policy allkeys-lru\n"
                               f"requirepass {self.PASSWORD}\n")
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(["redis-server", self.config], stdout=subprocess.DEVNULL)
        real.until("the server listens", self.socket.exists)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def keys(self, **more):
        return {"kvstore.redis.address": f"unix:{self.socket}", "kvstore.redis.password_file": self.password_file, **more}


@pytest.fixture
def directory():
    """Short, because the path of a Unix socket is."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="sl-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def redis(directory):
    if not real.have("redis-server"):
        pytest.skip("there is no redis-server")
    server = Redis(directory)
    yield server
    server.stop()


def tier_metric(cluster, name, *labels):
    return real.metric(cluster.metrics(2), name, *labels) or 0


def ask(cluster, cached, ids=IDS, want=None):
    r = cluster.complete(ids, N)
    assert list(r.output_ids) == (want or real.reference(ids, N))
    assert r.cached_tokens == cached


def stored(cluster, tier, at_least):
    real.until(f"{at_least} pages in the store",
               lambda: tier_metric(cluster, "sluice_tier_stored_pages_total", f'tier="{tier}"') >= at_least)


def in_state(clusters, state):
    for c in clusters:
        real.until(f"the tier's state is {state}", lambda c=c: tier_metric(c, "sluice_tier_state", 'tier="redis"') == state)


def other_checkpoint(directory):
    """The same model with one weight changed: its fingerprint is another one."""
    copy = directory / "other"
    shutil.copytree(real.MODEL, copy)
    weights = next(copy.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1000] ^= 1
    weights.write_bytes(data)
    return copy


def test_two_clusters_on_one_redis(start, redis, directory):
    first = start(roles=ROLES, **redis.keys())
    ask(first, 0)
    stored(first, "redis", PAGES)
    second = start(roles=ROLES, **redis.keys())
    ask(second, 64 * PAGES)
    assert tier_metric(second, "sluice_tier_hit_pages_total", 'tier="redis"') == PAGES

    redis.stop()
    more = real.prompt("while-it-is-gone", 64 * 3 + 5)
    second.flush()
    ask(second, 0)
    ask(first, 0, more)
    in_state((first, second), 2)
    redis.start()
    in_state((first, second), 0)  # each has a pause of its own before it tries again
    again = real.prompt("it-is-back", 64 * 3 + 5)
    before = tier_metric(first, "sluice_tier_stored_pages_total", 'tier="redis"')
    ask(first, 0, again)
    stored(first, "redis", before + 3)
    ask(second, 64 * 3, again)
    for c in (first, second):
        c.idle()
        assert Redis.PASSWORD not in c.text()
    for pid in real.marked():
        for what in ("cmdline", "environ"):
            try:
                assert Redis.PASSWORD.encode() not in pathlib.Path(f"/proc/{pid}/{what}").read_bytes()
            except FileNotFoundError:
                pass
    assert second.close()

    other = start(roles=ROLES, **redis.keys(**{"model.path": other_checkpoint(directory)}))
    r = other.complete(again, N)
    assert r.cached_tokens == 0, "another checkpoint never matches"
    other.idle()


REFUSED = {
    "absent": ({"kvstore.redis.address": "unix:/nowhere/at/all"}, r"kvstore\.redis\.address: .*No such file"),
    "wrong-password": ({"kvstore.redis.password_file": "tests/requirements.txt"}, r"kvstore\.redis\.password_file: the server answered: WRONGPASS"),
    "no-file": ({"kvstore.redis.password_file": "/nowhere"}, r"kvstore\.redis\.password_file: /nowhere: No such file"),
    "prefix": ({"kvstore.prefix": "a b"}, r"kvstore\.prefix: .*want 1 to 24"),
    "database": ({"kvstore.redis.database": 77}, r"kvstore\.redis\.database: the server answered"),
}


def test_refused_at_start(start, redis):
    made = {name: start(real.Process, "decode", 0, "127.0.0.1:9", **redis.keys(**more)) for name, (more, _) in REFUSED.items()}
    for name, (_, why) in REFUSED.items():
        assert made[name].process.wait(60 * real.PATIENCE) != 0
        made[name].logged(why)


def nixl_library():
    named = os.environ.get("SL_NIXL_LIBRARY")
    found = [named] if named else glob.glob(str(real.ROOT / ".venv/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs/libnixl_capi.so"))
    if not found:
        pytest.skip("no libnixl_capi.so: neither SL_NIXL_LIBRARY nor in .venv (scripts/install-deps --nixl)")
    return found[0]


def test_two_clusters_on_one_nixl_directory(start, directory):
    keys = {"kvstore.nixl.backend": "POSIX", "kvstore.nixl.library": nixl_library(), "kvstore.nixl.path": directory,
            "kvstore.nixl.bytes": "64MiB"}
    first = start(roles=ROLES, **keys)
    ask(first, 0)
    stored(first, "nixl", PAGES)
    assert first.close()
    second = start(roles=ROLES, **keys)
    ask(second, 64 * PAGES)
    second.flush()
    for page in directory.glob("*/*/*"):
        data = bytearray(page.read_bytes())
        data[2000] ^= 0x10
        page.write_bytes(data)
    ask(second, 0)
    assert tier_metric(second, "sluice_tier_miss_pages_total", 'tier="nixl"', 'reason="damaged"') == PAGES
    second.idle()


class Bucket:
    """A server of S3's protocol (moto) that checks signatures, with one user and one bucket."""

    POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'

    def __init__(self, program, directory):
        self.port = real.free_ports(1)
        self.log = directory / "moto.log"
        # The first four requests, those of this class, are not checked.
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log,
                                            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"})
        real.until("the server listens", lambda: "Running on" in self.log.read_text())
        self.iam(Action="CreateUser", UserName="pages")
        key = self.iam(Action="CreateAccessKey", UserName="pages")
        self.iam(Action="PutUserPolicy", UserName="pages", PolicyName="p", PolicyDocument=self.POLICY)
        self.request("s3", "PUT", "/pages")
        self.id, self.secret = (re.search(f"<{name}>([^<]+)<", key)[1] for name in ("AccessKeyId", "SecretAccessKey"))

    def request(self, service, method, path, body=None):
        scope = f"Credential=x/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=x"
        r = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, {"Authorization": f"AWS4-HMAC-SHA256 {scope}"}, method=method)
        return urllib.request.urlopen(r, timeout=60).read().decode()

    def iam(self, **fields):
        return self.request("iam", "POST", "/", urllib.parse.urlencode({**fields, "Version": "2010-05-08"}).encode())

    def stop(self):
        self.process.kill()
        self.process.wait()

    def keys(self, bucket="pages"):
        endpoint = f"endpoint_override=http://127.0.0.1:{self.port}"
        return {"kvstore.nixl.backend": "OBJ", "kvstore.nixl.library": nixl_library(), "kvstore.load_timeout_ms": 15000,
                "kvstore.nixl.parameters": f"bucket={bucket},{endpoint},scheme=http"}


@pytest.fixture
def bucket(directory, monkeypatch):
    nixl_library()
    program = os.environ.get("SL_MOTO_SERVER") or shutil.which("moto_server", path=str(pathlib.Path(sys.executable).parent))
    if not program:
        pytest.skip("no moto_server: neither SL_MOTO_SERVER nor in .venv (scripts/install-deps --nixl)")
    server = Bucket(program, directory)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_RETRY_MODE", "standard")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    yield server
    server.stop()


def refused(start, keys, why):
    process = start(real.Process, "decode", 0, "127.0.0.1:9", **keys)
    assert process.process.wait(60 * real.PATIENCE) != 0
    process.logged(why)


def test_two_clusters_on_one_bucket(start, bucket):
    first = start(roles=ROLES, **bucket.keys())
    ask(first, 0)
    stored(first, "nixl", PAGES)
    assert first.close()
    second = start(roles=ROLES, **bucket.keys())
    ask(second, 64 * PAGES)
    assert tier_metric(second, "sluice_tier_hit_pages_total", 'tier="nixl"') == PAGES
    bucket.stop()
    second.flush()
    ask(second, 0)  # without the store the tokens are computed
    second.idle()
    assert bucket.secret not in second.text()


def test_a_bucket_that_cannot_be_used(start, bucket, monkeypatch):
    refused(start, bucket.keys("absent"), r"kvstore\.nixl\.backend: .*does the bucket exist")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused(start, bucket.keys(), r"kvstore\.nixl\.backend: .*are the credentials right")
    bucket.stop()
    refused(start, bucket.keys(), r"kvstore\.nixl\.backend: .*endpoint_override")
    started = start(real.Process, "decode", 0, "127.0.0.1:9", **bucket.keys(), **{"kvstore.required": "redis"})
    started.logged(r"ev=nixl_unreachable")
