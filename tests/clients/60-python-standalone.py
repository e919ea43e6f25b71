#!/usr/bin/env python3
"""The PyPI iii-sdk drives sandboxes on `standalone`."""
import asyncio
import base64
import gc
import hashlib
import json
import os
import random
import uuid

import harness

harness.enter()
os.environ["OTEL_ENABLED"] = "false"

from iii import InitOptions, InvocationError, register_worker  # noqa: E402
from iii.channel import ChannelReader, StreamChannelRef  # noqa: E402
from iii.helpers import create_channel_async  # noqa: E402
from standalone import QUICK_BACKEND, Standalone, e2e  # noqa: E402

BIG = 200 * 1000 * 1000
PIECE = 65536
CALL_MS = 120000
MEMBERS = ["code", "docs_url", "fix", "fix_note", "message", "retryable", "type"]


class Client:
    """The SDK's client; its own loop runs in a thread, so connecting blocks another one."""

    def __init__(self, t, url):
        self.t, self.url = t, url

    async def __aenter__(self):
        self.iii = await asyncio.to_thread(
            register_worker, self.url, InitOptions(worker_name="python-client"))
        return self

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.iii.shutdown)

    async def call(self, function, **members):
        return await self.iii.trigger_async({"function_id": "sandbox-libkrun::" + function,
                                             "payload": members, "timeout_ms": CALL_MS})

    async def create(self):
        return (await self.call("create", image="python"))["sandbox_id"]

    async def refused(self, code, part, function, **members):
        """The call must fail with this code; returns the error that the adapter sent."""
        try:
            reply = await self.call(function, **members)
        except InvocationError as e:
            self.t.equal(e.code, "invocation_failed", "code on the wire")
            prefix = "handler error: "
            self.t.check(e.message.startswith(prefix), e.message)
            error = json.loads(e.message[len(prefix):])
            self.t.equal(list(error), MEMBERS, "members of the error")
            self.t.equal(error["code"], code, f"code of {error['message']!r}")
            self.t.contains(error["message"], part, "message")
            self.t.check(error["docs_url"].endswith("#" + code), error["docs_url"])
            return error
        raise AssertionError(f"{function} went well: {reply}")

    def reader(self, content):
        return ChannelReader(self.url, StreamChannelRef(**content))


def drive(t, work):
    """work(client, daemon) on a fresh daemon."""
    async def go(s):
        async with Client(t, s.url) as c:
            await work(c, s)
    with Standalone(t) as s:
        asyncio.run(go(s))
    gc.collect()  # the SDK leaves its loop to the collector: three descriptors


@e2e.case(per_backend=True, smoke=True)
def a_life(t):
    async def work(c, _):
        info = await c.call("adapter::info")
        t.equal((info["adapter"], info["contract"]), ("sandbox-libkrun", {"major": 1, "minor": 1}),
                "adapter::info")
        made = await c.call("create", image="python", name="mine", env={"GREETING": "hé"})
        s = made["sandbox_id"]
        row, = (await c.call("list"))["sandboxes"]
        t.equal((row["sandbox_id"], row["name"], row["stopped"]), (s, "mine", False), "list")

        code = 'import os\nx = os.environ["GREETING"]\nprint(x, 6 * 7)\n'
        size = len(code.encode())
        written = await c.call("fs::write", sandbox_id=s, path="/root/w/a.py", content=code,
                               parents=True)
        t.equal(written, {"bytes_written": size, "path": "/root/w/a.py"}, "fs::write")
        ran = await c.call("exec", sandbox_id=s, argv=["python3", "/root/w/a.py"])
        t.equal((ran["stdout"], ran["exit_code"], ran["success"]), ("hé 42\n", 0, True), "exec")
        failed = await c.call("exec", sandbox_id=s, cmd='sh -c "cat >&2; exit 3"',
                              stdin=base64.b64encode(b"hi").decode())
        t.equal((failed["stdout"], failed["stderr"], failed["exit_code"], failed["success"]),
                ("", "hi", 3, False), "an exec that fails")

        read = await c.call("fs::read", sandbox_id=s, path="/root/w/a.py")
        t.equal((read["body"], read["size"], read["mode"]), (code, size, "0644"), "fs::read")
        t.equal(await c.reader(read["content"]).read_all(), code.encode(), "its channel")
        await c.call("fs::write", sandbox_id=s, path="/root/w/b.txt", content_b64="")
        empty = await c.call("fs::read", sandbox_id=s, path="/root/w/b.txt")
        t.equal((empty["body"], await c.reader(empty["content"]).read_all()), ("", b""), "empty")

        grep = await c.call("fs::grep", sandbox_id=s, path="/root/w", pattern=r"^\w = os")
        t.equal(grep, {"matches": [{"content": 'x = os.environ["GREETING"]', "line": 2,
                                    "path": "/root/w/a.py"}], "truncated": False}, "fs::grep")
        sed = await c.call("fs::sed", sandbox_id=s, path="/root/w", pattern=r"(\d) \* 7",
                           replacement="$1 * 8")
        t.equal([r for r in sed["results"] if r["replacements"]],
                [{"path": "/root/w/a.py", "replacements": 1, "success": True}], "fs::sed")
        again = await c.call("exec", sandbox_id=s, argv=["python3", "/root/w/a.py"])
        t.equal(again["stdout"], "hé 48\n", "exec of what sed made")

        t.equal(await c.call("stop", sandbox_id=s, wait=True), {"sandbox_id": s, "stopped": True},
                "stop")
        t.equal(await c.call("list"), {"sandboxes": []}, "list after stop")
        await c.refused("S002", s, "exec", sandbox_id=s, cmd="true")
    drive(t, work)


