#!/usr/bin/env python3
"""A worker VM does its work by itself: source, setup, install, run, and an orderly end."""
import hashlib
import json
import os
import random
import re
import select
import shutil
import subprocess
import time

from harness import BUILD, GUEST_ENV, busybox, case, image_of, main, shell_image
import oci

EVENT_GUARD_S = 150  # a VM that says nothing for so long hangs


# --- images ------------------------------------------------------------------------------------

def tiny():
    return shell_image("tiny")


# --- one boot ----------------------------------------------------------------------------------

def digest(*parts):
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def make_source(t, files, name="source"):
    """files: path -> text, None for a folder, ("link", target), or (text, mode, mtime_ns)."""
    root, disk = os.path.join(t.scratch, name), os.path.join(t.scratch, name + ".erofs")
    shutil.rmtree(root, ignore_errors=True)
    os.mkdir(root)
    for path, what in files.items():
        whole = os.path.join(root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        mtime = 1700000000123456789
        if what is None:
            os.makedirs(whole, exist_ok=True)
            continue
        if isinstance(what, tuple) and what[0] == "link":
            os.symlink(what[1], whole)
            continue
        if isinstance(what, tuple):
            what, mode, mtime = what
        else:
            mode = 0o644
        with open(whole, "w", encoding="utf-8") as f:
            f.write(what)
        os.chmod(whole, mode)
        os.utime(whole, ns=(mtime, mtime))
    if os.path.exists(disk):
        os.unlink(disk)
    made = t.command(["mkfs.erofs", "-E", "force-inode-extended", "--all-root", disk, root])
    t.equal(made.status, 0, "exit status of mkfs.erofs")
    return disk


def make_job(run, setup=None, install=None, kind="local", source="", nofile=0, memory=0, name="w"):
    return {"name": name, "kind": kind, "setup": setup, "install": install, "run": run,
            "setup_digest": digest("setup", setup), "install_digest": digest("install", setup, install),
            "source_digest": digest(source) if kind == "bundle" else "",
            "memory_max_bytes": memory, "nofile": nofile}


class Worker:
    """A boot under way. Everything it says is read as it comes."""

    def __init__(self, t, job, source, upper="upper.ext4", image_name=None, options=(), env=()):
        path = os.path.join(t.scratch, "job.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(job, f)
        words = []
        for entry in [*GUEST_ENV, *env]:
            words += ["--env", entry]
        self.t = t
        self.p = t.spawn([os.path.join(BUILD, "tests/e2e/worker_client"), "--image",
                          image_name or tiny(), "--upper", os.path.join(t.scratch, upper), "--source",
                          source, "--job", path, "--vmm", t.backend, *words, *options],
                         stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.phases, self.console, self.host, self.exit = [], "", "", None
        self.pending = b""

    def step(self):
        """Takes in the next piece; False at the end."""
        if not select.select([self.p.stdout], [], [], EVENT_GUARD_S)[0]:
            raise AssertionError(f"nothing is heard of the VM; so far:\n{self.console}")
        data = os.read(self.p.stdout.fileno(), 65536)
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            self.take(line)
        return bool(data)

    def take(self, line):
        try:
            event = json.loads(line)
        except ValueError:
            self.host += line.decode("utf-8", "replace") + "\n"
            return
        if event["event"] == "phase":
            self.phases.append(event["phase"])
        elif event["event"] == "log" and event["stream"] == "console":
            self.console += event["text"].replace("\r", "")
        elif event["event"] == "log":
            self.host += event["text"]
        elif event["event"] == "exit":
            self.exit = event

    def until(self, seen, what):
        while not seen():
            if not self.step():
                raise AssertionError(f"the VM ended before {what}; console:\n{self.console}\n{self.host}")
        return self

    def until_text(self, text):
        return self.until(lambda: text in self.console, repr(text))

    def send(self, **command):
        self.p.stdin.write(json.dumps(command).encode() + b"\n")
        self.p.stdin.flush()

    def end(self, guest_status=None, phases=None):
        """Waits for the end. guest_status: the VM left in order, with this status of its worker."""
        while self.step():
            pass
        self.p.stdin.close()
        self.p.stdin = None
        self.t.finish(self.p)
        about = f"console:\n{self.console}\n{self.host}"
        if not self.exit:
            raise AssertionError(f"no exit event; {about}")
        if guest_status is not None:
            self.t.equal((self.exit["end"], self.exit["guest_status"]), ("clean", guest_status),
                         f"how it ended ({about})")
        if phases is not None:
            self.t.equal(self.phases, phases.split(), f"phases ({about})")
        return self


def boot(t, job, source, guest_status=0, phases=None, **options):
    """A boot that ends by itself; what the scripts printed, without the lines of kernel and agent."""
    w = Worker(t, job, source, **options).end(guest_status, phases)
    lines = [line for line in w.console.split("\n")
             if not line.startswith("agent: ") and not re.match(r"\[ *\d+\.\d+\]", line)]
    w.out = "\n".join(lines)
    return w


# --- the order of things -----------------------------------------------------------------------

@case(per_backend=True, smoke=True)
def all_phases_once_then_only_run(t):
    source = make_source(t, {"hello": "from the host\n", "bin/start": ("exit 7\n", 0o755, 5)})
    scripts = {"setup": "echo SETUP; mkdir -p /root; echo kept >/root/state; echo gone >/tmp/x",
               "install": "echo INSTALL; cat hello; mkdir node_modules",
               "run": "echo RUN; cat /root/state; ls /tmp; . ./bin/start"}
    w = boot(t, make_job(**scripts), source, 7, "sync setup install run")
    for line in ("SETUP", "INSTALL", "from the host", "RUN", "agent: worker w: setup"):
        t.contains(w.console, line + "\n", "console")
    # State on the upper disk is there again, /tmp is not, and nothing is done twice.
    w = boot(t, make_job(**scripts), source, 7, "sync run")
    t.equal(w.out.strip(), "RUN\nkept", "output of the second boot")
    # A new lock file: install only. Another setup: both.
    scripts["install"] = "ls node_modules && echo INSTALL again"
    boot(t, make_job(**scripts), source, 7, "sync install run")
    scripts["setup"] = "echo SETUP again"
    boot(t, make_job(**scripts), source, 7, "sync setup install run")
    boot(t, make_job(**scripts), source, 7, "sync run")


@case(per_backend=True)
def scripts_that_fail_end_the_vm_and_run_again(t):
    source = make_source(t, {"f": "x"})
    install = "echo one\nfalse\necho two"
    w = boot(t, make_job("echo RUN", install=install), source, 1, "sync install")
    t.contains(w.out, "one", "output")
    t.check("two" not in w.out, "a script went on after a failing line")
    boot(t, make_job("echo RUN", install="exit 42"), source, 42, "sync install")
    # The same job again: it was never done.
    boot(t, make_job("echo RUN", install="exit 42"), source, 42, "sync install")
    w = boot(t, make_job("false\necho RUN", install="true"), source, 0, "sync install run")
    t.contains(w.out, "RUN", "output: the worker's own command goes on")


@case(per_backend=True)
def a_worker_ended_by_a_signal(t):
    source = make_source(t, {"f": "x"})
    w = boot(t, make_job("kill -SEGV $$"), source, 139, "sync run")
    t.contains(w.console, "signal 11", "console")


@case(per_backend=True)
def images_without_a_shell(t):
    source = make_source(t, {"f": "x"})
    w = boot(t, make_job("true"), source, 127, "sync run",
             image_name=image_of("bare", [oci.entry("data", b"x")]))
    t.contains(w.console, "/bin/sh", "console")


@case(per_backend=True)
def the_surroundings_of_a_script(t):
    source = make_source(t, {"f": "x"})
    look = ("pwd; echo $HOME:$TMPDIR:$SHELL:$LANG:$MINE; ulimit -n; cat /proc/self/cgroup;"
            "cat /sys/fs/cgroup/worker/memory.max; readlink /proc/self/fd/0; cat /etc/hosts;"
            "grep -c erofs /proc/mounts; ls /mnt; grep VmRSS /proc/1/status")
    w = boot(t, make_job(look, nofile=65536, memory=200 << 20), source, 0,
             env=["HOME=/home/me", "TMPDIR=/var/folders/x", "SHELL=/bin/zsh", "MINE=a b"],
             image_name=image_of("with-etc", [
                 oci.entry("bin/"), oci.entry("bin/busybox", busybox(), mode=0o755),
                 oci.entry("bin/sh", kind=b"2", link="busybox"), oci.entry("etc/"),
                 oci.entry("mnt/")]))
    lines = w.out.strip().split("\n")
    t.equal(lines[:8], ["/workspace", "/root:::C.UTF-8:a b", "65536", "0::/worker", str(200 << 20),
                        "/dev/null", "127.0.0.1 localhost sandbox", "0"], "output")
    rss = int(lines[-1].split()[1])
    t.check(rss <= 4096, f"the agent takes {rss} KiB of memory")


@case(per_backend=True)
def memory_of_the_worker_is_limited(t):
    source = make_source(t, {"f": "x"})
    eat = "x=x; while :; do x=$x$x; done"
    w = boot(t, make_job(f"sh -c '{eat}'; echo it ended with $?", memory=64 << 20), source, 0)
    t.check(re.search("it ended with (137|1|2)$", w.out, re.M), f"output: {w.out[-300:]}")


@case(per_backend=True)
def no_output_is_lost(t):
    source = make_source(t, {"f": "x"})
    count = 3000
    w = boot(t, make_job(f"i=0; while [ $i -lt {count} ]; do echo line $i of many; i=$((i+1)); done;"
                         "echo -n last without an end"), source, 0)
    got = re.findall(r"line (\d+) of many", w.console)
    t.equal(len(got), count, "lines")
    t.equal(got, [str(i) for i in range(count)], "lines")
    t.contains(w.console, "last without an end", "console")


# --- the source --------------------------------------------------------------------------------

@case(per_backend=True)
def the_source_arrives_as_it_is(t):
    files = {"a/run.sh": ("#!/bin/sh\necho hi\n", 0o755, 1234567890987654321),
             "a/secret": ("s", 0o600, 1111111111000000001), "empty": None,
             "link": ("link", "a/run.sh"), "dangling": ("link", "/no/where"), "big": "x" * 300000}
    source = make_source(t, files)
    w = boot(t, make_job("ls -l --full-time a; busybox sha256sum big; ls -ld empty; readlink link; readlink dangling;"
                         "./link; busybox stat -c '%u:%g %a' a/secret a/run.sh"), source, 0)
    t.contains(w.out, "2009-02-13 23:31:30", "output: time of a/run.sh")
    t.contains(w.out, hashlib.sha256(b"x" * 300000).hexdigest(), "output")
    t.contains(w.out, "a/run.sh\n/no/where\nhi\n0:0 600\n0:0 755", "output")


@case(per_backend=True)
def deletions_arrive_and_artefacts_stay(t):
    files = {"keep": "k", "gone": "g", "a/code": "c", "node_modules/host": "never copied",
             ".git/HEAD": "never copied"}
    source = make_source(t, files)
    w = boot(t, make_job("ls -a; mkdir -p a/node_modules target; echo m >a/node_modules/m; echo x >mine"),
             source, 0)
    t.check("node_modules" not in w.out and ".git" not in w.out, f"artefacts were copied: {w.out}")
    del files["gone"]
    source = make_source(t, files)
    w = boot(t, make_job("ls -1; cat a/node_modules/m; [ -d target ] && echo target stays"), source, 0)
    t.equal(w.out.strip(), "a\nkeep\ntarget\nm\ntarget stays", "output")
    # The whole folder goes, but for the way to what was installed.
    del files["a/code"]
    source = make_source(t, files)
    w = boot(t, make_job("ls -a a; cat a/node_modules/m"), source, 0)
    t.equal(w.out.split(), [".", "..", "node_modules", "m"], "output")


@case(per_backend=True)
def a_new_bundle_empties_the_workspace(t):
    source = make_source(t, {"dist/app": "v1\n"})
    boot(t, make_job("cat dist/app; mkdir .venv", kind="bundle", source="v1"), source, 0)
    w = boot(t, make_job("ls -a", kind="bundle", source="v1"), source, 0)
    t.contains(w.out, ".venv", "output")
    source = make_source(t, {"dist/app": "v2\n"})
    w = boot(t, make_job("ls -a; cat dist/app", kind="bundle", source="v2"), source, 0)
    t.equal(w.out.split(), [".", "..", "dist", "v2"], "output")


@case(per_backend=True)
def disks_that_are_no_source(t):
    for name, content in (("zeros", bytes(1 << 20)), ("noise", os.urandom(1 << 20))):
        path = os.path.join(t.scratch, name)
        with open(path, "wb") as f:
            f.write(content)
        w = Worker(t, make_job("true"), path).end(125, "sync")
        t.contains(w.console, "source disk", "console")


# --- the network -------------------------------------------------------------------------------

@case(per_backend=True)
def the_network_is_there_before_the_worker(t):
    source = make_source(t, {"f": "x"})
    name = image_of("net", [
        oci.entry("bin/"), oci.entry("bin/busybox", busybox(), mode=0o755),
        oci.entry("bin/sh", kind=b"2", link="busybox"), oci.entry("etc/"),
        oci.entry("etc/hosts", b"1.2.3.4 localhost\n"),
        oci.entry("etc/resolv.conf", kind=b"2", link="../run/systemd/resolve/stub-resolv.conf")])
    look = ("cat /etc/hosts /etc/resolv.conf; busybox ip addr show eth0; busybox ip route;"
            "busybox ip -6 route; cat /proc/sys/net/ipv6/conf/eth0/accept_ra")
    w = boot(t, make_job(look), source, 0, image_name=name, options=["--net"])
    t.contains(w.out, "100.96.0.1 localhost\n100.96.0.1 host.iii.internal\n127.0.0.1 sandbox\n"
                      "nameserver 100.96.0.1\noptions edns0\n", "output: /etc")
    for line in ("02:6d:73:00:00:02", "inet 100.96.0.2/30", "mtu 1500", "default via 100.96.0.1"):
        t.contains(w.out, line, "output: IPv4")
    t.check("tentative" not in w.out, f"an address is not usable yet: {w.out}")
    if "inet6" in w.out:  # as the host has it
        for line in ("inet6 fd6d:7300::2/64", "default via fd6d:7300::1"):
            t.contains(w.out, line, "output: IPv6")
        t.equal(w.out.strip().split("\n")[-1], "0", "accept_ra")


# --- the end -----------------------------------------------------------------------------------

@case(per_backend=True, smoke=True)
def stop_lets_the_worker_end_in_order(t):
    source = make_source(t, {"f": "x"})
    w = Worker(t, make_job("trap 'echo written >/state; echo BYE; exit 0' TERM; echo UP;"
                           "while :; do busybox sleep 0.1; done"), source)
    w.until_text("UP").send(cmd="shutdown", grace_ms=60000)
    w.end(0, "sync run")
    t.contains(w.console, "BYE", "console")
    # What it wrote last is on the disk.
    t.contains(boot(t, make_job("cat /state"), source).out, "written", "output of the next boot")


@case(per_backend=True)
def stop_kills_a_worker_that_does_not_listen(t):
    source = make_source(t, {"f": "x"})
    deaf = ("trap '' TERM; busybox setsid sh -c 'trap \"\" TERM; while :; do busybox sleep 1; done' &"
            "echo saved >/state; echo UP; while :; do busybox sleep 0.1; done")
    w = Worker(t, make_job(deaf), source)
    w.until_text("UP").send(cmd="shutdown", grace_ms=3000)
    w.end(137, "sync run")
    t.contains(boot(t, make_job("cat /state"), source).out, "saved", "output of the next boot")


@case(per_backend=True)
def a_second_stop_shortens_the_first(t):
    source = make_source(t, {"f": "x"})
    w = Worker(t, make_job("trap 'echo HEARD' TERM; echo UP; while :; do busybox sleep 0.1; done"), source)
    w.until_text("UP").send(cmd="shutdown", grace_ms=86400000)
    w.until_text("HEARD").send(cmd="shutdown", grace_ms=2000)
    w.end(137, "sync run")
    t.equal(w.console.count("HEARD"), 1, "signals that came")


@case(per_backend=True)
def a_flood_on_the_console_does_not_hold_up_the_end(t):
    source = make_source(t, {"f": "x"})
    w = Worker(t, make_job("echo UP; while :; do echo flood flood flood; done"), source)
    w.until_text("UP").send(cmd="shutdown", grace_ms=60000)
    w.end(143, "sync run")
    t.contains(w.console, "run: ended by signal 15", "console")


@case(per_backend=True)
def stop_while_installing(t):
    source = make_source(t, {"f": "x"})
    job = make_job("echo RUN", install="echo UP; while :; do busybox sleep 0.1; done")
    w = Worker(t, job, source)
    w.until_text("UP").send(cmd="shutdown", grace_ms=60000)
    w.end(143, "sync install")
    w = Worker(t, job, source).until_text("UP")
    w.send(cmd="kill")
    w.end(phases="sync install")
    t.equal(w.exit["end"], "stopped", "how it ended")


@case(per_backend=True)
def power_cuts_leave_a_workspace_that_is_made_whole(t):
    """Killed at any moment of syncing and installing: the next boot has every byte of the source."""
    rng = random.Random(5)
    files = {f"d{i % 7}/f{i}": f"first {i}\n" * 50 for i in range(250)}
    for turn in range(4):
        for i in rng.sample(range(250), 100):
            files[f"d{i % 7}/f{i}"] = (f"turn {turn} {i}\n" * 50, 0o644, 1700000000000000000 + turn)
        source = make_source(t, files)
        w = Worker(t, make_job("echo RUN; echo spoiled >d0/f0; while :; do busybox sleep 1; done"), source)
        w.until(lambda: "sync" in w.phases, "sync")
        # Any moment will do: this is no measure.
        time.sleep(rng.random() * (0.4 if t.backend == "krun" else 2))
        w.send(cmd="kill")
        w.end()
    source = make_source(t, files)
    w = boot(t, make_job("busybox cat $(busybox find . -type f | busybox sort) | busybox sha256sum"), source)
    whole = hashlib.sha256()
    for path in sorted(files):
        text = files[path]
        whole.update((text[0] if isinstance(text, tuple) else text).encode())
    t.contains(w.out, whole.hexdigest(), "output: sum of all files")


main()
