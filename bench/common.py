"""What the benchmarks share: a clean room (that of the end-to-end tests), plain VMs, one JSON line.

A benchmark measures two things side by side, taking turns so that a busy machine hits both alike,
and prints one JSON line: {"bench":…, "backend":…, "ratio":…, "target":…, figures…}. Medians are
compared. Nothing here passes or fails: docs/performance.md holds what was reached.
"""
import atexit
import base64
import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(SOURCE, "tests/e2e"))
sys.path.insert(0, os.path.join(SOURCE, "tests/conformance"))
import harness  # noqa: E402
import iii  # noqa: E402

BUILD = harness.BUILD
ROUNDS = int(os.environ.get("SANDBOX_BENCH_ROUNDS", "10"))


def backends():
    """Those of SANDBOX_TEST_BACKENDS that can run here."""
    return [b for b in harness.BACKENDS if b != "krun" or os.path.exists("/dev/kvm")]


def room(backend):
    """Environment, cache and helpers for one backend, as a test case has them."""
    path = tempfile.mkdtemp(prefix="bench-", dir=harness.program_room())
    return harness.Test("bench", backend, path)


@atexit.register
def clean_up():
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)
    if harness.Shared.room:
        shutil.rmtree(harness.Shared.room, ignore_errors=True)


def emit(bench, ratio, target, **figures):
    """The one line. `ratio` and `target` are numbers or None."""
    line = {"bench": bench, "ratio": None if ratio is None else round(ratio, 3), "target": target}
    line.update({k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()})
    print(json.dumps(line), flush=True)


def median(values):
    return statistics.median(values)


def seconds(function):
    start = time.monotonic()
    function()
    return time.monotonic() - start


# --- plain VMs: the VMM with one disk and one console, nothing of ours ---------------------------

def plain_disk(t):
    """A boot disk made like the real one, with plain_init as its /init."""
    path = os.path.join(t.scratch, "plain.erofs")
    subprocess.run([os.path.join(BUILD, "src/host/image/mkboot"), path,
                    os.path.join(BUILD, "bench/plain_init")], check=True)
    return path


def kernel_of(t):
    """The very kernel file that our VMs boot, and the words on its command line that matter."""
    r = t.run_program("cat", "/proc/cmdline")
    if r.status:
        raise SystemExit(f"bench: a VM is needed first, and does not run:\n{r}")
    words = [w for w in r.out.decode().partition(" -- ")[0].split()
             if not re.match(r"(iii\.|virtio_mmio|root=|init=|ro$|rootfstype=)", w)]
    if "III_SANDBOX_KERNEL" in t.env():
        return t.env()["III_SANDBOX_KERNEL"], words
    found = [p for p in harness.files_below(os.path.join(t.cache, "kernel")) if p.endswith(".elf")]
    return found[0], words


class PlainVM:
    """Starts the VMM as nobody could more plainly. `init` is called when init has said its word."""

    def __init__(self, t, kernel, words, disk, arguments=()):
        self.console, console_end = os.pipe()
        self.port, port_end = socket.socketpair()
        cmdline = " ".join(["root=/dev/vda ro rootfstype=erofs init=/init", *words, *arguments])
        self.start = time.monotonic()
        if t.backend == "qemu":
            self.pid = self.qemu(kernel, cmdline, disk, console_end, port_end)
        else:
            self.pid = self.krun(t, kernel, cmdline, disk, console_end, port_end)
        os.close(console_end)
        port_end.close()

    def qemu(self, kernel, cmdline, disk, console, port):
        return subprocess.Popen([
            "qemu-system-x86_64", "-M", "microvm,pit=on,pic=on,rtc=on,isa-serial=off,acpi=off,pcie=off,"
            "usb=off,x-option-roms=off,graphics=off", "-accel", "tcg,thread=single,tb-size=256",
            "-cpu", "max,-svm,-erms,-fsrm", "-m", "512M", "-smp", "1",
            "-global", "virtio-mmio.force-legacy=false", "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot", "-kernel", kernel, "-append", cmdline,
            "-drive", f"if=none,id=d,file={disk},format=raw,readonly=on,file.locking=off",
            "-device", "virtio-blk-device,drive=d", "-device", "virtio-serial-device,max_ports=8",
            "-add-fd", f"fd={console},set=9", "-chardev", "file,id=con,path=/dev/fdset/9,append=on",
            "-device", "virtconsole,chardev=con", "-chardev", f"socket,id=p,fd={port.fileno()}",
            "-device", "virtserialport,chardev=p,name=bench"],
            pass_fds=(console, port.fileno()), stdin=subprocess.DEVNULL).pid

    def krun(self, t, kernel, cmdline, disk, console, port):
        library = t.env().get("III_SANDBOX_LIBKRUN") or os.path.join(
            t.env()["XDG_DATA_HOME"], "sandbox-libkrun/lib/libkrun.so.1")
        if not os.path.exists(library):
            library = "libkrun.so.1"
        pid = os.fork()
        if pid:
            return pid
        try:
            k = ctypes.CDLL(library)
            k.krun_set_log_level(1)
            ctx = k.krun_create_ctx()
            text = ctypes.c_char_p
            calls = (
                k.krun_set_vm_config(ctx, ctypes.c_uint8(1), 512),
                k.krun_disable_implicit_vsock(ctx),
                k.krun_set_kernel(ctx, text(kernel.encode()), 1, None, text(cmdline.encode())),
                k.krun_add_disk3(ctx, text(b"boot"), text(disk.encode()), 0, ctypes.c_bool(True),
                                 ctypes.c_bool(False), 0),
                k.krun_set_console_output(ctx, text(b"/proc/self/fd/%d" % console)))
            c = k.krun_add_virtio_console_multiport(ctx)
            fd = port.fileno()
            calls += (k.krun_add_console_port_inout(ctx, c, text(b"bench"), fd, fd),)
            if min(calls) >= 0:
                k.krun_start_enter(ctx)
            print(f"bench: libkrun refused: {calls}", file=sys.stderr)
        finally:
            os._exit(1)

    def wait_for_init(self):
        """Seconds from the VMM's start to init's word."""
        got = b""
        while b"init\n" not in got.replace(b"\r", b""):
            data = os.read(self.console, 4096)
            if not data:
                raise SystemExit(f"bench: the plain VM ended without a word from init: {got!r}")
            got += data
        return time.monotonic() - self.start

    def end(self):
        os.close(self.console)
        self.port.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)


