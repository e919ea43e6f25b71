#!/usr/bin/env python3
"""VMs with a disk that stays: what was written is there in the next boot, whoever ended the one
before, and all that was printed was handed on."""
import json
import os
import signal

from harness import BUILD, case, descendants, main, use_python_image, wait_until

CLEAN, STOPPED = 0, 1  # enum vm_end
LINES = 15000          # 1.5 MiB: more than the pipes on the way hold


def argv(t, folder, code, *options):
    return [os.path.join(BUILD, "tests/e2e/kept_vm"), "--image", use_python_image(), "--vmm", t.backend,
            "--folder", folder, *options, "--", "sh", "-c", code]


def make_folder(t):
    """Below the program's room, which is on a disk, and private as the state folder is."""
    folder = os.path.join(t.scratch, "vm")
    os.mkdir(folder, 0o700)
    return folder


def boot(t, folder, code, *options):
    r = t.command(argv(t, folder, code, *options))
    t.equal(r.status, 0, "exit status of kept_vm")
    return [json.loads(line) for line in r.out.splitlines()]


@case(per_backend=True)
def files_are_there_after_a_shutdown(t):
    folder = make_folder(t)
    done, end = boot(t, folder, "mkdir /root/x && echo precious >/root/x/file && echo hi >/tmp/gone")
    t.equal(done["exit_code"], 0, "exit code of the first boot's command")
    t.equal((end["end"], end["signal"], end["guest_status"]), (CLEAN, 0, 0), "the first end")
    done, end = boot(t, folder, "cat /root/x/file; ls /tmp")
    t.equal(done["stdout"], "precious\n", "what the second boot sees")
    t.equal(end["end"], CLEAN, "the second end")
    t.equal(os.stat(os.path.join(folder, "upper.ext4")).st_mode & 0o777, 0o600, "mode of the disk")


@case(per_backend=True)
def files_are_there_after_the_daemon_was_killed(t):
    folder = make_folder(t)
    # Not synced by the guest's program, and younger than ext4's own five seconds.
    p = t.spawn(argv(t, folder, "echo young >/root/file", "--hang"))
    t.wait_for_output(p, b"exit_code")
    left = descendants(p.pid)
    t.check(len(left) >= 2, f"supervisor and VMM, not {left}")
    p.send_signal(signal.SIGKILL)
    t.equal(t.finish(p).status, -signal.SIGKILL, "status of the daemon")
    for pid in left:
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe")
                   or not os.access(f"/proc/{pid}/exe", os.F_OK), 60, f"the end of {pid}")
    done, _ = boot(t, folder, "cat /root/file")
    t.equal(done["stdout"], "young\n", "what the next boot sees")


@case(per_backend=True)
def synced_files_are_there_after_the_vmm_was_killed(t):
    folder = make_folder(t)
    p = t.spawn(argv(t, folder, "echo synced >/root/file && sync", "--hang"))
    t.wait_for_output(p, b"exit_code")
    supervisor, *rest = descendants(p.pid)
    os.kill(rest[-1], signal.SIGKILL)
    r = t.finish(p)
    end = json.loads(r.out.splitlines()[-1])
    t.equal((end["signal"], end["guest_status"]), (signal.SIGKILL, -1), "signal and the guest's word")
    t.contains(end["why"], "signal 9", "why it ended")
    done, _ = boot(t, folder, "cat /root/file")
    t.equal(done["stdout"], "synced\n", "what the next boot sees")


@case(per_backend=True)
def the_log_is_whole_behind_a_slow_reader(t):
    folder = make_folder(t)
    code = (f"python3 -c 'import sys; sys.stdout.write(\"\".join(\"line %d %s\\n\" % (i, \"x\" * 90)"
            f" for i in range({LINES})))' >/dev/hvc0")
    done, end = boot(t, folder, code, "--slow-log")
    t.equal(done["exit_code"], 0, "exit code")
    t.equal(end["end"], CLEAN, "the end")
    with open(os.path.join(folder, "console"), "rb") as f:
        lines = [x for x in f.read().replace(b"\r", b"").split(b"\n") if x.startswith(b"line ")]
    t.equal(len(lines), LINES, "number of lines")
    for i, line in enumerate(lines):
        t.equal(line, b"line %d %s" % (i, b"x" * 90), f"line {i}")
    with open(os.path.join(folder, "host"), encoding="utf-8") as f:
        t.contains(f.read(), f"the VM starts: {t.backend}, 1 vCPUs", "the host's own stream")


main()
