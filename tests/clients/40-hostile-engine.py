#!/usr/bin/env python3
"""echo_worker against an engine that is a few lines of Python and sends what it likes: how the worker
announces itself, comes back, answers, and what it does with broken messages and channels."""
import asyncio
import base64
import hashlib
import json
import os
import ssl
import subprocess
import tempfile
import uuid

import harness

harness.enter()

import websockets  # noqa: E402
from websockets.asyncio.server import serve  # noqa: E402
from websockets.frames import CloseCode  # noqa: E402

MiB = 1 << 20


class Link:
    """One connection of the worker, as the engine sees it."""

    def __init__(self, ws, number):
        self.ws, self.headers, self.path = ws, ws.request.headers, ws.request.path
        self.inbox, self.number = asyncio.Queue(), number
        self.worker_id, self.token = str(uuid.uuid4()), str(uuid.uuid4())

    async def receive(self):
        got = await asyncio.wait_for(self.inbox.get(), harness.WAIT_S)
        if isinstance(got, Exception):
            raise AssertionError(f"the worker's connection ended: {got}")
        return got

    async def expect(self, kind):
        message = await self.receive()
        if message["type"] != kind:
            raise AssertionError(f"expected {kind}, got {message}")
        return message

    async def send(self, message):
        await self.ws.send(message if isinstance(message, (str, bytes)) else harness.dumps(message))

    async def answer(self, call, result=None, **more):
        await self.send({"type": "invocationresult", "invocation_id": call["invocation_id"],
                         "function_id": call["function_id"], "result": result, **more})

    async def call(self, function_id, **members):
        """A call and its answer; data is {} unless it is given."""
        u = str(uuid.uuid4())
        await self.send({"type": "invokefunction", "invocation_id": u, "function_id": function_id,
                         "data": {}, **members})
        answer = await self.expect("invocationresult")
        if (answer["invocation_id"], answer["function_id"]) != (u, function_id):
            raise AssertionError(f"not the answer to {u}: {answer}")
        return answer


