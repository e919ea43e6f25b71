#!/usr/bin/env python3
"""Worker VMs from outside, as Compose sees them: who may do what (W01-W17 of the worker VM
specification's cases), the life of a VM (W40-W62), and what a restart of the adapter leaves
(W70-W76)."""
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import harness
from harness import case, main, wait_until
from compose import TOKEN_ENV, Compose, iii, put, refused, vm_id

QEMU = {"III_SANDBOX_VMM": "qemu"}
FOREVER = "exec sleep 600"
FUNCTIONS = {
    "prepare": {"source": {"kind": "local", "host_path": "/etc"}},
    "start": {"source": {"kind": "local", "host_path": "/etc"}, "state_key": "k", "env": {},
              "worker_name": "w", "engine_url": "ws://127.0.0.1:1"},
    "status": {"vm_id": "wvm-1", "instance": 1},
    "logs": {"vm_id": "wvm-1", "follow": False,
             "channel": {"channel_id": "c", "access_key": "k", "direction": "write"}},
    "stop": {"vm_id": "wvm-1", "instance": 1, "grace_ms": 0},
    "destroy": {"state_key": "k"},
}


# --- guards ------------------------------------------------------------------------------------

@case()
def without_the_token_nothing_happens(t):
    """W01, W04"""
    with Compose(t, QEMU) as c:
        for function, members in FUNCTIONS.items():
            for auth in ("wrong", "", c.token + "x", c.token[:-1], None, 5, [c.token]):
                e = refused(t, "S505", "auth", c.call, function, **{**members, "auth": auth})
                t.check(c.token not in str(e), "the token is in an error")
            absent = {k: v for k, v in members.items() if k != "auth"}
            refused(t, "S505", "auth", c.engine.call, f"sandbox-libkrun::worker::{function}", absent)
            refused(t, "S505", "auth", c.call, function, auth="x", source=5, vm_id=[], state_key={})
        t.equal(harness.files_below(t.state), set(), "files in the state folder")


@case()
def without_a_configured_token_nobody_gets_in(t):
    """W03"""
    for value in (None, ""):
        with Compose(t, {**QEMU, TOKEN_ENV: value}) as c:
            for auth in ("", "x", c.token):
                refused(t, "S505", TOKEN_ENV, c.call, "status", auth=auth, **FUNCTIONS["status"])
            t.equal(c.engine.call("sandbox-libkrun::list", {}), {"sandboxes": []}, "list")


@case()
def malformed_requests(t):
    with Compose(t, QEMU) as c:
        c.local("w", start=FOREVER)
        def no(part, function, /, **members):
            base = {**FUNCTIONS[function], **({"source": c.source("w")} if "source" in FUNCTIONS[function] else {})}
            merged = {k: v for k, v in {**base, **members}.items() if v is not ...}
            return refused(t, "S001", part, c.call, function, **merged)
        for function in ("prepare", "start"):
            no("source", function, source=...)
            no("source", function, source="P/w")
            no("kind", function, source={"kind": "git", "host_path": "/x"})
            no("kind", function, source={"host_path": "/x"})
            no("host_path", function, source={"kind": "local"})
            no("package", function, source={"kind": "bundle", "host_path": "/x"})
            no("run_override", function, source={**c.source("w"), "run_override": 5})
        no("state_key", "start", state_key="")
        no("state_key", "start", state_key="k" * 257)
        no("state_key", "start", state_key="a\nb")
        no("state_key", "start", state_key="a\0b")
        no("worker_name", "start", worker_name="")
        no("worker_name", "start", worker_name="a\nb")
        no("engine_url", "start", engine_url=...)
        no("env", "start", env=...)
        no("env", "start", env=["A=b"])
        no("env", "start", env={"A": 5})
        # W85
        no("LARGE", "start", env={"LARGE": "x" * 200_000})
        no("env", "start", env={f"N{i}": "x" * 100_000 for i in range(21)})
        no("A=B", "start", env={"A=B": "x"})
        e = no("SECRET", "start", env={"SECRET": "canary\0x"})
        t.check("canary" not in str(e), "a value of the environment is in an error")
        for function in ("status", "stop"):
            for instance in (-1, 1.5, "1", None, ...):
                no("instance", function, instance=instance)
            no("vm_id", function, vm_id=5)
        no("grace_ms", "stop", grace_ms=-1)
        no("state_key", "destroy", state_key=5)
        no("direction", "logs", channel={"channel_id": "c", "access_key": "k", "direction": "read"})
        no("channel", "logs", channel="c")
        no("follow", "logs", follow=...)
        no("cursor", "logs", cursor=-1)
        t.equal(harness.files_below(t.state), set(), "files in the state folder")


