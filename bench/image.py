#!/usr/bin/env python3
"""Layers to disk: over `gzip -dc` of the same layers, and over `umoci unpack` + `mkfs.erofs`.

The image is the big one (tests/images/make-big-image): eight gzip layers of Debian packages, about
240 MB, 550 MB unpacked. Ours checks both digests of each layer and writes the disk; gzip only
decompresses, one layer after another, to nowhere. Two JSON lines, ratios ours over theirs.
"""
import os
import subprocess

import common
import image_compare as compare

ROUNDS = max(3, common.ROUNDS // 2)
SLOW_ROUNDS = max(2, common.ROUNDS // 5)   # umoci takes half a minute

layout = os.path.join(common.harness.IMAGES, "big")
subprocess.run([os.path.join(common.SOURCE, "tests/images/make-big-image"), layout], check=True,
               stdout=subprocess.DEVNULL)
program = os.path.join(common.BUILD, "src/host/image/image-disk")
layers = compare.layer_args(layout, "python")
blobs = [l.split(",")[0] for l in layers]
t = common.room(None)
disk = os.path.join(t.scratch, "disk")
rootfs, theirs = os.path.join(t.scratch, "rootfs"), os.path.join(t.scratch, "theirs")
figures = {}


def ours():
    figures.update(compare.build_disk(program, layers, disk))


def gzip():
    for blob in blobs:
        subprocess.run(["gzip", "-dc", blob], stdout=subprocess.DEVNULL, check=True)


def umoci():
    compare.run(["umoci", "raw", "unpack", "--image", f"{layout}:python", rootfs])
    compare.run(["mkfs.erofs", theirs, rootfs])


def measure(other, rounds):
    """Medians of ours and of the other, taking turns; what they leave goes in between."""
    a, b = [], []
    for _ in range(rounds):
        a.append(common.seconds(ours))
        os.unlink(disk)
        b.append(common.seconds(other))
        common.shutil.rmtree(rootfs, ignore_errors=True)
    return common.median(a), common.median(b)


gzip()      # the blobs are in the page cache for both
mine, other = measure(gzip, ROUNDS)
common.emit("image_gzip", mine / other, 0.8, ours_s=mine, gzip_s=other, rounds=ROUNDS,
            blob_mb=sum(os.path.getsize(b) for b in blobs) // 10**6,
            data_mb=figures["data_bytes"] // 10**6, disk_mb=figures["disk_bytes"] // 10**6,
            max_rss_mib=figures["max_rss_kib"] / 1024, cpus=os.cpu_count())
if os.geteuid() == 0:   # umoci keeps owners for root only
    mine, other = measure(umoci, SLOW_ROUNDS)
    common.emit("image_umoci", mine / other, None, ours_s=mine, umoci_mkfs_s=other,
                rounds=SLOW_ROUNDS)
