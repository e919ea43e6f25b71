#!/usr/bin/env python3
"""However a VM ends, the reason is told and nothing of it is left: process, file or lock.

What is left is looked for by the harness after every case.
"""
import os
import random
import signal
import subprocess
import time

from harness import (COMMAND_GUARD_S, case, command_line, descendants, main, memory_kib, wait_until)

SLEEPER = "echo up; sleep 3600"


def start(t, code=SLEEPER, options=()):
    """A running VM: (the command, the supervisor's pid, the VMM's pid)."""
    p = t.spawn(t.run_argv(code, options=["-q", *options]))
    t.wait_for_output(p, b"up\n")
    below = descendants(p.pid)
    supervisors = [x for x in below if "__vm-boot" in command_line(x)]
    t.check(supervisors, f"no supervisor among {[command_line(x) for x in below]}")
    leaves = [x for x in below if not descendants(x)]
    vmm = max(leaves, key=lambda x: memory_kib(x))
    return p, supervisors[0], vmm


def gone(pids):
    return not [x for x in pids if os.path.exists(f"/proc/{x}") and state(x) not in "ZX"]


def state(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


@case(per_backend=True, smoke=True)
def kill_9_of_the_command(t):
    p, _, _ = start(t)
    below = descendants(p.pid)
    t.check(len(below) >= 2, f"too few processes: {[command_line(x) for x in below]}")
    p.kill()
    wait_until(lambda: gone(below), 20, f"the end of {[command_line(x) for x in below]}")
    t.equal(t.finish(p).status, -signal.SIGKILL, "exit status")


@case(per_backend=True)
def kill_9_of_the_command_at_any_moment(t):
    chance = random.Random(1)
    for _ in range(8):
        p = t.spawn(t.run_argv(SLEEPER))
        time.sleep(chance.uniform(0, 2.5 if t.backend == "qemu" else 1))
        below = descendants(p.pid)
        p.kill()
        t.finish(p)
        wait_until(lambda: gone(below), 20, f"the end of {[command_line(x) for x in below]}")


@case(per_backend=True, smoke=True)
def kill_9_of_the_vmm(t):
    p, _, vmm = start(t)
    os.kill(vmm, signal.SIGKILL)
    r = t.finish(p)
    t.equal(r.status, 125, "exit status")
    t.contains(r.err, b"S300", "stderr")
    t.contains(r.err, b"signal 9", "stderr")


@case(per_backend=True)
def kill_9_of_the_supervisor(t):
    p, supervisor, vmm = start(t)
    os.kill(supervisor, signal.SIGKILL)
    r = t.finish(p)
    t.equal(r.status, 125, "exit status")
    t.contains(r.err, b"S300", "stderr")
    wait_until(lambda: gone([vmm]), 20, "the end of the VMM")


@case(per_backend=True)
def a_stopped_vmm_goes_with_the_command(t):
    p, supervisor, vmm = start(t)
    os.kill(vmm, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGSTOP)
    p.kill()
    t.finish(p)
    wait_until(lambda: gone([vmm, supervisor]), 20, "the end of the stopped processes")


@case(per_backend=True)
def a_stopped_vmm_does_not_hold_up_the_time_limit(t):
    p, _, vmm = start(t, options=["--timeout", "3s"])
    os.kill(vmm, signal.SIGSTOP)
    r = t.finish(p)
    t.check(r.status in (124, 125), f"exit status is {r.status}")
    t.contains(r.err, b"S200", "stderr")


@case(per_backend=True)
def signals_to_the_command(t):
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        p, _, _ = start(t)
        p.send_signal(signo)
        t.equal(t.finish(p).status, 128 + signo, f"exit status after {signo.name}")


@case(per_backend=True)
def control_c_on_a_terminal_reaches_all(t):
    p, _, _ = start(t)
    os.killpg(p.pid, signal.SIGINT)
    t.equal(t.finish(p).status, 130, "exit status")


@case(per_backend=True)
def a_kernel_panic_is_reported(t):
    # sysrq where the kernel has it, else the panic that it was told to have when memory is out.
    code = ("echo up\n"
            "[ -w /proc/sysrq-trigger ] && echo c >/proc/sysrq-trigger\n"
            "echo 2 >/proc/sys/vm/panic_on_oom\n"
            "exec python3 -c 'x = []\nwhile True: x.append(b\"x\" * (1 << 22))'\n")
    r = t.run_code(code, options=["-q", "--memory", "256M"])
    t.equal(r.status, 125, "exit status")
    t.equal(r.out, b"up\n", "stdout")
    t.contains(r.err, b"S300", "stderr")


@case(per_backend=True)
def a_guest_that_reboots_by_itself_is_reported(t):
    code = ("import ctypes, os\nos.write(1, b'up\\n')\nos.read(0, 1)\n"
            "ctypes.CDLL(None).reboot(0x01234567)\n")  # RB_AUTOBOOT
    p = t.spawn(t.run_argv(code, lang="python", options=["-q", "-i"]), stdin=subprocess.PIPE)
    t.wait_for_output(p, b"up\n")
    r = t.finish(p, stdin=b"\n")
    t.equal(r.status, 125, "exit status")
    t.contains(r.err, b"S300", "stderr")


@case(per_backend=True)
def the_agent_cannot_be_killed_from_inside(t):
    r = t.run_code("for s in KILL TERM INT HUP SEGV ABRT PIPE USR1 USR2 STOP TSTP QUIT; do"
                   " kill -$s 1; done; kill -CONT 1; echo alive", options=["-q"])
    t.ends(r, 0, b"alive\n")


@case(per_backend=True)
def a_flooded_console_is_bounded(t):
    p, supervisor, vmm = start(t, "echo up; cat /dev/zero >/dev/console & a=$!; yes 'console flood'"
                               " >/dev/console & sleep 5; kill $a $!; echo over")
    peak = {x: 0 for x in (p.pid, supervisor)}
    vmm_start = memory_kib(vmm, "RssAnon")
    vmm_peak = 0
    while p.poll() is None and state(p.pid) not in "ZX":
        for x in peak:
            peak[x] = max(peak[x], memory_kib(x, "RssAnon"))
        vmm_peak = max(vmm_peak, memory_kib(vmm, "RssAnon"))
        time.sleep(0.05)
    r = t.finish(p)
    t.ends(r, 0)
    t.contains(r.out, b"over\n", "stdout")
    t.equal(r.err, b"", "stderr")
    for pid, kib in peak.items():
        t.check(kib < 32 * 1024, f"a host process grew to {kib} KiB")
    t.check(vmm_peak < vmm_start + 256 * 1024, f"the VMM grew from {vmm_start} to {vmm_peak} KiB")


@case(per_backend=True)
def the_last_words_of_a_dying_guest_are_shown(t):
    code = ("echo 'the last words é' >/dev/console; printf 'bad \\377 bytes\\033[2J\\n' >/dev/console;"
            "sleep 1; python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x01234567)'")
    r = t.run_code(code, options=["-q"])
    t.equal(r.status, 125, "exit status")
    t.contains(r.err, "the last words é".encode(), "stderr")
    r.err.decode("utf-8")
    t.check(b"\x1b" not in r.err, "an escape sequence of the guest reached the terminal")


@case(per_backend=True)
def a_full_disk_is_the_guests_own_trouble(t):
    r = t.run_code("fallocate -l 9G /big 2>&1 | grep -c 'No space'; rm -f /big;"
                   "echo still here > /tmp/x; cat /tmp/x", options=["-q"])
    t.ends(r, 0)
    t.contains(r.out, b"still here\n", "stdout")


@case(per_backend=True)
def four_at_once(t):
    ps = [t.spawn(t.run_argv(f"echo $(({i} * 7))", options=["-q", "--memory", "256M"]))
          for i in range(4)]
    for i, p in enumerate(ps):
        t.ends(t.finish(p, timeout=COMMAND_GUARD_S), 0, b"%d\n" % (i * 7))


main()
