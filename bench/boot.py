#!/usr/bin/env python3
"""Boot: from the request for a sandbox to its agent's readiness, over the same VMM and kernel to init.

Ours has everything in it: supervisor, confinement, three disks, overlay, cgroups, handshake.
"""
import common

for backend in common.backends():
    t = common.room(backend)
    kernel, words = common.kernel_of(t)
    disk = common.plain_disk(t)
    ours, plain = [], []
    for _ in range(common.ROUNDS):
        boot, _ = t.vm()
        ours.append(boot["us"] / 1e6)
        vm = common.PlainVM(t, kernel, words, disk)
        plain.append(vm.wait_for_init())
        vm.end()
    common.emit("boot", common.median(ours) / common.median(plain), 1.15, backend=backend,
                ours_s=common.median(ours), plain_s=common.median(plain), rounds=common.ROUNDS)
