#!/usr/bin/env python3
"""The process that runs a VM, looked at from outside while its guest runs.

What hostile code meets in there is the business of tests/unit/test_confine.c; here it is the real
VMMs, at work, that must be in the place they are said to be in.
"""
import json
import os
import signal

from harness import case, command_line, descendants, main, memory_kib

NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")


def need_all_layers(t):
    report = json.loads(t.cli("doctor", "--json").out)
    found = [f for f in report["findings"] if f["name"] == "confinement"]
    t.equal(len(found), 1, "findings of doctor about the confinement")
    if found[0]["state"] != "ok":
        t.skip(f"this host refuses to confine by {found[0]['text'].split('refuses ')[-1]}")


def start(t):
    """A running VM: (the command, the supervisor's pid, the VMM's pid)."""
    p = t.spawn(t.run_argv("echo up; sleep 3600", options=["-q"]))
    t.wait_for_output(p, b"up\n")
    below = descendants(p.pid)
    supervisor = [x for x in below if "__vm-boot" in command_line(x)][0]
    leaves = [x for x in below if not descendants(x)]
    return p, supervisor, max(leaves, key=memory_kib)


def stop(t, p):
    p.send_signal(signal.SIGTERM)
    t.equal(t.finish(p).status, 128 + signal.SIGTERM, "exit status")


def status(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


@case(per_backend=True, smoke=True)
def the_vmm_is_in_a_place_of_its_own(t):
    need_all_layers(t)
    p, _, vmm = start(t)
    for name in NAMESPACES:
        t.check(os.readlink(f"/proc/{vmm}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"),
                f"the VMM is in the host's namespace {name}")
    seen = status(vmm)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        t.equal(int(seen[name], 16), 0, name)
    t.equal(seen["NoNewPrivs"], "1", "no_new_privs")
    t.equal(seen["Seccomp"], "2", "a filter of system calls")
    t.equal(seen["NSpid"].split()[-1], "1", "its pid to itself")
    if os.geteuid() == 0:
        t.check("0" not in seen["Uid"].split(), f"the VMM runs as root: {seen['Uid']}")
        t.check("0" not in seen["Gid"].split(), f"the VMM is of root's group: {seen['Gid']}")
        t.equal(seen["Groups"].split(), [], "supplementary groups")
    stop(t, p)


@case(per_backend=True)
def the_vmm_sees_next_to_no_files(t):
    need_all_layers(t)
    p, _, vmm = start(t)
    root = f"/proc/{vmm}/root"
    allowed = {"proc", "dev"} if t.backend == "krun" else {
        "proc", "dev", "usr", "etc", "lib", "lib64"}
    top = set(os.listdir(root))
    t.check(top <= allowed, f"more than needed: {sorted(top - allowed)}")
    devices = {"null", "urandom", "kvm"} if t.backend == "krun" else {"null", "urandom"}
    t.equal(set(os.listdir(f"{root}/dev")), devices, "devices")
    t.equal(os.listdir(f"{root}/proc"), ["self"], "what is in /proc")
    t.equal(os.listdir(f"{root}/proc/self"), ["fd"], "what is in /proc/self")
    if "etc" in top:
        t.equal(os.listdir(f"{root}/etc"), ["ld.so.cache"], "what is in /etc")
    with open(f"/proc/{vmm}/mountinfo", encoding="utf-8") as f:
        for line in f:
            point, options = line.split()[4:6]
            if not point.startswith(("/proc", "/dev")):
                t.check("ro" in options.split(","), f"{point} is writable")
    for fd in os.listdir(f"/proc/{vmm}/fd"):
        try:
            target = os.readlink(f"/proc/{vmm}/fd/{fd}")
        except FileNotFoundError:
            continue
        t.check(not os.path.isdir(f"/proc/{vmm}/fd/{fd}"), f"descriptor {fd} is a folder: {target}")
    stop(t, p)


@case(per_backend=True)
def the_vmm_has_no_network(t):
    need_all_layers(t)
    p, _, vmm = start(t)
    with open(f"/proc/{vmm}/net/dev", encoding="utf-8") as f:
        interfaces = [line.split(":")[0].strip() for line in f.readlines()[2:]]
    t.check(set(interfaces) <= {"lo", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0",
                                "ip_vti0", "ip6_vti0", "ip6gre0"}, f"interfaces: {interfaces}")
    with open(f"/proc/{vmm}/net/route", encoding="utf-8") as f:
        t.equal(f.readlines()[1:], [], "routes")
    stop(t, p)


@case(per_backend=True)
def the_supervisor_only_waits(t):
    need_all_layers(t)
    p, supervisor, _ = start(t)
    seen = status(supervisor)
    CAP_KILL = 1 << 5
    t.equal(int(seen["CapEff"], 16) & ~CAP_KILL, 0, "capabilities beside that to kill")
    t.equal(seen["NoNewPrivs"], "1", "no_new_privs")
    t.equal(seen["Seccomp"], "2", "a filter of system calls")
    stop(t, p)


@case(per_backend=True)
def the_layers_are_told(t):
    need_all_layers(t)
    r = t.run_code("echo $((6 * 7))", options=["-q"],
                   env=t.env(SANDBOX_LOG="info", III_SANDBOX_REQUIRE_CONFINEMENT="1"))
    t.ends(r, 0, b"42\n")
    t.contains(r.err, b'layers="user pid net ipc root caps landlock seccomp"', "stderr")


main()
