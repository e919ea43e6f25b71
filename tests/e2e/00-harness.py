#!/usr/bin/env python3
"""The harness notices what it promises to notice: each of these bad cases must fail."""
import os
import re
import sys

from harness import HERE, case, main

BAD = '''
import fcntl, os, subprocess, sys
sys.path.insert(0, %r)
import harness
from harness import case, main
harness.SETTLE_S = 0.2

@case()
def fine(t):
    t.ends(t.command(["sh", "-c", "echo hi; exit 3"]), 3, b"hi\\n")

@case()
def wrong_status(t):
    t.ends(t.command(["false"]), 0)

@case()
def daemon_left(t):
    t.command(["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & exit 0"])

@case()
def child_not_waited_for(t):
    t.spawn(["sleep", "60"])

@case()
def file_left_in_state(t):
    t.command(["sh", "-c", "echo x > $III_SANDBOX_STATE_DIR/disk"])

@case()
def file_left_in_tmp(t):
    t.command(["sh", "-c", "mkdir $TMPDIR/a; : > $TMPDIR/a/sock"])

kept = []

@case()
def lock_and_descriptor_left(t):
    f = open(os.path.join(t.state, "lock"), "w")
    fcntl.flock(f, fcntl.LOCK_EX)
    kept.append(f)

@case(guard_s=1)
def hangs(t):
    t.command(["sleep", "60"])

@case()
def skips(t):
    t.skip("some reason")

main()
'''


@case()
def finds_every_kind_of_leak(t):
    env = t.env(**{k: v for k, v in os.environ.items()
                   if k.startswith("SANDBOX_TEST_") and k not in ("SANDBOX_TEST_CASE", "SANDBOX_TEST_SMOKE")})
    r = t.command([sys.executable, "-c", BAD % HERE], env=env)
    verdicts = re.findall(r"^(ok|not ok) \d+ - (\w+)(.*)$", r.out.decode(), re.M)
    t.equal(verdicts, [("ok", "fine", ""),
                       ("not ok", "wrong_status", ""),
                       ("not ok", "daemon_left", ""),
                       ("not ok", "child_not_waited_for", ""),
                       ("not ok", "file_left_in_state", ""),
                       ("not ok", "file_left_in_tmp", ""),
                       ("not ok", "lock_and_descriptor_left", ""),
                       ("not ok", "hangs", ""),
                       ("ok", "skips", " # SKIP some reason")], "verdicts")
    t.equal(r.status, 1, "exit status")
    for words in (b"process ", b"file is left", b"lock is left", b"own descriptors", b"hung"):
        t.contains(r.out, words, "diagnostics")


main()
