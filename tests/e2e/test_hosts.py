"""Two hosts: network namespaces with their own addresses, a real multi-host mpirun, UCX over TCP between them. Router and prefill are
on one, a decode worker on each. Clients live on the router's host."""

import concurrent.futures
import ctypes
import http.client
import json
import os
import re
import subprocess
import time

import pytest

import real

PREFIX = f"sl{os.getpid() % 10000}"
HELPERS = real.ROOT / "tests" / "hosts" / "netns"


def shell(script, check=True):
    return subprocess.run(["bash", "-c", f". {HELPERS}; {script}"], capture_output=True, text=True, timeout=240, check=check)


def why_not():
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not real.have("ip"):
        return "needs iproute2"
    tried = shell(f"set -e; hosts_up {PREFIX}t 2; hosts_run {PREFIX}t 1 true", check=False)  # namespaces, bridge, links, host names
    shell(f"hosts_down {PREFIX}t", check=False)
    if tried.returncode:
        return f"network namespaces are not to be had here: {(tried.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return None


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, clean):
    reason = why_not()
    if reason:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("hosts")
    try:
        shell(f"hosts_up {PREFIX} 2")
        shell(f"hosts_agent {PREFIX} {directory}/agent")
        (directory / "hostfile").write_text("10.78.0.1 slots=3\n10.78.0.2 slots=1\n")
        yield directory
    finally:
        shell(f"hosts_down {PREFIX}", check=False)
        left = [line for line in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=False).stdout.splitlines()
                if line.startswith(PREFIX)]
        assert not left, f"namespaces left: {left}"


CLONE_NEWNET = 0x40000000


