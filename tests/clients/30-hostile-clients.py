#!/usr/bin/env python3
"""Clients that send what they like to the embedded engine: it and the worker stay up, their memory
stays bounded, and others do not notice."""
import asyncio
import json
import os
import socket
import struct
import uuid

import harness

harness.enter()

import websockets  # noqa: E402
from websockets.asyncio.client import connect  # noqa: E402

MiB = 1 << 20
# A message of 64 MiB is taken whole, parsed, and forwarded: some copies at a time, none for long.
PEAK_KIB = 900 * 1024 if not harness.SANITIZED else 4096 * 1024
REST_KIB = 64 * 1024 if not harness.SANITIZED else 2048 * 1024


class Peer:
    """A bare client that announced itself."""

    def __init__(self, worker, name=None, **options):
        self.worker, self.name, self.options = worker, name, {"max_size": None, "ping_interval": None, **options}

    async def __aenter__(self):
        self.ws = await connect(self.worker.url, compression=None, **self.options)
        welcome = json.loads(await self.ws.recv())
        assert welcome["type"] == "workerregistered"
        data = {"pid": os.getpid()}
        if self.name:
            data["name"] = self.name
        await self.send(type="invokefunction", function_id="engine::workers::register", data=data,
                        action={"type": "void"})
        return self

    async def __aexit__(self, *_):
        self.ws.transport.abort()

    async def send(self, **members):
        await self.ws.send(harness.dumps(members))

    async def receive(self):
        return json.loads(await asyncio.wait_for(self.ws.recv(), harness.WAIT_S))

    async def call(self, function_id, data, invocation_id=None):
        invocation_id = invocation_id or str(uuid.uuid4())
        await self.send(type="invokefunction", invocation_id=invocation_id,
                        function_id=function_id, data=data)
        while True:
            answer = await self.receive()
            if answer.get("invocation_id") == invocation_id:
                return answer


async def still_well(t, w):
    """A fresh client is served, and nothing was made again."""
    async with Peer(w) as p:
        answer = await p.call("t::echo", {"x": 1})
        t.equal(answer["result"]["x"], 1, "an honest call afterwards")
    t.true(w.child.returncode is None, "it died")
    t.true(not any(line and line.startswith(("up 2", "down ")) for line in w.lines + w.seen),
           "the worker lost its connection")


def invoke(data, function_id="t::echo", invocation_id=None):
    return ('{"type":"invokefunction","invocation_id":"%s","function_id":"%s","data":%s}'
            % (invocation_id or uuid.uuid4(), function_id, data))


async def survive(t, texts):
    async with harness.Worker("--engine") as w:
        async with Peer(w) as p:
            for text in texts:
                # In frames that the limit allows.
                if len(text) > 8 * MiB:
                    text = [text[i:i + 8 * MiB] for i in range(0, len(text), 8 * MiB)]
                await p.ws.send(text)
            t.equal((await p.call("t::echo", {"x": 2}))["result"]["x"], 2, "the same connection")
        await still_well(t, w)
        t.true(w.peak_kib() < PEAK_KIB, f"peak of {w.peak_kib()} KiB")


@harness.case
async def text_that_is_no_message(t):
    await survive(t, [
        "", " ", "null", "[]", "{}", "not json", '"', "{" * 1000, '{"type":7}',
        '{"type":"invokefunction"}', '{"type":"invocationresult"}', '{"type":"reattach"}',
        '{"type":"registerfunction","id":7}', b"\x00\xff" * 1000, b"OTLP{}", b""])


@harness.case
async def deep_nesting(t):
    await survive(t, [invoke("[" * n + "]" * n) for n in (65, 1000, 100000, 10000000)]
                  + [invoke('{"a":' * n + "1" + "}" * n) for n in (65, 1000000)]
                  + ["[" * 1000000])


