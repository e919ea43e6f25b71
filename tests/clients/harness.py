"""What the tests with foreign clients share: the clients themselves, the worker, and TAP.

A test program calls `harness.enter()` first, which installs the pinned clients into
BUILD/tests/clients/ where they are not there yet and starts the program again with their Python.
Then it marks its cases and ends with `main()`:

    import harness
    harness.enter()

    @harness.case
    async def answers(t):
        async with harness.Worker("--engine") as w:
            t.equal(w.ups, 1, "connections")

    harness.main()

Read from the environment (tests/run sets them): SANDBOX_TEST_BUILD, SANDBOX_TEST_SOURCE,
SANDBOX_TEST_CASE.
"""
import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("SANDBOX_TEST_SOURCE", os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get("SANDBOX_TEST_BUILD", os.path.join(SOURCE, "build"))
PLACE = os.path.join(BUILD, "tests/clients")
WORKER = os.path.join(PLACE, "echo_worker")
SANITIZED = b"__asan_init" in open(WORKER, "rb").read() if os.path.exists(WORKER) else False

# A sanitizer keeps freed memory for a while, so that little can be said of its size.
GROWTH_KIB = 64 * 1024 if not SANITIZED else 2048 * 1024  # of the worker during a stream

WAIT_S = 60    # what takes longer will never come
CASE_S = 300   # likewise, for a whole case

cases = []


# --- the foreign clients -----------------------------------------------------------------------

def install(name, recipe, make):
    """Runs make(folder) unless the folder was made from the same recipe; returns the folder."""
    folder, stamp = os.path.join(PLACE, name), os.path.join(PLACE, name + ".from")
    with open(os.path.join(HERE, recipe), encoding="utf-8") as f:
        wanted = f.read()
    os.makedirs(PLACE, exist_ok=True)
    with open(os.path.join(PLACE, name + ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(stamp, encoding="utf-8") as f:
                if f.read() == wanted:
                    return folder
        except FileNotFoundError:
            pass
        os.makedirs(folder, exist_ok=True)
        make(folder)
        with open(stamp, "w", encoding="utf-8") as f:
            f.write(wanted)
    return folder


def quietly(*argv, cwd=None):
    run = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{run.stdout.decode('utf-8', 'replace')}")


def python_of_clients():
    def make(folder):
        quietly(sys.executable, "-m", "venv", "--clear", folder)
        quietly(os.path.join(folder, "bin/pip"), "install", "--disable-pip-version-check", "-q",
                "-r", os.path.join(HERE, "requirements.txt"))
    return os.path.join(install("venv", "requirements.txt", make), "bin/python")


def node_folder():
    def make(folder):
        with open(os.path.join(HERE, "package.json"), encoding="utf-8") as f:
            text = f.read()
        with open(os.path.join(folder, "package.json"), "w", encoding="utf-8") as f:
            f.write(text)
        quietly("npm", "install", "--no-audit", "--no-fund", "--no-package-lock",
                "--ignore-scripts", cwd=folder)
    return install("node", "package.json", make)


def enter():
    if os.environ.get("CLIENTS_PYTHON") == "1":
        return
    python = python_of_clients()
    os.environ["CLIENTS_PYTHON"] = "1"
    os.execv(python, [python] + sys.argv)


# --- the worker --------------------------------------------------------------------------------

class Worker:
    """A running echo_worker. Its lines are collected; wait("up 2") takes the next that fits."""

    def __init__(self, *argv, env=None):
        self.argv = argv
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("III_")}
        self.env.update(env or {})
        self.lines, self.seen, self.errors = [], [], b""
        self.news = asyncio.Event()

    async def __aenter__(self):
        self.child = await asyncio.create_subprocess_exec(
            WORKER, *self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        self.readers = [asyncio.create_task(self.read_lines()),
                        asyncio.create_task(self.read_errors())]
        if "--engine" in self.argv:
            self.port = int((await self.wait("port ")).split()[1])
            self.url = f"ws://127.0.0.1:{self.port}"
            await self.wait("ready")
        return self

    async def read_lines(self):
        async for line in self.child.stdout:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
            self.news.set()
        self.lines.append(None)
        self.news.set()

    async def read_errors(self):
        async for line in self.child.stderr:
            self.errors += line

    async def wait(self, prefix, timeout=WAIT_S):
        async def look():
            while True:
                while self.lines:
                    if self.lines[0] is None:
                        raise AssertionError(
                            f"the worker ended before {prefix!r}: {self.seen}\n{self.tail()}")
                    line = self.lines.pop(0)
                    self.seen.append(line)
                    if line.startswith(prefix):
                        return line
                self.news.clear()
                await self.news.wait()
        return await asyncio.wait_for(look(), timeout)

    def tail(self):
        return self.errors[-4000:].decode("utf-8", "replace")

    def rss_kib(self):
        with open(f"/proc/{self.child.pid}/status", encoding="utf-8") as f:
            return int(re.search(r"VmRSS:\s*(\d+)", f.read()).group(1))

    def peak_kib(self):
        with open(f"/proc/{self.child.pid}/status", encoding="utf-8") as f:
            return int(re.search(r"VmHWM:\s*(\d+)", f.read()).group(1))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    async def stop(self, status=0):
        """SIGTERM must end it in order; a leak of its loop or of memory is another status."""
        if self.child.returncode is None:
            self.child.send_signal(signal.SIGTERM)
        got = await asyncio.wait_for(self.child.wait(), WAIT_S)
        await asyncio.gather(*self.readers)
        if got != status:
            raise AssertionError(f"the worker ended with status {got}:\n{self.tail()}")

    async def __aexit__(self, kind, value, trace):
        if kind:
            if self.child.returncode is None:
                self.child.kill()
            await self.child.wait()
            sys.stderr.write(self.tail())
        else:
            await self.stop()
        return False


# --- the byte pattern of echo_worker's streams --------------------------------------------------

def pattern(start, length):
    """byte(pos) = pos * 31 + (pos >> 8) * 7, modulo 256: it repeats every 65536 bytes."""
    global _period
    try:
        _period
    except NameError:
        _period = bytes((p * 31 + (p >> 8) * 7) & 255 for p in range(65536))
    start %= 65536
    return (_period * ((start + length) // 65536 + 1))[start:start + length]


# --- cases -------------------------------------------------------------------------------------

class T:
    """Checks that say what they compared."""

    def equal(self, got, want, what):
        if got != want:
            raise AssertionError(f"{what}: got {short(got)}, expected {short(want)}")

    def true(self, condition, what):
        if not condition:
            raise AssertionError(what)

    def has(self, part, text, what):
        if part not in text:
            raise AssertionError(f"{what}: {part!r} is not in {short(text)}")


def short(value):
    text = repr(value)
    return text if len(text) < 600 else text[:600] + "…"


def case(function):
    cases.append(function)
    return function


def main():
    chosen = [f for f in cases if re.search(os.environ.get("SANDBOX_TEST_CASE", ""), f.__name__)]
    print(f"1..{len(chosen)}")
    failed = 0
    for number, function in enumerate(chosen, 1):
        try:
            asyncio.run(asyncio.wait_for(function(T()), CASE_S))
            print(f"ok {number} - {function.__name__}", flush=True)
        except Exception:  # pylint: disable=broad-except
            failed += 1
            print(f"not ok {number} - {function.__name__}", flush=True)
            traceback.print_exc()
    sys.exit(1 if failed else 0)


def dumps(value):
    return json.dumps(value, separators=(",", ":"))
