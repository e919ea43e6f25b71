#!/usr/bin/env python3
"""Output: all of it, whatever its size and bytes, or as much as --output-cap allows."""
import hashlib
import os
import re
import select
import subprocess
import time

from harness import case, main, memory_kib, wait_until

MIB = 1 << 20

# A stream whose every part differs from every other, so that a lost or doubled piece shows.
PATTERN = ("import sys\n"
           "def lines(n):\n"
           "    i = 0\n"
           "    while n > 0:\n"
           "        b = b''.join(b'%015d\\n' % (i + k) for k in range(4096))[:n]\n"
           "        i += 4096; n -= len(b)\n"
           "        yield b\n")


def pattern_digest(size):
    h, i = hashlib.sha256(), 0
    while size > 0:
        block = b"".join(b"%015d\n" % (i + k) for k in range(4096))[:size]
        i += 4096
        size -= len(block)
        h.update(block)
    return h.hexdigest()


@case(per_backend=True)
def fifty_megabytes_of_stdout(t):
    size = 50 * MIB
    r = t.run_code(PATTERN + f"for b in lines({size}): sys.stdout.buffer.write(b)\nsys.exit(7)",
                   lang="python")
    t.equal(r.status, 7, "exit status")
    t.equal(len(r.out), size, "bytes of stdout")
    t.equal(hashlib.sha256(r.out).hexdigest(), pattern_digest(size), "digest of stdout")
    r.out = b"(checked)"


@case(per_backend=True)
def fifty_megabytes_of_stderr_do_not_stall_stdout(t):
    size = 50 * MIB
    r = t.run_code(PATTERN + f"for b in lines({size}): sys.stderr.buffer.write(b)\nprint('ok')",
                   lang="python", options=["-q"])
    t.ends(r, 0, b"ok\n")
    t.equal(len(r.err), size, "bytes of stderr")
    t.equal(hashlib.sha256(r.err).hexdigest(), pattern_digest(size), "digest of stderr")
    r.err = b"(checked)"


@case(per_backend=True, smoke=True)
def both_streams_at_once(t):
    code = PATTERN + ("import threading\n"
                      "def put(f):\n"
                      f"    for b in lines({4 * MIB}): f.buffer.write(b)\n"
                      "    f.flush()\n"
                      "a = [threading.Thread(target=put, args=(f,)) for f in (sys.stdout, sys.stderr)]\n"
                      "[x.start() for x in a]; [x.join() for x in a]\n")
    r = t.run_code(code, lang="python", options=["-q"])
    t.equal(r.status, 0, "exit status")
    for name, data in (("stdout", r.out), ("stderr", r.err)):
        t.equal(len(data), 4 * MIB, f"bytes of {name}")
        t.equal(hashlib.sha256(data).hexdigest(), pattern_digest(4 * MIB), f"digest of {name}")


