"""The state folder of a case as a file system of its own, which can be full."""
import os
import shutil
import subprocess

from harness import diagnose, wait_until

DISK_MIB = 768
UMOUNT_S = 15  # a guard


class SmallDisk:
    """The state folder as a file system of its own, which can be filled. kind: what it is."""

    def __init__(self, t):
        self.t, self.kind, self.ballast = t, None, os.path.join(t.state, "ballast")

    def __enter__(self):
        t = self.t
        image = os.path.join(t.scratch, "state.ext4")
        if os.geteuid() == 0:
            with open(image, "wb") as f:
                f.truncate(DISK_MIB << 20)
            made = self.quiet("mkfs.ext4", "-q", "-F", "-m", "0", image)
            if made and self.quiet("mount", "-o", "loop", image, t.state):
                self.kind = "ext4 on a loop device"
            elif self.quiet("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", t.state):
                self.kind = "tmpfs"
        diagnose(f"the disk that gets full: {self.kind or 'none, that needs root'}")
        return self

    def __exit__(self, *_):
        if self.kind:
            for path in os.listdir(self.t.state):
                shutil.rmtree(os.path.join(self.t.state, path), ignore_errors=True)
            wait_until(lambda: self.quiet("umount", self.t.state), UMOUNT_S, "umount of the state")

    @staticmethod
    def quiet(*argv):
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def env(self):
        return {"III_SANDBOX_ALLOW_TMPFS": "1"} if self.kind == "tmpfs" else {}

    def fill(self, slack):
        """All but `slack` bytes."""
        with open(self.ballast, "wb", buffering=0) as f:
            for piece in (1 << 20, 4096):
                try:
                    while f.write(bytes(piece)) == piece:
                        pass
                except OSError:
                    pass
            os.fsync(f.fileno())
            f.truncate(max(0, f.tell() - slack))

    def free(self):
        if os.path.exists(self.ballast):
            os.unlink(self.ballast)

    def full(self):
        return os.path.exists(self.ballast)
