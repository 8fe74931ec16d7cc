"""A collector of OpenTelemetry traces: it reads what arrives with the official protocol code and checks it strictly."""

import http.server
import threading
import time

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


def values(attributes):
    names = [a.key for a in attributes]
    assert len(set(names)) == len(names), f"an attribute twice: {names}"
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def only_known_fields(message):
    assert not len(unknown_fields.UnknownFieldSet(message)), message
    for field, value in message.ListFields():
        if field.message_type:
            for m in value if field.is_repeated else [value]:
                only_known_fields(m)


class Span:
    def __init__(self, resource, span):
        self.service, self.worker = resource["service.name"], resource["service.instance.id"]
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.name, self.kind, self.state = span.name, span.kind, span.trace_state
        self.begin, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = values(span.attributes)
        self.failed, self.message = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR, span.status.message
        assert len(span.trace_id) == 16 and any(span.trace_id), span
        assert len(span.span_id) == 8 and any(span.span_id), span
        assert len(span.parent_span_id) in (0, 8), span
        assert self.name and self.begin <= self.end, span
        assert abs(self.begin / 1e9 - time.time()) < 600, "the date is wrong"

    def __repr__(self):
        return f"{self.service}:{self.name}{' failed: ' + self.message if self.failed else ''}"


class Collector:
    """status: what it answers; None: it takes connections and says nothing."""

    def __init__(self, port=0, status=200):
        self.status, self.spans, self.calls, self.faults = status, [], 0, []
        self.lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    outer.take(self.path, self.headers, body)
                except Exception as e:  # shown by close()
                    outer.faults.append(repr(e))
                if outer.status is None:
                    outer.let_go.wait(60)
                    return
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.let_go = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body):
        assert path == "/v1/traces", path
        assert headers["Content-Type"] == "application/x-protobuf", headers
        message = trace_service_pb2.ExportTraceServiceRequest()
        message.ParseFromString(body)
        only_known_fields(message)
        found = [Span(values(r.resource.attributes), s) for r in message.resource_spans for scope in r.scope_spans
                 for s in scope.spans]
        assert found, "nothing in it"
        with self.lock:
            self.calls += 1
            if self.status == 200:
                self.spans += found

    def of(self, trace):
        with self.lock:
            return [s for s in self.spans if s.trace == trace]

    def close(self):
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()
        assert not self.faults, self.faults
