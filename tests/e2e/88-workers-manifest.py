#!/usr/bin/env python3
"""Manifests of worker VMs as prepare and start judge them (W20-W30 of the worker VM specification's
cases), and what reaches the VM of them."""
import json
import os

import harness
from harness import case, main
from compose import IMAGE, Compose, put, refused

QEMU = {"III_SANDBOX_VMM": "qemu"}
FOREVER = "exec sleep 600"


@case()
def bundles(t):
    """W20, W21, W22"""
    with Compose(t, QEMU) as c:
        a = c.bundle("a", start=FOREVER)
        c.prepare(a)
        empty = os.path.join(c.cache, "empty-1.0.0-bundle")
        os.mkdir(empty)
        refused(t, "S500", "iii.worker.yaml", c.prepare, empty)
        e = refused(t, "S500", "b", c.call, "prepare", source={**c.source(a), "package": "b"})
        t.contains(e["message"], "a", "both names")
        refused(t, "S500", "scripts.setup", c.prepare,
                c.bundle("s", start=FOREVER, scripts={"setup": "x"}))
        c.prepare(c.bundle("s", start=FOREVER, scripts={"setup": "  ", "install": "x"}))
        refused(t, "S500", "scripts.start", c.prepare, c.bundle("n", scripts={"install": "x"}))
        # what is unknown is nobody's business in a package
        c.prepare(c.bundle("u", start=FOREVER, unknown={"x": 1}))


@case()
def what_a_manifest_must_not_say(t):
    """W24, W25, W26, W28 (S400)"""
    with Compose(t, QEMU) as c:
        def no(part, code="S500", **manifest):
            c.local("w", start=FOREVER)
            c.local("w", **{"start": FOREVER, **manifest})
            e = refused(t, code, part, c.prepare, "w")
            refused(t, code, part, c.start, "w")
            return e
        def no_text(part, text):
            put(os.path.join(c.project, "w/iii.worker.yaml"), text)
            return refused(t, "S500", part, c.prepare, "w")
        no("runtime", runtime="node")
        no("scripts.start", start=None, scripts={"start": ["a", "b"]})
        no("env.PORT", env={"PORT": 8080})
        no("scripts.instal", scripts={"instal": "x"})
        no("resources.cpus", resources={"cpus": 0})
        no("resources.cpus", code="S400", resources={"cpus": 300})
        no("runtime.base_image", runtime={"base_image": "not an image"})
        c.prepare(c.local("v", start=FOREVER, version="1.0.0"))
        no_text("iii.worker.yaml", "a: [")
        no_text("name", "name: a\nname: b\n")
        no_text("iii.worker.yaml", "[1, 2]\n")
        no_text("65536", "#" * 65537)
        secret = os.path.join(t.scratch, "secret")
        put(secret, "canary: CANARY\n")
        at = os.path.join(c.project, "w/iii.worker.yaml")
        os.unlink(at)
        os.symlink(secret, at)
        e = refused(t, "S500", "iii.worker.yaml", c.prepare, "w")
        t.check("CANARY" not in str(e) and "canary" not in str(e), "content in a message")
        os.unlink(at)
        os.mkfifo(at)
        refused(t, "S500", "iii.worker.yaml", c.prepare, "w")
        t.equal([p for p in harness.files_below(t.state) if p.endswith((".json", ".seq"))], [],
                "numbers that refused starts have used")


@case(per_backend=True)
def what_runs(t):
    """W21, W30: bundle and container key of two names, override, env below the request's"""
    with Compose(t) as c:
        show = "echo $III_WORKER_NAME $A $B $(pwd) $(ls)"
        vm = c.run(c.bundle("pkg", start=show, files={"dist/x.js": "1"}, env={"A": "m", "B": "m"}),
                   name="key", env={"B": "r"})
        c.wait_for_line(vm, "key m r /workspace dist iii.worker.yaml")
        c.wait(vm, "exited")
        c.local("w", scripts={"install": "echo installed"})
        refused(t, "S500", "scripts.start", c.start, "w", run_override="  ")
        refused(t, "S500", "scripts.start", c.start, "w")
        vm = c.run("w", run_override=" echo overridden ")
        c.wait_for_line(vm, "overridden")
        t.contains(c.lines(vm), "installed", "log")
        t.equal(c.wait(vm, "exited")["exit_code"], 0, "exit code")


@case()
def projects_without_a_manifest(t):
    """W29, W30: detected by their files; the image cannot be had here, which names it"""
    with Compose(t, QEMU) as c:
        for name, files, image in (
                ("bun", {"package.json": "{}", "bun.lock": ""}, "docker.io/oven/bun:latest"),
                ("node", {"package.json": "{}"}, "docker.io/iiidev/node:latest"),
                ("rust", {"Cargo.toml": ""}, "docker.io/library/rust:slim-bookworm")):
            for file, content in files.items():
                put(os.path.join(c.project, name, file), content)
            refused(t, "S102", image, c.prepare, name)
        put(os.path.join(c.project, "py/requirements.txt"), "")
        c.prepare("py")  # docker.io/iiidev/python:latest is there
        os.mkdir(os.path.join(c.project, "nothing"))
        refused(t, "S500", "", c.prepare, "nothing")


@case()
def sizes(t):
    """W28: a bundle's wishes are cut, and said"""
    with Compose(t, QEMU) as c:
        code = ("import os; print('cpus', os.cpu_count(), 'MiB', "
                "int(open('/proc/meminfo').readline().split()[1]) // 1024)")
        big = c.bundle("big", start=f'python3 -c "{code}"',
                       resources={"cpus": 64, "memory": 1048576})
        vm = c.run(big)
        line = c.wait_for_line(vm, "cpus 4 MiB ")
        mib = int(line.split()[-1])
        t.check(3500 < mib <= 4096, f"memory of the guest: {mib} MiB")
        warnings = [x for x in c.lines(vm) if "64" in x and "1048576" in x]
        t.equal(len(warnings), 1, "warnings that have the wishes")
        c.wait(vm, "exited")
        # a limit of open files
        vm = c.run(c.local("n", start="ulimit -n"), key="k2")
        c.wait_for_line(vm, "65536")
    with Compose(t, {**QEMU, "III_VM_NOFILE_LIMIT": "1234", "III_VM_NESTED_VIRT": "perhaps",
                     "III_VM_VIRTIOFS_SHM_SIZE_MIB": "512"}) as c:
        vm = c.run("n", key="k2")
        c.wait_for_line(vm, "1234")
        for name in ("III_VM_NESTED_VIRT", "III_VM_VIRTIOFS_SHM_SIZE_MIB"):
            t.contains(c.log(), f"variable={name}", "log")


main()
