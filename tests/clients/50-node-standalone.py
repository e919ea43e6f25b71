#!/usr/bin/env python3
"""The npm iii-sdk drives sandboxes on `standalone`; what it does is in node_standalone.mjs."""
import os

import harness

harness.enter()

from standalone import QUICK_BACKEND, Standalone, e2e  # noqa: E402


def node(t, case):
    folder = harness.node_folder()
    with Standalone(t) as s:
        r = t.command(["node", os.path.join(harness.HERE, "node_standalone.mjs"), folder, s.url,
                       str(s.p.pid), str(harness.GROWTH_KIB), case])
        t.equal(r.status, 0, f"exit status of {case}")
        # The SDK prints too.
        t.equal(r.out.splitlines()[-1:], [f"done {case}".encode()], "what it says in the end")


@e2e.case(per_backend=True, smoke=True)
def a_life(t):
    node(t, "life")


@e2e.case(per_backend=True)
def errors_and_what_to_do_about_them(t):
    node(t, "errors")


@e2e.case()
def a_file_of_200_mb_there_and_back(t):
    t.backend = QUICK_BACKEND
    node(t, "big")


e2e.main()
