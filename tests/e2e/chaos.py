"""A Compose at random: the steps of 90-chaos.py, and what has to hold all the while."""
import json
import os
import random
import signal
import time

import harness
from compose import VM, iii
from follower import Follower
from harness import SMOKE, diagnose, memory_kib, wait_until

KEYS = 4
# The daemon above its size at the first rest. A sanitizer keeps freed memory for a while.
DAEMON_GROWTH_KIB = 24 * 1024 if not SMOKE else 512 * 1024
SETTLE_S = 15                  # a guard, as all times here: what has not happened then never will
ORDER = {"preparing": 0, "running": 1, "exited": 2, "stopped": 2}
ENDED = ("exited", "stopped")
WITH_THE_FIRST_VM = ["/dev/null", "/memfd:boot.erofs (deleted)"]  # descriptors that then stay


def processes_of(vm_id):
    """{"boot": pid, "vmm": pid, "passt": pid} of a VM, as far as they are there; the supervisor's
    command line names it, the others are its children."""
    table = harness.processes()
    lines = {p: harness.command_line(p) for p in harness.descendants(os.getpid()) if p in table}
    marked = [p for p, line in lines.items() if f"__vm-boot {vm_id}" in line]
    found = {}
    for pid in marked:
        if table[pid][0] not in marked:
            found["boot"] = pid
    for pid, line in lines.items():
        if table[pid][0] == found.get("boot"):
            found["passt" if "passt --" in line else "vmm"] = pid
    return found


class Boot:
    """One boot of a worker VM, as the caller knows it."""

    def __init__(self, vm, plan):
        self.vm, self.plan = vm, plan
        self.status = None    # the last one
        self.causes = set()   # what we did to it
        self.harvested = 0    # cursor of its log
        self.daemon = 0       # which one told the status

    def ended(self):
        return self.status is not None and self.status["state"] in ENDED

    def wanted(self):
        """(state, exit_code, signal) that its end must be, where only one is possible."""
        plan, *numbers = self.plan.split(":")
        by_itself = {"exit": ("exited", int(numbers[-1]) if numbers else 0, None),
                     "crash": ("exited", 139, None)}.get(plan)
        if not self.causes:
            return by_itself or "no end at all"
        if by_itself or len(self.causes) > 1:
            return None
        return {"vmm": ("exited", None, 9), "boot": ("exited", None, 9),
                "passt": ("exited", None, 9), "daemon": ("exited", None, None)}.get(
                    next(iter(self.causes)))


class Starting:
    """A start that was not answered yet. alone: the VM was free, and nobody else started it."""

    def __init__(self, pending, plan, disturbed, alone):
        self.pending, self.plan, self.disturbed, self.alone = pending, plan, disturbed, alone
        self.causes = set()  # of its boot's


class Key:
    """One state key."""

    def __init__(self, number):
        self.name = f"key-{number}"
        self.vm_id = None
        self.top = 0        # the highest number of a boot that was ever told
        self.boots = {}     # instance -> Boot, since the last destroy
        self.acked = 0      # what the worker said to be safe, since then
        self.starts = []    # Starting
        self.stops = []     # (Pending, Boot, number of the daemon)
        self.disturbed = 0  # counts what may make a start fail
        self.existed = False  # None: a start that failed may have left something
        self.failed = False   # the last start: it may have had a number

    def happens(self, cause):
        """To the present boot, and to those that come of the starts under way."""
        self.disturbed += 1
        if self.live():
            self.live().causes.add(cause)
        for s in self.starts:
            s.causes.add(cause)

    def start_failed(self):
        self.failed, self.existed = True, self.existed or None

    def current(self):
        return self.boots.get(max(self.boots)) if self.boots else None

    def busy(self):
        return bool(self.starts)

    def live(self):
        boot = self.current()
        return boot if boot and not boot.ended() else None


