#!/usr/bin/env python3
"""What is published about the program - iii.worker.yaml, the systemd unit, docs/configuration.md,
docs/errors.md - against what the program itself says and does."""
import json
import os
import re
import shutil
import signal

import harness
from harness import BIN, case, main, use_python_image

SERVING = re.compile(r'msg="serving" .*\bmax_concurrent_sandboxes=(\d+)')


def source(path):
    with open(os.path.join(harness.SOURCE, path), encoding="utf-8") as f:
        return f.read()


def scalar(text):
    if text.startswith("[") and text.endswith("]"):
        return [scalar(x.strip()) for x in text[1:-1].split(",")]
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"\d+", text):
        return int(text)
    assert not re.search(r'["\'&*!|>%@`{}]|: | #', text[:1] + text[1:].replace("::*", "")), \
        f"this reader does not know: {text!r}"
    return text


def read_yaml(lines, indent=0):
    """The YAML of iii.worker.yaml: maps, lists of words, numbers, truth; anything else fails."""
    out = None
    while lines and len(lines[0]) - len(lines[0].lstrip()) == indent:
        line = lines.pop(0).strip()
        if line.startswith("- "):
            out = [] if out is None else out
            out.append(scalar(line[2:]))
            continue
        key, colon, value = line.partition(":")
        assert colon and re.fullmatch(r"\w+", key), f"this reader does not know: {line!r}"
        out = {} if out is None else out
        assert key not in out, f"{key} is there twice"
        out[key] = scalar(value.strip()) if value.strip() else read_yaml(lines, indent + 2)
    return out


def manifest():
    lines = [x for x in source("iii.worker.yaml").splitlines()
             if x.strip() and not x.startswith("#")]
    out = read_yaml(lines)
    assert not lines, f"left over: {lines}"
    return out