@harness.case
async def doubled_members(t):
    u = str(uuid.uuid4())
    await survive(t, [invoke('{"a":1,"a":2}'),
                      '{"type":"ping","type":"invokefunction","function_id":"t::echo","data":1}',
                      '{"type":"invokefunction","invocation_id":"%s","invocation_id":"%s",'
                      '"function_id":"t::echo","data":1}' % (u, u)])


@harness.case
async def strings_that_are_none(t):
    await survive(t, [invoke(r'"\ud800"'), invoke(r'"\udc00\ud800"'), invoke(r'{"\ud800":1}'),
                      invoke(r'{"\u0000":1}'), invoke('"\x01"'), invoke('"\\x"'),
                      '{"type":"registerfunction","id":"a\\u0000b"}'])


@harness.case
async def nul_in_a_string_is_only_a_character(t):
    async with harness.Worker("--engine") as w, Peer(w) as p:
        answer = await p.call("t::echo", {"s": "a\0b"})
        t.equal(answer["result"]["s"], "a\0b", "the echo")


@harness.case
async def numbers_that_are_none(t):
    await survive(t, [invoke(n) for n in ("NaN", "Infinity", "-", "1.", "01", "1e999", "-1e999",
                                          "9" * 400, "1" + "0" * 1000000)])


