"""The cases of the sandbox contract as data, run against an adapter on any iii engine.

A case file in cases/ is a list of cases:

  id        its name in the contract
  function  whose behaviour it is about, for the report; default: the call of its first step
  config    name in configs.json; default P0
  sandbox   "shared" (default): one sandbox of the configuration, "fresh": one of its own, stopped
            afterwards, "none"
  create    members for a fresh sandbox's create
  setup     shell script that runs in it before
  steps     what is done; a case with one step can have its members at the top

A step has one of
  call      a function, with `request`. The text "S" is the sandbox's id, "S1", … what was saved;
            they are also replaced inside texts when written {S}
  sh        a shell script in the sandbox S, whose `stdout` and `exit_code` (default 0) are checked
  await     the name of a call that was started in the background
and may have
  reply     how the reply has to look (see match); error: {"code", "has": [texts], "fix", "fields"}
  save      {name: member of the reply}
  background  a name: the call is only started
  parallel  N: the call is made N times at once; `outcomes` counts them: {"ok": 2, "S400": 3}; the
            sandboxes of creates are stopped
  poll_s    the call is repeated until it fits, at most that long (a guard, not a measure)

Values a request can hold instead of literal ones:
  {"$zeros_b64": N}   base64 of N zero bytes
  {"$repeat": "a", "times": 255, "before": "/tmp/"}
  {"$upload": N, "silent": true}   a channel, into which a writer sends N bytes; silent: and then
                      keeps it open without a word
"""
import base64
import json
import os
import re
import threading
import time

import iii

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIX = "handler error: "
MEMBERS = ["code", "docs_url", "fix", "fix_note", "message", "retryable", "type"]
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
ABSENT = object()


class Wrong(Exception):
    """What happened is not what the contract says."""


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return json.load(f)


def load_cases():
    cases = []
    for name in sorted(os.listdir(os.path.join(HERE, "cases"))):
        for case in load(f"cases/{name}"):
            case.setdefault("config", "P0")
            case.setdefault("steps", [case])
            case.setdefault("function", case["steps"][0].get("call", "exec"))
            cases.append(case)
    ids = [c["id"] for c in cases]
    twice = {i for i in ids if ids.count(i) > 1}
    if twice:
        raise ValueError(f"cases that exist twice: {twice}")
    return cases


def shown(value):
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) < 400 else f"{text[:300]}… ({len(text)} characters)"


def match(got, wanted, where, engine):
    """Literal values are equal; objects have at least the wanted members; arrays the same length.
    {"$has": t}, {"$starts": t}, {"$ends": t}, {"$matches": r}, {"$len": n}, {"$uuid4": true},
    {"$absent": true}, {"$nonempty": true}, {"$keys": [...]} (exactly these), {"$all": [...]},
    {"$channel": t} (what can be read through that reference, as Latin-1)."""
    def need(ok, what):
        if not ok:
            raise Wrong(f"{where}: {what}, got {shown(got) if got is not ABSENT else 'nothing'}")
    if isinstance(wanted, dict) and any(k.startswith("$") for k in wanted):
        (how, arg), = wanted.items()
        if how == "$absent":
            need(got is ABSENT, "wanted nothing")
            return
        need(got is not ABSENT, f"wanted {shown(wanted)}")
        checks = {
            "$has": lambda: arg in got, "$starts": lambda: got.startswith(arg),
            "$ends": lambda: got.endswith(arg), "$matches": lambda: re.search(arg, got),
            "$len": lambda: len(got) == arg, "$nonempty": lambda: bool(got),
            "$uuid4": lambda: re.fullmatch(UUID4, got), "$keys": lambda: list(got) == arg,
            "$lacks": lambda: arg not in got,
        }
        if how == "$all":
            for one in arg:
                match(got, one, where, engine)
        elif how == "$channel":
            data, _ = engine.read_channel(got)
            need(data == arg.encode("latin-1"), f"wanted the bytes {shown(arg)}, read {data[:99]!r}")
        else:
            need(checks[how](), f"wanted {shown(wanted)}")
    elif isinstance(wanted, dict):
        need(isinstance(got, dict), "wanted an object")
        for name, value in wanted.items():
            match(got.get(name, ABSENT), value, f"{where}.{name}", engine)
    elif isinstance(wanted, list):
        need(isinstance(got, list) and len(got) == len(wanted), f"wanted {len(wanted)} elements")
        for i, value in enumerate(wanted):
            match(got[i], value, f"{where}[{i}]", engine)
    else:
        need(type(got) is type(wanted) and got == wanted, f"wanted {shown(wanted)}")


def read_error(e):
    """The contract's error inside an invocation's."""
    if e.code != "invocation_failed" or not e.message.startswith(PREFIX + "{"):
        raise Wrong(f"an error of another form: {e.code}: {shown(e.message)}")
    error = json.loads(e.message[len(PREFIX):])
    if list(error) != MEMBERS:
        raise Wrong(f"the error's members are {list(error)}")
    if not error["docs_url"].endswith("#" + error["code"]) or "\n" in json.dumps(error):
        raise Wrong(f"docs_url {error['docs_url']} of {error['code']}")
    return error