@case()
def only_below_the_host_roots(t):
    """W07-W13, W16, W17"""
    with Compose(t, QEMU) as c:
        w = c.local("w", start=FOREVER)
        outside = c.write(os.path.join(t.scratch, "outside"), "outside", FOREVER, None, {})
        c.write(c.project + "-evil/w", "evil", FOREVER, None, {})
        def no(path, code="S501"):
            for function, members in (("prepare", {}), ("start", c.request("/x"))):
                e = refused(t, code, "", c.call, function, **{**members, "source": {
                    "kind": "local", "host_path": path}})
                if code == "S501":
                    t.contains(e["message"], c.project, "message")
                    t.contains(e["message"], c.cache, "message")
            return e
        no("/etc")
        no("/")
        no("w")
        no("")
        no(f"{c.project}/../outside")
        no(f"{c.project}/w/../../outside")
        no(f"{c.project}-evil/w")
        no("/no/such/place")
        no(f"{c.project}/nothing", "S500")
        no(f"{w}/iii.worker.yaml", "S500")
        e = no("/a\nb\x1b[31m")
        t.check("\n" not in e["message"] and "\x1b" not in e["message"], "control characters")
        c.prepare(f"{c.project}/./w/../w")
        os.symlink("w", f"{c.project}/inside")
        c.prepare("inside")
        os.symlink(outside, f"{c.project}/escape")
        no(f"{c.project}/escape")
        c.prepare(c.local("mein wörker:1", start=FOREVER))
        # between prepare and start
        c.local("swapped", start=FOREVER)
        c.prepare("swapped")
        shutil.rmtree(f"{c.project}/swapped")
        os.symlink(outside, f"{c.project}/swapped")
        no(f"{c.project}/swapped")
        t.equal(harness.files_below(t.state), set(), "files in the state folder")
    # a root that is a symlink
    alias = os.path.join(t.scratch, "alias")
    os.symlink(c.project, alias)
    with Compose(t, {**QEMU, "III_SANDBOX_PROJECT_DIR": alias}) as c:
        c.prepare(f"{alias}/w")
        c.prepare(f"{c.project}/w")
    with Compose(t, {**QEMU, "III_SANDBOX_PROJECT_DIR": "/no/such/folder"}) as c:
        refused(t, "S501", "/no/such/folder", c.prepare, f"{c.project}/w")


@case()
def a_source_that_is_swapped_all_the_time(t):
    """W15"""
    with Compose(t, QEMU) as c:
        c.local("w-real", start=FOREVER)
        outside = c.write(os.path.join(t.scratch, "outside"), "outside", FOREVER, None,
                          {"env": {"OUTSIDE": 1}})  # an error that would name what it read
        path, stop = f"{c.project}/w", threading.Event()

        def flip():
            while not stop.is_set():
                os.symlink(outside, path)
                time.sleep(0.0005)
                os.unlink(path)
                os.rename(f"{c.project}/w-real", path)
                time.sleep(0.0005)
                os.rename(path, f"{c.project}/w-real")
        flipper = threading.Thread(target=flip)
        flipper.start()
        outcomes = {}
        try:
            for _ in range(500):
                try:
                    c.prepare("w")
                    outcome = "ok"
                except iii.CallError as e:
                    t.check("OUTSIDE" not in e.message, f"read outside: {e.message}")
                    outcome = e.message[:60]
                    t.check('"S500"' in outcome or '"S501"' in outcome, e.message)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
        finally:
            stop.set()
            flipper.join()
        print(f"# {outcomes}")
        t.check(len(outcomes) > 1, f"the race was never lost or won: {outcomes}")


