#!/usr/bin/env python3
"""The guest's network: what it reaches, what it must not, and what is left of it.

Servers of the test listen on this host; what a guest's program saw it prints as JSON.
"""
import array
import inspect
import json
import os
import signal
import socket
import subprocess
import threading

import harness
from harness import (BUILD, case, command_line, descendants, main, processes, use_python_image,
                     wait_until)

GATEWAY, GATEWAY6, GUEST = "100.96.0.1", "fd6d:7300::1", "100.96.0.2"

# In front of every program in a guest.
PRELUDE = """
import fcntl, json, os, socket, struct, sys, termios, time
def attempt(host, port, kind=socket.SOCK_STREAM, data=b"", timeout=60):
    # What comes back, or the name of the error.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, kind)
    s.settimeout(timeout)
    try:
        s.connect((host, port))
        if data: s.send(data)
        return s.recv(1000).decode()
    except socket.timeout: return "timeout"
    except OSError as e: return {111: "refused", 101: "unreachable", 110: "timeout"}.get(e.errno, repr(e))
    finally: s.close()
def done(value): print(json.dumps(value))
"""


class Server:
    """Calls `serve` with each connection (TCP) or answers each datagram with `echo:` and itself."""

    def __init__(self, serve=None, host="", kind=socket.SOCK_STREAM, port=0):
        both = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        self.socket = socket.socket(family, kind)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind((host, port))
        self.port = self.socket.getsockname()[1]
        self.got, self.serve, self.ended = [], serve, False
        if kind == socket.SOCK_STREAM:
            self.socket.listen(100)
        self.thread = threading.Thread(
            target=self.accept if kind == socket.SOCK_STREAM else self.echo, daemon=True)
        self.thread.start()

    def accept(self):
        while True:
            try:
                c, peer = self.socket.accept()
            except OSError:
                return
            self.got.append(peer)
            threading.Thread(target=self.one, args=(c,), daemon=True).start()

    def one(self, c):
        with c:
            try:
                if self.serve:
                    self.serve(c)
                else:
                    c.sendall(b"hello")
            except OSError:
                pass

    def echo(self):
        self.socket.settimeout(0.1)
        while not self.ended:
            try:
                data, peer = self.socket.recvfrom(65536)
            except socket.timeout:
                continue
            self.got.append(data)
            self.socket.sendto(b"echo:" + data, peer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        if self.socket.type == socket.SOCK_STREAM:
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.socket.close()


def own_address(family, far):
    """This host's address towards `far`, or None."""
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try:
            s.connect((far, 9))
            return s.getsockname()[0]
        except OSError:
            return None


def own4():
    return own_address(socket.AF_INET, "192.0.2.1") or own_address(socket.AF_INET, "8.8.8.8")


def has_route6():
    with open("/proc/net/ipv6_route", encoding="utf-8") as f:
        return any(line.startswith("0" * 32 + " 00") and not line.rstrip().endswith(" lo")
                   for line in f)


def guest(t, *programs, ports=(), network=True, more=()):
    """Runs Python programs one after another in one VM; what each printed, as JSON."""
    options = ["--network", ",".join(map(str, ports))] if network else []
    _, replies = t.vm(*[{"op": "exec", "argv": ["python3", "-c", PRELUDE + p]} if isinstance(p, str)
                        else p for p in programs], options=[*options, *more])
    values = []
    for r in replies:
        if r["op"] != "exec":
            values.append(r)
            continue
        t.equal((r["exit_code"], r["stderr"]), (0, ""), "the guest's program")
        values.append(json.loads(r["stdout"]))
    return values


@case(per_backend=True, smoke=True)
def reaches_what_is_listed_and_no_more(t):
    own = own4()
    with Server() as open_, Server() as shut, Server(kind=socket.SOCK_DGRAM) as udp, \
            Server(kind=socket.SOCK_DGRAM) as udp_shut:
        hosts = [GATEWAY] + ([own] if own else [])
        if has_route6():
            hosts.append(GATEWAY6)
            own6 = own_address(socket.AF_INET6, "2001:db8::1")
            if own6:
                hosts.append(own6)
        [seen] = guest(t, f"""
out = {{}}
for h in {hosts!r}:
    out[h] = [attempt(h, {open_.port}), attempt(h, {shut.port}), attempt(h, 22),
              attempt(h, {udp.port}, socket.SOCK_DGRAM, b"ping"),
              attempt(h, {udp_shut.port}, socket.SOCK_DGRAM, b"ping")]
out["metadata"] = attempt("169.254.169.254", 80)
out["interfaces"] = sorted(i for i in os.listdir("/sys/class/net") if i in ("lo", "eth0"))
done(out)""", ports=[open_.port, udp.port])
        for h in hosts:
            if h == GATEWAY6 and harness.passt_is_old():
                seen[h][3] = "echo:ping"  # it answers from an address of its own making
            t.equal(seen[h], ["hello", "refused", "refused", "echo:ping", "refused"], h)
        t.equal(seen["metadata"], "refused", "link-local addresses")
        t.equal(seen["interfaces"], ["eth0", "lo"], "interfaces")
        t.equal((shut.got, udp_shut.got), ([], []), "what reached ports that are not listed")
        # The gateway is the host's loopback.
        t.contains(open_.got[0][0], "127.0.0.1", "whom the server sees")


@case(per_backend=True)
def no_port_is_no_port(t):
    with Server() as s:
        [seen] = guest(t, f"done([attempt('{GATEWAY}', {s.port}), attempt('{GATEWAY}', 53)])")
        t.equal(seen, ["refused", "refused"], "the gateway without ports")
        t.equal(s.got, [], "connections")


@case(per_backend=True)
def names_are_resolved_by_the_host(t):
    """A resolver of our own is the host's: in a mount namespace, on the loopback."""
    path = os.path.join(t.scratch, "resolv.conf")
    with open(path, "w", encoding="utf-8") as f:
        f.write("nameserver 127.0.0.77\n")

    def answer(sock):
        while True:
            try:
                q, peer = sock.recvfrom(4096)
            except OSError:
                return
            if q == b"stop":
                return
            asked.append(q)
            end = q.index(b"\0", 12) + 5  # the question
            kind = int.from_bytes(q[end - 4:end - 2], "big")
            data = b"" if kind != 1 else (b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes([192, 0, 2, 99]))
            sock.sendto(q[:2] + b"\x81\x80\0\1\0" + bytes([kind == 1]) + b"\0\0\0\0" + q[12:end] + data,
                        peer)

    asked = []
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.bind(("127.0.0.77", 53))
    except OSError as e:
        t.skip(f"port 53 of 127.0.0.77 is not for us: {e}")
    thread = threading.Thread(target=answer, args=(sock,), daemon=True)
    thread.start()
    code = PRELUDE + """
done([socket.gethostbyname("worker.example"), socket.gethostbyname("host.iii.internal")])"""
    op = json.dumps({"op": "exec", "argv": ["python3", "-c", code]}) + "\n" + '{"op":"net"}\n'
    apart = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    r = t.command([*apart, "sh", "-c", f"mount --bind {path} /etc/resolv.conf && exec \"$@\"", "sh",
                   os.path.join(BUILD, "tests/e2e/vm_client"), "--image", use_python_image(),
                   "--vmm", t.backend, "--network", ""], stdin=op.encode())
    sock.sendto(b"stop", ("127.0.0.77", 53))
    thread.join(10)
    sock.close()
    t.equal(r.status, 0, "exit status")
    replies = [json.loads(line) for line in r.out.splitlines()]
    t.equal(replies[1]["stderr"], "", "the guest's errors")
    t.equal(json.loads(replies[1]["stdout"]), ["192.0.2.99", GATEWAY], "names")
    t.check(asked, "the host's resolver was not asked")
    t.check(replies[2]["ever"], "a query is activity")


@case(per_backend=True)
def no_network_is_no_way_out(t):
    with Server() as s, Server(kind=socket.SOCK_DGRAM) as u:
        [seen] = guest(t, f"""
out = {{"interfaces": sorted(i for i in os.listdir("/sys/class/net") if i not in ("dummy0", "sit0"))}}
out["up"] = [i for i in os.listdir("/sys/class/net")
             if int(open(f"/sys/class/net/{{i}}/flags").read(), 16) & 1]
out["inet"] = [attempt(h, {s.port}, timeout=3) for h in ("{GATEWAY}", "{own4() or "192.0.2.1"}", "8.8.8.8",
               "{GATEWAY6}", "2001:db8::1")]
out["udp"] = [attempt(h, {u.port}, socket.SOCK_DGRAM, b"x", timeout=3) for h in ("{GATEWAY}", "8.8.8.8")]
try:
    v = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    v.settimeout(5)
    out["vsock"] = []
    for cid in (0, 1, 2, 3):
        try:
            v.connect((cid, {s.port})); out["vsock"].append("connected")
        except OSError as e: out["vsock"].append("no")
except OSError: out["vsock"] = []
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
out["raw"] = []
for name in os.listdir("/sys/class/net"):
    try: out["raw"].append([name, raw.sendto(b"\\xff" * 60, (name, 0))])
    except OSError as e: pass
out["unix"] = [l.split()[-1] for l in open("/proc/net/unix").read().splitlines()[1:] if " @" in l]
done(out)""", network=False)
        t.equal(seen["interfaces"], ["lo"], "interfaces")
        t.equal(seen["up"], ["lo"], "interfaces that are up")
        for answer in seen["inet"] + seen["udp"]:
            t.check(answer == "unreachable" or "Errno" in answer, f"an address answered: {answer}")
        t.check("connected" not in seen["vsock"], "vsock")
        t.check(all(name == "lo" for name, _ in seen["raw"]), f"raw: {seen['raw']}")
        t.equal(seen["unix"], [], "abstract unix sockets")
        t.equal((s.got, u.got), ([], []), "what came out")


@case(per_backend=True)
def spoofed_frames_are_dropped(t):
    """What root in the guest puts on the wire by itself. The last frame is an honest one: what is
    before it has been judged when it arrives."""
    with Server(kind=socket.SOCK_DGRAM) as honest, Server(kind=socket.SOCK_DGRAM) as barred:
        guest(t, f"""
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("eth0", 0))
mac, gw = bytes.fromhex("026d73000002"), bytes.fromhex("026d73000001")
def ip4(src, dst, l4, frag=0, proto=17):
    h = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(l4), 7, frag, 64, proto, 0,
                    socket.inet_aton(src), socket.inet_aton(dst))
    s = sum(struct.unpack("!10H", h)); s = (s & 0xffff) + (s >> 16); s = (s & 0xffff) + (s >> 16)
    return h[:10] + struct.pack("!H", 0xffff - s) + h[12:] + l4
def udp(port, data): return struct.pack("!HHHH", 5000, port, 8 + len(data), 0) + data
def send(packet, kind=0x800, dst=gw, src=mac, tag=b""): raw.send(dst + src + tag + struct.pack("!H", kind) + packet)
own = "{own4() or "127.0.0.1"}"
for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "{GATEWAY}", own):
    send(ip4("{GUEST}", host, udp({barred.port}, b"barred")))
for src in ("127.0.0.1", "{GATEWAY}", own, "0.0.0.0", "8.8.8.8"):
    send(ip4(src, "{GATEWAY}", udp({honest.port}, b"spoofed")))
send(ip4("{GUEST}", "127.0.0.1", udp({honest.port}, b"loopback")))
send(ip4("{GUEST}", "{GATEWAY}", udp({honest.port}, b"another MAC")), src=gw)
send(ip4("{GUEST}", "{GATEWAY}", udp({honest.port}, b"tagged")), tag=b"\\x81\\0\\0\\1")
send(ip4("{GUEST}", "{GATEWAY}", udp({honest.port}, b"fragment"), frag=0x2000))
send(ip4("{GUEST}", "{GATEWAY}", udp({honest.port}, b"fragment"), frag=1))
send(ip4("{GUEST}", "255.255.255.255", udp({honest.port}, b"broadcast")), dst=b"\\xff" * 6)
send(b"", kind=0x9999)
for n in (0, 1, 20, 27): send(ip4("{GUEST}", "{GATEWAY}", udp({honest.port}, b"short"))[:n])
send(ip4("{GUEST}", "{GATEWAY}", udp({honest.port}, b"honest")))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(100); s.connect(("{GATEWAY}", {honest.port})); s.send(b"last")
done(s.recv(100).decode())""", ports=[honest.port])
        t.equal(honest.got, [b"honest", b"last"], "what arrived at the port that is open")
        t.equal(barred.got, [], "what arrived at the one that is not")



def client(t, ports):
    return [os.path.join(BUILD, "tests/e2e/vm_client"), "--image", use_python_image(),
            "--vmm", t.backend, "--network", ",".join(map(str, ports))]


class Running:
    """A VM whose program says that it is there by a connection, and runs on."""

    def __init__(self, t, program, ports=()):
        self.t = t
        with Server() as signal_:
            code = PRELUDE + program.replace("READY", f"attempt('{GATEWAY}', {signal_.port})")
            self.p = t.spawn(client(t, [signal_.port, *ports]), stdin=subprocess.PIPE)
            op = {"op": "exec", "argv": ["python3", "-c", code], "deadline_ms": 200000}
            self.p.stdin.write((json.dumps(op) + "\n").encode())
            self.p.stdin.close()
            self.p.stdin = None
            wait_until(lambda: signal_.got or self.p.poll() is not None, 120, "the guest's sign")
        if self.p.poll() is not None:
            t.finish(self.p)
            raise AssertionError("the VM is gone")
        self.boot, self.passt, self.vmm = 0, 0, 0
        for pid in descendants(self.p.pid):
            words = command_line(pid)
            if "passt" in words.split(" ")[0]:
                self.passt = pid
            elif processes()[pid][0] == self.p.pid:
                self.boot = pid
            else:
                self.vmm = pid
        t.check(self.boot and self.passt and self.vmm, "supervisor, helper and VMM are there")

    def end(self):
        """The daemon's place dies; with it all the rest."""
        self.p.kill()
        self.t.finish(self.p)
        self.expect_gone()

    def expect_gone(self):
        wait_until(lambda: not alive(self.boot, self.passt, self.vmm), 20,
                   "the end of supervisor, helper and VMM")


def alive(*pids):
    table = processes()
    return [pid for pid in pids if pid in table and table[pid][1] not in "ZX"]


def listening(pid):
    """TCP ports that a process listens on."""
    inodes, ports = set(), []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="utf-8") as f:
            for line in f.readlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.append(words[1])
    return ports


