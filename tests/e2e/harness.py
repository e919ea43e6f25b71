"""What the end-to-end tests share: cases, both backends, a clean room, and the search for leaks.

A test program imports this, marks its cases and ends with `main()`:

    from harness import case, main

    @case(per_backend=True)
    def prints_42(t):
        r = t.run_code("print(6*7)", lang="python")
        t.equal(r.status, 0, "exit status")
        t.equal(r.out, b"42\\n", "stdout")

    main()

It speaks TAP 13. A case marked per_backend runs once on each of BACKENDS. The krun half skips only
where /dev/kvm is absent. Cases share one cache folder for the program's life, into which the
python image is imported once; each case has a state folder and a TMPDIR of its own.

After each case the harness fails it when anything is left: a process (the harness is a subreaper,
so every descendant counts, however it daemonised), a file in the state or temporary folder, a new
file in the cache, a lock, a mount, a descriptor of the harness, or a sanitizer's report.

Read from the environment (tests/run sets the first three):
  SANDBOX_TEST_BIN         the program under test
  SANDBOX_TEST_BUILD       the build directory (helpers such as exec_storm)
  SANDBOX_TEST_SOURCE      the source tree
  SANDBOX_TEST_IMAGES      where images are made and kept (default: BUILD/test-images)
  SANDBOX_TEST_KVM_KERNEL  ELF kernel for krun where the host's KVM cannot run stock kernels
  SANDBOX_TEST_LIBKRUN     libkrun.so.1 to use; default: where the program finds it
  SANDBOX_TEST_LIBKRUNFW   libkrunfw.so.5, likewise
  SANDBOX_TEST_CASE        run only cases whose name matches this expression
  SANDBOX_TEST_SMOKE       run only cases marked smoke (sanitizer builds)
  SANDBOX_TEST_LONG        run soak cases too
  SANDBOX_TEST_BACKENDS    comma list, default qemu,krun
"""
import ctypes
import hashlib
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("SANDBOX_TEST_SOURCE", os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get("SANDBOX_TEST_BUILD", os.path.join(SOURCE, "build"))
BIN = os.environ.get("SANDBOX_TEST_BIN", os.path.join(BUILD, "src/host/sandbox-libkrun"))
IMAGES = os.environ.get("SANDBOX_TEST_IMAGES", os.path.join(BUILD, "test-images"))
BACKENDS = tuple(os.environ.get("SANDBOX_TEST_BACKENDS", "qemu,krun").split(","))
SMOKE = bool(os.environ.get("SANDBOX_TEST_SMOKE"))
LONG = bool(os.environ.get("SANDBOX_TEST_LONG"))

sys.path.insert(0, os.path.join(SOURCE, "tests/images"))
import oci  # noqa: E402

# The kernel for KVM that only emulates does not keep AVX registers when it switches tasks
# (docs/hacking.md), so nothing in such a guest may use them: glibc is told not to, in the agent by
# the kernel's command line and in programs by the image's environment.
NO_AVX = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load"
GUEST_ENV = [NO_AVX] if os.environ.get("SANDBOX_TEST_KVM_KERNEL") else []

CASE_GUARD_S = 240     # a case that takes longer hangs: it is ended and fails
COMMAND_GUARD_S = 180  # one command, likewise
SETTLE_S = 10          # what a case started may take this long to go after the case has ended

cases = []


class Skip(Exception):
    pass


class Hang(BaseException):
    """Raised by the alarm; not an Exception, so that no case swallows it."""


def case(per_backend=False, smoke=False, soak=False, guard_s=CASE_GUARD_S):
    """Registers a test function f(t). Its name is the test's; its docstring is never needed."""
    def mark(function):
        for backend in (BACKENDS if per_backend else (None,)):
            cases.append((function, backend, smoke, soak, guard_s))
        return function
    return mark


# --- processes ---------------------------------------------------------------------------------

def become_subreaper():
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes():
    """pid -> (parent, state) of every process."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
                table[int(entry)] = (int(fields[1]), fields[0].decode())
            except OSError:
                pass
    return table


def descendants(root):
    """Live (not zombie) processes below root, parents first."""
    table = processes()
    children = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        for pid in sorted(children.get(todo.pop(0), [])):
            todo.append(pid)
            if table[pid][1] not in "ZX":
                found.append(pid)
    return found


def kill_tree(pid):
    for victim in descendants(pid) + [pid]:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            text = f.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as f:
            return text or f"[{f.read().strip()}]"
    except OSError:
        return "(gone)"


def memory_kib(pid, field="VmRSS"):
    """A line of /proc/PID/status; 0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as f:
            for line in f:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def wait_until(condition, seconds, what):
    """Polls; the limit is a hang guard and no measure."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"gave up after {seconds} s waiting for {what}")
        time.sleep(0.02)


def reap():
    """Takes away zombies that we inherited (Popen objects collect their own first)."""
    own = {p.pid for p in running}
    for pid, (parent, state) in processes().items():
        if parent == os.getpid() and state == "Z" and pid not in own:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


running = set()  # Popen objects that have not been waited for


class Result:
    def __init__(self, argv, status, out, err):
        self.argv, self.status, self.out, self.err = argv, status, out, err

    def __str__(self):
        def show(data):
            text = data.decode("utf-8", "backslashreplace")
            return text if len(text) < 4000 else text[:1500] + "\n[…]\n" + text[-2500:]
        words = [os.fsdecode(a) for a in self.argv]
        shown = " ".join(a if len(a) < 200 else a[:200] + "…" for a in words)
        shown = shown.encode("utf-8", "backslashreplace").decode()
        return (f"command: {shown}\nstatus: {self.status}\n"
                f"stdout ({len(self.out)} bytes): {show(self.out)}\n"
                f"stderr ({len(self.err)} bytes): {show(self.err)}")


# --- what a case can do ------------------------------------------------------------------------

class Test:
    def __init__(self, name, backend, room):
        self.name, self.backend, self.room = name, backend, room
        self.state = os.path.join(room, "state")
        self.tmp = os.path.join(room, "tmp")      # TMPDIR of what is run: must end up empty
        self.scratch = os.path.join(room, "mine")  # for the case's own files
        self.cache = shared_cache()
        for folder in (self.state, self.tmp, self.scratch):
            os.mkdir(folder)
        self.results = []  # shown when the case fails

    # environment of every command: nothing of ours but what is listed
    def env(self, **more):
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": os.path.join(self.room, "mine"),
            "LANG": "C.UTF-8",
            "TMPDIR": self.tmp,
            # Warnings (a KVM that only emulates, say) are not what cases compare.
            "SANDBOX_LOG": "error",
            "III_SANDBOX_CACHE_DIR": self.cache,
            "III_SANDBOX_STATE_DIR": self.state,
            # libkrun and libkrunfw may have been put there for this user
            "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME", os.path.expanduser("~/.local/share")),
        }
        for name, value in os.environ.items():
            if name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "SANDBOX_LOG", "LD_LIBRARY_PATH",
                        "III_SANDBOX_PASST"):
                env[name] = value
        for name, source in (("III_SANDBOX_LIBKRUN", "SANDBOX_TEST_LIBKRUN"),
                             ("III_SANDBOX_LIBKRUNFW", "SANDBOX_TEST_LIBKRUNFW")):
            if os.environ.get(source) or os.environ.get(name):
                env[name] = os.environ.get(source) or os.environ[name]
        if SMOKE:
            for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
                env[name] = f"{env.get(name, '')}:log_path={self.room}/sanitizer"
        if self.backend:
            env["III_SANDBOX_VMM"] = self.backend
        if self.backend == "krun" and os.environ.get("SANDBOX_TEST_KVM_KERNEL"):
            env["III_SANDBOX_KERNEL"] = os.environ["SANDBOX_TEST_KVM_KERNEL"]
            env["III_SANDBOX_KERNEL_ARGS"] = NO_AVX
        for name, value in more.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def spawn(self, argv, env=None, **options):
        """A command in the background, in a session of its own, that this case must end."""
        p = subprocess.Popen(argv, env=env or self.env(), start_new_session=True,
                             **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                                "stderr": subprocess.PIPE, **options})
        running.add(p)
        return p

    def finish(self, p, stdin=None, timeout=COMMAND_GUARD_S):
        """Waits for a spawned command and collects what it printed."""
        hung = False
        try:
            out, err = p.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            hung = True
            kill_tree(p.pid)
            out, err = p.communicate()
        running.discard(p)
        if hung:
            self.results.append(Result(p.args, "hung", out or b"", err or b""))
            raise AssertionError(f"the command hung: ended after {timeout} s")
        r = Result(p.args, p.returncode, out or b"", err or b"")
        self.results.append(r)
        return r

    def command(self, argv, stdin=None, env=None, timeout=COMMAND_GUARD_S, **options):
        """Runs any program to its end. stdin: bytes, None for an empty one."""
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        return self.finish(self.spawn(argv, env, **options), stdin, timeout)

    def cli(self, *args, **options):
        """sandbox-libkrun ARGS…"""
        return self.command([BIN, *args], **options)

    def run_argv(self, code, lang="shell", options=(), image=None):
        image = image or use_python_image()
        return [BIN, "run", "--image", image, "--no-pull", "--lang", lang, "--code", code, *options]

    def run_code(self, code, lang="shell", options=(), image=None, **more):
        """`run` with a piece of code on this case's backend."""
        return self.command(self.run_argv(code, lang, options, image), **more)

    def run_program(self, *argv, options=(), image=None, **more):
        """`run … -- ARGV`."""
        image = image or use_python_image()
        return self.command([BIN, "run", "--image", image, "--no-pull", *options, "--", *argv],
                            **more)

    def vm(self, *ops, options=(), env=None, timeout=COMMAND_GUARD_S):
        """One VM for many operations (vm_client.c). Returns (boot, replies); the VM must not be
        lost on the way."""
        lines = "".join(json.dumps(op) + "\n" for op in ops)
        r = self.command([os.path.join(BUILD, "tests/e2e/vm_client"), "--image", use_python_image(),
                          "--vmm", self.backend, *options], stdin=lines.encode(), env=env,
                         timeout=timeout)
        self.equal(r.status, 0, "exit status of vm_client")
        replies = [json.loads(line) for line in r.out.splitlines()]
        self.equal(len(replies), len(ops) + 1, "number of replies")
        return replies[0], replies[1:]

    # checks: each says what was expected of what
    def check(self, condition, what):
        if not condition:
            raise AssertionError(what)

    def equal(self, got, wanted, what):
        if got != wanted:
            raise AssertionError(f"{what}: got {brief(got)}, wanted {brief(wanted)}")

    def contains(self, text, part, what):
        if part not in text:
            raise AssertionError(f"{what}: {brief(part)} is not in {brief(text)}")

    def ends(self, r, status, out=None):
        """The command ended with this status, and printed exactly this."""
        self.equal(r.status, status, "exit status")
        if out is not None:
            self.equal(r.out, out, "stdout")

    def skip(self, reason):
        raise Skip(reason)

    # looking at the VM's processes
    def vm_processes(self, p):
        """Live processes below a spawned `run`: the supervisor and the VMM."""
        return descendants(p.pid)

    def wait_for_output(self, p, marker, seconds=COMMAND_GUARD_S):
        """Reads p's stdout until `marker`, and returns all that came."""
        got = b""
        end = time.monotonic() + seconds
        while marker not in got:
            if not select.select([p.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {marker!r} on stdout within {seconds} s, only {brief(got)}")
            data = os.read(p.stdout.fileno(), 65536)
            if not data:
                r = self.finish(p)
                raise AssertionError(f"stdout ended before {marker!r}; status {r.status}")
            got += data
        return got


def brief(value):
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:250]}…{text[-250:]} ({len(value)} long)"


# --- looking into a guest, for Test.vm ---------------------------------------------------------

# What is in the guest: processes, zombies among them, descriptors and memory of the agent.
INSPECT_CODE = """
import json, os
seen = {"processes": 0, "zombies": 0, "names": []}
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        try: stat = open(f"/proc/{pid}/stat").read()
        except OSError: continue
        name, rest = stat[stat.index("(") + 1:].rsplit(")", 1)
        if rest.split()[1] == "2" or pid == "2": continue  # threads of the kernel
        seen["processes"] += 1
        seen["names"].append(name)
        seen["zombies"] += rest.split()[0] == "Z"
seen["agent_fds"] = len(os.listdir("/proc/1/fd"))
groups = [d for d, _, _ in os.walk("/sys/fs/cgroup")]
seen["cgroups"] = len(groups)
print(json.dumps(seen))
"""
INSPECT = {"op": "exec", "argv": ["python3", "-c", INSPECT_CODE]}


def inspected(t, reply):
    t.equal(reply.get("error"), None, "error of the inspection")
    t.equal(reply["exit_code"], 0, "exit code of the inspection")
    return json.loads(reply["stdout"])


def passt_is_old():
    """Of before 2024, with faults of its own (docs/decisions/0006-network.md)."""
    program = os.environ.get("III_SANDBOX_PASST") or "passt"
    r = subprocess.run([program, "--help"], capture_output=True, check=False, timeout=60)
    return b"map-host-loopback" not in r.stdout + r.stderr


# --- shared by the cases of a program ----------------------------------------------------------

class Shared:
    room = None
    cache = None
    images = set()  # names of those in the cache


def program_room():
    """Not below /tmp: writable disks must not lie on a tmpfs."""
    if not Shared.room:
        base = os.environ.get("SANDBOX_TEST_TMP", "/var/tmp")
        Shared.room = tempfile.mkdtemp(prefix="sandbox-e2e-", dir=base)
    return Shared.room


def shared_cache():
    if not Shared.cache:
        Shared.cache = os.path.join(program_room(), "cache")
        os.mkdir(Shared.cache)
    return Shared.cache


def python_layout():
    """The small python image as an OCI layout."""
    return made_layout("python", "tools/make-python-image")


def made_layout(name, script):
    """What a script of the source tree makes: an OCI layout, made once and kept."""
    layout = os.path.join(IMAGES, name)
    made = subprocess.run([os.path.join(SOURCE, script), layout],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=900, check=False)
    if made.returncode:
        raise AssertionError(f"{script} failed:\n" + made.stdout.decode("utf-8", "replace"))
    return with_guest_env(layout) if GUEST_ENV else layout


def with_guest_env(layout):
    """A copy of the layout whose image has GUEST_ENV too, made once and kept."""
    derived = layout + "-guest-env"
    if os.path.exists(derived):
        return derived
    work = tempfile.mkdtemp(prefix="layout-", dir=IMAGES)
    os.mkdir(os.path.join(work, "blobs"))
    shutil.copytree(os.path.join(layout, "blobs/sha256"), os.path.join(work, "blobs/sha256"),
                    copy_function=os.link)
    shutil.copy(os.path.join(layout, "oci-layout"), work)

    def load(descriptor):
        digest = descriptor["digest"].partition(":")[2]
        with open(os.path.join(work, "blobs/sha256", digest), "rb") as f:
            return json.load(f)

    def store(document, descriptor):
        data = json.dumps(document).encode()
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(work, "blobs/sha256", digest), "wb") as f:
            f.write(data)
        descriptor.update(digest="sha256:" + digest, size=len(data))

    with open(os.path.join(layout, "index.json"), "rb") as f:
        index = json.load(f)
    for manifest_at in index["manifests"]:
        manifest = load(manifest_at)
        config = load(manifest["config"])
        config["config"]["Env"] = [*config["config"].get("Env", []), *GUEST_ENV]
        store(config, manifest["config"])
        store(manifest, manifest_at)
    with open(os.path.join(work, "index.json"), "w", encoding="utf-8") as f:
        json.dump(index, f)
    try:
        os.rename(work, derived)
    except OSError:  # another program was faster
        shutil.rmtree(work)
    return derived


