#!/usr/bin/env python3
"""Writes an OCI layout whose layers use every corner of tar and of the layer rules that is legal.

  make_nasty_image.py DIR [gzip|zstd|plain|mixed]      (default: mixed of gzip and plain)

The tars are the same whatever the compression, and the same each time. Read with
`umoci raw unpack --image DIR:nasty` (not zstd: umoci 0.4 does not know it). The parts that Python's
tarfile cannot write (odd headers, hand-made PAX records) are written by hand.
"""
import gzip
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys

REG, LINK, SYM, CHR, BLK, DIR, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
CAP_NET_RAW = bytes.fromhex("0100000200200000000000000000000000000000")
T0 = 1_600_000_000


def number(value, width):
    """Octal where it fits, else GNU's base-256 (also for negative numbers)."""
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return ((1 << (8 * width - 1)) | (value & ((1 << (8 * width - 1)) - 1))).to_bytes(width, "big") \
        if value >= 0 else (value & ((1 << (8 * width)) - 1)).to_bytes(width, "big")


def header(name, kind, size=0, mode=0o644, uid=0, gid=0, mtime=T0, link=b"", major=0, minor=0,
           magic=b"ustar\x0000", prefix=b""):
    h = bytearray(512)
    h[0:len(name)] = name
    h[100:108] = number(mode, 8)
    h[108:116] = number(uid, 8)
    h[116:124] = number(gid, 8)
    h[124:136] = number(size, 12)
    h[136:148] = number(mtime, 12)
    h[148:156] = b" " * 8
    h[156:157] = kind
    h[157:157 + len(link)] = link
    h[257:257 + len(magic)] = magic
    if magic == b"ustar\x0000" or kind in (CHR, BLK):
        h[329:337] = number(major, 8)
        h[337:345] = number(minor, 8)
    h[345:345 + len(prefix)] = prefix
    h[148:156] = b"%06o\0 " % sum(h)
    return bytes(h)


def padded(data):
    return data + bytes(-len(data) % 512)


def pax_record(key, value):
    body = b" " + key + b"=" + value + b"\n"
    n = len(body)
    while len(b"%d" % n) + len(body) != n:
        n = len(b"%d" % n) + len(body)
    return b"%d" % n + body


class Layer:
    """A tar under way. Entries with more than a plain header can hold use PAX unless gnu=True."""

    def __init__(self):
        self.out = io.BytesIO()

    def raw(self, data):
        self.out.write(data)

    def add(self, name, kind=REG, data=b"", pax=None, gnu=False, link=b"", size=None, **meta):
        name = name if isinstance(name, bytes) else name.encode()
        link = link if isinstance(link, bytes) else link.encode()
        pax = dict(pax or {})
        magic = b"ustar  \0" if gnu else b"ustar\x0000"
        if gnu:
            for long_kind, text in ((b"K", link), (b"L", name)):
                if len(text) > 100:
                    self.raw(header(b"././@LongLink", long_kind, len(text) + 1, 0, magic=magic,
                                    mtime=0) + padded(text + b"\0"))
        else:
            if len(name) > 100:
                pax.setdefault(b"path", name)
            if len(link) > 100:
                pax.setdefault(b"linkpath", link)
            for key in (b"uid", b"gid"):
                value = meta.get(key.decode(), 0)
                if value > 0o7777777:
                    pax.setdefault(key, b"%d" % value)
                    meta[key.decode()] = 0
        if pax:
            records = b"".join(pax_record(k, v) for k, v in pax.items())
            self.raw(header(b"PaxHeaders/x", b"x", len(records)) + padded(records))
        self.raw(header(name[:100], kind, len(data) if size is None else size, link=link[:100],
                        magic=magic, **meta))
        self.raw(padded(data))

    def dir(self, name, **meta):
        meta.setdefault("mode", 0o755)
        self.add(name, DIR, **meta)

    def sym(self, name, target, **meta):
        meta.setdefault("mode", 0o777)
        self.add(name, SYM, link=target, **meta)

    def hard(self, name, target, **meta):
        self.add(name, LINK, link=target, **meta)

    def whiteout(self, name, **meta):
        directory, _, base = name.rpartition("/")
        self.add((directory + "/" if directory else "") + ".wh." + base, **meta)

    def opaque(self, directory):
        self.add(directory + "/.wh..wh..opq")

    def done(self):
        return self.out.getvalue() + bytes(1024)


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def xattrs(**values):
    return {b"SCHILY.xattr." + k.replace("__", ".").encode(): v for k, v in values.items()}


