#!/usr/bin/env python3
"""examples/ as they stand, against `standalone`."""
import json
import os
import re
import shutil
import signal

import harness
import sdks
from harness import BIN, case, main, use_python_image

EXAMPLES = os.path.join(harness.SOURCE, "examples")

EXPECTED = [r"created", r'S211: trying again with \{"parents": ?true\}', r"exit 0: 0 1 4 9",
            r"read 8 bytes: all done", r"exit 3", r"S211 as expected", r"stopped"]


def start(t, *args):
    """`standalone` with the image; returns the process and its URL."""
    use_python_image()
    p = t.spawn([BIN, "standalone", "--port", "0", *args])
    line = t.wait_for_output(p, b"\n").decode()
    return p, re.fullmatch(r"ready url=(ws://.*)\n", line).group(1)


def stop(t, p):
    os.kill(p.pid, signal.SIGTERM)
    t.equal(t.finish(p).status, 0, "exit status of standalone")


def node(t):
    """The command of the Node example: a copy beside an installed SDK."""
    folder = os.path.join(t.scratch, "node")
    shutil.copytree(os.path.join(EXAMPLES, "node"), folder)
    os.symlink(os.path.join(sdks.node_folder(), "node_modules"),
               os.path.join(folder, "node_modules"))
    return ["node", os.path.join(folder, "main.mjs")]


def python(t):
    return [sdks.python_of_clients(), "-B", os.path.join(EXAMPLES, "python/main.py")]


def own_lines(text):
    """Without what the SDKs say about themselves."""
    return [line for line in text.decode().splitlines() if not line.startswith("[")]


def runs(t, command):
    argv = command(t)
    p, url = start(t)
    r = t.command(argv, env=t.env(III_URL=url))
    t.equal(r.status, 0, "exit status of the example")
    lines = own_lines(r.out)
    t.equal(len(lines), len(EXPECTED), f"lines of {lines}")
    for line, wanted in zip(lines, EXPECTED):
        t.check(re.fullmatch(wanted, line), f"{line!r} is not {wanted!r}")
    listed = t.cli("call", "list", env=t.env(III_URL=url))
    t.equal(json.loads(listed.out), {"sandboxes": []}, "sandboxes after the example")
    stop(t, p)


def is_refused(t, command):
    argv = command(t)
    config = os.path.join(t.scratch, "config.json")
    with open(config, "w", encoding="utf-8") as f:
        json.dump({"image_allowlist": []}, f)
    p, url = start(t, "--config", config)
    r = t.command(argv, env=t.env(III_URL=url))
    t.equal(r.status, 1, "exit status of the example")
    t.equal(own_lines(r.out), [], "lines of the example")
    t.contains(r.err, b"S100: image python", "error of the example")
    t.contains(r.err, b"see https://", "error of the example")
    stop(t, p)


@case(per_backend=True)
def node_runs(t):
    runs(t, node)


@case(per_backend=True)
def python_runs(t):
    runs(t, python)


@case()
def node_tells_what_was_refused(t):
    is_refused(t, node)


@case()
def python_tells_what_was_refused(t):
    is_refused(t, python)


@case()
def they_pin_what_the_tests_use(t):
    def pins(path):
        with open(os.path.join(harness.SOURCE, path), encoding="utf-8") as f:
            return f.read()
    ours = json.loads(pins("examples/node/package.json"))["dependencies"]
    tested = json.loads(pins("tests/clients/package.json"))["dependencies"]
    t.check(ours, "the Node example has dependencies")
    t.equal({k: tested.get(k) for k in ours}, ours, "versions for Node")
    ours = set(pins("examples/python/requirements.txt").split())
    t.check(ours, "the Python example has dependencies")
    t.equal(ours - set(pins("tests/clients/requirements.txt").split()), set(), "other versions")


main()
