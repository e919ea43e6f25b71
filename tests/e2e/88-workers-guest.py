#!/usr/bin/env python3
"""What a worker finds in its VM: environment and network (W81-W87 of the worker VM specification's
cases), its source and its image (W90-W96), and a worker of an iii engine that is one, from a
project's folder and from a bundle."""
import json
import os
import socket
import threading

import harness
from harness import case, main, shell_image
from compose import Compose, put

GATEWAY = "100.96.0.1"
FOREVER = "exec sleep 600"


def environment(t, c, vm):
    """What `env -0 | base64` printed."""
    line = c.wait_for_line(vm, "ENV ")
    return json.loads(line[4:])


SHOW_ENV = "python3 -c 'import json, os; print(\"ENV\", json.dumps(dict(os.environ)))'"


@case(per_backend=True)
def what_the_environment_says(t):
    """W81, W82, W83"""
    with Compose(t) as c:
        c.local("w", start=SHOW_ENV, env={"III_URL": "m", "FROM": "manifest", "M": "1"})
        vm = c.run("w", name="my worker", url="ws://127.0.0.1:49134/p?q", env={
            "III_URL": "mine", "III_WORKER_NAME": "mine", "III_NAMESPACE": "ns", "FROM": "request",
            "DB": "postgres://u@localhost:5432/x", "N": "localhost", "U": "grüß 'q\"\n$x",
            "PATH": "/from/host:/usr/bin", "HOME": "/no/such/home", "TMPDIR": "/no/such/tmp",
            "SHELL": "/no/such/shell", "EMPTY": ""})
        env = environment(t, c, vm)
        for name, value in {
                "III_URL": f"ws://{GATEWAY}:49134/p?q", "III_ENGINE_URL": f"ws://{GATEWAY}:49134/p?q",
                "III_WORKER_NAME": "my worker", "III_ISOLATION": "libkrun", "III_NAMESPACE": "ns",
                "FROM": "request", "M": "1", "DB": f"postgres://u@{GATEWAY}:5432/x",
                "N": "localhost", "U": "grüß 'q\"\n$x", "HOME": "/root", "EMPTY": ""}.items():
            t.equal(env.get(name), value, name)
        for name in ("TMPDIR", "SHELL", "III_SANDBOX_WORKER_TOKEN"):
            t.check(name not in env, f"{name} is in the guest")
        t.equal(env["PATH"].split(":")[:2], ["/from/host", "/usr/bin"], "PATH")
        t.contains(env["PATH"].split(":"), "/sbin", "PATH")
        for url, wanted in (("ws://[::1]:7/x", f"ws://{GATEWAY}:7/x"),
                            ("ws://localhost:7", f"ws://{GATEWAY}:7"),
                            ("ws://10.0.0.9:1", "ws://10.0.0.9:1")):
            c.wait(vm, "exited")
            vm = c.run("w", url=url)
            t.equal(environment(t, c, vm)["III_URL"], wanted, f"III_URL for {url}")


def listening(root):
    """Local addresses of sockets of root and of what is below it that listen."""
    inodes = set()
    for pid in [root, *harness.descendants(root)]:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/net/{name}", encoding="ascii") as f:
            for line in list(f)[1:]:
                fields = line.split()
                if fields[3] in ("0A", "07") and f"socket:[{fields[9]}]" in inodes:
                    found.add((name, fields[1]))
    return found


@case(per_backend=True)
def what_it_reaches(t):
    """W86, W87"""
    server = socket.create_server(("127.0.0.1", 0))
    hidden = socket.create_server(("127.0.0.1", 0))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", server.getsockname()[1]))
    port, other = server.getsockname()[1], hidden.getsockname()[1]

    def serve():
        try:
            while True:
                s, _ = server.accept()
                s.sendall(b"hello from the host")
                s.close()
        except OSError:
            pass

    def echo():
        try:
            while True:
                data, peer = datagrams.recvfrom(100)
                if data == b"end":
                    return
                datagrams.sendto(b"echo " + data, peer)
        except OSError:
            pass
    threads = [threading.Thread(target=serve), threading.Thread(target=echo)]
    for thread in threads:
        thread.start()
    try:
        with Compose(t, {"III_SANDBOX_HOST_PORTS": str(port)}) as c:
            c.local("w", start="python3 net.py; sleep 600", files={"net.py": f"""
import socket
def tcp(host, port):
    try:
        s = socket.create_connection((host, port), 20)
        return s.makefile("rb").read().decode()
    except OSError as e:
        return "failed " + type(e).__name__
print("localhost", tcp("localhost", {port}), flush=True)
print("gateway", tcp("{GATEWAY}", {port}), flush=True)
print("hidden", tcp("{GATEWAY}", {other}), flush=True)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.sendto(b"x", ("{GATEWAY}", {port}))
print("udp", s.recv(100).decode(), flush=True)
print("done", flush=True)
"""})
            before = listening(c.p.pid)
            t.check(before, "the engine does not listen")
            vm = c.run("w")
            c.wait_for_line(vm, "done")
            opened = listening(c.p.pid) - before
            if harness.passt_is_old():
                # It binds a port for what the guest sends by UDP; what comes in unasked goes no
                # further than our relay (56-network).
                opened = {s for s in opened if not s[0].startswith("udp")}
            t.equal(opened, set(), "new listening sockets on the host")
            lines = c.lines(vm)
            for line in ("localhost hello from the host", "gateway hello from the host",
                         "hidden failed ConnectionRefusedError", "udp echo x"):
                t.contains(lines, line, "what the worker says")
            c.stop(vm, 0)
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"end", ("127.0.0.1", port))
        server.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(20)
        for s in (server, hidden, datagrams):
            s.close()


