#!/usr/bin/env python3
"""Resident memory: of the daemon at rest and by what it grows with each idle sandbox, of the other
processes of a sandbox, and of the agent in the guest.

Line `memory`: the ratio is that of the supervisor (__vm-boot) to its 3 MiB. Line `daemon_memory`:
that of the daemon at rest to its 10 MiB; the first sandbox is shown apart, since it also brings in
code that was not needed before.
"""
import common
from harness import command_line, descendants, memory_kib

IDLE = 8  # sandboxes


def figures(pid):
    return {"rss_kib": memory_kib(pid), "private_kib": memory_kib(pid, "RssAnon")}


def processes(t):
    """Those of one `run`."""
    p = t.spawn(t.run_argv("echo up; sleep 3600", options=["-q"]))
    t.wait_for_output(p, b"up\n")
    below = descendants(p.pid)
    supervisor = next(x for x in below if "__vm-boot" in command_line(x))
    vmm = max((x for x in below if x != supervisor), key=memory_kib)
    seen = {"command": figures(p.pid), "supervisor": figures(supervisor), "vmm": figures(vmm)}
    others = {command_line(x): figures(x) for x in below if x not in (supervisor, vmm)}
    p.terminate()
    t.finish(p)
    _, (hello,) = t.vm({"op": "hello"})
    common.emit("memory", seen["supervisor"]["rss_kib"] / 3072, 1.0, backend=t.backend,
                agent_rss_kib=hello["rss_kib"], agent_target_kib=4096, **seen,
                **({"others": others} if others else {}))


def daemon(t):
    bus = common.Bus(t, {"image_allowlist": ["python"]})
    rss = [memory_kib(bus.serve.pid)]
    sandboxes = []
    for _ in range(IDLE):
        sandboxes.append(bus.call("create", image="python")["sandbox_id"])
        rss.append(memory_kib(bus.serve.pid))
    peak = memory_kib(bus.serve.pid, "VmHWM")
    for s in sandboxes:
        bus.call("stop", sandbox_id=s, wait=True)
    after = memory_kib(bus.serve.pid)
    bus.end()
    common.emit("daemon_memory", rss[0] / 10240, 1.0, backend=t.backend, at_rest_kib=rss[0],
                first_sandbox_kib=rss[1] - rss[0], each_further_kib=(rss[-1] - rss[1]) / (IDLE - 1),
                each_target_kib=1024, after_all_stopped_kib=after, peak_kib=peak, sandboxes=IDLE)


for backend in common.backends():
    room = common.room(backend)
    processes(room)
    daemon(room)
