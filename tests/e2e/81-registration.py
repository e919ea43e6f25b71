#!/usr/bin/env python3
"""What the adapter registers with an engine: the contract's functions with the contract's schemas
(tests/data/contract.json), as they go over the wire and as the embedded engine lists them."""
import json
import os
import re
import signal
import socket
import struct
import threading

import harness
from harness import BIN, SOURCE, case, main, wait_until
from compose import iii

PREFIX = "sandbox-libkrun::"


def contract():
    with open(os.path.join(SOURCE, "tests/data/contract.json"), encoding="utf-8") as f:
        return {x["name"]: x for x in json.load(f)["functions"]}


def structure(schema, names=False):
    """Without descriptions, which are the adapter's own. names: members are names of properties."""
    if isinstance(schema, list):
        return [structure(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: structure(v, not names and k in ("properties", "definitions"))
            for k, v in schema.items() if names or k != "description"}


class Tap:
    """A way to a server that keeps what the first client sends."""

    def __init__(self, port):
        self.sent, self.port = bytearray(), port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets, self.threads = [self.listener], []
        self.run(self.accept)

    def run(self, function, *args):
        self.threads.append(threading.Thread(target=function, args=args))
        self.threads[-1].start()

    def accept(self):
        try:
            client, _ = self.listener.accept()
        except OSError:
            return
        server = socket.create_connection(("127.0.0.1", self.port))
        self.sockets += [client, server]
        self.run(self.pass_on, client, server, self.sent)
        self.run(self.pass_on, server, client, bytearray())

    def pass_on(self, source, sink, kept):
        try:
            while data := source.recv(1 << 16):
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for s in self.sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in list(self.threads):
            thread.join(20)
        for s in self.sockets:
            s.close()

    def messages(self):
        """Those that are whole by now."""
        found, text = [], b""
        data = bytes(self.sent).partition(b"\r\n\r\n")[2]
        at = 0
        while len(data) - at >= 2:
            n, head = data[at + 1] & 0x7f, 2
            if n == 126 and len(data) - at >= 4:
                n, head = struct.unpack_from(">H", data, at + 2)[0], 4
            elif n == 127 and len(data) - at >= 10:
                n, head = struct.unpack_from(">Q", data, at + 2)[0], 10
            elif n >= 126:
                break
            if len(data) - at < head + 4 + n:
                break
            mask, body = data[at + head:at + head + 4], data[at + head + 4:at + head + 4 + n]
            body = bytes(b ^ mask[i % 4] for i, b in enumerate(body))
            if data[at] & 0x0f in (0, iii.TEXT):
                text += body
                if data[at] & 0x80:
                    found.append(json.loads(text))
                    text = b""
            at += head + 4 + n
        return found


def listed(engine, namespace):
    rows = engine.call("engine::functions::list", {"prefix": PREFIX})["functions"]
    return [x for x in rows if x["namespace"] == namespace]


@case()
def all_functions_and_their_schemas(t):
    wanted = contract()
    t.equal(len(wanted), 23, "functions of the contract")
    standalone = t.spawn([BIN, "standalone", "--port", "0"])
    line = t.wait_for_output(standalone, b"\n").decode()
    url = re.fullmatch(r"ready url=(ws://127\.0\.0\.1:(\d+))\n", line)
    tap = Tap(int(url.group(2)))
    try:
        with iii.Engine(url.group(1)) as engine:
            rows = listed(engine, "default")
            t.equal(sorted(x["function_id"] for x in rows), sorted(wanted), "what standalone has")
            t.equal([x for x in rows if not x.get("description")], [], "rows without a description")

            serve = t.spawn([BIN, "serve"], t.env(III_URL=tap.url, III_NAMESPACE="tapped"))
            wait_until(lambda: len(listed(engine, "tapped")) == len(wanted), harness.COMMAND_GUARD_S,
                       "all functions of serve")
            sent = [m for m in tap.messages() if m["type"] == "registerfunction"]
            t.equal(sorted(m["id"] for m in sent), sorted(wanted), "what serve registers")
            for m in sent:
                where = f"of {m['id']}"
                t.check(m["description"].strip(), "description " + where)
                t.check(None not in m.values(), f"a member is null: {m}")
                for ours, theirs in (("request_format", "request_schema"),
                                     ("response_format", "response_schema")):
                    t.check(isinstance(m[ours], dict) and m[ours], f"{ours} {where}")
                    t.equal(structure(m[ours]), structure(wanted[m["id"]][theirs]), f"{ours} {where}")
            serve.send_signal(signal.SIGTERM)
            t.equal(t.finish(serve).status, 0, "exit status of serve")
            wait_until(lambda: not listed(engine, "tapped"), harness.COMMAND_GUARD_S, "an empty list")
    finally:
        tap.close()
    standalone.send_signal(signal.SIGTERM)
    t.equal(t.finish(standalone).status, 0, "exit status of standalone")


main()
