"""The load of tests/fresh/units and kubernetes: four clients that ask one question after the other until SIGTERM, and count. SLUICE_MODEL and
SLUICE_KEY name another model and a key.

While the router is replaced a connection is refused, or the request is: 503 of a server that shuts down. Both are tried again, as
docs/operations.md tells clients of one router. Any other answer that is not 200, that breaks off, or whose text differs from the
first one is lost; exits 1 if there is one.
"""
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.parse

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
at = urllib.parse.urlsplit(sys.argv[1])
HEADERS = {"Content-Type": "application/json"}
if "SLUICE_KEY" in os.environ:
    HEADERS["Authorization"] = "Bearer " + os.environ["SLUICE_KEY"]
BODY = json.dumps({"model": os.environ.get("SLUICE_MODEL", "facts-dsa"), "prompt": "Dora Cole likes the colour red. " * 8, "max_tokens": 40, "temperature": 0})
counts, texts, lost, lock = {"answers": 0, "refused": 0}, set(), [], threading.Lock()


def ask():
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
    try:
        c.request("POST", "/v1/completions", BODY, HEADERS)
        r = c.getresponse()
        body = r.read()
        return r.status, body
    finally:
        c.close()


def client():
    while not stop.is_set():
        try:
            status, body = ask()
        except ConnectionRefusedError:
            with lock:
                counts["refused"] += 1
            time.sleep(0.1)
            continue
        except (OSError, http.client.HTTPException) as e:
            with lock:
                lost.append(repr(e))
            continue
        with lock:
            if status == 503 and b"shutting down" in body:
                counts["refused"] += 1
            elif status != 200:
                lost.append(f"{status} {body[:200]!r}")
            else:
                counts["answers"] += 1
                texts.add(json.loads(body)["choices"][0]["text"])
        if status != 200:
            time.sleep(0.1)


threads = [threading.Thread(target=client) for _ in range(4)]
for t in threads:
    t.start()
while not stop.wait(0.2):
    pass
for t in threads:
    t.join()
print(f"   {counts['answers']} answers, {len(texts)} text, {counts['refused']} refused before they began and tried again, {len(lost)} lost")
for line in lost[:5]:
    print("   lost:", line)
sys.exit(bool(lost) or len(texts) != 1 or counts["answers"] < 10)
