#!/usr/bin/env python3
"""One VM, thousands of short programs at once: all end well, and nothing of them is left."""
from harness import INSPECT, case, inspected, main


@case(per_backend=True, guard_s=600)
def two_thousand_short_programs_four_at_a_time(t):
    count = 2000
    _, (_, before, first, host_before, storm, after, last, host_after) = t.vm(
        {"op": "storm", "argv": ["true"], "count": 20, "parallel": 4},  # first use of everything
        INSPECT, {"op": "hello"}, {"op": "self"},
        {"op": "storm", "argv": ["true"], "count": count, "parallel": 4},
        INSPECT, {"op": "hello"}, {"op": "self"}, timeout=580)
    t.equal(storm.get("first_failure"), None, "first failure")
    t.equal((storm["ok"], storm["failed"]), (count, 0), "ok and failed")
    before, after = inspected(t, before), inspected(t, after)
    t.equal(after["zombies"], 0, "zombies in the guest")
    t.equal(after["processes"], before["processes"], f"processes in the guest, now {after['names']}")
    t.equal(after["agent_fds"], before["agent_fds"], "descriptors of the agent")
    t.equal(after["cgroups"], before["cgroups"], "cgroups in the guest")
    t.equal(host_after["fds"], host_before["fds"], "descriptors of the host")
    t.check(last["rss_kib"] <= 4096, f"the agent holds {last['rss_kib']} KiB")
    t.check(last["rss_kib"] <= first["rss_kib"] + 256,
            f"the agent grew from {first['rss_kib']} to {last['rss_kib']} KiB")


main()