@e2e.case(per_backend=True)
def errors_and_what_to_do_about_them(t):
    async def work(c, _):
        await c.refused("S001", "image", "create")
        await c.refused("S001", "nonsense", "exec", sandbox_id="nonsense", cmd="true")
        nobody = str(uuid.uuid4())
        await c.refused("S002", nobody, "exec", sandbox_id=nobody, cmd="true")
        await c.refused("S100", "perl", "create", image="perl")

        s = await c.create()
        await c.refused("S001", "stdin", "exec", sandbox_id=s, cmd="cat", stdin="not base64!")
        write = {"sandbox_id": s, "path": "/root/no/such/f", "content": "x"}
        missing = await c.refused("S211", "parent not found", "fs::write", **write)
        t.equal((missing["retryable"], missing["type"], missing["fix"]),
                (False, "filesystem", {"parents": True}), "the error")
        t.equal((await c.call("fs::write", **write, **missing["fix"]))["bytes_written"], 1,
                "bytes_written with the fix")
        absent = await c.refused("S211", "/root/none", "fs::read", sandbox_id=s, path="/root/none")
        t.equal(absent["fix"], None, "fix")
        await c.refused("S212", "/root", "fs::read", sandbox_id=s, path="/root")
        await c.refused("S217", "not closed", "fs::grep", sandbox_id=s, path="/root", pattern="(")

        late = await c.refused("S200", "1500", "exec", sandbox_id=s, timeout_ms=1500,
                               argv=["sh", "-c", "echo said before; sleep 600"])
        t.equal(late["retryable"], False, "retryable")
        channel = await create_channel_async(c.iii)
        await channel.writer.write(b"and no more")
        stalled = await c.refused("S218", "channel", "fs::write", sandbox_id=s, path="/root/stalled",
                                  content=channel.reader_ref.model_dump())
        t.equal(stalled["retryable"], True, "retryable")
        await c.refused("S211", "/root/stalled", "fs::stat", sandbox_id=s, path="/root/stalled")
        await channel.writer.close_async()
        ran = await c.call("exec", sandbox_id=s, cmd="echo", args=["still", "here"])
        t.equal(ran["stdout"], "still here\n", "exec afterwards")
    drive(t, work)


@e2e.case()
def a_file_of_200_mb_there_and_back(t):
    t.backend = QUICK_BACKEND

    async def work(c, daemon):
        s = await c.create()
        channel = await create_channel_async(c.iii)
        answer = asyncio.create_task(c.call("fs::write", sandbox_id=s, path="/root/big",
                                            content=channel.reader_ref.model_dump()))
        noise, digest, sent = random.Random(7), hashlib.sha256(), 0
        before = peak = daemon.rss_kib()
        while sent < BIG:
            piece = noise.randbytes(min(PIECE, BIG - sent))
            digest.update(piece)
            await channel.writer.write(piece)
            sent += len(piece)
            if sent % (8 * PIECE) == 0:
                peak = max(peak, daemon.rss_kib())
        await channel.writer.close_async()
        t.equal((await answer)["bytes_written"], BIG, "bytes_written")
        t.check(peak - before < harness.GROWTH_KIB, f"it grew by {peak - before} KiB (upload)")
        there = await c.call("exec", sandbox_id=s, cmd="sha256sum /root/big")
        t.equal(there["stdout"].split()[0], digest.hexdigest(), "the file in the guest")

        before = peak = daemon.rss_kib()
        read = await c.call("fs::read", sandbox_id=s, path="/root/big")
        t.equal((read["size"], "body" in read), (BIG, False), "fs::read")
        back, got, looked = hashlib.sha256(), 0, 0
        async for chunk in c.reader(read["content"]):
            back.update(chunk)
            got += len(chunk)
            if got - looked >= 8 * PIECE:
                peak, looked = max(peak, daemon.rss_kib()), got
        t.equal((got, back.hexdigest()), (BIG, digest.hexdigest()), "what came back")
        t.check(peak - before < harness.GROWTH_KIB, f"it grew by {peak - before} KiB (download)")
    drive(t, work)


e2e.main()
