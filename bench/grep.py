#!/usr/bin/env python3
"""fs::grep through the bus, over `rg -j1` in the same guest on the same tree.

The tree is the guest's own: Python's library, copied to the guest's tmpfs so that no disk is
measured. rg is the host's, brought into the guest with the libraries it needs; its time is taken inside the
guest, around the process. Where the program bench_grep compares the two without a VM, here
everything a caller waits for is in our time.
"""
import json
import re
import shutil
import subprocess

import common

TREE = "/tmp/tree"
PATTERNS = ["no such text", "import", r"return [a-z]+", r"\bint\b", "[A-Z]{8,}_[A-Z]", "TODO|FIXME|XXX",
            "(?i)bitmap", r"^\s*def\s+\w+\("]

TIMED = r"""
import json, subprocess, sys, time
out = []
for pattern in json.loads(sys.argv[1]):
    argv = ["/tmp/rg/ld", "--library-path", "/tmp/rg", "/tmp/rg/rg", "--no-config", "-j1", "--no-ignore",
            "--hidden", "-n", "--no-heading", "--color=never", "-e", pattern, sys.argv[2]]
    start = time.monotonic()
    p = subprocess.run(argv, stdout=subprocess.PIPE)
    out.append([time.monotonic() - start, p.stdout.count(b"\n"), p.returncode])
print(json.dumps(out))
"""


def bring_rg(bus, sandbox):
    """rg, its libraries and its loader in /tmp/rg."""
    rg = shutil.which("rg")
    if not rg:
        raise SystemExit("bench: ripgrep is missing (Debian: apt install ripgrep)")
    listed = subprocess.run(["ldd", rg], check=True, stdout=subprocess.PIPE).stdout.decode()
    files = {"rg": rg}
    for path in re.findall(r"(/\S+) \(0x", listed):
        name = path.rpartition("/")[2]
        files["ld" if name.startswith("ld-") else name] = path
    for name, path in files.items():
        with open(path, "rb") as f:
            data = f.read()
        reader, writer = bus.client.channel()
        writing = bus.client.start(common.P + "fs::write", {
            "sandbox_id": sandbox, "path": f"/tmp/rg/{name}", "mode": "0755", "parents": True,
            "content": reader})
        bus.client.write_channel(writer, data)
        writing.result()


def theirs(bus, sandbox, rounds):
    r = bus.call("exec", sandbox_id=sandbox, argv=["python3", "-c", TIMED, json.dumps(PATTERNS * rounds),
                                                   TREE])
    rows = json.loads(r["stdout"] or "null")
    if not rows or max(row[2] for row in rows) > 1:
        raise SystemExit(f"bench: rg failed in the guest: {rows} {r['stderr']}")
    return rows


for backend in common.backends():
    t = common.room(backend)
    bus = common.Bus(t, {"image_allowlist": ["python"]})
    sandbox = bus.call("create", image="python")["sandbox_id"]
    bus.call("exec", sandbox_id=sandbox, argv=["sh", "-c", f"cp -rL /usr/lib/python3* {TREE}"])
    bring_rg(bus, sandbox)
    theirs(bus, sandbox, 1)  # warm
    ours_s, rg_s, differ = {p: [] for p in PATTERNS}, {p: [] for p in PATTERNS}, []
    for _ in range(max(3, common.ROUNDS // 3)):
        for pattern, (took, lines, _) in zip(PATTERNS, theirs(bus, sandbox, 1)):
            rg_s[pattern].append(took)
            start = common.time.monotonic()
            reply = bus.call("fs::grep", sandbox_id=sandbox, path=TREE, pattern=pattern,
                             max_matches=1000000)
            ours_s[pattern].append(common.time.monotonic() - start)
            if len(reply["matches"]) != lines:
                differ.append([pattern, len(reply["matches"]), lines])
    bus.call("stop", sandbox_id=sandbox, wait=True)
    bus.end()
    ours = {p: common.median(v) for p, v in ours_s.items()}
    rg = {p: common.median(v) for p, v in rg_s.items()}
    common.emit("grep", sum(ours.values()) / sum(rg.values()), 1.5, backend=backend,
                ours_ms=sum(ours.values()) * 1e3, rg_ms=sum(rg.values()) * 1e3,
                ratios={p: round(ours[p] / rg[p], 2) for p in PATTERNS},
                **({"other_number_of_lines": differ[:3]} if differ else {}))