@case(per_backend=True)
def two_vms_do_not_meet(t):
    """Both have the same address; who listens in one is found neither from the other nor the host."""
    vm = Running(t, """
s = socket.socket(); s.bind(("", 6379)); s.listen()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("", 6379))
READY
time.sleep(10000)""", ports=[6379])
    [seen] = guest(t, f"done([attempt(h, 6379) for h in ('{GUEST}', '{GATEWAY}')])", ports=[6379])
    t.equal(seen, ["refused", "refused"], "the other guest's port")
    t.equal(listening(vm.passt), [], "ports that passt listens on")
    with socket.socket() as s:
        t.check(s.connect_ex(("127.0.0.1", 6379)) != 0, "the guest's port is one of the host's")
    vm.end()


# Every four bytes say where they belong. Compared, not hashed: libraries that choose their own
# vector instructions are what a kernel without AVX state has trouble with (docs/hacking.md).
def numbers(n):
    return array.array("I", range(n // 4)).tobytes()


NUMBERS = "import array\n" + inspect.getsource(numbers)



@case(per_backend=True)
def bytes_arrive_as_they_were(t):
    """20 MiB to the guest, then 20 MiB back, with the end of the one stream in between."""
    size = 20 << 20
    content = numbers(size)
    seen = []

    def serve(c):
        c.sendall(content)
        c.shutdown(socket.SHUT_WR)
        got = bytearray()
        while data := c.recv(1 << 16):
            got += data
        seen.append((len(got), got == content[::-1]))

    with Server(serve) as s:
        [answer] = guest(t, NUMBERS + f"""
content, got = numbers({size}), bytearray()
s = socket.create_connection(("{GATEWAY}", {s.port}), timeout=200)
while d := s.recv(1 << 16): got += d
s.sendall(content[::-1])
s.shutdown(socket.SHUT_WR)
while struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, bytes(4)))[0]: time.sleep(0.01)
done([len(got), got == content])""", ports=[s.port])
        wait_until(lambda: seen, 60, "the server's end")
        t.equal(answer, [size, True], "what came to the guest")
        t.equal(seen[0], (size, True), "what came from it")


@case(per_backend=True)
def a_slow_reader_gets_all_of_it(t):
    """The guest has closed long before the last byte is read: none is lost for that."""
    size = 8 << 20
    content, seen = numbers(size), []

    def serve(c):
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        got = bytearray()
        while data := c.recv(20000):
            got += data
            if len(got) < 1 << 20:
                threading.Event().wait(0.005)
        seen.append((len(got), got == content))

    with Server(serve) as s:
        guest(t, NUMBERS + f"""
for _ in range(3):
    s = socket.create_connection(("{GATEWAY}", {s.port}), timeout=200)
    s.sendall(numbers({size}))
    s.shutdown(socket.SHUT_WR)
    s.recv(1) # the server's end
    s.close()
done(0)""", ports=[s.port])
        wait_until(lambda: len(seen) == 3, 60, "the server's end")
        t.equal(seen, [(size, True)] * 3, "what came from the guest")


@case(per_backend=True)
def the_guest_closes_its_half_first(t):
    """As `nc -N` does: the request ends with the end of the stream, then comes the answer."""
    if harness.passt_is_old():
        t.skip("passt is of before 2024: it stalls what a guest is sent after its half is closed")
    def serve(c):
        n = 0
        while data := c.recv(1 << 16):
            n += len(data)
        c.sendall(f"{n} ".encode() + bytes(range(256)) * 4096)
    with Server(serve) as s:
        [seen] = guest(t, f"""
s = socket.create_connection(("{GATEWAY}", {s.port}), timeout=100)
s.sendall(b"x" * 100000); s.shutdown(socket.SHUT_WR)
got = b""
try:
    while d := s.recv(1 << 16): got += d
    end = "end"
except OSError as e: end = repr(e)
done([end, len(got), got[:7].decode(), got[7:] == bytes(range(256)) * 4096])""", ports=[s.port])
        t.equal(seen, ["end", 7 + (1 << 20), "100000 ", True], "the answer")


@case(per_backend=True)
def many_short_connections(t):
    with Server() as s:
        [seen] = guest(t, f"""
done([attempt("{GATEWAY}", {s.port}) for _ in range(200)].count("hello"))""", ports=[s.port])
        t.equal(seen, 200, "connections that were served")


@case(per_backend=True)
def what_counts_as_activity(t):
    """Payload does; an idle connection with keepalive probes does not, nor does what is refused. The
    probes come each second of the guest, whose clock may be a fast one."""
    def serve(c):
        c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        while data := c.recv(100):
            c.sendall(data)
    with Server(serve) as s:
        quiet = f"""
s = socket.create_connection(("{GATEWAY}", {s.port}), timeout=100)
s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
"""
        values = guest(
            t, {"op": "net"},
            f"done([attempt('{GATEWAY}', 22), attempt('169.254.169.254', 80)])", {"op": "net"},
            quiet + "time.sleep(4); done(0)", {"op": "net"},
            quiet + "s.sendall(b'x'); s.recv(1); time.sleep(8); done(0)",
            {"op": "net"},
            quiet + "time.sleep(2); s.sendall(b'x'); s.recv(1); done(0)", {"op": "net"},
            ports=[s.port])
        t.equal([v["ever"] for v in values[::2]], [False, False, False, True, True], "any payload")
        t.check(values[6]["idle_ms"] >= 3000, f"probes were taken for payload: {values[6]}")
        t.check(values[8]["idle_ms"] < values[6]["idle_ms"], "the last byte is not seen")


@case(per_backend=True)
def a_dead_helper_ends_the_vm(t):
    vm = Running(t, "READY\ntime.sleep(10000)")
    os.kill(vm.passt, signal.SIGKILL)
    r = t.finish(vm.p)
    t.equal(r.status, 3, "exit status")
    lost = json.loads(r.out.splitlines()[-1])
    t.equal((lost["op"], lost["error"]["code"]), ("lost", "S300"), "the end")
    t.contains(lost["error"]["message"], "the network helper", "why")
    t.contains(lost["error"]["message"], "ended by itself with signal 9", "why")
    vm.expect_gone()


@case(per_backend=True)
def nothing_is_left_however_it_dies(t):
    for victim in ("boot", "vmm", "p"):
        vm = Running(t, "READY\ntime.sleep(10000)")
        if victim == "p":
            vm.end()
            continue
        os.kill(getattr(vm, victim), signal.SIGKILL)
        t.equal(t.finish(vm.p).status, 3, "exit status")
        vm.expect_gone()


@case(per_backend=True)
def a_helper_that_cannot_start_says_why(t):
    """The VM ends with the helper's words, long before its own start could time out."""
    fake = os.path.join(t.scratch, "passt")
    with open(fake, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho 'Failed to send 7 bytes to syslog' >&2\n"
                "echo 'Couldn'\\''t create user namespace' >&2\nexit 1\n")
    os.chmod(fake, 0o755)
    r = t.command(client(t, []), stdin=b'{"op":"hello"}\n', env=t.env(III_SANDBOX_PASST=fake))
    t.equal(r.status, 3, "exit status")
    lost = json.loads(r.out.splitlines()[-1])
    t.contains(lost["error"]["message"], "Couldn't create user namespace", "why")
    t.contains(lost["error"]["message"], "with status 1", "why")
    t.check("syslog" not in lost["error"]["message"], "noise in the reason")


@case()
def a_missing_helper_is_named(t):
    t.backend = "qemu"
    r = t.command(client(t, []), stdin=b'{"op":"hello"}\n',
                  env=t.env(III_SANDBOX_PASST="/nowhere/passt"))
    t.equal(r.status, 2, "exit status")
    t.contains(r.err, b"III_SANDBOX_PASST=/nowhere/passt", "stderr")
    r = t.command(["unshare", "-n" if os.geteuid() == 0 else "-Urn", *client(t, [])],
                  stdin=b'{"op":"hello"}\n')
    t.equal(r.status, 2, "exit status without a route")
    t.contains(r.err, b"needs a default route", "stderr")


main()
