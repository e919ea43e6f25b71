"""What iii Compose does with worker VMs, as far as the adapter can tell: a project folder and a
package cache, a token, and the six functions, on an embedded engine.

    with Compose(t) as c:
        c.local("web", start="python3 -m http.server")
        vm = c.start("web")
        c.wait(vm, "running")
        c.stop(vm)

Whatever a case starts is stopped with the daemon; the state folder is looked through and emptied
at the end.
"""
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time

import harness
from harness import BIN, use_python_image, wait_until

sys.path.insert(0, os.path.join(harness.SOURCE, "tests/conformance"))
import iii  # noqa: E402

P = "sandbox-libkrun::"
IMAGE = "docker.io/iiidev/python:latest"  # what the tests' own image is imported as
TOKEN_ENV = "III_SANDBOX_WORKER_TOKEN"
SMALL = {"cpus": 1, "memory": 512}  # quick to boot where KVM only emulates
READY_S = 60
MEMBERS = ["code", "docs_url", "fix", "fix_note", "message", "retryable", "type"]
STATUS = ["ended_at_ms", "exit_code", "instance", "signal", "started_at_ms", "state", "vm_id"]
RECORD = ["cursor", "ts_ms", "stream", "line", "instance"]

# What may be in the state folder when no VM runs.
KEPT = re.compile(r"workers/wvm-[0-9a-f]{32}(\.seq|/record\.json(\.corrupt-\d+)?|/lock|/upper\.ext4"
                  r"|/log/\d{20}\.jsonl)")


class VM(tuple):
    """(vm_id, instance)"""
    vm_id = property(lambda self: self[0])
    instance = property(lambda self: self[1])


