#!/usr/bin/env python3
"""The command line as a newcomer meets it: help, version, doctor, man page, wrong calls."""
import json
import os
import shutil
import stat

from harness import BUILD, case, main


@case(smoke=True)
def help_and_version(t):
    r = t.cli("--help")
    t.equal((r.status, r.err), (0, b""), "exit status and stderr of --help")
    for word in (b"Usage:", b"run", b"image", b"doctor", b"--code 'print(6*7)'"):
        t.contains(r.out, word, "help")
    for verb in ("run", "image", "doctor"):
        r = t.cli(verb, "--help")
        t.equal((r.status, r.err), (0, b""), f"exit status and stderr of {verb} --help")
        t.contains(r.out, b"Usage:", f"help of {verb}")
        for line in r.out.decode().splitlines():
            t.check(len(line) <= 100, f"a line of the help of {verb} is {len(line)} long")
    for word in ("pull", "import", "list", "rm", "gc"):
        r = t.cli("image", word, "--help")
        t.equal(r.status, 0, f"exit status of image {word} --help")
    r = t.cli("--version")
    t.equal(r.status, 0, "exit status of --version")
    t.check(r.out.startswith(b"sandbox-libkrun 0."), f"version: {r.out}")


@case(smoke=True)
def wrong_calls(t):
    run = ["run", "--image", "python"]
    for args, word in (
            ([], b"Usage"), (["nonsense"], b"nonsense"), (["run"], b"--image"),
            (run, b"--code"), ([*run, "--code", "x"], b"--lang"),
            ([*run, "--lang", "python", "--code", "x", "--file", "y"], b"--file"),
            ([*run, "--lang", "", "--code", "x"], b"--lang"),
            ([*run, "--lang", "python", "--code", "x", "--", "ls"], b"--"),
            ([*run, "--lang", "python", "--code", "x", "--timeout", "soon"], b"soon"),
            ([*run, "--lang", "python", "--code", "x", "--timeout", "0"], b"--timeout"),
            ([*run, "--lang", "python", "--code", "x", "--memory", "63"], b"64"),
            ([*run, "--lang", "python", "--code", "x", "--memory", "-1"], b"--memory"),
            ([*run, "--lang", "python", "--code", "x", "--memory", "99999999999999999999"], b"--memory"),
            ([*run, "--lang", "python", "--code", "x", "--cpus", "0"], b"--cpus"),
            ([*run, "--lang", "python", "--code", "x", "--cpus", "1.5"], b"--cpus"),
            ([*run, "--lang", "python", "--code", "x", "--vmm", "xen"], b"xen"),
            ([*run, "--lang", "python", "--code", "x", "--env", "novalue"], b"novalue"),
            ([*run, "--lang", "python", "--code", "x", "--env", "=v"], b"=v"),
            ([*run, "--lang", "python", "--code", "x", "--output-cap", "much"], b"much"),
            ([*run, "--lang", "python", "--file", "/no/such/file.py"], b"/no/such/file.py"),
            ([*run, "--nonsense"], b"nonsense"),
            (["image"], b"Usage"), (["image", "nonsense"], b"nonsense"),
            (["image", "rm"], b""), (["image", "import"], b""),
            (["image", "gc", "--max", "x"], b"x"), (["doctor", "surplus"], b"surplus")):
        r = t.cli(*args)
        t.equal(r.status, 2, f"exit status of {args}")
        t.check(r.err, f"{args}: no word on stderr")
        t.contains(r.err, word, f"stderr of {args}")
        t.equal(r.out, b"", f"stdout of {args}")


@case(per_backend=True)
def doctor(t):
    r = t.cli("doctor")
    t.check(r.status in (0, 1), f"exit status is {r.status}")
    text = (r.out + r.err).decode("utf-8")
    for word in ("kvm", "libkrun", "qemu", "kernel"):
        t.contains(text.lower(), word, "report")
    r = t.cli("doctor", "--json")
    t.check(r.status in (0, 1), f"exit status is {r.status}")
    for line in r.out.splitlines() if r.out.count(b"\n") > 1 else [r.out]:
        json.loads(line)


