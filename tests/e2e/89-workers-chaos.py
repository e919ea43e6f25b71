#!/usr/bin/env python3
"""Worker VMs under chaos: random starts, stops, destroys, and SIGKILL for VMM, supervisor and
daemon. Whatever happens, every status is true, numbers only grow, and nothing is left."""
import os
import random
import signal
import time

import harness
from harness import case, main, wait_until
from compose import Compose, iii

SECONDS = 600 if harness.LONG else 30  # for each backend
KEYS = ["k1", "k2", "k3"]
ENDED = ("exited", "stopped")
KEPT = 16  # boots before the last one that status still knows


class Model:
    """What has to be true of one key."""

    def __init__(self):
        self.vm_id = None
        self.last = 0      # highest instance that was heard of
        self.known = {}    # instance -> last status, as long as it has to be known
        self.starts = []   # pending

    def check(self, t, s):
        before = self.known.get(s["instance"])
        if before and before["state"] in ENDED:
            t.equal(s, before, "a boot that had ended")
        if before and before["state"] == "running":
            t.check(s["state"] in ("running", *ENDED), f"{before} became {s}")
        t.check(s["state"] != "unknown", f"a boot is forgotten: {s}, before {before}")
        self.known[s["instance"]] = s


class Chaos:
    def __init__(self, t, c, rng):
        self.t, self.c, self.rng = t, c, rng
        self.models = {key: Model() for key in KEYS}
        self.counts = {}

    def one(self):
        key = self.rng.choice(KEYS)
        step = self.rng.choices([self.start, self.stop, self.status, self.destroy, self.kill_boot,
                                 self.kill_vmm, self.kill_daemon, self.wait, self.logs],
                                [10, 6, 10, 2, 2, 2, 2, 6, 3])[0]
        self.counts[step.__name__] = self.counts.get(step.__name__, 0) + 1
        step(key, self.models[key])

    def start(self, key, m):
        m.starts.append(self.c.send("start", self.c.request(self.rng.choice(["w", "quick"]), key=key)))
        if self.rng.random() < 0.5:
            self.settle(m)

    def settle(self, m):
        """What became of the starts."""
        for p in m.starts:
            try:
                vm = self.c.started(p.result())
            except iii.CallError as e:
                self.t.check(any(f'"{code}"' in e.message for code in ("S300", "S502")), e.message)
                continue
            except iii.Lost:
                continue
            m.vm_id = vm.vm_id
            self.t.check(vm.instance > m.last or vm.instance in m.known, f"instance of {vm}")
            m.last = max(m.last, vm.instance)
            m.known[vm.instance] = {"instance": vm.instance, "state": "preparing"}
        m.starts = []
        for old in [n for n in m.known if n < m.last - KEPT]:
            del m.known[old]

    def status(self, _, m):
        if m.starts or not m.known:
            return
        for instance in list(m.known):
            m.check(self.t, self.c.status((m.vm_id, instance)))

    def stop(self, _, m):
        self.settle(m)
        if m.known:
            instance = self.rng.choice(list(m.known))
            s = self.c.stop((m.vm_id, instance), self.rng.choice([0, 300, 3000]))
            self.t.check(s["state"] in ENDED, f"after a stop: {s}")
            m.check(self.t, s)

    def destroy(self, key, m):
        self.settle(m)
        try:
            self.c.destroy(key)
            m.known = {}
        except iii.CallError as e:
            self.t.contains(e.message, '"S502"', "why it is not destroyed")

    def kill(self, pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def kill_boot(self, *_):
        self.kill(self.c.boots()[:1])

    def kill_vmm(self, *_):
        for boot in self.c.boots()[:1]:
            self.kill(harness.descendants(boot)[-1:])

    def kill_daemon(self, *_):
        self.c.end(signal.SIGKILL)
        wait_until(lambda: not harness.descendants(os.getpid()), 30, "the end of all processes")
        self.c.up()
        for m in self.models.values():
            self.settle(m)
            for instance in m.known:
                s = self.c.status((m.vm_id, instance))
                self.t.check(s["state"] in ENDED, f"after a restart: {s}")
                m.check(self.t, s)

    def wait(self, *_):
        time.sleep(self.rng.random())

    def logs(self, _, m):
        self.settle(m)
        if m.known:
            self.c.read_log((m.vm_id, m.last))


@case(per_backend=True, guard_s=SECONDS + 300)
def chaos(t):
    seed = int(os.environ.get("SANDBOX_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
    print(f"# SANDBOX_TEST_SEED={seed}")
    with Compose(t) as c:
        c.local("w", start="while :; do date; sleep 0.1; done")
        c.local("quick", start="echo quick; exit 3")
        x = Chaos(t, c, random.Random(seed))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            x.one()
        for m in x.models.values():
            x.settle(m)
            if m.known:
                c.stop((m.vm_id, m.last), 0)
            x.status(None, m)
        print(f"# {x.counts}, instances {[m.last for m in x.models.values()]}")
        t.equal(c.boots(), [], "supervisors after all was stopped")
        for key in KEYS:
            c.destroy(key)
        left = [n for n in os.listdir(os.path.join(t.state, "workers")) if not n.endswith(".seq")]
        t.equal(left, [], "what is left in the state folder")
        fds = len(os.listdir(f"/proc/{c.p.pid}/fd"))
        t.check(fds < 40, f"descriptors of the daemon at rest: {fds}")


main()
