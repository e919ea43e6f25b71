#!/usr/bin/env python3
"""On KVM: a sandbox made and a `true` executed in it, over microsandbox's msb on the same kernel.

Ours: from the request to the agent's readiness, and an exec of `true` (median), both through the
host code that the daemon uses. Theirs: `msb create` of a root folder and `msb exec … true`, each a
command, since that is its interface. Where the host's KVM cannot run stock kernels both take the one of
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
    create, execs, boots, trues = [], [], [], []
    for n in range(common.ROUNDS):
        create.append(common.seconds(lambda: msb("create", "-q", "-n", f"b{n}", "-c", "1", "-m", "512M",
                                                 os.path.join(bundle, "rootfs"))))
        msb("exec", f"b{n}", "--", "/usr/bin/true")
        execs += [common.seconds(lambda: msb("exec", f"b{n}", "--", "/usr/bin/true")) for _ in range(10)]
        msb("stop", f"b{n}")
        boot, (warm, storm) = t.vm({"op": "storm", "argv": ["/usr/bin/true"], "count": 1},
                                   {"op": "storm", "argv": ["/usr/bin/true"], "count": 10})
        boots.append(boot["us"] / 1e6)
        trues.append(storm["p50_us"] / 1e6)
    common.emit("msb_create", common.median(boots) / common.median(create), 0.7,
                ours_s=common.median(boots), msb_s=common.median(create), rounds=common.ROUNDS)
    common.emit("msb_exec", common.median(trues) / common.median(execs), 0.3,
                ours_s=common.median(trues), msb_s=common.median(execs), rounds=common.ROUNDS)