# --- a life ------------------------------------------------------------------------------------

@case(per_backend=True, smoke=True)
def a_life(t):
    """W40, W41, W48, W52, W54, W56, W57"""
    with Compose(t) as c:
        c.local("w", start="trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done",
                scripts={"setup": "echo setting up; sleep 2", "install": "echo installing"})
        c.prepare("w")
        vm = c.start("w")
        t.equal(vm.instance, 1, "first instance")
        t.equal(len(vm.vm_id), 36, "length of a vm_id")
        s = c.status(vm)
        t.equal((s["state"], s["ended_at_ms"], s["exit_code"], s["signal"]),
                ("preparing", None, None, None), "status while setting up")
        e = refused(t, "S502", vm.vm_id, c.start, "w")
        t.equal(e["fix"], {"instance": 1, "vm_id": vm.vm_id}, "fix of S502")
        refused(t, "S502", vm.vm_id, c.destroy)
        s = c.wait(vm, "running")
        t.equal((s["ended_at_ms"], s["exit_code"], s["signal"]), (None, None, None), "running")
        c.wait_for_line(vm, "ready")
        t.check(abs(s["started_at_ms"] / 1000 - time.time()) < 3600, f"started_at_ms of {s}")
        refused(t, "S502", vm.vm_id, c.start, "w")
        for other in ((vm.vm_id, 0), (vm.vm_id, 2), ("wvm-" + "0" * 32, 1), ("../x", 1), ("", 1)):
            for ask in (c.status, c.stop):
                s = ask(other)
                t.equal((s["state"], s["started_at_ms"]), ("unknown", 0), f"status of {other}")
        s = c.stop(vm)
        t.equal((s["state"], s["exit_code"], s["signal"]), ("stopped", 0, None), "orderly stop")
        t.equal(c.stop(vm, 0), s, "a second stop")
        t.equal(c.status(vm), s, "status afterwards")
        second = c.run("w")
        t.equal(second, (vm.vm_id, 2), "second boot")
        t.equal(c.stop(vm), s, "a stale stop")
        t.equal(c.status(second)["state"], "running", "the newer boot")
        c.stop(second, 0)
        t.equal(c.status(vm), s, "a boot of the past")
        before = tree_of(c.project)
        t.equal(c.destroy(), True, "destroy")
        t.equal([n for n in os.listdir(os.path.join(t.state, "workers")) if not n.endswith(".seq")],
                [], "what destroy leaves")
        t.equal(c.destroy(), False, "a second destroy")
        t.equal(c.status(vm)["state"], "unknown", "status after destroy")
        refused(t, "S503", vm.vm_id, c.open_log, vm)
        t.equal(tree_of(c.project), before, "the project")
        third = c.run("w")
        t.equal(third, (vm.vm_id, 3), "first boot of a new life")
        t.contains(c.lines(third), "setting up", "log of a fresh disk")
        c.stop(third, 0)


def tree_of(folder):
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            st = os.lstat(path)
            found[path] = (st.st_size, st.st_mtime_ns, st.st_mode)
    return found


