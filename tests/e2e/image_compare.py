#!/usr/bin/env python3
"""Compares the disk that we make of an image with what `umoci unpack` makes of it.

  image_compare.py IMAGE-DISK-PROGRAM LAYOUT[:TAG]       (as root)

Mounts our disk with the kernel. Compared: paths, types, modes, owners, times to the nanosecond,
device numbers, symlink targets, xattrs, sizes, SHA-256 of contents, which names are one inode, and
link counts. Differences that are allowed, each for a reason:

  * A folder that no layer has an entry for: umoci makes it with the time of the unpacking, we with
    time 0, so that the same layers give the same bytes. (Ours must be 0755, 0:0, time 0.)
  * xattrs other than user.* and security.capability: dropped by policy (src/host/image/xattr.h);
    umoci, as root, sets them.
  * xattrs with an empty value: Go's tar reader takes an empty PAX value as "not set", so umoci loses
    them; GNU tar and we keep them.
  * lost+found and the time of reading: not properties of an image.
"""
import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import time


def run(argv, **kw):
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600, **kw)
    if r.returncode:
        raise RuntimeError(f"{argv[0]}: status {r.returncode}: {r.stderr.decode(errors='replace')}")
    return r.stdout


def blob_path(layout, digest):
    return os.path.join(layout, "blobs", *digest.split(":"))


def read_json(layout, digest):
    with open(blob_path(layout, digest), "rb") as f:
        return json.load(f)


def manifest_of(layout, tag=None):
    """The manifest that a tag names (or the only one), through nested indexes."""
    with open(os.path.join(layout, "index.json"), "rb") as f:
        manifests = json.load(f)["manifests"]
    for m in manifests:
        name = m.get("annotations", {}).get("org.opencontainers.image.ref.name")
        if tag in (None, name):
            got = read_json(layout, m["digest"])
            return read_json(layout, got["manifests"][0]["digest"]) if "manifests" in got else got
    raise RuntimeError(f"{layout} has no tag {tag}")


def layer_args(layout, tag=None):
    """FILE,DIGEST,DIFF-ID of each layer, as image-disk takes them."""
    manifest = manifest_of(layout, tag)
    diff_ids = read_json(layout, manifest["config"]["digest"])["rootfs"]["diff_ids"]
    return [f"{blob_path(layout, l['digest'])},{l['digest']},{d}"
            for l, d in zip(manifest["layers"], diff_ids, strict=True)]


def build_disk(program, layers, out, threads=None):
    options = ["--threads", str(threads)] if threads else []
    return json.loads(run([program, *options, out, *layers]))


class Mounted:
    def __init__(self, disk):
        self.disk, self.where = disk, tempfile.mkdtemp(prefix="mounted-")

    def __enter__(self):
        run(["mount", "-t", "erofs", "-o", "loop,ro", self.disk, self.where])
        return self.where

    def __exit__(self, *_):
        run(["umount", self.where])
        os.rmdir(self.where)


def kept(name):
    return name.startswith("user.") or name == "security.capability"


def facts(root, path, st):
    """What is compared of one path, without inode numbers."""
    full = os.path.join(root, path)
    f = {"type": stat.S_IFMT(st.st_mode), "mode": stat.S_IMODE(st.st_mode), "uid": st.st_uid,
         "gid": st.st_gid, "mtime": st.st_mtime_ns,
         "xattrs": {n: os.getxattr(full, n, follow_symlinks=False)
                    for n in os.listxattr(full, follow_symlinks=False) if kept(n)}}
    if stat.S_ISREG(st.st_mode):
        f["size"] = st.st_size
        h = hashlib.sha256()
        with open(full, "rb") as data:
            while chunk := data.read(1 << 20):
                h.update(chunk)
        f["sha256"] = h.hexdigest()
    elif stat.S_ISLNK(st.st_mode):
        f["target"] = os.readlink(full)
    elif stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
        f["device"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
    if not stat.S_ISDIR(st.st_mode):
        f["nlink"] = st.st_nlink
    return f


def scan(root):
    root = os.fsencode(root)
    found, inodes, todo = {}, {}, [b""]
    while todo:
        path = todo.pop()
        st = os.lstat(os.path.join(root, path))
        found[path] = facts(root, path, st)
        if stat.S_ISDIR(st.st_mode):
            names = os.listdir(os.path.join(root, path))
            todo += [os.path.join(path, n) for n in names]
        else:
            inodes.setdefault(st.st_ino, []).append(path)
    for paths in inodes.values():
        for path in paths:
            found[path]["first_name"] = min(paths)
    return found


def implied(ours, theirs, since_ns):
    return (ours["type"] == stat.S_IFDIR and theirs["type"] == stat.S_IFDIR
            and ours["mtime"] == 0 and ours["mode"] == 0o755
            and (ours["uid"], ours["gid"]) == (0, 0) and theirs["mtime"] >= since_ns)


def differences(ours, theirs, since_ns=None):
    """Texts, one a difference. With `since_ns`, folders made since then are implied ones."""
    out = []
    for path in sorted(ours.keys() | theirs.keys()):
        if path not in ours or path not in theirs:
            out.append(f"{path!r}: only in {'ours' if path in ours else 'theirs'}")
            continue
        a, b = ours[path], theirs[path]
        skip = {"mtime"} if since_ns and implied(a, b, since_ns) else set()
        for key in sorted((a.keys() | b.keys()) - skip):
            if key == "xattrs" and {n: v for n, v in a[key].items() if v} == b[key]:
                continue
            if a.get(key) != b.get(key):
                out.append(f"{path!r}: {key}: ours {a.get(key)!r}, theirs {b.get(key)!r}")
    return out


def compare_with_umoci(program, layout, tag, work):
    """Returns (number of paths, differences)."""
    disk = os.path.join(work, "disk.erofs")
    build_disk(program, layer_args(layout, tag), disk)
    run(["fsck.erofs", disk])
    rootfs = os.path.join(work, "umoci")
    since = time.time_ns() - 10**9
    run(["umoci", "raw", "unpack", "--image", f"{layout}:{tag}" if tag else layout, rootfs])
    with Mounted(disk) as mounted:
        ours, theirs = scan(mounted), scan(rootfs)
    return len(ours), differences(ours, theirs, since)


def main():
    layout, _, tag = sys.argv[2].partition(":")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as work:
        count, bad = compare_with_umoci(sys.argv[1], layout, tag or None, work)
    print("\n".join(bad[:100]))
    print(f"{count} paths, {len(bad)} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