class Compose:
    def __init__(self, t, env=None, token=None, argv=(), name=""):
        """name: of another project that shares the state folder; the first one empties it."""
        use_python_image()
        self.t, self.name = t, name
        self.token = token if token is not None else "T" + os.urandom(12).hex()
        self.project = os.path.join(t.scratch, "project" + name)
        self.cache = os.path.join(t.scratch, "packages" + name)
        for folder in (self.project, self.cache):
            os.makedirs(folder, exist_ok=True)
        self.argv = [BIN, "standalone", "--port", "0", *argv]
        self.env = t.env(**{"SANDBOX_LOG": "debug", "III_SANDBOX_PROJECT_DIR": self.project,
                            "III_SANDBOX_PACKAGE_CACHE": self.cache, TOKEN_ENV: self.token,
                            **(env or {})})
        self.engine = self.p = None
        self.logs_of_daemons = []

    # --- the daemon ---

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, kind, *_):
        if self.p in harness.running:
            status = self.end(signal.SIGTERM)
            if kind is None:
                self.t.equal(status, 0, "exit status of standalone")
        if self.name:
            return
        if kind is None:
            self.check_state()
        shutil.rmtree(os.path.join(self.t.state, "workers"), ignore_errors=True)

    def up(self):
        path = os.path.join(self.t.scratch, f"log-{time.monotonic_ns()}")
        self.logs_of_daemons.append(path)
        with open(path, "wb") as log:
            self.p = self.t.spawn(self.argv, self.env, stderr=log)
        line = self.t.wait_for_output(self.p, b"\n", READY_S).decode()
        self.url = re.fullmatch(r"ready url=(ws://127\.0\.0\.1:\d+)\n", line).group(1)
        self.engine = iii.Engine(self.url)

    def end(self, signo=signal.SIGTERM):
        os.kill(self.p.pid, signo)
        status = self.t.finish(self.p).status
        self.engine.close()
        return status

    def boots(self):
        """Process ids of the supervisors of the VMs."""
        return [pid for pid in harness.descendants(self.p.pid)
                if " __vm-boot " in harness.command_line(pid)
                and harness.processes().get(pid, (0,))[0] == self.p.pid]

    def record(self, vm):
        with open(os.path.join(self.t.state, "workers", vm[0], "record.json"),
                  encoding="utf-8") as f:
            return json.load(f)

    def log(self):
        texts = []
        for path in self.logs_of_daemons:
            with open(path, encoding="utf-8") as f:
                texts.append(f.read())
        return "".join(texts)

    def check_state(self):
        for path in harness.files_below(self.t.state):
            name = os.path.relpath(path, self.t.state)
            if name.startswith("workers/"):
                self.t.check(KEPT.fullmatch(name), f"unexpected file in the state folder: {name}")

    # --- sources ---

    def local(self, name, start=None, files=None, **manifest):
        """A project's folder with a manifest; returns its path. files: {path: text or bytes}"""
        return self.write(os.path.join(self.project, name), name, start, files, manifest)

    def bundle(self, name, start=None, files=None, **manifest):
        return self.write(os.path.join(self.cache, f"{name}-1.0.0-bundle"), name, start, files,
                          manifest)

    def write(self, path, name, start, files, manifest):
        os.makedirs(path, exist_ok=True)
        scripts = dict(manifest.pop("scripts", {}))
        if start is not None:
            scripts["start"] = start
        whole = {"name": re.sub(r"[^A-Za-z0-9._-]", "-", name), "runtime": {"base_image": IMAGE},
                 "resources": SMALL, **({"scripts": scripts} if scripts else {}), **manifest}
        whole = {k: v for k, v in whole.items() if v is not None}
        # JSON is YAML.
        put(os.path.join(path, "iii.worker.yaml"), json.dumps(whole, ensure_ascii=False))
        for file, content in (files or {}).items():
            put(os.path.join(path, file), content)
        return path

    def source(self, what, **members):
        """Of a path, or of the name of a local source."""
        path = what if os.path.isabs(what) else os.path.join(self.project, what)
        if path.startswith(self.cache):
            package = os.path.basename(path).removesuffix("-1.0.0-bundle")
            return {"kind": "bundle", "host_path": path, "package": package, **members}
        return {"kind": "local", "host_path": path, **members}

    # --- the functions ---

    def send(self, function, members):
        """Pending"""
        return self.engine.start(P + "worker::" + function, {"auth": self.token, **members})

    def call(self, function, /, **members):
        return self.send(function, members).result()

    def prepare(self, what, **members):
        return self.call("prepare", source=self.source(what, **members))

    def request(self, what, key="k1", name=None, env=None, url=None, **members):
        return {"source": self.source(what, **members), "state_key": key,
                "worker_name": name or "worker", "engine_url": url or self.url, "env": env or {}}

    def start(self, what, **more):
        return self.started(self.call("start", **self.request(what, **more)))

    def started(self, reply):
        self.t.equal(sorted(reply), ["instance", "vm_id"], "members of start's reply")
        return VM((reply["vm_id"], reply["instance"]))

    def status(self, vm):
        return self.checked(self.call("status", vm_id=vm[0], instance=vm[1]), vm)

    def stop(self, vm, grace_ms=5000):
        return self.checked(self.call("stop", vm_id=vm[0], instance=vm[1], grace_ms=grace_ms), vm)

    def checked(self, s, vm):
        self.t.equal(sorted(s), STATUS, "members of a status")
        self.t.equal((s["vm_id"], s["instance"]), tuple(vm), "whose status it is")
        if s["ended_at_ms"] is not None:
            self.t.check(s["ended_at_ms"] >= s["started_at_ms"] > 0, f"times of {s}")
        return s

    def destroy(self, key="k1"):
        return self.call("destroy", state_key=key)["destroyed"]

    def wait(self, vm, *states, seconds=harness.COMMAND_GUARD_S):
        """The status, once its state is one of these."""
        def there():
            s = self.status(vm)
            if s["state"] in states:
                return s
            if s["state"] in ("exited", "stopped"):
                lines = self.lines(vm)
                raise AssertionError(f"wanted {states}, it is {s}; its log ends with:\n"
                                     + "\n".join(lines[-40:]))
            return None
        return wait_until(there, seconds, f"state {states}")

    def run(self, what, **more):
        """Starts, and waits until the worker's command runs or ran."""
        vm = self.start(what, **more)
        self.wait(vm, "running", "exited")
        return vm

    # --- logs ---

    def open_log(self, vm, follow=False, cursor=None):
        """The open socket of a log's channel."""
        reader, writer = self.engine.channel()
        members = {"vm_id": vm[0], "channel": writer, "follow": follow}
        if cursor is not None:
            members["cursor"] = cursor
        self.t.equal(self.call("logs", **members), {}, "reply of logs")
        return self.engine.open(reader, "read")

    def read_log(self, vm, follow=False, cursor=None):
        """All records up to the Close frame, checked."""
        return self.read_records(self.open_log(vm, follow, cursor))

    def read_records(self, ws):
        records = []
        try:
            while True:
                kind, data = ws.recv()
                if kind == iii.CLOSE:
                    return records
                self.t.equal(kind, iii.TEXT, "kind of a frame of a log")
                r = json.loads(data)
                names = [n for n in r if n != "partial"]
                self.t.equal(names, RECORD, "members of a record")
                self.t.check(not records or r["cursor"] > records[-1]["cursor"], "order of cursors")
                records.append(r)
        finally:
            ws.close(say=False)

    def lines(self, vm, **more):
        return [r["line"] for r in self.read_log(vm, **more)]

    def wait_for_line(self, vm, part, seconds=harness.COMMAND_GUARD_S):
        """The first line of the worker that has this in it."""
        def there():
            return next((x for x in self.lines(vm) if part in x), None)
        return wait_until(there, seconds, f"the line {part!r}")


def vm_id(key):
    digest = hashlib.sha256(b"sandbox-libkrun/worker-vm/v1\0" + key.encode()).hexdigest()
    return "wvm-" + digest[:32]


def put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content.encode() if isinstance(content, str) else content)


def refused(t, code, part, attempt, /, *args, **members):
    """The call fails with this error, which is returned."""
    try:
        reply = attempt(*args, **members)
        if isinstance(reply, iii.Pending):
            reply = reply.result()
    except iii.CallError as e:
        t.equal(e.code, "invocation_failed", "code on the wire")
        t.check(e.message.startswith("handler error: {"), f"prefix of {e.message!r}")
        error = json.loads(e.message[len("handler error: "):])
        t.equal(list(error), MEMBERS, "members of the error")
        t.equal(error["code"], code, f"code of {error['message']!r}")
        t.contains(error["message"], part, "message")
        t.check(error["docs_url"].endswith("#" + code), "docs_url")
        return error
    raise AssertionError(f"no error but {harness.brief(reply)}")
