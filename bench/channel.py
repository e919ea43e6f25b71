#!/usr/bin/env python3
"""Files to and from a sandbox through the agent's channel, over the bare console port.

Both directions, to and from a tmpfs in the guest; the bare port moves the same number of bytes from
and to memory, in the pieces it likes best.
"""
import time

import common

SIZE = 64 << 20


def bare(t, kernel, words, disk):
    """(from the guest, to the guest) in MB/s."""
    vm = common.PlainVM(t, kernel, words, disk, [f"pump={SIZE}"])
    vm.wait_for_init()
    view = memoryview(bytearray(1 << 20))
    start = time.monotonic()
    vm.port.sendall(b"g")
    got = 0
    while got < SIZE:
        n = vm.port.recv_into(view)
        if not n:
            raise SystemExit("bench: the bare port closed early")
        got += n
    out = time.monotonic() - start
    start = time.monotonic()
    for _ in range(SIZE // len(view)):
        vm.port.sendall(view)
    vm.port.recv(1)
    into = time.monotonic() - start
    vm.end()
    return SIZE / out / 1e6, SIZE / into / 1e6


def main():
    for backend in common.backends():
        t = common.room(backend)
        kernel, words = common.kernel_of(t)
        disk = common.plain_disk(t)
        ours, plain = [], []
        for _ in range(max(3, common.ROUNDS // 3)):
            write = {"op": "write", "path": "/tmp/file", "bytes": SIZE}
            read = {"op": "read", "path": "/tmp/file"}
            _, (w, r) = t.vm(write, read)
            if w.get("error") or r.get("error") or not r["match"]:
                raise SystemExit(f"bench: {w} {r}")
            ours.append((SIZE / r["us"], SIZE / w["us"]))
            plain.append(bare(t, kernel, words, disk))
        reads, writes = (common.median(x) for x in zip(*ours))
        out, into = (common.median(x) for x in zip(*plain))
        common.emit("channel", min(reads / out, writes / into), 0.8, backend=backend,
                    read_ratio=reads / out, write_ratio=writes / into, read_mb_s=reads, write_mb_s=writes,
                    bare_from_guest_mb_s=out, bare_to_guest_mb_s=into, mib=SIZE >> 20)


if __name__ == "__main__":
    main()