@case(per_backend=True)
def starts_at_once(t):
    """W42"""
    with Compose(t) as c:
        c.local("w", start=FOREVER)
        calls = [c.send("start", c.request("w")) for _ in range(5)]
        won, lost = [], []
        for p in calls:
            try:
                won.append(c.started(p.result()))
            except iii.CallError as e:
                lost.append(e.message)
        t.equal((len(won), len(lost)), (1, 4), "won and lost")
        for message in lost:
            t.contains(message, '"S502"', "the others")
            t.contains(message, '"instance":1', "fix of the others")
        t.equal(won[0].instance, 1, "instance")
        # while one is being destroyed, and of another key
        c.stop(won[0], 0)
        first, second = c.send("destroy", {"state_key": "k1"}), c.send("start", c.request("w", key="k2"))
        t.equal(first.result(), {"destroyed": True}, "destroy")
        other = c.started(second.result())
        t.check(other.vm_id != won[0].vm_id, "two keys have two VMs")
        c.stop(other, 0)


@case(per_backend=True)
def how_it_ends(t):
    """W44, W45, W46, W96, and ends that nobody asked for"""
    with Compose(t) as c:
        c.local("w", start="sh ./end.sh", files={"end.sh": "exit 7"})

        def ended(script, how=None, **scripts):
            put(os.path.join(c.project, "w/end.sh"), script)
            if scripts:
                c.local("w", start="sh ./end.sh", scripts=scripts)
            vm = c.start("w")
            if how:
                c.wait(vm, "running")
                how()
            s = c.wait(vm, "exited")
            t.equal(c.stop(vm), s, "a stop afterwards")
            return s["exit_code"], s["signal"]

        t.equal(ended("exit 7"), (7, None), "an exit code")
        t.equal(ended("exit 0"), (0, None), "exit 0")
        t.equal(ended("kill -SEGV $PPID; sleep 9"), (139, None), "a signal in the guest")
        t.equal(ended(FOREVER, lambda: os.kill(c.boots()[0], signal.SIGKILL)), (None, 9),
                "its supervisor killed")
        def kill_vmm():
            boot = c.boots()[0]
            for pid in harness.descendants(boot)[::-1]:
                os.kill(pid, signal.SIGKILL)
        code, sig = ended(FOREVER, kill_vmm)
        t.equal((code, sig), (None, 9), "its VMM killed")
        restart = "import ctypes; ctypes.CDLL(None).reboot(0x1234567)"
        t.equal(ended(f"python3 -c '{restart}'; sleep 600"), (None, None), "a reset of the guest")
        t.equal(ended("exit 0", install="false\necho went on"), (1, None), "a failing install")
        t.equal(ended("exit 0", setup="exit 44"), (44, None), "a failing setup")
        vm = c.start("w")
        c.wait(vm, "exited")
        t.check("went on" not in c.lines(vm), "the script went on")


@case(per_backend=True)
def how_it_is_stopped(t):
    """W49, W50, W53, and stops before it runs"""
    with Compose(t) as c:
        c.local("stubborn", start="trap '' TERM; echo up; while :; do sleep 0.1; done")
        c.local("slow", start=FOREVER, scripts={"setup": "echo setup; exec sleep 600"})
        vm = c.run("stubborn")
        c.wait_for_line(vm, "up")
        s = c.stop(vm, 1000)
        t.equal(s["state"], "stopped", "state")
        t.check((s["exit_code"], s["signal"]) in ((137, None), (None, 9)), f"end of {s}")
        vm = c.run("stubborn")
        s = c.stop(vm, 0)
        t.equal((s["state"], s["exit_code"], s["signal"]), ("stopped", None, 9), "grace 0")
        # a later stop that has less patience
        vm = c.run("stubborn")
        long = c.send("stop", {"vm_id": vm[0], "instance": vm[1], "grace_ms": 2**64 - 1})
        t.equal(c.status(vm)["state"], "running", "while it is being stopped")
        refused(t, "S502", vm.vm_id, c.start, "stubborn")
        s = c.stop(vm, 0)
        t.equal(long.result(), s, "what the first stop says")
        # in a script before its command
        vm = c.start("slow", key="k2")
        c.wait_for_line(vm, "setup")
        s = c.stop(vm)
        t.equal(s["state"], "stopped", "stopped in setup")
        t.equal(s["signal"], None, "the guest ended by itself")
        # while it boots
        pending = c.send("start", c.request("slow", key="k3"))
        def instance_known():
            try:
                c.start("slow", key="k3")
            except iii.CallError as e:
                return iii_fix(e)
        fix = wait_until(instance_known, 60, "S502 with an instance")
        s = c.stop((fix["vm_id"], fix["instance"]))
        t.equal(s["state"], "stopped", "stopped while booting")
        try:
            pending.result()
        except iii.CallError as e:
            t.contains(e.message, "stopped while preparing", "what start says")
        t.equal(c.destroy("k3"), True, "destroy")


