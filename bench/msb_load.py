#!/usr/bin/env python3
"""Image to disk: `image import` of an OCI layout, over `msb load` of the same image as docker-archive.

The image is the big one (tests/images/make-big-image): eight layers. A docker-archive holds its
layers unpacked, so msb has no gzip to undo: that is its own best case. The ratio is theirs over ours.
"""
import os
import subprocess

import common

ROUNDS = max(3, common.ROUNDS // 3)

layout = os.path.join(common.harness.IMAGES, "big")
subprocess.run([os.path.join(common.SOURCE, "tests/images/make-big-image"), layout], check=True,
               stdout=subprocess.DEVNULL)
t = common.room(None)
archive = os.path.join(t.scratch, "big.tar")
subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}:python",
                f"docker-archive:{archive}:localhost/big:1"], check=True)
ours, theirs = [], []
for n in range(ROUNDS):
    t.cache = os.path.join(t.scratch, f"cache{n}")

    def one():
        r = t.cli("image", "import", f"oci:{layout}:python", "--as", "python", "--quiet")
        if r.status:
            raise SystemExit(f"bench: {r}")

    ours.append(common.seconds(one))
    common.shutil.rmtree(t.cache)
    msb = common.Msb()
    theirs.append(common.seconds(lambda: msb("load", "-i", archive)))
    common.shutil.rmtree(msb.home)
common.emit("msb_load", common.median(theirs) / common.median(ours), 1.5, better="higher",
            ours_s=common.median(ours), msb_s=common.median(theirs), rounds=ROUNDS)
