"""The router's live page: its document has what happens in a real cluster, by the rights of the caller; the page is drawn by a real
browser, with hostile names as text; and `sluice top` shows the same."""

import hashlib
import subprocess
import threading

import pytest
import requests

import real

HOSTILE = '<img src=x onerror="document.title=1">&<script>document.title=2</script>'
ADMIN, TENANT = "an-admin", "a-tenant"


class Keyed(real.Cluster):
    key = ADMIN


def keys(directory):
    path = directory / "keys"
    path.write_text("".join(f"{name} sha256={hashlib.sha256(key.encode()).hexdigest()}{more}\n"
                            for name, key, more in (("boss", ADMIN, " admin"), ("guest", TENANT, ""))))
    return path


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory, clean):
    directory = tmp_path_factory.mktemp("page")
    c = Keyed(directory, **{"router.keys_file": keys(directory)})
    try:
        yield c
    finally:
        assert c.close()


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory, clean):
    c = real.Cluster(tmp_path_factory.mktemp("open"))
    try:
        yield c
    finally:
        assert c.close()


class Held:
    """A stream that produces while the body of `with` runs."""

    def __init__(self, c, request_id="held", headers=None):
        self.c, self.id, self.headers = c, request_id, headers or {}

    def __enter__(self):
        self.answer = requests.post(self.c.http + "/v1/completions", stream=True, timeout=60, headers=self.headers,
                                    json={"model": "tiny-v32", "prompt": "x" * 300, "max_tokens": 9000, "stream": True, "ignore_eos": True})
        assert self.answer.status_code == 200, self.answer.text
        self.lines = self.answer.iter_lines()
        next(self.lines)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        return self

    def read(self):
        try:
            for _ in self.lines:
                pass
        except (requests.RequestException, AttributeError, ValueError):
            pass  # closed by the end of the body

    def __exit__(self, *_):
        self.answer.close()
        self.thread.join(60)


def overview(c, key=None, **headers):
    return requests.get(c.http + "/overview", headers={**(bearer(key) if key else {}), **headers}, timeout=30)


def test_the_document_has_what_happens(open_cluster):
    c = open_cluster
    with Held(c):
        real.until("figures of every worker", lambda: all(w["figures"] for w in overview(c).json()["workers"]), 20, 0.3)
        d = overview(c).json()
        assert {w["name"] for w in d["workers"]} == {"prefill/0", "decode/0", "decode/1"}
        assert d["stages"]["decoding"] + d["stages"]["prefilling"] + d["stages"]["reserving"] >= 1
        assert d["requests"][0]["prompt"] > 0 and d["requests"][0]["client"] == "127.0.0.1"
        real.until("layers", lambda: any(w["figures"] and w["figures"]["layer_hits"] for w in overview(c).json()["workers"]), 20, 0.3)
        assert any(w["figures"] and w["figures"]["steps"] > 0 for w in overview(c).json()["workers"])
        real.until("history", lambda: any(overview(c).json()["history"]["output_tokens_per_s"]), 30, 0.5)
    real.until("the end to be seen", lambda: overview(c).json()["active"] == 0, 20, 0.1)
    assert overview(c).json()["errors"][0]["outcome"] == "cancelled"
    assert sum(overview(c).json()["stages"].values()) == 0


def test_rights(keyed):
    c = keyed
    assert overview(c).status_code == 401
    assert overview(c, "wrong").status_code == 401
    assert requests.get(c.http + "/", timeout=30).status_code == 200  # it says nothing; its script asks for the key
    with Held(c, headers=bearer(TENANT)):
        own, other = overview(c, ADMIN).json(), overview(c, TENANT).json()
        assert own["admin"] and own["requests"][0]["client"] == "guest" and own["clients"]
        assert not other["admin"] and "requests" not in other and "clients" not in other
        assert other["stages"]["decoding"] >= 1
    real.until("the error", lambda: overview(c, ADMIN).json()["errors"], 20, 0.1)
    assert "reason" in overview(c, ADMIN).json()["errors"][0]
    assert set(overview(c, TENANT).json()["errors"][0]) == {"age_s", "outcome"}


