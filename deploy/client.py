"""A small client of a running cluster, used by deploy/quickstart: waits until it is ready, sends chat completions over HTTP and
one Generate over gRPC, streams them to the terminal and prints what was measured. If the checkpoint's folder has a document
with questions (document.txt, questions.json), two of them are asked, and a wrong answer is an error. Also reads one key of a
YAML dump (--yaml-key), so that the shell script needs no YAML parser. It does not start or stop anything.
"""

import argparse
import importlib
import json
import os
import pathlib
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHAT = "Why does the cache live in host memory?"
PROMPT = "The decode worker keeps only"


def printable(text):
    """Text that a model has written, without the characters that control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def yaml_key(name):
    import yaml

    value = yaml.safe_load(sys.stdin)
    for part in name.split("."):
        value = value[part]
    print(" ".join(map(str, value)) if isinstance(value, list) else value)


# A proxy in the environment is for other hosts.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url, timeout=2.0):
    with DIRECT.open(url, timeout=timeout) as answer:
        return answer.read().decode()


def process_alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def wait_ready(http, workers, pid, limit):
    """Polls /workers until every worker has joined; prints progress every two seconds."""
    start = last = time.monotonic()
    joined = 0
    while time.monotonic() - start < limit:
        if pid and not process_alive(pid):
            raise SystemExit("quickstart: the cluster ended before it was ready")
        try:
            joined = len(json.loads(get(f"http://{http}/workers"))["workers"])
        except (OSError, ValueError, KeyError):
            pass
        if joined >= workers:
            print(f"   ready after {time.monotonic() - start:.1f} s: {joined} workers")
            return
        if time.monotonic() - last > 2:
            last = time.monotonic()
            print(f"   waiting: {joined} of {workers} workers have joined ({last - start:.0f} s)", flush=True)
        time.sleep(0.1)
    raise SystemExit(f"quickstart: only {joined} of {workers} workers joined within {limit} s")


class Clock:
    """Time to first token, inter-token latencies and rate of one stream."""

    def __init__(self):
        self.start = time.monotonic()
        self.stamps = []

    def tick(self):
        self.stamps.append(time.monotonic())

    def report(self, what, tokens):
        if not self.stamps:
            raise SystemExit(f"quickstart: {what} produced nothing")
        seconds = self.stamps[-1] - self.start
        decoding = self.stamps[-1] - self.stamps[0]
        itl = f"{1e3 * decoding / (tokens - 1):.2f} ms" if tokens > 1 else "n/a"
        print(
            f"\n   {what}: {tokens} tokens, TTFT {1e3 * (self.stamps[0] - self.start):.1f} ms, "
            f"inter-token latency {itl} (mean), {tokens / seconds:.1f} tokens/s"
        )


def chat(http, text, **options):
    """Streams one chat completion to the terminal; returns its text and what the server counted."""
    body = {
        "model": json.loads(get(f"http://{http}/v1/models"))["data"][0]["id"],
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 96,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    print("   assistant: ", end="", flush=True)
    request = urllib.request.Request(
        f"http://{http}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    clock, said, usage = Clock(), "", {}
    with DIRECT.open(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise SystemExit(f"quickstart: the server answered {event['error']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"]
                more = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                if more:
                    clock.tick()
                    said += more
                    print(printable(more), end="", flush=True)
    clock.report("HTTP chat completion", usage["completion_tokens"])
    return said, usage


def ask_document(http, folder):
    """Two questions about the document that comes with the checkpoint; the second one finds the document in the cache."""
    text = (folder / "document.txt").read_text(encoding="utf-8").strip()
    print(f"   {folder.name}/document.txt: {text[:80]}…")
    for n, asked in enumerate(json.loads((folder / "questions.json").read_text(encoding="utf-8"))[:2]):
        print(f"   user: <the document> {asked['question']}")
        said, usage = chat(http, f"Text: {text} Question: {asked['question']}")
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"   of the prompt's {usage['prompt_tokens']} tokens {cached} were cached")
        if said.strip() != asked["answer"]:
            raise SystemExit(f"quickstart: wrong answer; the document says: {asked['answer']}")
        if n and not cached:
            raise SystemExit("quickstart: the document was not cached")


def grpc_stubs():
    """Compiles our proto for Python in a temporary folder; returns (messages, services, descriptor proto)."""
    import grpc_tools
    import grpc_tools.protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    out = tempfile.mkdtemp(prefix="sluice-proto-")
    protos = [str(ROOT / "proto" / name) for name in ("common.proto", "sglang_scheduler.proto")]
    options = [f"-I{ROOT / 'proto'}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}"]
    if grpc_tools.protoc.main(["protoc", *options, *protos]):
        raise SystemExit(f"quickstart: protoc failed on {' '.join(protos)}")
    sys.path.insert(0, out)
    return importlib.import_module("sglang_scheduler_pb2"), importlib.import_module("sglang_scheduler_pb2_grpc")


def generate(address):
    import grpc

    messages, services = grpc_stubs()
    stub = services.SglangSchedulerStub(grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]))
    request = messages.GenerateRequest(request_id="quickstart-1", stream=True)
    request.tokenized.original_text = PROMPT
    request.tokenized.input_ids.extend(range(10, 74))
    request.sampling_params.temperature = 0.0
    request.sampling_params.ignore_eos = True
    request.sampling_params.max_new_tokens = 64
    clock, tokens = Clock(), 0
    print("   token ids: ", end="", flush=True)
    for answer in stub.Generate(request, timeout=120):
        if answer.WhichOneof("response") == "chunk":
            clock.tick()
            print(*answer.chunk.token_ids, end=" ", flush=True)
            tokens = answer.chunk.completion_tokens
        else:
            tokens = answer.complete.completion_tokens
    clock.report("gRPC Generate", tokens)


def metric_sum(text, name, label=""):
    """Sum of one counter over its label sets that contain label; None if there is none."""
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " ") and label in line
    ]
    return sum(values) if values else None


def swap_counts(metrics_port, workers):
    """(hits, misses, bytes moved) of all workers that export them; None if none does."""
    sums = []
    for rank in range(1, workers + 1):
        text = get(f"http://127.0.0.1:{metrics_port + rank}/metrics")
        values = [metric_sum(text, "sluice_swap_rows_total", f'result="{result}"') for result in ("hit", "miss")]
        values.append(metric_sum(text, "sluice_swap_bytes_total"))
        if None not in values:
            sums.append(values)
    return [sum(column) for column in zip(*sums)] if sums else None


def swap_in(metrics_port, workers):
    """Workers update these counters a few times per second: waits until the values no longer change."""
    counts, before = swap_counts(metrics_port, workers), None
    for _ in range(10):
        if counts is None:
            raise SystemExit("quickstart: no worker exports the swap-in counters")
        if counts == before:
            break
        time.sleep(0.5)
        counts, before = swap_counts(metrics_port, workers), counts
    hits, misses, moved = counts
    total = hits + misses
    rate = f"{100 * hits / total:.1f} %" if total else "nothing selected yet"
    print(f"   swap-in hit rate {rate} ({hits:.0f} hits, {misses:.0f} misses, {moved / 2**20:.2f} MiB moved)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yaml-key")
    parser.add_argument("--http")
    parser.add_argument("--grpc")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--pid", type=int, default=0)
    parser.add_argument("--model", type=pathlib.Path, help="the checkpoint's folder")
    parser.add_argument("--ready-seconds", type=float, default=60)
    args = parser.parse_args()
    if args.yaml_key:
        return yaml_key(args.yaml_key)
    wait_ready(args.http, args.workers, args.pid, args.ready_seconds)
    if args.model and (args.model / "document.txt").exists():
        print("== a long document and two questions, over HTTP")
        ask_document(args.http, args.model)
    else:
        print(f"== one chat completion over HTTP\n   user: {CHAT}")
        chat(args.http, CHAT, ignore_eos=True)
    print("== one Generate over gRPC")
    generate(args.grpc)
    print("== where to look")
    if args.metrics_port:
        swap_in(args.metrics_port, args.workers)
        last = args.metrics_port + args.workers
        print(f"   metrics: http://{args.http}/metrics (router), http://127.0.0.1:{args.metrics_port + 1}..{last}/metrics (workers)")
    print(f"   API:     http://{args.http}/v1   gRPC {args.grpc}   workers http://{args.http}/workers")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
