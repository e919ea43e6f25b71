#!/usr/bin/env python3
"""What must not be told: canaries are planted in everything that a caller of worker::* may want
kept (W05 of the worker VM specification's cases), and looked for wherever it could come out."""
import json
import os
import re
import signal

import harness
from harness import case, main
from compose import VM, Compose, iii, put, vm_id

# Of the guest: what is no process of the worker's.
GUEST = r"""
import glob
for path in ["/proc/cmdline"] + glob.glob("/proc/1/*"):
    if path.rsplit("/", 1)[1] in ("cmdline", "environ"):
        print("GUEST", path, open(path, "rb").read().hex(), flush=True)
"""


class Canaries:
    """Each place has its own, so that a finding says where it came from."""

    def __init__(self, t):
        self.t, self.base, self.places = t, "CANARY" + os.urandom(6).hex(), []

    def __getitem__(self, place):
        if place not in self.places:
            self.places.append(place)
        return f"{self.base}x{self.places.index(place)}x"

    def known(self, place, text):
        """A secret that is not ours to choose."""
        setattr(self, place, text)
        self.places.append((place, text))

    def found_in(self, data):
        places = [self.places[int(n)] for n in
                  re.findall(self.base.encode() + rb"x(\d+)x", data)]
        places += [p[0] for p in self.places if isinstance(p, tuple) and p[1].encode() in data]
        return sorted(set(map(str, places)))

    def absent(self, data, where, but=()):
        data = data.encode() if isinstance(data, str) else data
        found = [p for p in self.found_in(data) if p not in but]
        self.t.check(not found, f"{where} tells the {', '.join(found)}")

    def absent_in_processes(self, root):
        """Returns the command lines that were looked at."""
        seen = set()
        for pid in [root, *harness.descendants(root)]:
            for name in ("cmdline", "environ"):
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as f:
                        data = f.read()
                except OSError:  # it is gone
                    continue
                self.absent(data, f"{name} of {harness.command_line(pid)}")
                if name == "cmdline":
                    seen.add(data.replace(b"\0", b" ").decode("utf-8", "replace"))
        return seen

    def absent_in_files(self, *folders, printed=()):
        """printed: what the worker printed, so that it has to be in its log."""
        read = {}
        for path in harness.files_below(*folders):
            if path.endswith("upper.ext4"):
                continue  # the guest's own
            with open(path, "rb") as f:
                data = f.read()
            self.absent(data, path, printed if "/log/" in path else ())
            read[path] = data
        return read


def error_of(pending):
    try:
        return f"no error but {pending.result()}"
    except iii.CallError as e:
        return str(e)


def secret_request(c, secrets, what="w", **more):
    """A start that has a canary wherever one fits."""
    port = c.url.rsplit(":", 1)[1]
    url = f"ws://u{secrets['user']}:{secrets['password']}@127.0.0.1:{port}/p?t={secrets['query']}"
    env = {"REQUEST": secrets["env of the request"], "PRINTED": secrets["printed"]}
    return {"env": env, "url": url, "run_override": "echo $PRINTED; exec python3 guest.py; "
            f": {secrets['run_override']}", **more, "what": what}


def scripts(secrets):
    return {"setup": f"echo SETUP; sleep 1; : {secrets['setup']}",
            "install": f"echo INSTALL; sleep 1; : {secrets['install']}"}