def enter_host():
    """This thread's connections are those of host 1 from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{PREFIX}-1", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def on_host(i):
    """What starts a program on a host; it keeps its pid."""
    return ["ip", "netns", "exec", f"{PREFIX}-{i}", "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"{PREFIX}-{i}"]


def secret_in(directory):
    secret = directory / "secret"
    secret.write_text("the secret of the cluster of hosts\n")
    return secret


class Inside:
    """Speaks to the router from inside host 1."""

    address = "10.78.0.1:8080"
    model = real.Base.model

    def __init__(self):
        self.threads = concurrent.futures.ThreadPoolExecutor(16, initializer=enter_host)

    def ready(self):
        def ask():
            c = http.client.HTTPConnection(self.address, timeout=60)
            try:
                c.request("GET", "/workers")
                return [w for w in json.loads(c.getresponse().read())["workers"] if w["state"] == "ready"]
            except OSError:
                return []
            finally:
                c.close()
        return self.threads.submit(ask).result(120)

    def begin(self, ids, n, **kw):
        """A stream on a thread of its own; text_of turns its events into its text."""
        body = {"model": self.model, "prompt": ids, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}, **kw}

        def read():
            c = http.client.HTTPConnection(self.address, timeout=300)
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read().decode()
            c.close()
            assert r.status == 200, f"{r.status} {text}"
            return text
        return self.threads.submit(read)

    @staticmethod
    def text_of(stream, limit=320):
        out = stream.result(limit)
        events = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("data: {")]
        assert "data: [DONE]" in out, out[-500:]
        return "".join(e["choices"][0]["text"] for e in events if e["choices"])


class Hosts(Inside, real.Cluster):
    """mpirun on host 1, ranks by hostfile; everything is spoken to from inside host 1."""

    def __init__(self, directory, **settings):
        Inside.__init__(self)
        self.directory = directory
        mark = real.MARK.split("=")[0]
        launcher = [*on_host(1), "mpirun", "--allow-run-as-root", "--enable-recovery", "--bind-to", "none", "-x", mark,
                    "--mca", "plm_rsh_agent", str(directory / "agent"), "--mca", "oob_tcp_if_include", "eth0",
                    "--mca", "btl_tcp_if_include", "eth0", "--mca", "btl", "self,tcp", "--mca", "pml", "ob1",
                    "--hostfile", str(directory / "hostfile"), "--map-by", "slot"]
        real.Cluster.__init__(self, directory, config="configs/hosts.yaml", launcher=launcher, ready=False,
                         **{"cluster.secret_file": secret_in(directory), "cluster.insecure": "clients",
                            "cluster.router_host": "10.78.0.1", "cluster.router_port": 7300, "router.http_port": 8080,
                            "router.grpc_port": 50051, "metrics.port": 9400, "kvstore.bytes": "32MiB", "backend.threads": 1, **settings})
        try:
            self.logged("ev=listening", 20)
            real.until("three workers", lambda: len(self.ready()) == 3, 40, 0.2)
        except BaseException as e:
            tail = self.tail(40)
            self.close()
            raise AssertionError(f"{e}\n{tail}") from None


@pytest.fixture
def cluster(hosts):
    c = Hosts(hosts, **{"cluster.dead_after_ms": 2500})
    yield c
    print(c.tail(60))
    assert c.close(25), "mpirun had to be killed"


def test_tokens_between_hosts(cluster):
    jobs = [(real.prompt(f"hosts{i}", 100 + 37 * i), 60) for i in range(8)]
    running = [cluster.begin(ids, n) for ids, n in jobs]
    for (ids, n), p in zip(jobs, running):
        assert cluster.text_of(p) == real.document(ids, n)["text"]
    workers = {w["name"]: w for w in cluster.ready()}
    assert all(workers[f"decode/{i}"]["tokens_done"] for i in range(2)), "both decode workers must have worked"
    # the rows went over the link: peer addresses and the interface are in the log
    assert any(w["listen"].startswith("10.78.0.2:") for w in workers.values()), workers
    cluster.logged(r"ev=decode_connected address=10\.78\.0\.2:\d+ .*peer=10\.78\.0\.2:\d+ .*tls=\S*tcp/eth0", 5)
    cluster.logged(r"proc=decode/\d .*ev=writer_connected peer=10\.78\.0\.1:", 5)


def streams_on(cluster, far):
    """Streams of which at least two run on the remote worker and have tokens. If all end before that was seen, others are started."""
    for wave in range(8):
        jobs = [(real.prompt(f"cut{wave}.{i}", 80 + i), 1000) for i in range(4)]
        want = [real.document(ids, n)["text"] for ids, n in jobs]
        running = [cluster.begin(ids, n) for ids, n in jobs]
        while not all(stream.done() for stream in running):
            if any(w["name"] == far and w["running"] >= 2 and w["tokens_done"] > 30 for w in cluster.ready()):
                return want, running
            time.sleep(0.01)
        assert [cluster.text_of(stream) for stream in running] == want
    raise AssertionError("eight times over before anyone had looked")


def test_link_cut_in_mid_stream(cluster):
    """The other host's network disappears without a closed connection: its streams continue on this host with exactly the same text."""
    far = next(w["name"] for w in cluster.ready() if w["listen"].startswith("10.78.0.2:"))
    for _ in range(4):  # on a busy machine the far streams may have ended before the cut
        want, running = streams_on(cluster, far)
        cut_until_lost(cluster, far, want, running)
        if re.search(r"ev=request_retry .*state=decoding produced=[1-9]", cluster.text()):
            break
        real.until("the far worker again", lambda: far in {w["name"] for w in cluster.ready()}, 30)
    else:
        raise AssertionError("no stream was cut: the test shows nothing")
    assert "outcome=failed" not in cluster.text()


def cut_until_lost(cluster, far, want, running):
    """Cuts the link, and joins it when all streams have ended with their texts and the router has lost the worker."""
    lost = cluster.text().count(f"ev=worker_lost worker={far} ")
    subprocess.run(["ip", "netns", "exec", f"{PREFIX}-0", "ip", "link", "set", f"{PREFIX}-v2", "down"], check=True)
    try:
        assert [cluster.text_of(stream) for stream in running] == want
        real.until("the loss of the far worker", lambda: cluster.text().count(f"ev=worker_lost worker={far} ") > lost, 10)
        assert far not in {w["name"] for w in cluster.ready()}
    finally:
        subprocess.run(["ip", "netns", "exec", f"{PREFIX}-0", "ip", "link", "set", f"{PREFIX}-v2", "up"], check=True)