@pytest.mark.parametrize("host,code", [("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:80", 200), ("rebound.example", 403),
                                       ("127.0.0.1.example", 403), ("localhost.example:80", 403)])
def test_without_a_key_only_this_host(open_cluster, host, code):
    """A page elsewhere whose name was made to point here is told nothing."""
    for path in ("/", "/overview", "/page.js"):
        assert requests.get(open_cluster.http + path, headers={"Host": host}, timeout=30).status_code == code


def test_nothing_from_elsewhere(open_cluster):
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript"), ("/overview", "application/json")):
        r = requests.get(open_cluster.http + path, timeout=30)
        assert r.status_code == 200 and r.headers["Content-Type"].startswith(kind)
        policy = r.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert r.headers["X-Content-Type-Options"] == "nosniff" and r.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in r.headers
        assert requests.head(open_cluster.http + path, timeout=30).status_code == 200
        assert requests.post(open_cluster.http + path, timeout=30).status_code == 405


def browser(directory, *args):
    if not real.have("chromium"):
        pytest.skip("chromium is not installed (scripts/install-deps --page)")
    r = subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                        f"--user-data-dir={directory}/profile", *args], capture_output=True, text=True, timeout=120, check=False)
    assert r.returncode == 0, r.stderr
    return r.stdout


@pytest.mark.parametrize("dark,width", [(False, 1280), (True, 1280), (False, 400)], ids=["light", "dark", "phone"])
def test_a_browser_draws_it(open_cluster, tmp_path, dark, width):
    c = open_cluster
    with c.channel() as channel:
        stub, request = c.stub(channel), c.request(real.prompt("browser", 200), 6000, stream=True, request_id=HOSTILE)
        stream = stub.Generate(request, timeout=240)
        next(iter(stream))
        page = browser(tmp_path, f"--window-size={width},1200", "--virtual-time-budget=6000", "--dump-dom",
                       f"--blink-settings=preferredColorScheme={0 if dark else 1}", c.http + "/")
        stream.cancel()
    assert "<title>Sluice</title>" in page
    for text in ("decode/0", "decode/1", "prefill/0", "Hit rate by layer", "Requests in flight", "Errors of the last hour"):
        assert text in page, page
    assert "&lt;img src=x onerror=" in page and "<img" not in page, page  # the id, as text
    assert page.count("<script") == 1


def test_a_browser_without_the_key_shows_nothing(keyed, tmp_path):
    page = browser(tmp_path, "--virtual-time-budget=4000", "--dump-dom", keyed.http + "/")
    assert '<form id="key">' in page and "decode/0" not in page


def top(*args):
    return subprocess.run([str(real.SLUICE), "top", *args], capture_output=True, text=True, timeout=60, check=False)


def test_top(open_cluster):
    c = open_cluster
    with c.channel() as channel:
        stream = c.stub(channel).Generate(c.request(real.prompt("top", 200), 6000, stream=True, request_id="\x1b[2J\x07-id"), timeout=240)
        next(iter(stream))
        r = top("--once", "--router", c.http)
        stream.cancel()
    assert r.returncode == 0, r.stderr
    for text in ("tiny-v32 ok", "prefill/0", "decode/0", "decode/1", "errors of the last hour: rejected", "?[2J?-id"):
        assert text in r.stdout, r.stdout
    assert "\x1b" not in r.stdout


def test_top_by_rights(keyed, tmp_path):
    key = tmp_path / "key"
    key.write_text(TENANT + "\n")
    assert "answers 401" in top("--once", "--router", keyed.http).stderr
    r = top("--once", "--router", keyed.http, "--key-file", str(key))
    assert r.returncode == 0 and "admin rights" in r.stdout
    assert top("--once", "--router", "http://127.0.0.1:9").returncode == 1