class Runner:
    """Runs cases of one configuration over one connection."""

    def __init__(self, engine, prefix="sandbox-libkrun::"):
        self.engine, self.prefix = engine, prefix
        self.shared = None

    def call(self, function, request):
        return self.engine.call(self.prefix + function, request)

    # --- requests ---

    def upload(self, spec):
        reader, writer = self.engine.channel()
        data = bytes(spec["$upload"])
        def write():
            try:
                ws = self.engine.write_channel(writer, data, finish=not spec.get("silent"))
                if ws:
                    self.open_sockets.append(ws)
            except (iii.Lost, iii.Refused):
                pass
        threading.Thread(target=write, daemon=True).start()
        return reader

    def fill(self, value):
        if isinstance(value, dict):
            if "$zeros_b64" in value:
                return base64.b64encode(bytes(value["$zeros_b64"])).decode()
            if "$repeat" in value:
                return value.get("before", "") + value["$repeat"] * value["times"]
            if "$upload" in value:
                return self.upload(value)
            return {k: self.fill(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.fill(v) for v in value]
        if isinstance(value, str):
            if value in self.names:
                return self.names[value]
            return re.sub(r"\{(S\d*)\}", lambda m: self.names.get(m.group(1), m.group(0)), value)
        return value

    # --- steps ---

    def check(self, step, pending):
        """The outcome of a call against what the step says of it."""
        try:
            reply, error = pending.result(), None
        except iii.CallError as e:
            reply, error = None, read_error(e)
        wanted = self.fill(step.get("error"))
        if wanted:
            if not error:
                raise Wrong(f"wanted {wanted['code']}, got the reply {shown(reply)}")
            if error["code"] != wanted["code"]:
                raise Wrong(f"wanted {wanted['code']}, got {error['code']}: {error['message']}")
            for text in wanted.get("has", []):
                if text not in error["message"]:
                    raise Wrong(f"{shown(text)} is not in the message {shown(error['message'])}")
            match(error, wanted.get("fields", {}), "error", self.engine)
        elif error:
            raise Wrong(f"{error['code']}: {error['message']}")
        elif "reply" in step:
            match(reply, self.fill(step["reply"]), "reply", self.engine)
        for name, member in step.get("save", {}).items():
            self.names[name] = reply[member]
        return reply

    def parallel(self, step):
        pending = [self.start(step) for _ in range(step["parallel"])]
        outcomes = {}
        for p in pending:
            try:
                reply, outcome = p.result(), "ok"
                if step["call"] == "create":
                    self.to_stop.append(reply["sandbox_id"])
            except iii.CallError as e:
                outcome = read_error(e)["code"]
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if outcomes not in step["outcomes"]:
            raise Wrong(f"outcomes are {outcomes}")

    def start(self, step):
        return self.engine.start(self.prefix + step["call"], self.fill(step.get("request", {})))

    def step(self, step):
        if "await" in step:
            self.check(step, self.background.pop(step["await"]))
        elif "sh" in step:
            reply = self.call("exec", {"sandbox_id": self.names["S"],
                                       "argv": ["sh", "-c", self.fill(step["sh"])]})
            match(reply, {"exit_code": step.get("exit_code", 0),
                          **({"stdout": step["stdout"]} if "stdout" in step else {})},
                  f"sh {shown(step['sh'])} (stderr {shown(reply['stderr'])})", self.engine)
        elif "background" in step:
            self.background[step["background"]] = self.start(step)
        elif "parallel" in step:
            self.parallel(step)
        elif "poll_s" in step:
            end = time.monotonic() + step["poll_s"]
            while True:
                try:
                    self.check(step, self.start(step))
                    return
                except Wrong:
                    if time.monotonic() > end:
                        raise
                time.sleep(0.1)
        else:
            self.check(step, self.start(step))

    # --- cases ---

    def create(self, **members):
        return self.call("create", {"image": "python", **members})["sandbox_id"]

    def sandbox_for(self, case):
        kind = case.get("sandbox", "shared")
        if kind == "none":
            return None
        if kind == "fresh":
            made = self.create(**case.get("create", {}))
            self.to_stop.append(made)
            return made
        if self.shared is None:
            self.shared = self.create()
        return self.shared

    def run(self, case):
        """None, or what was wrong."""
        self.names, self.background, self.to_stop, self.open_sockets = {}, {}, [], []
        try:
            sandbox = self.sandbox_for(case)
            if sandbox:
                self.names["S"] = sandbox
            if "setup" in case:
                self.step({"sh": case["setup"]})
            for number, step in enumerate(case["steps"], 1):
                try:
                    self.step(step)
                except (Wrong, iii.CallError, TimeoutError) as e:
                    at = f"step {number}: " if len(case["steps"]) > 1 else ""
                    return f"{at}{e}"
            return None
        except (Wrong, iii.CallError, TimeoutError) as e:
            return f"before the first step: {e}"
        finally:
            self.tidy()

    def tidy(self):
        for ws in self.open_sockets:
            ws.close(say=False)
        for sandbox in self.to_stop:
            try:
                self.call("stop", {"sandbox_id": sandbox, "wait": True})
            except iii.CallError:
                pass  # it stopped itself

    def done(self):
        if self.shared:
            self.to_stop = [self.shared]
            self.open_sockets = []
            self.tidy()
            self.shared = None


def report(results):
    """Lines by function: passed of all, and the ids that failed. results: (case, fault)."""
    table = {}
    for case, fault in results:
        row = table.setdefault(case["function"], [0, []])
        row[0] += 1
        if fault:
            row[1].append(case["id"])
    for function in sorted(table):
        count, failed = table[function]
        more = f"  failed: {' '.join(failed)}" if failed else ""
        yield f"{function:16} {count - len(failed):3} of {count:3}{more}"
