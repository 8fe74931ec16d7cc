"""Connections as no library makes them: HTTP/2 by hand, bodies that trickle, sockets that say nothing."""

import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def address(text):
    host, port = text.split("://")[-1].rsplit(":", 1)
    return host, int(port)


def silent(where, n):
    """n connections that never say anything; fewer when the server or the machine takes no more."""
    out = []
    for _ in range(n):
        try:
            out.append(socket.create_connection(address(where), timeout=2))
        except OSError:
            break
    return out


def closed(sockets, wait=0.0):
    """How many of them the other side has closed."""
    n = 0
    for s in sockets:
        s.settimeout(wait or 0.001)
        try:
            n += s.recv(1) == b""
        except (TimeoutError, BlockingIOError):
            pass
        except OSError:
            n += 1
    return n


def varint(n):
    out = b""
    while True:
        out += bytes([n & 127 | (128 if n > 127 else 0)])
        n >>= 7
        if not n:
            return out


def field(number, payload):
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def grpc_frame(message):
    return b"\0" + struct.pack(">I", len(message)) + message


def _text(s):
    raw = s.encode()
    assert len(raw) < 127
    return bytes([len(raw)]) + raw


class H2:
    """One HTTP/2 connection without TLS. Flow control is obeyed: data() sends what the windows allow and says how much that was."""

    def __init__(self, where, timeout=20):
        self.s = socket.create_connection(address(where), timeout=timeout)
        self.lock, self.rooms = threading.Lock(), threading.Lock()  # of the socket; of what the peer takes
        self.window, self.windows, self.initial = 65535, {}, 65535
        self.next, self.gone, self.trailers = 1, False, {}
        self.s.sendall(PREFACE + self.frame(SETTINGS, 0, 0, b""))
        threading.Thread(target=self.read, daemon=True).start()

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def send(self, raw):
        with self.lock:
            self.s.sendall(raw)

    def read(self):
        buffer = b""
        try:
            while True:
                got = self.s.recv(65536)
                if not got:
                    break
                buffer += got
                while len(buffer) >= 9:
                    n = int.from_bytes(buffer[:3], "big")
                    if len(buffer) < 9 + n:
                        break
                    self.heard(buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), buffer[9:9 + n])
                    buffer = buffer[9 + n:]
        except OSError:
            pass
        self.gone = True

    def heard(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for i in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[i:i + 6])
                if name == 4:  # also of streams that are open (RFC 9113, 6.9.2)
                    with self.rooms:
                        self.windows = {s: n + value - self.initial for s, n in self.windows.items()}
                        self.initial = value
            self.send(self.frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.send(self.frame(PING, ACK, 0, payload))
        elif kind == WINDOW:
            self.grow(stream, int.from_bytes(payload, "big"))
        elif kind == HEADERS and flags & END_STREAM or kind == RST:
            self.trailers[stream] = payload
        elif kind == GOAWAY:
            self.gone = True

    def grow(self, stream, n):
        with self.rooms:
            if stream:
                self.windows[stream] = self.windows.get(stream, self.initial) + n
            else:
                self.window += n

    def open(self, path, *headers, end=False):
        """A stream of a POST; its number."""
        block = b""
        for name, value in ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
                            ("content-type", "application/grpc"), ("te", "trailers"), *headers):
            block += b"\0" + _text(name) + _text(value)
        stream, self.next = self.next, self.next + 2
        self.send(self.frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block))
        return stream

    def data(self, stream, raw, end=False):
        room = min(self.window, self.windows.get(stream, self.initial), len(raw))
        sent = 0
        while sent < room:
            part = raw[sent:sent + min(16384, room - sent)]
            last = end and sent + len(part) == len(raw)
            self.send(self.frame(DATA, END_STREAM if last else 0, stream, part))
            sent += len(part)
        self.grow(0, -sent)
        self.grow(stream, -sent)
        return sent

    def close(self):
        self.s.close()