def iii_fix(e):
    return json.loads(e.message.removeprefix("handler error: "))["fix"]


@case(per_backend=True)
def what_stays(t):
    """W58: the disk of a state_key; nothing of the sync that the worker wrote is lost either."""
    with Compose(t) as c:
        c.local("w", start="ls /root /tmp; cat /root/state; echo $$ >/tmp/gone; "
                           "date >>/root/state; echo wrote; exec sleep 600")
        vm = c.run("w")
        c.wait_for_line(vm, "wrote")
        c.stop(vm)
        vm = c.run("w")
        c.wait_for_line(vm, "wrote")
        lines = c.lines(vm)
        t.contains(lines, "state", "files of the second boot")
        t.check("gone" not in lines, "a file in /tmp stayed")
        # 100 files, written and synced in the guest right before an orderly stop
        c.stop(vm)
        c.local("w", start="exec python3 w.py", files={"w.py": """
import os, signal, sys, time
def end(*_):
    data = b"x" * 1_000_000
    for i in range(20):
        open(f"/root/late-{i}", "wb").write(data)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
have = [n for n in os.listdir("/root") if n.startswith("late-")]
print("have", len(have), sum(os.path.getsize("/root/" + n) for n in have), flush=True)
time.sleep(600)
"""})
        vm = c.run("w")
        c.wait_for_line(vm, "have 0 0")
        t.equal(c.stop(vm, 20000)["exit_code"], 3, "exit code")
        vm = c.run("w")
        c.wait_for_line(vm, "have 20 20000000")
        c.stop(vm, 0)


@case()
def a_host_that_cannot(t):
    """W60"""
    with Compose(t, {"III_SANDBOX_VMM": "krun", "III_SANDBOX_LIBKRUN": "/no/such/libkrun.so"}) as c:
        c.local("w", start=FOREVER)
        c.prepare("w")
        refused(t, "S300", "III_SANDBOX_VMM", c.start, "w")
        s = c.status(vm := (vm_id("k1"), 1))
        t.equal((s["state"], s["exit_code"], s["signal"]), ("exited", None, None), "its status")
        t.contains("\n".join(c.lines(vm)), "could not be started", "log")
        refused(t, "S300", "", c.start, "w")
        t.equal(c.status((vm[0], 2))["state"], "exited", "the next one")
        t.equal(c.destroy(), True, "destroy")


# A daemon in a mount namespace of its own, where the node cannot be opened, by root neither; where
# it is something else; and where it is not at all.
UNREADABLE = "mount --bind /dev/kvm /dev/kvm && mount -o remount,bind,nodev /dev/kvm"
NOT_KVM = "mount --bind /dev/null /dev/kvm"
ABSENT = """d=$0; mount -t tmpfs none $d && for n in null zero full random urandom tty; do
  : >$d/$n && mount --bind /dev/$n $d/$n || exit 1; done; mkdir $d/shm && mount --rbind $d /dev"""


