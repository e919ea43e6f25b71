#!/usr/bin/env python3
"""Resident memory of each process of a running sandbox, and of the agent in the guest.

The ratio is that of the supervisor (__vm-boot) to its 3 MiB.
"""
import common
from harness import command_line, descendants, memory_kib


def figures(pid):
    return {"rss_kib": memory_kib(pid), "private_kib": memory_kib(pid, "RssAnon")}


for backend in common.backends():
    t = common.room(backend)
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
    common.emit("memory", seen["supervisor"]["rss_kib"] / 3072, 1.0, backend=backend,
                agent_rss_kib=hello["rss_kib"], agent_target_kib=4096, **seen,
                **({"others": others} if others else {}))
