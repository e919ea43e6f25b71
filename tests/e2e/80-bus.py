#!/usr/bin/env python3
"""Sandboxes on the bus: `standalone` and `serve` with real VMs, driven by `call` and by a client of
the tests' own. What each function answers to what is told case by case in tests/conformance; here
are the life of the daemon, what runs at once, and what must never happen."""
import hashlib
import json
import os
import re
import signal
import sys
import time

import harness
from harness import BIN, case, main, use_python_image, wait_until

sys.path.insert(0, os.path.join(harness.SOURCE, "tests/conformance"))
import iii  # noqa: E402
from compose import MEMBERS, refused  # noqa: E402

P = "sandbox-libkrun::"
READY_S = 60


class Adapter:
    """A running `standalone`, and a client of it."""

    def __init__(self, t, config=None, env=None, argv=()):
        use_python_image()
        self.t, self.n = t, 0
        self.log_path = os.path.join(t.scratch, f"log-{time.monotonic_ns()}")
        if config is not None:
            path = os.path.join(t.scratch, f"config-{time.monotonic_ns()}.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(config, f)
            argv = [*argv, "--config", path]
        self.argv = [BIN, "standalone", "--port", "0", *argv]
        self.env = t.env(**{"SANDBOX_LOG": "debug", **(env or {})})
        self.engine = None

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.p = self.t.spawn(self.argv, self.env, stderr=log)
        line = self.t.wait_for_output(self.p, b"\n", READY_S).decode()
        self.url = re.fullmatch(r"ready url=(ws://127\.0\.0\.1:\d+)\n", line).group(1)
        self.engine = iii.Engine(self.url)
        return self

    def __exit__(self, kind, *_):
        self.engine.close()
        if self.p in harness.running:
            status = self.end(signal.SIGTERM)
            if kind is None:
                self.t.equal(status, 0, "exit status of standalone")

    def end(self, signo):
        os.kill(self.p.pid, signo)
        return self.t.finish(self.p).status

    def log(self):
        with open(self.log_path, encoding="utf-8") as f:
            return f.read()

    def call(self, function, **members):
        return self.engine.call(P + function, members)

    def start(self, function, **members):
        return self.engine.start(P + function, members)

    def create(self, **members):
        return self.call("create", **{"image": "python", **members})["sandbox_id"]

    def sh(self, sandbox, script, **members):
        return self.call("exec", sandbox_id=sandbox, argv=["sh", "-c", script], **members)

    def listed(self):
        return {row["sandbox_id"]: row for row in self.call("list")["sandboxes"]}

    def cli(self, *argv, status=0):
        """`call …` as a command; its JSON."""
        r = self.t.cli("call", "--url", self.url, *argv)
        self.t.equal(r.status, status, f"exit status of call {argv}")
        self.t.equal(r.err if status == 0 else r.out, b"", "the other stream")
        return json.loads(r.out if status == 0 else r.err)

    def vmms(self):
        """Processes below the daemon."""
        return harness.descendants(self.p.pid)


# --- by the command line -----------------------------------------------------------------------

@case(per_backend=True, smoke=True)
def a_life_by_call(t):
    with Adapter(t) as a:
        t.equal(a.cli("adapter::info"), {"adapter": "sandbox-libkrun", "adapter_version": "0.2.2",
                                         "contract": {"major": 1, "minor": 1}}, "adapter::info")
        names = [row["name"] for row in a.cli("catalog::list")["images"]]
        t.equal(names, ["python", "node"], "catalog")
        made = a.cli("create", "image=python", "name=mine", "cpus=1")
        t.equal(list(made), ["image", "sandbox_id"], "members of create's reply")
        sandbox = made["sandbox_id"]
        row, = a.cli("list")["sandboxes"]
        t.equal((row["sandbox_id"], row["name"], row["stopped"]), (sandbox, "mine", False), "list")
        reply = a.cli("exec", f"sandbox_id={sandbox}", 'argv=["python3","-c","print(6*7)"]')
        t.equal(list(reply), ["duration_ms", "exit_code", "stderr", "stderr_truncated", "stdout",
                              "stdout_truncated", "success", "timed_out"], "members of exec's reply")
        t.equal(reply["stdout"], "42\n", "stdout")
        error = a.cli("fs::stat", "--json", json.dumps({"sandbox_id": sandbox, "path": "/nope"}),
                      status=1)
        t.equal((list(error), error["code"]), (MEMBERS, "S211"), "error")
        error = a.cli("no::such", status=1)
        t.equal(error["code"], "function_not_found", "an error of the engine")
        t.equal(a.cli("stop", f"sandbox_id={sandbox}", "wait=true"),
                {"sandbox_id": sandbox, "stopped": True}, "stop")
        t.equal(a.cli("list"), {"sandboxes": []}, "list afterwards")


@case()
def call_without_an_engine(t):
    r = t.cli("call", "--url", "ws://127.0.0.1:1", "list")
    t.ends(r, 3, b"")
    t.contains(json.loads(r.err)["message"], "ws://127.0.0.1:1", "message")
    for argv in ([], ["list", "x"], ["list", "--json", "{"], ["list", "--timeout-ms", "0"]):
        t.equal(t.cli("call", *argv).status, 2, f"exit status of call {argv}")


# --- commands ----------------------------------------------------------------------------------

@case(per_backend=True)
def commands(t):
    with Adapter(t) as a:
        s = a.create(env={"A": "1"})
        def ok(reply, **wanted):
            for name, value in wanted.items():
                t.equal(reply[name], value, name)
        ok(a.call("exec", sandbox_id=s, cmd="echo a  'b c' \"d\\\"e\" #x y"), stdout='a b c d"e\n')
        ok(a.call("exec", sandbox_id=s, cmd="echo", args=["; id", "$(id)"]), stdout="; id $(id)\n")
        ok(a.sh(s, "exit 42"), exit_code=42, success=False)
        ok(a.sh(s, "kill -9 $$"), exit_code=137)
        ok(a.call("exec", sandbox_id=s, cmd="/no/such"), exit_code=127, stdout="",
           stderr="exec: /no/such: not found\n")
        ok(a.call("exec", sandbox_id=s, cmd="/etc/passwd"), exit_code=126)
        ok(a.sh(s, "echo $A"), stdout="1\n")
        ok(a.sh(s, "echo $A", env=["A=2"]), stdout="2\n")
        ok(a.call("exec", sandbox_id=s, cmd="pwd", workdir="/tmp"), stdout="/tmp\n")
        ok(a.call("exec", sandbox_id=s, cmd="cat", stdin="aGk="), stdout="hi")
        ok(a.call("exec", sandbox_id=s, cmd="cat"), stdout="", exit_code=0)
        ok(a.call("exec", sandbox_id=s, argv=["printf", "a\\377b"]), stdout="a\ufffdb")
        names = a.call("exec", sandbox_id=s, cmd="env")["stdout"]
        t.check("III_" not in names and "SANDBOX" not in names, f"environment: {names}")
        ok(a.call("exec", sandbox_id=s.upper(), cmd="true"), exit_code=0)
        ok(a.sh(s, "sleep 30 & echo ok"), stdout="ok\n", exit_code=0)
        ok(a.sh(s, "ps 2>/dev/null | grep -c 'sleep 3[0]' || cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
                   " | grep -c 'sleep 30'"), exit_code=0)


@case(per_backend=True)
def output_of_exactly_the_cap_and_more(t):
    with Adapter(t) as a:
        s = a.create()
        def printed(n, stream="stdout"):
            return a.call("exec", sandbox_id=s, argv=[
                "python3", "-c", f"import sys; sys.{stream}.write('a' * {n}); print('ok', end='')"])
        r = printed((1 << 20) - 2)
        t.equal((len(r["stdout"]), r["stdout_truncated"]), (1 << 20, False), "exactly the cap")
        r = printed(1 << 20)
        t.equal((len(r["stdout"]), r["stdout_truncated"]), (1 << 20, True), "more than the cap")
        r = printed(5 << 20, "stderr")
        t.equal((r["stdout"], len(r["stderr"]), r["stderr_truncated"], r["stdout_truncated"]),
                ("ok", 1 << 20, True, False), "the other stream")


@case(per_backend=True)
def a_deadline_kills_all_and_tells_the_end_of_the_output(t):
    with Adapter(t, {"image_allowlist": ["python"], "max_exec_timeout_ms": 3000}) as a:
        s = a.create()
        error = refused(t, "S200", "3000", a.sh, s, "echo out; echo err >&2; setsid sleep 77; true",
                        timeout_ms=60000)
        t.check(error["message"].endswith("err\n"), "the tail of stderr is last")
        t.contains(error["message"], "out\n", "message")
        # Past what is kept of the output.
        error = refused(t, "S200", "3000", a.sh, s,
                        "head -c 3000000 /dev/zero | tr '\\0' x; echo 'last words'; sleep 77",
                        timeout_ms=60000)
        t.check(error["message"].endswith("x" * 1013 + "last words\n"), "the tail of all of stdout")
        t.check(len(error["message"]) < 2048, "no more than the tail")
        left = a.sh(s, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 7[7]'")
        t.equal(left["stdout"], "0\n", "processes left")
        refused(t, "S200", " 1 ms", a.sh, s, "sleep 9", timeout_ms=0)


@case(per_backend=True)
def slots_and_a_stop_in_the_middle(t):
    with Adapter(t, {"image_allowlist": ["python"], "max_concurrent_exec_per_sandbox": 2}) as a:
        s = a.create()
        running = [a.start("exec", sandbox_id=s, argv=["sleep", "600"]) for _ in range(2)]
        wait_until(lambda: a.listed()[s]["exec_in_flight"] == 2, 60, "two commands")
        row = a.listed()[s]
        t.equal((row["exec_in_progress"], row["exec_slots_free"]), (True, 0), "list")
        error = refused(t, "S003", s, a.sh, s, "true")
        t.contains(error["message"], "max_concurrent_exec_per_sandbox", "message")
        t.equal(a.call("fs::stat", sandbox_id=s, path="/")["is_dir"], True, "fs needs no slot")
        stops = [a.start("stop", sandbox_id=s, wait=True) for _ in range(2)]
        for stop in stops:
            try:
                t.equal(stop.result()["stopped"], True, "stopped")
            except iii.CallError as e:
                t.contains(e.message, '"S002"', "the later of two stops")
        for p in running:
            refused(t, "S004", s, p.result)
        t.equal(a.vmms(), [], "processes of VMs after a stop with wait")
        refused(t, "S002", s, a.sh, s, "true")
        refused(t, "S002", s, a.call, "stop", sandbox_id=s)


# --- files -------------------------------------------------------------------------------------

@case(per_backend=True, smoke=True)
def files(t):
    with Adapter(t) as a:
        s = a.create()
        def fs(function, **members):
            return a.call("fs::" + function, sandbox_id=s, **members)
        t.equal(fs("mkdir", path="/tmp/d/e", parents=True), {"created": True}, "mkdir")
        t.equal(fs("write", path="/tmp/d/e/a.py", content="x = 1\ny = x\n"),
                {"bytes_written": 12, "path": "/tmp/d/e/a.py"}, "write")
        t.equal(fs("write", path="/tmp/d/b.txt", content_b64="AP8=", mode="0600")["bytes_written"],
                2, "write of bytes")
        t.equal([(x["name"], x["is_dir"], x["mode"]) for x in fs("ls", path="/tmp/d")["entries"]],
                [("b.txt", False, "0600"), ("e", True, "0755")], "ls")
        t.equal(fs("grep", path="/tmp/d", pattern=r"^\w = x$"), {"matches": [
            {"content": "y = x", "line": 2, "path": "/tmp/d/e/a.py"}], "truncated": False}, "grep")
        t.equal(fs("sed", path="/tmp/d", pattern="x", replacement="z", include_glob=["*.py"]),
                {"results": [{"path": "/tmp/d/e/a.py", "replacements": 2, "success": True}],
                 "total_replacements": 2}, "sed")
        read = fs("read", path="/tmp/d/e/a.py")
        t.equal((read["body"], read["size"], read["mode"]), ("z = 1\ny = z\n", 12, "0644"), "read")
        t.equal(a.engine.read_channel(read["content"]), (b"z = 1\ny = z\n", []), "its channel")
        t.equal(fs("mv", src="/tmp/d/e/a.py", dst="/root/a.py"), {"moved": True}, "mv")
        t.equal(fs("chmod", path="/tmp/d", mode="0700", recursive=True), {"updated": 3}, "chmod")
        t.equal(fs("stat", path="/tmp/d")["mode"], "0700", "stat")
        refused(t, "S214", "/tmp/d", fs, "rm", path="/tmp/d")
        t.equal(fs("rm", path="/tmp/d", recursive=True), {"removed": True}, "rm")
        error = refused(t, "S211", "parent not found", fs, "write", path="/tmp/d/x", content="")
        t.equal(error["fix"], {"parents": True}, "fix")
        fs("write", path="/tmp/d/x", content="", **error["fix"])
        error = refused(t, "S211", "/tmp/no", fs, "mv", src="/tmp/d/x", dst="/tmp/no/x")
        t.equal(error["fix"], None, "fix of mv")


@case(per_backend=True)
def large_files_through_channels(t):
    data = os.urandom(1 << 20) * 8 + b"end"
    with Adapter(t) as a:
        s = a.create()
        reader, writer = a.engine.channel()
        writing = a.start("fs::write", sandbox_id=s, path="/root/big", content=reader)
        a.engine.write_channel(writer, data, texts=["not content"])
        t.equal(writing.result()["bytes_written"], len(data), "bytes_written")
        digest = a.sh(s, "sha256sum /root/big")["stdout"].split()[0]
        t.equal(digest, hashlib.sha256(data).hexdigest(), "digest in the guest")
        read = a.call("fs::read", sandbox_id=s, path="/root/big")
        t.equal((read["size"], "body" in read), (len(data), False), "read")
        got, texts = a.engine.read_channel(read["content"])
        t.check(got == data and texts == [], "what came back is what was sent")
        # Under a MiB, but not text; exactly a MiB of text; nothing at all.
        for content, has_body in ((b"\xff" * 1000, False), (b"a" * (1 << 20), False),
                                  (b"a" * ((1 << 20) - 1), True), (b"", True)):
            reader, writer = a.engine.channel()
            writing = a.start("fs::write", sandbox_id=s, path="/tmp/x", content=reader)
            a.engine.write_channel(writer, content)
            t.equal(writing.result()["bytes_written"], len(content), "bytes_written")
            read = a.call("fs::read", sandbox_id=s, path="/tmp/x")
            t.equal("body" in read, has_body, f"body of {len(content)} bytes")
            t.check(a.engine.read_channel(read["content"])[0] == content, "its channel")


@case(per_backend=True)
def uploads_that_break(t):
    with Adapter(t) as a:
        s = a.create()
        a.call("fs::write", sandbox_id=s, path="/tmp/w", content="old")
        reader, writer = a.engine.channel()
        ws = a.engine.write_channel(writer, b"0123456789", finish=False)
        error = refused(t, "S218", "channel", a.call, "fs::write", sandbox_id=s, path="/tmp/w",
                        content=reader)
        t.equal(error["retryable"], True, "retryable")
        ws.close()
        ref = {"channel_id": reader["channel_id"], "access_key": "wrong", "direction": "read"}
        refused(t, "S218", "channel", a.call, "fs::write", sandbox_id=s, path="/tmp/w", content=ref)
        names = [x["name"] for x in a.call("fs::ls", sandbox_id=s, path="/tmp")["entries"]]
        t.equal(names, ["w"], "no temporary file is left")
        t.equal(a.call("fs::read", sandbox_id=s, path="/tmp/w")["body"], "old", "the old content")
        # The guest refuses first; the sandbox is stopped in the middle.
        reader, _ = a.engine.channel()
        refused(t, "S212", "/tmp", a.call, "fs::write", sandbox_id=s, path="/tmp", content=reader)
        reader, writer = a.engine.channel()
        writing = a.start("fs::write", sandbox_id=s, path="/tmp/w", content=reader)
        ws = a.engine.write_channel(writer, b"x" * 100000, finish=False)
        a.call("stop", sandbox_id=s)
        refused(t, "S004", s, writing.result)
        ws.close()


@case(per_backend=True)
def channels_that_nobody_reads(t):
    with Adapter(t) as a:
        s = a.create()
        a.sh(s, "head -c 52428800 /dev/zero > /root/50M")
        before = harness.memory_kib(a.p.pid)
        refs = [a.call("fs::read", sandbox_id=s, path="/root/50M")["content"] for _ in range(20)]
        t.equal(a.sh(s, "echo still here")["stdout"], "still here\n", "a call afterwards")
        # 4 MiB wait in the embedded engine for each; nothing comes near the files themselves.
        wait_until(lambda: a.sh(s, "true")["success"], 60, "a further command")
        grown = harness.memory_kib(a.p.pid) - before
        t.check(grown < 20 * 8 * 1024, f"the daemon grew by {grown} KiB")
        ws = a.engine.open(refs[0], "read")
        ws.recv()
        t.equal(a.call("stop", sandbox_id=s, wait=True)["stopped"], True, "stop")
        texts = []
        while True:
            kind, message = ws.recv()
            if kind == iii.CLOSE:
                break
            if kind == iii.TEXT:
                texts.append(json.loads(message))
        ws.close(say=False)
        t.equal([x["code"] for x in texts], ["S004"], "what the reader of a cut stream is told")


# --- run ---------------------------------------------------------------------------------------

@case(per_backend=True)
def runs(t):
    with Adapter(t) as a:
        r = a.call("run", image="python", lang="python", code="print(6*7)")
        t.equal((r["stdout"], r["exit_code"], "sandbox_id" in r), ("42\n", 0, False), "run")
        r = a.call("run", image="python", lang="shell", code="cat /opt/a/b.txt; cat; echo $0 $A; exit 3",
                   files=[{"path": "/opt/a/b.txt", "content": "z"}], stdin="aGk=", env={"A": "e"},
                   keep_sandbox=True)
        t.equal((r["stdout"], r["exit_code"]), ("zhi/tmp/run.sh e\n", 3), "run with everything")
        t.equal(a.sh(r["sandbox_id"], "cat /opt/a/b.txt")["stdout"], "z", "the kept sandbox")
        a.call("stop", sandbox_id=r["sandbox_id"])
        error = refused(t, "S212", "fs::write (sibling file)", a.call, "run", image="python",
                        lang="shell", code="true", files=[{"path": "/tmp", "content": "z"}])
        t.contains(error["fix"]["context"], "fs::write", "context")
        t.equal(error["fix"]["inner_code"], "S212", "inner_code")
        error = refused(t, "S200", "500", a.call, "run", image="python", lang="python",
                        code="import time; print('x', flush=True); time.sleep(60)", timeout_ms=500)
        t.equal((error["fix"]["inner_code"], error["fix_note"]), ("S200", None), "fix")
        error = refused(t, "S100", "sandbox::run", a.call, "run", image="nope", lang="sh", code="")
        t.equal(error["fix"]["sandbox_id"], "", "sandbox_id of a failed create")
        refused(t, "S001", "lang", a.call, "run", image="python", code="1")
        wait_until(lambda: a.listed() == {}, 60, "an empty list")
        wait_until(lambda: a.vmms() == [], 60, "the end of all VMs")


# --- admission, reaper, death ------------------------------------------------------------------

@case(per_backend=True)
def creates_at_once_against_a_limit(t):
    with Adapter(t, {"image_allowlist": ["python"], "max_concurrent_sandboxes": 2}) as a:
        creates = [a.start("create", image="python") for _ in range(5)]
        made, failed = [], []
        for p in creates:
            try:
                made.append(p.result()["sandbox_id"])
            except iii.CallError as e:
                failed.append(e.message)
        t.equal((len(made), len(failed)), (2, 3), "made and refused")
        for message in failed:
            t.contains(message, "S400", "refusal")
            t.contains(message, "max_concurrent_sandboxes", "refusal")
        refused(t, "S400", "max_concurrent_sandboxes", a.call, "create", image="no-such")
        a.call("stop", sandbox_id=made[0])
        t.equal(set(a.listed()), {made[1]}, "list right after a stop without wait")
        a.create()


@case()
def creates_that_are_refused(t):
    config = {"image_allowlist": ["python", "node", "mine"], "auto_install": False,
              "custom_images": {"mine": "registry.invalid/mine:1"},
              "per_image_caps": {"python": {"max_cpus": 2, "max_memory_mb": 1024}}}
    with Adapter(t, config, env={"III_SANDBOX_VMM": "qemu"}) as a:
        def no(code, part, /, **members):
            return refused(t, code, part, a.call, "create", **members)
        no("S001", "missing field `image`")
        no("S100", "python, node, mine", image="docker.io/library/python:3.12")
        no("S100", "Python", image="Python")
        no("S001", "64", image="python", memory_mb=63)
        no("S001", "cpus", image="python", cpus=0)
        no("S001", "cpus", image="python", cpus=1.5)
        no("S001", "9BAD", image="python", env={"9BAD": "x"})
        no("S400", "cpus=3", image="python", cpus=3)
        no("S400", "1024", image="python", memory_mb=1025)
        no("S400", "cpus=65", image="node", cpus=65)
        no("S400", "memory_mb=4294967295", image="node", memory_mb=4294967295)
        t.equal(no("S101", "node", image="node")["retryable"], False, "retryable")
        no("S101", "mine", image="mine")
        t.equal(a.listed(), {}, "list")


@case(guard_s=300)
def idle_sandboxes_are_reaped(t):
    with Adapter(t, env={"III_SANDBOX_VMM": "qemu"}) as a:
        idle, busy, forever = (a.create(idle_timeout_secs=n) for n in (1, 1, 2**64 - 1))
        working = a.start("exec", sandbox_id=busy, argv=["sleep", "25"])
        wait_until(lambda: idle not in a.listed(), 60, "the idle sandbox to go")
        refused(t, "S002", idle, a.sh, idle, "true")
        t.equal(working.result()["exit_code"], 0, "a command that outlasts the idle time")
        wait_until(lambda: busy not in a.listed(), 60, "the other one to go")
        t.equal(set(a.listed()), {forever}, "list")


@case(per_backend=True)
def a_vm_that_is_killed(t):
    with Adapter(t) as a:
        victim = a.create()
        vmms = set(a.vmms())
        other = a.create()
        working = a.start("exec", sandbox_id=victim, argv=["sleep", "600"])
        wait_until(lambda: a.listed()[victim]["exec_in_flight"], 60, "the command")
        # The daemon's own children are the supervisors; what is below them is the VMM.
        for pid in vmms:
            if harness.processes().get(pid, (a.p.pid,))[0] != a.p.pid:
                os.kill(pid, signal.SIGKILL)
        refused(t, "S300", "exited", working.result)
        t.equal(a.listed().get(victim, {"stopped": True})["stopped"], True, "stopped")
        t.equal(a.sh(other, "echo fine")["stdout"], "fine\n", "the other sandbox")
        wait_until(lambda: victim not in a.listed(), 60, "the dead one to be swept")
        refused(t, "S002", victim, a.sh, victim, "true")


@case(per_backend=True)
def many_calls_at_once(t):
    with Adapter(t) as a:
        s = a.create()
        calls = [a.start("fs::stat", sandbox_id=s, path="/etc/passwd") for _ in range(64)]
        calls += [a.start("adapter::info") for _ in range(64)]
        for p in calls:
            p.result()


# --- the daemon --------------------------------------------------------------------------------

@case(per_backend=True)
def every_signal_ends_it_with_its_vms(t):
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with Adapter(t) as a:
            a.create()
            pending = a.start("exec", sandbox_id=a.create(), argv=["sleep", "600"])
            booting = a.start("create", image="python")
            wait_until(lambda: any(r["exec_in_flight"] for r in a.listed().values()), 60, "exec")
            t.equal(a.end(signo), 0, f"exit status after {signo.name}")
            for p in (pending, booting):
                try:
                    p.result()
                except (iii.CallError, iii.Lost):
                    continue
                raise AssertionError("a call ended well")


@case(per_backend=True)
def a_killed_daemon_leaves_nothing(t):
    with Adapter(t) as a:
        a.create()
        t.equal(a.end(signal.SIGKILL), -signal.SIGKILL, "exit status")


@case()
def a_bad_configuration_is_exit_2(t):
    for config, key in (({"sandbox": {}}, "sandbox"), ([], "object"),
                        ({"custom_images": {"python": "x/y:1"}}, "custom_images"),
                        ({"max_concurrent_sandboxes": "32"}, "max_concurrent_sandboxes")):
        path = os.path.join(t.scratch, "config.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        r = t.cli("standalone", "--port", "0", "--config", path, env=t.env(III_SANDBOX_VMM="qemu"))
        t.ends(r, 2, b"")
        t.equal(len(r.err.splitlines()), 1, "lines on stderr")
        t.contains(r.err.decode(), key, "stderr")


@case()
def odd_configurations_start(t):
    for config in ({"zzz": 1}, None):
        path = os.path.join(t.scratch, "config.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        with Adapter(t, env={"III_SANDBOX_VMM": "qemu"}, argv=["--config", path]) as a:
            names = [r["name"] for r in a.call("catalog::list")["images"]]
            t.equal(names, [] if config else ["python", "node"], "catalog")
            t.contains(a.log(), "level=warn", "log")


@case()
def a_second_adapter_is_turned_away(t):
    with Adapter(t, env={"III_SANDBOX_VMM": "qemu"}) as a:
        r = t.command([BIN], env=t.env(III_URL=a.url, III_SANDBOX_VMM="qemu"))
        t.equal(r.status, 1, "exit status of the second one")
        t.equal(a.call("adapter::info")["adapter"], "sandbox-libkrun", "the first one")
        with open(os.path.join(t.scratch, "log"), "wb") as log:
            p = t.spawn([BIN, "serve", "--url", a.url], stderr=log,
                        env=t.env(III_WORKER_NAME="other", III_NAMESPACE="ns", III_SANDBOX_VMM="qemu"))
        def there():
            try:
                return a.engine.call(P + "adapter::info", {}, namespace="ns")
            except iii.CallError:
                return None
        wait_until(there, 60, "the adapter in its own namespace")
        os.kill(p.pid, signal.SIGTERM)
        t.equal(t.finish(p).status, 0, "exit status of serve")


@case()
def without_a_hypervisor_create_says_so(t):
    env = {"III_SANDBOX_VMM": "krun", "III_SANDBOX_LIBKRUN": "/no/such/libkrun.so"}
    with Adapter(t, env=env) as a:
        refused(t, "S300", "III_SANDBOX_VMM", a.call, "create", image="python")
        t.equal(a.call("list"), {"sandboxes": []}, "list")
        t.contains(a.log(), "this host cannot run sandboxes", "log")
    r = t.cli("standalone", "--port", "0", env=t.env(III_SANDBOX_VMM="xen"))
    t.equal(r.status, 2, "exit status for an unknown VMM")
    t.contains(r.err, b"III_SANDBOX_VMM", "stderr")


@case(per_backend=True)
def nothing_secret_in_the_log(t):
    canary = "CANARY" + os.urandom(8).hex()
    with Adapter(t, env={"III_TOKEN": canary + "t"}) as a:
        s = a.create(env={"SECRET": canary + "e"})
        a.sh(s, "true", env={"OTHER": canary + "x"}, stdin="")
        a.call("fs::write", sandbox_id=s, path="/tmp/f", content=canary + "c")
        a.call("fs::read", sandbox_id=s, path="/tmp/f")
        refused(t, "S200", "500", a.sh, s, f"echo {canary}o; sleep 9", timeout_ms=500)
        a.call("run", image="python", lang="shell", code=f"echo {canary}r", env=[f"Z={canary}z"])
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        a.engine.call(P + "list", {}, traceparent=trace)
        a.call("stop", sandbox_id=s, wait=True)
        log = a.log()
        t.check(canary not in log, "a secret is in the log")
        for part in (s, "tier=", trace):
            t.contains(log, part, "log")
        for pid in [a.p.pid, *a.vmms()]:
            t.check(canary not in harness.command_line(pid), "a secret is on a command line")


@case()
def traces_of_create_stop_and_run(t):
    def trace(n):
        return f"00-4bf92f3577b34da6a3ce929d0e0e473{n}-00f067aa0ba902b7-01"

    def lines(message):
        return re.findall(rf'msg="{message}".* traceparent="([^"]*)"', a.log())
    t.backend = harness.BACKENDS[0]
    with Adapter(t) as a:
        s = a.engine.call(P + "create", {"image": "python"}, traceparent=trace(1))["sandbox_id"]
        a.engine.call(P + "stop", {"sandbox_id": s, "wait": True}, traceparent=trace(2))
        a.engine.call(P + "run", {"image": "python", "lang": "shell", "code": "true"},
                      traceparent=trace(3))
        wait_until(lambda: len(lines("sandbox is stopped")) == 2, 60, "the end of run's sandbox")
        a.call("stop", sandbox_id=a.create(), wait=True)
        t.equal(lines("sandbox is booting"), [trace(1), trace(3), ""], "create and run")
        t.equal(lines("sandbox is ready"), [trace(1), trace(3), ""], "create and run")
        t.equal(lines("sandbox is stopped"), [trace(2), trace(3), ""], "stop and run")


@case()
def payloads_that_are_no_requests(t):
    with Adapter(t, env={"III_SANDBOX_VMM": "qemu"}) as a:
        def raw(text):
            return refused(t, "S001", "", a.engine.call, P + "list", None, raw=text)
        t.contains(raw("[]")["message"], "object", "message")
        raw('"text"')
        t.equal(a.engine.call(P + "list", None), {"sandboxes": []}, "null")
        t.equal(a.call("list", show_all=True), {"sandboxes": []}, "unknown members")


main()
