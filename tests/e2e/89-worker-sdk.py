#!/usr/bin/env python3
"""Workers written with the npm iii-sdk, as worker VMs: from a project's folder and as a bundle.

The engine is the one of `standalone`, which the worker reaches through its gateway; the caller is
another client of that engine. A local source comes without node_modules and without folders named
dist (they are never copied), so that the worker brings its packages in one archive, which its
install script unpacks. A bundle brings node_modules.
"""
import os
import shutil
import tarfile

import compose
import harness
import sdks
from compose import Compose, iii, put
from follower import Follower
from harness import GUEST_ENV, SOURCE, case, command_line, main, use_node_image, wait_until

IMAGE = "docker.io/iiidev/node:latest"  # what the image of use_node_image() is imported as
# V8 looks for AVX by itself (harness.NO_AVX tells why it must not).
NODE = "node --no-enable-avx" if GUEST_ENV else "node"
START = f"exec {NODE} main.mjs"
INSTALL = ("mkdir -p node_modules && tar -C node_modules -xf packages.tar\n"
           "echo installed >> /var/lib/installs")
GATEWAY = "100.96.0.1"
UNUSED = (".map", ".d.ts", ".d.mts", ".d.cts", ".md")  # of a package, when it runs


def worker_code():
    with open(os.path.join(SOURCE, "tests/e2e/worker_sdk.mjs"), encoding="utf-8") as f:
        return f.read()


def modules():
    return os.path.join(sdks.node_folder(), "node_modules")


def local(c, name):
    path = c.local(name, start=START, files={"main.mjs": worker_code()},
                   runtime={"base_image": IMAGE}, scripts={"install": INSTALL})
    with tarfile.open(os.path.join(path, "packages.tar"), "w") as tar:
        tar.add(modules(), "", filter=lambda m: None if m.name.endswith(UNUSED) else m)
    # None of this may get into the VM.
    put(os.path.join(path, "node_modules/iii-sdk/package.json"), "not this one")
    return path


def bundle(c, name):
    path = c.bundle(name, start=START, files={"main.mjs": worker_code()},
                    runtime={"base_image": IMAGE})
    shutil.copytree(modules(), os.path.join(path, "node_modules"), symlinks=True,
                    ignore=shutil.ignore_patterns(*(f"*{x}" for x in UNUSED)))
    return path


def listing(folder):
    """What would show that somebody wrote into it."""
    return {p: (st.st_mtime_ns, st.st_size, st.st_mode)
            for parent, names, files in os.walk(folder)
            for p in [parent, *(os.path.join(parent, x) for x in names + files)]
            for st in [os.lstat(p)]}


def call(c, vm, function, **members):
    """Of a worker that may not have registered it yet."""
    def there():
        try:
            return c.engine.call(function, members)
        except iii.CallError as e:
            if e.code != "function_not_found":
                raise
            s = c.status(vm)
            if s["state"] not in ("preparing", "running"):
                raise AssertionError(f"the worker is {s}; its log ends with:\n"
                                     + "\n".join(c.lines(vm)[-40:])) from e
            return None
    return wait_until(there, harness.COMMAND_GUARD_S, f"an answer of {function}")


def gone(c, function):
    """The engine has forgotten it, once its worker's connection has ended."""
    def look():
        try:
            c.engine.call(function, {"by": 0})
        except iii.CallError:
            return True
        return False
    wait_until(look, 30, f"the end of {function}")


# --- secrets -----------------------------------------------------------------------------------

