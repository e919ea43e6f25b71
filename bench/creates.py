#!/usr/bin/env python3
"""32 creates at once: none may fail, and an exec in each works. The ratio is failures over calls."""
import common

COUNT = 32


def failures(pending):
    failed = []
    for p in pending:
        try:
            p.result()
        except common.iii.CallError as e:
            failed.append(str(e))
    return failed


for backend in common.backends():
    t = common.room(backend)
    bus = common.Bus(t, {"image_allowlist": ["python"], "max_concurrent_sandboxes": COUNT})

    def at_once(function, requests):
        start = common.time.monotonic()
        pending = [bus.client.start(common.P + function, r) for r in requests]
        failed = failures(pending)
        replies = [p.reply for p in pending if p.reply]
        return replies, failed, common.time.monotonic() - start

    made, failed, seconds = at_once("create", [{"image": "python", "cpus": 1}] * COUNT)
    ids = [m["sandbox_id"] for m in made]
    ran, exec_failed, exec_seconds = at_once(
        "exec", [{"sandbox_id": s, "argv": ["sh", "-c", "echo up"]} for s in ids])
    exec_failed += [r for r in ran if r["stdout"] != "up\n"]
    _, stop_failed, _ = at_once("stop", [{"sandbox_id": s, "wait": True} for s in ids])
    bus.end()
    faults = failed + exec_failed + stop_failed
    common.emit("creates", len(faults) / COUNT, 0, backend=backend, creates=COUNT, failed=len(failed),
                create_s=seconds, exec_failed=len(exec_failed), exec_s=exec_seconds,
                **({"first_fault": str(faults[0])} if faults else {}))
