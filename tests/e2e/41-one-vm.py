#!/usr/bin/env python3
"""One VM, many operations: what ends leaves nothing, what is cancelled disturbs nobody, files arrive."""
from harness import INSPECT, case, inspected, main


@case(per_backend=True)
def orphans_are_reaped(t):
    # Each leaves a grandchild that ends by itself, later, as a child of the agent.
    orphan = ["sh", "-c", "(sleep 0.2 &) ; exit 0"]
    _, (storm, wait, after) = t.vm(
        {"op": "storm", "argv": orphan, "count": 50, "parallel": 4},
        {"op": "exec", "argv": ["sh", "-c", "while ls -d /proc/[0-9]* | xargs -n1 -I{} cat {}/comm"
                                            " 2>/dev/null | grep -qx sleep; do :; done"]},
        INSPECT)
    t.equal(storm["failed"], 0, "failed")
    t.equal(wait["exit_code"], 0, "exit code of the wait")
    after = inspected(t, after)
    t.equal(after["zombies"], 0, f"zombies in the guest, of {after['names']}")
    t.check("sleep" not in after["names"], f"still there: {after['names']}")


@case(per_backend=True)
def a_cancelled_exec_leaves_nothing_and_disturbs_nobody(t):
    loud = ["sh", "-c", "setsid sleep 1000 & echo up; exec sleep 1000"]
    ops = [{"op": "cancel", "argv": loud} for _ in range(10)]
    *_, last, after = t.vm(*ops, {"op": "exec", "argv": ["echo", "fine"]}, INSPECT)[1]
    t.equal(last["stdout"], "fine\n", "stdout of the next exec")
    after = inspected(t, after)
    t.check("sleep" not in after["names"], f"still there: {after['names']}")
    t.equal(after["zombies"], 0, "zombies in the guest")


@case(per_backend=True)
def the_deadline_kills_the_whole_group(t):
    code = "setsid sh -c 'trap \"\" TERM; sleep 1000' & (setsid setsid sleep 1000 &) ; sleep 1000"
    _, (late, next_one, after) = t.vm(
        {"op": "exec", "argv": ["sh", "-c", code], "deadline_ms": 700},
        {"op": "exec", "argv": ["echo", "next"]}, INSPECT)
    t.equal(late.get("error"), None, "error")
    t.equal(late["timed_out"], True, "timed_out")
    t.equal(next_one["stdout"], "next\n", "stdout of the next exec")
    t.check("sleep" not in inspected(t, after)["names"], "a sleep is still there")


@case(per_backend=True)
def background_children_live_on(t):
    _, (first, second) = t.vm(
        {"op": "exec", "argv": ["sh", "-c", "setsid sh -c 'sleep 3; echo x; echo y >/tmp/mark;"
                                            " sleep 1000' & echo started"]},
        {"op": "exec", "argv": ["sh", "-c", "while [ ! -s /tmp/mark ]; do :; done; cat /tmp/mark"]})
    t.equal(first["stdout"], "started\n", "stdout of the first exec")
    # The exec ended a second after its program, without the child; that lived on, and writing to
    # the closed pipe did not kill it.
    t.equal(second["stdout"], "y\n", "what the child wrote later")


@case(per_backend=True)
def output_cut_inside_a_character_stays_text(t):
    # 3 + 2n bytes: the cap falls into the middle of an é; and random bytes with emoji around the cap.
    _, (cut, noise) = t.vm(
        {"op": "exec", "argv": ["python3", "-c", "print('abc' + 'é' * 600000, end='')"],
         "cap": 1 << 20},
        {"op": "exec", "argv": ["python3", "-c",
                                "import os\nos.write(1, os.urandom(1000) + '😀'.encode() * 30000)"],
         "cap": 65537})
    t.equal(cut["stdout"], "abc" + "é" * ((1048576 - 3) // 2) + "\ufffd", "text cut at the cap")
    t.equal(cut["stdout_dropped"], 3 + 1200000 - 1048576, "bytes dropped")
    t.equal(noise["stdout_bytes"], 65537, "bytes sent")
    t.equal(noise["stdout_dropped"], 1000 + 120000 - 65537, "bytes dropped")


@case(per_backend=True)
def programs_get_three_descriptors_and_a_clean_slate(t):
    code = ("import os, signal\n"
            "print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1])\n"
            "print(os.getpid() == os.getsid(0), os.isatty(0), os.umask(0))\n"
            "s = dict(l.split(':\\t') for l in open('/proc/self/status') if l[:3] == 'Sig')\n"
            "print(int(s['SigBlk'], 16), int(s['SigIgn'], 16) & ~(1 << 12 | 1 << 24))\n")
    _, (r,) = t.vm({"op": "exec", "argv": ["python3", "-c", code]})
    t.equal(r["stdout"], "[0, 1, 2]\nTrue False 18\n0 0\n", "stdout")


@case(per_backend=True, smoke=True)
def files_written_and_read(t):
    sizes = [0, 1, 65535, 65536, 65537, 1048575, 1048576, 1048577, 20_000_001]
    ops = []
    for size in sizes:
        ops += [{"op": "write", "path": f"/srv/new/{size}", "bytes": size, "mode": 0o640},
                {"op": "read", "path": f"/srv/new/{size}"}]
    _, replies = t.vm(*ops)
    for size, wrote, read in zip(sizes, replies[::2], replies[1::2]):
        t.equal(wrote.get("error") or read.get("error"), None, f"error with {size} bytes")
        t.equal((wrote["bytes_written"], read["bytes"], read["size"], read["mode"], read["match"]),
                (size, size, size, 0o640, True), f"{size} bytes written and read")


@case(per_backend=True)
def file_errors_name_path_and_reason(t):
    _, (missing, folder, into, proc) = t.vm(
        {"op": "read", "path": "/no/such/file"}, {"op": "read", "path": "/etc"},
        {"op": "write", "path": "/etc", "bytes": 3}, {"op": "read", "path": "/proc/self/status"})
    t.equal(missing["error"]["code"], "S211", "code of a missing file")
    t.contains(missing["error"]["message"], "/no/such/file", "its message")
    t.equal(folder["error"]["code"], "S212", "code of reading a folder")
    t.equal(into["error"]["code"], "S212", "code of writing to a folder")
    t.equal(proc.get("error"), None, "error of reading a file of /proc")
    t.check(proc["bytes"] > 100, "a file of /proc whose size is 0 was not read")


@case(per_backend=True)
def eight_megabytes_of_stdin_to_many_at_once(t):
    size = 8 << 20
    _, replies = t.vm({"op": "exec", "argv": ["wc", "-c"], "stdin_bytes": size},
                      {"op": "exec", "argv": ["true"], "stdin_bytes": size},
                      {"op": "exec", "argv": ["cat"], "stdin_bytes": size, "cap": 1000})
    t.equal(replies[0]["stdout"].strip(), str(size), "what wc counted")
    t.equal(replies[1]["exit_code"], 0, "exit code of true")
    t.equal((replies[2]["stdout_bytes"], replies[2]["stdout_dropped"]), (1000, size - 1000),
            "bytes of cat sent and dropped")


main()