class Canaries:
    """Values that must not be found where others than the worker could read them."""

    def __init__(self, t, c, *values):
        self.t, self.c = t, c
        self.values = [v.encode() for v in (c.token, *values)]

    def absent(self, data, where):
        for v in self.values:
            self.t.check(v not in data, f"a secret is in {where}")

    def in_processes(self, wanted):
        """Of all that we started. `wanted`: words that have to be among their command lines."""
        lines = []
        for pid in harness.descendants(os.getpid()):
            lines.append(command_line(pid))
            for file in ("cmdline", "environ", "comm"):
                try:
                    with open(f"/proc/{pid}/{file}", "rb") as f:
                        self.absent(f.read(), f"{file} of {lines[-1]}")
                except OSError:
                    pass  # gone, or another user's
        for word in wanted:
            self.t.check(any(word in line for line in lines), f"{word} runs: {lines}")

    def in_files(self):
        """The daemon's log and all it keeps, the worker's disk included."""
        self.absent(self.c.log().encode(), "the daemon's log")
        names = set()
        for path in sorted(harness.files_below(self.t.state)):
            names.add(os.path.basename(path).rpartition(".")[2])
            self.in_file(path)
        self.t.check({"json", "jsonl", "ext4", "seq"} <= names, f"files of the VM: {names}")

    def in_file(self, path):
        """Only what is there of a sparse file."""
        with open(path, "rb") as f:
            at, end = 0, os.fstat(f.fileno()).st_size
            while at < end:
                try:
                    at = os.lseek(f.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break
                upto = os.lseek(f.fileno(), at, os.SEEK_HOLE)
                tail = b""
                while at < upto:
                    data = os.pread(f.fileno(), min(1 << 20, upto - at), at)
                    self.absent(tail + data, path)
                    tail, at = data[-256:], at + len(data)


# --- the life of a worker -----------------------------------------------------------------------

def first_boot(t, c, source, name, env):
    vm = c.start(source, key="life", name=name, env=env)
    follower = Follower(c, vm)
    for by, count in ((1, 1), (5, 6)):
        t.equal(call(c, vm, f"{name}::add", by=by), {"count": count}, "answer")
    c.wait(vm, "running")
    told = call(c, vm, f"{name}::tell")
    t.equal(told["cwd"], "/workspace", "folder it starts in")
    url = f"ws://{GATEWAY}:{c.url.rpartition(':')[2]}"
    wanted = {k: v.replace("localhost", GATEWAY) for k, v in env.items()}
    wanted.update({"III_URL": url, "III_ENGINE_URL": url, "III_WORKER_NAME": name})
    t.equal({k: told["env"].get(k) for k in wanted}, wanted, "its environment")
    t.check(compose.TOKEN_ENV not in told["env"], "the token's variable is not in the VM")
    t.check(c.token not in str(told), "the token is not in the VM")
    return vm, follower, told


def life(t, make, installs):
    use_node_image()
    secret = "s3cr3t-" + os.urandom(12).hex()
    env = {"API_KEY": secret, "DB": f"postgres://u:{secret}@localhost:5432/x"}
    name = "counter"
    with Compose(t) as c:
        source = make(c, name)
        before = listing(source)
        canaries = Canaries(t, c, secret)
        vm, follower, told = first_boot(t, c, source, name, env)
        t.equal(told["installs"], installs, "times that install ran")
        canaries.absent(told["exposed"].encode(), "what everything in the VM can read")
        canaries.in_processes([f"__vm-boot {vm.vm_id}", "passt"])
        error = compose.refused(t, "S502", vm.vm_id, c.start, source, key="life", env=env)
        canaries.absent(str(error).encode(), "the error of a second start")

        s = c.stop(vm)
        t.equal((s["state"], s["exit_code"], s["signal"]), ("stopped", 0, None), "its end")
        lines = follower.lines(t)
        for wanted in ("starts at 0", "counted to 1", "counted to 6", "asked to leave"):
            t.check(any(wanted in x for x in lines), f"{wanted!r} is in the log: {lines[-20:]}")
        t.check("asked to leave" in "\n".join(lines[-10:]), "the log goes to the end")
        gone(c, f"{name}::add")
        canaries.in_files()

        again = c.start(source, key="life", name=name, env=env)
        t.equal(again, (vm.vm_id, vm.instance + 1), "the next boot")
        follower = Follower(c, again)
        t.equal(call(c, again, f"{name}::add", by=1), {"count": 7}, "answer after a stop")
        t.equal(call(c, again, f"{name}::tell")["installs"], installs, "times that install ran")
        canaries.in_processes([f"__vm-boot {vm.vm_id}", "passt"])
        t.equal(c.stop(again)["exit_code"], 0, "exit code")
        t.check(any("starts at 6" in x for x in follower.lines(t)), "it found its state")
        canaries.in_files()

        t.equal(listing(source), before, "the source on the host")
        removed(t, c, vm, again)
        t.equal(listing(source), before, "the source on the host")


def removed(t, c, *vms):
    """destroy leaves the count of boots and nothing else."""
    vm_id = vms[0].vm_id
    t.equal(c.destroy("life"), True, "destroyed")
    t.equal({os.path.relpath(p, t.state) for p in harness.files_below(t.state)
             if "workers/" in p}, {f"workers/{vm_id}.seq"}, "files after destroy")
    t.check(not os.path.exists(os.path.join(t.state, "workers", vm_id)), "its folder is gone")
    for vm in vms:
        t.equal(c.status(vm)["state"], "unknown", "state after destroy")
    compose.refused(t, "S503", vm_id, c.read_log, vms[0])
    t.equal(c.destroy("life"), False, "destroyed twice")


@case(per_backend=True, guard_s=480)
def from_a_folder_of_the_project(t):
    life(t, local, installs=1)


@case(per_backend=True, guard_s=480)
def from_a_bundle(t):
    life(t, bundle, installs=0)


main()