def use_python_image():
    """Imports the image at its first use in this program; returns its name."""
    return use_image("python", python_layout)


def use_node_image():
    """The same with Debian's Node, for workers."""
    return use_image("node", lambda: made_layout("node", "tests/images/make-node-image"))


def image_of(name, entries):
    """An image of these entries (oci.entry), imported at its first use; returns its name."""
    def layout():
        path = os.path.join(program_room(), f"layout-{len(Shared.images)}")
        oci.Layout(path).image([entries], config={"Env": ["PATH=/bin", *GUEST_ENV]})
        return path
    return use_image(name, layout, "latest")


def busybox():
    """The content of a static one."""
    for path in ("/bin/busybox", "/usr/bin/busybox"):
        if os.path.exists(path):
            with open(path, "rb") as f:
                return f.read()
    raise AssertionError("there is no busybox: the package busybox-static has one")


def shell_image(name):
    """Only a shell: no bash, tar, find, and no /etc, /var, /root."""
    return image_of(name, [oci.entry("bin/"), oci.entry("bin/busybox", busybox(), mode=0o755),
                           oci.entry("bin/sh", kind=b"2", link="busybox")])


def use_image(name, layout, tag=None):
    if name not in Shared.images:
        env = {**os.environ, "III_SANDBOX_CACHE_DIR": shared_cache()}
        r = subprocess.run([BIN, "image", "import", f"oci:{layout()}:{tag or name}", "--as", name],
                           env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=300, check=False)
        if r.returncode:
            raise AssertionError("image import failed:\n" + r.stdout.decode("utf-8", "replace"))
        Shared.images.add(name)
    return name