@case(per_backend=True)
def a_boot_and_its_end(t):
    secrets = Canaries(t)
    with Compose(t, token=secrets["token"]) as c:
        c.local("w", start=f": {secrets['start']}", scripts=scripts(secrets),
                files={"guest.py": GUEST + "\nprint('told', flush=True)\nimport time\ntime.sleep(600)\n"},
                env={"MANIFEST": secrets["env of the manifest"]})
        c.prepare("w")
        pending = c.send("start", c.request(**secret_request(c, secrets)))
        seen = set()
        while not pending.done.wait(0.02):
            seen |= secrets.absent_in_processes(c.p.pid)
        vm = c.started(pending.result())
        while c.status(vm)["state"] == "preparing":
            seen |= secrets.absent_in_processes(c.p.pid)
        c.wait_for_line(vm, "told")
        seen |= secrets.absent_in_processes(c.p.pid)
        for part in ("standalone", "__vm-boot", "passt"):
            t.check(any(part in x for x in seen), f"{part} is not among the processes: {seen}")

        # the guest, and a log as its reader gets it
        reader, writer = c.engine.channel()
        secrets.known("access_key", writer["access_key"])
        t.equal(c.call("logs", vm_id=vm[0], channel=writer, follow=False), {}, "reply of logs")
        records = c.read_records(c.engine.open(reader, "read"))
        told = {r["line"].split()[1]: bytes.fromhex((r["line"].split() + [""])[2])
                for r in records if r["line"].startswith("GUEST ")}
        t.equal(sorted(told), ["/proc/1/cmdline", "/proc/1/environ", "/proc/cmdline"], "files of the guest")
        t.check(told["/proc/cmdline"], "the guest's command line is empty")
        for path, data in told.items():
            secrets.absent(data, f"the guest's {path}")
        for r in records:
            secrets.absent(json.dumps(r), "a record of the log", ["printed"])
        t.check(any(secrets["printed"] == r["line"] for r in records), "the worker printed nothing")

        # calls that fail, and an end
        busy = error_of(c.send("start", c.request(**secret_request(c, secrets))))
        t.contains(busy, "S502", "error")
        secrets.absent(busy, "an error")
        secrets.absent(json.dumps(c.status(vm)), "a status")
        secrets.absent(json.dumps(c.stop(vm, 0)), "the reply of stop")
        files = secrets.absent_in_files(t.state, t.tmp, printed=["printed"])
        for kind in ("record.json", ".seq", ".jsonl"):
            t.check(any(p.endswith(kind) for p in files), f"no {kind} among {sorted(files)}")
        t.check(any(secrets["printed"].encode() in x for x in files.values()), "the printed canary")
        t.contains(c.log(), vm.vm_id, "log of the adapter")
        secrets.absent(c.log(), "the adapter's log")
        c.destroy()
        secrets.absent_in_files(t.state, t.tmp)
        secrets.absent(c.log(), "the adapter's log")


