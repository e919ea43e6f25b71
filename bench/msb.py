#!/usr/bin/env python3
"""On KVM: a sandbox made and a `true` executed in it, over microsandbox's msb on the same kernel.

Ours, three ways. `host`: from the request to the agent's readiness, and an exec of `true`, through the
host code that the daemon uses. `bus`: `create` and `exec` as a caller on the bus waits for them.
`command`: the same by the command `sandbox-libkrun call`. Theirs: `msb create` of a root folder and
`msb exec … true`, each a command, since that is its interface. Where the host's KVM cannot run stock kernels both take the one of
SANDBOX_TEST_KVM_KERNEL, msb as SANDBOX_TEST_KVM_LIBKRUNFW (the same kernel as a libkrunfw).
"""
import os
import subprocess

import common

firmware = os.environ.get("SANDBOX_TEST_KVM_LIBKRUNFW")
if "krun" not in common.backends():
    common.emit("msb_create", None, 0.7, skipped="/dev/kvm is absent")
    common.emit("msb_exec", None, 0.3, skipped="/dev/kvm is absent")
elif os.environ.get("SANDBOX_TEST_KVM_KERNEL") and not firmware:
    common.emit("msb_create", None, 0.7, skipped="SANDBOX_TEST_KVM_LIBKRUNFW is not set")
    common.emit("msb_exec", None, 0.3, skipped="SANDBOX_TEST_KVM_LIBKRUNFW is not set")
else:
    t = common.room("krun")
    bundle = os.path.join(t.scratch, "bundle")
    rootless = [] if os.getuid() == 0 else ["--rootless"]
    subprocess.run(["umoci", "unpack", *rootless, "--image",
                    f"{common.harness.python_layout()}:python", bundle], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    msb = common.Msb(firmware)
    bus = common.Bus(t, {"image_allowlist": ["python"]})
    create, execs = [], []
    ours = {way: {"create": [], "exec": []} for way in ("host", "bus", "command")}

    def call(function, **members):
        """By the command."""
        r = t.cli("call", "--url", bus.url, function, "--json", common.json.dumps(members))
        if r.status:
            raise SystemExit(f"bench: {r}")
        return common.json.loads(r.out)

    def ours_by(way, function):
        def timed(name, **members):
            start = common.time.monotonic()
            reply = function(name, **members)
            ours[way][name].append(common.time.monotonic() - start)
            return reply

        sandbox = timed("create", image="python", cpus=1, memory_mb=512)["sandbox_id"]
        function("exec", sandbox_id=sandbox, argv=["/usr/bin/true"])
        for _ in range(10):
            timed("exec", sandbox_id=sandbox, argv=["/usr/bin/true"])
        function("stop", sandbox_id=sandbox, wait=True)

    for n in range(common.ROUNDS):
        create.append(common.seconds(lambda: msb("create", "-q", "-n", f"b{n}", "-c", "1", "-m", "512M",
                                                 os.path.join(bundle, "rootfs"))))
        msb("exec", f"b{n}", "--", "/usr/bin/true")
        execs += [common.seconds(lambda: msb("exec", f"b{n}", "--", "/usr/bin/true")) for _ in range(10)]
        msb("stop", f"b{n}")
        boot, (warm, storm) = t.vm({"op": "storm", "argv": ["/usr/bin/true"], "count": 1},
                                   {"op": "storm", "argv": ["/usr/bin/true"], "count": 10})
        ours["host"]["create"].append(boot["us"] / 1e6)
        ours["host"]["exec"].append(storm["p50_us"] / 1e6)
        ours_by("bus", bus.call)
        ours_by("command", call)
    bus.end()
    for name, theirs, target in (("create", create, 0.7), ("exec", execs, 0.3)):
        took = {way: common.median(ours[way][name]) for way in ours}
        common.emit(f"msb_{name}", took["bus"] / common.median(theirs), target,
                    bus_s=took["bus"], command_s=took["command"], host_s=took["host"],
                    command_ratio=took["command"] / common.median(theirs),
                    host_ratio=took["host"] / common.median(theirs),
                    msb_s=common.median(theirs), rounds=common.ROUNDS)
