#!/usr/bin/env python3
"""The disk of an image against foreign readers: umoci, GNU tar, fsck.erofs, the kernel's mount."""
import hashlib
import os
import re
import subprocess
import sys
import tempfile

import image_compare as compare
from harness import BUILD, IMAGES, SOURCE, Skip, case, main

sys.path.insert(0, os.path.join(SOURCE, "tests/data"))
import make_nasty_image as nasty  # noqa: E402

IMAGE_DISK = os.path.join(BUILD, "src/host/image/image-disk")


def only_root():
    if os.geteuid() != 0:
        raise Skip("not root: the kernel mounts disks for root only")


def same(t, layout, tag):
    with tempfile.TemporaryDirectory(dir=t.scratch) as work:
        count, bad = compare.compare_with_umoci(IMAGE_DISK, layout, tag, work)
    t.equal(bad, [], f"differences to umoci in {count} paths")
    return count


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def make_nasty(t, how="mixed"):
    layout = os.path.join(t.scratch, f"nasty-{how}")
    os.makedirs(layout)
    with tempfile.TemporaryDirectory(dir=t.scratch) as work:
        nasty.write_layout(layout, nasty.layers(work), how, "nasty")
    return layout


@case()
def the_nasty_image_is_what_umoci_makes_of_it(t):
    only_root()
    count = same(t, make_nasty(t), "nasty")
    t.equal(count > 1500, True, f"{count} paths are not few")


@case()
def a_debian_image_is_what_umoci_makes_of_it(t):
    only_root()
    layout = os.path.join(IMAGES, "python")
    subprocess.run([os.path.join(SOURCE, "tools/make-python-image"), layout], check=True,
                   stdout=subprocess.DEVNULL)
    count = same(t, layout, "python")
    t.equal(count > 2000, True, f"{count} paths are not few")


@case(soak=True, guard_s=900)
def a_big_debian_image_is_what_umoci_makes_of_it(t):
    only_root()
    layout = os.path.join(IMAGES, "big")
    subprocess.run([os.path.join(SOURCE, "tests/images/make-big-image"), layout], check=True,
                   stdout=subprocess.DEVNULL)
    same(t, layout, "python")


@case()
def the_disk_depends_on_neither_compression_nor_threads(t):
    seen = set()
    for how in ("gzip", "zstd", "plain"):
        layout = make_nasty(t, how)
        for threads in (1, 2, 5):
            disk = os.path.join(t.scratch, "disk")
            compare.build_disk(IMAGE_DISK, compare.layer_args(layout, "nasty"), disk, threads)
            seen.add(sha256(disk))
    t.equal(len(seen), 1, "different disks")


@case()
def old_sparse_files_are_what_gnu_tar_makes_of_them(t):
    only_root()
    tar, disk = os.path.join(t.scratch, "tar"), os.path.join(t.scratch, "disk")
    theirs = os.path.join(t.scratch, "theirs")
    os.mkdir(theirs)
    with open(tar, "wb") as f:
        f.write(nasty.gnu_tar_layer(t.scratch, old_format=True))
    compare.build_disk(IMAGE_DISK, [tar], disk)
    subprocess.run(["tar", "-C", theirs, "-xpSf", tar], check=True)
    with compare.Mounted(disk) as ours:
        a, b = compare.scan(ours), compare.scan(theirs)
    del a[b""], b[b""]
    t.equal(len(a), 5, "files")
    t.equal(compare.differences(a, b), [], "differences to GNU tar")
    t.equal(os.stat(disk).st_blocks * 512 < 2 << 20, True, "the holes take no space")


