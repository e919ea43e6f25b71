#!/usr/bin/env python3
"""Logs of worker VMs through channels (W100-W112 of the worker VM specification's cases). What each
cursor means is told in tests/unit/test_logs.c; here are a guest, an engine and readers."""
import json
import os
import threading
import time

import harness
from harness import case, main, wait_until
from compose import Compose, iii, refused

QEMU = {"III_SANDBOX_VMM": "qemu"}


def console(records):
    return [r["line"] for r in records if r["stream"] == "console"]


@case(per_backend=True)
def a_log(t):
    """W100, W101, W102, W109"""
    with Compose(t) as c:
        c.local("w", start="printf 'one\\ntwo\\nthree\\n'; python3 odd.py; printf tail",
                files={"odd.py": r"""
import sys
w = sys.stdout.buffer.write
w(b"crlf\r\n"); w(b"nul\0here\n"); w(b"bad\xff\xfeend\n"); w("grüß €\n".encode()); w(b"\n")
w(b"x" * 1_000_000 + b"\n")
"""})
        vm = c.run("w")
        c.wait(vm, "exited")
        records = c.read_log(vm)
        lines = console(records)
        at = lines.index("one")
        t.equal(lines[at:at + 8], ["one", "two", "three", "crlf", "nul\0here",
                                   "bad\ufffd\ufffdend", "grüß €", ""], "lines")
        long = [r for r in records if r["line"].startswith("x" * 100)]
        t.equal(sum(len(r["line"]) for r in long), 1_000_000, "length of a long line")
        t.check(all(r.get("partial") for r in long[:-1]) and "partial" not in long[-1], "parts")
        # The agent speaks right behind it.
        t.check(any(x.startswith("tail") for x in lines), "a line without an end")
        t.check(all(r["instance"] == 1 for r in records), "instances")
        two = next(r for r in records if r["line"] == "two")
        t.equal(console(c.read_log(vm, cursor=two["cursor"]))[0], "three", "after a cursor")
        t.equal(c.read_log(vm, cursor=records[-1]["cursor"]), [], "after the last one")
        t.equal(c.read_log(vm, cursor=records[-1]["cursor"], follow=True), [], "and follow")
        t.equal(c.read_log(vm, cursor=0), records, "cursor 0")
        t.equal(c.read_log(vm, cursor=2**64 - 1), records, "a cursor past the end")
        t.equal(c.read_log(vm, follow=True), records, "follow of what has ended")


@case(per_backend=True)
def following(t):
    """W106: to the dying words, and no further"""
    with Compose(t) as c:
        c.local("w", start="trap 'echo last words; exit' TERM; echo up; while :; do sleep 0.1; done")
        vm = c.run("w")
        got, threads = {}, []
        for i in range(4):
            def read(i=i):
                got[i] = console(c.read_log(vm, follow=True))
            threads.append(threading.Thread(target=read))
            threads[-1].start()
        c.wait_for_line(vm, "up")
        # a reader that leaves is nobody's concern
        gone = c.open_log(vm, follow=True)
        gone.recv()
        gone.close(say=False)
        c.stop(vm)
        second = c.run("w")
        for thread in threads:
            thread.join(60)
        for i in range(4):
            t.contains(got[i], "last words", "what a reader got")
            t.equal(got[i].count("up"), 1, "boots that a reader saw")
        third = c.open_log(second, follow=True)
        c.stop(second, 0)
        t.equal(c.destroy(), True, "destroy with a reader")
        while third.recv()[0] == iii.TEXT:
            pass
        third.close(say=False)


@case(per_backend=True)
def rotation_and_a_reader_that_stalls(t):
    """W104, W105, W108"""
    with Compose(t) as c:
        c.local("w", start="echo first; exec python3 flood.py", files={"flood.py": r"""
import sys, time
line = "y" * 990
for i in range(40_000):
    sys.stdout.write(f"{i:08} {line}\n")
print("flooded", flush=True)
time.sleep(600)
"""})
        vm = c.run("w")
        stalled = c.open_log(vm, follow=True)  # and nobody reads
        before = harness.memory_kib(c.p.pid)
        early = json.loads(stalled.recv()[1])["cursor"]
        c.wait_for_line(vm, "flooded")
        grown = harness.memory_kib(c.p.pid) - before
        t.check(grown < 32 * 1024, f"the daemon grew by {grown} KiB")
        folder = os.path.join(t.state, "workers", vm.vm_id, "log")
        names = sorted(os.listdir(folder))
        t.equal(len(names), 4, "segments that are kept")
        for name in names:
            size = os.path.getsize(os.path.join(folder, name))
            t.check(size < (4 << 20) + 65536, f"size of {name}: {size}")
        kept = c.read_log(vm)
        t.check(kept[0]["cursor"] > early, "the first records are gone")
        t.equal(c.read_log(vm, cursor=early), kept, "from a record that is gone")
        # across every boundary of segments
        numbers = [int(x[:8]) for x in console(kept) if x[9:12] == "yyy"]
        t.equal(numbers, list(range(numbers[0], 40_000)), "numbers of the lines")
        middle = kept[len(kept) // 3]
        t.equal(c.read_log(vm, cursor=middle["cursor"]), kept[len(kept) // 3 + 1:], "from the middle")
        # the reader wakes up: it goes on, in order, to the end
        c.stop(vm, 0)
        last, texts = early, 0
        while True:
            kind, data = stalled.recv()
            if kind != iii.TEXT:
                break
            cursor = json.loads(data)["cursor"]
            t.check(cursor > last, "order of cursors")
            last, texts = cursor, texts + 1
        stalled.close(say=False)
        t.check(texts > 0 and last >= kept[-1]["cursor"], "the stalled reader came to the end")


@case()
def channels_that_are_none(t):
    """W110, and the limit of readers"""
    with Compose(t, QEMU) as c:
        c.local("w", start="while :; do echo tick; sleep 0.2; done")
        vm = c.run("w")
        reader, writer = c.engine.channel()
        members = {"vm_id": vm[0], "follow": False}
        refused(t, "S001", "direction", c.call, "logs", channel=reader, **members)
        bogus = {**writer, "channel_id": "no-such-channel"}
        e = refused(t, "S218", "channel", c.call, "logs", channel=bogus, **members)
        t.equal(e["retryable"], True, "retryable")
        refused(t, "S218", "channel", c.call, "logs", channel={**writer, "access_key": "x"}, **members)
        refused(t, "S503", "wvm-", c.call, "logs", channel=writer, vm_id="wvm-" + "0" * 32,
                follow=False)
        # That its reader has left is told to a writer with its next record.
        open_ones = [c.open_log(vm, follow=True) for _ in range(64)]
        refused(t, "S400", "64", c.open_log, vm, follow=True)
        for ws in open_ones:
            ws.close(say=False)
        wait_until(lambda: attempt(c, vm), 60, "a channel again")
        c.stop(vm, 0)


def attempt(c, vm):
    try:
        return c.read_log(vm) is not None
    except iii.CallError:
        time.sleep(0.1)
        return False


main()