def base_layer():
    t = Layer()
    t.dir("./", mode=0o711, mtime=T0 + 5)
    t.dir("usr/", mtime=T0 + 6)
    t.dir("usr/lib/")
    t.dir("usr/bin")
    t.sym("lib", "usr/lib")
    t.sym("bin", "/usr/bin", uid=3, gid=4)
    t.dir("sizes")
    for size in (0, 1, 511, 512, 513, 4031, 4032, 4033, 4095, 4096, 4097, 8128, 8191, 8192, 10000,
                 131072, 1048577):
        t.add(f"sizes/{size}", data=noise(size, size), mtime=T0 + size)
    t.dir("modes", mode=0o1777)
    for mode in (0, 0o400, 0o4755, 0o2755, 0o6755, 0o7777, 0o1644):
        t.add(f"modes/{mode:o}", data=b"x", mode=mode)
        t.dir(f"modes/d{mode:o}", mode=mode)
    t.add("modes/d400/inside", data=b"in a folder that only root may enter")
    t.dir("owners")
    for uid, gid in ((0, 65534), (65535, 65536), (1000000, 2000000), (4294967294, 4294967294)):
        t.add(f"owners/{uid}-{gid}", data=b"o", uid=uid, gid=gid)
        t.add(f"owners/gnu-{uid}-{gid}", data=b"o", uid=uid, gid=gid, gnu=True)
    t.dir("times")
    for text in ("0", "1", "-1", "-86400", "1234567890.123456789", "1.5", "1600000000.000000001",
                 "-2.25", "-1.5", "4294967296.75"):
        t.add(f"times/{text}", data=b"t", pax={b"mtime": text.encode()})
    t.add("times/gnu-negative", data=b"t", mtime=-3600, gnu=True)
    t.dir("names")
    for name in (b"caf\xc3\xa9", b"cafe\xcc\x81", b"latin1-\xe9", b"\xff\xfe", b"new\nline", b"tab\t",
                 b" leading", b"trailing ", b"-dash", b"!bang", b"...", b".-", b"..a", b"a\\b", b"\x01"):
        t.add(b"names/" + name, data=name, gnu=True)
        t.add(b"names/pax-" + name, data=name, pax={b"path": b"names/pax-" + name})
    t.add("names/" + "n" * 255, data=b"255")
    t.add("names/" + "g" * 255, data=b"255", gnu=True)
    deep = "deep"
    for i in range(40):
        t.dir(deep)
        deep += f"/{i:02d}" + "d" * 20
    t.add(deep, data=b"deep")
    t.sym("names/to-deep", deep)
    t.sym("names/to-deep-gnu", deep, gnu=True)
    t.raw(header(b"split", REG, 5, prefix=b"names") + padded(b"split"))
    t.dir("xattrs", pax=xattrs(user__dir=b"on a folder"))
    t.add("xattrs/cap", data=b"c", mode=0o755, pax=xattrs(security__capability=CAP_NET_RAW))
    t.add("xattrs/many", data=b"m" * 3000,
          pax=xattrs(user__a=b"1", user__empty=b"", user__bin=bytes(range(1, 256)), user__z=b"z" * 900))
    # Not on the disk (policy), and Linux lets root set them: the comparison knows.
    t.add("xattrs/dropped", data=b"d", pax=xattrs(trusted__overlay__opaque=b"y",
                                               trusted__other=b"t", user__kept=b"k"))
    t.add("xattrs/to-be-replaced", data=b"d", pax=xattrs(user__old=b"old"))
    t.dir("devices")
    for name, kind, major, minor in (("null", CHR, 1, 3), ("big", BLK, 259, 70000),
                                     ("max", CHR, 4095, 1048575), ("fifo", FIFO, 0, 0)):
        t.add(f"devices/{name}", kind, major=major, minor=minor, mode=0o660, uid=5, gid=6)
    t.dir("links")
    t.add("links/first", data=noise(99, 50000), mtime=T0 + 99)
    for i in range(200):
        t.hard(f"links/{i:03d}", "links/first")
    t.sym("links/sym", "nowhere/to/be/found")
    t.hard("links/sym-too", "links/sym")
    t.sym("links/absolute", "/etc/../etc/passwd")
    t.sym("links/up", "../../../../../../etc/passwd")
    t.sym("links/long", "t" * 3000)
    t.dir("many")
    for i in range(1500):
        t.add(f"many/{'f' * (i % 180)}{i}", data=b"%d" % i)
    t.dir("many-gone")
    for i in range(300):
        t.add(f"many-gone/{i}", data=b"%d" % i)
    t.add("implied/parent/of/this", data=b"implied")
    t.dir("gone")
    t.add("gone/a", data=b"a")
    t.add("gone/sub/b", data=b"b")
    t.dir("opaque")
    t.add("opaque/old", data=b"old")
    t.dir("opaque/olddir")
    t.add("opaque/olddir/x", data=b"x")
    t.dir("opaque-late")
    t.add("opaque-late/old", data=b"old")
    t.add("opaque-late/both", data=b"lower")
    for name in ("dir-to-file", "dir-to-link", "dir-to-dir"):
        t.dir(name)
        t.add(name + "/in", data=b"in")
    t.add("file-to-dir", data=b"was a file")
    t.add("file-to-fifo", data=b"was a file")
    t.sym("link-to-dir", "usr")
    t.sym("link-to-file", "usr")
    t.add("twice", data=b"first", mode=0o600)
    t.add("twice", data=b"second, longer", mode=0o640)
    t.dir("flip")
    t.add("flip/f", data=b"1")
    return t.done()


