#!/usr/bin/env python3
"""The contract's cases (tests/conformance) against `standalone`, for each of their configurations."""
import json
import os
import re
import signal
import sys

import harness
from harness import BIN, BACKENDS, main, use_python_image

sys.path.insert(0, os.path.join(harness.SOURCE, "tests/conformance"))
import conformance  # noqa: E402
import iii  # noqa: E402

CONFIGS = conformance.load("configs.json")
CASES = conformance.load_cases()


def run_config(t, name):
    use_python_image()
    path = os.path.join(t.scratch, "config.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(CONFIGS[name]["value"], f)
    more = {}
    if CONFIGS[name].get("cache") == "empty":
        more["III_SANDBOX_CACHE_DIR"] = os.path.join(t.scratch, "empty")
    p = t.spawn([BIN, "standalone", "--port", "0", "--config", path], env=t.env(**more))
    line = t.wait_for_output(p, b"\n").decode()
    results = []
    with iii.Engine(re.fullmatch(r"ready url=(.*)\n", line).group(1)) as engine:
        runner = conformance.Runner(engine)
        for case in CASES:
            if case["config"] == name:
                results.append((case, runner.run(case)))
        runner.done()
    os.kill(p.pid, signal.SIGTERM)
    t.equal(t.finish(p).status, 0, "exit status of standalone")
    t.check(results, "there are cases for this configuration")
    faults = [f"{case['id']}: {fault}" for case, fault in results if fault]
    t.check(not faults, "\n".join([*faults, *conformance.report(results)]))


def add(name):
    def function(t):
        run_config(t, name)
    function.__name__ = f"contract_with_configuration_{name}"
    for backend in BACKENDS:
        harness.cases.append((function, backend, False, False, 900))


for each in CONFIGS:
    add(each)
main()