def test_link_cut_for_a_second(hosts):
    """Story 9: the other host's network is gone for a second, less than dead_after_ms, while rows and tokens cross it. Every stream has
    exactly the same text, no request fails, and the remote worker serves afterwards."""
    cluster = Hosts(hosts, **{"cluster.dead_after_ms": 6000, "prefill.chunk_tokens": 32})
    try:
        far = next(w["name"] for w in cluster.ready() if w["listen"].startswith("10.78.0.2:"))
        want, running = streams_on(cluster, far)
        more = [(real.prompt(f"blip{i}", 700 + i), 40) for i in range(3)]  # rows on the wire when it is cut
        arriving = [cluster.begin(ids, n) for ids, n in more]
        subprocess.run(["ip", "netns", "exec", f"{PREFIX}-0", "ip", "link", "set", f"{PREFIX}-v2", "down"], check=True)
        try:
            time.sleep(1)
        finally:
            subprocess.run(["ip", "netns", "exec", f"{PREFIX}-0", "ip", "link", "set", f"{PREFIX}-v2", "up"], check=True)
        assert [cluster.text_of(stream) for stream in running] == want
        assert [cluster.text_of(stream) for stream in arriving] == [real.document(ids, n)["text"] for ids, n in more]
        assert "outcome=failed" not in cluster.text()

        def served_again():
            before = {w["name"]: w["tokens_done"] for w in cluster.ready()}
            again = [cluster.begin(ids, n) for ids, n in more]
            assert [cluster.text_of(stream) for stream in again] == [real.document(ids, n)["text"] for ids, n in more]
            return far in before and any(w["name"] == far and w["tokens_done"] > before[far] for w in cluster.ready())
        real.until("tokens of the far worker", served_again, 30, 0.2)
        print("lost meanwhile:", cluster.text().count(f"ev=worker_lost worker={far} "),
              "retries:", cluster.text().count("ev=request_retry"))
    finally:
        print(cluster.tail(60))
        assert cluster.close(25), "mpirun had to be killed"


def test_a_group_on_two_hosts(hosts, start):
    """Ranks of one group that cannot share memory: rank 0 is on the router's host, rank 1 on the other one. Both have streams with the
    tokens of one process; rank 1 is killed in mid-stream, and the group forms again with a new one; then its host is silent."""
    common = {"cluster.secret_file": secret_in(hosts), "cluster.dead_after_ms": 2500}
    start(real.Process, "router", prefix=on_host(1), config="configs/hosts.yaml",
          **{**common, "cluster.insecure": "clients", "router.retries": 20, "cluster.router_host": "10.78.0.1", "cluster.router_port": 7300,
             "router.http_port": 8080, "router.grpc_port": 50051})

    def rank(k):
        return start(real.Process, "both", None, "10.78.0.1:7300", rank=("0", str(k), "2"), prefix=on_host(k + 1),
                     **{**common, "cluster.groups": "[both=2@10.78.0.1:7350]", "sparse_attention.mode": "hierarchical",
                        "decode.device_bytes": "256MiB"})

    def both():
        return {w["name"]: w for w in inside.ready() if w["role"] == "both"}

    ranks, inside = [rank(0), rank(1)], Inside()
    real.until("two ranks", lambda: len(both()) == 2, 30, 0.1)
    for r in ranks:
        r.logged(r'ev=formed .*over="sockets, 2 ranks"')
    jobs = [(real.prompt(f"far{i}", 90 + 20 * i), 400) for i in range(4)]
    want = [real.document(ids, n)["text"] for ids, n in jobs]

    def on_both():
        running = [inside.begin(ids, n) for ids, n in jobs]
        real.until("streams on both ranks", lambda: sum(w["running"] > 0 and w["tokens_done"] > 20 for w in both().values()) == 2, 30, 0.01)
        assert not any(stream.done() for stream in running)
        return running

    running = on_both()
    ranks[1].process.kill()
    ranks[1].process.wait(60)
    assert re.search(r"reason=.*rank 1\b", ranks[0].logged(r"ev=broken"))
    ranks[1] = rank(1)
    assert [inside.text_of(stream) for stream in running] == want
    ranks[1].logged(r'ev=formed .*over="sockets, 2 ranks"')

    # The other host is silent: both ranks notice it, and form the group again when it is back.
    real.until("two ranks again", lambda: len(both()) == 2, 30, 0.1)
    running = on_both()
    cut = ["ip", "netns", "exec", f"{PREFIX}-0", "ip", "link", "set", f"{PREFIX}-v2"]
    subprocess.run([*cut, "down"], check=True)
    try:
        real.until("both ranks know", lambda: [r.text().count("ev=broken") for r in ranks] == [2, 1], 30, 0.05)
    finally:
        subprocess.run([*cut, "up"], check=True)
    assert [inside.text_of(stream) for stream in running] == want
    real.until("the group is back", lambda: [r.text().count("ev=formed") for r in ranks] == [3, 2] and len(both()) == 2, 30, 0.05)
    assert all(r.process.poll() is None for r in ranks)
    again = [inside.begin(ids, 40) for ids, _ in jobs]
    for (ids, _), stream in zip(jobs, again):
        assert inside.text_of(stream) == real.document(ids, 40)["text"]
