#!/usr/bin/env python3
"""fs::read and fs::write through channels, from a caller on the bus to a file in the guest and back.

Between caller and file are the engine, the daemon, the port and the agent, each a process of its
own. Over what the bare console port carries between the guest and one process (see channel.py).
"""
import json

import channel
import common

SIZE = channel.SIZE


def through(bus, sandbox):
    """(from the guest, to the guest) in MB/s."""
    request = json.dumps({"sandbox_id": sandbox, "path": "/tmp/file"})
    into = bus.bench("write", request, SIZE)
    out = bus.bench("read", request)
    if out["bytes"] != SIZE:
        raise SystemExit(f"bench: {out}")
    return SIZE / out["us"], SIZE / into["us"]


for backend in common.backends():
    t = common.room(backend)
    kernel, words = common.kernel_of(t)
    disk = common.plain_disk(t)
    bus = common.Bus(t, {"image_allowlist": ["python"]})
    sandbox = bus.call("create", image="python")["sandbox_id"]
    ours, plain = [], []
    for _ in range(max(3, common.ROUNDS // 3)):
        ours.append(through(bus, sandbox))
        plain.append(channel.bare(t, kernel, words, disk))
    bus.call("stop", sandbox_id=sandbox, wait=True)
    bus.end()
    reads, writes = (common.median(x) for x in zip(*ours))
    out, into = (common.median(x) for x in zip(*plain))
    common.emit("bus_channel", min(reads / out, writes / into), 0.8, backend=backend,
                read_ratio=reads / out, write_ratio=writes / into, read_mb_s=reads, write_mb_s=writes,
                bare_from_guest_mb_s=out, bare_to_guest_mb_s=into, mib=SIZE >> 20)