# --- the bus: engine, adapter and caller, each a process of its own --------------------------------

P = "sandbox-libkrun::"


class Bus:
    """The embedded engine (in echo_worker), `serve` on it, and a client of the conformance tests."""

    def __init__(self, t, config=None):
        harness.use_python_image()
        self.t = t
        self.processes = []
        entry = ["--config", json.dumps(config)] if config is not None else []
        # Its own functions are out of the way in another namespace.
        p = self.spawn([self.echo_worker(), "--engine", *entry],
                       {"III_NAMESPACE": "engine", "III_WORKER_NAME": "engine"})
        port = re.match(rb"port (\d+)\n", t.wait_for_output(p, b"\n")).group(1).decode()
        self.url = f"ws://127.0.0.1:{port}"
        self.serve = self.spawn([harness.BIN, "serve"], t.env(III_URL=self.url, III_CONFIG_NAME="echo"))
        self.client = iii.Engine(self.url)
        self.wait_for(P + "adapter::info")

    @staticmethod
    def echo_worker():
        return os.path.join(BUILD, "tests/clients/echo_worker")

    def spawn(self, argv, env):
        # What they print is little: it fits the pipe that nobody empties.
        p = self.t.spawn(argv, {**os.environ, **env})
        self.processes.append(p)
        return p

    def wait_for(self, function):
        end = time.monotonic() + 60
        while True:
            try:
                return self.client.call(function, {})
            except iii.CallError as e:
                if e.code != "function_not_found" or time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def echo(self):
        """Another worker with t::echo."""
        p = self.spawn([self.echo_worker()], {"III_URL": self.url})
        self.t.wait_for_output(p, b"ready\n")
        return p

    def call(self, function, **members):
        return self.client.call(P + function, members)

    def bench(self, *argv):
        """What bench_bus prints."""
        r = subprocess.run([os.path.join(BUILD, "bench/bench_bus"), self.url, *map(str, argv)],
                           check=True, stdout=subprocess.PIPE, timeout=600)
        return json.loads(r.stdout)

    def end(self):
        self.client.close()
        for p in reversed(self.processes):
            p.terminate()
            self.t.finish(p)


# --- microsandbox, for comparison -------------------------------------------------------------

MSB_PACKAGE = "@superradcompany/microsandbox-linux-x64-gnu@0.7.2"
MSB_SHA512 = ("5gmMDYjyGXtx+13rWKeI0/f6x7ecDg6aMFVCupgr23IQODQLuGsbvn70LyXUrT0b"
              "OlYhle6i4uum2+AwVKTU8Q==")


def msb_package(libkrunfw=None):
    """The unpacked npm package in a folder of this run's own; its kernel replaced when one is given."""
    given = os.environ.get("SANDBOX_BENCH_MSB")  # an unpacked package
    into = os.path.join(harness.program_room(), "msb")
    if os.path.isdir(into):
        return into
    if given:
        shutil.copytree(given, into)
    else:
        kept = os.path.join(harness.IMAGES, "msb.tgz")
        if not os.path.exists(kept):
            os.makedirs(harness.IMAGES, exist_ok=True)
            name = subprocess.run(["npm", "pack", "--silent", MSB_PACKAGE], cwd=harness.IMAGES,
                                  check=True, stdout=subprocess.PIPE).stdout.decode().split()[-1]
            os.rename(os.path.join(harness.IMAGES, name), kept)
        with open(kept, "rb") as f:
            digest = base64.b64encode(hashlib.sha512(f.read()).digest()).decode()
        if digest != MSB_SHA512:
            raise SystemExit(f"bench: {kept} is not the package that was pinned")
        os.makedirs(into)
        subprocess.run(["tar", "xzf", kept, "--strip-components=1", "-C", into], check=True)
    os.chmod(os.path.join(into, "bin/msb"), 0o755)
    if libkrunfw:
        shutil.copyfile(libkrunfw, os.path.join(into, "lib/libkrunfw.so.5.6.1"))
    return into


homes = []


class Msb:
    """msb with a home of its own."""

    def __init__(self, libkrunfw=None):
        self.program = os.path.join(msb_package(libkrunfw), "bin/msb")
        # Its socket's path must be short.
        self.home = tempfile.mkdtemp(prefix="msb", dir=os.environ.get("SANDBOX_TEST_TMP", "/var/tmp"))
        homes.append(self.home)

    def __call__(self, *args):
        env = {"HOME": self.home, "MSB_HOME": self.home, "PATH": os.environ["PATH"]}
        r = subprocess.run([self.program, *args], env=env,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=600, check=False)
        if r.returncode:
            raise SystemExit(f"bench: msb {' '.join(args)} failed:\n{r.stdout.decode()}")
