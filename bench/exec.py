#!/usr/bin/env python3
"""exec of `true` in a running sandbox, over fork + exec + wait of it inside the same guest."""
import os

import common

COUNT = 200

for backend in common.backends():
    t = common.room(backend)
    helper = os.path.join(common.BUILD, "bench/fork_exec")
    storm = {"op": "storm", "argv": ["/usr/bin/true"], "count": COUNT}
    inside = {"op": "exec", "argv": ["/tmp/fork_exec", str(COUNT), "/usr/bin/true"]}
    _, replies = t.vm({"op": "exec", "argv": ["sh", "-c", "cat >/tmp/fork_exec; chmod 755 /tmp/fork_exec"],
                       "stdin_file": helper}, storm, inside, storm, inside, storm, inside, timeout=600)
    ours = [r["p50_us"] for r in replies[1::2]][1:]
    inner = [int(r["stdout"].split()[1]) for r in replies[2::2]][1:]
    common.emit("exec", common.median(ours) / common.median(inner), 2.0, backend=backend,
                ours_p50_us=common.median(ours), guest_fork_exec_us=common.median(inner), count=COUNT)
