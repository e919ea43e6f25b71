#!/usr/bin/env python3
"""Chaos: a Compose that starts, stops, reads, deletes and kills at random, and what has to hold all
the while.

Each step is drawn from the seed and the number of the step alone, so the same seed is the same
course of actions (not the same timing). The seed and, when a case fails, the last steps are
printed. Environment: SANDBOX_TEST_SEED takes the place of a random seed.

What is done: start (of workers that stay, ignore SIGTERM, exit, crash, flood), start twice at once,
status, logs (whole, from a cursor, followed, abandoned), stop with all kinds of grace, destroy;
SIGKILL of the VMM, the supervisor, passt and the daemon; SIGTERM of the daemon; the disk of the
state folder full and free again. For the last one the state folder is a file system of its own: an
ext4 on a loop device, or where there is none a tmpfs, both of which need root; without root the
case says that it leaves this out.

What has to hold, looked at after each step:
  * the numbers of boots only grow, also across destroy and the death of the daemon;
  * a boot never goes back to an earlier state, and its end never changes;
  * start and destroy are refused with S502 while a boot is preparing or running, and only then;
  * a boot that is said to run has its processes, one that is said to have ended has none;
  * the end that is told is the one it had: the worker's status, or the signal that killed the VM;
  * what the worker was told to be on its disk is there at the next boot;
and whenever everything has been stopped:
  * no process, lock, half-made file or namespace is left, the daemon has the descriptors that it
    had in the beginning, and its memory stays below a limit.
"""
import os
import random
import re
import signal

import harness
from chaos import SETTLE_S, Chaos
from compose import Compose
from harness import BACKENDS, SOURCE, case, diagnose, main, wait_until
from small_disk import SmallDisk


def shared_out(seconds):
    """Of the whole time, what this backend gets: the quick one most of it."""
    krun = "krun" in BACKENDS and os.path.exists("/dev/kvm")
    return {"krun": seconds * 3 / 4, "qemu": seconds / 4 if krun else seconds}


def chaos(t, seconds):
    seed = os.environ.get("SANDBOX_TEST_SEED") or str(random.SystemRandom().randrange(10 ** 9))
    diagnose(f"SANDBOX_TEST_SEED={seed}")
    small = {"cpus": 1, "memory": 160}
    with SmallDisk(t) as disk, Compose(t, env={"SANDBOX_LOG": "info", **disk.env()}) as c:
        for name, install in (("quick", ""), ("slow", "sleep 1")):
            c.local(name, start="exec python3 -I main.py", files=worker_files(), resources=small,
                    scripts={"install": install})
        Chaos(t, c, disk, seed).run(seconds)


def worker_files():
    with open(os.path.join(SOURCE, "tests/e2e/chaos_worker.py"), encoding="utf-8") as f:
        return {"main.py": f.read()}


def numbers(c, vm, word):
    """Of the lines `WORD NUMBER` that a worker printed."""
    return [int(x.split()[1]) for x in c.lines(vm) if re.fullmatch(word + r" \d+", x)]


@case(per_backend=True)
def a_full_disk_is_an_error_for_the_worker_that_writes(t):
    with SmallDisk(t) as disk, Compose(t, env=disk.env()) as c:
        if not disk.kind:
            t.skip("not root: the kernel mounts disks for root only")
        c.local("w", start="exec python3 -I main.py", files=worker_files())
        first = c.start("w", env={"PLAN": "stay"})
        c.wait_for_line(first, "ack 3")
        disk.fill(0)
        s = c.wait(first, "exited", seconds=60)
        t.equal((s["exit_code"], s["signal"]), (44, None), "end of a worker that cannot write")
        safe = max(numbers(c, first, "ack"))
        disk.free()
        second = c.start("w", env={"PLAN": "stay"})
        c.wait_for_line(second, "ack")
        t.check(numbers(c, second, "journal")[0] >= safe, "what was safe is there")
        t.equal(c.stop(second)["exit_code"], 0, "exit code")


@case(per_backend=True)
def an_end_that_the_full_disk_did_not_take_stays_told(t):
    with SmallDisk(t) as disk, Compose(t, env=disk.env()) as c:
        if not disk.kind:
            t.skip("not root: the kernel mounts disks for root only")
        c.local("w", start="trap 'exit 7' TERM; while :; do sleep 0.1; done")
        first = c.run("w")
        disk.fill(0)
        told = c.stop(first)
        t.equal((told["state"], told["exit_code"]), ("stopped", 7), "its end")
        t.contains(c.log(), "the record of a worker VM cannot be written", "log")
        disk.free()
        second = c.run("w")
        t.equal(c.status(first), told, "the end of the boot before")
        c.end(signal.SIGKILL)
        wait_until(lambda: not harness.descendants(os.getpid()), SETTLE_S, "the end of the VM")
        c.up()
        t.equal(c.status(first), told, "what the next daemon says of it")
        t.equal(c.status(second)["state"], "exited", "state of the boot after it")


@case(per_backend=True, smoke=True, guard_s=400)
def a_minute(t):
    chaos(t, shared_out(60)[t.backend])


@case(per_backend=True, soak=True, guard_s=1800)
def ten_minutes(t):
    chaos(t, shared_out(600)[t.backend])


main()