class Standalone:
    """A running `standalone` whose log is kept."""

    def __init__(self, t, config=None):
        self.t = t
        args = []
        if config is not None:
            path = os.path.join(t.scratch, "config.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(config, f)
            args = ["--config", path]
        self.p = t.spawn([BIN, "standalone", "--port", "0", *args], env=t.env(SANDBOX_LOG="info"))
        line = t.wait_for_output(self.p, b"\n").decode()
        self.env = t.env(III_URL=re.fullmatch(r"ready url=(ws://.*)\n", line).group(1))

    def call(self, function, **members):
        r = self.t.cli("call", function, "--json", json.dumps(members), env=self.env)
        self.t.equal(r.status, 0, f"exit status of call {function}")
        return json.loads(r.out)

    def stop(self):
        """Its log."""
        os.kill(self.p.pid, signal.SIGTERM)
        r = self.t.finish(self.p)
        self.t.equal(r.status, 0, "exit status of standalone")
        return r.err.decode()


@case()
def the_manifest_has_the_programs_name_and_version(t):
    m = manifest()
    t.equal(t.cli("--version").out.decode().split(), [m["name"], m["version"]], "--version")
    s = Standalone(t)
    info = s.call("adapter::info")
    s.stop()
    t.equal((info["adapter"], info["adapter_version"]), (m["name"], m["version"]), "adapter::info")
    t.equal(m["bin"], os.path.basename(BIN), "bin")


@case()
def the_manifest_has_what_a_registry_needs(t):
    m = manifest()
    t.equal(m["type"], "binary", "type")
    t.equal(sorted(m["supported_targets"]), ["aarch64-apple-darwin", "aarch64-unknown-linux-gnu",
                                             "x86_64-unknown-linux-gnu"], "targets")
    t.equal(list(m["dependencies"]), ["configuration"], "dependencies")
    license_text = source("LICENSE")
    t.check("Apache License" in license_text and m["license"] == "Apache-2.0", "license")


@case()
def the_manifests_configuration_is_the_shipped_one(t):
    m = manifest()["config"]
    logs, catalogs = [], []
    for config in (None, m):
        s = Standalone(t, config)
        catalogs.append(s.call("catalog::list"))
        log = s.stop()
        t.check("is not known" not in log, "a key of the manifest is not known")
        logs.append(int(SERVING.search(log).group(1)))
    t.equal(catalogs[0], catalogs[1], "catalog with and without the manifest's configuration")
    t.equal([x["name"] for x in catalogs[0]["images"]], m["image_allowlist"], "image_allowlist")
    t.equal(logs, [m["max_concurrent_sandboxes"]] * 2, "max_concurrent_sandboxes")


@case(per_backend=True)
def the_manifests_sizes_are_what_a_sandbox_gets(t):
    m = manifest()["config"]
    use_python_image()
    s = Standalone(t)
    code = ("import os; print(os.cpu_count(), [int(x.split()[1]) // 1024 for x in open('/proc/meminfo')"
            " if x.startswith('MemTotal')][0])")
    out = s.call("run", image="python", lang="python", code=code)["stdout"]
    s.stop()
    cpus, mib = map(int, out.split())
    t.equal(cpus, m["default_cpus"], "default_cpus")
    # The kernel keeps a part for itself.
    t.check(0.7 * m["default_memory_mb"] < mib <= m["default_memory_mb"],
            f"default_memory_mb is {m['default_memory_mb']}, the guest has {mib} MiB")


def documented_keys():
    """key -> row of the table in docs/configuration.md."""
    rows = {}
    for line in source("docs/configuration.md").splitlines():
        m = re.match(r"\| `(\w+)` \|", line)
        if m:
            rows[m.group(1)] = [x.strip() for x in line.strip("|").split("|")]
    return rows


@case()
def every_documented_key_is_checked_by_name(t):
    rows = documented_keys()
    path = os.path.join(t.scratch, "config.json")
    for key in sorted(set(rows) | set(manifest()["config"])):
        t.check(key in rows, f"docs/configuration.md says nothing of {key}")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({key: 1.5}, f)  # of no key's type
        r = t.cli("standalone", "--port", "0", "--config", path)
        t.equal(r.status, 2, f"exit status for a wrong {key}")
        t.contains(r.err.decode(), f"`{key}`", "error")


@case()
def every_key_is_documented(t):
    known = re.search(r"known_keys\[\] = \{(.*?)\}", source("src/host/api/config.c"), re.S).group(1)
    t.equal(sorted(documented_keys()), sorted(re.findall(r'"(\w+)"', known)), "keys")


@case()
def the_documented_defaults_hold(t):
    rows, m = documented_keys(), manifest()["config"]
    for key, value in m.items():
        if key != "image_allowlist":  # the shipped list is not the default of an entry without it
            t.equal(json.loads(rows[key][2].strip("`")), value, f"default of {key}")


@case()
def the_example_of_the_configuration_is_taken(t):
    text = re.search(r"```json\n(.*?)```", source("docs/configuration.md"), re.S).group(1)
    config = json.loads(text)
    t.equal(sorted(config), sorted(documented_keys()), "keys of the example")
    s = Standalone(t, config)
    names = [x["name"] for x in s.call("catalog::list")["images"]]
    t.equal(sorted(names), sorted(config["image_allowlist"]), "images of the example")
    log = s.stop()
    t.check("is not known" not in log and "does not exist" not in log, f"warnings:\n{log}")


@case()
def the_systemd_unit_names_what_there_is(t):
    text = source("packaging/sandbox-libkrun.service")
    command = re.search(r"^ExecStart=(\S+) (\S+)$", text, re.M)
    t.equal(os.path.basename(command.group(1)), os.path.basename(BIN), "program")
    t.equal(t.cli(command.group(2), "--help").status, 0, f"exit status of {command.group(2)} --help")
    man = source("man/sandbox-libkrun.1.scd")
    for name in re.findall(r"^Environment=(III_\w+)=", text, re.M):
        t.contains(man, f"*{name}*", "man page")
    if not shutil.which("systemd-analyze"):
        return
    unit = os.path.join(t.scratch, "sandbox-libkrun.service")
    with open(unit, "w", encoding="utf-8") as f:
        f.write(text.replace(command.group(1), BIN))
    r = t.command(["systemd-analyze", "verify", "--man=no", unit])
    t.equal((r.status, r.err), (0, b""), "systemd-analyze verify")


@case()
def every_error_is_documented(t):
    """docs/errors.md has one anchor a code, and type and retry are those of the replies."""
    rows = re.findall(r'\{"(S\d+)", "(\w+)", (true|false),', source("src/host/api/reply.c"))
    t.check(len(rows) >= 20, "codes in reply.c")
    page = source("docs/errors.md")
    headings = re.findall(r"^## (S\d+)$", page, re.M)
    t.equal(len(headings), len(set(headings)), "anchors that are there once")
    # A page's own headings get addresses in lower case; docs_url has the code as it is.
    anchors = re.findall(r'^<a id="(S\d+)"></a>\n\n## (S\d+)$', page, re.M)
    t.equal([a for a, _ in anchors], headings, "addresses of the codes")
    t.equal([h for _, h in anchors], headings, "headings behind them")
    for code, kind, retry in rows:
        m = re.search(rf"^## {code}$(.*?)(?=^<a id|^## |\Z)", page, re.M | re.S)
        t.check(m, f"docs/errors.md has no anchor {code}")
        word = "yes" if retry == "true" else "no"
        t.contains(m.group(1), f"`{kind}` · retry: {word}", f"the first line of {code}")


main()