@case()
def a_file_of_more_than_4_gib_comes_back(t):
    """Sparse, with data on both sides of the border; and zeros as they come beside it."""
    only_root()
    size = (4 << 30) + (200 << 20) + 77
    layer, disk = os.path.join(t.scratch, "layer.gz"), os.path.join(t.scratch, "disk")
    with open(layer, "wb") as out:
        gz = subprocess.Popen(["gzip", "-1"], stdin=subprocess.PIPE, stdout=out)
        # One sparse file in GNU's PAX 1.0 form: data at the start, beyond 4 GiB, and at the end.
        pieces = [(0, b"start"), ((4 << 30) + 5, b"beyond"), (size - 3, b"end")]
        sparse_map = f"{len(pieces)}\n" + "".join(f"{o}\n{len(d)}\n" for o, d in pieces)
        body = nasty.padded(sparse_map.encode()) + b"".join(d for _, d in pieces)
        pax = b"".join(nasty.pax_record(k, v) for k, v in (
            (b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", b"large"), (b"GNU.sparse.realsize", b"%d" % size)))
        gz.stdin.write(nasty.header(b"p", b"x", len(pax)) + nasty.padded(pax) +
                       nasty.header(b"x", nasty.REG, len(body)) + nasty.padded(body))
        # And one that is really there, zeros as they come.
        gz.stdin.write(nasty.header(b"real", nasty.REG, (300 << 20) + 1))
        for _ in range(300):
            gz.stdin.write(bytes(1 << 20))
        gz.stdin.write(nasty.padded(b"!") + bytes(1024))
        gz.stdin.close()
        t.equal(gz.wait(), 0, "gzip")
    compare.build_disk(IMAGE_DISK, [layer], disk)
    with compare.Mounted(disk) as where:
        with open(os.path.join(where, "large"), "rb") as f:
            t.equal(os.fstat(f.fileno()).st_size, size, "size")
            for offset, data in pieces:
                t.equal(os.pread(f.fileno(), len(data) + 1, offset)[:len(data)], data, f"at {offset}")
            t.equal(os.pread(f.fileno(), 5, 4 << 30), bytes(5), "a hole")
        with open(os.path.join(where, "real"), "rb") as f:
            f.seek(300 << 20)
            t.equal(f.read(), b"!", "the last byte")


@case()
def a_full_disk_is_a_clear_error(t):
    """On a file system of 1 MiB, at every stage: while unpacking, and while writing."""
    only_root()
    layer, where = os.path.join(t.scratch, "layer"), os.path.join(t.scratch, "small")
    os.mkdir(where)
    tar = nasty.Layer()
    for i in range(30):
        tar.add(f"f{i}", data=nasty.noise(i, 100_000))
    with open(layer, "wb") as f:
        f.write(tar.done())
    for mib in (1, 4):   # 3 MiB of content, twice
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", where], check=True)
        try:
            r = subprocess.run([IMAGE_DISK, os.path.join(where, "disk"), layer],
                               capture_output=True, timeout=60)
            left = os.listdir(where)
        finally:
            subprocess.run(["umount", where], check=True)
        t.equal(r.returncode, 1, "exit status")
        t.equal(bool(re.search(rb"no space left.*free some", r.stderr)), True, repr(r.stderr))
        t.equal(left, [], "left behind")


@case()
def a_million_entries_stay_in_bounds(t):
    """The most that a layer may have, with long names: memory, and the error one beyond."""
    layer, disk = os.path.join(t.scratch, "layer"), os.path.join(t.scratch, "disk")
    with open(layer, "wb") as f:
        for i in range(1_000_000):
            f.write(nasty.header(b"d%03d/some-file-with-a-name-%06d" % (i % 1000, i), nasty.REG))
        f.write(bytes(1024))
    made = compare.build_disk(IMAGE_DISK, [layer], disk)
    t.equal(made["inodes"], 1_001_001, "inodes")
    if "asan" not in BUILD:
        t.equal(made["max_rss_kib"] < 300 * 1024, True, f"{made['max_rss_kib']} KiB of memory")
    compare.run(["fsck.erofs", disk])
    with open(layer, "r+b") as f:
        f.seek(-1024, os.SEEK_END)
        f.write(nasty.header(b"one-more", nasty.REG) + bytes(1024))
    r = subprocess.run([IMAGE_DISK, disk, layer], capture_output=True, timeout=120)
    t.equal(r.returncode, 1, "exit status")
    t.equal(b"entries of one layer: 1000001 (limit 1000000)" in r.stderr, True, repr(r.stderr))


main()