@harness.case
async def huge_arrays(t):
    await survive(t, [invoke("[" + "0," * (n - 1) + "0]") for n in (300000, 30 * MiB // 2)]
                  + [invoke("[" + "[]," * 3000000 + "0]"),
                     invoke("{" + ",".join('"%x":0' % i for i in range(1000000)) + "}")])


@harness.case
async def a_message_of_64_mib_is_served(t):
    async with harness.Worker("--engine") as w:
        async with Peer(w) as p:
            before = w.rss_kib()
            text = "x" * (15 * MiB)
            for _ in range(3):
                answer = await p.call("t::echo", {"s": text})
                t.true(answer["result"]["s"] == text, "the echo differs")
            # In frames that the limit allows, up to the limit of a message.
            text = invoke('"' + "y" * (64 * MiB - 200) + '"', invocation_id=(u := str(uuid.uuid4())))
            await p.ws.send([text[i:i + 8 * MiB] for i in range(0, len(text), 8 * MiB)])
            answer = await p.receive()
            t.equal(answer["invocation_id"], u, "id")
            t.equal(len(answer["result"]), 64 * MiB - 200, "length")
            del answer, text
        await still_well(t, w)
        t.true(w.peak_kib() < PEAK_KIB, f"peak of {w.peak_kib()} KiB")
        t.true(w.rss_kib() - before < REST_KIB, f"{w.rss_kib() - before} KiB were kept")


@harness.case
async def more_than_64_mib_ends_its_sender(t):
    async with harness.Worker("--engine") as w:
        for pieces in ([b"x" * (17 * MiB)], [b"y" * (8 * MiB)] * 9):
            async with Peer(w) as p:
                try:
                    await p.ws.send(pieces if len(pieces) > 1 else pieces[0])
                    await asyncio.wait_for(p.ws.recv(), harness.WAIT_S)
                    t.true(False, "it was served")
                except websockets.ConnectionClosed:
                    pass
        await still_well(t, w)
        t.true(w.peak_kib() < PEAK_KIB, f"peak of {w.peak_kib()} KiB")


@harness.case
async def ids_used_again(t):
    async with harness.Worker("--engine") as w, Peer(w) as a, Peer(w) as b:
        u = str(uuid.uuid4())
        first = asyncio.create_task(a.call("t::slow", {"ms": 700}, u))
        await asyncio.sleep(0.2)
        second = await b.call("t::echo", {"thief": 1}, u)
        t.equal(second["error"]["code"], "invocation_error", "the second caller")
        await b.send(type="invocationresult", invocation_id=u, result="stolen")
        t.equal((await first)["result"], {"gone": False}, "the first caller")
        # Free again once it was answered.
        t.equal((await a.call("t::echo", {"x": 5}, u))["result"]["x"], 5, "afterwards")
        await still_well(t, w)


@harness.case
async def channels_of_others_and_of_nobody(t):
    async with harness.Worker("--engine") as w, Peer(w) as p:
        made = (await p.call("engine::channels::create", {}))["result"]
        good = made["reader"]
        for name, ref, end in (
                ("wrong key", {**good, "access_key": str(uuid.uuid4())}, "refused"),
                ("unknown", {**good, "channel_id": str(uuid.uuid4())}, "refused"),
                ("a query", {**good, "channel_id": "x?key=y&dir=read"}, "refused"),
                ("a header", {**good, "access_key": "x\r\nHost: y"}, "refused"),
                ("dots", {**good, "channel_id": ".."}, "refused")):
            answer = await p.call("t::upload", {"content": ref, "idle_ms": 20000})
            t.equal(answer["result"]["end"], end, name)
        for ref in (None, [], {**good, "channel_id": "../../"}, {**good, "channel_id": "%2e%2e%2f"},
                    {**good, "channel_id": "x\r\nHost: y"}, {}, {**good, "direction": "both"}, {**good, "channel_id": "x\0y"},
                    {**good, "channel_id": "x" * 1000}, {**good, "access_key": 7}):
            answer = await p.call("t::upload", {"content": ref})
            t.equal(answer["error"]["code"], "invocation_failed", repr(ref))
        # The owner's end still works.
        answer = asyncio.create_task(p.call("t::upload", {"content": good}))
        url = (f"{w.url}/ws/channels/{good['channel_id']}?key={made['writer']['access_key']}"
               "&dir=write")
        async with connect(url, compression=None) as writer:
            await writer.send(harness.pattern(0, 1000))
        t.equal((await answer)["result"]["bytes"], 1000, "bytes")
        await still_well(t, w)


@harness.case
async def half_frames_and_garbage_on_the_socket(t):
    upgrade = ("GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
               "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
    frames = [
        b"\x81",                                              # half a header
        b"\x81\xfe\x10",                                      # half a length
        b"\x81\xff" + struct.pack("!Q", 2**63 - 1) + b"abcd",  # all of memory
        b"\x81\xff" + struct.pack("!Q", 2**64 - 1) + b"abcd",
        b"\x81\xfe\xff\xff" + b"mask" + b"x" * 100,           # a body that never comes
        b"\x83\x80mask", b"\x8f\x80mask", b"\xf1\x80mask",     # opcodes and bits nobody knows
        b"\x80\x80mask", b"\x00\x80mask",                     # a continuation of nothing
        b"\x01\x81mask\x00\x01\x81mask\x00",                   # a message inside a message
        b"\x09\x80mask", b"\x89\xfe\x01\x00mask" + b"x" * 256,  # pings in pieces and too long
        b"\x88\x81mask\x00", b"\x88\x82mask\x00\x00",           # Close frames without a code
        b"\x81\x85maskhello" * 1000, os.urandom(100000)]
    async with harness.Worker("--engine") as w:
        fds = w.descriptors()
        open_ones = []
        for data in [None] + frames:
            s = socket.create_connection(("127.0.0.1", w.port))
            s.sendall(upgrade.encode() if data is not None else b"\x16\x03\x01" * 100)
            if data is not None:
                await asyncio.to_thread(s.recv, 4096)
                try:
                    s.sendall(data)
                except OSError:
                    pass
            open_ones.append(s)
        await still_well(t, w)
        for s in open_ones:
            s.close()
        for head in ("GET", "GET / HTTP/1.1\r\n", "GET /" + "a" * 100000, "POST / HTTP/1.1\r\n\r\n",
                     upgrade.replace("13", "7"), upgrade.replace("GET /", "GET /%00%ff/../x"),
                     upgrade.replace("Host: x", "Host: x\r\nX: " + "y" * 100000)):
            s = socket.create_connection(("127.0.0.1", w.port))
            try:
                s.sendall(head.encode())
            except OSError:
                pass
            s.close()
        await still_well(t, w)
        for _ in range(200):
            if w.descriptors() <= fds:
                break
            await asyncio.sleep(0.1)
        t.true(w.descriptors() <= fds, f"{w.descriptors() - fds} descriptors leaked")
        t.true(w.peak_kib() < PEAK_KIB, f"peak of {w.peak_kib()} KiB")


@harness.case
async def a_page_of_another_site_is_refused(t):
    async with harness.Worker("--engine") as w:
        for origin, ok in (("https://evil.example", False), ("http://localhost.evil.example", False),
                           ("null", False), ("http://localhost:3000", True)):
            try:
                async with connect(w.url, origin=origin):
                    t.true(ok, f"{origin} was let in")
            except websockets.InvalidStatus as e:
                t.equal((e.response.status_code, ok), (403, False), origin)


@harness.case
async def slow_readers_do_not_slow_others(t):
    async with harness.Worker("--engine") as w:
        lazy = []
        for _ in range(4):
            # A client that asks for much and never reads.
            s = socket.create_connection(("127.0.0.1", w.port))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                      b"Sec-WebSocket-Version: 13\r\n"
                      b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
            lazy.append(s)
        await asyncio.sleep(0.3)
        for s in lazy:
            for _ in range(5 if harness.SANITIZED else 30):
                body = invoke('{"bytes":1000000}', "t::blob").encode()
                s.sendall(b"\x81" + bytes([0x80 | 126]) + struct.pack("!H", len(body))
                          + b"\0\0\0\0" + body)
        async with Peer(w) as p:
            for i in range(100):
                t.equal((await p.call("t::echo", {"i": i}))["result"]["i"], i, "an honest call")
        await still_well(t, w)
        t.true(w.peak_kib() < PEAK_KIB, f"peak of {w.peak_kib()} KiB")
        for s in lazy:
            s.close()


@harness.case
async def a_slow_channel_does_not_slow_calls(t):
    async with harness.Worker("--engine") as w, Peer(w) as p:
        before = w.rss_kib()
        refs = [(await p.call("t::download", {"bytes": 50000000}))["result"]["content"]
                for _ in range(20)]
        sockets = []
        for ref in refs:
            ws = await connect(f"{w.url}/ws/channels/{ref['channel_id']}?key={ref['access_key']}"
                               "&dir=read", compression=None, max_queue=1, ping_interval=None)
            sockets.append(ws)
        for i in range(100):
            t.equal((await p.call("t::echo", {"i": i}))["result"]["i"], i, "a call")
        # 20 channels of 64 frames in the engine, one chunk each in the worker.
        t.true(w.rss_kib() - before < 20 * 6 * 1024 + 32 * 1024 or harness.SANITIZED,
               f"it grew by {w.rss_kib() - before} KiB")
        got = 0
        async for chunk in sockets[0]:
            t.true(chunk == harness.pattern(got, len(chunk)), f"wrong bytes behind {got}")
            got += len(chunk)
        t.equal(got, 50000000, "bytes of a slow reader")
        for ws in sockets[1:]:
            ws.transport.abort()
        await still_well(t, w)


@harness.case
async def many_connections_and_registrations(t):
    async with harness.Worker("--engine") as w:
        peers = []
        try:
            for _ in range(300):
                peer = Peer(w)
                await peer.__aenter__()
                peers.append(peer)
            t.true(False, "there was no limit")
        except websockets.InvalidStatus as e:
            t.equal(e.response.status_code, 503, "status")
        for peer in peers:
            await peer.__aexit__()
        for _ in range(100):
            try:
                await still_well(t, w)
                break
            except websockets.InvalidStatus:
                await asyncio.sleep(0.1)
        async with Peer(w) as p:
            for i in range(6000):
                await p.send(type="registerfunction", id=f"f{i}")
            rows = (await p.call("engine::functions::list", {"prefix": "f"}))["result"]["functions"]
            t.equal(len(rows), 4096, "functions of one worker")
        await still_well(t, w)


harness.main()
