"""A running `standalone` for the foreign clients: real VMs, in the clean room of tests/e2e/harness.py,
which is `e2e` here. Its cases run once a backend and fail when a process, file, lock or descriptor
is left.

Import after `harness.enter()`. Reads SANDBOX_TEST_BUILD and what tests/e2e/harness.py reads.
"""
import importlib.util
import os
import re
import signal

import harness

if harness.SANITIZED:
    os.environ["SANDBOX_TEST_SMOKE"] = "1"  # as for the e2e programs of such a tree


def load_e2e():
    """By its path: its name is taken."""
    path = os.path.join(harness.SOURCE, "tests/e2e/harness.py")
    spec = importlib.util.spec_from_file_location("e2e_harness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


e2e = load_e2e()
READY_S = 60

# What takes long runs on one backend: the one that runs the guest's code on the processor.
QUICK_BACKEND = "krun" if "krun" in e2e.BACKENDS and os.path.exists("/dev/kvm") else "qemu"


class Standalone:
    """`with Standalone(t) as s:` s.url is where clients connect to; the image `python` is there."""

    def __init__(self, t):
        self.t = t
        e2e.use_python_image()
        self.log_path = os.path.join(t.scratch, "log")

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.p = self.t.spawn([e2e.BIN, "standalone", "--port", "0"], stderr=log)
        line = self.t.wait_for_output(self.p, b"\n", READY_S).decode()
        self.url = re.fullmatch(r"ready url=(ws://127\.0\.0\.1:\d+)\n", line).group(1)
        return self

    def __exit__(self, kind, *_):
        os.kill(self.p.pid, signal.SIGTERM)
        status = self.t.finish(self.p).status
        if kind is None:
            self.t.equal(status, 0, "exit status of standalone")
        else:
            with open(self.log_path, encoding="utf-8", errors="replace") as f:
                e2e.diagnose(f.read()[-4000:])

    def rss_kib(self):
        return e2e.memory_kib(self.p.pid)
