#!/usr/bin/env python3
"""`run`: code and programs go in, the answer and the program's own exit status come out."""
import os

from harness import GUEST_ENV, case, main


@case(per_backend=True, smoke=True)
def hello(t):
    r = t.run_code("print(6*7)", lang="python")
    t.ends(r, 0, b"42\n")
    tier = b"emulated" if t.backend == "qemu" else b"hardware"
    t.equal(r.err, b"sandbox-libkrun: vmm=%s tier=%s\n" % (t.backend.encode(), tier), "stderr")


@case(per_backend=True)
def quiet_keeps_stderr_to_the_program(t):
    r = t.run_code("echo out; echo err >&2; exit 7", options=["-q"])
    t.ends(r, 7, b"out\n")
    t.equal(r.err, b"err\n", "stderr")


@case(per_backend=True)
def exit_codes(t):
    # One VM each: the status is that of the command. A shell's own 126 and 127 are the program's.
    for code, status in (("exit 0", 0), ("exit 1", 1), ("exit 255", 255),
                         ("kill -KILL $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)):
        r = t.run_code(code)
        t.equal(r.status, status, f"exit status of {code!r}")


@case(per_backend=True)
def programs_that_cannot_start(t):
    r = t.run_program("/no/such/bin", options=["-q"])
    t.ends(r, 127, b"")
    t.equal(r.err, b"exec: /no/such/bin: not found\n", "stderr")
    r = t.run_program("no-such-program", options=["-q"])
    t.ends(r, 127, b"")
    t.equal(r.err, b"exec: no-such-program: not found\n", "stderr")
    r = t.run_program("/etc/passwd", options=["-q"])
    t.ends(r, 126, b"")
    t.equal(r.err, b"exec: /etc/passwd: permission denied\n", "stderr")
    r = t.run_code("", lang="/no/interp", options=["-q"])
    t.ends(r, 127, b"")
    r = t.run_program("pwd", options=["-q", "--workdir", "/nope"])
    t.equal(r.status, 127, "exit status with a missing workdir")
    t.contains(r.err, b"/nope", "stderr")


@case(per_backend=True)
def no_shell_fallback_for_a_file_without_interpreter(t):
    r = t.run_code("printf 'echo x\\n' > /tmp/plain; chmod 755 /tmp/plain;"
                   "python3 -c 'import os,sys\ntry: os.execv(\"/tmp/plain\", [\"plain\"])\n"
                   "except OSError as e: print(e.errno)'")
    t.ends(r, 0, b"8\n")


@case(per_backend=True)
def languages(t):
    t.ends(t.run_code("echo $0", lang="shell"), 0, b"/tmp/run.sh\n")
    t.ends(t.run_code("echo $0", lang="sh"), 0, b"/tmp/run.sh\n")
    t.ends(t.run_code("import sys; print(sys.argv)", lang="py"), 0, b"['/tmp/run.py']\n")
    # Anything else is the interpreter itself, by PATH or by its own path.
    t.ends(t.run_code("echo ${BASH_VERSION%%.*} $0", lang="bash"), 0, b"5 /tmp/run.txt\n")
    t.ends(t.run_code("hello", lang="/bin/cat"), 0, b"hello")
    # Case counts: this is no alias of python.
    t.equal(t.run_code("", lang="Python").status, 127, "exit status of an unknown interpreter")


@case(per_backend=True)
def code_from_stdin_and_from_a_file(t):
    code = "# é ☃ 𝄞\nprint(sum(range(10)))\n"
    t.ends(t.run_code("-", lang="python", stdin=code.encode()), 0, b"45\n")
    path = os.path.join(t.scratch, "my code.py")
    with open(path, "w", encoding="utf-8") as f:
        f.write("import sys\nsys.stdout.write(open(__file__).read())\n" + "# filler\n" * 300000)
    argv = t.run_argv("", lang="python")
    i = argv.index("--code")
    r = t.command(argv[:i] + ["--file", path] + argv[i + 2:])
    with open(path, "rb") as f:
        t.ends(r, 0, f.read())


@case(per_backend=True)
def code_is_bytes(t):
    # Not UTF-8 and with a NUL: written as it is.
    code = b"cat <<'E'\n\xff\xfe\x80 caf\xe9\nE\nexit 4\n\0"
    t.ends(t.run_code("-", lang="shell", stdin=code), 4, b"\xff\xfe\x80 caf\xe9\n")


@case(per_backend=True)
def heredocs_and_unterminated_quotes(t):
    t.ends(t.run_code("cat <<E\n$((6*7))\nE\n"), 0, b"42\n")
    r = t.run_code("echo 'oops")
    t.equal(r.status, 2, "exit status of a syntax error in dash")
    t.equal(r.out, b"", "stdout")


QUOTING = ["", " ", "  two  blanks ", "'", '"', "it's", 'a"b', "\\", "\\\\", "\\n", "a\nb", "\t",
           "$HOME", "$(id)", "`id`", "; rm -rf /", "&& ls", "|", ">x", "*", "?", "[a]", "~", "#c",
           "!", "%s", "%n%n", "-c", "--", "é☃𝄞", "a=b", "{}", "\x01\x7f", "init=/bin/sh", " -- "]


@case(per_backend=True, smoke=True)
def arguments_arrive_as_they_were(t):
    script = "import sys,os; os.write(1, b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"
    argv = [a.encode() for a in QUOTING] + [b"x" * 100000]
    r = t.run_program("python3", "-c", script, *argv)
    t.equal(r.status, 0, "exit status")
    t.equal(r.out.split(b"\0"), argv, "arguments")
    # Requests are JSON: what is no UTF-8 is refused by name, not changed on the way.
    r = t.run_program("echo", b"\xff\xfe\x80")
    t.ends(r, 125, b"")
    t.contains(r.err, b"S001", "stderr")
    t.contains(r.err, b"not UTF-8", "stderr")


@case(per_backend=True, smoke=True)
def environment_arrives_as_it_was(t):
    values = {f"V{i}": a for i, a in enumerate(QUOTING)}
    values["BIG"] = "b" * 100_000
    values["A.dotted-name"] = "1"
    options = [x for k, v in values.items() for x in ("--env", f"{k}={v}")]
    script = ("import os\n"
              "for k, v in os.environb.items(): os.write(1, k + b'=' + v + b'\\0')\n")
    r = t.run_program("python3", "-c", script, options=options)
    t.equal(r.status, 0, "exit status")
    got = dict(x.split(b"=", 1) for x in r.out.split(b"\0")[:-1])
    for k, v in values.items():
        t.equal(got.get(k.encode()), v.encode(), f"value of {k}")


@case(per_backend=True)
def five_thousand_variables(t):
    options = [x for i in range(5000) for x in ("--env", f"NUMBER_{i}=value of {i}")]
    r = t.run_program("python3", "-c",
                      "import os; print(sum(os.environ.get(f'NUMBER_{i}') == f'value of {i}'"
                      " for i in range(5000)))", options=options)
    t.ends(r, 0, b"5000\n")


@case(per_backend=True)
def base_environment_and_its_order(t):
    # Nothing of the host leaks in; HOME and PATH are there; the last --env wins; PATH can be set.
    r = t.run_program("/usr/bin/env", options=["--env", "A=1", "--env", "A=2"],
                      env=t.env(SECRET_OF_HOST="x", III_SOMETHING="y"))
    t.equal(r.status, 0, "exit status")
    got = dict(line.split("=", 1) for line in r.out.decode().splitlines())
    t.equal(got, {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                  "HOME": "/root", "LANG": "C.UTF-8", "A": "2",
                  **dict(e.split("=", 1) for e in GUEST_ENV)}, "environment")
    r = t.run_program("ls", options=["--env", "PATH=/nope", "-q"])
    t.equal(r.status, 127, "exit status with a PATH that has no ls")


@case(per_backend=True)
def starts_in_the_workdir(t):
    t.ends(t.run_program("pwd"), 0, b"/\n")
    t.ends(t.run_program("pwd", options=["--workdir", "/usr/lib"]), 0, b"/usr/lib\n")
    # Relative to the root.
    t.ends(t.run_program("pwd", options=["--workdir", "usr"]), 0, b"/usr\n")


@case(per_backend=True)
def memory_and_cpus(t):
    r = t.run_program("grep", "MemTotal", "/proc/meminfo", options=["--memory", "256M"])
    kib = int(r.out.split()[1])
    t.check(180_000 < kib <= 256 * 1024, f"MemTotal with --memory 256M is {kib} KiB")
    r = t.run_program("grep", "MemTotal", "/proc/meminfo", options=["--memory", "384"])
    kib = int(r.out.split()[1])
    t.check(290_000 < kib <= 384 * 1024, f"MemTotal with --memory 384 is {kib} KiB")
    if t.backend == "qemu":  # a kernel for KVM that does not virtualise has one CPU only
        t.ends(t.run_program("nproc", options=["--cpus", "2"]), 0, b"2\n")


main()