def second_layer():
    t = Layer()
    # Through symlinks of the layer below, as usr-merged images have them.
    t.add("lib/through-lib", data=b"in usr/lib")
    t.add("bin/through-bin", data=b"in usr/bin", mode=0o4755)
    t.dir("lib/newdir")
    t.add("lib/newdir/x", data=b"x")
    t.sym("loose", "made/by/dangling")
    t.add("loose/file", data=b"below a symlink that dangled")
    t.sym("clamped", "../../../../usr")
    t.add("clamped/through-clamped", data=b"in usr")
    t.whiteout("gone/a")
    t.whiteout("gone/not-there")
    t.whiteout("missing-folder/not-there")
    t.dir("opaque", mode=0o700, mtime=T0 + 50)
    t.opaque("opaque")
    t.add("opaque/new", data=b"new")
    t.add("opaque-late/new", data=b"new")
    t.add("opaque-late/both", data=b"upper")
    t.opaque("opaque-late")
    t.add("dir-to-file", data=b"a file now")
    t.sym("dir-to-link", "usr")
    t.dir("dir-to-dir", mode=0o700, uid=7, mtime=T0 + 70)
    t.dir("file-to-dir")
    t.add("file-to-dir/in", data=b"in")
    t.add("file-to-fifo", FIFO)
    t.dir("link-to-dir")
    t.add("link-to-dir/in", data=b"not in usr")
    t.add("link-to-file", data=b"a file now")
    t.hard("links/from-upper", "links/first")
    t.hard("lib/hard-through-link", "bin/through-bin")
    t.whiteout("links/000")
    t.add("links/001", data=b"replaced: the others keep the old content")
    t.add("xattrs/to-be-replaced", data=b"new", pax=xattrs(user__new=b"new"))
    t.dir("xattrs")
    t.add(".//usr/./share//doc/", DIR, mode=0o750)
    t.whiteout("flip/f")
    t.add("flip/g", data=b"g")
    t.dir("dotted/", mode=0o755)
    t.add("./dotted/./file", data=b"dots")
    return t.done()


def third_layer():
    t = Layer()
    t.hard(".wh.flip", "nothing/of/the/kind")      # a whiteout shipped as a hard link
    t.dir("dir-to-file")
    t.add("dir-to-file/in", data=b"a folder again")
    t.whiteout("dir-to-link")
    t.dir("dir-to-link")
    t.add("dir-to-link/in", data=b"own folder")
    t.add("link-to-dir", data=b"a file in the end")
    t.hard("links/third", "links/from-upper")
    t.add("links/first", data=b"the first name is a new file")
    t.dir("usr", mode=0o755, uid=1, gid=2, mtime=T0 + 500)
    t.whiteout("gone", mode=0)
    t.dir("gone")
    t.add("gone/only", data=b"only")
    t.whiteout("many-gone", mode=0)
    t.add("late-whiteout", data=b"stays: a whiteout hides lower layers only")
    t.whiteout("late-whiteout")
    t.dir(".", mode=0o755, uid=0, gid=0, mtime=T0 + 900)
    return t.done()