class Engine:
    def __init__(self, tls=None, welcome=True, token=True):
        self.links, self.connections = asyncio.Queue(), 0
        self.channel = None      # async def(ws): serves /ws/channels/…
        self.channels = []       # paths that were asked for
        self.refuse = None       # HTTP status for every upgrade
        self.tls, self.welcome, self.token = tls, welcome, token

    async def __aenter__(self):
        self.server = await serve(
            self.handle, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None,
            process_request=self.request, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"{'wss' if self.tls else 'ws'}://localhost:{self.port}"
        return self

    async def __aexit__(self, *_):
        self.server.close(close_connections=True)

    def request(self, connection, request):
        if request.path.startswith("/ws/channels/"):
            self.channels.append(request.path)
            if not self.channel:
                return connection.respond(404, "Channel not found")
        elif self.refuse:
            return connection.respond(self.refuse, "no")
        return None

    async def handle(self, ws):
        if ws.request.path.startswith("/ws/channels/"):
            await self.channel(ws)
            return
        self.connections += 1
        link = Link(ws, self.connections)
        if self.welcome:
            await link.send({"type": "workerregistered", "worker_id": link.worker_id,
                             **({"reattach_token": link.token} if self.token else {}),
                             "features": ["x"]})
        await self.links.put(link)
        try:
            async for message in ws:
                await link.inbox.put(json.loads(message))
            await link.inbox.put(Exception(f"closed {ws.close_code}"))
        except websockets.ConnectionClosed as e:
            await link.inbox.put(e)

    async def next(self):
        return await asyncio.wait_for(self.links.get(), harness.WAIT_S)

    async def served(self):
        """A connection whose worker has read its configuration and registered."""
        link = await self.next()
        await link.expect("invokefunction")
        await link.answer(await link.expect("invokefunction"), {"id": "echo", "value": {}})
        for _ in range(10):
            await link.expect("registerfunction")
        return link


def worker(engine, **env):
    return harness.Worker(env={"III_URL": engine.url, **env})


@harness.case
async def the_upgrade_is_plain(t):
    async with Engine() as e:
        for token in (None, "t-1"):
            async with worker(e, **({"III_TOKEN": token} if token else {})):
                h = (await e.next()).headers
                t.equal(h["Sec-WebSocket-Version"], "13", "version")
                t.equal(len(base64.b64decode(h["Sec-WebSocket-Key"])), 16, "key")
                t.true("Sec-WebSocket-Extensions" not in h, "extensions")
                t.true("Sec-WebSocket-Protocol" not in h, "protocols")
                t.equal(h["Host"], f"localhost:{e.port}", "host")
                t.equal(h.get("Authorization"), f"Bearer {token}" if token else None, "token")


@harness.case
async def it_announces_itself_before_anything_else(t):
    async with Engine() as e:
        async with worker(e, III_WORKER_NAME="w-name", III_NAMESPACE="n-1") as w:
            m = await (await e.next()).receive()
            t.equal((m["type"], m["function_id"], m["action"]),
                    ("invokefunction", "engine::workers::register", {"type": "void"}), "first")
            t.true("invocation_id" not in m, "it wants an answer")
            d = m["data"]
            t.equal((d["pid"], d["name"], d["namespace"]), (w.child.pid, "w-name", "n-1"), "who")
            t.true(None not in d.values(), "nulls")
        async with worker(e, III_NAMESPACE=""):
            m = await (await e.next()).receive()
            t.true("namespace" not in m["data"], "a namespace that was not set")
            t.equal(m["data"]["name"], "echo", "the name of its own")


@harness.case
async def the_configuration_comes_before_the_functions(t):
    async with Engine() as e, worker(e, III_CONFIG_NAME="foo-bar") as w:
        link = await e.next()
        await link.receive()
        get = await link.expect("invokefunction")
        t.equal((get["function_id"], get["data"]), ("configuration::get", {"id": "foo-bar"}), "call")
        t.equal(get.get("namespace", "default"), "default", "namespace")
        await asyncio.sleep(0.5)
        t.true(link.inbox.empty(), "it did not wait for the answer")
        await link.answer(get, {"id": "foo-bar", "value": {"a": 1}})
        seen = [await link.expect("registerfunction") for _ in range(10)]
        t.equal(len({m["id"] for m in seen}), 10, "ids")
        for m in seen:
            t.true(m["description"] and isinstance(m["request_format"], dict)
                   and isinstance(m["response_format"], dict), f"a bare registration: {m}")
        await w.wait('config value {"a":1}')


@harness.case
async def every_end_of_the_configuration_is_told_apart(t):
    for reply, want in (
            ({"error": {"code": "NOT_FOUND", "message": "m"}}, "config absent"),
            ({"result": {"id": "echo", "value": None}}, "config absent"),
            ({"error": {"code": "SCHEMA_INVALID", "message": "bad"}},
             "config failed configuration::get failed: SCHEMA_INVALID: bad"),
            ({"result": {}}, "config failed"), ({"result": [1]}, "config failed"), ({}, "config failed"),
            ('{"type":"invocationresult","invocation_id":"%s","result":"\\ud800"}', "config failed"),
            (None, "config lost")):
        async with Engine() as e, worker(e) as w:
            link = await e.next()
            await link.receive()
            get = await link.receive()
            if reply is None:
                link.ws.transport.abort()
            elif isinstance(reply, str):
                await link.send(reply % get["invocation_id"])
            else:
                await link.answer(get, **{"result": None, **reply})
            await w.wait(want)


@harness.case
async def calls_with_members_nobody_knows(t):
    async with Engine() as e, worker(e):
        link = await e.served()
        a = await link.call("t::echo", data={"_caller_worker_id": "x", "zzz": 1}, features=[],
                            namespace=None, action=None, metadata={}, traceparent="00-1-2-01")
        t.equal(a["result"], {"_caller_worker_id": "x", "zzz": 1}, "result")
        t.true("error" not in a, "an error")
        t.equal((await link.call("t::echo", data=None)).get("result"), None, "null data")
        u = str(uuid.uuid4())
        await link.send({"type": "invokefunction", "invocation_id": u, "function_id": "t::echo"})
        t.equal((await link.expect("invocationresult"))["invocation_id"], u, "no data")
        a = await link.call("t::nope")
        t.equal(a["error"], {"code": "function_not_found", "message": "Function not found"}, "error")
        a = await link.call("t::error")
        t.true("result" not in a and "stacktrace" not in a["error"], f"{a}")


@harness.case
async def void_calls_are_never_answered(t):
    async with Engine() as e, worker(e):
        link = await e.served()
        for function in ("t::echo", "t::error", "t::nope"):
            await link.send({"type": "invokefunction", "function_id": function, "data": {}})
        t.equal((await link.call("t::count"))["result"], {"notes": 0}, "the next answer")


@harness.case
async def pings_of_both_kinds_are_answered(t):
    async with Engine() as e, worker(e):
        link = await e.served()
        await link.send({"type": "ping"})
        await link.expect("pong")
        await asyncio.wait_for(await link.ws.ping("abc"), harness.WAIT_S)
        await link.send({"type": "pong"})
        t.equal((await link.call("t::count"))["result"], {"notes": 0}, "afterwards")


@harness.case
async def junk_is_ignored(t):
    async with Engine() as e, worker(e):
        link = await e.served()
        for junk in ("", "  \n", "{}", "not json", "[]", '{"type":"somethingnew"}', '{"type":7}',
                     '{"type":"invocationresult","invocation_id":"nobody","result":1}',
                     '{"type":"invokefunction"}', '{"type":"workerregistered"}',
                     b"\x00\x01", '"', '{"type":"registrationrejected"}', "[" * 1000000):
            await link.send(junk)
        await link.send(b'{"type":"invokefunction","invocation_id":"b","function_id":"t::count","data":1}')
        t.equal((await link.expect("invocationresult"))["invocation_id"], "b", "a binary message")


@harness.case
async def a_call_that_cannot_be_decoded_is_answered(t):
    head = '{"type":"invokefunction","invocation_id":"%s","function_id":"t::echo","data":'
    async with Engine() as e, worker(e):
        link = await e.served()
        for broken in ('"\\ud800"}', '{"a":1,"a":2}}', "[" * 65 + "]" * 65 + "}", "[" * 5000000,
                       '"\x01"}', "NaN}", "1e999}", "tru}", "", '"half',
                       "[" + "0," * 300000 + "0]}", '{"\\u0000":1}}',
                       '1,"function_id":"t::error"}'):
            u = str(uuid.uuid4())
            await link.send(head % u + broken)
            a = await link.expect("invocationresult")
            t.equal((a["invocation_id"], a["error"]["code"]), (u, "invocation_failed"), broken[:40])
            t.has("handler error: S001 ", a["error"]["message"], "the handler's own words")
        # Bytes that are no UTF-8, as a binary message: text would break the connection.
        u = str(uuid.uuid4())
        await link.send((head % u).encode() + b'"\xff\xfe"}')
        t.equal((await link.expect("invocationresult"))["invocation_id"], u, "no UTF-8")
        # The id behind the payload.
        await link.send('{"data":{"a":[1,]},"invocation_id":"late","function_id":"f",'
                        '"type":"invokefunction"}')
        t.equal((await link.expect("invocationresult"))["invocation_id"], "late", "a late id")


@harness.case
async def a_message_over_the_limit_is_answered_and_survived(t):
    async with Engine() as e, worker(e) as w:
        link = await e.served()
        u = str(uuid.uuid4())
        text = ('{"type":"invokefunction","invocation_id":"%s","function_id":"t::echo","data":"' % u
                + "x" * (100 * MiB) + '"}')
        before = w.rss_kib()
        await link.send(text)
        a = await link.expect("invocationresult")
        t.equal(a["invocation_id"], u, "id")
        t.has("limit", a["error"]["message"], "message")
        t.equal((await link.call("t::echo", data=5))["result"], 5, "afterwards")
        t.true(w.peak_kib() - before < 200 * 1024 or harness.SANITIZED,
               f"it grew to {w.peak_kib()} KiB")
        t.true(w.rss_kib() - before < 16 * 1024 or harness.SANITIZED,
               f"{w.rss_kib() - before} KiB were kept")


@harness.case
async def replies_are_text_in_frames_of_bounded_size(t):
    """Read from the socket, since the library hides frames."""
    frames = []

    class Watching(Engine):
        async def handle(self, ws):
            inner = ws.protocol.recv_frame if hasattr(ws.protocol, "recv_frame") else None
            if inner:
                def recv_frame(frame):
                    frames.append((frame.opcode, frame.fin, len(frame.data)))
                    inner(frame)
                ws.protocol.recv_frame = recv_frame
            await super().handle(ws)

    async with Watching() as e, worker(e):
        link = await e.served()
        a = await link.call("t::blob", data={"bytes": 4 * MiB})
        t.equal(len(a["result"]["blob"]), 4 * MiB, "length")
        t.true(frames and max(f[2] for f in frames) <= 16 * MiB, "a frame over the limit")
        t.true(len(frames) > 20, "frames were not seen")
        a = await link.call("t::dirty")
        t.equal(a["result"], {"raw": "\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd", "added": "\ufffd"},
                "bytes that are no text")
        a = await link.call("t::blob", data={"bytes": 12 * MiB})
        t.has("limit", a["error"]["message"], "a reply of 72 MiB")


@harness.case
async def many_calls_at_once(t):
    async with Engine() as e, worker(e):
        link = await e.served()
        slow, rest = str(uuid.uuid4()), [str(uuid.uuid4()) for _ in range(50)]
        for u, f, d in [(slow, "t::slow", {"ms": 1500})] + [(u, "t::echo", u) for u in rest]:
            await link.send({"type": "invokefunction", "invocation_id": u, "function_id": f, "data": d})
        got = [await link.expect("invocationresult") for _ in range(51)]
        t.equal(got[-1]["invocation_id"], slow, "the last answer")
        t.equal({a["invocation_id"]: a["result"] for a in got[:-1]}, {u: u for u in rest}, "answers")


@harness.case
async def more_calls_at_once_than_it_takes(t):
    async with Engine() as e, worker(e):
        link = await e.served()
        for i in range(4200):
            await link.send({"type": "invokefunction", "invocation_id": f"u{i}",
                             "function_id": "t::slow", "data": {"ms": 3000}})
        got = [await link.expect("invocationresult") for _ in range(4200)]
        t.equal(len({a["invocation_id"] for a in got}), 4200, "each answered once")
        t.equal(sum("error" in a for a in got), 104, "refused")


@harness.case
async def it_comes_back_and_says_who_it_was(t):
    async with Engine() as e, worker(e) as w:
        link = await e.served()
        await link.send({"type": "invokefunction", "invocation_id": "old", "function_id": "t::slow",
                         "data": {"ms": 3000}})
        link.ws.transport.abort()
        await w.wait("down")
        again = await e.next()
        m = await again.receive()
        t.equal(m, {"type": "reattach", "previous_worker_id": link.worker_id,
                    "reattach_token": link.token}, "first message")
        t.equal((await again.receive())["function_id"], "engine::workers::register", "second")
        for _ in range(10):
            await again.expect("registerfunction")
        a = await again.call("t::echo", data=1)
        t.equal(a["result"], 1, "a call afterwards; the configuration was not read again")
        await asyncio.sleep(3)
        t.true(again.inbox.empty(), "an answer to the old connection's call came")


@harness.case
async def an_engine_without_tokens_or_welcome(t):
    for options in ({"token": False}, {"welcome": False}):
        async with Engine(**options) as e, worker(e) as w:
            link = await e.served()
            link.ws.transport.abort()
            await w.wait("down")
            again = await e.next()
            m = await again.receive()
            if options == {"token": False}:
                t.equal(m, {"type": "reattach", "previous_worker_id": link.worker_id}, "reattach")
            else:
                t.equal(m["type"], "invokefunction", "first message without a known id")


@harness.case
async def refused_upgrades_are_tried_again(t):
    async with Engine() as e:
        e.refuse = 503
        async with worker(e) as w:
            t.has("503", await w.wait("down"), "why")
            e.refuse = None
            await e.served()


@harness.case
async def an_auth_error_is_logged(t):
    async with Engine(welcome=False) as e, worker(e, III_TOKEN="secret-token") as w:
        link = await e.next()
        await link.send({"type": "error", "error": {"code": "AUTH_ERROR", "message": "who are you"}})
        await link.ws.close()
        await w.wait("down")
        await e.next()
        t.has(b"AUTH_ERROR", w.errors, "log")
        t.true(b"secret-token" not in w.errors, "the token is in the log")


@harness.case
async def rejections(t):
    async with Engine() as e, worker(e) as w:
        link = await e.served()
        await link.send({"type": "registrationrejected", "code": "FUNCTION_NAMESPACE_CONFLICT",
                         "namespace": "n", "function_id": "t::echo", "owner_worker_id": "o-1"})
        await w.wait("rejected FUNCTION_NAMESPACE_CONFLICT  owner=o-1")
        t.equal((await link.call("t::count"))["result"], {"notes": 0}, "afterwards")
    for code in ("WORKER_NAMESPACE_CONFLICT", "SOMETHING_NEW"):
        async with Engine() as e, worker(e) as w:
            link = await e.served()
            await link.send({"type": "registrationrejected", "code": code, "namespace": "n",
                             "worker_name": "echo", "owner_worker_id": ""})
            await link.ws.close()
            await w.wait(f"rejected {code} fatal")
            await w.wait("down")
            await asyncio.sleep(3)
            t.equal(e.connections, 1, "connections")


@harness.case
async def silence_is_noticed(t):
    """An engine that reads but never says anything, not even a pong."""
    connections = asyncio.Queue()

    async def silent(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        key = [line.split(b": ")[1] for line in head.split(b"\r\n")
               if line.lower().startswith(b"sec-websocket-key")][0]
        accept = base64.b64encode(hashlib.sha1(
            key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                     b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        data = b""
        while chunk := await reader.read(65536):
            data += chunk
        await connections.put(data)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    env = {"III_URL": f"ws://127.0.0.1:{port}", "ECHO_PING_MS": "200", "ECHO_DEAD_MS": "1500"}
    async with harness.Worker(env=env) as w:
        await w.wait("up 1")
        data = await asyncio.wait_for(connections.get(), harness.WAIT_S)
        t.true(b"\x89\x80" in data, "there was no masked ping")
        t.has("heard", await w.wait("down"), "why")
        await w.wait("up 2")
    server.close()


@harness.case
async def goodbye_is_a_close_frame(t):
    async with Engine() as e:
        async with worker(e) as w:
            link = await e.served()
            await w.stop()
            try:
                await link.receive()
                t.true(False, "it still spoke")
            except AssertionError as x:
                t.has("1000", str(x), "the end")
        t.equal(link.ws.close_code, CloseCode.NORMAL_CLOSURE, "code")


@harness.case
async def wss_checks_the_certificate(t):
    with tempfile.TemporaryDirectory() as folder:
        cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        async with Engine(tls) as e:
            async with worker(e) as w:
                await w.wait("down")
                t.equal(e.connections, 0, "connections with a certificate nobody knows")
            async with worker(e, SSL_CERT_FILE=cert) as w:
                link = await e.served()
                a = await link.call("t::blob", data={"bytes": MiB})
                t.equal(len(a["result"]["blob"]), MiB, "length")
                got = []

                async def reader(ws):
                    async for message in ws:
                        got.append(message)
                e.channel = reader
                made = {"channel_id": "c", "access_key": "k"}
                task = asyncio.create_task(link.call("t::download", data={"bytes": 3000000}))
                create = None
                while not create:
                    m = await link.receive()
                    if m["type"] == "invokefunction":
                        create = m
                await link.answer(create, {"reader": {**made, "direction": "read"},
                                           "writer": {**made, "direction": "write"}})
                await task
                await w.wait("download end=0")
                t.equal(b"".join(got), harness.pattern(0, 3000000), "bytes")
            e.url = f"wss://127.0.0.1:{e.port}"
            async with worker(e, SSL_CERT_FILE=cert) as w:
                await w.wait("down")
                t.equal(e.connections, 1, "connections under another name")


# --- channels ----------------------------------------------------------------------------------

REF = {"channel_id": "11111111-1111-4111-8111-111111111111", "access_key": "k&1",
       "direction": "write"}  # the direction in it does not decide


async def upload(e, serve_channel, **options):
    async with worker(e, III_TOKEN="tok"):
        link = await e.served()
        e.channel = serve_channel
        return (await link.call("t::upload", data={"content": REF, **options}))["result"]


@harness.case
async def a_reader_opens_reads_and_sends_nothing(t):
    sent_back = []

    async def channel(ws):
        t.equal(ws.request.path, f"/ws/channels/{REF['channel_id']}?key=k%261&dir=read", "path")
        t.equal(ws.request.headers["Authorization"], "Bearer tok", "token")
        await ws.send(harness.pattern(0, 3))
        await ws.send("text")
        await ws.send([harness.pattern(3, 40000), harness.pattern(40003, 30000)])
        await ws.send(b"")
        await ws.close()
        try:
            async for message in ws:
                sent_back.append(message)
        except websockets.ConnectionClosed:
            pass

    async with Engine() as e:
        r = await upload(e, channel)
        t.equal((r["bytes"], r["right"], r["texts"], r["end"]), (70003, True, 1, "end"), "arrived")
        t.equal(sent_back, [], "sent by a reader")


@harness.case
async def every_close_frame_is_an_end_and_nothing_else_is(t):
    for code, end in ((1000, "end"), (1011, "end"), (None, "end"), ("abort", "broken")):
        async def channel(ws, code=code):
            await ws.send(harness.pattern(0, 5000))
            if code == "abort":
                await asyncio.sleep(0.2)
                ws.transport.abort()
            elif code is None:
                ws.transport.write(b"\x88\x00")
                await ws.wait_closed()
            else:
                await ws.close(code)
        async with Engine() as e:
            r = await upload(e, channel)
            t.equal((r["end"], r["bytes"]), (end, 5000), f"close {code}")


@harness.case
async def a_channel_that_is_not_there_or_silent(t):
    async def silent(ws):
        await ws.wait_closed()

    async def chatty(ws):
        try:
            while True:
                await ws.send("still here")
                await asyncio.sleep(0.05)
        except websockets.ConnectionClosed:
            pass

    async with Engine() as e:
        t.equal((await upload(e, None))["end"], "refused", "404")
        t.equal((await upload(e, silent, idle_ms=400))["end"], "stalled", "silence")
        t.equal((await upload(e, chatty, idle_ms=400))["end"], "stalled", "text only")


async def download(e, w, link, size, serve_channel):
    e.channel = serve_channel
    ref = {"channel_id": str(uuid.uuid4()), "access_key": "k"}
    u = str(uuid.uuid4())
    await link.send({"type": "invokefunction", "invocation_id": u, "function_id": "t::download",
                     "data": {"bytes": size}, "traceparent": "00-aa-bb-01", "baggage": "x=y"})
    create = await link.expect("invokefunction")
    assert create["function_id"] == "engine::channels::create", create
    assert create["data"] == {"buffer_size": 64}, create
    assert (create["traceparent"], create["baggage"]) == ("00-aa-bb-01", "x=y"), create
    await link.answer(create, {"reader": {**ref, "direction": "read"},
                               "writer": {**ref, "direction": "write"}})
    return (await link.expect("invocationresult"))["result"]


@harness.case
async def a_writer_sends_small_binary_frames_and_closes(t):
    for size in (0, 1, 200000):
        got, ended = [], asyncio.Event()

        async def channel(ws, got=got, ended=ended):
            t.true(ws.request.path.endswith("&dir=write"), "direction")
            async for message in ws:
                got.append(message)
            got.append(ws.close_code)
            ended.set()

        async with Engine() as e, worker(e) as w:
            link = await e.served()
            answer = await download(e, w, link, size, channel)
            t.equal((answer["size"], answer["content"]["direction"]), (size, "read"), "answer")
            await asyncio.wait_for(ended.wait(), harness.WAIT_S)
            t.equal(got.pop(), 1000, "close code")
            t.true(all(isinstance(m, bytes) and 0 < len(m) <= 65536 for m in got), "frames")
            t.equal(b"".join(got), harness.pattern(0, size), "bytes")
            await w.wait("download end=0")
            t.equal(len(e.channels), 1, "sockets")


@harness.case
async def a_reader_that_leaves_ends_the_writer(t):
    async def channel(ws):
        await ws.recv()
        ws.transport.abort()

    async with Engine() as e, worker(e) as w:
        link = await e.served()
        await download(e, w, link, 10**9, channel)
        await w.wait("download end=4")
        t.equal((await link.call("t::echo", data=1))["result"], 1, "afterwards")


@harness.case
async def a_slow_reader_gets_everything_and_calls_go_on(t):
    go, got, ended = asyncio.Event(), [], asyncio.Event()

    async def channel(ws):
        ws.transport.pause_reading()
        await go.wait()
        ws.transport.resume_reading()
        async for message in ws:
            got.append(message)
        ended.set()

    async with Engine() as e, worker(e) as w:
        link = await e.served()
        before = w.rss_kib()
        await download(e, w, link, 30000000, channel)
        for i in range(50):
            t.equal((await link.call("t::echo", data=i))["result"], i, "a call meanwhile")
        await asyncio.sleep(0.5)
        t.true(w.rss_kib() - before < 8 * 1024 or harness.SANITIZED, "it buffers")
        go.set()
        await asyncio.wait_for(ended.wait(), harness.WAIT_S)
        t.equal(b"".join(got), harness.pattern(0, 30000000), "bytes")
        await w.wait("download end=0")


harness.main()