@case()
def bad_host_ports_are_exit_2(t):
    r = t.cli("standalone", "--port", "0", env=t.env(III_SANDBOX_HOST_PORTS="80-"))
    t.equal((r.status, r.out), (2, b""), "status and stdout")
    t.contains(r.err, b"III_SANDBOX_HOST_PORTS", "stderr")
    r = t.cli("serve", env=t.env(III_SANDBOX_HOST_PORTS="x", III_URL="ws://127.0.0.1:1"))
    t.equal((r.status, r.out), (2, b""), "status and stdout of serve")


def tree(folder):
    found = {}
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(parent, name)
            st = os.lstat(path)
            found[path] = (st.st_size, st.st_mtime_ns, st.st_mode)
    return found


@case(per_backend=True)
def its_source(t):
    """W90, W91, W92, W94"""
    with Compose(t) as c:
        w = c.local("w", start="find . | sort; echo done; sleep 600",
                    scripts={"setup": "echo SETUP", "install": "echo INSTALL; mkdir -p a/node_modules; "
                             "touch a/node_modules/made"},
                    files={"src/x.js": "1", "old.txt": "1", "node_modules/m/i.js": "1", ".git/HEAD": "1",
                           "dist/d.js": "1", "a/node_modules/host": "1", "a/keep.js": "1",
                           "package-lock.json": "{}"})
        before = tree(c.project)

        def boot():
            vm = c.run("w")
            c.wait_for_line(vm, "done")
            lines = c.lines(vm)
            c.stop(vm)
            return lines
        lines = boot()
        t.equal(tree(c.project), before, "the project on the host")
        for there in ("./src/x.js", "./old.txt", "./a/keep.js", "./a/node_modules/made", "SETUP",
                      "INSTALL"):
            t.contains(lines, there, "first boot")
        for absent in ("./node_modules", "./.git", "./dist", "./a/node_modules/host"):
            t.check(absent not in lines, f"{absent} was copied")
        os.unlink(os.path.join(w, "old.txt"))
        lines = boot()
        t.check("./old.txt" not in lines, "a deleted file is still there")
        t.contains(lines, "./a/node_modules/made", "what the VM made")
        t.check("INSTALL" not in lines and "SETUP" not in lines, "nothing changed, but scripts ran")
        put(os.path.join(w, "package-lock.json"), '{"v": 2}')
        lines = boot()
        t.check("INSTALL" in lines and "SETUP" not in lines, "a new lock file: install alone")
        c.local("w", start="find . | sort; echo done; sleep 600",
                scripts={"setup": "echo SETUP two", "install": "echo INSTALL"})
        lines = boot()
        t.check("INSTALL" in lines and "SETUP two" in lines, "a new setup: both")
        # nothing of the host is mounted
        c.local("w", start="ls -A /mnt/host-src; grep -c iii-src /proc/mounts; "
                           f"ls {c.project} {c.cache}; echo done; sleep 600")
        lines = boot()
        t.contains(lines, "0", "mounts of a source")


