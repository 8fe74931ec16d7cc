"""The cluster's secret: who proves it belongs to the cluster, who does not is refused at the door; and what a process refuses to do
beyond loopback without one."""

import socket
import struct
import subprocess
import threading

import pytest

import real
from streams import QUICK, one_more

SECRET = "9f2c41d06a7b38e5c1d4f0a97be36285"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return {"cluster.secret_file": path, **QUICK}


def test_cluster_with_a_secret(start, secret, tmp_path):
    """Router, prefill and decode prove it to each other; a process with another secret or none is refused, and says why."""
    r = start(real.Process, "router", **secret)
    members = [start(real.Process, role, 0, r.worker_address, **secret) for role in ("prefill", "decode")]
    real.until("both roles", lambda: len(r.workers()) == 2, 30)
    ids = real.prompt("secret", 200)
    assert r.tokens(ids, 40) == real.reference(ids, 40)
    other = tmp_path / "other"
    other.write_text("another secret of another cluster\n")
    stranger = start(real.Process, "decode", 7, r.worker_address, **QUICK, **{"cluster.secret_file": other})
    careless = start(real.Process, "decode", 8, r.worker_address, **QUICK)
    stranger.logged("ev=router_unreachable .*cluster.secret_file: another secret", 20)
    careless.logged("ev=router_unreachable .*the door asks for the cluster's secret: set cluster.secret_file", 20)
    r.logged("ev=turned_away .*a wrong proof of the cluster's secret", 10)
    assert len(r.workers()) == 2
    one_more(r)
    for p in [r, *members, stranger, careless]:
        assert SECRET not in p.text(), "the secret is in a log"


class Listener:
    """Everything that goes over loopback while it lives, as somebody on the network would see it."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.packets, self.over = [], False
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        while not self.over:
            try:
                self.packets.append(self.socket.recv(1 << 17))
            except TimeoutError:
                pass

    def heard(self):
        self.over = True
        self.thread.join(10)
        self.socket.close()
        return self.packets


def saw(packets, ids):
    """How many of the runs of eight token ids are in a packet in the clear."""
    runs = [struct.pack("<8i", *ids[i:i + 8]) for i in range(0, len(ids) - 8, 8)]
    return sum(any(run in packet for packet in packets) for run in runs)


def test_messages_are_encrypted(start, secret):
    """With cluster.encrypt a listener on the network does not see the prompt's tokens; without it, the same listener does. A worker with
    the other setting is refused, and says why."""
    for encrypt in (False, True):
        settings = {**secret, "cluster.encrypt": str(encrypt).lower(), "cluster.tls": "tcp,self"}
        r = start(real.Process, "router", **settings)
        for role in ("prefill", "decode"):
            start(real.Process, role, 0, r.worker_address, **settings)
        real.until("both roles", lambda r=r: len(r.workers()) == 2, 30)
        ids = real.prompt(f"heard {encrypt}", 400)
        try:
            listener = Listener()
        except PermissionError:
            pytest.skip("listening to the network needs CAP_NET_RAW")
        assert r.tokens(ids, 40) == real.reference(ids, 40)
        runs = saw(listener.heard(), ids)
        assert runs == 0 if encrypt else runs > 10, f"{runs} runs of tokens were seen"
        other = start(real.Process, "decode", 5, r.worker_address, **{**settings, "cluster.encrypt": str(not encrypt).lower()})
        other.logged("cluster.encrypt differs between the two sides", 20)
        assert len(r.workers()) == 2


def test_worker_does_not_join_a_router_without_the_secret(start, secret):
    r = start(real.Process, "router", **QUICK)
    p = start(real.Process, "decode", 0, r.worker_address, **secret)
    p.logged("the door does not prove the secret of cluster.secret_file", 20)
    assert not r.workers()


def refused(role, reason, **settings):
    settings = {"metrics.port": 0, "router.http_port": 0, "router.grpc_port": 0, "cluster.router_port": 0, "cluster.dead_after_ms": 2500,
                **settings}
    p = subprocess.run([real.SLUICE, role, "--config", real.ROOT / "configs/no-mpi.yaml", *real.settings_args(settings)], cwd=real.ROOT,
                       capture_output=True, text=True, timeout=120, check=False, env=real.environment())
    assert p.returncode != 0 and reason in p.stdout + p.stderr, p.stdout + p.stderr


def test_refused_beyond_loopback(tmp_path):
    """Each refusal names the key and what to set instead."""
    refused("router", "cluster.secret_file: not set", **{"cluster.router_host": "0.0.0.0"})
    refused("decode", "cluster.secret_file: not set", **{"cluster.router_host": "192.0.2.1", "cluster.router_port": 7300})
    refused("decode", "cluster.secret_file: not set", **{"cluster.advertise_host": "192.0.2.1", "cluster.router_port": 7300})
    for settings in ({}, {"cluster.insecure": "workers,events"}):  # what it names is allowed, and nothing else
        refused("router", 'router.host is "0.0.0.0", which other hosts reach, and clients need no key', **{"router.host": "0.0.0.0", **settings})
    refused("router", "cluster.secret_file: not set", **{"cluster.router_host": "0.0.0.0", "cluster.insecure": "clients,events"})
    refused("decode", "subscribers are not authenticated", **{"events.zmq.endpoint": "tcp://0.0.0.0:5557", "cluster.insecure": "workers,clients", "cluster.router_port": 7300})
    short = tmp_path / "short"
    short.write_text("too short\n")
    refused("router", "has 9 characters, want 16", **{"cluster.secret_file": short})
    refused("router", "cluster.encrypt: needs cluster.secret_file", **{"cluster.encrypt": "true"})
    refused("router", "cluster.secret_file: /nowhere/secret: No such file", **{"cluster.secret_file": "/nowhere/secret"})


def test_insecure_has_to_be_said(start):
    r = start(real.Process, "router", **QUICK,
              **{"cluster.router_host": "0.0.0.0", "cluster.insecure": "workers,clients", "router.host": "0.0.0.0"})
    assert r.text().count("ev=listening") == 1