@case()
def a_host_without_a_kvm_to_use(t):
    """W60"""
    if not os.path.exists("/dev/kvm"):
        t.skip("/dev/kvm is absent")
    new = os.path.join(t.scratch, "dev")
    os.mkdir(new)
    inside = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if subprocess.run([*inside, ABSENT, new], check=False).returncode:
        t.skip("no tmpfs can be mounted here")
    texts = set()
    for key, change, part in (("k1", UNREADABLE, "ermission"), ("k2", NOT_KVM, ""), ("k3", ABSENT, "")):
        c = Compose(t, {"III_SANDBOX_VMM": "krun"}, name=key)
        c.argv = [*inside, change + ' && exec "$@"', new, *c.argv]
        with c:
            c.local("w", start=FOREVER)
            c.prepare("w")
            for instance in (1, 2):
                e = refused(t, "S300", "/dev/kvm", c.start, "w", key=key)
                t.contains(e["message"], part, "message")
                s = c.status((vm_id(key), instance))
                t.equal((s["state"], s["exit_code"], s["signal"]), ("exited", None, None), "status")
            texts.add(e["message"])
            t.check(any("/dev/kvm" in x for x in c.lines((vm_id(key), 2))), "nothing in the log")
            t.equal(c.destroy(key), True, "destroy")
    t.equal(len(texts), 3, f"different texts: {texts}")
    print(f"# {texts}")
    shutil.rmtree(os.path.join(t.state, "workers"))


@case()
def an_image_that_cannot_be_had(t):
    with Compose(t, QEMU) as c:
        c.local("w", start=FOREVER, runtime={"base_image": "127.0.0.1:1/no/such:1"})
        refused(t, "S102", "127.0.0.1:1/no/such:1", c.prepare, "w")
        refused(t, "S102", "127.0.0.1:1/no/such:1", c.start, "w")
        t.equal(c.status((vm_id("k1"), 1))["state"], "exited", "status")
        for base in ("oci:/etc", "oci-archive:/etc/passwd", "docker-archive:/etc/passwd", "/etc"):
            c.local("w", start=FOREVER, runtime={"base_image": base})
            refused(t, "S500", "base_image", c.prepare, "w")