@case(per_backend=True)
def starts_that_fail(t):
    """S001, S300 with the last words of a VMM, S500, S501, S502, S505, S218"""
    secrets = Canaries(t)
    kernel = os.path.join(t.scratch, "no-kernel")
    put(kernel, harness.busybox())  # a program for this machine, but none that boots
    with Compose(t, {"III_SANDBOX_KERNEL": kernel}, token=secrets["token"]) as c:
        c.local("w", start=f": {secrets['start']}", scripts=scripts(secrets),
                env={"MANIFEST": secrets["env of the manifest"]})

        def no(code, function, /, **members):
            error = error_of(c.send(function, members))
            t.contains(error, code, f"error of {function}")
            secrets.absent(error, f"an error {code}")

        def no_start(code, change=None, **more):
            request = c.request(**secret_request(c, secrets, **more))
            if change:
                change(request)
            no(code, "start", **request)

        def env_of(**env):
            return lambda r: r["env"].update(env)
        # S001: each is about something that is near a secret
        no_start("S001", env_of(BAD=secrets["bad value"] + "\0"))
        no_start("S001", env_of(BAD=secrets["long value"] + "x" * 200_000))
        no_start("S001", env_of(BAD=[secrets["list in the environment"]]))
        no_start("S001", lambda r: r.update(env=[secrets["list as the environment"]]))
        no_start("S001", lambda r: r.update(engine_url=[secrets["url in a list"]]))
        no_start("S001", lambda r: r.update(engine_url=secrets["url with a newline"] + "\n"))
        no_start("S001", lambda r: r.update(engine_url="ws://" + secrets["long url"] * 500))
        no_start("S001", lambda r: r["source"].update(run_override=[secrets["command in a list"]]))
        no_start("S001", lambda r: r["source"].update(run_override=secrets["long command"] * 20_000))
        no("S505", "start", **{**c.request(**secret_request(c, secrets)), "auth": secrets["wrong token"]})
        no("S001", "logs", vm_id="wvm-1", follow=False, channel={
            "channel_id": "c", "access_key": secrets["access_key"], "direction": "read"})
        # S501
        no_start("S501", what="/etc")
        # S500: manifests that are wrong near a secret
        wrong = {"env": {"PORT": [secrets["list in a manifest's environment"]]}}, \
            {"start": None, "scripts": {"start": [secrets["list as a script"]]}}, \
            {"config": 1, "unknown": secrets["unknown key"]}, \
            {"resources": {"cpus": secrets["text as a number"]}}, \
            {"env": {"A": secrets["long env of a manifest"] * 10_000}}
        for i, manifest in enumerate(wrong):
            no_start("S500", what=c.local(f"wrong{i}", **{"start": "x", **manifest}))
        for i, text in enumerate((f"env: {{A: '{secrets['yaml that ends']}", f"a: b\n{secrets['yaml']}\n",
                                  f"a: &x{secrets['anchor']} b\nc: *y{secrets['alias']}\n",
                                  f"env: !t{secrets['tag']} b\n")):
            put(os.path.join(c.project, f"text{i}/iii.worker.yaml"), text)
            no_start("S500", what=f"text{i}")
        t.equal(harness.files_below(t.state), set(), "files in the state folder")

        # S300
        for instance in (1, 2):
            pending = c.send("start", c.request(**secret_request(c, secrets)))
            while not pending.done.wait(0.02):
                secrets.absent_in_processes(c.p.pid)
            error = error_of(pending)
            t.contains(error, "S300", "error")
            if t.backend == "krun":
                t.contains(error, "the last lines of the VM", "error")
            secrets.absent(error, "an error S300")
        vm = VM((vm_id("k1"), instance))
        t.equal(c.status(vm)["state"], "exited", "status of what failed")
        files = secrets.absent_in_files(t.state, t.tmp)
        for kind in ("record.json", ".seq", ".jsonl"):
            t.check(any(p.endswith(kind) for p in files), f"no {kind} among {sorted(files)}")
        for r in c.read_log(vm):
            secrets.absent(json.dumps(r), "a record of the log")
        bogus = {"channel_id": "no-such", "access_key": secrets["access_key"], "direction": "write"}
        no("S218", "logs", vm_id=vm[0], follow=False, channel=bogus)
        t.contains(c.log(), vm[0], "log of the adapter")
        secrets.absent(c.log(), "the adapter's log")


@case(per_backend=True)
def a_vmm_that_dies_while_it_boots(t):
    """The error has the last words of the VM, where there were any; each try is killed later."""
    secrets = Canaries(t)
    with Compose(t, token=secrets["token"]) as c:
        c.local("w", start=f": {secrets['start']}", scripts=scripts(secrets),
                env={"MANIFEST": secrets["env of the manifest"]})
        errors = []
        for instance in range(1, 11):
            pending = c.send("start", c.request(**secret_request(c, secrets)))
            # Later with each try: at some of them the guest has begun to speak.
            after = 0.05 * instance * (1 if t.backend == "krun" else 4)
            pending.done.wait(after)
            for boot in c.boots():
                for pid in harness.descendants(boot)[::-1]:
                    if "passt" not in harness.command_line(pid):
                        kill(pid)
            try:
                vm = c.started(pending.result())
            except iii.CallError as e:
                vm = VM((vm_id("k1"), instance))
                errors.append(str(e))
                t.contains(errors[-1], "S300", "error")
                secrets.absent(errors[-1], "an error S300")
            if c.status(vm)["state"] != "exited":  # the kill came before there was a VMM
                c.stop(vm, 0)
            for r in c.read_log(vm):
                secrets.absent(json.dumps(r), "a record of the log", ["printed"])
            secrets.absent_in_files(t.state, t.tmp, printed=["printed"])
        t.check(errors, "every VM came up")
        print(f"# {len(errors)} failed, {sum('the last lines of the VM' in x for x in errors)} with last words")
        secrets.absent(c.log(), "the adapter's log")


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


main()
