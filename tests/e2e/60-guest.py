#!/usr/bin/env python3
"""What a program finds in the guest, and that it cannot change the image or see another sandbox."""
import json
import time

from harness import case, main

FACTS = r"""
import json, os, socket, stat, subprocess, time
f = {}
f["uid"] = (os.getuid(), os.getgid(), sorted(os.getgroups()))
f["cwd"] = os.getcwd()
f["hostname"] = socket.gethostname()
f["time"] = time.time()
f["mounts"] = {}
for line in open("/proc/self/mounts"):
    _, path, kind, options = line.split()[:4]
    f["mounts"][path] = (kind, options)
f["modes"] = {p: oct(stat.S_IMODE(os.stat(p).st_mode)) for p in ("/", "/tmp", "/run", "/dev/shm")}
f["links"] = {p: os.readlink(p) for p in ("/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr")}
f["devices"] = {p: stat.S_ISCHR(os.stat(p).st_mode) for p in
                ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty",
                 "/dev/ptmx", "/dev/console")}
m, s = os.openpty()
f["pty"] = os.ttyname(s).startswith("/dev/pts/")
with socket.create_server(("127.0.0.1", 0)) as server:
    a = socket.create_connection(server.getsockname())
    b, _ = server.accept()
    a.sendall(b"x" * 96 * 1024); a.close()
    n = 0
    while True:
        data = b.recv(65536)
        if not data: break
        n += len(data)
    b.close()
f["loopback"] = n
f["cards"] = [i for i in os.listdir("/sys/class/net") if os.path.exists(f"/sys/class/net/{i}/device")]
f["cgroup"] = open("/proc/self/cgroup").read().strip()
f["controllers"] = open("/sys/fs/cgroup/cgroup.controllers").read().split()
f["limits"] = {l[:25].strip(): l[25:].split()[:2] for l in open("/proc/self/limits")}
f["python"] = subprocess.run(["python3", "-c", "print(1)"], capture_output=True, text=True).stdout
f["pid_max"] = int(open("/proc/sys/kernel/pid_max").read())
os.mkdir("/srv/d"); open("/srv/d/f", "w").write("x" * 100000); os.rename("/srv/d/f", "/srv/d/g")
os.chown("/srv/d/g", 101, 102); os.symlink("g", "/srv/d/s"); os.link("/srv/d/g", "/srv/d/h")
s = os.stat("/srv/d/s")
f["written"] = (s.st_size, s.st_uid, s.st_gid, s.st_nlink)
os.unlink("/etc/debian_version")
f["removed"] = not os.path.exists("/etc/debian_version")
open("/usr/bin/true", "ab").write(b"x")
print(json.dumps(f))
"""


@case(per_backend=True, smoke=True)
def what_a_program_finds(t):
    r = t.run_code(FACTS, lang="python")
    t.equal(r.status, 0, "exit status")
    f = json.loads(r.out)
    t.equal(f["uid"][:2], [0, 0], "user and group")
    t.equal(f["cwd"], "/", "working folder")
    t.equal(f["hostname"], "sandbox", "host name")
    t.check(abs(f["time"] - time.time()) < 60, f"the guest's clock: {f['time']}, here {time.time()}")
    kinds = {p: kind for p, (kind, _) in f["mounts"].items()}
    t.equal({p: kinds.get(p) for p in ("/", "/proc", "/sys", "/dev/pts", "/dev/shm", "/tmp", "/run",
                                       "/sys/fs/cgroup")},
            {"/": "overlay", "/proc": "proc", "/sys": "sysfs", "/dev/pts": "devpts",
             "/dev/shm": "tmpfs", "/tmp": "tmpfs", "/run": "tmpfs", "/sys/fs/cgroup": "cgroup2"},
            "kinds of mounts")
    t.equal(f["modes"], {"/": "0o755", "/tmp": "0o1777", "/run": "0o755", "/dev/shm": "0o1777"},
            "modes")
    t.equal(f["links"], {"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
                         "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2"}, "links")
    t.check(all(f["devices"].values()), f"devices: {f['devices']}")
    t.equal(f["pty"], True, "a pseudo terminal")
    t.equal(f["loopback"], 96 * 1024, "bytes through 127.0.0.1")
    t.equal(f["cards"], [], "network cards of a sandbox without network")
    t.check({"memory", "pids"} <= set(f["controllers"]) or f["controllers"] == [],
            f"cgroup controllers: {f['controllers']}")
    t.check(f["cgroup"].startswith("0::"), f"cgroup: {f['cgroup']}")
    t.equal(f["python"], "1\n", "a child's output")
    t.equal(f["written"], [100000, 101, 102, 2], "size, owner, group and links of a new file")
    t.equal(f["removed"], True, "a file of the image can be removed")


