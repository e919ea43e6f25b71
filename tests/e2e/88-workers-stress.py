#!/usr/bin/env python3
"""Worker VMs when much happens at once: stops in every phase, destroy against start and logs, floods
on the console, and what many lives leave in the daemon."""
import hashlib
import os

from harness import case, main
from compose import Compose

FOREVER = "exec sleep 600"
LOOP = "while :; do sleep 0.1; done"


# --- stops -------------------------------------------------------------------------------------

def ended_in(lines):
    """The phase in which the agent began to stop."""
    return next((x.rpartition("(")[2].rstrip(")") for x in lines
                 if x.startswith("agent: ") and ": stopping (" in x), None)


@case(per_backend=True)
def stopped_in_every_phase(t):
    """The end is the script's own, whether it catches SIGTERM or not. What was not done is done at
    the next start: setup and install count together, and not when they end because of a stop."""
    with Compose(t) as c:
        def stop_in(phase, how, key):
            vm = c.start(phase, key=key)
            c.wait_for_line(vm, "in " + phase)
            t.equal(c.status(vm)["state"], "running" if phase == "run" else "preparing", "state")
            s = c.stop(vm, 60000)
            t.equal((s["state"], s["exit_code"], s["signal"]), ("stopped", how, None), f"end in {phase}")
            lines = c.lines(vm)
            t.equal(ended_in(lines), phase, "where it was stopped")
            t.check(not any(x.startswith("after ") for x in lines), "a later script ran")
            return lines
        for phase in ("setup", "install", "run"):
            for trap, how in (("", 143), ("trap 'exit 9' TERM; ", 9), ("trap 'exit 0' TERM; ", 0)):
                scripts = {"setup": "echo after none", "install": "echo after setup"}
                order = ["setup", "install", "run"]
                for later in order[order.index(phase):]:
                    scripts[later] = f"echo after {phase}"
                for before in order[:order.index(phase)]:
                    scripts[before] = f"echo {before} done"
                scripts[phase] = f"{trap}echo in {phase}; {LOOP}"
                c.local(phase, start=scripts.pop("run"), scripts=scripts)
                first = stop_in(phase, how, phase)
                again = stop_in(phase, how, phase)
                done = [f"{x} done" in first for x in order[:order.index(phase)]]
                t.equal(done, [True] * len(done), f"scripts before {phase}")
                repeated = ["setup"] if phase == "install" else []
                t.equal([x.split()[0] for x in again if x.endswith(" done")], repeated, "done again")
                t.equal(c.destroy(phase), True, "destroy")


@case(per_backend=True)
def stopped_while_it_syncs(t):
    """A large source; a stop that comes right behind the guest's ready meets the sync."""
    with Compose(t) as c:
        files = {f"d{i % 50}/f{i}": os.urandom(64) * 300 for i in range(4000)}
        c.local("w", start=f"echo ran; {LOOP}", files=files, scripts={"setup": "echo setup"})
        for _ in range(20):
            vm = c.start("w")
            s = c.stop(vm, 60000)
            t.equal((s["state"], s["signal"]), ("stopped", None), "its end")
            lines = c.lines(vm)
            phase = ended_in(lines)
            t.check(s["exit_code"] == 143, f"exit code in {phase}: {s}")
            if phase == "sync":
                break
            c.destroy()
        t.equal(phase, "sync", "the phase, of 20 tries")
        t.check("setup" not in lines and "ran" not in lines, "a script ran")
        # nothing is missing for it at the next start
        whole = hashlib.sha256(b"".join(files[f] for f in sorted(files))).hexdigest()
        c.local("w", start="cat d*/f* | sha256sum; exec sleep 600")
        vm = c.run("w")
        c.wait_for_line(vm, whole)
        c.stop(vm, 0)


main()
