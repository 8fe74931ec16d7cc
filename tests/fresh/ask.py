"""A streamed question of the scripts in tests/fresh: URL TOKENS FILE. Prints the finish reason, tokens and text; makes FILE at the first
token; exits 1 unless the answer is whole. With more than 50 tokens it does not end at the end of the answer."""
import json
import pathlib
import sys
import urllib.error
import urllib.request

url, tokens, began = sys.argv[1:]
model = json.load(urllib.request.urlopen(url + "/v1/models", timeout=60))["data"][0]["id"]
body = {"model": model, "max_tokens": int(tokens), "temperature": 0, "stream": True, "ignore_eos": int(tokens) > 50,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Dora Cole likes the colour red. What colour does Dora Cole like?"}]}
request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
text, reason, count, done = "", None, 0, False
try:
    for line in urllib.request.urlopen(request, timeout=120):
        done = done or line == b"data: [DONE]\n"
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit(f"   broke off: {event['error']}")
        count = (event.get("usage") or {}).get("completion_tokens", count)
        for choice in event["choices"]:
            pathlib.Path(began).touch()
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
except urllib.error.HTTPError as e:
    sys.exit(f"   {e.code}: {e.read()[:300]!r}")
print(f"   {reason}, {count} tokens: {text[:60]!r}")
sys.exit(0 if done and reason in ("stop", "length") else 1)