@case(per_backend=True)
def a_full_disk(t):
    """W61"""
    small = os.path.join(t.scratch, "small")
    os.mkdir(small)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", small]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        t.skip("no tmpfs can be mounted here")
    try:
        with Compose(t, {"III_SANDBOX_STATE_DIR": small, "III_SANDBOX_ALLOW_TMPFS": "1"}) as c:
            c.local("w", start=FOREVER)
            with open(os.path.join(small, "filler"), "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(b"x" * 4096)
                except OSError:
                    f.truncate(os.path.getsize(f.name) - (64 << 10))
            refused(t, "S504", "", c.start, "w")
            s = c.status((vm_id("k1"), 1))
            t.equal((s["state"], s["exit_code"], s["signal"]), ("exited", None, None), "status")
            left = [p for p in harness.files_below(small) if "partial" in p or "upper" in p]
            t.equal(left, [], "half-made files")
            subprocess.run(["mount", "-o", "remount,size=1g", small], check=True)
            vm = c.run("w")
            t.equal(vm.instance, 2, "instance")
            c.stop(vm, 0)
            c.destroy()
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@case(per_backend=True)
def a_disk_that_somebody_else_has(t):
    """W62"""
    with Compose(t) as c:
        c.local("w", start=FOREVER)
        vm = c.run("w")
        c.stop(vm, 0)
        upper = os.path.join(t.state, "workers", vm.vm_id, "upper.ext4")
        holder = t.spawn(["flock", "-x", upper, "sh", "-c", "echo locked; exec sleep 600"])
        t.wait_for_output(holder, b"locked")
        before = os.stat(upper).st_mtime_ns
        refused(t, "S300", "", c.start, "w")
        t.equal(os.stat(upper).st_mtime_ns, before, "time of the disk")
        refused(t, "S502", "", c.destroy)
        t.check(os.path.exists(upper), "the disk is gone")
        harness.kill_tree(holder.pid)
        t.finish(holder)
        vm = c.run("w")
        t.equal(vm.instance, 3, "instance")
        c.stop(vm, 0)


# --- restart of the adapter --------------------------------------------------------------------

@case(per_backend=True)
def a_killed_adapter(t):
    """W70, W71, W72, W75, W112"""
    with Compose(t) as c:
        c.local("w", start="echo run >>/root/runs; sync; echo runs: $(wc -l </root/runs); "
                           "while :; do date; sleep 0.05; done")
        vm = c.run("w")
        c.wait_for_line(vm, "runs: 1")
        t.equal(c.end(signal.SIGKILL), -signal.SIGKILL, "exit status")
        wait_until(lambda: not harness.descendants(os.getpid()), 30, "the end of all processes")
        c.up()
        s = c.status(vm)
        t.equal((s["state"], s["exit_code"], s["signal"]), ("exited", None, None), "status")
        t.check(s["ended_at_ms"] >= s["started_at_ms"], f"times of {s}")
        t.equal(c.stop(vm), s, "a stop")
        t.contains(c.lines(vm), "runs: 1", "log of the boot before")
        vm = c.run("w")
        t.equal(vm.instance, 2, "instance")
        c.wait_for_line(vm, "runs: 2")
        c.stop(vm, 0)
        # a record that is none
        c.end()
        put(os.path.join(t.state, "workers", vm.vm_id, "record.json"), "{\"instance\": [")
        c.up()
        t.equal(c.status(vm)["state"], "unknown", "a boot whose record is lost")
        vm = c.run("w")
        t.equal(vm.instance, 3, "instance")
        c.wait_for_line(vm, "runs: 3")
        c.stop(vm, 0)


@case(per_backend=True)
def an_orderly_end(t):
    """W74"""
    with Compose(t) as c:
        c.local("w", start="trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.1; done")
        c.local("stubborn", start="trap '' TERM; while :; do sleep 0.1; done")
        vms = [c.run("w", key="k1"), c.run("stubborn", key="k2"), c.run("w", key="k3")]
        for vm in (vms[0], vms[2]):
            c.wait_for_line(vm, "up")
        log = c.open_log(vms[0], follow=True)
        t.equal(c.end(signal.SIGTERM), 0, "exit status")
        texts = []
        while True:
            kind, data = log.recv()
            if kind != iii.TEXT:
                break
            texts.append(data.decode())
        log.close(say=False)
        t.check(any('"bye"' in x for x in texts), f"the last words: {texts[-5:]}")
        c.up()
        states = [c.status(vm) for vm in vms]
        t.equal([s["state"] for s in states], ["stopped"] * 3, "states")
        t.equal((states[0]["exit_code"], states[2]["exit_code"]), (5, 5), "exit codes")
        t.contains(c.lines(vms[2]), "bye", "log")


@case(per_backend=True)
def two_projects_share_a_state_folder(t):
    """W76"""
    with Compose(t) as c, Compose(t, name="2") as other:
        c.local("w", start=FOREVER)
        other.local("w", start=FOREVER)
        mine, theirs = c.run("w"), other.run("w", key="k2")
        for how in (signal.SIGTERM, signal.SIGKILL):
            c.end(how)
            c.up()
            t.equal(other.status(theirs)["state"], "running", f"the other's VM after {how.name}")
            t.equal(c.status(theirs)["state"], "unknown", "what is not ours")
            refused(t, "S502", theirs.vm_id, c.start, "w", key="k2")
            refused(t, "S502", theirs.vm_id, c.destroy, "k2")
            mine = c.run("w")
        other.end()
        vm = c.run("w", key="k2")
        t.equal(vm, (theirs.vm_id, theirs.instance + 1), "a VM that another had")
        t.equal(mine.instance, 3, "instance")


main()