def without_pid(tar):
    """GNU tar names the place of a sparse file's headers after its process: makes it one name."""
    out = bytearray(tar)
    for at in range(0, len(out), 512):
        name = bytes(out[at:at + 100])
        if b"GNUSparseFile." in name and out[at + 257:at + 262] == b"ustar":
            out[at:at + 100] = re.sub(rb"GNUSparseFile\.\d+", b"GNUSparseFile.0", name).ljust(100, b"\0")
            out[at + 148:at + 156] = b" " * 8
            out[at + 148:at + 156] = b"%06o\0 " % sum(out[at:at + 512])
    return bytes(out)


PAX = "--pax-option=delete=atime,delete=ctime,exthdr.name=%f"
GNU_SPARSE = (["--format=gnu"], ["--format=pax", "--sparse-version=0.0"],
              ["--format=pax", "--sparse-version=0.1"], ["--format=pax", "--sparse-version=1.0"])


def gnu_tar_layer(work, old_format=False):
    """Sparse files in the ways GNU tar has, each of them with data at both ends. umoci refuses the
    old format, so that one is compared with GNU tar itself."""
    path = os.path.join(work, "sparse")
    with open(path, "wb") as f:
        f.write(noise(1, 5000))
        f.seek(3 << 20)
        f.write(noise(2, 70000))
        f.seek(40 << 20)
        f.write(b"end")
    os.utime(path, (T0, T0))
    parts = []
    for i, options in enumerate(GNU_SPARSE if old_format else GNU_SPARSE[1:]):
        tar = subprocess.run(
            ["tar", "-C", work, "-cS", "-b1", "--owner=0", "--group=0", "--mode=644",
             PAX if "pax" in options[0] else "--no-xattrs", f"--transform=s,^,sparse{i}-,",
             *options, "sparse"],
            check=True, stdout=subprocess.PIPE).stdout
        parts.append(tar[:-1024])
    with open(path, "wb") as f:
        f.truncate(5 << 20)     # nothing but a hole
    os.utime(path, (T0, T0))
    parts.append(subprocess.run(["tar", "-C", work, "-cS", "-b1", "--owner=0", "--group=0",
                                 "--mode=644", "--format=pax", PAX, "--transform=s,^,hole-,", "sparse"],
                                check=True, stdout=subprocess.PIPE).stdout[:-1024])
    os.unlink(path)
    return without_pid(b"".join(parts) + bytes(1024))


def layers(work):
    """The uncompressed tars, lowest first."""
    return [base_layer(), second_layer(), gnu_tar_layer(work), third_layer()]


def compress(data, how):
    if how == "gzip":
        # Two members with a file name in the header: both are legal.
        half = len(data) // 2
        out = io.BytesIO()
        for part in (data[:half], data[half:]):
            with gzip.GzipFile("name", "wb", 6, out, mtime=0) as f:
                f.write(part)
        return out.getvalue()
    if how == "zstd":
        return subprocess.run(["zstd", "-q", "-c", "-3"], input=data, check=True,
                              stdout=subprocess.PIPE).stdout
    return data


MEDIA = {"gzip": "+gzip", "zstd": "+zstd", "plain": ""}


def write_layout(path, tars, how, tag, arch="amd64"):
    blobs = os.path.join(path, "blobs/sha256")
    os.makedirs(blobs, exist_ok=True)

    def blob(data):
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(blobs, digest), "wb") as f:
            f.write(data)
        return {"digest": "sha256:" + digest, "size": len(data)}

    descriptors = []
    for i, tar in enumerate(tars):
        kind = ("gzip", "plain")[i % 2] if how == "mixed" else how
        descriptors.append({"mediaType": "application/vnd.oci.image.layer.v1.tar" + MEDIA[kind],
                            **blob(compress(tar, kind))})
    config = {"architecture": arch, "os": "linux", "config": {"Cmd": ["/bin/true"]},
              "rootfs": {"type": "layers",
                         "diff_ids": ["sha256:" + hashlib.sha256(t).hexdigest() for t in tars]}}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                           **blob(json.dumps(config).encode())},
                "layers": descriptors}
    index = {"schemaVersion": 2, "manifests": [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json",
         "annotations": {"org.opencontainers.image.ref.name": tag},
         "platform": {"os": "linux", "architecture": arch},
         **blob(json.dumps(manifest).encode())}]}
    with open(os.path.join(path, "index.json"), "w") as f:
        json.dump(index, f)
    with open(os.path.join(path, "oci-layout"), "w") as f:
        f.write('{"imageLayoutVersion":"1.0.0"}')


def main():
    path = sys.argv[1]
    os.makedirs(path, exist_ok=True)
    write_layout(path, layers(path), sys.argv[2] if len(sys.argv) > 2 else "mixed", "nasty")


if __name__ == "__main__":
    main()