# --- leaks -------------------------------------------------------------------------------------

def files_below(*folders):
    found = set()
    for folder in folders:
        for parent, _, names in os.walk(folder):
            found |= {os.path.join(parent, n) for n in names}
    return found


def locks_on(paths):
    """Those of the paths that somebody holds a lock on."""
    held = set()
    with open("/proc/locks", encoding="utf-8") as f:
        for line in f:
            m = re.search(r" ([0-9a-f]+):([0-9a-f]+):(\d+) ", line)
            if m and "->" not in line:
                held.add((int(m.group(1), 16), int(m.group(2), 16), int(m.group(3))))
    found = []
    for path in paths:
        try:
            st = os.lstat(path)
        except OSError:
            continue
        if (os.major(st.st_dev), os.minor(st.st_dev), st.st_ino) in held:
            found.append(path)
    return found


def mounts():
    """Those below our own folders: others come and go without us."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as f:
        return {line.split(" ")[4] for line in f if f" {program_room()}" in line}


def open_fds():
    return len(os.listdir("/proc/self/fd"))


class Snapshot:
    """Taken before a case; `leaks` compares afterwards."""

    def __init__(self, t):
        self.t = t
        self.cached, self.images = files_below(t.cache), set(Shared.images)
        self.mounts = mounts()
        self.fds = open_fds()

    def leaks(self):
        t, found = self.t, []
        end = time.monotonic() + SETTLE_S
        while descendants(os.getpid()) and time.monotonic() < end:
            reap()
            time.sleep(0.02)
        for pid in descendants(os.getpid()):
            found.append(f"process {pid} is left: {command_line(pid)}")
            kill_tree(pid)
        reap()
        for path in sorted(files_below(t.state, t.tmp)):
            st = os.lstat(path)
            # An empty file to lock is a fixture of the folder, not a remnant of one VM.
            if not (stat.S_ISREG(st.st_mode) and st.st_size == 0 and path.endswith("lock")):
                found.append(f"file is left: {path}")
        if self.images and self.images == Shared.images:  # the case imported none
            new = files_below(t.cache) - self.cached
            # The kernel and the disk template are made at the first VM of a cache.
            found += [f"new file in the cache: {p}" for p in sorted(new)
                      if not re.search(r"/(kernel|upper|template|boot)[^/]*(/|$)", p[len(t.cache):])
                      or re.search(r"tmp|\.part|\.new", os.path.basename(p))]
        found += [f"lock is left on {p}" for p in locks_on(files_below(t.state, t.cache))]
        found += [f"mount is left: {m}" for m in sorted(mounts() - self.mounts)]
        if open_fds() != self.fds:
            found.append(f"the test's own descriptors: {self.fds} before, {open_fds()} after")
        for name in sorted(os.listdir(t.room)):
            if name.startswith("sanitizer"):
                with open(os.path.join(t.room, name), encoding="utf-8", errors="replace") as f:
                    found.append("sanitizer report:\n" + f.read())
        return found


# --- running -----------------------------------------------------------------------------------

def on_alarm(*_):
    raise Hang()


def diagnose(text):
    for line in text.rstrip().splitlines():
        print(f"# {line}")


def run_case(function, backend, guard_s):
    """Returns (failures, skip reason, Test)."""
    name = function.__name__
    room = tempfile.mkdtemp(prefix=f"{name[:24]}-", dir=program_room())
    t = Test(name, backend, room)
    before = Snapshot(t)
    failures = []
    signal.alarm(guard_s)
    try:
        function(t)
    except Skip as reason:
        return [], str(reason), t
    except Hang:
        failures.append(f"hung: ended after {guard_s} s")
    except AssertionError as e:
        failures.append(str(e) or traceback.format_exc())
    except Exception:
        failures.append(traceback.format_exc())
    finally:
        signal.alarm(0)
    for p in list(running):
        if not failures:
            failures.append(f"the case did not wait for: {p.args}")
        kill_tree(p.pid)
        t.finish(p)
    failures += before.leaks()
    return failures, None, t


def why_not(backend, soak):
    if backend == "krun" and not os.path.exists("/dev/kvm"):
        return "/dev/kvm is absent"
    if soak and not LONG:
        return "only with --long"
    return None


def main():
    become_subreaper()
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = re.compile(os.environ.get("SANDBOX_TEST_CASE", ""))
    chosen = []
    for function, backend, smoke, soak, guard_s in cases:
        title = function.__name__ + (f" on {backend}" if backend else "")
        if wanted.search(title) and (smoke or not SMOKE):
            chosen.append((title, function, backend, soak, guard_s))
    print("TAP version 13")
    print(f"1..{len(chosen)}")
    failed = 0
    try:
        for number, (title, function, backend, soak, guard_s) in enumerate(chosen, 1):
            start = time.monotonic()
            reason = why_not(backend, soak)
            failures, t = [], None
            if not reason:
                failures, reason, t = run_case(function, backend, guard_s)
            if failures:
                failed += 1
                for r in t.results[-3:]:
                    diagnose(str(r))
                for text in failures:
                    diagnose(f"FAILED {text}")
                print(f"not ok {number} - {title}")
            elif reason:
                print(f"ok {number} - {title} # SKIP {reason}")
            else:
                print(f"ok {number} - {title}")
            diagnose(f"{time.monotonic() - start:.1f} s")
            sys.stdout.flush()
            if t:
                shutil.rmtree(t.room, ignore_errors=True)
    finally:
        if Shared.room:
            shutil.rmtree(Shared.room, ignore_errors=True)
    sys.exit(1 if failed else 0)
