#!/usr/bin/env python3
"""Kernels that never come to the agent: told within the boot's time limit, and nothing is left."""
import os
import struct

from harness import case, main

LOAD = 0x1000000


def kernel(path, code):
    """An ELF that both VMMs take (PVH note for qemu, 64-bit entry for libkrun), holding `code`,
    machine code that means the same in 32-bit and 64-bit mode."""
    note = struct.pack("<III4sQ", 4, 8, 18, b"Xen\0", LOAD)
    image = code.ljust(256, b"\xf4") + note
    image = image.ljust(4096, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 2, 62, 1, LOAD, 64, 0,
                         0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 7, 4096, LOAD, LOAD, len(image), len(image), 4096)
    notes = struct.pack("<IIQQQQQQ", 4, 4, 4096 + 256, LOAD + 256, LOAD + 256, len(note), len(note), 4)
    with open(path, "wb") as f:
        f.write((header + load + notes).ljust(4096, b"\0") + image)


def run(t, path):
    return t.run_code("echo never", options=["-q"], env=t.env(III_SANDBOX_KERNEL=path))


@case(per_backend=True)
def a_kernel_that_hangs(t):
    path = os.path.join(t.scratch, "hang.elf")
    kernel(path, b"\xfa\xeb\xfe")  # cli; 1: jmp 1b
    r = run(t, path)
    t.ends(r, 125, b"")
    t.contains(r.err, b"S300", "stderr")
    t.contains(r.err, b"30", "stderr: the limit that passed")


@case(per_backend=True)
def a_kernel_that_falls_over_at_once(t):
    path = os.path.join(t.scratch, "crash.elf")
    kernel(path, b"\x0f\x0b")  # ud2 with no handlers: a triple fault
    r = run(t, path)
    t.ends(r, 125, b"")
    t.contains(r.err, b"S300", "stderr")


@case(per_backend=True)
def files_that_are_no_kernel(t):
    for name, content in (("empty", b""), ("text", b"hello\n" * 1000),
                          ("cut.elf", b"\x7fELF\x02\x01\x01" + bytes(57)),
                          ("noise.elf", b"\x7fELF" + os.urandom(100000))):
        path = os.path.join(t.scratch, name)
        with open(path, "wb") as f:
            f.write(content)
        r = run(t, path)
        t.ends(r, 125, b"")
        t.contains(r.err, path.encode(), f"stderr with the kernel {name}")
        t.contains(r.err, b"S300", f"stderr with the kernel {name}")
    r = run(t, "/no/such/kernel")
    t.ends(r, 125, b"")
    t.contains(r.err, b"/no/such/kernel", "stderr")


main()