@case(per_backend=True)
def an_image_with_nothing_but_a_shell(t):
    """W95: local and bundle, with setup, install and a second boot"""
    shell = shell_image("docker.io/test/shell:latest")
    files = {"a/b/data": "from the host\n", "tool.sh": "#!/bin/sh\necho a tool of $1\n", "gone": "1"}
    start = ("for x in bash tar find python3; do [ -e /bin/$x ] && echo has $x; done; "
             "trap 'exit 6' TERM; cat a/b/data; ./tool.sh mine; ls -1; cat /root/made; "
             "echo done; while :; do busybox sleep 0.1; done")
    install = "echo INSTALL; mkdir -p .venv /root; echo kept >/root/made"
    with Compose(t) as c:
        def boot(path, key):
            os.chmod(os.path.join(path, "tool.sh"), 0o755)
            vm = c.run(path, key=key)
            c.wait_for_line(vm, "done")
            lines = c.lines(vm)
            for line in ("from the host", "a tool of mine", "kept"):
                t.contains(lines, line, f"log of {vm}")
            t.equal([x for x in lines if x.startswith("has ")], [], "what the image must not have")
            s = c.stop(vm, 60000)
            t.equal((s["state"], s["exit_code"], s["signal"]), ("stopped", 6, None), "its end")
            return [x in lines for x in ("SETUP", "INSTALL", "gone")]
        base = {"runtime": {"base_image": shell}}
        local = c.local("w", start, files, scripts={"setup": "echo SETUP", "install": install}, **base)
        c.prepare(local)
        t.equal(boot(local, "k1"), [True, True, True], "first boot")
        os.unlink(os.path.join(local, "gone"))
        t.equal(boot(local, "k1"), [False, False, False], "second boot")
        bundle = c.bundle("w", start, files, scripts={"install": install}, **base)
        t.equal(boot(bundle, "k2"), [False, True, True], "a bundle")


@case(per_backend=True)
def another_base_image(t):
    """The disk is kept over the new image; setup and install run again, once."""
    shell = shell_image("docker.io/test/shell:latest")
    scripts = {"setup": "echo SETUP; mkdir -p /root; echo setup >>/root/state",
               "install": "echo INSTALL; echo install >>/root/state"}
    start = ("type python3 >/dev/null 2>&1 && echo PYTHON; echo run >>/root/state; "
             "while read x; do echo state $x; done </root/state; echo done; exec sleep 600")
    with Compose(t) as c:
        wanted, instance = [], 0
        for base, has_python, again in ((None, True, True), (shell, False, True),
                                        (shell, False, False), (None, True, True)):
            runtime = {"runtime": {"base_image": base}} if base else {}
            c.local("w", start=start.replace("exec", "exec busybox") if base else start,
                    scripts=scripts, **runtime)
            vm = c.run("w")
            instance += 1
            t.equal(vm.instance, instance, "instance")
            c.wait_for_line(vm, "done")
            lines = c.lines(vm)
            wanted += (["setup", "install"] if again else []) + ["run"]
            t.equal([x[6:] for x in lines if x.startswith("state ")], wanted, f"state, boot {instance}")
            t.equal("PYTHON" in lines, has_python, f"whether boot {instance} has the image's Python")
            t.equal(("SETUP" in lines, "INSTALL" in lines), (again, again), f"scripts, boot {instance}")
            c.stop(vm)


@case(per_backend=True)
def a_worker_of_an_engine(t):
    """A worker in Python connects to the engine through the gateway, serves a function, keeps its
    state over a stop and a start; from a local folder and as a bundle."""
    iii_py = open(os.path.join(harness.SOURCE, "tests/conformance/iii.py"), encoding="utf-8").read()
    worker = """
import json, os, iii
class Worker(iii.Engine):
    def on_message(self, m):
        if m.get("type") == "invokefunction" and m.get("invocation_id"):
            with open("/root/count", "a") as f:
                f.write("x")
            os.sync()
            result = {"said": m["data"]["say"], "count": os.path.getsize("/root/count"),
                      "name": os.environ["III_WORKER_NAME"]}
            self.send({"type": "invocationresult", "invocation_id": m["invocation_id"],
                       "function_id": m["function_id"], "result": result})
        else:
            super().on_message(m)
w = Worker(os.environ["III_URL"], name=os.environ["III_WORKER_NAME"])
w.send({"type": "registerfunction", "id": "guest::echo", "description": "says it again"})
print("registered", flush=True)
w.reader.join()
"""
    with Compose(t) as c:
        files = {"worker.py": worker, "iii.py": iii_py}
        for kind, key in ((c.local, "k1"), (c.bundle, "k2")):
            path = kind("echo", start="exec python3 worker.py", files=files)
            for count in (1, 2):
                vm = c.run(path, key=key, name="echo-" + key)
                c.wait_for_line(vm, "registered")
                reply = harness.wait_until(lambda: answered(c), 60, "the function")
                t.equal(reply, {"said": "hi", "count": count, "name": "echo-" + key}, "reply")
                c.stop(vm)
            t.equal(c.destroy(key), True, "destroy")


def answered(c):
    try:
        return c.engine.call("guest::echo", {"say": "hi"})
    except Exception as e:  # not registered yet
        if "function_not_found" not in str(e):
            raise
        return None


main()
