"""Writes small OCI image layouts for tests: layers from lists of entries, every field open to abuse."""
import gzip
import hashlib
import io
import json
import os
import platform
import tarfile

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


def entry(name, data=None, kind=None, mode=None, link="", uid=0, gid=0, mtime=1700000000, size=None):
    """One tar member: a folder when the name ends in a slash, else a file with `data`."""
    info = tarfile.TarInfo(name)
    info.type = kind or (tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE)
    info.mode = mode if mode is not None else (0o755 if info.type == tarfile.DIRTYPE else 0o644)
    info.linkname, info.uid, info.gid, info.mtime = link, uid, gid, mtime
    info.size = len(data or b"") if size is None else size
    return info, data or b""


def tar_of(entries):
    out = io.BytesIO()
    for info, data in entries:
        # Not through TarFile.addfile, which would repair what a test wants broken.
        out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        out.write(data + bytes(-len(data) % 512))
    return out.getvalue() + bytes(1024)


class Layout:
    def __init__(self, path):
        self.path = path
        os.makedirs(os.path.join(path, "blobs/sha256"), exist_ok=True)
        with open(os.path.join(path, "oci-layout"), "w", encoding="utf-8") as f:
            f.write('{"imageLayoutVersion":"1.0.0"}')
        self.manifests = []

    def blob(self, data):
        digest = hashlib.sha256(data).hexdigest()
        with open(self.blob_path("sha256:" + digest), "wb") as f:
            f.write(data)
        return {"digest": "sha256:" + digest, "size": len(data)}

    def blob_path(self, digest):
        return os.path.join(self.path, "blobs/sha256", digest[7:])

    def image(self, layers, tag="latest", config=None, arch=ARCH, pack=True):
        """layers: lists of entry() or bytes of a tar. Returns the manifest (its blob is written)."""
        descriptors, diff_ids = [], []
        for layer in layers:
            tar = layer if isinstance(layer, bytes) else tar_of(layer)
            diff_ids.append("sha256:" + hashlib.sha256(tar).hexdigest())
            data = gzip.compress(tar, 6, mtime=0) if pack else tar
            descriptors.append({"mediaType": LAYER + ("+gzip" if pack else ""), **self.blob(data)})
        text = json.dumps({"architecture": arch, "os": "linux", "config": config or {},
                           "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST,
                    "config": {"mediaType": CONFIG, **self.blob(text)}, "layers": descriptors}
        self.add_manifest(manifest, tag, arch)
        return manifest

    def add_manifest(self, manifest, tag="latest", arch=ARCH):
        self.manifests.append({"mediaType": MANIFEST, **self.blob(json.dumps(manifest).encode()),
                               "platform": {"architecture": arch, "os": "linux"},
                               "annotations": {"org.opencontainers.image.ref.name": tag}})
        with open(os.path.join(self.path, "index.json"), "w", encoding="utf-8") as f:
            json.dump({"schemaVersion": 2, "manifests": self.manifests}, f)
