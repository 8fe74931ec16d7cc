"""What client tests share: the cluster they talk to, and the generated gRPC code.

A running cluster is named by SL_HTTP (http://host:port), SL_GRPC (host:port), SL_MODEL and, with a key, SL_API_KEY. Without
them the router is started with mock workers ($SL_BUILD/tests/unit/router/mock_cluster), which also allows the tests
that need a cluster of their own: keys, TLS, deaths, drains.
"""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import requests

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("SL_BUILD", "build/release")
MOCK = BUILD / "tests" / "unit" / "router" / "mock_cluster"
PROMPT = "The quick brown fox jumps over the lazy dog."


@dataclasses.dataclass
class Cluster:
    http: str
    grpc: str
    model: str
    key: str = "none"
    process: subprocess.Popen = None

    def command(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def running():
    """The cluster named by the environment, or None."""
    if "SL_HTTP" not in os.environ:
        return None
    env = os.environ
    return Cluster(env["SL_HTTP"], env.get("SL_GRPC", ""), env.get("SL_MODEL", "sluice"), env.get("SL_API_KEY", "none"))


def mock(*args, tls=False):
    process = subprocess.Popen([MOCK, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(120, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    if not line:
        raise RuntimeError(f"mock_cluster {args} did not start: exit {process.wait()}")
    ports = json.loads(line)
    scheme = "https" if tls else "http"
    cluster = Cluster(f"{scheme}://127.0.0.1:{ports['http']}", f"127.0.0.1:{ports['grpc']}", "sluice", process=process)
    return cluster


_pb = None


def protocol():
    """(messages, services, common messages) generated from proto/ for the official runtime."""
    global _pb
    if _pb is None:
        import grpc_tools
        from grpc_tools import protoc

        out = tempfile.mkdtemp(prefix="sluice-proto-")
        include = pathlib.Path(grpc_tools.__file__).parent / "_proto"
        code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={out}",
                            f"--grpc_python_out={out}", "common.proto", "sglang_scheduler.proto"])
        assert code == 0
        sys.path.insert(0, out)
        import common_pb2
        import sglang_scheduler_pb2
        import sglang_scheduler_pb2_grpc

        _pb = (sglang_scheduler_pb2, sglang_scheduler_pb2_grpc, common_pb2)
    return _pb


def post(cluster, body, path="/v1/completions", **kw):
    headers = {"Authorization": f"Bearer {cluster.key}", "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(cluster.http + path, data=data, headers=headers, timeout=120, **kw)


def active(cluster):
    headers = {"Authorization": f"Bearer {cluster.key}"}
    return requests.get(cluster.http + "/workers", headers=headers, timeout=30).json()["active"]


def cancelled(cluster):
    """Requests that ended because their client left."""
    text = requests.get(cluster.http + "/metrics", timeout=30).text
    return sum(float(line.split()[-1]) for line in text.splitlines()
               if line.startswith("sluice_requests_total{") and 'outcome="cancelled"' in line)


def until_idle(cluster, seconds=60):
    deadline = time.time() + seconds
    while active(cluster):
        assert time.time() < deadline, "a request is still in work"
        time.sleep(0.01)
