"""A small iii worker: just enough of RFC 6455 and of the worker protocol to call functions and to
use channels, with nothing but Python's own library.

    with Engine("ws://127.0.0.1:49134") as engine:
        reply = engine.call("sandbox-libkrun::list", {})       # raises CallError
        pending = engine.start("sandbox-libkrun::exec", {...})  # … pending.result()

One thread reads; calls may be made from any thread and overlap.
"""
import base64
import json
import os
import socket
import struct
import threading
import urllib.parse
import uuid

WAIT_S = 420    # an answer that takes longer will never come
FRAME_MAX = 65536  # bytes of a channel's frame
PIECE_MAX = 8 << 20  # bytes of a frame of any message; engines take 16 MiB

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class CallError(Exception):
    """The error body of an invocation."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Lost(Exception):
    """The connection ended."""


class Refused(Exception):
    """The server did not upgrade; `status` is the HTTP status."""

    def __init__(self, status):
        super().__init__(f"HTTP status {status}")
        self.status = status


class WebSocket:
    """A client's side of one connection. recv() gives (opcode, bytes) of whole messages."""

    def __init__(self, url, token=None):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "ws":
            raise ValueError(f"only ws:// is spoken here, not {url}")
        self.sock = socket.create_connection((parts.hostname, parts.port or 80), 10)
        self.sock.settimeout(None)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()
        self.buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket",
                 "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        if token:
            lines.append(f"Authorization: Bearer {token}")
        self.sock.sendall("\r\n".join(lines + ["", ""]).encode())
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status != 101:
            self.sock.close()
            raise Refused(status)

    def fill(self):
        try:
            data = self.sock.recv(1 << 20)
        except OSError as e:
            raise Lost(str(e)) from e
        if not data:
            raise Lost("end of the stream without a Close frame")
        self.buffer += data

    def take(self, n):
        while len(self.buffer) < n:
            self.fill()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def send(self, opcode, data):
        """One message, in several frames when it is large."""
        with self.lock:
            for at in range(0, max(len(data), 1), PIECE_MAX):
                piece = data[at:at + PIECE_MAX]
                last = at + PIECE_MAX >= len(data)
                self.send_frame((0x80 if last else 0) | (opcode if at == 0 else 0), piece)

    def send_frame(self, first, data):
        mask = os.urandom(4)
        n = len(data)
        head = bytes([first])
        if n < 126:
            head += bytes([0x80 | n])
        elif n < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", n)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", n)
        # XOR of the whole at once: quick enough for hundreds of MiB
        padded = mask * (n // 4 + 1)
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(padded[:n], "big")).to_bytes(n, "big")
        try:
            self.sock.sendall(head + mask + masked)
        except OSError as e:
            raise Lost(str(e)) from e

    def recv(self):
        kind, message = None, b""
        while True:
            first, second = self.take(2)
            n = second & 0x7f
            if n == 126:
                n, = struct.unpack(">H", self.take(2))
            elif n == 127:
                n, = struct.unpack(">Q", self.take(8))
            data = self.take(n)
            opcode = first & 0x0f
            if opcode == PING:
                self.send(PONG, data)
            elif opcode == CLOSE:
                return CLOSE, data
            elif opcode != PONG:
                kind = opcode or kind
                message += data
                if first & 0x80:
                    return kind, message

    def close(self, say=True):
        try:
            if say:
                self.send(CLOSE, struct.pack(">H", 1000))
            self.sock.shutdown(socket.SHUT_RDWR)
        except (OSError, Lost):
            pass
        self.sock.close()


class Pending:
    """A call under way."""

    def __init__(self):
        self.done = threading.Event()
        self.reply = self.error = None

    def result(self, seconds=WAIT_S):
        if not self.done.wait(seconds):
            raise TimeoutError(f"no answer within {seconds} s")
        if self.error:
            raise self.error
        return self.reply


class Engine:
    def __init__(self, url, token=None, namespace=None, name=None):
        self.url, self.token, self.namespace = url.rstrip("/"), token, namespace
        self.ws = WebSocket(self.url, token)
        self.pending, self.lock = {}, threading.Lock()
        self.lost = None
        who = {"runtime": "python", "version": "0", "pid": os.getpid(),
               "name": name or f"conformance-{uuid.uuid4().hex[:8]}"}
        if namespace:
            who["namespace"] = namespace
        self.send({"type": "invokefunction", "function_id": "engine::workers::register",
                   "action": {"type": "void"}, "data": who})
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.ws.close()
        self.reader.join(10)

    def send(self, message):
        text = message if isinstance(message, str) else json.dumps(message)
        self.ws.send(TEXT, text.encode("utf-8", "surrogatepass"))

    def read(self):
        try:
            while True:
                kind, data = self.ws.recv()
                if kind == CLOSE:
                    raise Lost("the engine closed the connection")
                self.on_message(json.loads(data))
        except Lost as e:
            with self.lock:
                self.lost, waiting, self.pending = e, self.pending, {}
            for p in waiting.values():
                p.error = e
                p.done.set()

    def on_message(self, m):
        if m.get("type") == "ping":
            self.send({"type": "pong"})
        if m.get("type") != "invocationresult":
            return
        with self.lock:
            p = self.pending.pop(m.get("invocation_id"), None)
        if p:
            if m.get("error"):
                p.error = CallError(m["error"].get("code"), m["error"].get("message"))
            else:
                p.reply = m.get("result")
            p.done.set()

    def start(self, function_id, data, raw=None, **envelope):
        """raw: the text of `data`, for what Python's json would not write."""
        p, invocation_id = Pending(), str(uuid.uuid4())
        with self.lock:
            if self.lost:
                raise self.lost
            self.pending[invocation_id] = p
        m = {"type": "invokefunction", "invocation_id": invocation_id, "function_id": function_id,
             "data": "DATA" if raw is not None else data, **envelope}
        if self.namespace and not function_id.startswith(("engine::", "configuration::")):
            m.setdefault("namespace", self.namespace)
        self.send(json.dumps(m).replace('"DATA"', raw) if raw is not None else m)
        return p

    def call(self, function_id, data, seconds=WAIT_S, **more):
        return self.start(function_id, data, **more).result(seconds)

    # --- channels ---

    def channel(self, buffer_size=64):
        """(reader reference, writer reference)"""
        made = self.call("engine::channels::create", {"buffer_size": buffer_size})
        return made["reader"], made["writer"]

    def open(self, ref, direction=None):
        """A WebSocket on one end of a channel."""
        query = urllib.parse.urlencode({"key": ref["access_key"],
                                        "dir": direction or ref["direction"]})
        return WebSocket(f"{self.url}/ws/channels/{ref['channel_id']}?{query}", self.token)

    def read_channel(self, ref):
        """(all bytes, texts) up to the Close frame."""
        ws, parts, texts = self.open(ref, "read"), [], []
        try:
            while True:
                kind, message = ws.recv()
                if kind == CLOSE:
                    return b"".join(parts), texts
                if kind == TEXT:
                    texts.append(message.decode())
                else:
                    parts.append(message)
        finally:
            ws.close(say=False)

    def write_channel(self, ref, data, texts=(), finish=True):
        """Sends the bytes in frames. Without `finish` the open socket is returned."""
        ws = self.open(ref, "write")
        for text in texts:
            ws.send(TEXT, text.encode())
        for at in range(0, len(data), FRAME_MAX):
            ws.send(BINARY, data[at:at + FRAME_MAX])
        if not finish:
            return ws
        ws.close()
        return None