@case(per_backend=True)
def the_cap_drops_the_rest_and_kills_nobody(t):
    # The program goes on behind the cap, and its own status is what comes out.
    r = t.run_code("yes | head -c 50M; echo done >&2; exit 7", options=["--output-cap", "1M"])
    t.equal(r.status, 7, "exit status")
    t.equal(r.out, b"y\n" * (MIB // 2), "stdout")
    t.contains(r.err, b"done\n", "stderr")
    t.contains(r.err, b"%d bytes of stdout" % (49 * MIB), "the message about what was cut")


@case(per_backend=True)
def output_of_exactly_the_cap_is_not_cut(t):
    r = t.run_code("head -c 65536 /dev/zero; head -c 65536 /dev/zero >&2",
                   options=["-q", "--output-cap", "64K"])
    t.ends(r, 0, b"\0" * 65536)
    t.equal(r.err, b"\0" * 65536, "stderr")
    r = t.run_code("head -c 65537 /dev/zero", options=["-q", "--output-cap", "64K"])
    t.ends(r, 0, b"\0" * 65536)
    t.contains(r.err, b"1 bytes of stdout", "stderr")


@case(per_backend=True)
def bytes_that_are_no_text_pass(t):
    r = t.run_code(r"printf '\377\376\000A\200'; printf '\303\050\355\240\200' >&2", options=["-q"])
    t.ends(r, 0, b"\xff\xfe\0A\x80")
    t.equal(r.err, b"\xc3\x28\xed\xa0\x80", "stderr")


@case(per_backend=True)
def output_of_a_finished_program_is_never_short(t):
    # What lies in the pipe when the program ends must still come, with a child in the background too.
    r = t.run_code("for i in 1 2 3 4 5 6 7 8 9 10; do seq 1 20000; done; sleep 1000 & echo hi")
    t.equal(r.status, 0, "exit status")
    expected = "".join(f"{i}\n" for i in range(1, 20001)).encode() * 10 + b"hi\n"
    t.equal(hashlib.sha256(r.out).hexdigest(), hashlib.sha256(expected).hexdigest(), "digest")


@case(per_backend=True)
def a_background_child_does_not_hold_the_command(t):
    # It keeps the pipe open for an hour; the hang guard of the command is the measure.
    t.ends(t.run_code("sleep 3600 & echo ok"), 0, b"ok\n")
    t.ends(t.run_code("nohup setsid sleep 3600 >/dev/null 2>&1 & echo ok"), 0, b"ok\n")


@case(per_backend=True)
def sigpipe_is_as_a_shell_expects(t):
    # A child that inherits an ignored SIGPIPE would run for ever.
    r = t.run_code("yes | head -n 1; grep -h -E '^(SigIgn|SigBlk)' /proc/self/status")
    t.equal(r.status, 0, "exit status")
    t.equal(re.sub(rb"\s+", b" ", r.out), b"y SigBlk: 0000000000000000 SigIgn: 0000000000000000 ",
            "stdout")


@case(per_backend=True)
def streams_while_the_program_runs(t):
    p = t.spawn(t.run_argv("echo first; read x; echo got $x", options=["-i", "-q"]),
                stdin=subprocess.PIPE)
    t.wait_for_output(p, b"first\n")
    t.check(p.poll() is None, "the command ended before it was answered")
    r = t.finish(p, stdin=b"answer\n")
    t.ends(r, 0, b"got answer\n")


@case(per_backend=True)
def a_reader_that_goes_away_ends_it(t):
    p = t.spawn(t.run_argv("yes", options=["-q"]))
    t.wait_for_output(p, b"y\ny\n")
    p.stdout.close()
    status = p.wait(120)
    p.stdout = open(os.devnull, "rb")
    t.finish(p)
    t.equal(status, 141, "exit status when stdout is closed by its reader")


@case(per_backend=True)
def a_slow_reader_slows_the_program_down(t):
    # Nothing is read until the program has had every chance to run ahead; whatever lies between it
    # and us is a window of fixed size, so it cannot have come far.
    p = t.spawn(t.run_argv("i=0; while [ $i -lt 64 ]; do head -c 1M /dev/zero; echo $i >&2;"
                           " i=$((i+1)); done", options=["-q"]))
    wait_until(lambda: select.select([p.stdout], [], [], 0)[0], 120, "the first output")
    settled = wait_until_still(lambda: memory_kib(p.pid, "RssAnon"))
    t.check(settled < 32 * 1024, f"the command holds {settled} KiB while its reader is slow")
    r = t.finish(p)
    t.equal(r.status, 0, "exit status")
    t.equal(len(r.out), 64 * MIB, "bytes of stdout")
    t.equal(r.err.split()[-1], b"63", "the last number on stderr")
    r.out = b"(checked)"


def wait_until_still(measure):
    """The value once it has not changed for a second."""
    last, since = measure(), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.05)
        value = measure()
        if value != last:
            last, since = value, time.monotonic()
    return last


main()
