#!/usr/bin/env python3
"""Guests that turn against the host once they have said "ready" (hostile_agent.c says how): the
daemon stays up in bounded memory, every call ends with its code, and the sandbox beside them on the
same daemon notices nothing."""
import json
import os
import re
import signal
import sys

import harness
from harness import BIN, BUILD, case, main, use_python_image, wait_until

sys.path.insert(0, os.path.join(harness.SOURCE, "tests/conformance"))
import iii  # noqa: E402

P = "sandbox-libkrun::"
READY_S = 60
HOSTILE_MB = 128         # less than hostile_agent.c's HOSTILE_BELOW
GROWTH_KIB = 32 * 1024   # of the daemon, above its peak when an ordinary sandbox has started
SUPERVISOR_KIB = 16 * 1024
DEADLINE_MS = 3000

# These lose their VM at once, which is told so; the others only never answer.
BREACHES = {
    "garbage": "agent is given up",
    "frames": "agent",
    "pings": "agent is given up",
    "twice": "agent broke the protocol",
    "output": "more output than the cap",
    "huge": "agent broke the protocol",
    "control": "exited",
}


class Daemon:
    """`standalone` whose guests may be hostile, with an ordinary sandbox that is busy all the time."""

    def __init__(self, t):
        self.t = t
        use_python_image()

    def __enter__(self):
        env = self.t.env(III_SANDBOX_BOOT_DISK=os.path.join(BUILD, "tests/e2e/hostile.erofs"))
        self.p = self.t.spawn([BIN, "standalone", "--port", "0"], env)
        line = self.t.wait_for_output(self.p, b"\n", READY_S).decode()
        self.engine = iii.Engine(re.fullmatch(r"ready url=(ws://\S+)\n", line).group(1))
        self.bystander = self.call("create", image="python")["sandbox_id"]
        self.whole = self.start("exec", sandbox_id=self.bystander, argv=[
            "sh", "-c", "until [ -e /tmp/over ]; do sleep 0.2; done; echo whole"])
        self.rest_kib = harness.memory_kib(self.p.pid, "VmHWM")
        return self

    def __exit__(self, kind, *_):
        self.engine.close()
        os.kill(self.p.pid, signal.SIGTERM)
        status = self.t.finish(self.p).status
        if kind is None:
            self.t.equal(status, 0, "exit status of standalone")

    def call(self, function, **members):
        return self.engine.call(P + function, members)

    def start(self, function, **members):
        return self.engine.start(P + function, members)

    def hostile(self, mode):
        return self.call("create", image="python", memory_mb=HOSTILE_MB,
                         env={"HOSTILE": mode})["sandbox_id"]

    def listed(self):
        return {row["sandbox_id"]: row for row in self.call("list")["sandboxes"]}

    def look(self):
        """The bystander works, and nothing has grown."""
        ran = self.call("exec", sandbox_id=self.bystander, argv=["echo", "fine"])
        self.t.equal((ran["stdout"], ran["exit_code"]), ("fine\n", 0), "the sandbox beside it")
        limits = [(self.p.pid, self.rest_kib + GROWTH_KIB)]
        limits += [(pid, SUPERVISOR_KIB) for pid, (parent, _) in harness.processes().items()
                   if parent == self.p.pid]
        for pid, limit in limits:
            peak = harness.memory_kib(pid, "VmHWM")
            self.t.check(peak < limit, f"{harness.command_line(pid)} had {peak} KiB")

    def bystander_ends_well(self):
        self.call("fs::write", sandbox_id=self.bystander, path="/tmp/over", content="")
        ended = self.whole.result()
        self.t.equal((ended["stdout"], ended["exit_code"]), ("whole\n", 0), "its long command")


def error_of(t, pending):
    """The error that the call ends with."""
    try:
        reply = pending.result()
    except iii.CallError as e:
        t.equal(e.code, "invocation_failed", "code on the wire")
        return json.loads(e.message[len("handler error: "):])
    raise AssertionError(f"a hostile guest was believed: {harness.brief(reply)}")


@case(per_backend=True)
def guests_that_break_the_protocol(t):
    with Daemon(t) as d:
        for mode, part in BREACHES.items():
            s = d.hostile(mode)
            pending = d.start("exec", sandbox_id=s, argv=["true"], timeout_ms=600000)
            d.look()
            error = error_of(t, pending)
            t.equal(error["code"], "S300", f"code with {mode}: {error['message']}")
            t.contains(error["message"], part, f"message with {mode}")
            wait_until(lambda: d.listed().get(s, {"stopped": True})["stopped"], 60,
                       f"the sandbox to be dead after {mode}")
            error = error_of(t, d.start("fs::stat", sandbox_id=s, path="/"))
            t.check(error["code"] in ("S002", "S004"), f"{mode}, afterwards: {error}")
            d.look()
        wait_until(lambda: set(d.listed()) == {d.bystander}, 60, "the dead ones to be swept")
        d.bystander_ends_well()


@case(per_backend=True)
def guests_that_never_answer(t):
    with Daemon(t) as d:
        for mode in ("silent", "console"):
            s = d.hostile(mode)
            pending = d.start("exec", sandbox_id=s, argv=["true"], timeout_ms=DEADLINE_MS)
            d.look()
            error = error_of(t, pending)
            t.equal(error["code"], "S200", f"code with {mode}: {error['message']}")
            t.contains(error["message"], str(DEADLINE_MS), "message")
            t.equal(d.listed()[s]["exec_in_flight"], 0, f"execs after {mode}")
            # Asked again, and stopped in the middle.
            again = d.start("exec", sandbox_id=s, argv=["true"], timeout_ms=600000)
            wait_until(lambda: d.listed()[s]["exec_in_flight"] == 1, 60, "the second exec")
            d.look()
            t.equal(d.call("stop", sandbox_id=s, wait=True), {"sandbox_id": s, "stopped": True},
                    "stop")
            t.equal(error_of(t, again)["code"], "S004", "code of what was stopped")
        t.equal(set(d.listed()), {d.bystander}, "list")
        d.bystander_ends_well()


@case()
def file_operations_that_are_never_answered(t):
    """They have no deadline of their own: the guest's silence ends them, and it."""
    t.backend = "qemu"
    with Daemon(t) as d:
        s = d.hostile("silent")
        calls = [d.start("fs::stat", sandbox_id=s, path="/"),
                 d.start("fs::grep", sandbox_id=s, path="/", pattern="x"),
                 d.start("fs::write", sandbox_id=s, path="/big", content="x" * (1 << 20))]
        d.look()
        for pending in calls:
            error = error_of(t, pending)
            t.equal(error["code"], "S216", f"code: {error['message']}")
        t.check(d.listed().get(s, {"stopped": True})["stopped"], "the sandbox is dead")
        d.look()
        d.bystander_ends_well()


main()
