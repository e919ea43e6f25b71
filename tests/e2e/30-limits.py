#!/usr/bin/env python3
"""Time limits and standard input: what is over is over, and nobody waits for what never comes."""
import hashlib
import os
import subprocess

from harness import case, main

MIB = 1 << 20


def timed_out(t, r, limit_ms):
    t.equal(r.status, 124, "exit status")
    t.contains(r.err, b"S200", "stderr")
    t.contains(r.err, b"%d ms" % limit_ms, "stderr")


@case(per_backend=True, smoke=True)
def the_time_limit_ends_the_program(t):
    r = t.run_code("echo before; sleep 3600; echo after", options=["--timeout", "1s"])
    timed_out(t, r, 1000)
    t.equal(r.out, b"before\n", "stdout")


@case(per_backend=True)
def the_time_limit_reaches_children_in_other_sessions(t):
    # setsid children hold the output open: unless they are killed too the command cannot end with
    # both streams at their end, and the marker that they write later would come out.
    r = t.run_code("setsid sh -c 'sleep 8; echo late' & setsid setsid sleep 3600 &"
                   "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' &) ;"
                   "echo started; sleep 3600", options=["--timeout", "2s"])
    timed_out(t, r, 2000)
    t.equal(r.out, b"started\n", "stdout")


@case(per_backend=True)
def signals_that_are_ignored_do_not_help(t):
    r = t.run_code("trap '' ALRM TERM HUP INT; while :; do sleep 1; done", options=["--timeout", "1s"])
    timed_out(t, r, 1000)


@case(per_backend=True)
def a_stopped_program_is_ended_too(t):
    r = t.run_code("echo going; kill -STOP $$", options=["--timeout", "1s"])
    timed_out(t, r, 1000)
    t.equal(r.out, b"going\n", "stdout")


@case(per_backend=True)
def a_fork_bomb_is_ended_by_the_time_limit(t):
    # Where the guest is slow, killing thousands takes longer than the agent waits for it; then it says
    # so instead, and the VM goes all the same.
    r = t.run_code("bomb() { bomb | bomb & }; bomb; sleep 3600", options=["--timeout", "2s", "-q"])
    t.check(r.status == 124 or (r.status == 125 and b"the deadline passed" in r.err),
            f"exit status is {r.status}")


@case(per_backend=True)
def a_program_that_eats_all_memory_ends_alone(t):
    # The agent must survive: the exit status is the program's (killed, or its own MemoryError).
    r = t.run_code("import os\nx = []\nwhile True: x.append(bytearray(os.urandom(1 << 20)) * 8)",
                   lang="python", options=["--memory", "256M", "--timeout", "60s"])
    t.check(r.status in (1, 137), f"exit status is {r.status}")


@case(per_backend=True)
def eight_megabytes_of_stdin(t):
    data = os.urandom(8 * MIB)
    r = t.run_program("sha256sum", options=["-i"], stdin=data)
    t.ends(r, 0, hashlib.sha256(data).hexdigest().encode() + b"  -\n")
    r = t.run_program("cat", options=["-i"], stdin=data)
    t.equal(r.status, 0, "exit status")
    t.check(r.out == data, "cat returned other bytes than it got")
    r.out = b"(checked)"


@case(per_backend=True)
def stdin_that_is_never_read_blocks_nobody(t):
    r = t.run_code("exit 5", options=["-i"], stdin=b"x" * (8 * MIB))
    t.ends(r, 5, b"")
    r = t.run_code("exec 0<&-; head -c 100000 /dev/zero | wc -c", options=["-i"],
                   stdin=b"x" * (8 * MIB))
    t.ends(r, 0, b"100000\n")


@case(per_backend=True)
def stdin_is_empty_unless_it_is_asked_for(t):
    t.ends(t.run_program("cat", stdin=b"not for the guest"), 0, b"")
    t.ends(t.run_program("cat", options=["-i"], stdin=b""), 0, b"")
    t.ends(t.run_program("cat", options=["-i"], stdin=b"bytes \xff\0\x80 end"), 0,
           b"bytes \xff\0\x80 end")


@case(per_backend=True)
def the_exit_of_the_program_wins_over_an_open_stdin(t):
    # Our own standard input stays open and silent; the program does not wait for it, nor may we.
    reader, writer = os.pipe()
    try:
        p = t.spawn(t.run_argv("exit 3", options=["-i"]), stdin=reader)
        t.ends(t.finish(p), 3, b"")
    finally:
        os.close(reader)
        os.close(writer)


@case(per_backend=True)
def stdin_may_come_late_and_in_pieces(t):
    p = t.spawn(t.run_argv("read a; echo one $a; read b; echo two $b; cat", options=["-i", "-q"]),
                stdin=subprocess.PIPE)
    p.stdin.write(b"x\n")
    p.stdin.flush()
    t.wait_for_output(p, b"one x\n")
    p.stdin.write(b"y\n")
    p.stdin.flush()
    t.wait_for_output(p, b"two y\n")
    t.ends(t.finish(p, stdin=b"rest"), 0, b"rest")


main()
