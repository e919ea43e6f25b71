#!/usr/bin/env python3
"""The PyPI iii-sdk against echo_worker on the embedded engine."""
import asyncio
import json
import os

import harness

harness.enter()
os.environ["OTEL_ENABLED"] = "false"

from iii import InitOptions, InvocationError, TriggerAction, register_worker  # noqa: E402
from iii.channel import ChannelReader, StreamChannelRef  # noqa: E402
from iii.helpers import create_channel_async  # noqa: E402

MB = 1000 * 1000


class Client:
    """The SDK's client; its own loop runs in a thread, so connecting blocks another one."""

    def __init__(self, worker, name="python-client"):
        self.worker, self.name = worker, name

    async def __aenter__(self):
        self.iii = await asyncio.to_thread(
            register_worker, self.worker.url, InitOptions(worker_name=self.name))
        return self

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.iii.shutdown)

    async def call(self, function_id, payload=None, timeout_ms=60000, **more):
        return await self.iii.trigger_async({
            "function_id": function_id, "payload": payload or {}, "timeout_ms": timeout_ms, **more})


@harness.case
async def answers_what_it_was_asked(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        data = {"text": "h\u00e9llo \U0001f4a5 \u0000", "big": 2**64 - 1, "deep": [[[{"a": None}]]]}
        got = await c.call("t::echo", data)
        got.pop("_caller_worker_id", None)
        t.equal(got, data, "the echo")


@harness.case
async def errors_keep_code_and_message(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        try:
            await c.call("t::error")
            t.true(False, "no error came")
        except InvocationError as e:
            t.equal(e.code, "invocation_failed", "code")
            t.true(e.message.startswith("handler error: {"), e.message)
            t.equal(json.loads(e.message[e.message.index("{"):])["code"], "S211", "inner code")
        try:
            await c.call("t::nope")
            t.true(False, "no error came")
        except InvocationError as e:
            t.equal(e.code, "function_not_found", "code")


@harness.case
async def void_calls_and_parallel_calls(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        slow = asyncio.create_task(c.call("t::slow", {"ms": 1500}))
        for _ in range(5):
            await c.call("t::note", action=TriggerAction.Void())
        rows = await asyncio.gather(*(c.call("t::echo", {"i": i}) for i in range(50)))
        t.equal([r["i"] for r in rows], list(range(50)), "answers")
        t.true(not slow.done(), "the slow call was first")
        t.equal(await slow, {"gone": False}, "the slow answer")
        t.equal((await c.call("t::count"))["notes"], 5, "void calls")


@harness.case
async def it_serves_calls_too(t):
    async with harness.Worker("--engine") as w, Client(w) as c, Client(w, "second") as d:
        c.iii.register_function("py::double", lambda data: {"n": data["n"] * 2})
        for _ in range(200):
            try:
                t.equal(await d.call("py::double", {"n": 21}), {"n": 42}, "the answer")
                return
            except InvocationError as e:
                t.equal(e.code, "function_not_found", "code before it is registered")
        t.true(False, "it was never registered")


@harness.case
async def lists_show_the_worker(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        rows = (await c.call("engine::functions::list", {"prefix": "t::"}))["functions"]
        t.equal(sorted(r["function_id"] for r in rows), sorted(
            "t::" + n for n in "echo error slow note count blob dirty memory download upload".split()),
            "functions")
        t.equal({r["worker_name"] for r in rows}, {"echo"}, "owner")
        rows = (await c.call("engine::workers::list"))["workers"]
        t.equal({r["name"]: r["pid"] for r in rows}["echo"], w.child.pid, "pid")


@harness.case
async def a_download_of_200_mb(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        answer = await c.call("t::download", {"bytes": 200 * MB})
        before, peak, got = w.rss_kib(), 0, 0
        async for chunk in ChannelReader(w.url, StreamChannelRef(**answer["content"])):
            t.true(chunk == harness.pattern(got, len(chunk)), f"wrong bytes behind {got}")
            got += len(chunk)
            if got % (8 * 65536) == 0:
                peak = max(peak, w.rss_kib())
        t.equal(got, 200 * MB, "bytes")
        t.true(peak - before < harness.GROWTH_KIB, f"it grew by {peak - before} KiB")
        await w.wait("download end=0")


@harness.case
async def an_upload_of_200_mb(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        channel = await create_channel_async(c.iii)
        answer = asyncio.create_task(c.call(
            "t::upload", {"content": channel.reader_ref.model_dump()}, timeout_ms=280000))
        before, peak, sent = w.rss_kib(), 0, 0
        while sent < 200 * MB:
            n = min(65536, 200 * MB - sent)
            await channel.writer.write(harness.pattern(sent, n))
            sent += n
            if sent % (8 * 65536) == 0:
                peak = max(peak, w.rss_kib())
        await channel.writer.close_async()
        r = await answer
        t.equal((r["bytes"], r["right"], r["end"]), (200 * MB, True, "end"), "what arrived")
        t.true(peak - before < harness.GROWTH_KIB, f"it grew by {peak - before} KiB")


@harness.case
async def text_is_not_bytes(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        channel = await create_channel_async(c.iii)
        answer = asyncio.create_task(c.call(
            "t::upload", {"content": channel.reader_ref.model_dump()}))
        await channel.writer.write(harness.pattern(0, 3))
        await channel.writer.send_message_async("hello")
        await channel.writer.write(harness.pattern(3, 70000))
        await channel.writer.close_async()
        r = await answer
        t.equal((r["bytes"], r["right"], r["texts"], r["end"]), (70003, True, 1, "end"), "arrived")


@harness.case
async def an_empty_download_ends(t):
    async with harness.Worker("--engine") as w, Client(w) as c:
        answer = await c.call("t::download", {"bytes": 0})
        data = await ChannelReader(w.url, StreamChannelRef(**answer["content"])).read_all()
        t.equal(data, b"", "bytes")


harness.main()