@case()
def doctor_on_a_poor_host(t):
    # Nothing is installed: it must still say so in plain words, and what to do.
    r = t.cli("doctor", env=t.env(PATH="/nonexistent", III_SANDBOX_LIBKRUN="/none.so",
                                  III_SANDBOX_LIBKRUNFW="/none.so", III_SANDBOX_VMM="qemu"))
    t.equal(r.status, 1, "exit status")
    t.contains((r.out + r.err).lower(), b"qemu", "report")
    t.contains((r.out + r.err).lower(), b"install", "report")


@case()
def krun_is_not_replaced_behind_your_back(t):
    # Asked for krun where it cannot run, `run` must fail and name the switch.
    r = t.run_code("echo no", options=["--vmm", "krun", "-q"],
                   env=t.env(III_SANDBOX_LIBKRUN="/no/such/libkrun.so.1"))
    t.ends(r, 125, b"")
    t.contains(r.err, b"S300", "stderr")
    t.contains(r.err, b"qemu", "stderr")


@case()
def qemu_that_is_missing_is_said(t):
    empty = os.path.join(t.scratch, "bin")
    os.mkdir(empty)
    r = t.run_code("echo no", options=["--vmm", "qemu", "-q"], env=t.env(PATH=empty))
    t.ends(r, 125, b"")
    t.contains(r.err, b"S300", "stderr")
    t.contains(r.err, b"qemu-system", "stderr")


@case()
def a_cache_that_cannot_be_written_is_said(t):
    path = os.path.join(t.scratch, "plain-file")
    with open(path, "w", encoding="utf-8"):
        pass
    r = t.cli("image", "list", env=t.env(III_SANDBOX_CACHE_DIR=path + "/cache"))
    t.equal(r.status, 1, "exit status")
    t.contains(r.err, path.encode(), "stderr")


@case(per_backend=True)
def a_home_is_not_needed(t):
    r = t.run_code("echo ok", options=["-q"], env=t.env(HOME=None, LANG=None))
    t.ends(r, 0, b"ok\n")


@case(per_backend=True)
def closed_descriptors_and_odd_places(t):
    # Started by a daemon: no stdin, no stdout, a working folder that is gone.
    gone = os.path.join(t.scratch, "gone")
    argv = t.run_argv("echo ok; exit 6", options=["-q"])
    r = t.command(["sh", "-c", 'mkdir "$0"; cd "$0"; rmdir "$0"; exec "$@" <&- >&-', gone, *argv])
    t.check(r.status in (6, 125), f"exit status is {r.status}")
    r = t.command(["sh", "-c", 'exec "$@" <&-', "sh", *argv])
    t.ends(r, 6, b"ok\n")


@case(per_backend=True)
def many_descriptors_of_ours_do_not_reach_the_vm(t):
    argv = t.run_argv("echo up; read x; exit 0", options=["-i", "-q"])
    secret = os.path.join(t.scratch, "secret")
    p = t.spawn(["sh", "-c", 'exec 7>"$0" 8<"$0"; exec "$@"', secret, *argv], stdin=-1)
    t.wait_for_output(p, b"up\n")
    held = [(pid, fd) for pid in t.vm_processes(p) for fd in os.listdir(f"/proc/{pid}/fd")
            if os.readlink(f"/proc/{pid}/fd/{fd}") == secret]
    t.equal(held, [], "descriptors of ours in the VM's processes")
    t.ends(t.finish(p, stdin=b"x\n"), 0)


@case()
def the_man_page_builds(t):
    page = os.path.join(BUILD, "man/sandbox-libkrun.1")
    t.check(os.path.exists(page), f"{page} is not built (is scdoc installed?)")
    with open(page, "rb") as f:
        text = f.read()
    for word in (b"SANDBOX-LIBKRUN", b"EXIT STATUS", b"124", b"III_SANDBOX_VMM"):
        t.contains(text, word, "man page")
    if shutil.which("man"):
        r = t.command(["man", "--warnings", "-l", page], env=t.env(MANWIDTH="80", PAGER="cat"))
        t.equal((r.status, r.err), (0, b""), "man's verdict")


@case()
def the_folders_are_private(t):
    t.cache = os.path.join(t.scratch, "new/cache")
    t.equal(t.cli("image", "list").status, 0, "exit status")
    mode = stat.S_IMODE(os.stat(t.cache).st_mode)
    t.equal(oct(mode), "0o700", "mode of the cache folder")


main()
