#!/usr/bin/env python3
"""Worker VMs when much happens at once: stops in every phase, destroy against start and logs, floods
on the console, and what many lives leave in the daemon."""
import hashlib
import json
import os
import random
import re
import signal

import harness
from harness import case, main, wait_until
from compose import Compose, iii, refused, vm_id

FOREVER = "exec sleep 600"
LOOP = "while :; do sleep 0.1; done"


# --- stops -------------------------------------------------------------------------------------

def ended_in(lines):
    """The phase in which the agent began to stop."""
    return next((x.rpartition("(")[2].rstrip(")") for x in lines
                 if x.startswith("agent: ") and ": stopping (" in x), None)


@case(per_backend=True)
def stopped_in_every_phase(t):
    """The end is the script's own, whether it catches SIGTERM or not. What was not done is done at
    the next start: setup and install count together, and not when they end because of a stop."""
    with Compose(t) as c:
        def stop_in(phase, how, key):
            vm = c.start(phase, key=key)
            c.wait_for_line(vm, "in " + phase)
            t.equal(c.status(vm)["state"], "running" if phase == "run" else "preparing", "state")
            s = c.stop(vm, 60000)
            t.equal((s["state"], s["exit_code"], s["signal"]), ("stopped", how, None), f"end in {phase}")
            lines = c.lines(vm)
            t.equal(ended_in(lines), phase, "where it was stopped")
            t.check(not any(x.startswith("after ") for x in lines), "a later script ran")
            return lines
        for phase in ("setup", "install", "run"):
            for trap, how in (("", 143), ("trap 'exit 9' TERM; ", 9), ("trap 'exit 0' TERM; ", 0)):
                scripts = {"setup": "echo after none", "install": "echo after setup"}
                order = ["setup", "install", "run"]
                for later in order[order.index(phase):]:
                    scripts[later] = f"echo after {phase}"
                for before in order[:order.index(phase)]:
                    scripts[before] = f"echo {before} done"
                scripts[phase] = f"{trap}echo in {phase}; {LOOP}"
                c.local(phase, start=scripts.pop("run"), scripts=scripts)
                first = stop_in(phase, how, phase)
                again = stop_in(phase, how, phase)
                done = [f"{x} done" in first for x in order[:order.index(phase)]]
                t.equal(done, [True] * len(done), f"scripts before {phase}")
                repeated = ["setup"] if phase == "install" else []
                t.equal([x.split()[0] for x in again if x.endswith(" done")], repeated, "done again")
                t.equal(c.destroy(phase), True, "destroy")


@case(per_backend=True)
def stopped_while_it_syncs(t):
    """A large source; a stop that comes right behind the guest's ready meets the sync."""
    with Compose(t) as c:
        files = {f"d{i % 50}/f{i}": os.urandom(64) * 300 for i in range(4000)}
        c.local("w", start=f"echo ran; {LOOP}", files=files, scripts={"setup": "echo setup"})
        for _ in range(20):
            vm = c.start("w")
            s = c.stop(vm, 60000)
            t.equal((s["state"], s["signal"]), ("stopped", None), "its end")
            lines = c.lines(vm)
            phase = ended_in(lines)
            t.check(s["exit_code"] == 143, f"exit code in {phase}: {s}")
            if phase == "sync":
                break
            c.destroy()
        t.equal(phase, "sync", "the phase, of 20 tries")
        t.check("setup" not in lines and "ran" not in lines, "a script ran")
        # nothing is missing for it at the next start
        whole = hashlib.sha256(b"".join(files[f] for f in sorted(files))).hexdigest()
        c.local("w", start="cat d*/f* | sha256sum; exec sleep 600")
        vm = c.run("w")
        c.wait_for_line(vm, whole)
        c.stop(vm, 0)


# --- at the same time --------------------------------------------------------------------------

class Burst:
    """Calls about one state_key that go out together, and what became of them."""

    def __init__(self, c, rng, counts):
        self.c, self.t = c, c.t
        calls = [what for what, n in counts.items() for _ in range(n)]
        rng.shuffle(calls)
        channels = [c.engine.channel() for x in calls if x == "logs"]
        self.readers = [c.engine.open(reader, "read") for reader, _ in channels]
        writers = [writer for _, writer in channels]
        members = {"start": lambda: c.request("w"), "destroy": lambda: {"state_key": "k1"},
                   "logs": lambda: {"vm_id": vm_id("k1"), "follow": True, "channel": writers.pop()},
                   "status": lambda: {"vm_id": vm_id("k1"), "instance": 1}}
        sent = [(x, c.send(x, members[x]())) for x in calls]
        self.outcomes = [(x, *self.outcome(pending)) for x, pending in sent]

    def outcome(self, pending):
        try:
            return pending.result(), None
        except iii.CallError as e:
            return None, json.loads(e.message.removeprefix("handler error: "))

    def of(self, what):
        return [(reply, error) for x, reply, error in self.outcomes if x == what]

    def codes(self, what):
        return {error["code"] for _, error in self.of(what) if error}

    def close(self):
        for ws in self.readers:
            ws.close(say=False)