@case(per_backend=True)
def nothing_of_one_sandbox_is_in_the_next(t):
    t.ends(t.run_code("echo x > /opt/mine; rm /etc/debian_version; echo 1 > /etc/hostname2; sync"), 0)
    r = t.run_code("ls /opt/mine /etc/hostname2 2>/dev/null; test -s /etc/debian_version && echo whole")
    t.ends(r, 0, b"whole\n")


@case(per_backend=True)
def the_image_disk_cannot_be_written_from_the_guest(t):
    # As root in the guest, straight at the block devices: only the sandbox's own disk may take it.
    code = r"""
import fcntl, os, struct
for name in sorted(os.listdir("/sys/block")):
    if not name.startswith("vd"): continue
    ro = open(f"/sys/block/{name}/ro").read().strip()
    if ro == "1":
        try:  # the guest may say what it likes of its end
            fd = os.open(f"/dev/{name}", os.O_RDONLY)
            fcntl.ioctl(fd, 0x125d, struct.pack("i", 0))  # BLKROSET
        except OSError:
            pass
    try:
        fd = os.open(f"/dev/{name}", os.O_RDWR)
        block = os.pread(fd, 4096, 0)
        os.pwrite(fd, block[:1024] + bytes(3072) if ro == "1" else block, 0)
        os.fsync(fd)
        print("written", ro)
    except OSError as e:
        print("refused", ro)
"""
    r = t.run_code(code, lang="python")
    t.equal(r.status, 0, "exit status")
    t.equal(sorted(r.out.split(b"\n")[:-1]), [b"refused 1", b"refused 1", b"written 0"],
            "the three disks")
    t.ends(t.run_code("print(6*7)", lang="python"), 0, b"42\n")


@case(per_backend=True)
def no_way_out_to_the_host(t):
    # No share of the host's files, no network card, no vsock to dial.
    code = r"""
import os, socket
print(sorted({l.split()[2] for l in open("/proc/self/mounts")} & {"9p", "virtiofs", "fuse"}))
try:
    s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    s.settimeout(5)
    s.connect((2, 1024))
    print("vsock connected")
except OSError:
    print("no vsock")
try:
    socket.create_connection(("1.1.1.1", 53), 5)
    print("network")
except OSError:
    print("no network")
"""
    r = t.run_code(code, lang="python")
    t.ends(r, 0, b"[]\nno vsock\nno network\n")


@case(per_backend=True)
def the_kernel_command_line_has_nothing_of_the_user(t):
    r = t.run_program("cat", "/proc/cmdline", "secret-argument", options=["--env", "SECRET_NAME=secret"])
    t.equal(r.status, 1, "exit status of cat")
    t.contains(r.out, b"iii.base=", "command line")
    t.check(b"secret" not in r.out.lower(), "the user's words are on the kernel's command line")


@case(per_backend=True)
def setuid_and_ownership_of_the_image_are_kept(t):
    r = t.run_code("stat -c '%a %u %g' /usr/bin/su /var/mail /usr/sbin/unix_chkpwd /tmp/.")
    t.ends(r, 0, b"4755 0 0\n2775 0 8\n2755 0 42\n1777 0 0\n")


main()