class Chaos:
    def __init__(self, t, compose, disk, seed):
        self.t, self.c, self.disk, self.seed = t, compose, disk, seed
        self.keys = [Key(n) for n in range(KEYS)]
        self.followers = []  # (Follower, number of the daemon)
        self.daemons = 1
        self.trace = []
        self.counts = {}
        self.rest = None     # descriptors of this daemon at rest
        self.floor_kib = None
        self.peak_kib = 0
        self.steps = self.free_at = 0

    def say(self, text):
        self.trace.append(f"{time.monotonic() - self.began:7.2f} {text}")

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- the course ---

    def run(self, seconds):
        self.began = time.monotonic()
        self.at_rest()
        try:
            while time.monotonic() - self.began < seconds:
                self.steps += 1
                if self.steps >= self.free_at:
                    self.disk.free()
                rng = random.Random(f"{self.seed}/{self.steps}")
                action = rng.choices(list(ACTIONS), list(ACTIONS.values()))[0]
                key = rng.choice(self.keys)
                self.say(f"step {self.steps}: {action.__name__} {key.name}")
                action(self, rng, key)
                self.look(rng)
                if self.steps % 40 == 0:
                    self.quiesce()
            self.quiesce()
        except BaseException:
            diagnose("the last steps:\n" + "\n".join(self.trace[-60:]))
            raise
        finally:
            self.disk.free()
        diagnose(f"{self.steps} steps; " + ", ".join(f"{k} {n}" for k, n in sorted(self.counts.items()))
                 + f"; daemon {self.floor_kib} to {self.peak_kib} KiB")
        wanted = ("started", "running", "exited", "stopped", "S502", "journal")
        for what in wanted if seconds >= 40 else wanted[:1]:
            self.t.check(self.counts.get(what), f"{what} happened")

    # --- what was told ---

    def saw(self, key, instance, status):
        boot, t = key.boots[instance], self.t
        before, state = boot.status, status["state"]
        t.check(state in ORDER, f"{key.name} instance {instance} is known: {status}")
        if before:
            t.check(ORDER[before["state"]] <= ORDER[state], f"it went back: {before}, {status}")
            t.equal(status["started_at_ms"], before["started_at_ms"], "started_at_ms")
            if boot.ended() and not self.forgiven(boot, status):
                t.equal(status, before, "an end that was told already")
        ended = state in ENDED
        t.equal(status["ended_at_ms"] is not None, ended, f"whether {status} has ended_at_ms")
        if not ended:
            t.equal((status["exit_code"], status["signal"]), (None, None), f"end of {status}")
        if not before or before["state"] != state:
            self.count(state)
            self.say(f"  {key.name} {instance} {boot.plan} {sorted(boot.causes)}: "
                     f"{state} {status['exit_code']} {status['signal']}")
        boot.status, boot.daemon = status, self.daemons
        wanted = boot.wanted()
        if ended and wanted and (not before or before["state"] not in ENDED):
            got = (state, status["exit_code"], status["signal"])
            t.equal(got, wanted, f"end of {key.name} {instance} ({boot.plan}, {boot.causes})")

    def forgiven(self, boot, status):
        """The disk did not take its record: all that the next daemon knows is that it is over."""
        return "full" in boot.causes and boot.daemon != self.daemons and \
            (status["state"], status["exit_code"], status["signal"]) == ("exited", None, None)

    def told(self, key, vm, plan, causes=()):
        """A start went well."""
        t = self.t
        key.vm_id = key.vm_id or vm.vm_id
        t.equal(vm.vm_id, key.vm_id, f"vm_id of {key.name}")
        t.check(vm.instance > key.top, f"instance {vm.instance} comes after {key.top}")
        boot = key.boots.get(vm.instance)
        if not boot:
            key.boots[vm.instance] = boot = Boot(vm, plan)
        boot.causes.update(causes)
        key.top, key.existed, key.failed = vm.instance, True, False
        if self.disk.full():
            boot.causes.add("full")
        self.count("started")
        self.say(f"  {key.name}: started as {vm.instance} ({plan})")

    def error_of(self, e):
        prefix = "handler error: "
        self.t.check(e.message and e.message.startswith(prefix), f"form of {e}")
        return json.loads(e.message[len(prefix):])

    def status(self, key, instance):
        return self.c.status(VM((key.vm_id, instance)))

    def see(self, key):
        boot = key.current()
        if boot:
            self.saw(key, boot.vm.instance, self.status(key, boot.vm.instance))
        return boot

    def look(self, rng):
        self.collect()
        for key in self.keys:
            boot = self.see(key)
            if boot and not key.busy():
                self.truth(key, boot)
            older = sorted(key.boots)[:-1][-10:]
            if older:
                instance = rng.choice(older)
                self.saw(key, instance, self.status(key, instance))
        self.peak_kib = max(self.peak_kib, memory_kib(self.c.p.pid))
        if self.floor_kib:
            self.t.check(self.peak_kib < self.floor_kib + DAEMON_GROWTH_KIB,
                         f"the daemon grew from {self.floor_kib} to {self.peak_kib} KiB")

    def truth(self, key, boot):
        """Its processes are as its state says."""
        def agree():
            s = self.see(key).status
            there = processes_of(key.vm_id)
            if s["state"] in ENDED:
                # A supervisor is waited for before its VM is said to have ended.
                self.t.check("boot" not in there, f"{s}, but its supervisor is there: {there}")
                return not there
            return s["state"] == "preparing" or {"boot", "vmm", "passt"} <= set(there)
        wait_until(agree, SETTLE_S, f"truth of {boot.status} of {key.name}; "
                   f"it has {processes_of(key.vm_id)}")

    # --- answers ---

    def collect(self, wait=False):
        for key in self.keys:
            for s in list(key.starts):
                if wait or s.pending.done.is_set():
                    key.starts.remove(s)
                    self.start_answered(key, s)
            for entry in list(key.stops):
                if wait or entry[0].done.is_set():
                    key.stops.remove(entry)
                    self.stop_answered(key, *entry)

    def start_answered(self, key, s):
        try:
            self.told(key, self.c.started(s.pending.result()), s.plan, s.causes)
        except iii.Lost:
            self.t.check(key.disturbed != s.disturbed, "the daemon lost a connection")
            key.start_failed()
        except iii.CallError as e:
            error = self.error_of(e)
            self.say(f"  {key.name}: {error['code']} {error['message'][:300]!r}")
            self.count(error["code"])
            if error["code"] == "S502":
                self.t.check(not s.alone, f"S502, but {key.name} was free: {error['message']}")
                self.busy_one(key, error)
            else:
                # How long a boot may take is no matter of chaos: a host that is busy with other
                # tests is slow.
                late = "did not answer within" in error["message"]
                self.count("late boot" if late else "failed start")
                self.t.check(late or key.disturbed != s.disturbed or self.disk.full(),
                             f"start of {key.name} failed, and nobody did anything: {error}")
                key.start_failed()

    def busy_one(self, key, error):
        """The boot that an S502 names."""
        fix = error["fix"]
        key.vm_id = key.vm_id or fix["vm_id"]
        self.t.equal(fix["vm_id"], key.vm_id, "vm_id of an S502")
        if fix.get("instance", 0) > key.top:
            # Its start has not been answered yet.
            self.t.check(key.starts or key.disturbed, f"a boot that nobody started: {fix}")
        return fix.get("instance")

    def stop_answered(self, key, pending, boot, daemon):
        try:
            status = pending.result()
        except iii.Lost:
            self.t.check(daemon != self.daemons, "the daemon lost a connection")
            return
        if boot.vm.instance in key.boots:
            self.t.check(status["state"] in ENDED, f"reply of stop: {status}")
            self.saw(key, boot.vm.instance, status)

    # --- the log ---

    def harvest(self, key):
        """Reads on in the log of the current boot."""
        boot = key.current()
        if not boot or key.busy():
            return
        for r in self.c.read_log(boot.vm, cursor=boot.harvested or None):
            if key.failed and r["instance"] > boot.vm.instance:
                key.top = max(key.top, r["instance"])
                return
            self.t.equal(r["instance"], boot.vm.instance, "instance of a log record")
            boot.harvested = r["cursor"]
            word, _, number = r["line"].partition(" ")
            if r["line"].startswith("damaged at line "):
                line = int(r["line"].split()[3].rstrip(":"))
                self.t.check(line > key.acked, f"{key.name} {boot.vm.instance}, of whose lines "
                             f"{key.acked} were safe: {r['line']}")
            if word == "journal" and number.isdigit():
                self.count("journal")
                self.t.check(int(number) >= key.acked,
                             f"{key.name} {boot.vm.instance} found {number} lines of the "
                             f"{key.acked} that were safe")
            if word == "ack" and number.isdigit():
                key.acked = max(key.acked, int(number))

    # --- actions ---

    def from_key(self, key):
        """All keys, this one first."""
        at = self.keys.index(key)
        return self.keys[at:] + self.keys[:at]

    def draw_plan(self, rng):
        return rng.choices(["stay", "stubborn", f"exit:{rng.randrange(1, 20)}:{rng.randrange(256)}",
                            f"crash:{rng.randrange(1, 20)}", f"flood:{rng.randrange(20000)}"],
                           [5, 2, 2, 1, 1])[0]

    def send_start(self, key, plan, source):
        boot = key.current()
        alone = not key.busy() and (not boot or boot.ended())
        pending = self.c.send("start", self.c.request(source, key=key.name, env={"PLAN": plan}))
        s = Starting(pending, plan, key.disturbed, alone)
        if self.disk.full():
            s.causes.add("full")
            key.disturbed += 1
        key.starts.append(s)
        return pending

    def start(self, rng, key):
        plan, source, wait = self.draw_plan(rng), rng.choice(["quick", "slow"]), rng.random() < 0.5
        self.see(key)
        self.harvest(key)
        before = key.live() if not key.busy() else None
        pending = self.send_start(key, plan, source)
        if not wait and not before:
            return
        pending.done.wait(iii.WAIT_S)
        self.collect()
        if before and key.current() is not before:
            # It ended in between: then that is what it says, too.
            instance = before.vm.instance
            self.saw(key, instance, self.status(key, instance))
            self.t.check(before.ended(), f"started beside {before.status}")

    def start_twice(self, rng, key):
        plan = self.draw_plan(rng)
        self.see(key)
        self.harvest(key)
        free = not key.busy() and not key.live()
        top, disturbed = key.top, key.disturbed
        both = [self.send_start(key, plan, "quick") for _ in range(2)]
        if not free:
            return
        for s in key.starts:
            s.alone = False  # one of them is refused
        for p in both:
            p.done.wait(iii.WAIT_S)
        self.collect()
        if key.disturbed == disturbed and not self.disk.full():
            self.t.check(key.top > top, f"one of two starts of {key.name} went well")
            self.t.equal(len([i for i in key.boots if i > top]), 1, "boots of two starts")

    def stop(self, rng, key):
        grace, wait = rng.choice([0, 0, 100, 1000, 5000]), rng.random() < 0.7
        boot = self.see(key)
        if not boot:
            return
        if not boot.ended():
            key.happens("stop")
        pending = self.c.send("stop", {"vm_id": key.vm_id, "instance": boot.vm.instance,
                                       "grace_ms": grace})
        key.stops.append((pending, boot, self.daemons))
        if wait:
            pending.done.wait(iii.WAIT_S)
            self.collect()

    def stop_what_is_in_the_way(self, rng, key):
        """As a Compose does that lost the answer of a start."""
        grace = rng.choice([0, 1000])
        self.see(key)
        self.harvest(key)
        free = not key.busy() and not key.live()
        key.disturbed += 1
        try:
            vm = self.c.start("quick", key=key.name, env={"PLAN": "stay"})
            self.collect()
            self.told(key, vm, "stay")
        except iii.CallError as e:
            error = self.error_of(e)
            self.count(error["code"])
            if error["code"] != "S502":
                self.t.check(self.disk.full() or key.busy(), f"start failed: {error}")
                key.start_failed()
                return
            self.t.check(not free, f"S502, but {key.name} was free: {error['message']}")
            instance = self.busy_one(key, error)
            if not instance:
                return
            boot = key.boots.get(instance) or Boot(VM((key.vm_id, instance)), "stay")
            boot.causes |= {"stop", "lost"}
            status = self.c.stop(boot.vm, grace)
            self.t.check(status["state"] in ENDED, f"reply of stop: {status}")
            self.say(f"  {key.name} {instance}: {status['state']}")

    def destroy(self, rng, key):
        self.see(key)
        free = not key.busy() and not key.live()
        if key.busy():
            return
        before = key.live()
        if free:
            self.harvest(key)
        try:
            destroyed = self.c.destroy(key.name)
            self.t.check(destroyed == key.existed or key.existed is None,
                         f"destroyed {key.name}: {destroyed}, it was there: {key.existed}")
        except iii.CallError as e:
            error = self.error_of(e)
            self.count(error["code"])
            self.t.equal(error["code"], "S502", f"code of {error}")
            self.t.check(not free, f"S502, but {key.name} was free: {error}")
            self.t.equal(error["fix"], {"instance": key.top, "vm_id": key.vm_id}, "fix")
            return
        # It may have ended in between; nothing is known of it any more.
        self.t.check(free or before, "destroyed")
        for instance in key.boots:
            self.t.equal(self.status(key, instance)["state"], "unknown", "state after destroy")
        key.boots, key.acked, key.existed, key.failed = {}, 0, False, False
        self.count("destroyed")

    def logs(self, rng, key):
        self.harvest(key)

    def follow(self, rng, key):
        boot, leave = self.see(key), rng.random() < 0.4
        if not boot or key.busy() or key.failed:
            return
        if not leave:
            self.followers.append((Follower(self.c, boot.vm), self.daemons))
            return
        ws = self.c.open_log(boot.vm, follow=True)
        if rng.random() < 0.5:
            ws.recv()
        ws.close(say=False)

    def prepare(self, rng, key):
        self.c.prepare("quick")

    def pause(self, rng, key):
        time.sleep(rng.random() * 0.5)

    def kill_one(self, rng, key):
        role = rng.choice(["vmm", "boot", "passt"])
        key = next((k for k in self.from_key(key) if self.see(k) and k.live()), key)
        boot = key.live()
        pid = processes_of(key.vm_id).get(role) if boot else None
        if not pid:
            return
        key.happens(role)
        self.count(f"killed {role}")
        self.say(f"  SIGKILL of {role} of {key.name} {boot.vm.instance}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        wait_until(lambda: self.see(key).ended(), SETTLE_S, f"the end of {key.name} without {role}")

    def kill_daemon(self, rng, key):
        at_once = rng.random() < 0.5
        self.daemon_ends(signal.SIGKILL, "daemon")
        self.count("killed daemon")
        if not at_once:
            wait_until(lambda: not harness.descendants(os.getpid()), SETTLE_S,
                       "the end of the VMs of a daemon that was killed")
        self.daemon_again("exited")

    def end_daemon(self, rng, key):
        self.t.equal(self.daemon_ends(signal.SIGTERM, "term"), 0, "exit status of the daemon")
        self.count("ended daemon")
        self.t.equal(harness.descendants(os.getpid()), [], "processes after the daemon")
        self.daemon_again("stopped")

    def daemon_ends(self, signo, cause):
        self.before = {}
        for key in self.keys:
            boot = self.see(key)
            key.happens(cause)
            self.before[key] = boot.status["state"] if boot else None
        status = self.c.end(signo)
        self.daemons += 1
        self.collect(wait=True)
        return status

    def daemon_again(self, state):
        self.c.up()
        self.rest = None
        for key in self.keys:
            boot = self.see(key)
            if not boot:
                continue
            self.t.check(boot.ended(), f"{boot.status} after the daemon's death")
            if self.before[key] not in ENDED and not boot.causes & {"stop", "full", "lost"} \
                    and boot.plan in ("stay", "stubborn"):
                self.t.equal(boot.status["state"], state, f"state of {key.name} after it")

    def fill_disk(self, rng, key):
        slack = rng.choice([0, 4096, 1 << 20, 8 << 20])
        steps = rng.randrange(3, 12)
        if not self.disk.kind or self.disk.full():
            return
        self.free_at = self.steps + steps
        self.disk.fill(slack)
        self.count("filled disk")
        for k in self.keys:
            k.happens("full")

    # --- at rest ---

    def quiesce(self):
        """Everything is stopped; nothing may be left."""
        self.say("quiesce")
        self.disk.free()
        for _ in range(2):  # a start under way is answered first, then stopped
            self.collect(wait=True)
            for key in self.keys:
                boot = self.see(key)
                if boot and not boot.ended():
                    key.happens("stop")
                    self.saw(key, boot.vm.instance, self.c.stop(boot.vm, 1000))
        for follower, daemon in self.followers:
            follower.join(SETTLE_S)
            self.t.check(not follower.is_alive(), "a followed log ended with its boot")
            if not (follower.lost() and daemon != self.daemons):
                follower.lines(self.t)
        self.followers = []
        for key in self.keys:
            self.harvest(key)
        self.at_rest()

    def at_rest(self):
        t, c = self.t, self.c
        wait_until(lambda: harness.descendants(os.getpid()) == [c.p.pid], SETTLE_S,
                   "the end of all processes but the daemon")
        t.equal(harness.locks_on(harness.files_below(t.state)), [], "locks at rest")
        c.check_state()
        if self.rest is None:
            self.rest = self.descriptors()
            self.floor_kib = self.floor_kib or memory_kib(c.p.pid)
        wanted = (self.rest, sorted(self.rest + WITH_THE_FIRST_VM))
        try:
            wait_until(lambda: self.descriptors() in wanted, SETTLE_S, "the descriptors")
        except AssertionError:
            t.equal(self.descriptors(), self.rest, "the daemon's descriptors at rest")

    def descriptors(self):
        """What they are, without the numbers of sockets and the like; namespaces would show."""
        folder, found = f"/proc/{self.c.p.pid}/fd", []
        for fd in os.listdir(folder):
            try:
                found.append(os.readlink(f"{folder}/{fd}").split(":[")[0])
            except OSError:
                pass
        return sorted(found)


ACTIONS = {Chaos.start: 30, Chaos.start_twice: 6, Chaos.stop: 14, Chaos.stop_what_is_in_the_way: 4,
           Chaos.destroy: 6, Chaos.logs: 8, Chaos.follow: 6, Chaos.prepare: 2, Chaos.pause: 10,
           Chaos.kill_one: 10, Chaos.kill_daemon: 3, Chaos.end_daemon: 2, Chaos.fill_disk: 3}