@case(per_backend=True)
def destroy_against_start_and_logs(t):
    """Whoever wins: one start at most, its disk is there, numbers grow, and what is told holds."""
    rng = random.Random(11)
    with Compose(t) as c:
        c.local("w", start=f"echo up; {LOOP}")
        folder, last, wins = os.path.join(t.state, "workers", vm_id("k1")), 0, {}
        for turn in range(12 if t.backend == "krun" else 6):
            burst = Burst(c, rng, {"start": 3, "destroy": 3, "logs": 4, "status": 2})
            told = f"turn {turn}: {burst.outcomes}"
            t.check(burst.codes("start") <= {"S502"}, told)
            t.check(burst.codes("destroy") <= {"S502"}, told)
            t.check(burst.codes("logs") <= {"S503"}, told)
            t.equal(burst.codes("status"), set(), "errors of status")
            started = [reply for reply, _ in burst.of("start") if reply]
            t.equal(len(started), 1, f"starts that won; {told}")
            vm = c.started(started[0])
            t.check(vm.instance > last, f"an instance that goes back: {told}")
            last = vm.instance
            t.check(c.status(vm)["state"] in ("preparing", "running"), told)
            for _, error in burst.of("start") + burst.of("destroy"):
                # One that is only being looked at has no number yet; destroy may have been at it.
                if error:
                    t.check(error["fix"] in ({"vm_id": vm.vm_id},
                                             {"instance": vm.instance, "vm_id": vm.vm_id}), told)
                    t.check("another adapter of" not in error["message"], told)
            t.check(os.path.exists(os.path.join(folder, "upper.ext4")), f"it has no disk; {told}")
            c.wait(vm, "running")
            c.wait_for_line(vm, "up")
            t.equal(c.stop(vm, 0)["state"], "stopped", "state")
            key = tuple(sorted(str(r["destroyed"]) if r else e["code"] for r, e in burst.of("destroy")))
            wins[key] = wins.get(key, 0) + 1
            # no log is held open by a VM that is over
            for (reply, _), ws in zip(burst.of("logs"), burst.readers[::-1]):
                while reply is not None and ws.recv()[0] != iii.CLOSE:
                    pass
            burst.close()
            if turn % 2:
                t.equal(c.destroy(), True, "destroy")
                t.check(not os.path.exists(folder), "the folder of what is destroyed")
        print(f"# replies of destroy: {wins}")


# --- floods ------------------------------------------------------------------------------------

@case(per_backend=True)
def floods_of_one_are_nothing_to_others(t):
    """Newlines, of which each is a record, and NULs, each of which takes six bytes in JSON"""
    with Compose(t) as c:
        c.local("quiet", start=f"trap 'echo bye; exit 4' TERM; echo up; {LOOP}")
        for name, data in (("newlines", b"\n"), ("nuls", b"\0"), ("mixed", b"\0\n")):
            c.local(name, start="exec python3 flood.py", files={
                "flood.py": f"import os\nwhile True:\n    os.write(1, {data!r} * 32768)\n"})
        quiet = c.run("quiet", key="k0")
        c.wait_for_line(quiet, "up")
        start = harness.memory_kib(c.p.pid)
        for name in ("newlines", "nuls", "mixed"):
            vm = c.run(name)
            follower = c.open_log(vm, follow=True)  # and nobody reads
            def rotated():
                return len(os.listdir(os.path.join(t.state, "workers", vm.vm_id, "log"))) == 4
            answers = 0
            while not rotated() or answers < 100:
                t.equal(c.status(quiet)["state"], "running", "state of the quiet one")
                t.equal(c.status(vm)["state"], "running", f"state of {name}")
                refused(t, "S502", quiet.vm_id, c.start, "quiet", key="k0")
                answers += 1
                grown = harness.memory_kib(c.p.pid) - start
                t.check(grown < 64 * 1024, f"{name}: the daemon grew by {grown} KiB")
            t.contains(c.lines(quiet), "up", "log of the quiet one")
            follower.close(say=False)
            s = c.stop(vm, 0)
            t.equal((s["state"], s["signal"]), ("stopped", 9), f"end of {name}")
            t.check(len(c.read_log(vm)) > 100, f"log of {name}")  # checked record by record
            t.equal(c.destroy(), True, "destroy")
        s = c.stop(quiet, 60000)
        t.equal((s["state"], s["exit_code"]), ("stopped", 4), "end of the quiet one")
        t.contains(c.lines(quiet), "bye", "log of the quiet one")


# --- what is left ------------------------------------------------------------------------------

def descriptors(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except OSError:  # closed meanwhile
            pass
    return sorted(found)


@case(per_backend=True)
def many_lives_leave_nothing_in_the_daemon(t):
    with Compose(t) as c:
        c.local("w", start=f"echo up; {LOOP}")
        c.local("broken", start="x", runtime={"base_image": "127.0.0.1:1/no/such:1"})

        def no_life():
            refused(t, "S102", "", c.start, "broken", key="k2")
            t.equal(c.destroy("k2"), True, "destroy")

        def life(how):
            vm = c.run("w")
            follower = c.open_log(vm, follow=True)
            c.wait_for_line(vm, "up")
            refused(t, "S502", vm.vm_id, c.start, "w")
            refused(t, "S502", vm.vm_id, c.destroy)
            if how == "killed":
                os.kill(c.boots()[0], signal.SIGKILL)
                c.wait(vm, "exited")
            else:
                t.equal(c.stop(vm, how)["state"], "stopped", "state")
            while follower.recv()[0] != iii.CLOSE:
                pass
            follower.close(say=False)
            t.equal(c.destroy(), True, "destroy")
        no_life()
        life(0)  # the first one opens what stays open
        life(60000)
        before = descriptors(c.p.pid)
        for how in (0, 60000, "killed") * 3 + (0,):
            life(how)
        no_life()
        wait_until(lambda: len(descriptors(c.p.pid)) <= len(before), 30, "descriptors that go away: "
                   f"{before} before, {descriptors(c.p.pid)} now")
        t.equal(descriptors(c.p.pid), before, "descriptors")
        t.equal(c.boots(), [], "supervisors")


main()
